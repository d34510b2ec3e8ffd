"""`jax-tf-bridge benchmark`: a row for each runtime, of files of every kind."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64

import bridge
from bridge.benchmarking.benchmark import benchmark
from bridge.benchmarking.benchmark_report import BenchmarkReport, BenchmarkRow, draw
from bridge.cli.main import main
from xla_call_module.errors import StructureError

pytest.importorskip("ai_edge_litert")
pytest.importorskip("ai_edge_litert")
pytest.importorskip("onnxruntime")
PARAMS = {"w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)}


def predict(params, x):
    return {"double": x * 2, "score": jnp.tanh(x @ params["w"])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    options = {"params": PARAMS, "args": "f32[4,5]"}
    bridge.save(predict, folder / "saved", **options)
    bridge.save_onnx(predict, folder / "model.onnx", **options)
    bridge.save_litert(predict, folder / "model.tflite", **options)
    exported = jax.export.export(jax.jit(jnp.exp))(jnp.ones(3))
    (folder / "exp.bin").write_bytes(exported.serialize())
    return folder


def test_every_runtime(folder, capsys):
    call = ["benchmark", str(folder / "saved"), "--seconds", "0.05", "--json"]
    assert main([*call, "--plot", str(folder / "plot.svg")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["runtime"] for row in rows] == ["JAX", "TensorFlow", "ONNX Runtime", "LiteRT"]
    for row in rows:
        assert row["problem"] == ""
        assert row["digits"] > 5
        assert row["bytes"] > 0
        assert 0 < row["latency"] <= row["first_call"]
        assert row["memory"] > 10 << 20
    # Not all runtimes round alike, and the result that is worst counts.
    assert min(row["digits"] for row in rows) < 17
    picture = (folder / "plot.svg").read_text()
    assert picture.startswith("<svg")
    assert picture.count("<rect") == 1 + 4 * 5


def test_files_of_other_kinds(folder, capsys):
    found = benchmark(folder / "exp.bin", runtimes=["LiteRT"], seconds=0.01)
    assert [row.runtime for row in found.rows] == ["LiteRT"]
    assert found.rows[0].digits > 5
    (row,) = benchmark(folder / "model.onnx", seconds=0.01).rows
    assert (row.runtime, row.digits) == ("ONNX Runtime", None)
    (row,) = benchmark(folder / "model.tflite", seconds=0.01).rows
    assert (row.runtime, row.digits) == ("LiteRT", None)
    assert main(["benchmark", str(folder / "model.tflite"), "--seconds", "0"]) == 0
    assert "serving_default(x: float32[4,5])" in capsys.readouterr().out


def test_what_a_runtime_cannot_run_is_said(folder, capsys):
    with enable_x64():
        exported = jax.export.export(jax.jit(jnp.exp))(np.ones(3))
    path = folder / "wide.bin"
    path.write_bytes(exported.serialize())
    assert main(["benchmark", str(path), "--runtimes", "litert", "--seconds", "0"]) == 1
    assert "LiteRT" in (shown := capsys.readouterr().out)
    assert "float64" in shown
    with pytest.raises(StructureError, match=r"has serving_default.*--signature"):
        benchmark(folder / "model.tflite", signature="other")
    assert main(["benchmark", str(path), "--runtimes", "torch"]) == 2
    assert "expected some of jax, tensorflow" in capsys.readouterr().err


def test_a_picture_of_nothing():
    row = BenchmarkRow("JAX", "1", problem="no")
    assert draw(BenchmarkReport("m", "f", (), (row,))).startswith("<svg")
