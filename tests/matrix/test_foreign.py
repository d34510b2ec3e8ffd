"""The part of the matrix with the files of other programs, in the TensorFlow that is installed."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import tensorflow as tf

from tests.matrix.environments import Ready
from tests.matrix.foreign import check, to_trial

HERE = Ready(".".join(tf.__version__.split(".")[:2]), Path(sys.executable))


def test_a_file_with_gradients_passes(foreign, tmp_path):
    file = foreign("jax2tf")
    trial = to_trial("serving_default", file.values["serving_default"])
    assert trial.differentiated == ("image",)
    assert trial.expected[1].keys() == {"input/image"}
    assert check(file, tmp_path / "new", HERE) == ""


def test_another_number_is_a_failure(foreign, tmp_path):
    file = foreign("session_graph")
    values = file.values["serving_default"]
    wrong = {"input": values["input"], "output": {"y": values["output"]["y"] + 1}}
    changed = dataclasses.replace(file, values={"serving_default": wrong, "missing": values})
    message = check(changed, tmp_path / "new", HERE)
    assert "serving_default, order 0: y at index" in message
    assert "missing: KeyError" in message
