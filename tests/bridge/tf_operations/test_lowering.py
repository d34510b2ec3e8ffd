"""Calls as graphs: any size, every order, assertions, platforms."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

from bridge.tf_operations.lowering import lower_call
from tests.bridge.tf_operations.checking import check, check_call, nodes_of, operations
from tests.bridge.tf_operations.running import function_of
from xla_call_module.exported import from_exported

_NUMBERS = itertools.count()
_SHAPE = jax.ShapeDtypeStruct(export.symbolic_shape("b, 8"), "float32")


def _mlp(params, x):
    for weights, bias in params[:-1]:
        x = jax.nn.relu(x @ weights + bias)
    weights, bias = params[-1]
    return jax.nn.log_softmax(x @ weights + bias)


def _params():
    random = np.random.default_rng(0)
    sizes = ((8, 16), (16, 16), (16, 4))
    return [tuple((random.normal(size=shape) / 3).astype(np.float32) for shape in (size, size[1:]))
            for size in sizes]  # fmt: skip


def test_a_network_is_the_operations_that_one_would_write():
    assert operations(_mlp, _params(), _SHAPE) == [
        "MatMul", "AddV2", "Relu", "MatMul", "AddV2", "Relu", "MatMul", "AddV2", "LogSoftmax",
    ]  # fmt: skip


def test_cotangents_of_integers():
    exported = export.export(jax.jit(lambda x, i: (x[i] ** 2, i + 1)))(
        np.float32([1, 2, 3]), np.int32([2, 0])
    )
    nothing = np.zeros(2, jax.dtypes.float0)
    check_call(exported.vjp(), np.float32([1, 2, 3]), np.int32([2, 0]), np.float32([1, 5]), nothing)


@pytest.mark.parametrize(
    ("text", "constraints", "wrong", "right", "message"),
    [
        ("b, 2*b", ["b >= 2"], (1, 2), (2, 4), r"b >= 2.*found #1.*#1, #2 are:.*\] \[-1\] \[1\]"),
        ("b, 2*b", ["b >= 2"], (2, 5), (3, 6),
         r"'2\*b\\' \(= #2\).*#1, #2, #3 are:.*\] \[5\] \[4\] \[2\]"),
        # An empty batch would make oneDNN's convolution return the shape of its input.
        ("b, 5", [], (0, 5), (3, 5), r"args\[0\] has the shape \(b, 5\) with b >= 1.*\] \[0\]"),
        ("b, t", [], (3, 0), (3, 5), r"with b >= 1 and t >= 1.*\] \[0\]"),
        ("b + 1, 5", [], (1, 5), (3, 5),
         r">= 1 for dimension variable .*b.*#1, #2 are:.*\] \[0\] \[1\]"),
    ],
)  # fmt: skip
def test_what_an_export_asks_of_sizes_is_asserted(text, constraints, wrong, right, message):
    shape = export.symbolic_shape(text, constraints=constraints)
    spec = jax.ShapeDtypeStruct(shape, "float32")
    call = from_exported(export.export(jax.jit(lambda x: x + 1))(spec))
    run = function_of(lower_call(call, name_prefix=f"asserted_{next(_NUMBERS)}"))
    np.testing.assert_array_equal(run(np.zeros(right))[0], np.ones(right))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(np.zeros(wrong))
    unchecked = lower_call(call, shape_assertions=False)
    assert "Assert" not in [node.op for node in nodes_of(unchecked)]


def test_of_several_platforms_the_branch_of_the_cpu_is_there():
    def function(x):
        return jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)

    exported = export.export(jax.jit(function), platforms=("cuda", "cpu"))(np.float32([1, 2]))
    graph = lower_call(from_exported(exported))
    assert [node.op for node in nodes_of(graph)] == ["Sin"]


def test_an_unused_argument_is_not_one_of_the_graph():
    call = from_exported(export.export(jax.jit(lambda x, y: y * 2))(np.zeros(2), np.zeros(3)))
    assert [argument.shape for argument in lower_call(call).main.arguments] == [(3,)]


def test_names_begin_as_they_are_asked_to():
    call = from_exported(export.export(jax.jit(jnp.sin))(np.zeros(2)))
    assert lower_call(call, name_prefix="model_").main.name == "model_sin_main"


def test_an_unused_argument_of_what_is_decomposed_is_not_one_of_the_graph():
    x, y = np.ones((3, 5), np.float32), np.linspace(-6, 6, 15, dtype=np.float32).reshape(3, 5)
    check(lambda x: jax.random.normal(jax.random.key(0, impl="rbg"), x.shape), x, rtol=1e-5)
    check(lambda x, y: y.astype(jnp.float4_e2m1fn).astype("float32"), x, y)
