"""ONNX models are compared with JAX in ONNX Runtime: when they are written, and later."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import enable_x64

import bridge
from bridge.cli.main import main
from bridge.formats.file_format import RuntimeCall
from bridge.formats.runtime_calls import RUNTIMES
from bridge.onnx.onnx_format import _on_one_thread
from xla_call_module.errors import StructureError, UnsupportedError

pytest.importorskip("onnxruntime")
PARAMS = {"w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)}
OPTIONS = {"params": PARAMS, "args": "f32[b,5]"}


def predict(params, x):
    return {"score": jnp.tanh(x @ params["w"]), "double": x * 2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    saved, record = folder / "saved", folder / "truth.npz"
    bridge.save({"one": predict, "two": lambda p, y: y.sum()}, saved, **OPTIONS)
    assert bridge.verify(saved, record=record).passed
    path = folder / "model.onnx"
    bridge.save_onnx(predict, path, verify=True, **OPTIONS)
    return path, record


def damaged(path, folder):
    content, weight = path.read_bytes(), PARAMS["w"][0, 0].tobytes()
    assert content.count(weight) == 1
    other = folder / "other.onnx"
    other.write_bytes(content.replace(weight, np.float32(7).tobytes()))
    return other


def test_a_model_is_compared_with_what_was_recorded(files, tmp_path, capsys):
    path, record = files
    report = bridge.verify(path, against=record)
    assert report.passed
    assert report.runtime.startswith("ONNX Runtime 1.")
    assert {row.signature for row in report.rows} == {"one"}
    assert {"random, b=17", "nan, b=3"} <= {row.inputs for row in report.rows}
    other = damaged(path, tmp_path)
    (first, *_) = bridge.verify(other, against=record).rows
    assert first.problem.startswith("score at index")
    assert bridge.verify(other, against=record, tolerance=(0.0, 99.0)).passed
    assert main(["verify", str(path), "--against", str(record)]) == 0
    assert "comparisons with ONNX Runtime 1." in capsys.readouterr().out
    with pytest.raises(StructureError, match="--against"):
        bridge.verify(path)


def test_another_function_is_refused(files, tmp_path):
    _, record = files
    path = tmp_path / "other.onnx"
    bridge.save_onnx(lambda z: z, path, args="f32[3]")
    with pytest.raises(StructureError, match="are of one, two, and the file has"):
        bridge.verify(path, against=record)


def test_a_conversion_is_refused_where_it_differs(tmp_path):
    path = tmp_path / "model.onnx"
    strict = {"verify": True, "tolerance": (0.0, 0.0), **OPTIONS}
    message = r"ONNX Runtime computes something else than JAX.*rtol=0, atol=0.*verify=False"
    with pytest.raises(UnsupportedError, match=message):
        bridge.to_onnx(predict, **strict)
    with pytest.raises(UnsupportedError, match=message):
        bridge.save_onnx(predict, path, **strict)
    assert not path.exists()
    with pytest.raises(StructureError, match="tolerance= is for the comparison"):
        bridge.to_onnx(predict, tolerance=0.1, **OPTIONS)
    model = bridge.to_onnx(predict, verify=True, tolerance=1e-3, **OPTIONS)
    assert model == bridge.to_onnx(predict, **OPTIONS)


def test_the_command_has_the_options(files, tmp_path, capsys):
    saved = str(files[1].with_name("saved"))
    call = ["onnx", saved, str(tmp_path / "model.onnx"), "--signature", "one", "--verify"]
    assert main([*call, "--tolerance", "0,0"]) == 2
    assert "ONNX Runtime computes something else" in capsys.readouterr().err
    assert main([*call, "--tolerance", "1e-4"]) == 0


def test_dtypes_that_models_take_as_others():
    def several(z, h, n):
        return {"m": jnp.abs(z), "p": z + 2, "h": h + 1, "n": n + 1}

    args = [jnp.ones(3, "complex64"), jnp.ones(2, "float16"), jnp.ones(2, "int4")]
    exported = jax.export.export(jax.jit(several))(*args)
    assert isinstance(bridge.to_onnx(exported, verify=True), onnx.ModelProto)
    with enable_x64():
        wide = jax.export.export(jax.jit(lambda x: jnp.sin(x) / 3))(np.ones(3))
    bridge.to_onnx(wide, verify=True, tolerance=1e-13)
    with pytest.raises(UnsupportedError, match=r"returns bfloat16, of which ONNX Runtime"):
        bridge.to_onnx(lambda x: x + 1, args="bf16[2]", verify=True)


def test_gradients_are_compared_too():
    bridge.to_onnx(predict, gradient_order=1, verify=True, **OPTIONS)


def test_calls_of_a_file_share_a_session_until_it_is_written_again(tmp_path):
    path, found = tmp_path / "m.onnx", []
    before = _on_one_thread.cache_info()
    for factor, counts in ((2, (1, 3)), (3, (2,))):
        bridge.save_onnx(lambda x, k=factor: x * k, path, args="f32[b]", overwrite=True)
        for count in counts:
            inputs = {"x": np.ones(count, "float32")}
            call = RuntimeCall(str(path), "serving_default", inputs, ())
            found += [array.tolist() for array in RUNTIMES["ONNX Runtime"].prepare(call)()]
    assert found == [[2], [2, 2, 2], [3, 3]]
    after = _on_one_thread.cache_info()
    assert (after.misses - before.misses, after.hits - before.hits) == (2, 1)
