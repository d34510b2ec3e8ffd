"""The difference that two computations of one program may have, from the program itself.

Numbers that agree to a few units in the last place are the same. Where they do not, the program is
run again with its rounding errors made visible (Monte-Carlo arithmetic): each operation of its
jaxpr, gradients included, gives its result with a random relative error of the size that the
operation has in its dtype. What the results then spread by, times a factor, is the tolerance of
each element. Elements that jump, as behind `floor`, comparisons and sorts of values that nearly
tie, have no tolerance and are left out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

RUNS = 6
_POOL = 20011
FACTOR = 4.0
# Units in the last place, of the element.
TIGHT = 4.0

_EXACT = frozenset((
    "abs", "all_gather", "and", "argmax", "argmin", "bitcast_convert_type", "broadcast_in_dim",
    "ceil", "clamp", "clz", "complex", "concatenate", "conj", "copy", "copy_p", "cummax", "cummin",
    "device_put", "dynamic_slice", "dynamic_update_slice", "empty", "eq", "eq_to", "expand_dims",
    "floor", "gather", "ge", "gt", "imag", "iota", "is_finite", "le", "lt", "le_to", "lt_to", "max",
    "min", "ne", "neg", "nextafter", "not", "optimization_barrier", "or", "pad", "population_count",
    "random_bits", "random_fold_in", "random_seed", "random_split", "random_unwrap", "random_wrap",
    "real", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_precision", "reduce_xor",
    "rem", "reshape", "rev", "rng_bit_generator", "round", "scatter", "select_and_gather_add",
    "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "slice",
    "sort", "split", "squeeze", "stop_gradient", "threefry2x32", "top_k", "transpose", "xor",
    "zeros_like", "reduce_window_max", "reduce_window_min", "random_gamma", "dim_size",
))  # fmt: skip
_LINALG = frozenset((
    "cholesky", "triangular_solve", "lu", "qr", "geqrf", "geqp3", "householder_product", "eigh",
    "svd", "eig", "schur", "hessenberg", "tridiagonal", "tridiagonal_solve", "symmetric_product",
    "custom_linear_solve", "lu_pivots_to_permutation", "ormqr", "polar",
))  # fmt: skip
_SUMS = frozenset((
    "dot_general", "conv_general_dilated", "reduce_sum", "cumsum", "cumlogsumexp", "scatter-add",
    "reduce_window_sum", "reduce_window", "fft", "cumprod", "reduce_prod", "scatter-mul",
    "ragged_dot", "reduce",
))  # fmt: skip
_ULPS = {
    "add": 1, "sub": 1, "mul": 1, "add_any": 1, "div": 2, "sqrt": 2, "rsqrt": 4, "cbrt": 8,
    "integer_pow": 4, "square": 1, "convert_element_type": 1, "pow": 64, "lgamma": 256,
    "digamma": 256, "igamma": 2048, "igammac": 2048, "igamma_grad_a": 8192, "erf_inv": 128,
    "regularized_incomplete_beta": 8192, "bessel_i0e": 64, "bessel_i1e": 64, "random_gamma_grad":
    8192, "polygamma": 4096, "zeta": 4096, "tan": 16, "atan2": 16, "acosh": 16, "asinh": 16,
    "atanh": 32, "sinh": 16, "cosh": 16,
}  # fmt: skip
# XLA's own log1p of float64, where its two formulas meet: 120 units off at -0.414.
_ULPS_OF_DOUBLES = {"log1p": 64}
_USUAL_ULPS = 8
# XLA's own Eigh, which stands in for LAPACK, iterates to this, in float64 too.
_ITERATIVE = {"eigh": 2e-6, "svd": 2e-6}
_CALLS = frozenset((
    "pjit", "jit", "closed_call", "core_call", "core_closed_call", "call", "remat", "remat2",
    "checkpoint", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "named_call",
))  # fmt: skip
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")
# What is compiled for the sake of its numbers alone need not be fast.
QUICKLY = {"xla_backend_optimization_level": 0}


@dataclass(frozen=True, slots=True)
class Spread:
    """The allowed difference of one array: the tolerance of each element, and which have none."""

    tolerance: Any
    unstable: Any


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of an array from what is expected.

    Attributes:
        text: the worst element; empty if none differs.
        skipped: how many elements were not compared.
        size: of how many.
    """

    text: str
    skipped: int
    size: int


