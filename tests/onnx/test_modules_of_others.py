"""StableHLO without an `Exported`: texts, portable artifacts and calls."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import export

import bridge
from tests.onnx.checking import run
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


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("func.func @f() { stablehlo.nothing }", FormatError, "no StableHLO.*stablehlo.nothing"),
        (TEXT + TEXT.replace("double", "more"), StructureError, "no function 'main'"),
        ("ML\xefR plain bytecode", FormatError, "no StableHLO|artifact begins with"),
        ("func.func @f(%a: tensor<2xtf32>) -> tensor<2xtf32> { return %a : tensor<2xtf32> }",
         DtypeError, r"args\[0\] is tensor<2xtf32>; elements.*bf16.*ui2"),
    ],
)  # fmt: skip
def test_files_that_are_refused(text, error, message, tmp_path):
    with pytest.raises(error, match=message):
        bridge.to_onnx(_written(tmp_path / "f.mlir", text.encode("latin-1")))
