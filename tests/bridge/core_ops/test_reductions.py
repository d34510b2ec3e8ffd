"""Sums of small floats, and sorts: what is the same in files of ONNX and of TensorFlow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from bridge.tf_operations.lowering import lower_call
from tests.bridge.onnx.checking import check, evaluate, run
from tests.bridge.tf_operations.checking import run_call
from xla_call_module.errors import UnsupportedError
from xla_call_module.exported import from_exported


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_sums_and_means_of_small_floats_are_added_in_float32(name):
    """Of 5,000 numbers near 1 a sum of 16 bits stays at 256 or 2,048, which the next leave."""
    given = np.full(5000, 1.01).astype(name).astype(np.float32)

    def sums(given):
        x = given.astype(name)
        zero, one = np.zeros((), x.dtype), np.ones((), x.dtype)
        image = x[:4900].reshape(1, 70, 70, 1)
        windows = [
            lax.reduce_window(y, zero, lax.add, sizes, (1,) * y.ndim, "VALID").ravel()[0]
            for y, sizes in ((x, (4900,)), (image, image.shape))
        ]
        total = lax.reduce(x, zero, lax.add, (0,))
        found = [
            total, total / np.asarray(4096, x.dtype), lax.cumsum(x)[-1], windows[0],
            windows[1] / np.asarray(4900, x.dtype), lax.reduce(x[:400], one, lax.mul, (0,)),
        ]  # fmt: skip
        return [each.astype("float32") for each in found]

    exported, n = export.export(jax.jit(sums))(given), float(given[0])
    exact = [5000 * n, 5000 * n / 4096, 5000 * n, 4900 * n, n, n**400]
    model = bridge.to_onnx(exported)
    found = [how(model, [given]) for how in (run, evaluate)]
    for each in (*found, run_call(from_exported(exported), [given])):
        np.testing.assert_allclose(each, exact, rtol=1e-2)


@pytest.mark.parametrize(
    "convert",
    [bridge.to_onnx, lambda exported: lower_call(from_exported(exported))],
    ids=["onnx", "tensorflow"],
)
def test_an_unstable_sort_is_refused_where_the_order_of_equal_keys_shows(convert):
    x, y = np.float32([[3, 1, 3], [0, 2, 2]]), np.float32([[1, 2, 3], [4, 5, 6]])

    def sort(*operands, keys=1):
        return lax.sort(operands, num_keys=keys, is_stable=False)

    def shown(x):
        numbers = lax.broadcasted_iota(np.int32, (2, 3), 1)
        return *sort(x), *sort(x, 2 * x + 1, x > 1), *sort(x, numbers), *sort(x, -x, keys=2)

    check(shown, x)
    convert(export.export(jax.jit(shown))(x))
    message = r"stablehlo\.sort at .*test_reductions\.py.*unstable.*To do: .*is_stable=True"
    for function in (sort, lambda x, y: sort(x, jnp.cumsum(x + y, 1))):
        with pytest.raises(UnsupportedError, match=message):
            convert(export.export(jax.jit(function))(x, y))
