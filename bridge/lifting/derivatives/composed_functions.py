"""Functions of each element whose derivative their operations do not say.

CHLO defines functions such as `jax.lax.erfc` by polynomials on parts of their domain, and selects
one for each element. In reverse mode the derivative of what is not selected may be infinite, and
its product with 0 is NaN. The operations of one call have its place in the source, whose last name
is that of the function.

Others, such as `jax.nn.relu`, have a derivative of their own where two branches meet. They are
functions of the module, by their names. `jax.lax.logistic`, `jax.numpy.logaddexp` and negative
powers are neither, and are known by their operations alone; `jax.scipy.special.log_ndtr` and its
like by the last of them.

Where this JAX lowers one of these functions to the same operations (`own_lowerings.py`), it is
called instead of them, whatever they are called. What another JAX lowered otherwise stays as it is
in the module, with the derivative of its operations.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives
from jax.interpreters import ad

from bridge.lifting.derivatives.own_lowerings import (
    Aval,
    OwnGraph,
    is_own,
    kind_of,
    own_graphs,
    own_inputs,
    size_arguments,
    unconverted,
    values_broadcast,
    without_sizes,
)
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.call_graph import named_by
from xla_call_module.stablehlo.elements import BROADCASTS, element_dtype, repeated_number
from xla_call_module.stablehlo.modules import tensor_type


@jax.custom_jvp
def _xlogx(value: Any) -> Any:
    """Return `x * log(x)`, which has an infinite derivative at 0, as that of `entr` of JAX."""
    return jax.scipy.special.xlogy(value, value)


@_xlogx.defjvp
def _push_xlogx(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (value,), (tangent,) = primals, tangents
    return _xlogx(value), tangent * (lax.log(value) + 1)


@functools.lru_cache(maxsize=64)
def _random_gammas(shape: tuple[int, ...]) -> tuple[Callable[..., Any], ...]:
    """Return the random numbers of a shape, and their logarithms, as functions of key and order.

    Their dtype is that of the order, or one that JAX draws where none is asked for.
    """

    def drawing(draw: Callable[..., Any], dtype: Any) -> Callable[..., Any]:
        def drawn(key: Any, order: Any) -> Any:
            if dtype is np.float64 and jnp.result_type(float) != dtype:
                raise TypeError("JAX is set to have no float64")
            return draw(key, order, shape, dtype or jnp.result_type(order))

        return drawn

    draws, dtypes = (jax.random.gamma, jax.random.loggamma), (None, np.float32, np.float64)
    return tuple(drawing(draw, dtype) for dtype in dtypes for draw in draws)


def _parts_of_two(function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return a function of two results, and each of these; what is not used is not in a module."""
    return function, lambda x: function(x)[0], lambda x: function(x)[1]


# The functions of JAX that may be lowered to a function of a name: those under `jax.jit` of its
# libraries, those that others are made of, and the definitions of composites.
_NAMED: Mapping[str, tuple[Callable[..., Any], ...]] = {
    "_expn": (jax.scipy.special.expn,),
    "_pinv": (
        jnp.linalg.pinv,
        lambda matrix, rtol: jnp.linalg.pinv(matrix, rtol),
        lambda matrix: jnp.linalg.pinv(matrix, hermitian=True),
        lambda matrix, rtol: jnp.linalg.pinv(matrix, rtol, hermitian=True),
    ),
    "_rel_entr": (jax.scipy.special.rel_entr, jax.scipy.special.kl_div),
    "det": (jnp.linalg.det,),
    "expi": (jax.scipy.special.expi,),
    "expn": (jax.scipy.special.expn,),
    "frexp": _parts_of_two(jnp.frexp),
    "hyp1f1": (jax.scipy.special.hyp1f1,),
    "hyp2f1": (jax.scipy.special.hyp2f1,),
    "hypot": (jnp.hypot,),
    "i0": (jnp.i0,),
    "lgamma_impl": (lax.lgamma,),
    "logit": (jax.scipy.special.logit,),
    "relu": (jax.nn.relu,),
    "relu6": (jax.nn.relu6,),
    "sinc": (jnp.sinc,),
    "slogdet": (
        *_parts_of_two(jnp.linalg.slogdet),
        *_parts_of_two(functools.partial(jnp.linalg.slogdet, method="qr")),
    ),
    "xlog1py": (jax.scipy.special.xlog1py,),
    "xlogy": (jax.scipy.special.xlogy,),
    **{
        f"chlo.{name}.impl": (getattr(lax, name),)
        for name in ("acos", "acosh", "asin", "asinh", "atanh", "cosh", "erf", "erfc", "sinh")
    },
}
# Newer versions of JAX have more.
if _erfcinv := getattr(jax.scipy.special, "erfcinv", None):
    _NAMED = {**_NAMED, "_erfcinv_impl": (_erfcinv,)}
