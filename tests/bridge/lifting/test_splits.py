"""Slices that are the parts of one array are one `split` again, with its transpose."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge


def _gates(x):
    a, b, c, d = jnp.split(x, 4, axis=1)
    return a * jnp.tanh(b) + c * d


def _uneven(x):
    a, b, c = jnp.split(x, [1, 4], axis=0)
    return jnp.concatenate([c * 2, a, jnp.sin(b)])


def _of_a_loop(x):
    def step(carry, row):
        a, b = jnp.split(row * carry, 2)
        return jnp.concatenate([b, jnp.cos(a)]), a

    return lax.scan(step, x[0], x)


def _of_both_branches(x):
    return lax.cond(x[0, 0] > 0, _gates, lambda x: sum(jnp.split(x * 2, 4, axis=1)), x)


def _of_two_axes(x):
    rows, columns = jnp.split(x, 3, axis=0), jnp.split(x, 2, axis=1)
    return rows[0] * rows[1] + rows[2], columns[0] * columns[1]


def _twice(x):
    two, four = jnp.split(x, 2, axis=1), jnp.split(x, 4, axis=1)
    return two[0] * two[1], four[0] * four[1] + four[2] * four[3]


def _backwards(x):
    return x[:, 3:] ** 2, x[:, 1:3] * 3, jnp.exp(x[:, :1])


def _overlapping(x):
    return x[:, :-1] * x[:, 1:]


def _with_a_gap(x):
    return x[:, :3] * x[:, 5:]


def _with_strides(x):
    return x[:, ::2] * x[:, 1::2]


def _blocks(x):
    return x[:3, :4] * x[3:, 4:]


# Each function of an array of 6x8, the number of splits in it, and that of slices.
FUNCTIONS = {
    "backwards": (_backwards, 1, 0),
    "blocks": (_blocks, 0, 2),
    "both branches": (_of_both_branches, 2, None),
    "gates": (_gates, 1, 0),
    "gap": (_with_a_gap, 0, 2),
    "loop": (_of_a_loop, 1, None),
    "overlapping": (_overlapping, 0, 2),
    "strides": (_with_strides, 0, None),
    "twice": (_twice, 2, 0),
    "two axes": (_of_two_axes, 2, 0),
    "uneven": (_uneven, 1, 0),
}
_X = jnp.sin(jnp.arange(48, dtype=jnp.float32)).reshape(6, 8)


def _count(name, jaxpr):
    return len(re.findall(rf"= {name}\[", str(jaxpr)))


def _total(function):
    return lambda x: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(function(x)))


def _check_transformations(lifted, function, x):
    """Assert that results are the same, bit for bit, and close under each transformation."""
    jax.tree.map(np.testing.assert_array_equal, lifted(x), jax.jit(function)(x))
    for transform in (
        lambda f: jax.grad(_total(f)),
        lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
        lambda f: lambda x: jax.vmap(jax.grad(_total(f)))(jnp.stack([x, x * 2])),
        lambda f: lambda x: jax.vmap(f, in_axes=2, out_axes=1)(jnp.stack([x, x * 2], 2)),
    ):
        ours, theirs = (jax.jit(transform(f))(x) for f in (lifted, function))
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slices_of_a_partition_are_one_split(name):
    function, splits, slices = FUNCTIONS[name]
    lifted = bridge.to_jax(export.export(jax.jit(function))(_X))
    jaxpr = jax.make_jaxpr(lifted)(_X)
    assert _count("split", jaxpr) == splits
    assert slices is None or _count("slice", jaxpr) == slices
    if name == "gates":
        assert _count("pad", jax.make_jaxpr(jax.grad(_total(lifted)))(_X)) == 0
    _check_transformations(lifted, function, _X)


@pytest.mark.parametrize(
    ("function", "shape"), [(_gates, "b, 8"), (_uneven, "6, b"), (_of_a_loop, "6, 2*b")]
)
def test_symbolic_sizes(function, shape):
    """Sizes of other axes may be symbolic: whether the function is called or exported again."""
    spec = jax.ShapeDtypeStruct(export.symbolic_shape(shape), _X.dtype)
    exported = export.export(jax.jit(function))(spec)
    lifted = bridge.to_jax(exported)
    _check_transformations(lifted, function, _X)
    again = export.export(jax.jit(lifted))(spec)
    jax.tree.map(np.testing.assert_array_equal, again.call(_X), exported.call(_X))
    if function is not _of_a_loop:
        assert _count("split", jax.make_jaxpr(lifted)(_X)) == 1
        assert _count("split", jax.jit(lifted).trace(spec).jaxpr) == 1


def test_slices_of_two_axes_are_no_parts_of_one():
    """One ends along its axis where the other one begins along another."""

    def function(x):
        return x[:2] * 2, x[:, 2:] * 3

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    lifted = bridge.to_jax(export.export(jax.jit(function))(x))
    jax.tree.map(np.testing.assert_array_equal, list(lifted(x)), list(function(x)))
