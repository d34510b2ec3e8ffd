"""`jax.lax`, but for control flow."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.matrix.case import EXACT, Case, family, floats, integers

_X = floats(3, 4)
_IMAGE = floats(1, 6, 5, 2)


def _convolve(x: Any, kernel: Any, **options: Any) -> Any:
    spatial = "WHD"[: x.ndim - 2]
    layout = (f"N{spatial}C", f"{spatial}IO", f"N{spatial}C")
    padding, strides = [(1, 0)] * len(spatial), [1] * len(spatial)
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=layout, **options
    )


def _pool(x: Any, start: Any, combine: Any, **options: Any) -> Any:
    return lax.reduce_window(x, start, combine, (1, 2, 2, 1), (1, 2, 1, 1), "SAME", **options)


_POOLS = {
    "pooling": lambda x: lax.reduce_window(
        x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
    ),
    "average_pooling": lambda x: _pool(x, 0.0, lax.add) / 4,
}
_ARRAYS = {
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, axis=1),
    "cummax": lambda x: lax.cummax(x, axis=0, reverse=True),
    "clamp": lambda x: lax.clamp(-1.0, x, 0.5),
    "pad_negative": lambda x: lax.pad(x, 1.0, [(1, -1, 0), (0, 2, 1)]),
    "integer_pow": lambda x: lax.integer_pow(x, -3),
    "reduce_custom": lambda x: lax.reduce(x, np.float32(1), lambda a, b: a * b, (1,)),
    "barrier": lambda x: lax.optimization_barrier(x * 2) + 1,
    "associative_scan": lambda x: lax.associative_scan(jnp.multiply, x),
}
_EXACT_ARRAYS = {
    "top_k": lambda x: lax.top_k(x, 2),
    "approx_max_k": lambda x: lax.approx_max_k(x, 2),
    "sort_several": lambda x: lax.sort((jnp.round(x), x), dimension=1, num_keys=2),
}


def _convolution(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(
        x, kernel, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _slices(x: Any, i: Any) -> Any:
    part = lax.dynamic_slice(x, (i, 0), (2, 3))
    return part, lax.dynamic_update_slice(x, part * 2, (0, i))


def _bits(x: Any, y: Any) -> Any:
    return {
        "count": lax.population_count(x),
        "zeros": lax.clz(x),
        "shift": lax.shift_right_logical(x, y),
        "bits": lax.bitcast_convert_type(x, jnp.float32).view(jnp.int32),
        "xor": (x ^ y) & ~y,
    }


def _bit_reductions(x: Any, y: Any) -> Any:
    whole = [np.uint32(0xFFFFFFFF), np.uint32(0), np.uint32(0)]
    combine = [lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor]
    bits = (x | y).astype(jnp.uint32)
    return [lax.reduce(bits, one, way, (0,)) for one, way in zip(whole, combine, strict=True)]


def _dot_algorithm(x: Any, y: Any) -> Any:
    return lax.dot(x, y, precision=lax.DotAlgorithmPreset.F32_F32_F32)


def _batched_dot(x: Any, y: Any) -> Any:
    return lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,))))


CASES = (
    *family(_POOLS, _IMAGE),
    *family(_ARRAYS, _X),
    *family(_EXACT_ARRAYS, _X, tolerance=EXACT),
    Case("convolution", _convolution, (floats(2, 5, 6, 3), floats(3, 2, 3, 4))),
    Case("convolution_1d", _convolve, (floats(2, 7, 3), floats(3, 3, 2))),
    Case("convolution_3d", _convolve, (floats(1, 3, 4, 3, 2), floats(2, 2, 2, 2, 3))),
    Case("convolution_grouped", functools.partial(_convolve, feature_group_count=2),
         (floats(1, 4, 5, 4), floats(2, 2, 2, 6))),
    Case("convolution_by_batch", functools.partial(_convolve, batch_group_count=2),
         (floats(4, 4, 5, 2), floats(2, 2, 2, 6))),
    Case("convolution_of_dilated", functools.partial(_convolve, lhs_dilation=(2, 1)),
         (floats(1, 3, 4, 2), floats(2, 2, 2, 3))),
    Case("convolution_transpose", lambda x, kernel: lax.conv_transpose(x, kernel, (2, 2), "SAME"),
         (floats(1, 3, 3, 2), floats(2, 2, 2, 3))),
    Case("slices", _slices, (_X, np.int32(1)), tolerance=EXACT),
    Case("bits", _bits, (integers(6), integers(6, modulus=31)), tolerance=EXACT),
    Case("bit_reductions", _bit_reductions, (integers(6), integers(6, modulus=31)),
         tolerance=EXACT),
    Case("highest_precision", functools.partial(jnp.matmul, precision="highest"),
         (_X, floats(4, 2))),
    Case("dot_algorithm", _dot_algorithm, (_X, floats(4, 2))),
    Case("batched_dot", _batched_dot, (floats(2, 3, 4), floats(2, 4, 2))),
    Case("ragged_dot", lax.ragged_dot,
         (floats(5, 3), floats(2, 3, 4), np.array([2, 3], np.int32))),
    Case("conjugate_gradient", lambda x, b: jax.scipy.sparse.linalg.cg(
        lambda v: x @ (x.T @ v) + v, b, maxiter=3)[0], (_X / 4, floats(3)), gradient=False),
)  # fmt: skip
