"""`jax.vmap` of called TensorFlow functions computes what they compute of one element at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge

SHAPE = (2, 3, 4)
IDS = tf.constant([[0, 2, 1], [5, -1, 0]])  # 5 and -1 are of no segment
INDICES = tf.constant([[2, 0], [1, 1]])

# Functions of x and of an axis.
ALONG = {
    "argmax": functools.partial(tf.argmax, output_type=tf.int32),
    "argmin": functools.partial(tf.argmin, output_type=tf.int32),
    "concat": lambda x, axis: tf.concat([x, -x], axis),
    "cumprod": lambda x, axis: tf.math.cumprod(x, axis, exclusive=True),
    "cumsum": lambda x, axis: tf.cumsum(x, axis, reverse=True),
    "cumulative_logsumexp": tf.math.cumulative_logsumexp,
    "expand_dims": tf.expand_dims,
    "gather": lambda x, axis: tf.gather(x, [1, 0, 1], axis=axis),
    "l2_normalize": tf.math.l2_normalize,
    "logsumexp": tf.reduce_logsumexp,
    "max": tf.reduce_max,
    "mean": lambda x, axis: tf.reduce_mean(x, axis, keepdims=True),
    "one_hot": lambda x, axis: tf.one_hot(tf.cast(x, tf.int32), 3, axis=max(axis, -1)),
    "repeat": lambda x, axis: tf.repeat(x, 2, axis),
    "reverse": lambda x, axis: tf.reverse(x, [axis]),
    "roll": lambda x, axis: tf.roll(x, 1, axis),
    "rolls": lambda x, axis: tf.roll(x, [1, 2, 1], [axis, 0, axis]),
    "rolled by itself": lambda x, axis: tf.roll(x, tf.cast(x[0, 0, 0], tf.int32), axis),
    "softmax": tf.nn.softmax,
    "sort": lambda x, axis: tf.sort(x, axis, "DESCENDING"),
    "split": lambda x, axis: tf.split(x, [1, x.shape[axis] - 1], axis)[1],
    "stack": lambda x, axis: tf.stack([x, x * x], axis),
    "unstack": lambda x, axis: tf.unstack(x, axis=axis)[-1],
}
OTHERS = {
    "batched gather": lambda x: tf.gather(x, INDICES, axis=-1, batch_dims=-1),
    "batched gather of a constant": lambda x: tf.gather(
        tf.reshape(tf.range(12.0), (2, 3, 2)), tf.cast(x[:, :, 0], tf.int32) % 2, axis=-1,
        batch_dims=2,
    ),
    "bias": lambda x: tf.nn.bias_add(x[None], x[0, :, 0], data_format="NCHW")
    if x.shape[0] == 3
    else tf.nn.bias_add(x, x[0, 0]),
    "einsum": lambda x: tf.einsum("...ij,...kj->i...k", x, x),
    "matrix_diag": lambda x: tf.linalg.diag(x, k=-1),
    "scattered": lambda x: tf.scatter_nd(
        tf.cast(x[:, :, :1], tf.int32) % 7, x[:, :, 1], (5,)
    ),
    "segments": lambda x: tf.math.unsorted_segment_sum(x, IDS, 3),
    "segments of itself": lambda x: tf.math.unsorted_segment_max(
        x[0, 0], tf.cast(x[0, 1], tf.int32), 3
    ),
    "squeeze": lambda x: tf.cumsum(tf.squeeze(x[:1]), -2),
    "transpose": lambda x: tf.transpose(x, (2, 0, 1)),
    "updated": lambda x: tf.tensor_scatter_nd_add(
        x[0], tf.cast(x[1, :, :1], tf.int32) % 5, x[1]
    ),
}  # fmt: skip


def compare(function, size):
    """Compare `vmap` with one element after another: the results and their gradients."""
    x = np.random.default_rng(0).permutation(np.prod((size, *SHAPE))).astype(np.float32) / 8
    x = jnp.asarray(x.reshape(size, *SHAPE))
    called = bridge.call_tf(function)
    found = jax.vmap(called)(x)
    np.testing.assert_allclose(found, jnp.stack([called(one) for one in x]), rtol=1e-6)
    if not jnp.issubdtype(found.dtype, jnp.floating):
        return

    def weighted(x):
        y = called(x)
        return jnp.vdot(jnp.cos(jnp.arange(y.size)), y.ravel())

    gradient = jax.grad(weighted)
    one_by_one = jnp.stack([gradient(one) for one in x])
    np.testing.assert_allclose(jax.vmap(gradient)(x), one_by_one, rtol=1e-5, atol=1e-6)
    outside = jax.grad(lambda x: jax.vmap(weighted)(x).sum())(x)
    np.testing.assert_allclose(outside, one_by_one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, -2])
@pytest.mark.parametrize("name", ALONG)
def test_axes_are_counted_within_an_element(name, axis):
    compare(functools.partial(ALONG[name], axis=axis), 3)


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", OTHERS)
def test_elements_do_not_reach_into_each_other(name, size):
    compare(OTHERS[name], size)


def _drawn(seed, alg):
    """Numbers of each kind that has random bits of its own, and of seeds that follow from one."""
    return (
        tf.random.stateless_uniform([3], seed, alg=alg),
        tf.random.stateless_uniform([3], seed, None, None, tf.uint32, alg=alg),
        tf.random.stateless_normal([2], tf.random.fold_in(seed, 7, alg=alg), alg=alg),
        tf.random.stateless_truncated_normal([2], tf.random.split(seed, 2, alg=alg)[1], alg=alg),
    )


@pytest.mark.parametrize("alg", ["philox", "threefry"])
def test_each_seed_has_its_own_numbers(alg):
    seeds = np.array([[[1, 2], [3, 4]], [[5, 6], [1, 2]]], np.int32)
    call = jax.jit(bridge.call_tf(lambda seed: _drawn(seed, alg)))
    mapped = jax.jit(jax.vmap(jax.vmap(call), in_axes=1))(seeds)
    for row, column in np.ndindex(2, 2):
        for found, expected in zip(mapped, call(seeds[row, column]), strict=True):
            # XLA writes the logarithm of normal numbers otherwise for one seed than for several.
            rounding = 0 if expected.dtype == np.uint32 else 1e-6
            np.testing.assert_allclose(found[column, row], expected, rtol=rounding)
    assert len(np.unique(np.asarray(mapped[0]))) == 9  # of three different seeds


@pytest.mark.filterwarnings("ignore:.* of draw is int64")
def test_integers_of_philox_are_those_of_eager_tensorflow():
    def draw(seed):
        return [
            tf.random.stateless_uniform([20], seed, 0, 1000, dtype, alg="philox")
            for dtype in (tf.int32, tf.int64)
        ]

    seed = np.array([3, 4], np.int32)
    for found, expected in zip(jax.jit(bridge.call_tf(draw))(seed), draw(seed), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "function",
    [
        tf.linalg.inv,
        tf.linalg.expm,
        lambda a: tf.linalg.solve(a, a[:, :2] + 1),
        lambda a: tf.linalg.qr(a[:, :2])[0],
        lambda a: tf.linalg.qr(a[:2], full_matrices=True)[1],
    ],
)
def test_factorizations_are_batched(function):
    """XLA's `Qr` has a tuple of results, as TensorFlow compiles it."""
    matrices = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32) + 2 * np.eye(3)
    matrices = matrices.astype(np.float32)
    called = bridge.call_tf(function)
    expected = [function(tf.constant(matrix)) for matrix in matrices]
    np.testing.assert_allclose(jax.vmap(called)(matrices), expected, rtol=1e-4, atol=1e-5)


def test_jacobians_of_factorizations_are_jax_s():
    matrix = np.float32([[3, 1], [0.5, 2]])
    called = bridge.call_tf(tf.linalg.inv)
    for jacobian in (jax.jacrev, jax.jacfwd):
        expected = jacobian(jax.numpy.linalg.inv)(matrix)
        np.testing.assert_allclose(jacobian(called)(matrix), expected, rtol=1e-4, atol=1e-5)