def difference(found: Any, expected: Any, spread: Spread | None = None) -> Difference:
    """Compare arrays; without a spread within few units in the last place.

    Args:
        found: what the bridge gave.
        expected: JAX's.
        spread: of the array.
    """
    found, expected = np.asarray(found), np.asarray(expected)
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        return Difference(f"{_aval(found)} for {_aval(expected)}", 0, expected.size)
    is_inexact = jnp.issubdtype(expected.dtype, jnp.inexact)
    wide, wanted = _wide(found), _wide(expected)
    same = (wide == wanted) | (_isnan(wide) & _isnan(wanted))
    unstable = np.zeros(expected.shape, bool) if spread is None else spread.unstable
    if is_inexact:
        info = jnp.finfo(np.zeros((), expected.dtype).real.dtype)
        tiny = 4 * float(info.tiny)
        allowed = TIGHT * float(info.eps) * np.abs(wanted) + tiny
        if spread is not None:
            allowed = allowed + spread.tolerance
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.abs(wide - wanted)
            same |= error <= allowed
    wrong = ~same & ~unstable
    if not wrong.any():
        return Difference("", int(unstable.sum()), expected.size)
    index = tuple(int(i[0]) for i in np.nonzero(wrong)) if wrong.ndim else ()
    limit = f", allowed {allowed[index]:.2g}" if is_inexact else ""
    text = (
        f"{found[index]} for {expected[index]} at {list(index)}{limit}; "
        f"{int(wrong.sum())} of {wrong.size} differ"
    )
    return Difference(text, int(unstable.sum()), expected.size)


def spread(
    function: Callable[..., Any], arguments: Sequence[Any], expected: Sequence[Any]
) -> list[Spread]:
    """Return what each of the function's results may differ by.

    Args:
        function: of the arguments, to a list of arrays.
        arguments: a list of pytrees of arrays.
        expected: its results.

    Returns:
        A spread for each result.
    """
    closed = jax.make_jaxpr(function)(*arguments)
    leaves = [jnp.asarray(leaf) for leaf in jax.tree_util.tree_leaves(list(arguments))]

    @functools.partial(jax.jit, compiler_options=QUICKLY)
    def noisy(pool: Any, consts: list[Any], leaves: list[Any]) -> list[Any]:
        noise = _Noise(pool)
        leaves = [noise(leaf, 1) for leaf in leaves]
        return _interpret(closed.jaxpr, consts, leaves, noise)

    runs = [
        noisy(np.random.default_rng(seed).uniform(-1, 1, _POOL).astype("f"), closed.consts, leaves)
        for seed in range(RUNS)
    ]
    return [
        to_spread([np.asarray(run[index]) for run in runs], np.asarray(wanted))
        for index, wanted in enumerate(expected)
    ]


def to_spread(runs: list[Any], wanted: Any) -> Spread:
    if not jnp.issubdtype(wanted.dtype, jnp.inexact):
        unstable = np.zeros(wanted.shape, bool)
        for run in runs:
            unstable |= run != wanted
        return Spread(np.zeros(wanted.shape), unstable)
    wide = _wide(wanted)
    finite = np.isfinite(wide)
    unstable = np.zeros(wanted.shape, bool)
    tolerance = np.zeros(wanted.shape)
    for run in map(_wide, runs):
        unstable |= np.isfinite(run) != finite
        unstable |= ~finite & ~((run == wide) | (_isnan(run) & _isnan(wide)))
        with np.errstate(invalid="ignore", over="ignore"):
            tolerance = np.fmax(tolerance, np.where(finite, np.abs(run - wide), 0))
    return Spread(FACTOR * np.nan_to_num(tolerance, posinf=0.0), unstable)


