"""Small programs of each operation of StableHLO, for the dtypes and the edges that it has.

An operation is a function of a module; all those of one dtype are one program, whose `main` calls
one after another, so that they are compiled together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from tests.bridge.lifting.reference_interpreter import dense_text, element_type, mlir_type

Array = np.ndarray[Any, Any]

_WIDE_FLOATS = ("bfloat16", "float16", "float32", "float64")
_SMALL_FLOATS = (
    "float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
    "float8_e4m3fnuz", "float8_e5m2fnuz",
)  # fmt: skip
_INTEGERS = (
    "int4", "int8", "int16", "int32", "int64", "uint4", "uint8", "uint16", "uint32", "uint64",
)  # fmt: skip
_COMPLEX = ("complex64", "complex128")
DTYPES = ("bool", *_INTEGERS, *_WIDE_FLOATS, *_SMALL_FLOATS, *_COMPLEX)


@dataclass(frozen=True)
class OperationCase:
    """One use of an operation.

    Attributes:
        name: the operation's name, and what is particular.
        body: the operations of the function, which make `%r` of `%a`, `%b`, `%c`…
        result: the type of `%r`.
        arrays: the arguments.
        ulps: by how many units in the last place results may differ from the interpreter's.
        absolute: by how much they may differ besides.
    """

    name: str
    body: str
    result: str
    arrays: tuple[Array, ...]
    ulps: float = 0
    absolute: float = 0


def joined(cases: Sequence[OperationCase], *, constants: bool = False) -> tuple[str, list[Array]]:
    """Return a module that returns the results of some cases, and its arguments.

    Args:
        cases: the cases.
        constants: whether the arguments of the cases are constants of the module.
    """
    functions, calls, arguments, arrays = [], [], [], []
    for number, case in enumerate(cases):
        letters = "abcdefgh"[: len(case.arrays)]
        types = list(map(mlir_type, case.arrays))
        takes = ", ".join(f"%{n}: {t}" for n, t in zip(letters, types, strict=True))
        body = f"{case.body}\n  return %r : {case.result}"
        if constants:
            held = zip(letters, case.arrays, strict=True)
            body = "\n".join(f"%{n} = stablehlo.constant {dense_text(v)}" for n, v in held) + body
            types, takes = [], ""
        functions.append(f"func.func private @f{number}({takes}) -> {case.result} {{\n  {body}\n}}")
        names = [f"%x{len(arguments) + n}" for n in range(len(types))]
        calls.append(
            f"%r{number} = func.call @f{number}({', '.join(names)}) : "
            f"({', '.join(types)}) -> {case.result}"
        )
        arguments += [f"{name}: {type_}" for name, type_ in zip(names, types, strict=True)]
        arrays += [] if constants else case.arrays
    results = ", ".join(case.result for case in cases)
    made = ", ".join(f"%r{number}" for number in range(len(cases)))
    main = f"func.func @main({', '.join(arguments)}) -> ({results}) {{\n  "
    main += "\n  ".join([*calls, f"return {made} : {results}"]) + "\n}"
    return "\n".join([*functions, main]), arrays


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def _limits(dtype: str) -> tuple[int, int]:
    limits = ml_dtypes.iinfo(numpy_dtype(dtype))
    return int(limits.min), int(limits.max)


def edges(dtype: str) -> Array:
    """Return the numbers of a dtype at which operations differ most often."""
    numpy = numpy_dtype(dtype)
    if dtype == "bool":
        return np.array([True, False, False, True])
    if dtype in _INTEGERS:
        low, high = _limits(dtype)
        numbers = [low, high, low + 1, high - 1, 0, 1, 2, 3, -1 if low else 7, high // 2 + 1]
        return np.array([n if n <= high else high for n in numbers], object).astype(numpy)
    if dtype in _COMPLEX:
        parts = [0.0, -0.0, 1.5, -2.25, 0.5, 3.0, -0.75, 12.0]
        return np.array(
            [complex(a, b) for a, b in zip(parts, np.roll(parts, -3), strict=True)], numpy
        )
    finite = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.7, -3.0, 6.0]
    info = ml_dtypes.finfo(numpy)
    special = [np.inf, -np.inf, np.nan] if dtype in _WIDE_FLOATS else []
    return np.array([*finite, float(info.max), float(info.smallest_normal), *special]).astype(numpy)


# By kind of dtype: unary operations, then those of two arrays of one dtype.
_UNARY = {
    "bool": ["not"],
    "int": ["abs", "count_leading_zeros", "negate", "not", "popcnt", "sign"],
    "uint": ["count_leading_zeros", "negate", "not", "popcnt"],
    "float": ["abs", "ceil", "floor", "negate", "round_nearest_afz", "round_nearest_even", "sign"],
    "complex": ["negate"],
}
_BINARY = {
    "bool": ["add", "and", "maximum", "minimum", "multiply", "or", "xor"],
    "int": ["add", "and", "maximum", "minimum", "multiply", "or", "subtract", "xor"],
    "float": ["add", "maximum", "minimum", "multiply", "subtract"],
    "complex": ["add", "subtract"],
}
_ROUNDINGS = ("ceil", "floor", "round_nearest_afz", "round_nearest_even")
_DIVISIONS = ["divide", "remainder"]
_SHIFTS = ["shift_left", "shift_right_arithmetic", "shift_right_logical"]
_TRANSCENDENTAL = [
    "cosine", "exponential", "exponential_minus_one", "log", "log_plus_one", "logistic", "rsqrt",
    "sine", "sqrt", "tan", "tanh",
]  # fmt: skip


def kind_of(dtype: str) -> str:
    """Return `bool`, `int`, `uint`, `float` or `complex`."""
    return "float" if dtype == "bfloat16" else dtype.rstrip("0123456789").partition("8_")[0]


def elementwise_cases(dtype: str) -> Iterator[OperationCase]:
    """Yield the cases of operations on each element of arrays of a dtype."""
    kind, x = kind_of(dtype), edges(dtype)
    type_, y = mlir_type(x), np.roll(x, 3)
    bools = type_.replace(element_type(x.dtype), "i1")
    narrow = dtype in _SMALL_FLOATS
    is_misread = dtype == "float8_e3m4"  # the interpreter has NaN for what it rounds
    for name in _UNARY[kind]:
        if is_misread and name in _ROUNDINGS:
            continue
        yield OperationCase(name, f"%r = stablehlo.{name} %a : {type_}", type_, (x,))
    for name in _BINARY["int" if kind == "uint" else kind]:
        for other in (y, x[::-1].copy()):
            yield OperationCase(name, f"%r = stablehlo.{name} %a, %b : {type_}", type_, (x, other))
    for direction in ("EQ", "NE") if kind == "complex" else ("EQ", "GE", "GT", "LE", "LT", "NE"):
        body = f"%r = stablehlo.compare {direction}, %a, %b : ({type_}, {type_}) -> {bools}"
        yield OperationCase(f"compare {direction}", body, bools, (x, y))
    chosen = np.arange(x.size) % 3 == 0
    body = f"%r = stablehlo.select %a, %b, %c : {bools}, {type_}"
    yield OperationCase("select", body, type_, (chosen, x, y))
    if kind in ("int", "uint", "float"):
        low, high = x[5], x[2]
        low, high = (low, high) if float(low) < float(high) else (high, low)
        scalar = f"tensor<{element_type(x.dtype)}>"
        body = f"%r = stablehlo.clamp %a, %b, %c : ({scalar}, {type_}, {scalar}) -> {type_}"
        yield OperationCase("clamp", body, type_, (np.asarray(low), x, np.asarray(high)))
    if kind in ("int", "uint"):
        yield from _integer_cases(dtype, x, type_)
    if kind == "float" and not narrow:
        yield from _float_cases(dtype, x, y, type_)
    if kind == "complex":
        yield from _complex_cases(x, y, type_)


def _integer_cases(dtype: str, x: Array, type_: str) -> Iterator[OperationCase]:
    low, _ = _limits(dtype)
    wide = x.astype(object)
    divisors = np.array([n if n not in (0, -1) else 3 for n in np.roll(wide, 2)], object)
    for name in _DIVISIONS:
        body = f"%r = stablehlo.{name} %a, %b : {type_}"
        yield OperationCase(name, body, type_, (x, divisors.astype(x.dtype)))
    bits = int(dtype.lstrip("uint"))
    amounts = np.array([0, 1, 2, 3, bits - 1, 1, 0, 2, 1, bits - 1], x.dtype)
    for name in _SHIFTS:
        yield OperationCase(name, f"%r = stablehlo.{name} %a, %b : {type_}", type_, (x, amounts))
    if bits > 4 or not low:
        bases = np.array([0, 1, 2, 3, -1 if low else 5, 2, 3, 1, -2 if low else 4, 5], x.dtype)
        powers = np.array([0, 3, 5, 2, 3, 0, 1, 4, 3, 2], x.dtype)
        body = f"%r = stablehlo.power %a, %b : {type_}"
        yield OperationCase("power", body, type_, (bases, powers))


def _float_cases(dtype: str, x: Array, y: Array, type_: str) -> Iterator[OperationCase]:
    bools = type_.replace(element_type(x.dtype), "i1")
    body = f"%r = stablehlo.is_finite %a : ({type_}) -> {bools}"
    yield OperationCase("is_finite", body, bools, (x,))
    ulps = 4
    for name in ("divide", "remainder", "atan2", "power"):
        yield OperationCase(name, f"%r = stablehlo.{name} %a, %b : {type_}", type_, (x, y), ulps)
    for name in (*_TRANSCENDENTAL, "cbrt"):
        yield OperationCase(name, f"%r = stablehlo.{name} %a : {type_}", type_, (x,), ulps)
    for exponent, mantissa in ((5, 2), (8, 7), (4, 3)):
        text = f"format = e{exponent}m{mantissa}"
        body = f"%r = stablehlo.reduce_precision %a, {text} : {type_}"
        small = np.where(np.abs(x.astype(np.float64)) < 1e-6, 0, x.astype(np.float64))
        yield OperationCase("reduce_precision", body, type_, (small.astype(x.dtype),))
    if dtype in ("float32", "float64"):
        both = type_.replace(element_type(x.dtype), f"complex<{element_type(x.dtype)}>")
        body = f"%r = stablehlo.complex %a, %b : {both}"
        yield OperationCase("complex", body, both, (x, y))
        for part in ("real", "imag"):
            body = f"%r = stablehlo.{part} %a : ({type_}) -> {type_}"
            yield OperationCase(part, body, type_, (x,))


def _complex_cases(x: Array, y: Array, type_: str) -> Iterator[OperationCase]:
    half = type_.replace("complex<f32>", "f32").replace("complex<f64>", "f64")
    for name in ("real", "imag", "abs"):
        body = f"%r = stablehlo.{name} %a : ({type_}) -> {half}"
        yield OperationCase(name, body, half, (x,), 4 if name == "abs" else 0)
    for name in ("multiply", "divide"):
        yield OperationCase(name, f"%r = stablehlo.{name} %a, %b : {type_}", type_, (x, y), 16)
    inner = np.array([0.25 + 1j, -1.5 + 0.5j, 2 - 1.25j, -0.5 - 0.75j, 1 + 0j, 3 + 2j], x.dtype)
    inner_type = mlir_type(inner)
    for name in (*_TRANSCENDENTAL, "sign", "cbrt"):
        body = f"%r = stablehlo.{name} %a : {inner_type}"
        yield OperationCase(name, body, inner_type, (inner,), 16)
    body = f"%r = stablehlo.power %a, %b : {inner_type}"
    yield OperationCase("power", body, inner_type, (inner, inner[::-1].copy()), 64)


def conversion_cases(dtype: str) -> Iterator[OperationCase]:
    """Yield conversions of a dtype to each, of numbers that both have, and its bits as others."""
    x = edges(dtype)
    for target in DTYPES:
        values = _common(x, dtype, target)
        before, after = mlir_type(values), mlir_type(np.zeros(values.shape, numpy_dtype(target)))
        body = f"%r = stablehlo.convert %a : ({before}) -> {after}"
        yield OperationCase(f"convert to {target}", body, after, (values,))
    if dtype == "bool" or "4" in dtype.lstrip("uint")[:1]:
        return
    size = x.dtype.itemsize
    targets = _COMPLEX if dtype in _COMPLEX else ("int8", "int16", "int32", "int64", "float32")
    for target in targets:
        other = numpy_dtype(target)
        if other.itemsize <= size:
            shape = x.shape if other.itemsize == size else (*x.shape, size // other.itemsize)
            values = x
        else:
            count = other.itemsize // size
            values, shape = x[:count].reshape(1, count), (1,)
        before, after = mlir_type(values), mlir_type(np.zeros(shape, other))
        body = f"%r = stablehlo.bitcast_convert %a : ({before}) -> {after}"
        yield OperationCase(f"bitcast_convert to {target}", body, after, (values,))


def _common(x: Array, dtype: str, target: str) -> Array:
    """Return numbers of both dtypes, since conversions of others are not defined."""
    real = x.real if dtype in _COMPLEX else x
    numbers = [float(v) if kind_of(dtype) in ("float", "complex") else int(v) for v in real]
    if target in _INTEGERS:
        low, high = _limits(target)
        return x[np.array([low <= n <= high and abs(n) < 2**62 for n in numbers])]
    if target in _SMALL_FLOATS:
        most = float(ml_dtypes.finfo(numpy_dtype(target)).max)
        return x[np.array([abs(n) <= most for n in numbers])]
    return x
