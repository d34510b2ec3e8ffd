"""Functions of each element whose derivative their operations do not say.

CHLO defines functions such as `jax.lax.erfc` by polynomials on parts of their domain, and selects
one for each element. In reverse mode the derivative of what is not selected may be infinite, and
its product with 0 is NaN. The operations of one call have its place in the source, whose last name
is that of the function.

Others, such as `jax.nn.relu`, have a derivative of their own where two branches meet. They are
functions of the module, by their names. `jax.lax.logistic`, `jax.numpy.logaddexp` and negative
powers are neither, and are known by their operations alone; `jax.scipy.special.log_ndtr` and its
like by the last of them.

Where JAX lowers its function to the same operations (`own_lowerings.py`), it is called instead of
them, whatever they are called. Otherwise what is computed stays as it is in the module, and only
the derivative is that of JAX's function; that the operations compute it is tried on numbers
(`trial_on_numbers.py`), since another version of JAX may have written them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives
from jax.interpreters import ad
from scipy import special

from bridge.lifting.own_lowerings import (
    Aval,
    OwnGraph,
    is_own,
    own_graphs,
    own_inputs,
    size_arguments,
    unconverted,
    without_sizes,
)
from bridge.lifting.trial_on_numbers import block_agrees, operations_agree
from xla_call_module.stablehlo.attributes import comparison_direction
from xla_call_module.stablehlo.call_graph import named_by
from xla_call_module.stablehlo.elements import BROADCASTS, element_dtype, repeated_number
from xla_call_module.stablehlo.modules import tensor_type
from xla_call_module.stablehlo.operation_locations import describe_primitive

__all__ = [
    "NAMES",
    "ComposedCall",
    "NamedFunction",
    "find_composed",
    "find_named",
]


@jax.custom_jvp
def _xlogx(value: Any) -> Any:
    """Return `x * log(x)`, which has an infinite derivative at 0, as that of `entr` of JAX."""
    return jax.scipy.special.xlogy(value, value)


@_xlogx.defjvp
def _push_xlogx(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    (value,), (tangent,) = primals, tangents
    return _xlogx(value), tangent * (lax.log(value) + 1)


# Each function of JAX, and what scipy has for it.
_FUNCTIONS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "acos": (lax.acos, np.arccos),
    "acosh": (lax.acosh, np.arccosh),
    "asin": (lax.asin, np.arcsin),
    "asinh": (lax.asinh, np.arcsinh),
    "atanh": (lax.atanh, np.arctanh),
    "bessel_i0e": (lax.bessel_i0e, special.i0e),
    "bessel_i1e": (lax.bessel_i1e, special.i1e),
    "cosh": (lax.cosh, np.cosh),
    "digamma": (lax.digamma, special.digamma),
    "erf": (lax.erf, special.erf),
    "erf_inv": (lax.erf_inv, special.erfinv),
    "erfc": (lax.erfc, special.erfc),
    "lgamma": (lax.lgamma, special.gammaln),
    "log_ndtr": (jax.scipy.special.log_ndtr, special.log_ndtr),
    "logaddexp2": (jnp.logaddexp2, np.logaddexp2),
    "polygamma": (lax.polygamma, special.polygamma),
    "sinh": (lax.sinh, np.sinh),
    "xlog1py": (jax.scipy.special.xlog1py, special.xlog1py),
    "xlogx": (_xlogx, lambda value: special.xlogy(value, value)),
    "xlogy": (jax.scipy.special.xlogy, special.xlogy),
    "zeta": (jax.scipy.special.zeta, special.zeta),
}
# Newer versions of JAX have more.
if _owens_t := getattr(jax.scipy.special, "owens_t", None):
    _FUNCTIONS = {**_FUNCTIONS, "owens_t": (_owens_t, special.owens_t)}
if _erfcx := getattr(jax.scipy.special, "erfcx", None):
    _FUNCTIONS = {**_FUNCTIONS, "erfcx": (_erfcx, special.erfcx)}
_ARITIES = {"polygamma": 2, "zeta": 2}  # of those that take more than one array
# Functions under `jax.jit` of JAX's libraries that have a derivative of their own.
_NAMED: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "_rel_entr": (jax.scipy.special.rel_entr, special.rel_entr),
    "expi": (jax.scipy.special.expi, special.expi),
    "expn": (jax.scipy.special.expn, special.expn),
    "hyp1f1": (jax.scipy.special.hyp1f1, special.hyp1f1),
    "hyp2f1": (jax.scipy.special.hyp2f1, special.hyp2f1),
    "hypot": (jnp.hypot, np.hypot),
    "i0": (jnp.i0, special.i0),
    "lgamma_impl": (lax.lgamma, special.gammaln),
    "logit": (jax.scipy.special.logit, special.logit),
    "relu": (jax.nn.relu, lambda value: np.maximum(value, 0)),
    "relu6": (jax.nn.relu6, lambda value: np.clip(value, 0, 6)),
    "sinc": (jnp.sinc, np.sinc),
    "xlog1py": (jax.scipy.special.xlog1py, special.xlog1py),
    "xlogy": (jax.scipy.special.xlogy, special.xlogy),
}
if _log1mexp := getattr(jax.nn, "log1mexp", None):
    _NAMED = {**_NAMED, "log1mexp": (_log1mexp, lambda value: np.log(-np.expm1(-value)))}


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


def _of_any_shape(*functions: Callable[..., Any]) -> Callable[..., tuple[Callable[..., Any], ...]]:
    return lambda _: functions


def _parts_of_two(function: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
    """Return a function of two results, and each of these; what is not used is not in a module."""
    return function, lambda x: function(x)[0], lambda x: function(x)[1]


# Those that other functions of JAX are made of, by which of JAX's functions, of a result's shape,
# may be lowered to them.
_PRIVATE: Mapping[str, Callable[[tuple[int, ...]], tuple[Callable[..., Any], ...]]] = {
    "_expn": _of_any_shape(jax.scipy.special.expn),
    "_gamma": _random_gammas,
    "_rel_entr": _of_any_shape(jax.scipy.special.rel_entr, jax.scipy.special.kl_div),
    "_pinv": _of_any_shape(
        jnp.linalg.pinv,
        lambda matrix, rtol: jnp.linalg.pinv(matrix, rtol),
        lambda matrix: jnp.linalg.pinv(matrix, hermitian=True),
        lambda matrix, rtol: jnp.linalg.pinv(matrix, rtol, hermitian=True),
    ),
    "det": _of_any_shape(jnp.linalg.det),
    "frexp": _of_any_shape(*_parts_of_two(jnp.frexp)),
    "slogdet": _of_any_shape(
        *_parts_of_two(jnp.linalg.slogdet),
        *_parts_of_two(functools.partial(jnp.linalg.slogdet, method="qr")),
    ),
}
if _erfcinv := getattr(jax.scipy.special, "erfcinv", None):
    _PRIVATE = {**_PRIVATE, "_erfcinv_impl": _of_any_shape(_erfcinv)}
if _sici := getattr(jax.scipy.special, "sici", None):
    _PRIVATE = {**_PRIVATE, "sici": _of_any_shape(*_parts_of_two(_sici))}
_OF_SHAPE = ("_gamma",)  # those of which the shape has to be known
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
    "poch": (2, frozenset({"gammasgn"})),
    "wofz": (1, frozenset({"complex", "polyval"})),
    "zeta": (2, frozenset({"power", "remainder", "floor"})),
}
# Each with its name, those that this JAX has.
_OWN: Mapping[str, tuple[Callable[..., Any], int, frozenset[str]]] = {
    **{
        name: (function, *of_function)
        for name, of_function in _UNNAMED.items()
        if (function := getattr(jax.scipy.special, name, None)) is not None
    },
    "acos": (lax.acos, 1, frozenset({"atan2", "sqrt"})),
    "asin": (lax.asin, 1, frozenset({"atan2", "sqrt"})),
    "polygamma": (lax.polygamma, 2, frozenset({"floor", "power", "remainder"})),
}
if _fresnel := getattr(jax.scipy.special, "fresnel", None):
    _, *_integrals = _parts_of_two(_fresnel)
    _OF_FRESNEL = (1, frozenset({"polyval", "sincospisquaredhalf"}))
    _OWN = {**_OWN, **{f"fresnel {n}": (part, *_OF_FRESNEL) for n, part in enumerate(_integrals)}}
if primitives.nextafter_p in ad.primitive_jvps:  # of which older versions have no derivative
    _OWN = {**_OWN, "nextafter": (lax.nextafter, 2, frozenset({"and", "bitcast_convert", "or"}))}
_MAX_EXPONENT = 64
# Operations of a function that is known by its last ones.
_MAX_OPERATIONS = 400
_COMMUTATIVE = ("stablehlo.add", "stablehlo.maximum")


def _pattern(name: str, *operands: Any) -> tuple[Any, ...]:
    return (f"stablehlo.{name}", *operands)


_DIFFERENCE = _pattern("subtract", "x", "y")
_ABOVE = _pattern("compare GT", "x", None)
_MAGNITUDE = (_pattern("abs", "x"),)
_SCALED = _pattern("log_plus_one", _pattern("exponential", _pattern("multiply", None, None)))
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
# The last operations of functions that are tried on numbers besides; None is anything.
_ENDINGS: Mapping[str, Any] = {
    "bessel_i0e": _pattern(
        "select",
        _pattern("compare LE", _pattern("abs", "x"), 8.0),
        None,
        _pattern("divide", None, _pattern("sqrt", _pattern("abs", "x"))),
    ),
    "erfcx": _pattern(
        "select", _ABOVE, _pattern("divide", None, _pattern("multiply", "x", None)), None
    ),
    "log_ndtr": (
        "func.call",
        _ABOVE,
        _pattern("negate", None),
        ("func.call", _ABOVE, _pattern("log", None), None),
    ),
    "logaddexp2": _pattern(
        "select",
        _pattern("compare NE", _DIFFERENCE, _DIFFERENCE),
        _pattern("add", "x", "y"),
        _pattern("add", _pattern("maximum", "x", "y"), _pattern("multiply", None, _SCALED)),
    ),
    "owens_t": (
        "func.call",
        _pattern("or", _pattern("compare NE", "y", "y"), _pattern("compare NE", *_MAGNITUDE * 2)),
        None,
        _pattern("multiply", _pattern("sign", "y"), None),
    ),
    "xlog1py": ("func.call", None, _pattern("multiply", "x", _pattern("log_plus_one", "y")), 0.0),
    "xlogx": ("func.call", None, _pattern("multiply", "x", _pattern("log", "x")), 0.0),
    "xlogy": ("func.call", None, _pattern("multiply", "x", _pattern("log", "y")), 0.0),
}
_REAL, _IMAGINARY = _pattern("real", "y"), _pattern("imag", "y")
_COMPLEX_LOGS: Mapping[str, Any] = {
    name: _pattern("complex", None, _pattern("atan2", _IMAGINARY, real))
    for name, real in (("xlog1py", _pattern("add", _REAL, 1.0)), ("xlogy", _REAL))
}
# The same of other dtypes: JAX exports logarithms of complex numbers as operations on their parts,
# and computes `owens_t` of narrow floats in wider ones.
_OTHER_ENDINGS: Mapping[str, Any] = {
    **{
        name: ("func.call", None, _pattern("multiply", "x", log), None)
        for name, log in _COMPLEX_LOGS.items()
    },
    "owens_t": (
        *_ENDINGS["owens_t"][:-1],
        _pattern("multiply", _pattern("convert", _pattern("sign", "y")), None),
    ),
}
_NUMBERED = re.compile(r"_\d+$")
# Ends of the types of arrays of numbers that have derivatives.
_INEXACT = ("f16", "bf16", "f32", "f64", "complex<f32>", "complex<f64>")
# The names, as the bytes of a module have them.
NAMES = tuple(name.encode() for name in _FUNCTIONS)


@dataclass(frozen=True, slots=True)
class ComposedCall:
    """The operations that compute one call of a function.

    Attributes:
        name: the name of the function.
        operations: the operations, in their order; the last one computes the result.
        inputs: the values of MLIR that the function is called with.
        function: the function of JAX, if it is lowered to the same operations here; None if not.
    """

    name: str
    operations: tuple[Any, ...]
    inputs: tuple[Any, ...]
    function: Callable[..., Any] | None = None

    @property
    def known(self) -> Callable[..., Any]:
        """The function of JAX that has the derivative."""
        return _FUNCTIONS[self.name][0]


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """The function of JAX that a function of a module computes.

    Attributes:
        known: the function of JAX.
        is_own: whether this JAX lowers it to the same operations.
    """

    known: Callable[..., Any]
    is_own: bool


def find_composed(
    block: Any, functions: Mapping[str, Any], *, has_names: bool
) -> dict[Any, ComposedCall]:
    """Return the calls of such functions in a block, by their operations.

    The last operation computes the result. What a call shares with others is not among them.

    Args:
        block: the block.
        functions: the functions of the module.
        has_names: whether the module has their names anywhere.
    """
    operations = [view.operation for view in block]
    by_places = _by_places(operations, functions) if has_names else []
    calls = {operation: call for call in by_places for operation in call.operations}
    rest = [operation for operation in operations if operation not in calls]
    calls.update(_by_own_lowerings(rest, functions))
    order = {operation: number for number, operation in enumerate(operations)}
    for operation in operations:
        if operation not in calls:
            for call in _by_structure(operation, functions):
                calls.setdefault(operation, call)
            for call in _by_endings(operation, order, functions):
                calls.setdefault(operation, call)
    return calls


def _by_own_lowerings(
    operations: Sequence[Any], functions: Mapping[str, Any]
) -> Iterator[tuple[Any, ComposedCall]]:
    """Yield the calls of functions that leave no name, by the operations that end them."""
    kinds = {operation.name.removeprefix("stablehlo.") for operation in operations}
    kinds |= {_NUMBERED.sub("", name) for each in operations for name in named_by(each)}
    sought = [(name, *of[:2]) for name, of in _OWN.items() if of[2] <= kinds]
    if not sought:
        return
    by_avals: dict[Aval, list[tuple[str, Callable[..., Any], OwnGraph]]] = {}
    for operation in operations:
        if len(operation.results) != 1 or (aval := _aval_of(operation.results[0])) is None:
            continue
        if aval not in by_avals:
            by_avals[aval] = [
                (name, function, graph)
                for name, function, arity in sought
                for graph in own_graphs(function, (aval,) * arity)
            ]
        for name, function, graph in by_avals[aval]:
            if (inputs := own_inputs(operation.results[0], graph, functions)) is not None:
                yield operation, ComposedCall(name, (operation,), inputs, function)
                break


def _aval_of(value: Any, *, keeps_ones: bool = False) -> Aval | None:
    """Return an aval of the dtype and the rank of a value; None of what has no derivative."""
    text = str(value.type)
    if not text.startswith("tensor<") or not text.removesuffix(">").endswith(_INEXACT):
        return None
    type_ = tensor_type(text)
    ones = (1,) if keeps_ones else ()
    shape = tuple(size if size is None or size in ones else 2 for size in type_.shape)
    return shape, element_dtype(type_.element)


def _by_endings(
    operation: Any, order: Mapping[Any, int], functions: Mapping[str, Any]
) -> Iterator[ComposedCall]:
    """Yield the call that an operation ends, known by its last operations and tried on numbers."""
    for name, pattern in (*_ENDINGS.items(), *_OTHER_ENDINGS.items()):
        matched: dict[str, Any] = {}
        if name not in _FUNCTIONS or operation.name != pattern[0]:
            continue
        if not _matches(operation.results[0], pattern, matched, functions):
            continue
        variables = [_before_broadcasts(matched[key]) for key in sorted(matched)]
        for inputs in itertools.product(*variables):
            made = _made_of(operation, inputs, order, functions)
            checked = _checked(ComposedCall(name, made, inputs), functions) if made else None
            if checked is not None:
                yield checked
                return


def _before_broadcasts(value: Any) -> Iterator[Any]:
    """Yield a value, and those that are broadcast to it."""
    yield value
    while getattr(value.owner, "name", "") in BROADCASTS:
        value = unconverted(value.owner.operands[0])
        yield value


def _made_of(
    operation: Any, inputs: Sequence[Any], order: Mapping[Any, int], functions: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the operations between inputs and a result, in order; none if it has other inputs."""
    operations = {operation}
    pending = [operation]
    while pending:
        for operand in without_sizes(pending.pop(), functions):
            maker = getattr(operand.owner, "operation", operand.owner)
            if operand in inputs or getattr(maker, "name", "") == "stablehlo.constant":
                continue
            if maker not in order or len(maker.regions) or len(operations) > _MAX_OPERATIONS:
                return ()
            if maker not in operations:
                operations.add(maker)
                pending.append(maker)
    return tuple(sorted(operations, key=order.__getitem__))