class _Noise:
    """Random relative errors; each call has a number of its own."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._count = 0

    def uniform(self, shape: tuple[int, ...]) -> Any:
        """From -1 to 1: another part of the pool each time, which compiles faster than a PRNG."""
        size = math.prod(shape)
        pool = jnp.tile(self._pool, -(-size // _POOL) + 1) if size >= _POOL else self._pool
        self._count += 1
        start = self._count * 7919 % (pool.size - size)
        return lax.slice(pool, [start], [start + size]).reshape(shape)

    def __call__(self, value: Any, ulps: float, *, whole: float = 0.0) -> Any:
        """A value with errors of some units in the last place, and of its largest element."""
        if not hasattr(value, "dtype") or not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        if value.size == 0 or value.dtype.itemsize == 1:
            return value
        real = np.zeros((), value.dtype).real.dtype
        computed = jnp.float64 if real == np.float64 else jnp.float32
        eps = float(jnp.finfo(real).eps)
        magnitude = jnp.abs(value).astype(computed)
        amount = magnitude * (eps * ulps)
        if whole:
            finite = jnp.where(jnp.isfinite(magnitude), magnitude, 0)
            amount = amount + whole * jnp.max(finite)
        amount = jnp.where(jnp.isfinite(amount), amount, 0)
        if jnp.issubdtype(value.dtype, jnp.complexfloating):
            error = lax.complex(
                amount * self.uniform(value.shape), amount * self.uniform(value.shape)
            )
            return value + error.astype(value.dtype)
        error = amount * self.uniform(value.shape).astype(computed)
        return (value.astype(computed) + error).astype(value.dtype)

    def divided(self, one: Any, other: Any, quotient: Any) -> Any:
        """A quotient with the error of XLA's product with the reciprocal of a scalar.

        Where that is subnormal XLA takes it for 0, so that `x / 3e38` is 0 for 1e6, too. A
        subnormal reciprocal is less than the smallest normal number, which bounds the error.
        """
        if not jnp.issubdtype(quotient.dtype, jnp.floating) or quotient.dtype.itemsize == 1:
            return quotient
        computed = jnp.promote_types(quotient.dtype, jnp.float32)
        one, other = (jnp.asarray(value).astype(computed) for value in (one, other))
        tiny = float(jnp.finfo(computed).tiny)
        is_flushed = jnp.isfinite(one) & jnp.isfinite(other) & (jnp.abs(other) > 1 / tiny)
        error = jnp.where(is_flushed, jnp.abs(one) * tiny, 0)
        error = error * self.uniform(quotient.shape).astype(computed)
        return (quotient.astype(computed) + error).astype(quotient.dtype)


def _interpret(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], noise: _Noise) -> list[Any]:
    values: dict[Any, Any] = {}
    values.update(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else values[atom]

    for eqn in jaxpr.eqns:
        results = _evaluate(eqn, [read(atom) for atom in eqn.invars], noise)
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _evaluate(eqn: Any, operands: list[Any], noise: _Noise) -> list[Any]:
    name = eqn.primitive.name
    if name in _CONTROL:
        return list(_CONTROL[name](eqn.params, operands, noise))
    if name in _CALLS:
        return _run(next(eqn.params[key] for key in _BODIES if key in eqn.params), operands, noise)
    if name in _LINALG:
        size = max((max(x.shape, default=1) for x in operands if hasattr(x, "shape")), default=1)
        operands = [noise(x, 2, whole=_whole(name, x, size)) for x in operands]
    elif name in _SUMS:
        operands = [noise(x, 2) for x in operands]
    bound: Any = eqn.primitive.get_bind_params(eqn.params)
    functions, params = bound if isinstance(bound, tuple) else ([], bound)
    found = eqn.primitive.bind(*functions, *operands, **params)
    results = list(found) if eqn.primitive.multiple_results else [found]
    if name in _LINALG:
        return [noise(x, 4, whole=_whole(name, x, 2)) for x in results]
    if name == "convert_element_type" and not _is_narrowing(operands[0], results[0]):
        return results
    if name in _EXACT or not results:  # one that only checks has none
        return results
    if name == "div":
        results = [noise.divided(*operands, results[0])]
    whole = 0.0
    if name == "fft":
        whole = 2 * float(jnp.finfo(np.zeros((), results[0].dtype).real.dtype).eps)
    ulps = 2 if name in _SUMS else _ULPS.get(name, _USUAL_ULPS)
    if results[0].dtype in (np.float64, np.complex128):
        ulps = _ULPS_OF_DOUBLES.get(name, ulps)
    return [noise(x, ulps, whole=whole) for x in results]


def _is_narrowing(operand: Any, result: Any) -> bool:
    """Also where an integer becomes a float."""
    if not jnp.issubdtype(operand.dtype, jnp.inexact):
        return bool(jnp.issubdtype(result.dtype, jnp.inexact) and operand.dtype.itemsize > 2)
    return bool(result.dtype.itemsize < operand.dtype.itemsize)


def _whole(name: str, operand: Any, size: int) -> float:
    """The error of linear algebra, relative to the largest element of an operand."""
    dtype = getattr(operand, "dtype", None)
    if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    eps = float(jnp.finfo(np.zeros((), dtype).real.dtype).eps)
    return max(8 * size * eps, _ITERATIVE.get(name, 0.0))


def _run(jaxpr: Any, operands: list[Any], noise: _Noise) -> list[Any]:
    """A jaxpr, closed or not."""
    if hasattr(jaxpr, "consts"):
        return _interpret(jaxpr.jaxpr, jaxpr.consts, operands, noise)
    return _interpret(jaxpr, (), operands, noise)


def _cond(params: Any, operands: list[Any], noise: _Noise) -> Any:
    branches = [
        lambda *args, branch=branch: _run(branch, list(args), noise)
        for branch in params["branches"]
    ]
    index = operands[0].astype(jnp.int32)
    if len(branches) == 1:
        return branches[0](*operands[1:])
    return lax.switch(index, branches, *operands[1:])


def _while(params: Any, operands: list[Any], noise: _Noise) -> Any:
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    cond, body, init = operands[: split[0]], operands[split[0] : split[1]], operands[split[1] :]

    def goes_on(state: list[Any]) -> Any:
        return _run(params["cond_jaxpr"], [*cond, *state], noise)[0]

    def step(state: list[Any]) -> list[Any]:
        found = _run(params["body_jaxpr"], [*body, *state], noise)
        # Of a batch of loops those that have ended stay as they are, as JAX lowers it.
        open_ = goes_on(state)
        if not open_.ndim:
            return found
        return [
            jnp.where(lax.expand_dims(open_, range(open_.ndim, new.ndim)), new, old)
            for new, old in zip(found, state, strict=True)
        ]

    return lax.while_loop(lambda state: jnp.any(goes_on(state)), step, init)


def _scan(params: Any, operands: list[Any], noise: _Noise) -> Any:
    if "ft_in" in params:  # since JAX 0.12
        fixed, init, arrays = map(list, params["ft_in"].update(operands).unpack())
    else:
        consts, carry = params["num_consts"], params["num_carry"]
        fixed, init = operands[:consts], operands[consts : consts + carry]
        arrays = operands[consts + carry :]
    carry = len(init)

    def body(state: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        found = _run(params["jaxpr"], [*fixed, *state, *slices], noise)
        return found[:carry], found[carry:]

    final, stacked = lax.scan(
        body, init, arrays, length=params["length"], reverse=params["reverse"]
    )
    return [*final, *stacked]


_CONTROL = {"cond": _cond, "while": _while, "scan": _scan}


def _isnan(array: Any) -> Any:
    return np.isnan(array) if array.dtype.kind in "fc" else np.zeros(array.shape, bool)


def _wide(array: Any) -> Any:
    """As float64 or complex128; integers and booleans as they are."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return np.asarray(array)
    wide = np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64
    return np.asarray(array).astype(wide)


def _aval(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"
