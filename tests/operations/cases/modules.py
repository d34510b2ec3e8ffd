"""Modules of StableHLO that no function of JAX is lowered to: older files, and other frontends'."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bridge.loading.exported_from_call import exported_from_call
from tests.operations.case import Case
from tests.operations.operands import Operand, fixed
from xla_call_module.mlir_files import call_of_file

_WITHOUT = ("vmap", "gradient", "second gradient")
X = fixed([3.0, -1.0, 2.0, 5.0], "float32")
SORTED = fixed([3.0, 0.0, -0.0, -2.0, 3.0, 1.0], "float32")
NUMBERS = fixed([2.0, 3.0, 4.0], "float32")
LINE = fixed([1.0, 2.0, 0.5], "float32")
IMAGE = Operand((2, 3, 2), dtype="float32", extreme=False)
GRID = Operand((2, 3), dtype="float32", extreme=False)
GRID3 = Operand((3, 3), dtype="float32", extreme=False)
LOWER = fixed(np.tril(np.ones((3, 3))), "float32")
POSITIVE = fixed([[4, 1, 0.5], [1, 3, -1], [0.5, -1, 2]], "float32")
START = fixed(0.5, "float32")
ORDER = fixed(np.arange(6), "int32")

_GENERAL = """({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.multiply %a, %b : tensor<f32>
    %s = stablehlo.add %m, %a : tensor<f32>
    %t = stablehlo.add %s, %b : tensor<f32>
    stablehlo.return %t : tensor<f32> })"""
_SCATTER = """scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
  scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = """
_WINDOW = """window_dimensions = array<i64: 3>, window_strides = array<i64: 2>,
  padding = dense<[[1, 1]]> : tensor<1x2xi64>, base_dilations = array<i64: 2>"""
_POOL = """window_dimensions = array<i64: 3>, window_strides = array<i64: 2>,
  padding = dense<[[0, 1]]> : tensor<1x2xi64>"""
_NORM = "epsilon = 1.0e-03 : f32, feature_index = 1 : i64"
_NUMBERS = """dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0],
    start_index_map = [0], index_vector_dim = 1>"""
_STABLE = "dimension = 0 : i64, is_stable = true"
_ALONG = "dimensions = array<i64: 0>"


def _region(name: str, element: str = "f32") -> str:
    return f"""({{ ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
        %s = stablehlo.{name} %a, %b : tensor<{element}>
        stablehlo.return %s : tensor<{element}> }})"""


def _comparison(kind: str, *, before: str = "", pairs: str = "", names: str = "%a, %b") -> str:
    return f"""({{ ^bb0(%a: tensor<f32>, %b: tensor<f32>{pairs}): {before}
        %p = stablehlo.compare {kind.replace(",", f", {names},")} : (tensor<f32>, tensor<f32>)
          -> tensor<i1>
        stablehlo.return %p : tensor<i1> }})"""


def _type(operand: Operand) -> str:
    element = {"float32": "f32", "int32": "i32", "int64": "i64", "bool": "i1", "int8": "i8"}
    return f"tensor<{''.join(f'{size}x' for size in operand.shape)}{element[operand.dtype or '']}>"


def program(operation: str, operands: Sequence[Operand], results: str, settings: str = "") -> str:
    """Return a module of one operation, or of some lines that make `%r` of `%x0`, `%x1`...

    Args:
        operation: its name with its regions, or the lines.
        operands: what it takes.
        results: the types of what it makes.
        settings: its attributes.
    """
    types = list(map(_type, operands))
    takes = ", ".join(f"%x{n}: {type_}" for n, type_ in enumerate(types))
    names = ", ".join(f"%x{n}" for n in range(len(types)))
    count = results.count("tensor")
    made = "%r" if count == 1 else ", ".join(f"%r#{n}" for n in range(count))
    name, _, regions = operation.partition(" ")
    body = operation
    if "%r" not in operation:
        body = f"""%r{"" if count == 1 else f":{count}"} = "stablehlo.{name}"({names}) {regions}
          {{{settings}}} : ({", ".join(types)}) -> ({results})"""
    return f"func.func @main({takes}) -> ({results}) {{ {body}\n return {made} : {results} }}"


@functools.cache
def _function(text: str) -> Callable[..., Any]:
    call = call_of_file(Path("program.mlir"), text.encode(), narrow=True)
    return exported_from_call(call).call


def _modules() -> Iterator[tuple[str, str, Sequence[Operand], str, str]]:
    """Yield the class of an operation, and what is particular; its module's operands and text."""
    for note, region in (("general", _GENERAL), ("of quotients", _region("divide"))):
        for unique, places in (("false", [[1], [1], [9]]), ("true", [[3], [1], [9]])):
            yield ("Scatter", f"{note}, unique={unique}", [X, fixed(places, "int32"), NUMBERS],
                   f"scatter {region}", f"tensor<4xf32>; {_SCATTER}{unique}")  # fmt: skip
    pairs = ", %c: tensor<i32>, %d: tensor<i32>"
    for kind in ("GT, FLOAT", "LT, TOTALORDER", "GT, TOTALORDER"):
        yield ("Sort", kind, [SORTED, ORDER], f"sort {_comparison(kind, pairs=pairs)}",
               f"tensor<6xf32>, tensor<6xi32>; {_STABLE}")  # fmt: skip
    sizes = "%c = stablehlo.abs %a : tensor<f32> %d = stablehlo.abs %b : tensor<f32>"
    yield ("Sort", "by magnitude", [SORTED],
           f"sort {_comparison('LT, FLOAT', before=sizes, names='%c, %d')}",
           f"tensor<6xf32>; {_STABLE}")  # fmt: skip
    yield "Reduce", "general", [X, START], f"reduce {_GENERAL}", f"tensor<f32>; {_ALONG}"
    yield ("Reduce", "of truth values", [fixed([True, False, True], "bool"), fixed(False, "bool")],
           f"reduce {_region('add', 'i1')}", f"tensor<i1>; {_ALONG}")  # fmt: skip
    for name, region in (("general", _GENERAL), ("add", _region("add"))):
        yield ("ReduceWindow", name, [SORTED, START], f"reduce_window {region}",
               f"tensor<6xf32>; {_WINDOW}")  # fmt: skip
    for direction in ("GE", "GT", "LE", "LT"):
        for name in ("add", "maximum"):
            chosen = _comparison(f"{direction}, FLOAT")[:-1]
            yield ("SelectAndScatter", f"{direction}, {name}",
                   [fixed([1, 1, 1, -2, -1, -2], "float32"), NUMBERS, START],
                   f"select_and_scatter {chosen}, {_region(name)[1:]}",
                   f"tensor<6xf32>; {_POOL}")  # fmt: skip
    yield ("Cholesky", "", [POSITIVE, LOWER],
           """%c = "stablehlo.cholesky"(%x0) {lower = true} : (tensor<3x3xf32>) -> tensor<3x3xf32>
        %r = stablehlo.multiply %c, %x1 : tensor<3x3xf32>""", "tensor<3x3xf32>; ")  # fmt: skip
    for left in ("true", "false"):
        for turned in ("NO_TRANSPOSE", "TRANSPOSE"):
            yield ("TriangularSolve", f"left={left}, {turned}", [POSITIVE, GRID3],
                   "triangular_solve", f"""tensor<3x3xf32>; left_side = {left}, lower = true,
                   unit_diagonal = false,
                   transpose_a = #stablehlo<transpose {turned}>""")  # fmt: skip
    for index in (-1, 0, 7):
        yield ("Case", f"of {index}", [X], f"""%i = stablehlo.constant dense<{index}> : tensor<i32>
        %r = "stablehlo.case"(%i) ({{ stablehlo.return %x0 : tensor<4xf32> }},
          {{ %y = stablehlo.negate %x0 : tensor<4xf32> stablehlo.return %y : tensor<4xf32> }}) :
          (tensor<i32>) -> tensor<4xf32>""", "tensor<4xf32>; ")  # fmt: skip
    yield "Map", "", [X, X], f"map {_GENERAL}", f"tensor<4xf32>; {_ALONG}"
    yield ("Einsum", "", [GRID, Operand((3, 4), dtype="float32", extreme=False)], "einsum",
           'tensor<2x4xf32>; einsum_config = "ij,jk->ik"')  # fmt: skip
    yield ("TorchIndexSelect", "", [IMAGE, fixed([1, 9], "int32")], "torch_index_select",
           "tensor<2x3x2xf32>; dim = 0 : i64, batch_dims = 0 : i64")  # fmt: skip
    yield ("Pow", "of integers",
           [fixed([2, -1, -1, 7, 7, 0], "int32"), fixed([5, -3, -2, -1, 0, 3], "int32")],
           "power", "tensor<6xi32>; ")  # fmt: skip
    yield ("Div", "of the least integer", [fixed([-128, 64], "int8"), fixed([-1, -2], "int8")],
           "divide", "tensor<2xi8>; ")  # fmt: skip
    norm = "tensor<2x3x2xf32>"
    several = f"{norm}, tensor<3xf32>, tensor<3xf32>; {_NORM}"
    yield ("BatchNormInference", "", [IMAGE, *[LINE] * 4], "batch_norm_inference",
           f"{norm}; {_NORM}")  # fmt: skip
    yield "BatchNormTraining", "", [IMAGE, LINE, LINE], "batch_norm_training", several
    yield "BatchNormGrad", "", [IMAGE, *[LINE] * 3, IMAGE], "batch_norm_grad", several
    sizes = "%n = stablehlo.constant dense<[2, 3]> : tensor<2xi64>"
    yield ("DynamicBroadcastInDim", "", [LINE], f"""{sizes}
        %r = stablehlo.dynamic_broadcast_in_dim %x0, %n, dims = [1] :
          (tensor<3xf32>, tensor<2xi64>) -> tensor<2x3xf32>""", "tensor<2x3xf32>; ")  # fmt: skip
    yield ("DynamicReshape", "", [SORTED], f"""{sizes}
        %r = stablehlo.dynamic_reshape %x0, %n : (tensor<6xf32>, tensor<2xi64>) ->
          tensor<2x3xf32>""", "tensor<2x3xf32>; ")  # fmt: skip
    yield ("DynamicIota", "", [], f"""{sizes}
        %r = stablehlo.dynamic_iota %n, dim = 0 : (tensor<2xi64>) -> tensor<2x3xf32>""",
           "tensor<2x3xf32>; ")  # fmt: skip
    yield ("DynamicPad", "", [LINE, START], """%n = stablehlo.constant dense<1> : tensor<1xi64>
        %r = stablehlo.dynamic_pad %x0, %x1, %n, %n, %n : (tensor<3xf32>, tensor<f32>,
          tensor<1xi64>, tensor<1xi64>, tensor<1xi64>) -> tensor<7xf32>""",
           "tensor<7xf32>; ")  # fmt: skip
    yield ("DynamicGather", "", [GRID, fixed([[1], [-1], [9]], "int32")],
           f"""%n = stablehlo.constant dense<[1, 2]> : tensor<2xi64>
        %r = "stablehlo.dynamic_gather"(%x0, %x1, %n) <{{{_NUMBERS}}}> :
          (tensor<2x3xf32>, tensor<3x1xi32>, tensor<2xi64>) -> tensor<3x2xf32>""",
           "tensor<3x2xf32>; ")  # fmt: skip
    yield ("Convolution", "reversed", [Operand((1, 4, 3, 4), dtype="float32", extreme=False),
                                       Operand((2, 2, 2, 4), dtype="float32", extreme=False)],
           """%r = stablehlo.convolution(%x0, %x1) dim_numbers =
          [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], window = {stride = [2, 1],
          pad = [[1, 2], [0, 1]], lhs_dilate = [1, 2], rhs_dilate = [2, 1],
          reverse = [true, false]} {batch_group_count = 1 : i64, feature_group_count = 2 : i64} :
          (tensor<1x4x3x4xf32>, tensor<2x2x2x4xf32>) -> tensor<1x3x5x4xf32>""",
           "tensor<1x3x5x4xf32>; ")  # fmt: skip
    yield ("GetTupleElement", "", [X, LINE],
           """%t = stablehlo.tuple %x0, %x1 : tuple<tensor<4xf32>, tensor<3xf32>>
        %r = stablehlo.get_tuple_element %t[1] : (tuple<tensor<4xf32>, tensor<3xf32>>) ->
          tensor<3xf32>""", "tensor<3xf32>; ")  # fmt: skip
    yield ("BroadcastInDim", "in a circle", [Operand((2, 3, 4), dtype="float32")],
           """%r = stablehlo.broadcast_in_dim %x0, dims = [1, 3, 0] :
          (tensor<2x3x4xf32>) -> tensor<4x2x5x3xf32>""", "tensor<4x2x5x3xf32>; ")  # fmt: skip
    yield ("RealDynamicSlice", "", [SORTED, fixed([3], "int32")],
           """%two = stablehlo.constant dense<2> : tensor<1xi32>
        %one = stablehlo.constant dense<1> : tensor<1xi32>
        %end = stablehlo.add %x1, %two : tensor<1xi32>
        %r = stablehlo.real_dynamic_slice %x0, %x1, %end, %one : (tensor<6xf32>, tensor<1xi32>,
          tensor<1xi32>, tensor<1xi32>) -> tensor<2xf32>""", "tensor<2xf32>; ")  # fmt: skip


PROGRAMS = {
    f"{name}({note})" if note else name: (
        program(operation, operands, *results.split("; ")), tuple(operands)
    )
    for name, note, operands, operation, results in _modules()
}  # fmt: skip
_DIALECT = "jaxlib.mlir.dialects.stablehlo"
CASES = tuple(
    Case(
        f"{_DIALECT}.{name.replace('(', 'Op(') if '(' in name else f'{name}Op'}",
        f"{_DIALECT}.{name.partition('(')[0]}Op",
        lambda *arrays, text=text: _function(text)(*arrays), operands, ("float32",), loose=4,
        without=_WITHOUT,
    )
    for name, (text, operands) in PROGRAMS.items()
)  # fmt: skip
