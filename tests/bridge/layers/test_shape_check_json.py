"""Shape checks in the configs of layers."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest

from bridge.layers.shape_check_json import (
    decode_call,
    decode_shape_check,
    encode_call,
    encode_shape_check,
)
from xla_call_module import from_exported
from xla_call_module.errors import FormatError
from xla_call_module.node import description_allowance
from xla_call_module.passes.asserting import to_shape_check


def make_check(shape, *constraints):
    dims = jax.export.symbolic_shape(shape, constraints=constraints)
    spec = jax.ShapeDtypeStruct(dims, "float32")
    return to_shape_check(from_exported(jax.export.export(jax.jit(jnp.sin))(spec)))


@pytest.mark.parametrize(
    "arguments",
    [
        ("b, b",),
        ("2*b, b",),
        ("b, c", "b >= c + 1"),
        ("b, c", "mod(b, c) == 0"),
        ("b, c", "max(b, c) >= 7", "floordiv(b, 2) <= 100"),
    ],
    ids=str,
)
def test_a_check_is_read_as_it_was(arguments):
    check = make_check(*arguments)
    fields = json.loads(json.dumps(encode_shape_check(check)))
    assert decode_shape_check(fields, description_allowance()) == check


def test_a_call_is_read_as_it_was():
    call = make_check("b, b").call
    assert decode_call(encode_call(call), description_allowance()) == call
    with pytest.raises(FormatError, match="not a NodeDef"):
        decode_call(b"\xff", description_allowance())


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([], "has 0 steps, of which the last one says nothing"),
        ([["size", 0, 0]], "the last one says nothing"),
        ([["constant", 1, "bool"]], "the last one says nothing"),
        ([["size", 0, 0], ["Neg", [0], "int32", "int32"]], "the last one says nothing"),
        ([["size", 0, 2]], "takes what is not there"),
        ([["size", -1, 0]], "takes what is not there"),
        ([["size", 0, 0], ["Equal", [0, 1], "int32", "bool"]], "takes what is not there"),
        ([["size", 0, 0], ["Equal", [0, -1], "int32", "bool"]], "takes what is not there"),
        ([["ReadFile", [0], "int32", "bool"]], "the operation 'ReadFile' of 1 inputs"),
        ([["Equal", [0], "int32", "bool"]], "the operation 'Equal' of 1 inputs"),
        ([["Cast", [0], "string", "bool"]], "a scalar of the dtype 'string'"),
        ([["constant", 2, "bool"]], "has the step"),
        ([["constant", 1 << 31, "int32"]], "has the step"),
        ([["constant", 1 << 63, "int64"]], "has the step"),
        (["size"], "has the step"),
        ([7], "has the step"),
    ],
    ids=str,
)
def test_other_steps_are_refused(steps, message):
    fields = encode_shape_check(make_check("b, b")) | {"steps": steps}
    with pytest.raises(FormatError, match=message):
        decode_shape_check(fields, description_allowance())