if _log1mexp := getattr(jax.nn, "log1mexp", None):
    _NAMED = {**_NAMED, "log1mexp": (_log1mexp,)}
if _sici := getattr(jax.scipy.special, "sici", None):
    _NAMED = {**_NAMED, "sici": _parts_of_two(_sici)}
# Functions that are lowered to operations without a name: how many arrays they take, and operations
# or functions without which there is none of them.
_UNNAMED: Mapping[str, tuple[int, frozenset[str]]] = {
    "betainc": (3, frozenset({"while", "log_plus_one"})),
    "dawsn": (1, frozenset({"polyval", "sign"})),
    "erfcx": (1, frozenset({"bitcast_convert", "exponential", "divide"})),
    "i0": (1, frozenset({"exponential", "sqrt", "select"})),
    "i1": (1, frozenset({"exponential", "sqrt", "sign"})),
    "gammainc": (2, frozenset({"while", "log", "exponential"})),
    "gammaincc": (2, frozenset({"while", "log", "exponential"})),
    "log_ndtr": (1, frozenset({"log", "minimum", "_where"})),
    "ndtri": (1, frozenset({"log", "sqrt", "_where"})),
    "owens_t": (2, frozenset({"_where", "atan2", "sign"})),
    "poch": (2, frozenset({"gammasgn"})),
    "wofz": (1, frozenset({"complex", "polyval"})),
    "xlog1py": (2, frozenset({"log_plus_one", "multiply", "_where"})),
    "xlogy": (2, frozenset({"log", "multiply", "_where"})),
    "zeta": (2, frozenset({"power", "remainder", "floor"})),
}
_OF_LAX: Mapping[str, tuple[int, frozenset[str]]] = {
    "acos": (1, frozenset({"atan2", "sqrt"})),
    "acosh": (1, frozenset({"log_plus_one", "sqrt", "select"})),
    "asin": (1, frozenset({"atan2", "sqrt"})),
    "asinh": (1, frozenset({"log_plus_one", "sqrt", "sign"})),
    "atanh": (1, frozenset({"abs", "log_plus_one", "select"})),
    "bessel_i0e": (1, frozenset({"abs", "divide", "select", "sqrt"})),
    "bessel_i1e": (1, frozenset({"abs", "divide", "select", "sign", "sqrt"})),
    "cosh": (1, frozenset({"exponential", "log"})),
    "digamma": (1, frozenset({"cosine", "floor", "log_plus_one", "sine"})),
    "erf_inv": (1, frozenset({"log_plus_one", "select", "sqrt"})),
    "erfc": (1, frozenset({"abs", "divide", "exponential", "select"})),
    "lgamma": (1, frozenset({"floor", "log_plus_one", "sine"})),
    # Of complex numbers.
    "abs": (1, frozenset({"abs", "imag", "maximum", "real", "sqrt"})),
    "cos": (1, frozenset({"complex", "cosine", "exponential_minus_one", "sine"})),
    "exp": (1, frozenset({"complex", "cosine", "exponential", "sine"})),
    "log": (1, frozenset({"atan2", "complex", "log"})),
    "log1p": (1, frozenset({"atan2", "complex", "log_plus_one", "sqrt"})),
    "sin": (1, frozenset({"complex", "cosine", "exponential_minus_one", "sine"})),
    "sqrt": (1, frozenset({"complex", "imag", "real", "sqrt"})),
    "square": (1, frozenset({"complex", "imag", "is_finite", "real"})),
    "polygamma": (2, frozenset({"floor", "power", "remainder"})),
    "sinh": (1, frozenset({"exponential_minus_one", "log", "select"})),
}
# Each with its name, those that this JAX has.
_OWN: Mapping[str, tuple[Callable[..., Any], int, frozenset[str]]] = {
    # Before `xlogy`, which of one array has another derivative at 0.
    "xlogx": (_xlogx, 1, frozenset({"log", "multiply", "_where"})),
    **{
        name: (function, *of_function)
        for library, names in ((jax.scipy.special, _UNNAMED), (lax, _OF_LAX))
        for name, of_function in names.items()
        if (function := getattr(library, name, None)) is not None
    },
    "logaddexp2": (jnp.logaddexp2, 2, frozenset({"exponential", "log_plus_one", "maximum"})),
}
if _fresnel := getattr(jax.scipy.special, "fresnel", None):
    _, *_integrals = _parts_of_two(_fresnel)
    _OF_FRESNEL = (1, frozenset({"polyval", "sincospisquaredhalf"}))
    _OWN = {**_OWN, **{f"fresnel {n}": (part, *_OF_FRESNEL) for n, part in enumerate(_integrals)}}
