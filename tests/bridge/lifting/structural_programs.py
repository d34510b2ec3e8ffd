"""Small programs of operations that move, combine and multiply the elements of arrays.

Each is a text in which `E` stands for the element type, with the type of its result and its
arguments: the shapes of arrays of this type, or arrays as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests.bridge.lifting.operation_programs import OperationCase, kind_of, numpy_dtype
from tests.bridge.lifting.reference_interpreter import element_type

_Texts = Mapping[str, tuple[str, str, Sequence[Any]]]


def _index(*numbers: Any, dtype: str = "int32") -> Any:
    return np.array(numbers, dtype)


_COMBINE = """({ ^bb0(%p: tensor<E>, %q: tensor<E>):
    %s = stablehlo.COMBINER %p, %q : tensor<E>
    stablehlo.return %s : tensor<E> })"""
_REPLACE = """({ ^bb0(%p: tensor<E>, %q: tensor<E>):
    stablehlo.return %q : tensor<E> })"""
_NUMBERS = """dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>"""
_GATHERED = f"<{{{_NUMBERS}, slice_sizes = array<i64: 1, 2>}}>"
_BATCHED = """<{dimension_numbers = #stablehlo.gather<offset_dims = [2],
    collapsed_slice_dims = [], operand_batching_dims = [0], start_indices_batching_dims = [0],
    start_index_map = [1],
    index_vector_dim = 2>, slice_sizes = array<i64: 1, 2>}>"""
_SCATTERED = """<{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1],
    inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}>"""

_MOVES: _Texts = {
    "broadcast_in_dim": (
        "%r = stablehlo.broadcast_in_dim %a, dims = [2, 0] : (tensor<3x1xE>) -> tensor<2x4x3xE>",
        "tensor<2x4x3xE>", [(3, 1)]),
    "concatenate": (
        ("%r = stablehlo.concatenate %a, %b, %a, dim = 1 : (tensor<2x1xE>, tensor<2x0xE>, "
        "tensor<2x1xE>) -> tensor<2x2xE>"), "tensor<2x2xE>", [(2, 1), (2, 0)]),
    "dynamic_slice": (
        ("%r = stablehlo.dynamic_slice %a, %b, %c, sizes = [2, 2] : (tensor<3x4xE>, tensor<i32>, "
        "tensor<i32>) -> tensor<2x2xE>"), "tensor<2x2xE>",
        [(3, 4), np.array(-1, np.int32), np.array(9, np.int32)]),
    "dynamic_update_slice": (
        ("%r = stablehlo.dynamic_update_slice %a, %b, %c, %d : (tensor<3x4xE>, tensor<2x1xE>, "
        "tensor<i64>, tensor<i64>) -> tensor<3x4xE>"), "tensor<3x4xE>",
        [(3, 4), (2, 1), np.array(5), np.array(-2)]),
    "gather": (
        (f'%r = "stablehlo.gather"(%a, %b) {_GATHERED} : (tensor<4x2xE>, tensor<3x1xi32>) -> '
        "tensor<3x2xE>"), "tensor<3x2xE>", [(4, 2), _index([3], [-1], [9])]),
    "gather of batches": (
        (f'%r = "stablehlo.gather"(%a, %b) {_BATCHED} : (tensor<2x4xE>, tensor<2x3x1xi32>) -> '
        "tensor<2x3x2xE>"), "tensor<2x3x2xE>",
        [(2, 4), _index([[0], [2], [3]], [[1], [-1], [2]])]),
    "dynamic_gather": (
        ("%n = stablehlo.constant dense<[1, 2]> : tensor<2xi64>\n"
        f'%r = "stablehlo.dynamic_gather"(%a, %b, %n) <{{{_NUMBERS}}}> : '
        "(tensor<4x2xE>, tensor<3x1xi32>, tensor<2xi64>) -> tensor<3x2xE>"), "tensor<3x2xE>",
        [(4, 2), _index([3], [-1], [9])]),
    "scatter": (
        (f'%r = "stablehlo.scatter"(%a, %b, %c) {_SCATTERED} {_REPLACE} : (tensor<4x2xE>, '
        "tensor<3x1xi32>, tensor<3x2xE>) -> tensor<4x2xE>"), "tensor<4x2xE>",
        [(4, 2), _index([3], [-1], [0]), (3, 2)]),
    "optimization_barrier": (
        "%r, %o = stablehlo.optimization_barrier %a, %b : tensor<2xE>, tensor<3xE>",
        "tensor<2xE>", [(2,), (3,)]),
    "pad": (
        ("%r = stablehlo.pad %a, %b, low = [1, -1], high = [-1, 2], interior = [1, 2] : "
        "(tensor<3x2xE>, tensor<E>) -> tensor<5x5xE>"), "tensor<5x5xE>", [(3, 2), ()]),
    "reshape": ("%r = stablehlo.reshape %a : (tensor<2x3xE>) -> tensor<3x2xE>", "tensor<3x2xE>",
        [(2, 3)]),
    "reverse": ("%r = stablehlo.reverse %a, dims = [0, 2] : tensor<2x2x3xE>", "tensor<2x2x3xE>",
        [(2, 2, 3)]),
    "slice": ("%r = stablehlo.slice %a [1:3, 0:5:2] : (tensor<4x5xE>) -> tensor<2x3xE>",
        "tensor<2x3xE>", [(4, 5)]),
    "transpose": (("%r = stablehlo.transpose %a, dims = [2, 0, 1] : (tensor<2x3x4xE>) -> "
        "tensor<4x2x3xE>"), "tensor<4x2x3xE>", [(2, 3, 4)]),
    "if": (
        ('%r = "stablehlo.if"(%a) ({ stablehlo.return %b : tensor<2xE> }, '
        "{ stablehlo.return %c : tensor<2xE> }) : (tensor<i1>) -> tensor<2xE>"), "tensor<2xE>",
        [np.array(False), (2,), (2,)]),
    "case": (
        ('%r = "stablehlo.case"(%a) ({ stablehlo.return %b : tensor<2xE> }, '
        "{ stablehlo.return %c : tensor<2xE> }) : (tensor<i32>) -> tensor<2xE>"), "tensor<2xE>",
        [np.array(-4, np.int32), (2,), (2,)]),
    "while": (
        ("%n = stablehlo.constant dense<0> : tensor<i32>\n"
        "%o = stablehlo.constant dense<1> : tensor<i32>\n"
        "%i, %r = stablehlo.while(%j = %n, %v = %b) : tensor<i32>, tensor<3xE> cond {\n"
        "%p = stablehlo.compare LT, %j, %a : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
        "stablehlo.return %p : tensor<i1> } do { %k = stablehlo.add %j, %o : tensor<i32>\n"
        "%w = stablehlo.reverse %v, dims = [0] : tensor<3xE>\n"
        "stablehlo.return %k, %w : tensor<i32>, tensor<3xE> }"), "tensor<3xE>",
        [np.array(3, np.int32), (3,)]),
    "dynamic_broadcast_in_dim": (
        ("%n = stablehlo.constant dense<[2, 3]> : tensor<2xi32>\n"
        "%r = stablehlo.dynamic_broadcast_in_dim %a, %n, dims = [1] : (tensor<3xE>, tensor<2xi32>) "
        "-> tensor<2x3xE>"), "tensor<2x3xE>", [(3,)]),
    "dynamic_reshape": (
        ("%n = stablehlo.constant dense<[3, 2]> : tensor<2xi64>\n"
        "%r = stablehlo.dynamic_reshape %a, %n : (tensor<2x3xE>, tensor<2xi64>) -> tensor<3x2xE>"),
        "tensor<3x2xE>", [(2, 3)]),
    "dynamic_pad": (
        ("%n = stablehlo.constant dense<1> : tensor<1xi64>\n"
        "%r = stablehlo.dynamic_pad %a, %b, %n, %n, %n : (tensor<3xE>, tensor<E>, tensor<1xi64>, "
        "tensor<1xi64>, tensor<1xi64>) -> tensor<7xE>"), "tensor<7xE>", [(3,), ()]),
    "get_dimension_size": (
        "%r = stablehlo.get_dimension_size %a, dim = 1 : (tensor<2x3xE>) -> tensor<i32>",
        "tensor<i32>", [(2, 3)]),
    "get_tuple_element": (
        ("%t = stablehlo.tuple %a, %b : tuple<tensor<2xE>, tensor<3xE>>\n"
        "%r = stablehlo.get_tuple_element %t[1] : (tuple<tensor<2xE>, tensor<3xE>>) -> "
        "tensor<3xE>"),
        "tensor<3xE>", [(2,), (3,)]),
}  # fmt: skip

_REDUCTIONS: _Texts = {
    "reduce": (
        (f'%r = "stablehlo.reduce"(%a, %b) <{{dimensions = array<i64: 0, 2>}}> {_COMBINE} : '
        "(tensor<2x3x2xE>, tensor<E>) -> tensor<3xE>"), "tensor<3xE>", [(2, 3, 2), ()]),
    "reduce_window": (
        ('%r = "stablehlo.reduce_window"(%a, %b) <{window_dimensions = array<i64: 2, 3>, '
        "window_strides = array<i64: 2, 1>, base_dilations = array<i64: 2, 1>, window_dilations = "
        "array<i64: 1, 2>, padding = dense<[[1, 0], [2, 1]]> : tensor<2x2xi64>}> "
        f"{_COMBINE} : (tensor<3x4xE>, tensor<E>) -> tensor<3x3xE>"), "tensor<3x3xE>",
        [(3, 4), ()]),
    "running reduce_window": (
        ('%r = "stablehlo.reduce_window"(%a, %b) <{window_dimensions = array<i64: 5>, padding = '
        f"dense<[[4, 0]]> : tensor<1x2xi64>}}> {_COMBINE} : (tensor<5xE>, tensor<E>) -> "
        "tensor<5xE>"), "tensor<5xE>", [(5,), ()]),
    "scatter": (
        (f'%r = "stablehlo.scatter"(%a, %b, %c) {_SCATTERED} {_COMBINE} : (tensor<4x2xE>, '
        "tensor<3x1xi32>, tensor<3x2xE>) -> tensor<4x2xE>"), "tensor<4x2xE>",
        [(4, 2), _index([2], [4], [2]), (3, 2)]),
    "map": ((f'%r = "stablehlo.map"(%a, %b) <{{dimensions = array<i64: 0>}}> {_COMBINE} : '
        "(tensor<5xE>, tensor<5xE>) -> tensor<5xE>"), "tensor<5xE>", [(5,), (5,)]),
}  # fmt: skip

_PRODUCTS: _Texts = {
    "dot_general": (
        ("%r = stablehlo.dot_general %a, %b, batching_dims = [1] x [0], contracting_dims = [0] x "
        "[2] : (tensor<3x2x2xE>, tensor<2x4x3xE>) -> tensor<2x2x4xE>"), "tensor<2x2x4xE>",
        [(3, 2, 2), (2, 4, 3)]),
    "convolution": (
        ("%r = stablehlo.convolution(%a, %b) dim_numbers = "
        "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
        "window = {stride = [2, 1], pad = [[1, 2], [0, 1]], lhs_dilate = [1, 2], rhs_dilate = "
        "[2, 1], reverse = [true, false]} {batch_group_count = 1 : i64, feature_group_count = 2 : "
        "i64} : (tensor<1x4x3x4xE>, tensor<2x2x2x4xE>) -> tensor<1x3x5x4xE>"), "tensor<1x3x5x4xE>",
        [(1, 4, 3, 4), (2, 2, 2, 4)]),
    "dynamic_conv": (
        ("%n = stablehlo.constant dense<[[1, 2]]> : tensor<1x2xi64>\n"
        '%r = "stablehlo.dynamic_conv"(%a, %b, %n) <{dimension_numbers = #stablehlo.conv<[b, 0, f]x'
        "[0, i, o]->[b, 0, f]>, batch_group_count = 1 : i64, feature_group_count = 1 : i64}> : "
        "(tensor<1x4x2xE>, tensor<2x2x1xE>, tensor<1x2xi64>) -> tensor<1x6x1xE>"),
        "tensor<1x6x1xE>", [(1, 4, 2), (2, 2, 1)]),
    "convolution of batch groups": (
        ("%r = stablehlo.convolution(%a, %b) dim_numbers = [f, 0, b]x[i, 0, o]->[0, b, f], window "
        "= {stride = [1]} {batch_group_count = 2 : i64, feature_group_count = 1 : i64} : "
        "(tensor<3x4x2xE>, tensor<3x2x2xE>) -> tensor<3x1x2xE>"), "tensor<3x1x2xE>",
        [(3, 4, 2), (3, 2, 2)]),
}  # fmt: skip

_FLOATS: _Texts = {
    "triangular_solve": (
        ('%r = "stablehlo.triangular_solve"(%a, %b) <{left_side = true, lower = true, '
        "unit_diagonal = true, transpose_a = #stablehlo<transpose TRANSPOSE>}> : (tensor<3x3xE>, "
        "tensor<3x2xE>) -> tensor<3x2xE>"), "tensor<3x2xE>", [(3, 3), (3, 2)]),
}  # fmt: skip
_FOURIER: _Texts = {
    f"fft {kind}": (
        f"%r = stablehlo.fft %a, type = {kind}, length = [4] : (tensor<3x4xE>) -> tensor<3x4xE>",
        "tensor<3x4xE>", [(3, 4)])
    for kind in ("FFT", "IFFT")
}  # fmt: skip
_IOTAS: _Texts = {
    "iota": ("%r = stablehlo.iota dim = 1 : tensor<2x4xE>", "tensor<2x4xE>", []),
    "dynamic_iota": (
        ("%n = stablehlo.constant dense<[2, 4]> : tensor<2xi64>\n"
        "%r = stablehlo.dynamic_iota %n, dim = 0 : (tensor<2xi64>) -> tensor<2x4xE>"),
        "tensor<2x4xE>", []),
}  # fmt: skip

_SORTED = """"stablehlo.sort"(%a, %b) <{dimension = 1 : i64, is_stable = true}> ({
    ^bb0(%p: tensor<E>, %q: tensor<E>, %s: tensor<i32>, %t: tensor<i32>):
      %c = stablehlo.compare DIRECTION, %p, %q : (tensor<E>, tensor<E>) -> tensor<i1>
      stablehlo.return %c : tensor<i1> }) : (tensor<2x5xE>, tensor<2x5xi32>) ->
    (tensor<2x5xE>, tensor<2x5xi32>)"""
_POOLED = """<{window_dimensions = array<i64: 2, 3>, window_strides = array<i64: 2, 2>,
    padding = dense<[[0, 0], [1, 0]]> : tensor<2x2xi64>}>"""
_ORDER = np.arange(10, dtype=np.int32).reshape(2, 5)
_ORDERED: _Texts = {
    "sort up": (f"%r, %o = {_SORTED}".replace("DIRECTION", "LT"), "tensor<2x5xE>",
        [(2, 5), _ORDER]),
    "sort of places, down": (f"%o, %r = {_SORTED}".replace("DIRECTION", "GT"), "tensor<2x5xi32>",
        [(2, 5), _ORDER]),
    "select_and_scatter": (
        f'%r = "stablehlo.select_and_scatter"(%a, %b, %c) {_POOLED} ({{\n'
        "^bb0(%p: tensor<E>, %q: tensor<E>):\n"
        "%s = stablehlo.compare GE, %p, %q : (tensor<E>, tensor<E>) -> tensor<i1>\n"
        f"stablehlo.return %s : tensor<i1> }}, {_COMBINE[1:]} : (tensor<4x4xE>, tensor<2x2xE>, "
        "tensor<E>) -> tensor<4x4xE>".replace("COMBINER", "add"), "tensor<4x4xE>",
        [(4, 4), (2, 2), ()]),
}  # fmt: skip
_COMBINERS = {
    "bool": ["and", "or", "xor", "add", "maximum"],
    "int": ["add", "multiply", "maximum", "minimum", "and", "or", "xor"],
    "uint": ["add", "multiply", "maximum", "minimum", "and", "or", "xor"],
    "float": ["add", "multiply", "maximum", "minimum"],
    "complex": ["add", "multiply"],
}
_NEUTRAL = {"add": 0, "multiply": 1, "or": 0, "xor": 0}


def structural_cases(dtype: str) -> Iterator[OperationCase]:
    """Yield the cases of operations that move elements, combine them, and multiply matrices."""
    kind = kind_of(dtype)
    yield from _cases(_MOVES, dtype)
    for name in _COMBINERS[kind]:
        yield from _cases(_REDUCTIONS, dtype, name)
    if kind != "bool":
        yield from _cases({**_PRODUCTS, **_IOTAS}, dtype)
    if dtype in ("float32", "float64"):
        yield from _cases(_FLOATS, dtype)
    if dtype == "complex128":  # the interpreter has no other
        yield from _cases(_FOURIER, dtype)
    if kind in ("int", "uint", "float"):
        yield from _cases(_ORDERED, dtype, "add")


def _cases(texts: _Texts, dtype: str, combiner: str = "") -> Iterator[OperationCase]:
    numpy = numpy_dtype(dtype)
    element = element_type(numpy)
    for name, (body, result, shapes) in texts.items():
        text = body.replace("COMBINER", combiner).replace("<E>", f"<{element}>")
        text = text.replace("xE>", f"x{element}>")
        made = result.replace("xE>", f"x{element}>")
        arrays = tuple(_filled(shapes, numpy))
        if "window" in name and combiner in _NEUTRAL:  # XLA leaves out what is beyond the array
            arrays = (arrays[0], np.asarray(_NEUTRAL[combiner]).astype(numpy))
        absolute = 1e-14 if "fft" in name else 0  # of complex128
        title = f"{name} {combiner}".strip()
        yield OperationCase(title, text, made, arrays, absolute=absolute)


def _filled(shapes: Sequence[Any], numpy: np.dtype[Any]) -> Iterator[Any]:
    """Yield arrays of small numbers, of which sums are exact; an array stays what it is."""
    for seed, shape in enumerate(shapes):
        if isinstance(shape, np.ndarray):
            yield shape
            continue
        numbers = (np.arange(int(np.prod(shape))) * (3 + 2 * seed) + seed) % 5
        if numpy == np.bool_:
            numbers = numbers % 2
        elif not numpy.name.startswith("u"):
            numbers = numbers - 2
        numbers = numbers * 0 if shape == () and seed == 2 else numbers  # of select_and_scatter
        yield numbers.astype(numpy).reshape(shape)
