"""Branches that a known number chooses."""

import pytest

from xla_call_module._jax import ir, make_ir_context
from xla_call_module.analyses.branches import keep_platform

MODULE = """func.func public @main(%p: tensor<i32>, %x: tensor<f32>) -> tensor<f32> {
  %i = stablehlo.constant dense<INDEX> : tensor<i32>
  %0 = "stablehlo.case"(%i) ({
    %a = stablehlo.abs %x : tensor<f32>
    stablehlo.return %a : tensor<f32> }, {
    %b = stablehlo.negate %x : tensor<f32>
    stablehlo.return %b : tensor<f32> }, {
    %c = stablehlo.sine %x : tensor<f32>
    stablehlo.return %c : tensor<f32> }) : (tensor<i32>) -> tensor<f32>
  func.return %0 : tensor<f32> }"""


@pytest.mark.parametrize(
    ("index", "chosen"),
    [(0, "abs"), (1, "negate"), (2, "sine"), (3, "sine"), (-1, "sine"), (-3, "sine")],
)
def test_an_index_out_of_bounds_chooses_the_last_branch(index, chosen):
    with make_ir_context():
        module = ir.Module.parse(MODULE.replace("INDEX", str(index)))
        keep_platform(module, 0)
        module.operation.verify()
        names = [name for name in ("abs", "case", "negate", "sine") if f".{name}" in str(module)]
    assert names == [chosen]