if primitives.nextafter_p in ad.primitive_jvps:  # of which older versions have no derivative
    _OWN = {**_OWN, "nextafter": (lax.nextafter, 2, frozenset({"and", "bitcast_convert", "or"}))}
# Of these dtypes `owens_t` returns float32.
_NARROW = (np.dtype(np.float16), np.dtype(jnp.bfloat16))
_GAMMA = "_gamma"  # the function of random numbers of this distribution
_MAX_EXPONENT = 64
_COMMUTATIVE = ("stablehlo.add", "stablehlo.maximum")


def _pattern(name: str, *operands: Any) -> tuple[Any, ...]:
    return (f"stablehlo.{name}", *operands)


_DIFFERENCE = _pattern("subtract", "x", "y")
# What is known by its operations, by the names of these functions of JAX.
_PATTERNS: Mapping[str, Any] = {
    "logistic": _pattern(
        "divide", 1.0, _pattern("add", 1.0, _pattern("exponential", _pattern("negate", "x")))
    ),
    "logit": _pattern("log", _pattern("divide", "x", _pattern("subtract", 1.0, "x"))),
    "logaddexp": _pattern(
        "select",
        _pattern("compare NE", _DIFFERENCE, _DIFFERENCE),
        _pattern("add", "x", "y"),
        _pattern(
            "add",
            _pattern("maximum", "x", "y"),
            _pattern(
                "log_plus_one",
                _pattern("exponential", _pattern("negate", _pattern("abs", _DIFFERENCE))),
            ),
        ),
    ),
}
_MATCHED: Mapping[str, Callable[..., Any]] = {
    "logaddexp": jnp.logaddexp,
    "logistic": lax.logistic,
    "logit": jax.scipy.special.logit,
}
if _one_minus_square := getattr(lax, "one_minus_square", None):
    _factors = (_pattern("add", 1.0, "x"), _pattern("subtract", 1.0, "x"))
    _PATTERNS = {**_PATTERNS, "one_minus_square": _pattern("multiply", *_factors)}
    _MATCHED = {**_MATCHED, "one_minus_square": _one_minus_square}
_NUMBERED = re.compile(r"_\d+$")
# Ends of the types of arrays of numbers that have derivatives.
_INEXACT = ("f16", "bf16", "f32", "f64", "complex<f32>", "complex<f64>")


@dataclass(frozen=True, slots=True)
class ComposedCall:
    """The operations that compute one call of a function.

    Attributes:
        operations: the operations, in their order; the last one computes the result, and the
            results of the others are used by no other operation.
        inputs: the values of MLIR that the function is called with.
        function: the function of JAX.
    """

    operations: tuple[Any, ...]
    inputs: tuple[Any, ...]
    function: Callable[..., Any]


def find_composed(block: Any, functions: Mapping[str, Any]) -> dict[Any, ComposedCall]:
    """Return the calls of such functions in a block, by their operations."""
    operations = [view.operation for view in block]
    order = {operation: number for number, operation in enumerate(operations)}
    graphs = _OwnGraphs(operations, functions)
    calls: dict[Any, ComposedCall] = {}
    for operation in reversed(operations):
        if operation in calls:
            continue
        found = _by_structure(operation, functions) or graphs.call_of(operation)
        if found is not None:
            function, inputs = found
            made = _made_for(operation, inputs, order)
            calls |= dict.fromkeys(made, ComposedCall(made, inputs, function))
    return calls


_Found = tuple[Callable[..., Any], tuple[Any, ...]]


def _made_for(operation: Any, inputs: Sequence[Any], order: Mapping[Any, int]) -> tuple[Any, ...]:
    """Return the operations whose results are used for that of one operation alone, in order."""
    found = {operation}
    pending = [(-order[operation], operation)]
    seen = {operation}
    while pending:
        _, user = heapq.heappop(pending)  # the last one, so that all are decided that use it
        users = (use.owner for result in user.results for use in result.uses)
        if user != operation and not all(each in found for each in users):
            continue
        found.add(user)
        for operand in user.operands:
            maker = getattr(operand.owner, "operation", operand.owner)
            if operand not in inputs and maker in order and maker not in seen:
                seen.add(maker)
                heapq.heappush(pending, (-order[maker], maker))
    return tuple(sorted(found, key=order.__getitem__))


