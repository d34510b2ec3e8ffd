"""Commands that take a LiteRT model, and `litert`, which makes one."""

from __future__ import annotations

import json

import numpy as np
import pytest

import bridge
from bridge.cli.main import main
from xla_call_module.errors import FormatError

pytest.importorskip("ai_edge_litert")
pytest.importorskip("ai_edge_litert")
X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    functions = {"plus": lambda x: x + 1, "square": lambda x: {"squared": x * x}}
    bridge.save(functions, folder / "saved", args="f32[2,3]", gradient_order=1)
    assert main(["litert", str(folder / "saved"), str(folder / "m.tflite")]) == 0
    np.savez(folder / "x.npz", x=X)
    return folder


def test_the_report(folder):
    report = bridge.inspect(folder / "m.tflite")
    plus = next(one for one in report.graph.signatures if one.key == "plus")
    assert [(t.name, t.dtype, t.shape) for t in plus.inputs] == [("x", "float32", (2, 3))]
    square = next(one for one in report.graph.signatures if one.key == "square")
    assert [tensor.name for tensor in square.outputs] == ["squared"]
    assert report.bytes == (folder / "m.tflite").stat().st_size
    assert report.graph.operations["MUL"] >= 1
    (folder / "text.tflite").write_text("no model")
    with pytest.raises(FormatError, match="no LiteRT model"):
        bridge.inspect(folder / "text.tflite")


def test_commands_of_a_model(folder, capsys):
    path = str(folder / "m.tflite")
    assert main(["inspect", path, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {one["key"] for one in shown["graph"]["signatures"]} == {"plus", "square"}
    assert main(["inspect", path]) == 0
    assert "float32[2,3]" in capsys.readouterr().out
    out = str(folder / "out.npz")
    call = ["run", path, "--signature", "square", "--input", str(folder / "x.npz")]
    assert main([*call, "--output", out]) == 0
    with np.load(out) as found:
        np.testing.assert_array_equal(found["squared"], X * X)
    assert main(["run", path, "--input", str(folder / "x.npz")]) == 2
    assert "Which signature is meant?" in capsys.readouterr().err
    call = ["benchmark", path, "--signature", "square", "--seconds", "0.01", "--json"]
    assert main(call) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["signature"] == "square"
    assert report["rows"][0]["latency"] > 0
    assert main(["diff", path, path]) == 2
    assert "To do: pass the folder" in capsys.readouterr().err


def test_state_as_the_command_has_it(tmp_path, capsys):
    saved, target = str(tmp_path / "saved"), str(tmp_path / "m.tflite")
    options = {"params": {"n": np.float32(1)}, "args": "f32[2,3]", "updates": 0}
    bridge.save(lambda p, x: ({"n": p["n"] + 1}, p["n"] * x), saved, **options)
    assert main(["litert", saved, target]) == 0
    assert "output_0: float32[2,3], assigns 1 variable" in capsys.readouterr().out
    (one,) = bridge.inspect(target).parameters
    assert (one.name, one.dtype, one.shape, one.bytes) == ("n", "float32", (), 4)
    call = ["litert", saved, target, "--overwrite", "--no-verify", "--state", "arguments"]
    assert main(call) == 0
    assert "(n: float32[], x: float32[2,3]) -> new_n: float32[]" in capsys.readouterr().out
    assert bridge.inspect(target).parameters == ()


def test_the_options_of_litert(folder, capsys):
    source, target = str(folder / "saved"), str(folder / "one.tflite")
    options = ["--signature", "square", "--gradient-order", "1", "--no-verify"]
    assert main(["litert", source, target, *options]) == 0
    assert "square(x: float32[2,3], squared_cotangent" in capsys.readouterr().out
    assert main(["litert", source, target]) == 2
    assert "exists. To do: take another path, or --overwrite" in capsys.readouterr().err
    call = ["litert", source, target, "--overwrite", "--platform", "cpu", "--quantize", "float16"]
    assert main([*call, "--calibration", str(folder / "x.npz"), "--signature", "plus"]) == 2
    assert "has the shape (3,)" in capsys.readouterr().err
