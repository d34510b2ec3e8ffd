"""StableHLO without an `Exported`: texts, portable artifacts and calls."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import onnx
import pytest
from jax import export

import bridge
from tests.bridge.onnx.checking import run
from xla_call_module import from_exported
from xla_call_module.errors import DtypeError, FormatError, StructureError, UnsupportedError

X = np.arange(6, dtype=np.float32).reshape(2, 3)
TEXT = """func.func @double(%a: tensor<?x3xf32>) -> tensor<?x3xf32> {
  %0 = stablehlo.add %a, %a : tensor<?x3xf32>
  return %0 : tensor<?x3xf32> }"""


@pytest.fixture(scope="module")
def exported():
    return export.export(jax.jit(lambda x: x + x))(jax.ShapeDtypeStruct((2, 3), "float32"))


def _written(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("form", ["text", "artifact", "text of JAX"])
def test_files(form, tmp_path, exported):
    content = {
        "text": TEXT.encode(),
        "artifact": exported.mlir_module_serialized,
        "text of JAX": exported.mlir_module().encode(),
    }[form]
    model = bridge.to_onnx(_written(tmp_path / "double.mlir", content))
    assert model.graph.name == "double"
    np.testing.assert_array_equal(run(model, [X])[0], 2 * X)
    size = model.graph.input[0].type.tensor_type.shape.dim[0]
    assert bool(size.dim_param) == (form == "text")


def test_a_program_of_constants(tmp_path):
    text = b"""func.func @two() -> tensor<2xi64> {
      %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi64>
      return %0 : tensor<2xi64> }"""
    model = bridge.to_onnx(_written(tmp_path / "two.mlir", text))
    assert [value.name for value in model.graph.output] == ["output_0"]
    np.testing.assert_array_equal(run(model, [])[0], [1, 2])


def test_a_call(exported):
    np.testing.assert_array_equal(run(bridge.to_onnx(from_exported(exported)), [X])[0], 2 * X)


def test_a_module_alone_has_parameters_and_a_gradient(tmp_path):
    path = _written(tmp_path / "double.mlir", TEXT.replace("?x3", "2x3").encode())
    np.testing.assert_array_equal(run(bridge.to_onnx(path, params=X), [])[0], 2 * X)
    bridge.save_onnx(path, tmp_path / "gradient.onnx", gradient_order=1)
    (gradient,) = run(onnx.load(tmp_path / "gradient.onnx"), [X, X + 1])
    np.testing.assert_array_equal(gradient, 2 * (X + 1))


def test_a_call_of_a_pair_of_passes(exported):
    call = dataclasses.replace(from_exported(exported), residual_results=1)
    with pytest.raises(StructureError, match=r"shares residuals.*To do: pass the signature"):
        bridge.to_onnx(call)


def test_a_tuple_that_goes_to_another_function(tmp_path):
    text = b"""func.func private @first(%a: tuple<tensor<2xf32>>) -> tensor<2xf32> {
      %0 = stablehlo.get_tuple_element %a[0] : (tuple<tensor<2xf32>>) -> tensor<2xf32>
      return %0 : tensor<2xf32> }
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %t = stablehlo.tuple %x : tuple<tensor<2xf32>>
      %0 = func.call @first(%t) : (tuple<tensor<2xf32>>) -> tensor<2xf32>
      return %0 : tensor<2xf32> }"""
    with pytest.raises(UnsupportedError, match=r"stablehlo.tuple at .*elements one by one"):
        bridge.to_onnx(_written(tmp_path / "f.mlir", text))


def test_expectations_are_left_out(tmp_path):
    text = b"""func.func @main(%x: tensor<2x3xf32>) -> tensor<2x3xf32> {
      stablehlo.custom_call @check.expect_close(%x, %x) {has_side_effect = true}
        : (tensor<2x3xf32>, tensor<2x3xf32>) -> ()
      %0 = stablehlo.negate %x : tensor<2x3xf32>
      return %0 : tensor<2x3xf32> }"""
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    np.testing.assert_array_equal(run(model, [X])[0], -X)


CALLED = """func.func {how}@inner(%a: tensor<2x3xf32>) -> tensor<2x3xf32> {{
  %0 = stablehlo.negate %a : tensor<2x3xf32>
  return %0 : tensor<2x3xf32> }}