def _by_structure(operation: Any, functions: Mapping[str, Any]) -> Iterator[ComposedCall]:
    """Yield the call of which an operation computes the result, known by what it is made of."""
    power = _power_of(operation)
    if power is not None:
        value, exponent = power
        function = functools.partial(lax.integer_pow, y=exponent)
        yield ComposedCall("integer_pow", (operation,), (value,), function)
        return
    matched: dict[str, Any] = {}
    for name, pattern in _PATTERNS.items():
        if operation.name != pattern[0]:
            continue
        result = operation.results[0]
        is_inexact = tensor_type(str(result.type)).element in _INEXACT
        is_match = is_inexact and _matches(result, pattern, matched, functions)
        if is_match and all(value.type == result.type for value in matched.values()):
            inputs = tuple(matched[key] for key in sorted(matched))
            yield ComposedCall(name, (operation,), inputs, _MATCHED[name])
            return
        matched.clear()


def _power_of(operation: Any) -> tuple[Any, int] | None:
    """Return the value of which an operation is the inverse of a power, and the exponent.

    The derivative of such a quotient overflows before that of the power does. The product has to be
    made as `jax.lax.integer_pow` makes it, since another order is rounded otherwise.
    """
    if operation.name != "stablehlo.divide" or repeated_number(operation.operands[0]) != 1:
        return None
    value, product = _product(operation.operands[1], _MAX_EXPONENT)
    exponent = product.count("x")
    return (value, -exponent) if exponent > 1 and product == _power(exponent) else None


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
    *_, value = _before_broadcasts(value)
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


