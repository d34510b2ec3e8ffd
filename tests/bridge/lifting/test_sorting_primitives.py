"""Comparisons in total order are the primitives that JAX lowers to them."""

import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from tests.bridge.lifting.lifted import names

# In their order: the NaN with a sign is before, the other one behind all numbers.
_FLOATS = [np.copysign(np.nan, -1), -np.inf, -1.5, -0.0, 0.0, 1.5, np.inf, np.nan]
_MODULE = """
func.func public @main(%a: tensor<8x8xDTYPE>, %b: tensor<8x8xDTYPE>) -> tensor<8x8xi1> {
  %0 = stablehlo.compare DIRECTION, %a, %b, TOTALORDER
    : (tensor<8x8xDTYPE>, tensor<8x8xDTYPE>) -> tensor<8x8xi1>
  return %0 : tensor<8x8xi1>
}
"""
_COMPARED = {
    "EQ": np.equal, "GE": np.greater_equal, "GT": np.greater, "LE": np.less_equal, "LT": np.less,
    "NE": np.not_equal,
}  # fmt: skip


@pytest.mark.parametrize(("element", "dtype"), [("f32", jnp.float32), ("bf16", jnp.bfloat16)])
@pytest.mark.parametrize("direction", _COMPARED)
def test_comparisons_in_total_order(direction, element, dtype):
    left, right = jnp.broadcast_arrays(
        *(jnp.asarray(_FLOATS, dtype).reshape(shape) for shape in ((8, 1), (1, 8)))
    )
    lifted = bridge.to_jax(_MODULE.replace("DTYPE", element).replace("DIRECTION", direction))
    places = np.arange(8)
    expected = _COMPARED[direction](places[:, None], places[None, :])
    np.testing.assert_array_equal(lifted(left, right), expected)
    assert {*names(lifted, left, right)} <= {"eq_to", "le_to", "lt_to", "not", "jit"}
