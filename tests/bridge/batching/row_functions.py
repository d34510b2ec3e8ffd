"""Functions of batches: those that compute each row for itself, and those that do not.

Each is a function and the shapes of its arguments, with the dtype where it is not float32.
"""

from __future__ import annotations

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax, random


def attention(x):
    scores = jnp.einsum("bqd,bkd->bqk", x, x) / np.sqrt(x.shape[-1])
    mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), x)


def merged_heads(x):
    """Attention with the heads beside the batch in one dimension."""
    b, t, _ = x.shape
    heads = x.reshape(b, t, 2, 4).transpose(0, 2, 1, 3).reshape(b * 2, t, 4)
    mixed = jax.nn.softmax(heads @ heads.swapaxes(1, 2)) @ heads
    return mixed.reshape(b, 2, t, 4).transpose(0, 2, 1, 3).reshape(b, t, 8)


def heads_in_front(x):
    b, t, _ = x.shape
    heads = x.reshape(b, t, 2, 4).transpose(2, 0, 1, 3).reshape(2 * b, t, 4)
    return jnp.tanh(heads).reshape(2, b, t, 4).transpose(1, 2, 0, 3).reshape(b, t, 8)


def convolution(x):
    w = np.random.default_rng(0).normal(size=(3, 3, 3, 4)).astype("float32")
    dimensions = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=dimensions)
    return nn.max_pool(nn.relu(y), (2, 2), (2, 2))


def recurrent(x):
    def step(c, t):
        c = jnp.tanh(c * 0.5 + t)
        return c, c

    return lax.scan(step, jnp.zeros((x.shape[0], x.shape[2])), x.swapaxes(0, 1))[1].swapaxes(0, 1)