def _size_operations(operations: Sequence[Any]) -> set[Any]:
    """Return the operations of a block that compute sizes of dimensions, which others share."""
    sizes: set[Any] = set()
    for operation in operations:
        makers = [getattr(o.owner, "operation", o.owner) for o in operation.operands]
        computed = [m for m in makers if getattr(m, "name", "") != "stablehlo.constant"]
        of_sizes = bool(computed) and all(
            maker in sizes or (not hasattr(maker, "operands") and _is_size(operand))
            for maker, operand in zip(makers, operation.operands, strict=True)
            if maker in computed
        )
        are_sizes = of_sizes and not operation.name.startswith("stablehlo.dynamic_")
        if operation.name == "stablehlo.get_dimension_size" or are_sizes:
            sizes.add(operation)
    return sizes


def _is_size(value: Any) -> bool:
    """Return whether a value may be the size of a dimension: a single integer."""
    type_ = tensor_type(str(value.type))
    return not type_.shape and element_dtype(type_.element).kind in "iu"


def _by_places(operations: Sequence[Any], functions: Mapping[str, Any]) -> list[ComposedCall]:
    """Return the calls whose operations have one place in the source."""
    sizes = _size_operations(operations)
    named = [
        (operation, describe_primitive(operation))
        for operation in operations
        if operation.name != "stablehlo.constant" and operation not in sizes
    ]
    runs = itertools.groupby(
        named, lambda pair: (pair[1], str(pair[0].location) if pair[1] in _FUNCTIONS else "")
    )
    calls: list[ComposedCall] = []
    for (name, _), run in runs:
        if name in _FUNCTIONS:
            calls += _calls_of(name, [operation for operation, _ in run], functions)
    return calls


