"""Slices that are the parts of one array are one `split` again, with its transpose."""

import jax
import jax.numpy as jnp
import pytest
from jax import export, lax

from tests.bridge.lifting.lifted import assert_same, lift, names, symbolic


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


# Each function of an array of 6x8, the number of splits in it, and that of slices.
FUNCTIONS = {
    "backwards": (lambda x: (x[:, 3:] ** 2, x[:, 1:3] * 3, jnp.exp(x[:, :1])), 1, 0),
    "blocks": (lambda x: x[:3, :4] * x[3:, 4:], 0, 2),
    "both branches": (_of_both_branches, 2, None),
    "gates": (_gates, 1, 0),
    "gap": (lambda x: x[:, :3] * x[:, 5:], 0, 2),
    "loop": (_of_a_loop, 1, None),
    "one axis ends where another begins": (lambda x: (x[:2] * 2, x[:, 2:6] * 3), 0, 2),
    "overlapping": (lambda x: x[:, :-1] * x[:, 1:], 0, 2),
    "strides": (lambda x: x[:, ::2] * x[:, 1::2], 0, None),
    "twice": (_twice, 2, 0),
    "two axes": (_of_two_axes, 2, 0),
    "uneven": (_uneven, 1, 0),
}
X = jnp.sin(jnp.arange(48, dtype=jnp.float32)).reshape(6, 8)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_slices_of_a_partition_are_one_split(name):
    function, splits, slices = FUNCTIONS[name]
    lifted = lift(function, X)
    found = names(lifted, X)
    assert found.count("split") == splits
    assert slices is None or found.count("slice") == slices
    if name == "gates":
        assert "pad" not in names(jax.grad(lambda x: jnp.sum(lifted(x) ** 2)), X)
    assert_same(lifted(X), jax.jit(function)(X))


@pytest.mark.parametrize(
    ("function", "shape"), [(_gates, "b, 8"), (_uneven, "6, b"), (_of_a_loop, "6, 2*b")]
)
def test_symbolic_sizes(function, shape):
    """Sizes of other axes may be symbolic: whether the function is called or exported again."""
    spec = symbolic(shape)
    lifted = lift(function, spec)
    assert_same(export.export(jax.jit(lifted))(spec).call(X), jax.jit(function)(X))
    assert names(lifted, X).count("split") == 1
