"""Functions of each element whose derivative their operations do not say.

CHLO defines functions such as `jax.lax.erfc` by polynomials on parts of their domain, and selects
one for each element. In reverse mode the derivative of what is not selected may be infinite, and
its product with 0 is NaN. The operations of one call have its place in the source, whose last name
is that of the function.

Others, such as `jax.nn.relu`, have a derivative of their own where two branches meet. They are
functions of the module, by their names. `jax.lax.logistic`, `jax.numpy.logaddexp` and negative
powers are neither, and are known by their operations alone; `jax.scipy.special.log_ndtr` and its
like by the last of them.

Where JAX lowers its function of the name to the same operations, it is called instead of them.
Otherwise what is computed stays as it is in the module, and only the derivative is that of JAX's
function; that the operations compute this function is tried on numbers.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.custom_derivatives import SymbolicZero
from scipy import special

from bridge.core.narrowing import x64_if_needed
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.attributes import comparison_direction, value_attributes
from xla_call_module.stablehlo.call_graph import COMPOSITE, named_by
from xla_call_module.stablehlo.elements import (
    element_dtype,
    read_elements,
    read_splat,
    repeated_number,
)
from xla_call_module.stablehlo.modules import (
    find_main,
    functions_of,
    open_module,
    splat,
    tensor_type,
)
from xla_call_module.stablehlo.operation_locations import describe_primitive

__all__ = [
    "NAMES",
    "ComposedCall",
    "composed_function",
    "find_composed",
    "size_arguments",
    "with_derivative",
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
_MAX_EXPONENT = 64
# Operations of a function that is known by its last ones.
_MAX_OPERATIONS = 400
# How many of the operands of an operation are not the sizes of its result.
_WITH_SIZES = {"stablehlo.dynamic_broadcast_in_dim": 1, "stablehlo.dynamic_reshape": 1}
_COMMUTATIVE = ("stablehlo.add", "stablehlo.maximum")


def _pattern(name: str, *operands: Any) -> tuple[Any, ...]:
    return (f"stablehlo.{name}", *operands)


_DIFFERENCE = _pattern("subtract", "x", "y")
_ABOVE = _pattern("compare GT", "x", None)
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
    "xlog1py": ("func.call", None, _pattern("multiply", "x", _pattern("log_plus_one", "y")), 0.0),
    "xlogx": ("func.call", None, _pattern("multiply", "x", _pattern("log", "x")), 0.0),
    "xlogy": ("func.call", None, _pattern("multiply", "x", _pattern("log", "y")), 0.0),
}
_SYMBOL = re.compile(r"(?<=@)[\w.]+")
_NUMBERED = re.compile(r"_\d+$")
# The names, as the bytes of a module have them.
NAMES = tuple(name.encode() for name in _FUNCTIONS)
_SAMPLES = (0.1, 0.3, 0.47, 0.7, 0.9, 1.0, 1.3, 2.0, 2.6, 3.0, 4.2, 6.5, -0.2, -0.6, -0.8, -1.7)
_MIN_SAMPLES = 4
_TOLERANCE = 2e-2  # of bfloat16


@dataclass(frozen=True, slots=True)
class ComposedCall:
    """The operations that compute one call of a function.

    Attributes:
        name: the name of the function.
        operations: the operations, in their order; the last one computes the result.
        inputs: the values of MLIR that the function is called with.
        exponent: that of a power.
    """

    name: str
    operations: tuple[Any, ...]
    inputs: tuple[Any, ...]
    exponent: int = 1

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function of JAX, if it is lowered to the same operations here."""
        if self.name == "integer_pow":
            return functools.partial(lax.integer_pow, y=self.exponent)
        if self.name in _MATCHED:
            return _MATCHED[self.name]
        dtype = element_dtype(tensor_type(str(self.inputs[0].type)).element)
        if _signature(self.operations) != _own_signature(self.name, dtype, len(self.inputs)):
            return None
        return _FUNCTIONS[self.name][0]


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
    by_places = _by_places(operations) if has_names else []
    calls = {operation: call for call in by_places for operation in call.operations}
    order = {operation: number for number, operation in enumerate(operations)}
    for operation in operations:
        for call in _by_structure(operation):
            calls.setdefault(operation, call)
        for call in _by_endings(operation, order, functions):
            calls.setdefault(operation, call)
    return calls