def find_named(name: str, function: Any, functions: Mapping[str, Any]) -> NamedFunction | None:
    """Return the known function that a function of a module computes; None if it is none.

    Args:
        name: the name of what it was traced from: its own, or of `main` that of the module.
        function: the function.
        functions: all of them.
    """
    known = _NUMBERED.sub("", name)
    if known not in _NAMED and known not in _PRIVATE:
        return None
    texts = [str(each) for each in (*function.type.inputs, *function.type.results)]
    if not function.type.results or "!stablehlo.token" in texts:
        return None
    block, sizes = function.regions[0].blocks[0], size_arguments(function)
    given = [a for number, a in enumerate(block.arguments) if number not in sizes]
    results = [tensor_type(str(result)) for result in function.type.results]
    types = [tensor_type(str(value.type)) for value in given]
    avals = tuple((type_.shape, element_dtype(type_.element)) for type_ in types)
    for own in _candidates(known, results[0].shape):
        if any(is_own(function, graph, functions) for graph in own_graphs(own, avals, known)):
            return NamedFunction(own, is_own=True)
    if known not in _NAMED or len({*types, *results}) != 1 or len(given) not in (1, 2):
        return None
    named, expected = _NAMED[known]
    agrees = len(results) == 1 and block_agrees(block, given, expected, functions)
    return NamedFunction(named, is_own=False) if agrees else None


