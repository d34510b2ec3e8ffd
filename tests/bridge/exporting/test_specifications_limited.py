"""What users write of sizes, which JAX's parser would read for ever."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import bridge
from bridge import jax2tf
from bridge.exporting.argument_specs import to_specs
from bridge.exporting.specifications import parse_constraints
from xla_call_module.errors import StructureError

X = np.ones(4, np.float32)
SPEC = jax.ShapeDtypeStruct((4,), np.float32)
PARSED = {
    "convert": lambda text: bridge.convert(lambda x: x, polymorphic_shapes=text)(X),
    "convert of jax2tf": lambda text: jax2tf.convert(lambda x: x, polymorphic_shapes=[text])(X),
    "eval_polymorphic_shape": lambda text: jax2tf.eval_polymorphic_shape(
        lambda x: x, polymorphic_shapes=[text]
    )(SPEC),
    "args": lambda text: bridge.to_onnx(lambda x: x, args=f"f32[{text}]"),
    "constraints": lambda text: parse_constraints([f"{text} >= 1"]),
    "shapes of call_tf": lambda text: bridge.call_tf(lambda x: x, shapes=text)(X),
}


def _nested(names):
    half = len(names) // 2
    return f"max({_nested(names[:half])}, {_nested(names[half:])})" if half else names[0]


ENDLESS = {
    "exponent": "a^100000000",
    "deep exponent": "a ^ 30000",
    "greatest of many": _nested([f"a{index}" for index in range(64)]),
}


@pytest.mark.parametrize("name", PARSED)
@pytest.mark.parametrize("kind", ENDLESS)
def test_texts_that_take_too_long_are_refused(name, kind):
    with pytest.raises(StructureError, match=r"exponent \d+; expected at most|too long to read"):
        PARSED[name](ENDLESS[kind])


def test_args_have_the_powers_that_are_printed():
    call = jax.export.export(jax.jit(lambda x: x.reshape(-1)), platforms=["cpu"])
    (x,) = jax.export.symbolic_args_specs([SPEC], ["b"])
    printed = str(call(jax.ShapeDtypeStruct((x.shape[0] ** 2, *x.shape), x.dtype)).in_avals[0])
    assert printed == "float32[b^2,b]"
    specs, _ = to_specs(printed)
    assert str(specs[0].shape) == "(b^2, b)"