class _OwnGraphs:
    """The functions that leave no name and may be in a block, as this JAX lowers them."""

    def __init__(self, operations: Sequence[Any], functions: Mapping[str, Any]) -> None:
        self._functions = functions
        kinds = {operation.name.removeprefix("stablehlo.") for operation in operations}
        kinds |= {_NUMBERED.sub("", name) for each in operations for name in named_by(each)}
        self._sought = [(name, *of[:2]) for name, of in _OWN.items() if of[2] <= kinds]
        # By the aval of a result: each function with its graph, by the kind of its last operation.
        self._graphs: dict[Aval, dict[str, list[tuple[Callable[..., Any], OwnGraph]]]] = {}

    def call_of(self, operation: Any) -> _Found | None:
        """Return the function of which an operation computes the result, and what it takes."""
        if not self._sought or len(operation.results) != 1:
            return None
        (result,) = operation.results
        if (aval := _aval_of(result)) is None:
            return None
        if aval not in self._graphs:
            self._graphs[aval] = self._lowered(aval)
        for function, graph in self._graphs[aval].get(kind_of(operation), ()):
            inputs = own_inputs(result, graph, self._functions)
            if inputs is None and len(graph.arguments) > 1:
                inputs = self._broadcast_inputs(result, function, graph)
            if inputs is not None:
                return function, inputs
        return None

    def _lowered(self, aval: Aval) -> dict[str, list[tuple[Callable[..., Any], OwnGraph]]]:
        shape, dtype = aval
        by_kinds: dict[str, list[tuple[Callable[..., Any], OwnGraph]]] = {}
        for name, function, arity in self._sought:
            for each in _argument_dtypes(name, dtype):
                for graph in own_graphs(function, ((shape, each),) * arity):
                    for definition in graph.with_definitions():
                        by_kinds.setdefault(definition.kind, []).append((function, definition))
        return by_kinds

    def _broadcast_inputs(
        self, result: Any, function: Callable[..., Any], graph: OwnGraph
    ) -> tuple[Any, ...] | None:
        """Return what a function takes that is broadcast on the way to its result."""
        alike = own_inputs(result, graph, self._functions, through_broadcasts=True)
        if alike is None:
            return None
        for inputs in itertools.product(*map(values_broadcast, alike)):
            avals = [_aval_of(value, keeps_ones=True) for value in inputs]
            for own in own_graphs(function, tuple(aval for aval in avals if aval is not None)):
                if own_inputs(result, own, self._functions) == inputs:
                    return inputs
        return None


