"""What functions become: the operations that one would write; and what is refused.

That their numbers are JAX's, `tests/operations` says of each operation.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from bridge.tf_operations.lowering import lower_call
from tests.bridge.tf_operations.checking import (
    check,
    check_call,
    export_call,
    lowered,
    nodes_of,
    operations,
)
from xla_call_module.errors import UnsupportedError

_NHWC = ("NHWC", "HWIO", "NHWC")
_ROWS = np.arange(12, dtype=np.float32).reshape(6, 2)
_SQUARE = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


def _image(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _any(shape):
    return jax.ShapeDtypeStruct(export.symbolic_shape(shape), "float32")


def _convolve(numbers=_NHWC, **options):
    return lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=numbers, **options
    )


def _pool(x, padding="SAME"):
    window = (1, 2, 2, 1)
    return lax.reduce_window(jax.nn.relu(x), -np.inf, lax.max, window, window, padding)


def _mean(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 2, 3, 1), (1, 2, 3, 1), "VALID") / 6


def _running(x):
    return lax.scan(lambda total, row: (total * 0.5 + row, jnp.sin(total)), jnp.zeros(2), x)


@pytest.mark.parametrize(
    ("function", "arrays", "expected"),
    [
        (jax.nn.log_softmax, [_ROWS], "LogSoftmax"),
        (jax.nn.relu, [_ROWS], "Relu"),
        (_mean, [_image(2, 4, 6, 3)], "AvgPool"),
        (_convolve(), [_image(1, 5, 5, 2), _image(3, 3, 2, 4)], "Conv2D"),
        (lambda a, b: a @ b.T, [_image(3, 4), _image(5, 4)], "MatMul"),
        (lambda a: jnp.einsum("bij,bkj->bik", a, a), [_image(2, 3, 4)], "BatchMatMulV2"),
        (jnp.fft.rfft, [_any("b, 8")], "RFFT"),
    ],
)
def test_one_operation(function, arrays, expected):
    assert operations(function, *arrays) == [expected]


@pytest.mark.parametrize(
    ("function", "arrays", "expected", "others"),
    [
        (jax.nn.softmax, [_ROWS], "Softmax", "Exp"),
        (_pool, [_image(1, 4, 4, 1)], "MaxPool", ""),
        (_convolve(feature_group_count=2), [_image(1, 5, 5, 2), _image(3, 3, 1, 2)],
         "DepthwiseConv2dNative", "Conv2D"),
        (_running, [_ROWS], "TensorListReserve TensorListSetItem TensorListStack While",
         "TensorScatterUpdate StatelessWhile"),
        (lambda x: lax.fori_loop(0, 6, lambda i, y: y.at[i].set(y[(i + 1) % 6] + y[i]), x), [_ROWS],
         "While", "TensorListSetItem"),
        (jnp.sort, [_any("b, 4")], "TopKV2", ""),
        (lambda x: x.sum(0), [_any("a, b")], "Sum", ""),
        (jnp.linalg.qr, [_SQUARE], "Qr", ""),
        (lambda a: jnp.linalg.qr(a)[0], [_SQUARE], "Qr", "While StatelessWhile"),
        (lambda a: jnp.linalg.qr(a, mode="raw"), [_SQUARE[:, :3]], "While", "Qr"),
        (lambda a: jnp.linalg.svd(a)[1], [_SQUARE], "Svd", ""),
        (jnp.linalg.eigvalsh, [_SQUARE], "SelfAdjointEigV2", ""),
        (jnp.linalg.cholesky, [_any("b, 4, 4")], "Cholesky", ""),
        (jax.grad(lambda w, x: (_convolve()(x, w) ** 2).sum()),
         [_image(3, 2, 3, 4), _image(2, 6, 7, 3)], "Conv2DBackpropFilter", ""),
        (jax.grad(lambda x: _pool(x, "VALID").sum()), [_image(2, 7, 6, 3)], "MaxPoolGrad", ""),
    ],
)  # fmt: skip
def test_some_operations(function, arrays, expected, others):
    found = operations(function, *arrays)
    assert {*expected.split()} <= {*found}
    assert not {*others.split()} & {*found}
    assert found.count(expected.split()[0]) == 1 or expected == "While"


def test_a_network_of_channels_first_is_turned_once():
    function = _convolve(("NCHW", "OIHW", "NCHW"))
    names = operations(
        lambda x, w: jax.nn.relu(function(jax.nn.relu(function(x, w)), w)),
        _image(1, 2, 5, 5), _image(2, 2, 3, 3),
    )  # fmt: skip
    assert names.count("Transpose") == 3  # of the image, of the kernel and of the result


def test_loops_and_branches_are_what_tensorflow_does_not_compute_beforehand():
    call = export_call(
        lambda x: lax.cond(
            x[0] > 0, lambda: _running(x[:, None]), lambda: _running(x[:, None] + 1)
        ),
        _ROWS[:, 0],
    )
    for is_open in (False, True):
        names = {node.op for node in nodes_of(lower_call(call, for_converters=is_open))}
        assert {"If", "While"} <= names
        assert not {"StatelessIf", "StatelessWhile"} & names
    assert len(lowered(_running, _any("t, 2")).functions) == 2


def test_a_large_kernel_without_a_kernel_is_refused():
    x, w = np.ones((1, 200, 200, 1), np.uint32), np.ones((101, 100, 1, 1), np.uint32)
    with pytest.raises(UnsupportedError, match=r"no such convolution of uint32.*10100"):
        lowered(_convolve(), x, w)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_quotients_by_a_constant_have_the_same_bits(name):
    """XLA multiplies by the reciprocal."""
    with jax.enable_x64(True):
        x = np.random.default_rng(0).normal(size=4000).astype(name)
        check(lambda x: [x / 3, x / 7, x / 0.1, x / 4, x / 2048], x, rtol=0.0)


def test_matrices_and_arrays_of_any_size():
    singular = export.export(jax.jit(lambda a: jnp.linalg.svd(a, compute_uv=False)))(_any("m, n"))
    check_call(singular, _SQUARE[:, :3], rtol=1e-4, of_largest=True)

    def function(x):
        rows = x.reshape(-1, 4)
        padded = jnp.pad(rows, ((0, x.shape[0]), (0, 0)))
        return rows, padded, jnp.arange(x.shape[0]) * 2, jnp.zeros(rows.shape[0]), x.shape[0] * 3

    assert operations(function, _any("b, 3, 4")).count("Shape") == 1
    check_call(export.export(jax.jit(function))(_any("b, 3, 4")), _image(2, 3, 4))