def _candidates(known: str, shape: tuple[int | None, ...]) -> tuple[Callable[..., Any], ...]:
    """Return the functions of JAX that may be lowered to a function of a name."""
    if known not in _PRIVATE:
        return (_NAMED[known][0],)
    if None in shape and known in _OF_SHAPE:
        return ()
    return _PRIVATE[known](tuple(size or 0 for size in shape))


def _calls_of(
    name: str, run: Sequence[Any], functions: Mapping[str, Any]
) -> Iterator[ComposedCall]:
    """Yield the calls in a run of operations that have one place, such as that of a loop."""
    kinds = [operation.name for operation in run]
    for length in range(2, len(run) + 1):
        if len(run) % length == 0 and kinds == kinds[:length] * (len(run) // length):
            parts = [tuple(run[at : at + length]) for at in range(0, len(run), length)]
            calls = [_call_of(name, part, functions) for part in parts]
            if all(call is not None for call in calls):
                yield from (call for call in calls if call is not None)
                return


def _call_of(
    name: str, operations: tuple[Any, ...], functions: Mapping[str, Any]
) -> ComposedCall | None:
    """Return the call that some operations compute; None if they compute something else."""
    made = {result for operation in operations for result in operation.results}
    *inner, last = operations
    if any(len(operation.regions) or len(operation.results) != 1 for operation in operations):
        return None
    ids = set(operations)
    if any(use.owner not in ids for op in inner for use in op.results[0].uses):
        return None
    inputs = dict.fromkeys(
        operand
        for operation in operations
        for operand in without_sizes(operation, functions)
        if operand not in made and getattr(operand.owner, "name", "") != "stablehlo.constant"
    )
    if any(value.type != last.results[0].type for value in inputs):
        return None
    if len(inputs) != _ARITIES.get(name, 1):
        return None
    return _checked(ComposedCall(name, operations, tuple(inputs)), functions)


def _checked(call: ComposedCall, functions: Mapping[str, Any]) -> ComposedCall | None:
    """Return a call, with its function if JAX lowers it so; None if it computes something else."""
    result = call.operations[-1].results[0]
    is_broadcast = any(value.type != result.type for value in call.inputs)
    known = [_aval_of(value, keeps_ones=is_broadcast) for value in call.inputs]
    if any(aval is None for aval in known):
        return None
    avals = tuple(aval for aval in known if aval is not None)
    for graph in own_graphs(call.known, avals):
        inputs = own_inputs(result, graph, functions)
        if inputs is not None and set(inputs) == set(call.inputs):
            return replace(call, inputs=inputs, function=call.known)
    if is_broadcast or avals[0][1].kind == "c":  # what is tried are real numbers of one shape
        return None
    expected = _FUNCTIONS[call.name][1]
    agrees = operations_agree(call.operations, call.inputs, expected, functions)
    return call if agrees else None