func.func @outer(%a: tensor<2x3xf32>) -> tensor<2x3xf32> {{
  %0 = {call} : (tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0 : tensor<2x3xf32> }}"""
CALL = "func.call @inner(%a)"
COMPOSITE = 'stablehlo.composite "a.b" %a {decomposition = @inner}'


@pytest.mark.parametrize(
    ("how", "call"),
    [("", CALL), ("", COMPOSITE), ("private ", CALL), ("private ", "stablehlo.negate %a")],
)
def test_the_function_that_no_other_one_names(how, call, tmp_path):
    text = CALLED.format(how=how, call=call)
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text.encode()))
    np.testing.assert_array_equal(run(model, [X])[0], -X)


def test_the_only_function_may_be_private(tmp_path):
    text = TEXT.replace("@double", "private @double").encode()
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    np.testing.assert_array_equal(run(model, [X])[0], 2 * X)


def test_sizes_that_follow_from_no_argument(tmp_path):
    text = b"""func.func @main() -> tensor<?xi64> {
      %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi64>
      %1 = stablehlo.negate %0 : (tensor<2xi64>) -> tensor<?xi64>
      return %1 : tensor<?xi64> }"""
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    np.testing.assert_array_equal(run(model, [])[0], [-1, -2])


BOUNDED = """func.func @f() -> tensor<2x2xi64> {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi64>
  %1 = stablehlo.negate %0 : (tensor<2xi64>) -> tensor<?xi64, #stablehlo.bounds<3>>
  %2 = OPERATION : (tensor<?xi64, #stablehlo.bounds<3>>) -> TYPE
  %3 = stablehlo.negate %2 : (TYPE) -> tensor<?x?xi64>
  %4 = stablehlo.constant dense<2> : tensor<2xi64>
  %5 = stablehlo.dynamic_broadcast_in_dim %3, %4, dims = [0, 1]
    : (tensor<?x?xi64>, tensor<2xi64>) -> tensor<2x2xi64>
  return %5 : tensor<2x2xi64> }"""


@pytest.mark.parametrize(
    ("operation", "size"),
    [("stablehlo.reshape %1", 1), ("stablehlo.broadcast_in_dim %1, dims = [1]", 2)],
)
def test_sizes_of_no_more_than_some_number(operation, size, tmp_path):
    type_ = f"tensor<{size}x?xi64, #stablehlo.bounds<?, 3>>"
    text = BOUNDED.replace("OPERATION", operation).replace("TYPE", type_).encode()
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    np.testing.assert_array_equal(run(model, [])[0], [[1, 2], [1, 2]])


ALGORITHM = """func.func @f() -> tensor<2x2xi32> {
  %0 = stablehlo.constant dense<[[1, 2], [3, NUMBER]]> : tensor<2x2xi32>
  %1 = stablehlo.dot_general %0, %0, contracting_dims = [1] x [0], algorithm = <
    lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32,
    lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1,
    allow_imprecise_accumulation = false> : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
  return %1 : tensor<2x2xi32> }"""


def test_an_algorithm_that_rounds_no_constant(tmp_path):
    text = ALGORITHM.replace("NUMBER", "4").encode()
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    np.testing.assert_array_equal(run(model, [])[0], [[7, 10], [15, 22]])


def test_powers_of_two_of_constants(tmp_path):
    text = POWER_OF_TWO.replace("NUMBERS", "[1.0, 5.0]").encode()
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    np.testing.assert_array_equal(run(model, [])[0], [1.0, 4.0])


BINARY = """func.func @f() -> tensor<2xELEMENT> {
  %0 = stablehlo.constant dense<LEFT> : tensor<2xELEMENT>
  %1 = stablehlo.constant dense<RIGHT> : tensor<2xELEMENT>
  %2 = stablehlo.OPERATION %0, %1 : tensor<2xELEMENT>
  return %2 : tensor<2xELEMENT> }"""


def _binary(operation, element, left, right):
    parts = {"OPERATION": operation, "ELEMENT": element, "LEFT": left, "RIGHT": right}
    text = BINARY
    for name, value in parts.items():
        text = text.replace(name, str(value))
    return text


@pytest.mark.parametrize(
    ("element", "left", "right"),
    [("i64", [5, -5], [3, 0]), ("ui8", [5, 5], [0, 2]), ("i8", [-128, 5], [-1, 2])],
)
@pytest.mark.parametrize("operation", ["divide", "remainder"])
def test_quotients_of_constants_that_are_left_open(operation, element, left, right, tmp_path):
    text = _binary(operation, element, left, right).encode()
    with pytest.raises(UnsupportedError, match=f"stablehlo.{operation} at.*leaves open"):
        bridge.to_onnx(_written(tmp_path / "f.mlir", text))


def test_quotients_of_constants(tmp_path):
    text = _binary("divide", "ui8", [255, 5], [255, 2]).encode()
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    np.testing.assert_array_equal(run(model, [])[0], [1, 2])


SORT = """func.func @f(%x: tensor<4xELEMENT>) -> tensor<4xELEMENT> {
  %0 = "stablehlo.sort"(%x) <{dimension = 0 : i64, is_stable = false}> ({
  ^bb0(%a: tensor<ELEMENT>, %b: tensor<ELEMENT>):
    %1 = stablehlo.compare GE, %a, %b : (tensor<ELEMENT>, tensor<ELEMENT>) -> tensor<i1>
    stablehlo.return %1 : tensor<i1>
  }) : (tensor<4xELEMENT>) -> tensor<4xELEMENT>
  return %0 : tensor<4xELEMENT> }"""


def test_equal_integers_are_in_any_order(tmp_path):
    text = SORT.replace("ELEMENT", "i32").encode()
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    found = run(model, [np.array([1, 3, 1, 2], np.int32)])[0]
    np.testing.assert_array_equal(found, [3, 2, 1, 1])


ROUNDED = """func.func @f() -> tensor<2xf32> {
  %0 = stablehlo.constant dense<[1.0, 0x7FC00000]> : tensor<2xf32>
  %1 = stablehlo.reduce_precision %0, format = e5m0 : tensor<2xf32>
  return %1 : tensor<2xf32> }"""
COMPUTED = """func.func @f() -> tensor<?xi32> {
  %0 = stablehlo.constant dense<[5]> : tensor<1xi32>
  %1 = stablehlo.popcnt %0 : tensor<1xi32>
  %2 = stablehlo.dynamic_iota %1, dim = 0 : (tensor<1xi32>) -> tensor<?xi32>
  return %2 : tensor<?xi32> }"""
QUANTIZED = """func.func @f(%a: tensor<2x!quant.uniform<i8:f32, 0.5>>) -> tensor<2xf32> {
  %0 = stablehlo.uniform_dequantize %a
    : (tensor<2x!quant.uniform<i8:f32, 0.5>>) -> tensor<2xf32>
  return %0 : tensor<2xf32> }"""
POWER_OF_TWO = """func.func @f() -> tensor<2xf32> {
  %0 = stablehlo.constant dense<NUMBERS> : tensor<2xf32>
  %1 = stablehlo.convert %0 : (tensor<2xf32>) -> tensor<2xf8E8M0FNU>
  %2 = stablehlo.convert %1 : (tensor<2xf8E8M0FNU>) -> tensor<2xf32>
  return %2 : tensor<2xf32> }"""
MATH = """func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> {
  %0 = math.sqrt %a : tensor<2xf32>
  return %0 : tensor<2xf32> }"""
CHECKED = """func.func @f(%a: tensor<2xf32>) -> tensor<2xf32> {{
  {check}
  return %a : tensor<2xf32> }}"""
PRETTY = CHECKED.format(check="check.expect_almost_eq_const %a, dense<1.0> : tensor<2xf32>")
GENERIC = CHECKED.format(check='"check.expect_eq"(%a, %a) : (tensor<2xf32>, tensor<2xf32>) -> ()')


def test_a_module_whose_dimensions_are_arguments(tmp_path):
    """Without a specification: what has to be equal does not follow from the types."""
    text = b"""func.func @main(%b: tensor<i64>, %x: tensor<?x3xf32>, %y: tensor<2x?x3xf32>)
        -> tensor<2x?x3xf32> {
      %0 = stablehlo.convert %b : (tensor<i64>) -> tensor<i32>
      %1 = stablehlo.reshape %0 : (tensor<i32>) -> tensor<1xi32>
      %2 = stablehlo.constant dense<2> : tensor<1xi32>
      %3 = stablehlo.constant dense<3> : tensor<1xi32>
      %4 = stablehlo.concatenate %2, %1, %3, dim = 0
        : (tensor<1xi32>, tensor<1xi32>, tensor<1xi32>) -> tensor<3xi32>
      %5 = stablehlo.dynamic_broadcast_in_dim %x, %4, dims = [1, 2]
        : (tensor<?x3xf32>, tensor<3xi32>) -> tensor<2x?x3xf32>
      %6 = stablehlo.add %5, %y : tensor<2x?x3xf32>
      return %6 : tensor<2x?x3xf32> }"""
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    x, y = np.ones((4, 3), np.float32), np.ones((2, 4, 3), np.float32)
    np.testing.assert_array_equal(run(model, [np.array(4), x, y])[0], x + y)


def test_a_result_whose_size_is_no_polynomial(tmp_path):
    text = b"""func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
      %0 = "stablehlo.reduce_window"(%x, %zero) <{window_dimensions = array<i64: 2>,
          window_strides = array<i64: 2>}> ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %1 = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %1 : tensor<f32> }) : (tensor<?xf32>, tensor<f32>) -> tensor<?xf32>
      return %0 : tensor<?xf32> }""".replace(
        b"%0 =", b"%zero = stablehlo.constant dense<0.0> : tensor<f32>\n %0 =", 1
    )
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    found = run(model, [np.arange(5, dtype=np.float32)])[0]
    np.testing.assert_array_equal(found, [1.0, 5.0])
    assert model.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "r0_0"


def test_a_constant_that_is_broadcast_to_no_elements(tmp_path):
    text = b"""func.func @main(%x: tensor<?x2xf32>) -> tensor<?x0xf32> {
      %0 = stablehlo.constant dense<1.0> : tensor<f32>
      %1 = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x2xf32>) -> tensor<i32>
      %2 = stablehlo.reshape %1 : (tensor<i32>) -> tensor<1xi32>
      %3 = stablehlo.constant dense<0> : tensor<1xi32>
      %4 = stablehlo.concatenate %2, %3, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %5 = stablehlo.dynamic_broadcast_in_dim %0, %4, dims = []
        : (tensor<f32>, tensor<2xi32>) -> tensor<?x0xf32>
      return %5 : tensor<?x0xf32> }"""
    model = bridge.to_onnx(_written(tmp_path / "f.mlir", text))
    assert run(model, [np.ones((3, 2), np.float32)])[0].shape == (3, 0)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("func.func @f() { stablehlo.nothing }", FormatError, "not StableHLO.*stablehlo.nothing"),
        (TEXT + TEXT.replace("double", "more"), StructureError,
         "no function 'main', but double, more"),
        (ROUNDED, UnsupportedError, "rounds a constant NaN to no bits of a fraction"),
        (ALGORITHM.replace("NUMBER", "2049"), UnsupportedError, "rounds operands of int32 to tf32"),
        (SORT.replace("ELEMENT", "f32"), UnsupportedError, "it is unstable"),
        (BOUNDED.replace("OPERATION", "stablehlo.broadcast_in_dim %1, dims = [1]")
         .replace("TYPE", "tensor<?x2xi64, #stablehlo.bounds<4, ?>>"),
         UnsupportedError, "a size of its result is unknown"),
        (POWER_OF_TWO.replace("NUMBERS", "[1.0, 0.0]"), UnsupportedError,
         "float8_e8m0fnu of a constant that is not positive, which StableHLO leaves open"),
        (MATH, FormatError, "has no form in StableHLO.*To do: write it in operations"),
        (f"{TEXT}\n// -----\n{TEXT}", FormatError, "To do: keep one of its programs"),
        (COMPUTED, StructureError, r"returns tensor<\?xi32>, of sizes that are not known"),
        (QUANTIZED, FormatError, "To do: write out what its quantized types mean"),
        (PRETTY, FormatError, "To do: leave out the operations of the dialect check"),
        (GENERIC, FormatError, 'To do: leave out.*than StableHLO\'s: "check.expect_eq"'),
        ("ML\xefR plain bytecode", FormatError, "not StableHLO|artifact begins with"),
        ("func.func @f(%a: tensor<2xtf32>) -> tensor<2xtf32> { return %a : tensor<2xtf32> }",
         DtypeError, r"args\[0\] is tensor<2xtf32>; elements.*bf16.*ui2"),
        ("""func.func @main(%x: tensor<2xf32>) -> tensor<i1> {
            %0 = stablehlo.custom_call @check.eq(%x, %x)
              : (tensor<2xf32>, tensor<2xf32>) -> tensor<i1>
            return %0 : tensor<i1> }""",
         UnsupportedError, r"stablehlo.custom_call at .*return its first operand instead"),
    ],
)  # fmt: skip
def test_files_that_are_refused(text, error, message, tmp_path):
    with pytest.raises(error, match=message):
        bridge.to_onnx(_written(tmp_path / "f.mlir", text.encode("latin-1")))
