"""The dependence of results on arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import enable_x64, export, lax

from xla_call_module.analyses.dependence import dependencies, narrowest_floats
from xla_call_module.exported import from_exported


def found(function, *shapes, dtype="float32", **options):
    (b, *_) = export.symbolic_shape("b, n")
    scope = b.scope
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), dtype) for shape in shapes
    ]
    exported = export.export(jax.jit(function), **options)(*specs)
    return [sorted(one) for one in dependencies(from_exported(exported))]


def looped(x, y):
    """Each result of a loop counts as depending on all that the loop takes."""
    return lax.fori_loop(0, 3, lambda _, pair: (pair[0] + 1, pair[1] * 2), (x, y))


def captured(x, y):
    """The condition takes `y` from outside of its branches."""
    return lax.cond(x[0] > 0, lambda: y, lambda: y + 1), y * 2


@jax.jit
def inner(x, y):
    return y * 2, x + 1


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x, y: (x, y, x + y, 1.0), [[0], [1], [0, 1], []]),
        (lambda x, y: inner(x, y), [[1], [0]]),
        (looped, [[0, 1], [0, 1]]),
        (captured, [[0, 1], [1]]),
        (lambda x, y: (x.sum(), jnp.sort(y)), [[0], [1]]),
    ],
    ids=["plain", "call", "loop", "branches", "reduction"],
)
@pytest.mark.parametrize("platforms", [["cpu"], ["cpu", "tpu"]], ids=["one", "two"])
def test_of_static_shapes(function, want, platforms):
    assert found(function, "3", "3", platforms=platforms) == want


def test_the_number_of_rows_is_of_the_batch():
    assert found(lambda x, y: (jnp.float32(x.shape[0]), y), "b, n", "3") == [[0], [1]]


def test_another_size_is_none_of_its_rows():
    assert found(lambda x: jnp.float32(x.shape[1]), "b, n") == [[]]


def test_an_argument_that_the_module_does_not_take():
    assert found(lambda x, y, z: (z, x), "3", "3", "3") == [[2], [0]]


HALF, BRAIN = jnp.float16, jnp.bfloat16
BF16_DOT = lax.DotAlgorithmPreset.BF16_BF16_F32


def in_one_branch(x):
    return lax.cond(x[0, 0] > 0, lambda: x, lambda: jnp.sin(x.astype(HALF)) + x)


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x: (x + 1, x.astype(BRAIN).astype("float32") + 1), ["float32", "bfloat16"]),
        # What arrives in a dtype, or is moved, is not rounded to it.
        (lambda x: (x, x.T[:1], -x), ["", "", ""]),
        (lambda x: x.astype("float64").sum(), ["float64"]),
        (lambda x: (x @ x.T.astype(HALF), (x > 0).sum()), ["float16", ""]),
        (lambda x: jnp.linalg.norm(x.astype(HALF).astype(BRAIN)), ["bfloat16"]),
        (lambda x: lax.reduce_precision(x, 8, 7) * 2, ["bfloat16"]),
        (lambda x: lax.reduce_precision(x, 5, 10) * 2, ["float16"]),
        (lambda x: lax.dot(x, x, precision=BF16_DOT), ["bfloat16"]),
        (lambda x: x.astype(jnp.float8_e4m3fn).astype("float32"), ["float8_e4m3fn"]),
        (lambda x: jnp.abs(lax.complex(x, x)), ["float32"]),
        (
            lambda x: lax.fori_loop(0, 3, lambda _, v: (v.astype(HALF) * 2).astype(v.dtype), x),
            ["float16"],
        ),
        (in_one_branch, ["float16"]),
        (
            lambda x: lax.reduce(x.astype(HALF), HALF(0), lax.add, (0, 1)).astype("float32"),
            ["float16"],
        ),
    ],
)  # fmt: skip
def test_the_least_precise_floats(function, want):
    with enable_x64():
        exported = export.export(jax.jit(function))(jax.ShapeDtypeStruct((3, 3), "float32"))
    assert list(narrowest_floats(from_exported(exported))) == want


def test_arguments_round_nothing():
    spec = jax.ShapeDtypeStruct((3,), BRAIN)
    exported = export.export(jax.jit(lambda x: (x.astype("float32") * 2, x * 2)))(spec)
    assert narrowest_floats(from_exported(exported)) == ("float32", "bfloat16")
