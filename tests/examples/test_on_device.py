"""The trainer in C: what it learns without Python is read in JAX, which goes on."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import bridge
from tests.bridge.c_programs import build
from tests.policy.source import ROOT

FOLDER = ROOT / "examples" / "on_device"


def _run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(int(n), int(steps)) for n, steps in re.findall(RIGHT, done.stdout)], done.stdout


RIGHT = r"(\d+) of 397 right after (\d+) steps"


def test_a_program_in_c_trains_the_model(tmp_path):
    pytest.importorskip("optax")
    program = build("train_digits", tmp_path, sources=FOLDER)
    script = (sys.executable, FOLDER / "digits_model.py", tmp_path)
    _run(*script)
    model, trained = tmp_path / "model", tmp_path / "trained"
    ((before, first), (after, steps)), printed = _run(
        program, model, tmp_path / "samples.bin", trained
    )
    # It has not seen a turned digit before.
    assert (first, steps) == (100, 100 + 20 * 28)
    assert before < 100
    assert after > 360
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert losses == sorted(losses, reverse=True)
    (read, further), _ = _run(*script, "trained")
    assert read == (after, steps)
    assert further[1] == steps + 20
    assert further[0] >= after - 5
    old, new = (bridge.load(path).params for path in (model, trained))
    assert not np.array_equal(old["params"]["hidden"], new["params"]["hidden"])
