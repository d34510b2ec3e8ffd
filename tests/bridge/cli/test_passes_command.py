"""The command `jax-tf-bridge passes` tells what the pipeline would do, and runs one pass."""

from __future__ import annotations

from itertools import chain

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.cli.main import main
from bridge.loading.signature_calls import calls_of
from savedmodel.read import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("passes") / "model"
    spec = jax.ShapeDtypeStruct((3, 3), np.float32)
    function = jax.jit(jnp.linalg.cholesky)
    exported = jax.export.export(function, platforms=["cpu", "tpu"])(spec)
    bridge.save(exported, path, linalg="lapack", tensorflow="2.20")
    return path


def test_each_call_has_its_passes_and_their_reasons(folder, capsys):
    assert main(["passes", str(folder), "--tensorflow", "2.16", "--platforms", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [head.split(":")[0] for head in heads] == [
        "serving_default, order 0",
        "serving_default, order 1",
    ]
    first = dict(line.split(maxsplit=1) for line in lines[1 : lines.index(heads[1])])
    assert list(first) == [
        "platforms", "linear_algebra", "int8_products", "cut_convolutions", "gspmd", "composites",
        "mhlo_calls", "serialize",
    ]  # fmt: skip
    assert first["platforms"] == "runs: it is for cpu, tpu"
    assert first["linear_algebra"].startswith("runs: it calls lapack_spotrf")
    assert first["gspmd"] == "has nothing to do"
    assert first["serialize"] == "at StableHLO 0.17.7, calling convention 9"


@pytest.mark.parametrize("name", ["jax2tf", "keras", "bare_graph", "session_graph", "orbax"])
def test_files_of_other_writers(foreign, capsys, name):
    path = str(foreign(name).folder)
    calls = [call for signature in read(path).signatures for call in chain(*calls_of(signature))]
    assert main(["passes", path, "--tensorflow", "2.16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [head.rpartition(": ")[2] for head in heads] == [call.name for call in calls]
    last = [line.split(maxsplit=1)[1] for line in lines if line.startswith("  serialize")]
    assert last == ["at StableHLO 0.17.7, calling convention 9"] * len(calls)
    assert main(["passes", path, "--run", "linear_algebra"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("module ") >= len(calls)
    assert printed.count("func.func public @main") == len(calls)


def test_what_cannot_be_serialized_is_told(tmp_path, capsys):
    def function(x):
        return jax.lax.dot(x, x, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32)

    exported = jax.export.export(jax.jit(function))(np.ones((2, 2), np.float32))
    bridge.save(exported, tmp_path / "model", gradient_order=0)
    assert main(["passes", str(tmp_path / "model"), "--tensorflow", "2.16"]) == 0
    assert "fails: function cannot be expressed for TensorFlow 2.16" in capsys.readouterr().out


def test_one_pass_alone(folder, capsys):
    assert main(["passes", str(folder), "--run", "linear_algebra"]) == 0
    printed = capsys.readouterr().out
    assert "stablehlo.while" in printed
    assert "lapack" not in printed
    assert main(["passes", str(folder), "--run", "composites"]) == 0
    assert "lapack_spotrf" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "cure"), [("inline", "constants"), ("platforms", "Or pass --platforms")]
)
def test_a_pass_that_is_not_there(folder, capsys, name, cure):
    assert main(["passes", str(folder), "--run", name]) == 2
    error = capsys.readouterr().err
    assert f"There is no pass '{name}'. To do: name one of linear_algebra," in error
    assert cure in error