def _by_endings(
    operation: Any, order: Mapping[Any, int], functions: Mapping[str, Any]
) -> Iterator[ComposedCall]:
    """Yield the call that an operation ends, known by its last operations and tried on numbers."""
    for name, pattern in _ENDINGS.items():
        matched: dict[str, Any] = {}
        if name not in _FUNCTIONS or operation.name != pattern[0]:
            continue
        if not _matches(operation.results[0], pattern, matched):
            continue
        inputs = tuple(matched[key] for key in sorted(matched))
        made = _made_of(operation, inputs, order)
        call = ComposedCall(name, made, inputs)
        types = {value.type for value in (*inputs, *operation.results)}
        if made and len(types) == 1 and _is_the_function(call, functions):
            yield call
            return


def _made_of(operation: Any, inputs: Sequence[Any], order: Mapping[Any, int]) -> tuple[Any, ...]:
    """Return the operations between inputs and a result, in order; none if it has other inputs."""
    found = {operation}
    pending = [operation]
    while pending:
        for operand in _without_sizes(pending.pop()):
            maker = getattr(operand.owner, "operation", operand.owner)
            if operand in inputs or getattr(maker, "name", "") == "stablehlo.constant":
                continue
            if maker not in order or len(maker.regions) or len(found) > _MAX_OPERATIONS:
                return ()
            if maker not in found:
                found.add(maker)
                pending.append(maker)
    return tuple(sorted(found, key=order.__getitem__))


def _by_structure(operation: Any) -> Iterator[ComposedCall]:
    """Yield the call of which an operation computes the result, known by what it is made of."""
    power = _power_of(operation)
    if power is not None:
        value, exponent = power
        yield ComposedCall("integer_pow", (operation,), (value,), exponent)
        return
    matched: dict[str, Any] = {}
    for name, pattern in _PATTERNS.items():
        if operation.name == pattern[0] and _matches(operation.results[0], pattern, matched):
            yield ComposedCall(name, (operation,), tuple(matched[key] for key in sorted(matched)))
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


def _matches(value: Any, pattern: Any, matched: dict[str, Any]) -> bool:
    """Return whether a value is made as a pattern says, and note down what its variables are.

    A pattern is the name of an operation, of a comparison with its direction, and the patterns of
    its operands; the name of a variable; the number that a constant repeats; or None for anything.
    """
    if pattern is None:
        return True
    if isinstance(pattern, str):
        known = matched.setdefault(pattern, value)
        return bool(known == value) or repeated_number(known) == repeated_number(value) is not None
    if isinstance(pattern, float):
        return repeated_number(value) == pattern
    maker = value.owner
    kind, *operands = pattern
    name = getattr(maker, "name", "")
    if name == "stablehlo.compare":
        name += f" {comparison_direction(maker)}"
    given = [] if name != kind else _without_sizes(maker.operation)
    if len(given) != len(operands):
        return False
    for order in (operands, operands[::-1]) if kind in _COMMUTATIVE else (operands,):
        trial = dict(matched)
        if all(_matches(*pair, trial) for pair in zip(given, order, strict=True)):
            matched.update(trial)
            return True
    return False


def _without_sizes(operation: Any) -> list[Any]:
    """Return the operands of an operation, but for the sizes of its result and those of a call."""
    operands = list(operation.operands)
    if operation.name in _WITH_SIZES:
        return operands[: _WITH_SIZES[operation.name]]
    if operation.name == "func.call":
        return [operand for operand in operands if not _is_size(operand)]
    return operands


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
        are_sizes = of_sizes and operation.name not in _WITH_SIZES
        if operation.name == "stablehlo.get_dimension_size" or are_sizes:
            sizes.add(operation)
    return sizes


def _is_size(value: Any) -> bool:
    """Return whether a value may be the size of a dimension: a single integer."""
    type_ = tensor_type(str(value.type))
    return not type_.shape and element_dtype(type_.element).kind in "iu"