class Network(nn.Module):
    """A classifier of Flax, with a normalization that has been trained."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (3, 3))(x)
        x = nn.BatchNorm(use_running_average=True)(x)
        x = nn.avg_pool(nn.gelu(x), (2, 2), (2, 2))
        x = x.reshape(x.shape[0], -1)
        return nn.log_softmax(nn.Dense(5)(nn.LayerNorm()(x)))


class Transformer(nn.Module):
    """One block of it, over tokens."""

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(11, 8)(tokens) + jnp.sin(jnp.arange(tokens.shape[1]))[:, None]
        mask = nn.make_causal_mask(tokens)
        x = x + nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x), mask=mask)
        return nn.Dense(11)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x))))


class Lstm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.RNN(nn.OptimizedLSTMCell(4))(x)


def flax(module, shape, dtype="float32", **options):
    def call(x):
        variables = module.init(random.key(0), jnp.zeros(shape, dtype))
        return module.apply(variables, x, **options)

    return call


def draw_rows(keys, x):
    return jax.vmap(lambda k, r: r + random.normal(random.wrap_key_data(k), r.shape))(keys, x)


def doubled(x):
    """A loop that goes on until the last row is done, and leaves those that are."""
    return jax.vmap(lambda r: lax.while_loop(lambda v: v.sum() < 100, lambda v: v * 2 + 1, r))(x)


def gated(x):
    """A loop as one writes it by hand: what is done stays, and turns are counted."""

    def body(state):
        v, n = state
        return jnp.where(v < 9, v + n, v), n + 1

    return lax.while_loop(lambda s: (s[0] < 9).any() & (s[1] < 5), body, (x, 1))[0]


def own(x):
    return jnp.arange(x.shape[0])


ROW_BY_ROW = {
    "mlp": (lambda x: jnp.tanh(x @ jnp.ones((4, 3))) @ jnp.ones((3, 2)), "b, 4"),
    "scalar": (lambda x: jnp.sin(x) * 2, "b"),
    "another_size": (lambda x: x / x.shape[1] + x.mean(1, keepdims=True), "b, t"),
    "softmax": (lambda x: jax.nn.log_softmax(x, axis=1), "b, t"),
    "layer_norm": (lambda x: jax.nn.standardize(x, axis=-1), "b, t, 4"),
    "norm": (lambda x: x / jnp.linalg.norm(x, axis=-1, keepdims=True), "b, 3"),
    "attention": (attention, "b, t, 4"),
    "merged_heads": (merged_heads, "b, t, 8"),
    "heads_in_front": (heads_in_front, "b, t, 8"),
    "convolution": (convolution, "b, 8, 8, 3"),
    "convolution_of_any_size": (convolution, "b, h, w, 3"),
    "recurrent": (recurrent, "b, 6, 3"),
    "recurrent_of_any_length": (recurrent, "b, t, 3"),
    "flax_network": (flax(Network(), (1, 8, 8, 3)), "b, 8, 8, 3"),
    "flax_transformer": (flax(Transformer(), (1, 6), "int32"), "int32[b, 6]"),
    "flax_lstm": (flax(Lstm(), (1, 5, 3)), "b, 5, 3"),
    "embedding": (lambda i: jnp.sin(jnp.arange(14.0)).reshape(7, 2)[i], "int32[b, t]"),
    "one_hot": (lambda i: jax.nn.one_hot(i, 7), "int32[b]"),
    "own_index": (lambda x, i: x[own(x), i], "b, 5", "int32[b]"),
    "own_index_and_slice": (lambda x: x[own(x), 1:3], "b, 5"),
    "own_index_set": (lambda x, i: x.at[own(x), i].set(0), "b, 5", "int32[b]"),
    "take_along_axis": (lambda x: jnp.take_along_axis(x, x.argmax(1)[:, None], 1), "b, 5"),
    "sorted_by_index": (lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1), "b, t"),
    "columns": (lambda x: x[:, jnp.array([2, 0])], "b, 4"),
    "column_set": (lambda x: x.at[:, 2].set(0.0), "b, 4"),
    "a_column": (lambda x, i: x[:, i], "b, 4", "int32[]"),
    "a_slice": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, 1), "b, 4", "int32[]"),
    "reversed_columns": (lambda x: x[:, ::-1], "b, 4"),
    "rolled_columns": (lambda x: jnp.roll(x, 2, 1), "b, 4"),
    "concatenated": (lambda x: jnp.concatenate([x, x * 2], 1), "b, 4"),
    "stacked": (lambda x: jnp.stack([x, x * 2]).sum(0), "b, 4"),
    "split": (lambda x: jnp.split(x, 2, 1)[1], "b, 4"),
    "padded": (lambda x: jnp.pad(x, ((0, 0), (1, 2))), "b, 4"),
    "tiled": (lambda x: jnp.tile(x, (1, 3)), "b, 4"),
    "repeated": (lambda x: jnp.repeat(x, 3, 0).reshape(-1, 3, 4).sum(1), "b, 4"),
    "flattened": (lambda x: x.reshape(x.shape[0], -1), "b, t, 4"),
    "merged": (lambda x: jnp.exp(x.reshape(-1, 4)).reshape(x.shape), "b, t, 4"),
    "turned_twice": (lambda x: x.T.reshape(-1).reshape(4, -1).T, "b, 4"),
    "transposed_product": (lambda x: (jnp.ones((2, 3)) @ x.T).T, "b, 3"),
    "order_of_fortran": (lambda x: x.reshape(-1, 4, order="F"), "b, 4"),
    "outer_product": (lambda x: jnp.einsum("bi,bj->bij", x, x), "b, 3"),
    "sorted": (lambda x: jnp.sort(x, 1), "b, t"),
    "top_k": (lambda x: lax.top_k(x, 3), "b, 8"),
    "median": (lambda x: jnp.median(x, 1), "b, 7"),
    "cumulative": (lambda x: (jnp.cumsum(x, 1), lax.cummax(x, 1)), "b, t"),
    "associative_scan": (lambda x: lax.associative_scan(jnp.add, x, axis=1), "b, 8"),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), "b, 8"),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.mT + 3 * jnp.eye(3)), "b, 3, 3"),
    "solve": (lambda x: jnp.linalg.solve(x + 9 * jnp.eye(3), x), "b, 3, 3"),
    "eigenvalues": (lambda x: jnp.linalg.eigvalsh(x + x.mT), "b, 3, 3"),
    "inverse": (lambda x: jnp.linalg.inv(x + 9 * jnp.eye(3)), "b, 3, 3"),
    "svd": (lambda x: jnp.linalg.svd(x)[1], "b, 3, 3"),
    "qr": (lambda x: jnp.abs(jnp.linalg.qr(x)[1]), "b, 4, 3"),
    "matrix_exponential": (jax.vmap(jax.scipy.linalg.expm), "b, 3, 3"),
    "tridiagonal": (
        lambda d, b: lax.linalg.tridiagonal_solve(d * 0, d + 9, d * 0, b), "b, 3", "b, 3, 2"
    ),
    "roughly_the_largest": (lambda x: lax.approx_max_k(x, 2), "b, 8"),
    "resized": (lambda x: jax.image.resize(x, (x.shape[0], 8, 8, 3), "bilinear"), "b, 4, 4, 3"),
    "interpolated": (lambda x: jnp.interp(x, jnp.arange(9.0), jnp.arange(9.0) ** 2), "b"),
    "searched": (lambda x: jnp.searchsorted(jnp.linspace(0, 1, 9), x), "b, 3"),
    "special": (lambda x: jax.scipy.special.erf(x) + jax.nn.gelu(x) + jnp.sinh(x), "b, 3"),
    "gamma_function": (lambda x: jax.scipy.special.gammainc(2.0, jnp.abs(x)), "b, 3"),
    "chosen": (lambda x: jnp.where(x > 0, x, 0), "b, 3"),
    "a_branch": (lambda x, p: lax.cond(p > 0, lambda: x * 2, lambda: x), "b, 3", ""),
    "a_branch_for_each": (jax.vmap(lambda r: lax.cond(r.sum() > 0, jnp.sin, jnp.cos, r)), "b, 3"),
    "a_loop_for_each": (doubled, "b, 3"),
    "a_loop_with_masks": (gated, "b, 3"),
    "a_scan_for_each": (jax.vmap(lambda r: lax.scan(lambda c, t: (c + t, c * t), 0.0, r)), "b, 6"),
    "a_gradient_for_each": (jax.vmap(jax.grad(lambda r: jnp.sum(jnp.tanh(r) ** 2))), "b, 8"),
    "gradient_of_the_sum": (jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 2)), "b, 8"),
    "gradient_of_pooling": (
        jax.grad(lambda x: (nn.max_pool(x, (2, 2), (2, 2)) ** 2).sum()), "b, 4, 4, 2"
    ),
    "lengths": (
        lambda x, n: jnp.where(jnp.arange(x.shape[1]) < n[:, None], x, 0),
        "b, t", "int32[b]",
    ),
    "a_slice_for_each": (
        jax.vmap(lambda x, i: lax.dynamic_slice_in_dim(x, i, 2)), "b, 4", "int32[b]"
    ),
    "an_update_for_each": (
        jax.vmap(lambda x, i: lax.dynamic_update_slice_in_dim(x, jnp.zeros(2), i, 0)),
        "b, 4", "int32[b]",
    ),
    "a_sum_of_segments_for_each": (
        jax.vmap(lambda x, i: jax.ops.segment_sum(x, i, 3)), "b, 4", "int32[b, 4]"
    ),
    "steps_for_each": (
        jax.vmap(lambda x, n: lax.fori_loop(0, n, lambda _, v: v * 2, x)),
        "b, 4", "int32[b]",
    ),
    "keys_for_each": (draw_rows, "uint32[b, 2]", "b, 3"),
    "categorical_for_each": (
        jax.vmap(lambda k, x: random.categorical(random.wrap_key_data(k), x)),
        "uint32[b, 2]", "b, 5",
    ),
    "rejection_for_each": (
        jax.vmap(lambda k, x: random.gamma(random.wrap_key_data(k), jnp.abs(x) + 1)),
        "uint32[b, 2]", "b",
    ),
    "one_after_another": (lambda x: lax.map(lambda r: jnp.sort(r) + r.sum(), x), "b, 3"),
    "one_after_another_with_a_loop": (
        lambda x: lax.map(lambda r: lax.while_loop(lambda v: v[0] < 9, lambda v: v + 1, r), x),
        "b, 3",
    ),
    "bits": (lambda x: lax.bitcast_convert_type(x, jnp.uint8), "b, 3"),
    "constants": (lambda x: {"rows": x, "none": jnp.ones(3)}, "b, 3"),
}  # fmt: skip


def batch_norm(x):
    return (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5)


def previous_row(x):
    return lax.scan(lambda c, r: (r, c), jnp.zeros(x.shape[1]), x)[1]


def times_the_size(x):
    return lax.fori_loop(0, x.shape[0], lambda _, v: v + 1, x)


def row_before(x):
    """A loop over the rows that looks at the row before each."""
    return lax.map(lambda i: x[jnp.maximum(i - 1, 0)], own(x))


def until_any(x):
    return lax.while_loop(lambda v: (v < 9).any(), lambda v: v + 1, x)


def counted_turns(x):
    """A loop for each row, and how many turns all of them took."""

    def body(state):
        v, n = state
        return jnp.where(v < 9, v + 1, v), n + 1

    v, n = lax.while_loop(lambda state: (state[0] < 9).any(), body, (x, 0))
    return v + n


def woken(x):
    """A row that is done goes on when others make the loop go round once more."""

    def body(state):
        v, n = state
        return jnp.where((v + n) % 3 < 2, v + 1, v), n + 1

    return lax.while_loop(lambda state: ((state[0] + state[1]) % 3 < 2).any(), body, (x, 0.0))[0]


def convolved(x):
    return lax.conv_general_dilated(
        x[None], jnp.ones((3, 4, 4)), (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC")
    )[0]


ACROSS_ROWS = {
    "noise_by_place": (lambda x: x + random.uniform(random.key(0), x.shape), "b, 3"),
    "place": (lambda x: x + own(x)[:, None], "b, 3"),
    "one_after_another_with_a_count": (
        lambda x: lax.scan(lambda k, r: (k + 1, r * k), 0, x)[1], "b, 3"
    ),
    "size_parity": (lambda x: x + x.shape[0] % 2, "b, 3"),
    "size": (lambda x: x / x.shape[0], "b, 3"),
    "size_compared": (lambda x: x * (own(x)[-1] > 6), "b, 3"),
    "size_divided": (lambda x: x + x.shape[0] // 100, "b, 3"),
    "size_as_index": (lambda x: jnp.arange(9.0)[jnp.minimum(x.shape[0], 8)] + x, "b, 3"),
    "size_as_branch": (
        lambda x: lax.cond(jnp.asarray(x.shape[0]) > 5, lambda: x, lambda: x * 2), "b, 3"
    ),
    "size_as_turns": (times_the_size, "b, 3"),
    "linspace": (lambda x: x + (own(x) / x.shape[0])[:, None], "b, 3"),
    "from_the_end": (lambda x: x + own(x)[::-1][:, None], "b, 3"),
    "extreme_values": (lambda x: jnp.where(x.max() > 50, x - x.mean(0), x), "b, 3"),
    "extreme_softmax": (lambda x: jnp.where(x > 90, jax.nn.softmax(x, 0), x), "b, 3"),
    "mean": (lambda x: x - x.mean(0), "b, 3"),
    "batch_norm": (batch_norm, "b, 3"),
    "flax_batch_norm": (
        lambda x: nn.BatchNorm(use_running_average=False).init_with_output(random.key(0), x)[0],
        "b, 3",
    ),
    "singular_vectors": (lambda x: jnp.linalg.svd(x, full_matrices=False)[0], "b, 3"),
    "softmax_over_the_batch": (lambda x: jax.nn.softmax(x, 0), "b, 3"),
    "any_nan": (lambda x: jnp.where(jnp.isnan(x).any(), 0, x), "b, 3"),
    "largest": (lambda x: x == x.max(0), "b, 3"),
    "argmax": (lambda x: x + x.argmax(0), "b, 3"),
    "rank": (lambda x: jnp.argsort(jnp.argsort(x)), "b"),
    "sorted_rows": (lambda x: jnp.sort(x, 0), "b, 3"),
    "top_row": (lambda x: x - jnp.sort(x, 0)[-1], "b, 3"),
    "reversed": (lambda x: x[::-1], "b, 3"),
    "rolled": (lambda x: jnp.roll(x, 1, 0), "b, 3"),
    "differences": (lambda x: x - jnp.concatenate([x[:1], x[:-1]]), "b, 3"),
    "first_row": (lambda x: x - x[0], "b, 3"),
    "last_row": (lambda x: x - x[-1], "b, 3"),
    "row_of_index": (lambda x, i: x[i], "b, 3", "int32[b]"),
    "row_of_shared_index": (lambda x, i: x + x[i], "b, 3", "int32[]"),
    "row_added_to": (lambda x, i: x.at[i].add(1), "b, 3", "int32[b]"),
    "segments": (
        lambda x, i: jax.ops.segment_sum(x, i, x.shape[0]), "b, 3", "int32[b]"
    ),
    "counts": (lambda i: jnp.bincount(i, length=5)[i], "int32[b]"),
    "cumulative_rows": (lambda x: jnp.cumsum(x, 0), "b, 3"),
    "largest_so_far": (lambda x: lax.cummax(x, 0), "b, 3"),
    "convolved": (convolved, "b, 4"),
    "similarity": (lambda x: (x @ x.T) @ x, "b, 3"),
    "whitened": (lambda x: x @ (x.T @ x), "b, 3"),
    "distances": (lambda x: jnp.abs(x[:, None] - x[None]).sum((1, 2)), "b, 3"),
    "pooled": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 1), (1, 1), "SAME"), "b, 4"
    ),
    "folded": (lambda x: x.reshape(4, -1).T, "b, 4"),
    "halves": (lambda x: x.reshape(2, -1, 2).swapaxes(0, 1).reshape(-1, 4), "b, 4"),
    "noise_in_another_order": (
        lambda x: x + random.normal(random.key(0), x.shape[::-1]).T, "b, 3"
    ),
    "shuffled": (
        lambda x: x[jnp.argsort(random.uniform(random.key(0), x.shape[:1]))], "b, 3"
    ),
    "random_bits": (
        lambda x: x + random.uniform(random.key(0, impl="unsafe_rbg"), x.shape), "b, 3"
    ),
    "branch_for_all": (lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), "b, 3"),
    "loop_for_all": (until_any, "b, 3"),
    "counted_turns": (counted_turns, "b"),
    "woken": (woken, "b"),
    "previous_row": (previous_row, "b, 3"),
    "row_before": (row_before, "b, 3"),
    "sum_of_rows": (lambda x: lax.scan(lambda c, r: (c + r, c + r), jnp.zeros(3), x)[1], "b, 3"),
    "count_of_rows": (lambda x: x + lax.scan(lambda c, r: (c + 1, r), 0, x)[0], "b, 3"),
    "keys_of_one": (
        lambda x: jax.vmap(random.normal)(random.split(random.key(x.shape[0]), x.shape[0])) + x,
        "b",
    ),
}  # fmt: skip


# Steps of a batch of rows of 4 numbers, to be put together.
ROW_STEPS = {
    "sine": jnp.sin,
    "product": lambda x: x @ jnp.ones((4, 4)) / 4,
    "softmax": lambda x: jax.nn.softmax(x, 1),
    "sorted": lambda x: jnp.sort(x, 1),
    "merged": lambda x: jnp.cos(x.reshape(-1, 2)).reshape(-1, 4),
    "turned": lambda x: jnp.tanh(x.T).T,
    "in_front": lambda x: x.reshape(-1, 2, 2).transpose(1, 0, 2).reshape(-1, 2).reshape(
        2, -1, 2).transpose(1, 0, 2).reshape(-1, 4),
    "looked_up": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "own": lambda x: x[own(x), x.argmax(1)][:, None] + x,
    "set": lambda x: x.at[own(x), 1].set(0.5),
    "mapped": lambda x: lax.map(lambda r: r - r.mean(), x),
    "scanned": lambda x: lax.scan(lambda c, t: (c + t, c), jnp.zeros(x.shape[0]), x.T)[1].T,
    "looped": jax.vmap(lambda r: lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, r)),
    "chosen": lambda x: jnp.where(x > 0, x, -x),
    "joined": lambda x: jnp.concatenate([x[:, 2:], x[:, :2]], 1),
}  # fmt: skip
MIXING_STEPS = {
    "place": lambda x: x + own(x)[:, None] % 3,
    "noise": lambda x: x + random.uniform(random.key(0), x.shape),
    "parity": lambda x: x + x.shape[0] % 2,
    "mean": lambda x: x - x.mean(0),
    "extremes": lambda x: jnp.where(x.max() > 50, x - x.mean(0), x),
    "last": lambda x: x.at[-1].add(1),
    "reversed": lambda x: x[::-1],
    "sorted_rows": lambda x: jnp.sort(x, 0),
    "carried": lambda x: lax.scan(lambda c, r: (c + r, c + r), jnp.zeros(4), x)[1],
    "gathered": lambda x: x[own(x) // 2],
    "folded": lambda x: x.reshape(4, -1).T,
    "until_any": lambda x: lax.while_loop(lambda v: (v < 2).any(), lambda v: v + 1, x),
    "from_the_end": lambda x: x * (x.shape[0] - own(x))[:, None],
    "similar": lambda x: jax.nn.softmax(x @ x.T) @ x,
}


def specs_of(arguments, **sizes):
    """The specs of the arguments, symbolic or with the sizes that are given."""
    scope, found = export.SymbolicScope(), []
    for text in arguments:
        dtype, shape = (
            re.fullmatch(r"(\w+)\[(.*)\]", text).groups() if "[" in text else ("float32", text)
        )
        if sizes:
            names = [dim.strip() for dim in shape.split(",") if dim.strip()]
            dims = tuple(int(sizes.get(name, name)) for name in names)
        else:
            dims = export.symbolic_shape(shape, scope=scope)
        found.append(jax.ShapeDtypeStruct(dims, dtype))
    return found
