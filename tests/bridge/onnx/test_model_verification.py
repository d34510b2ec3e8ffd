"""What the comparison of ONNX models has of its own; `tests/bridge/verifying` has the rest."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
from jax import enable_x64

import bridge
from bridge.formats.file_format import RuntimeCall
from bridge.formats.runtime_calls import RUNTIMES
from bridge.onnx.onnx_format import _on_one_thread
from xla_call_module.errors import StructureError, UnsupportedError

pytest.importorskip("onnxruntime")


def test_another_function_is_refused(tmp_path):
    saved, record, path = (tmp_path / name for name in ("saved", "truth.npz", "other.onnx"))
    bridge.save({"one": jnp.sin, "two": lambda y: y.sum()}, saved, args="f32[3]")
    assert bridge.verify(saved, record=record).passed
    bridge.save_onnx(lambda z: z, path, args="f32[3]")
    with pytest.raises(StructureError, match="are of one, two, and the file has"):
        bridge.verify(path, against=record)


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
    bridge.to_onnx(jnp.tanh, args="f32[b,5]", gradient_order=1, verify=True)


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