def _argument_dtypes(name: str, result: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
    """Return the dtypes of which several operations make the result of a function."""
    if name == "abs":
        return tuple(np.dtype(f"c{2 * size}") for size in (4, 8) if result == np.dtype(f"f{size}"))
    if name in ("exp", "square") and result.kind != "c":
        return ()
    return (result, *(_NARROW if name == "owens_t" and result == np.float32 else ()))


def _aval_of(value: Any, *, keeps_ones: bool = False) -> Aval | None:
    """Return an aval of the dtype and the rank of a value; None of what has no derivative."""
    text = str(value.type)
    if not text.startswith("tensor<") or not text.removesuffix(">").endswith(_INEXACT):
        return None
    type_ = tensor_type(text)
    ones = (1,) if keeps_ones else ()
    shape = tuple(size if size is None or size in ones else 2 for size in type_.shape)
    return shape, element_dtype(type_.element)


def _by_structure(operation: Any, functions: Mapping[str, Any]) -> _Found | None:
    """Return the function that an operation computes by what it is made of, and its arguments."""
    if (power := _integer_exponent(operation) or _power_of(operation)) is not None:
        return power
    matched: dict[str, Any] = {}
    for name, pattern in _PATTERNS.items():
        if operation.name != pattern[0]:
            continue
        result = operation.results[0]
        is_inexact = tensor_type(str(result.type)).element in _INEXACT
        is_match = is_inexact and _matches(result, pattern, matched, functions)
        if is_match and all(value.type == result.type for value in matched.values()):
            return _MATCHED[name], tuple(matched[key] for key in sorted(matched))
        matched.clear()
    return None


def _integer_exponent(operation: Any) -> _Found | None:
    """Return a power of integers, and what it takes, where JAX converts these for StableHLO.

    Its derivative at 0 is a number, which is not so for an exponent that may be any.
    """
    if operation.name != "stablehlo.power":
        return None
    value, exponent = operation.operands
    axes = list(range(len(tensor_type(str(exponent.type)).shape)))
    while getattr(exponent.owner, "name", "") in BROADCASTS:
        axes = [axes[axis] for axis in exponent.owner.attributes["broadcast_dimensions"]]
        exponent = exponent.owner.operands[0]
    if getattr(exponent.owner, "name", "") != "stablehlo.convert":
        return None
    (integer,) = exponent.owner.operands
    if element_dtype(tensor_type(str(integer.type)).element).kind not in "iu":
        return None

    def power(value: Any, integer: Any) -> Any:
        return lax.pow(value, lax.broadcast_in_dim(integer, value.shape, axes))

    return power, (value, integer)


def _power_of(operation: Any) -> _Found | None:
    """Return a negative power, and the value, of which an operation is the inverse of the product.

    The derivative of such a quotient overflows before that of the power does. The product has to be
    made as `jax.lax.integer_pow` makes it, since another order is rounded otherwise.
    """
    if operation.name != "stablehlo.divide" or repeated_number(operation.operands[0]) != 1:
        return None
    value, product = _product(operation.operands[1], _MAX_EXPONENT)
    exponent = product.count("x")
    if exponent == 1 or product != _power(exponent):
        return None
    return functools.partial(lax.integer_pow, y=-exponent), (value,)


def _product(value: Any, most: int) -> tuple[Any, str]:
    """Return the value of which another one is a product with itself, and the product as text."""
    maker = value.owner
    if getattr(maker, "name", "") != "stablehlo.multiply" or most < 2:
        return value, "x"
    (left, one), (right, other) = (_product(part, most // 2) for part in maker.operands)
    return (left, _times(one, other)) if left == right else (value, "x")


def _power(exponent: int) -> str:
    """Return the product that JAX makes of a power, by squaring."""
    result, square = "", "x"
    while exponent:
        if exponent & 1:
            result = _times(result, square) if result else square
        exponent >>= 1
        square = _times(square, square)
    return result


def _times(one: str, other: str) -> str:
    return f"({min(one, other)}{max(one, other)})"


def _matches(
    value: Any, pattern: Any, matched: dict[str, Any], functions: Mapping[str, Any]
) -> bool:
    """Return whether a value is made as a pattern says, and note down what its variables are.

    A pattern is the name of an operation, of a comparison with its direction, and the patterns of
    its operands; the name of a variable; the number that a constant repeats; or None for anything.
    """
    if pattern is None:
        return True
    value = unconverted(value)
    if isinstance(pattern, str):
        known = matched.setdefault(pattern, value)
        return (
            _is_same(known, value) or repeated_number(known) == repeated_number(value) is not None
        )
    if isinstance(pattern, float):
        return repeated_number(value) == pattern
    kind, *operands = pattern
    *_, value = values_broadcast(value)
    maker = value.owner
    name = getattr(maker, "name", "")
    if name == "stablehlo.compare":
        name += f" {comparison_direction(maker)}"
    given = [] if name != kind else without_sizes(maker.operation, functions)
    if len(given) != len(operands):
        return False
    for order in (operands, operands[::-1]) if kind in _COMMUTATIVE else (operands,):
        trial = dict(matched)
        if all(_matches(*pair, trial, functions) for pair in zip(given, order, strict=True)):
            matched.update(trial)
            return True
    return False


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are one, or one that is broadcast alike."""
    if one == other:
        return True
    makers = [value.owner for value in (one, other)]
    if one.type != other.type or any(getattr(m, "name", "") not in BROADCASTS for m in makers):
        return False
    dimensions, others = (maker.attributes["broadcast_dimensions"] for maker in makers)
    return bool(dimensions == others) and _is_same(*(maker.operands[0] for maker in makers))


def find_named(name: str, function: Any, functions: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Return the function of JAX that a function of a module computes; None if it is none."""
    known = _NUMBERED.sub("", name)
    if known not in _NAMED and known != _GAMMA:
        return None
    texts = [str(each) for each in (*function.type.inputs, *function.type.results)]
    if not function.type.results or "!stablehlo.token" in texts:
        return None
    block, sizes = function.regions[0].blocks[0], size_arguments(function)
    given = [a for number, a in enumerate(block.arguments) if number not in sizes]
    types = [tensor_type(str(value.type)) for value in given]
    avals = tuple((type_.shape, element_dtype(type_.element)) for type_ in types)
    for own in _candidates(known, tensor_type(texts[-1]).shape):
        if any(is_own(function, graph, functions) for graph in own_graphs(own, avals, known)):
            return own
    return None


def _candidates(known: str, shape: tuple[int | None, ...]) -> tuple[Callable[..., Any], ...]:
    """Return the functions of JAX that may be lowered to a function of a name."""
    if known != _GAMMA:
        return _NAMED[known]
    return () if None in shape else _random_gammas(tuple(size or 0 for size in shape))