def _by_places(operations: Sequence[Any]) -> list[ComposedCall]:
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
            calls += _calls_of(name, [operation for operation, _ in run])
    return calls


def composed_function(name: str, functions: Mapping[str, Any]) -> str:
    """Return the name of the known function that a function of a module computes; or nothing.

    Args:
        name: the name of the function in the module.
        functions: all of them.
    """
    known = _NUMBERED.sub("", name)
    if known not in _NAMED or len(functions[name].type.results) != 1:
        return ""
    if _is_own(known, name, functions):
        return known
    block = functions[name].regions[0].blocks[0]
    sizes = size_arguments(functions[name])
    given = [a for number, a in enumerate(block.arguments) if number not in sizes]
    types = {str(argument.type) for argument in given}
    types |= {str(result) for result in functions[name].type.results}
    if len(types) != 1 or len(given) not in (1, 2):
        return ""
    arrays = _samples(len(given), element_dtype(tensor_type(types.pop()).element))
    with np.errstate(all="ignore"):
        computed = _compute(block, dict(zip(given, arrays, strict=True)), functions)
    agrees = computed is not None and _agrees(_NAMED[known][1], arrays, computed[0])
    return known if agrees else ""


def size_arguments(function: Any) -> frozenset[int]:
    """Return which arguments of a function of a module are sizes of dimensions."""
    attributes = value_attributes(function, "arg_attrs")
    return frozenset(n for n, each in enumerate(attributes) if "jax.global_constant" in each)


def _is_own(known: str, name: str, functions: Mapping[str, Any]) -> bool:
    """Return whether a function of a module is what this JAX makes of its function of the name."""
    types = [
        tensor_type(str(value.type)) for value in functions[name].regions[0].blocks[0].arguments
    ]
    if any(None in type_.shape for type_ in types):
        return False
    avals = tuple((type_.shape, element_dtype(type_.element)) for type_ in types)
    return _text_of(name, functions) == _own_text(known, avals)


@functools.lru_cache(maxsize=128)
def _own_text(name: str, avals: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]) -> str:
    """Return the text of the function to which this JAX lowers a function; empty if to none."""
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in avals]
    with x64_if_needed([dtype for _, dtype in avals]):
        try:
            exported = export.export(jax.jit(lambda *given: _NAMED[name][0](*given)))(*specs)
        except (TypeError, ValueError):  # not for these dtypes
            return ""
    with open_module(exported.mlir_module_serialized) as module:
        functions = functions_of(module)
        return _text_of(name, functions) if name in functions else ""


def _text_of(name: str, functions: Mapping[str, Any]) -> str:
    """Return the text of a function and of those that it calls, without numbers in their names."""
    texts: dict[str, str] = {}
    pending = [name]
    while pending:
        if (called := pending.pop()) not in texts:
            texts[called] = str(functions[called])
            pending += [callee for callee in _SYMBOL.findall(texts[called]) if callee in functions]
    return "\n".join(
        _SYMBOL.sub(lambda found: _NUMBERED.sub("", found[0]), t) for t in texts.values()
    )


