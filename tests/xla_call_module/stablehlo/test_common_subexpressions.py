"""Equal operations are merged, and those that a random number tells apart are not."""

import pytest

from xla_call_module._jax import ir, make_ir_context
from xla_call_module.stablehlo.common_subexpressions import merge_equal

LOOP = """
    stablehlo.while(%x = %a) : tensor<f32>
    cond { %p = stablehlo.compare LT, %x, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1> }
    do { %y = stablehlo.while(%z = %x) : tensor<f32>
        cond { %p = stablehlo.compare LT, %z, %b, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
          stablehlo.return %p : tensor<i1> }
        do { STEP
          stablehlo.return %w : tensor<f32> }
      stablehlo.return %y : tensor<f32> }"""


RANDOM = """%w = stablehlo.rng %z, %b, %s, distribution = UNIFORM
          : (tensor<f32>, tensor<f32>, tensor<0xi64>) -> tensor<f32>"""


@pytest.mark.parametrize(
    ("step", "loops"), [("%w = stablehlo.add %z, %b : tensor<f32>", 2), (RANDOM, 4)]
)
def test_equal_loops_in_loops_are_merged_where_nothing_tells_them_apart(step, loops):
    text = f"""func.func public @main(%a: tensor<f32>, %b: tensor<f32>, %s: tensor<0xi64>)
      -> (tensor<f32>, tensor<f32>) {{
      %0 = {LOOP.replace("STEP", step)}
      %1 = {LOOP.replace("STEP", step)}
      func.return %0, %1 : tensor<f32>, tensor<f32> }}"""
    with make_ir_context():
        module = ir.Module.parse(text)
        merge_equal(module)
        module.operation.verify()
        assert str(module).count("stablehlo.while") == loops
