"""The functions of the matrix: one small case for each corner of JAX that a file may contain.

A case takes flat positional arrays, so that a process without JAX can call what was written.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax
from jax.scipy import special

__all__ = ["CASES", "EXACT", "Case", "Tolerance"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far TensorFlow may be from JAX, as a part of the largest expected magnitude, and why."""

    relative: float
    reason: str


EXACT = Tolerance(0.0, "the same bits: nothing is rounded")
ROUNDING = Tolerance(
    2e-6,
    "float32 with eps 1.2e-7: each XLA fuses and vectorizes sums and products in its own order, "
    "and its polynomials for elementary functions differ by a few units in the last place",
)
SERIES = Tolerance(
    2e-5,
    "float32 with eps 1.2e-7: series, continued fractions and recurrences of tens of steps, each "
    "of which rounds",
)
HALF = Tolerance(
    2e-2,
    "bfloat16 with eps 7.8e-3: XLA may keep intermediate results of a fusion in float32",
)
FLOAT16 = Tolerance(
    2e-3, "float16 with eps 9.8e-4: XLA may keep intermediate results of a fusion in float32"
)
DOUBLE = Tolerance(4e-15, "float64 with eps 2.2e-16: the order of sums, and polynomials, differ")


@dataclass(frozen=True, slots=True)
class Case:
    """One function and what it is called with.

    Attributes:
        name: of the row in the grid and of the folder.
        function: of `params`, if there are any, and of flat arrays; returns a pytree.
        args: positional arrays.
        more: further argument tuples, of other sizes where the shapes are polymorphic.
        params: a pytree of arrays that becomes variables, or None.
        shapes: for each of `args` its specification in the language of `jax.export`, or None.
        platforms: what is lowered for.
        keys: which of `args` are data of typed PRNG keys.
        tolerance: what may differ, and why.
        gradient: whether the case has a reverse mode that is worth a comparison.
        x64: whether JAX's 64-bit dtypes are on.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    more: Sequence[tuple[Any, ...]] = ()
    params: Mapping[str, Any] | None = None
    shapes: Sequence[str] | None = None
    platforms: tuple[str, ...] = ("cpu",)
    keys: tuple[int, ...] = ()
    tolerance: Tolerance = ROUNDING
    gradient: bool = True
    x64: bool = False


CANCELLATION = Tolerance(
    2e-5,
    "float32 with eps 1.2e-7: a variance is the difference of two sums that are each rounded, and "
    "the gradient divides by it",
)


def _floats(*shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = np.float32) -> Any:
    """Evenly spread values in an irregular order, none of them at a bound."""
    size = math.prod(shape)
    order = (np.arange(size) * 7919 + 3) % max(size, 1)
    return (low + (high - low) * (order + 0.5) / max(size, 1)).astype(dtype).reshape(shape)


def _integers(*shape: int, dtype: Any = np.int32, modulus: int = 97) -> Any:
    return (np.arange(math.prod(shape)) * 37 % modulus).astype(dtype).reshape(shape)


def _complex(*shape: int) -> Any:
    return (_floats(*shape) + 1j * _floats(*shape, low=-1, high=3)).astype(np.complex64)


_KEY = np.array([3, 5], np.uint32)
_X = _floats(3, 4)


# jax.numpy


def _statistics(x: Any) -> Any:
    return {"mean": x.mean(0), "var": jnp.var(x, axis=1), "max": x.max(), "norm": jnp.sqrt(x @ x.T)}


def _sorting(x: Any) -> Any:
    return jnp.sort(x, axis=1), jnp.argsort(x, axis=0), jnp.argmax(x, axis=1)


def _indexing(x: Any, i: Any) -> Any:
    rows = jnp.take(x, i, axis=0)
    return rows, x.at[i].add(rows * 2), x[::-1, 1:], jnp.take_along_axis(x, i[:, None], axis=1)


def _layouts(x: Any) -> Any:
    padded = jnp.pad(x, ((1, 0), (0, 2)), mode="reflect")
    return {
        "padded": padded,
        "rolled": jnp.roll(x, 2, axis=1),
        "stacked": jnp.stack([x, x[::-1]]).swapaxes(0, 2),
        "triangle": jnp.tril(x),
        "tiled": jnp.tile(x[:1], (2, 2)),
    }


def _mlp(x: Any, w: Any) -> Any:
    return jnp.einsum("bi,io->bo", jnp.tanh(x), w), jnp.cumsum(x, axis=1), jnp.exp(-(x**2))


def _elementary(x: Any) -> Any:
    return {
        "tan": jnp.tan(x),
        "cbrt": jnp.cbrt(x),
        "expm1": jnp.expm1(x),
        "log1p": jnp.log1p(x),
        "atan2": jnp.arctan2(x, 2 - x),
        "rsqrt": lax.rsqrt(x),
        "tanh": jnp.tanh(x),
        "logistic": lax.logistic(x),
        "power": x**2.5,
    }


# jax.scipy.special


def _gammas(x: Any) -> Any:
    return special.gammaln(x), special.digamma(x), special.gammainc(x, x + 0.5)


def _betas(x: Any) -> Any:
    return special.betainc(1.5, 2.5, x / 4), special.betaln(x, x + 1)


def _errors(x: Any) -> Any:
    return special.erfc(x), special.erfinv(x / 3), special.ndtri(x / 8 + 0.5), special.i0e(x)


def _logarithms(x: Any) -> Any:
    return special.logsumexp(x, axis=1), special.xlogy(x, x), special.entr(x), special.logit(x / 4)


# jax.lax


def _pooling(x: Any) -> Any:
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def _convolution(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(
        x, kernel, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _convolution_transpose(x: Any, kernel: Any) -> Any:
    return lax.conv_transpose(x, kernel, (2, 2), "SAME")


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


def _rounding(x: Any) -> Any:
    return jnp.round(x * 2) / 2, jnp.floor(x), lax.reduce_precision(x, 5, 7), jnp.sign(x)


def _dot_algorithm(x: Any, y: Any) -> Any:
    return lax.dot(x, y, precision=lax.DotAlgorithmPreset.F32_F32_F32)


# Control flow


def _scan(x: Any) -> Any:
    return lax.scan(lambda total, row: (jnp.sin(total) + row, total), jnp.zeros(4), x)


def _while(x: Any) -> Any:
    return lax.while_loop(
        lambda state: state[1].sum() < 100, lambda state: (state[0] + 1, state[1] * 1.5), (0, x)
    )


def _cond(x: Any) -> Any:
    return lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: x - 1, x)


def _switch(x: Any, i: Any) -> Any:
    return lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * x], x)


def _fori(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda i, total: total * 0.5 + x * i, x)


def _custom_rule(x: Any) -> Any:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x * 2

    clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.clip(ct, -0.5, 0.5) + x,))
    return clipped(x)


# jax.nn, jax.image, jax.fft, jax.random


def _activations(x: Any) -> Any:
    return {
        "gelu": jax.nn.gelu(x, approximate=True),
        "softmax": jax.nn.softmax(x),
        "silu": jax.nn.silu(x),
        "selu": jax.nn.selu(x),
        "softplus": jax.nn.softplus(x),
        "log_softmax": jax.nn.log_softmax(x, axis=0),
    }


def _layer_norm(params: Any, x: Any) -> Any:
    return jax.nn.standardize(x) * params["scale"] + params["bias"]


def _resize(x: Any) -> Any:
    return jax.image.resize(x, (5, 3, 1), "bilinear"), jax.image.resize(x, (2, 6, 1), "cubic")


def _fft(z: Any) -> Any:
    return jnp.fft.fft(z), jnp.fft.ifft2(z)


def _rfft(x: Any) -> Any:
    return jnp.fft.irfft(jnp.fft.rfft(x) * 2), jnp.fft.fftshift(jnp.fft.rfft2(x))


def _sampling(key: Any) -> Any:
    bits, uniform, permutation, categorical = jax.random.split(key, 4)
    return {
        "bits": jax.random.bits(bits, (4,)),
        "uniform": jax.random.uniform(uniform, (5,)),
        "permutation": jax.random.permutation(permutation, 7),
        "categorical": jax.random.categorical(
            categorical, jnp.log(jnp.arange(1.0, 5.0)), shape=(6,)
        ),
    }


def _keys(key: Any, x: Any) -> Any:
    first, second = jax.random.split(key)
    return first, jax.random.fold_in(second, 3), x + jax.random.normal(second, x.shape)


# Dtypes


def _half(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w), x.astype(jnp.float32).sum(), x * 3


def _float8(x: Any, y: Any) -> Any:
    product = lax.dot(x, y, preferred_element_type=jnp.float32)
    return {"reversed": x[::-1], "wide": x.astype(jnp.float32), "product": product}


def _complex_numbers(z: Any) -> Any:
    return z * jnp.conj(z[::-1]), jnp.abs(z), jnp.exp(z), z.real


def _integer_arithmetic(x: Any, y: Any) -> Any:
    products = lax.dot(x, x.T, preferred_element_type=jnp.int32)
    return {"quotient": x // 3, "rest": y % 5, "products": products, "sum": y.sum(), "less": x < 7}


def _wide(x: Any, n: Any) -> Any:
    return jnp.sin(x) @ x.T, n * 2**40 + 1, x.astype(jnp.complex128) * 1j


def _narrow_inside(x: Any) -> Any:
    narrow = jnp.clip(x, -7, 7).astype(jnp.int4).astype(jnp.int8)
    return narrow, x.astype(jnp.float8_e5m2).astype(jnp.float32)


# Shapes, platforms


def _attention(q: Any, k: Any) -> Any:
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(q.shape[-1]))
    return {"out": jnp.einsum("bqk,bkd->bqd", weights, k), "size": jnp.int32(q.shape[0])}


def _batch(params: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ params["w"] + params["b"])
    return hidden, hidden.reshape((-1,)), jnp.full((x.shape[0],), x.shape[0])


def _two_symbols(x: Any, y: Any) -> Any:
    batch, time, _ = x.shape
    return x.reshape((batch * time, 2)), x.sum(2) + y.reshape((batch, 2)).sum(1)[:, None]


def _on_platforms(params: Any, x: Any) -> Any:
    shifted = lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x - 1)
    return shifted @ params["w"], jax.nn.gelu(shifted, approximate=False)


_PARAMS = {"w": _floats(4, 3), "b": _floats(3)}

CASES = (
    Case("statistics", _statistics, (_floats(3, 4, low=0.1),)),
    Case("sorting", _sorting, (_X,), tolerance=EXACT),
    Case("indexing", _indexing, (_X, np.array([2, 0, 2], np.int32))),
    Case("layouts", _layouts, (_X,), tolerance=EXACT),
    Case("mlp", _mlp, (_X, _floats(4, 5))),
    Case("interpolation", jnp.interp, (_floats(5), np.array([-2, 0, 3], np.float32), _floats(3))),
    Case("elementary", _elementary, (_floats(6, low=0.2, high=1.2),)),
    Case("gammas", _gammas, (_floats(6, low=0.3, high=5),), tolerance=SERIES, gradient=False),
    Case("betas", _betas, (_floats(6, low=0.3, high=3),), tolerance=SERIES),
    Case("errors", _errors, (_floats(8),), tolerance=SERIES),
    Case("logarithms", _logarithms, (_floats(3, 4, low=0.1, high=3.5),)),
    Case("zeta", special.zeta, (_floats(4, low=1.5, high=6), _floats(4, low=0.5)), tolerance=SERIES,
         gradient=False),
    Case("pooling", _pooling, (_floats(1, 4, 4, 2),)),
    Case("convolution", _convolution, (_floats(2, 5, 6, 3), _floats(3, 2, 3, 4))),
    Case("convolution_transpose", _convolution_transpose, (_floats(1, 3, 3, 2),
                                                           _floats(2, 2, 2, 3))),
    Case("slices", _slices, (_X, np.int32(1)), tolerance=EXACT),
    Case("bits", _bits, (_integers(6), _integers(6, modulus=31)), tolerance=EXACT),
    Case("rounding", _rounding, (_X,), tolerance=EXACT),
    Case("associative_scan", lambda x: lax.associative_scan(jnp.multiply, x), (_X,)),
    Case("highest_precision", functools.partial(jnp.matmul, precision="highest"),
         (_X, _floats(4, 2))),
    Case("dot_algorithm", _dot_algorithm, (_X, _floats(4, 2))),
    Case("scan", _scan, (_X,)),
    Case("while", _while, (_floats(3, low=1),), gradient=False),
    Case("cond", _cond, (_X,)),
    Case("switch", _switch, (_X, np.int32(1))),
    Case("fori", _fori, (_X,)),
    Case("map", lambda x: lax.map(lambda row: row / row.sum(), x), (_floats(3, 4, low=0.5),)),
    Case("custom_rule", _custom_rule, (_X,)),
    Case("activations", _activations, (_X,)),
    Case("layer_norm", _layer_norm, (_X,), params={"scale": _floats(4), "bias": _floats(4)},
         tolerance=CANCELLATION),
    Case("resize", _resize, (_floats(4, 4, 1),)),
    Case("fft", _fft, (_complex(4, 6),)),
    Case("rfft", _rfft, (_floats(4, 6),)),
    Case("sampling", _sampling, (_KEY,), keys=(0,)),
    Case("random_gamma", jax.random.gamma, (_KEY, _floats(4, low=0.5)), keys=(0,),
         tolerance=SERIES),
    Case("keys", _keys, (_KEY, _X), keys=(0,)),
    Case("erf", lax.erf, (_X,)),
    Case("gelu_exact", lambda x: jax.nn.gelu(x, approximate=False), (_X,)),
    Case("top_k", lambda x: lax.top_k(x, 2), (_X,), tolerance=EXACT),
    Case("sinh", jnp.sinh, (_X,)),
    Case("cosh", jnp.cosh, (_X,)),
    Case("arcsin", jnp.arcsin, (_X / 2.5,)),
    Case("arccos", jnp.arccos, (_X / 2.5,)),
    Case("arcsinh", jnp.arcsinh, (_X,)),
    Case("arccosh", jnp.arccosh, (_X + 4,)),
    Case("arctanh", jnp.arctanh, (_X / 2.5,)),
    Case("ndtr", special.ndtr, (_X,)),
    Case("log_ndtr", special.log_ndtr, (_X * 4,), tolerance=SERIES),
    Case("truncated_normal", lambda key: jax.random.truncated_normal(key, -1.0, 1.0, (6,)), (_KEY,),
         keys=(0,)),
    Case("bfloat16", _half, (_floats(3, 4, dtype=ml_dtypes.bfloat16),
                             _floats(4, 2, dtype=ml_dtypes.bfloat16)), tolerance=HALF),
    Case("float16", _half, (_floats(3, 4, dtype=np.float16), _floats(4, 2, dtype=np.float16)),
         tolerance=FLOAT16),
    Case("float8_e4m3fn", _float8, (_floats(3, 4, dtype=ml_dtypes.float8_e4m3fn),
                                    _floats(4, 2, dtype=ml_dtypes.float8_e4m3fn))),
    Case("float8_e5m2", _float8, (_floats(3, 4, dtype=ml_dtypes.float8_e5m2),
                                  _floats(4, 2, dtype=ml_dtypes.float8_e5m2))),
    Case("complex64", _complex_numbers, (_complex(5),)),
    Case("integers", _integer_arithmetic, (_integers(3, 4, dtype=np.int8),
                                           _integers(5, dtype=np.uint16)), tolerance=EXACT),
    Case("float64", _wide, (_floats(3, 4, dtype=np.float64), _integers(3, dtype=np.int64)),
         tolerance=DOUBLE, x64=True),
    Case("narrow_inside", _narrow_inside, (_floats(3, 4, high=9),), tolerance=EXACT,
         gradient=False),
    Case("attention", _attention, (_floats(2, 3, 4), _floats(2, 5, 4)),
         more=[(_floats(1, 3, 4), _floats(1, 2, 4))], shapes=("b, 3, 4", "b, k, 4")),
    Case("batch", _batch, (_floats(3, 4),), more=[(_floats(5, 4),)], params=_PARAMS,
         shapes=("b, 4",)),
    Case("two_symbols", _two_symbols, (_floats(2, 3, 2), _floats(4)),
         more=[(_floats(3, 1, 2), _floats(6))], shapes=("b, t, 2", "2*b")),
    Case("platforms", _on_platforms, (_X,), params=_PARAMS, platforms=("cpu", "cuda", "tpu")),
)  # fmt: skip