def with_derivative(name: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes what another one does, with the derivative of a known one."""
    known = {**_FUNCTIONS, **_NAMED}[name][0]
    function: Any = jax.custom_jvp(compute)

    def derivative(primals: Any, tangents: Any) -> Any:
        # `polygamma` and its like have derivatives with respect to some of their arguments only.
        places = [n for n, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

        def of_these(*changing: Any) -> Any:
            arguments = list(primals)
            for place, value in zip(places, changing, strict=True):
                arguments[place] = value
            return known(*arguments)

        moved = [primals[place] for place in places]
        _, tangent = jax.jvp(of_these, moved, [tangents[place] for place in places])
        return function(*primals), tangent

    function.defjvp(derivative, symbolic_zeros=True)
    result: Callable[..., Any] = function
    return result


def _signature(operations: Iterable[Any]) -> tuple[Any, ...]:
    """Return the names of operations, each with its constants."""
    return tuple(
        (operation.name, tuple(_splat_of(operand) for operand in operation.operands))
        for operation in operations
        if operation.name not in ("func.return", "stablehlo.constant")
    )


def _splat_of(value: Any) -> str:
    is_constant = getattr(value.owner, "name", "") == "stablehlo.constant"
    return (splat(value.owner) or "") if is_constant else ""


@functools.lru_cache(maxsize=128)
def _own_signature(name: str, dtype: np.dtype[Any], arity: int) -> tuple[Any, ...]:
    """Return the signature of the operations to which this JAX lowers a function."""
    spec = jax.ShapeDtypeStruct((2,), dtype)
    with x64_if_needed([dtype]), jax.ensure_compile_time_eval():
        exported = export.export(jax.jit(_FUNCTIONS[name][0]))(*[spec] * arity)
    with open_module(exported.mlir_module_serialized) as module:
        return _signature(view.operation for view in find_main(module).regions[0].blocks[0])


def _calls_of(name: str, run: Sequence[Any]) -> Iterator[ComposedCall]:
    """Yield the calls in a run of operations that have one place, such as that of a loop."""
    kinds = [operation.name for operation in run]
    for length in range(2, len(run) + 1):
        if len(run) % length == 0 and kinds == kinds[:length] * (len(run) // length):
            parts = [tuple(run[at : at + length]) for at in range(0, len(run), length)]
            calls = [_call_of(name, part) for part in parts]
            if all(call is not None for call in calls):
                yield from (call for call in calls if call is not None)
                return


def _call_of(name: str, operations: tuple[Any, ...]) -> ComposedCall | None:
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
        for operand in _without_sizes(operation)
        if operand not in made and getattr(operand.owner, "name", "") != "stablehlo.constant"
    )
    call = ComposedCall(name, operations, tuple(inputs))
    if any(value.type != last.results[0].type for value in inputs):
        return None
    return call if len(inputs) == _ARITIES.get(name, 1) and _is_the_function(call, {}) else None


def _is_the_function(call: ComposedCall, functions: Mapping[str, Any]) -> bool:
    """Return whether operations compute what the function of their name does, tried on numbers."""
    dtype = element_dtype(tensor_type(str(call.inputs[0].type)).element)
    arrays = _samples(len(call.inputs), dtype)
    with np.errstate(all="ignore"):
        values = dict(zip(call.inputs, arrays, strict=True))
        known = all(_step(operation, values, functions) for operation in call.operations)
    computed = values[call.operations[-1].results[0]] if known else None
    return _agrees(_FUNCTIONS[call.name][1], arrays, computed)


def _samples(arity: int, dtype: np.dtype[Any]) -> list[Array]:
    """Return numbers for each of the arguments of a function, all pairs of them for two."""
    grid = np.meshgrid(*[_SAMPLES] * arity, indexing="ij")
    return [part.reshape(-1).astype(dtype) for part in grid]


def _agrees(function: Callable[..., Any], arrays: Sequence[Array], computed: Array | None) -> bool:
    """Return whether numbers are what a function of scipy or numpy computes."""
    if computed is None:
        return False
    with np.errstate(all="ignore"):
        expected = function(*(array.astype(np.float64) for array in arrays))
    known = np.isfinite(expected) & (np.abs(expected) < 1e3)
    close = np.isclose(computed.astype(np.float64), expected, _TOLERANCE, _TOLERANCE)
    return bool(known.sum() >= _MIN_SAMPLES and close[known].all())


def _compute(
    block: Any, arguments: Mapping[Any, Array], functions: Mapping[str, Any]
) -> list[Array] | None:
    """Return what a block computes of numpy's arrays; None if an operation is not known here.

    Operations on sizes are not known, and nothing that is computed depends on them.
    """
    values = dict(arguments)
    for view in block:
        operation = view.operation
        if operation.name == "func.return":
            results = [_known(operand, values) for operand in operation.operands]
            known = [result for result in results if result is not None]
            return known if len(known) == len(results) else None
        if operation.name != "stablehlo.constant":
            _step(operation, values, functions)
    return None


def _step(operation: Any, values: dict[Any, Array], functions: Mapping[str, Any]) -> bool:
    """Compute one operation, into `values`, and return whether it is known here."""
    operands = _without_sizes(operation)
    known = [array for o in operands if (array := _known(o, values)) is not None]
    if len(known) != len(operands):
        return False
    results = None
    if operation.name in ("func.call", COMPOSITE):
        inner = functions.get(next(named_by(operation)))
        if inner is not None:
            block = inner.regions[0].blocks[0]
            pairs = zip(block.arguments, operation.operands, strict=True)
            taken = dict(zip(operands, known, strict=True))
            given = {argument: taken[o] for argument, o in pairs if o in taken}
            results = _compute(block, given, functions)
    elif (rule := _NUMPY.get(operation.name)) is not None:
        results = [rule(operation, *known)]
    if results is None or any(result is None for result in results):
        return False
    for value, result in zip(operation.results, results, strict=True):
        dtype = element_dtype(tensor_type(str(value.type)).element)
        values[value] = np.asarray(result).astype(dtype)
    return True


def _known(value: Any, values: Mapping[Any, Array]) -> Array | None:
    if value in values:
        return values[value]
    maker = value.owner
    if getattr(maker, "name", "") != "stablehlo.constant":
        return None
    repeated = read_splat(maker)
    return read_elements(maker) if repeated is None else repeated


_COMPARE = {
    "EQ": np.equal, "GE": np.greater_equal, "GT": np.greater,
    "LE": np.less_equal, "LT": np.less, "NE": np.not_equal,
}  # fmt: skip


def _compare(operation: Any, left: Array, right: Array) -> Array:
    return np.asarray(_COMPARE[comparison_direction(operation)](left, right))


def _bitcast(operation: Any, value: Array) -> Array:
    return value.view(element_dtype(tensor_type(str(operation.results[0].type)).element))


def _leading_zeros(value: Array) -> Array:
    bits = 8 * value.dtype.itemsize
    unsigned = value.view(f"uint{bits}").astype(np.uint64)
    return np.array([bits - int(number).bit_length() for number in unsigned])


def _look_up(operation: Any, table: Array, places: Array) -> Array | None:
    """Return elements of a table; None of any other gather."""
    if table.ndim != 1 or tuple(operation.attributes["slice_sizes"]) != (1,):
        return None
    return np.asarray(table[np.clip(places, 0, table.size - 1)])


def _slice(operation: Any, value: Array) -> Array | None:
    """Return a part of a table; None of any other array."""
    if value.ndim != 1:
        return None
    names = ("start_indices", "limit_indices", "strides")
    return value[slice(*(operation.attributes[name][0] for name in names))]


def _reshape(operation: Any, value: Array) -> Array:
    del operation  # arrays of samples have no shape of their own
    return value.reshape(()) if value.size == 1 else value


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *operands: function(*operands)


_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.bitwise_and,
    "broadcast_in_dim": np.asarray,
    "dynamic_broadcast_in_dim": np.asarray,
    "clamp": lambda least, value, most: np.clip(value, least, most),
    "convert": np.asarray,
    "count_leading_zeros": _leading_zeros,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "cosine": np.cos,
    "divide": np.divide,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "is_finite": np.isfinite,
    "log": np.log,
    "log_plus_one": np.log1p,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "not": np.invert,
    "or": np.bitwise_or,
    "power": np.power,
    "round_nearest_even": np.rint,
    "rsqrt": lambda value: 1 / np.sqrt(value),
    "select": np.where,
    "sign": np.sign,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "subtract": np.subtract,
    "tan": np.tan,
    "tanh": np.tanh,
    "xor": np.bitwise_xor,
    "atan2": np.arctan2,
    "remainder": np.fmod,
}
_NUMPY: Mapping[str, Callable[..., Any]] = {
    "stablehlo.bitcast_convert": _bitcast,
    "stablehlo.compare": _compare,
    "stablehlo.gather": _look_up,
    "stablehlo.dynamic_reshape": _reshape,
    "stablehlo.reshape": _reshape,
    "stablehlo.slice": _slice,
    **{f"stablehlo.{name}": _plain(function) for name, function in _ELEMENTWISE.items()},
}
