"""Blocks in which an operation does not make what it is said to make."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.blocks.block import Block, Operation, Value
from bridge.blocks.block_builder import build_block
from bridge.blocks.checking import check_block
from xla_call_module.errors import StructureError


def value(text):
    """A value of a type such as `float32[2,3]`."""
    dtype, _, sizes = text.rstrip("]").partition("[")
    return Value(tuple(map(int, filter(None, sizes.split(",")))), np.dtype(dtype))


def block(name, operands, results, **parameters):
    taken, made = [[*map(value, texts.split())] for texts in (operands, results)]
    return Block(
        tuple(taken), [Operation(name, tuple(taken), parameters, tuple(made))], tuple(made)
    )


def body(inputs, outputs):
    given = tuple(map(value, inputs.split()))
    return Block(given, [], given if inputs == outputs else tuple(map(value, outputs.split())))


DOT = (((1,), (0,)), ((), ()))
WRONG = [
    ("add", "float32[2,3] float32[3]", "float32[3]", {}),
    ("add", "float32[2] float32[2]", "int32[2]", {}),
    ("lt", "float32[2] float32[2]", "float32[2]", {}),
    ("select_n", "bool[2] float32[2] float32[2]", "bool[2]", {}),
    ("neg", "float32[2]", "float32[2] float32[2]", {}),
    ("convert_element_type", "float32[2]", "int32[3]", {}),
    ("reshape", "float32[2,3]", "float32[5]", {}),
    ("transpose", "float32[2,3]", "float32[2,3]", {"permutation": (1, 0)}),
    ("broadcast_in_dim", "float32[3]", "int32[2,3]", {"broadcast_dimensions": (1,)}),
    ("concatenate", "float32[2,3] float32[4,3]", "float32[5,3]", {"dimension": 0}),
    ("reduce_max", "float32[2,3]", "float32[3]", {"axes": (1,)}),
    ("reduce_sum", "float32[2,3]", "float32[2]", {"axes": (1,), "keepdims": True}),
    ("argmax", "float32[2,3]", "int32[2]", {"axes": (0,)}),
    ("dot_general", "float32[2,3] float32[3,4]", "float32[4,2]", {"dimension_numbers": DOT}),
    ("cond", "int32[]", "float32[]", {"branches": (body("", "int32[]"),)}),
    (
        "while", "float32[2]", "float32[2]",
        {"test": body("float32[2]", "bool[]"), "body": body("float32[2]", "float32[3]")},
    ),
    (
        "while", "float32[2]", "float32[2]",
        {"test": body("float32[2]", "float32[]"), "body": body("float32[2]", "float32[2]")},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "operands", "results", "parameters"), WRONG)
def test_what_an_operation_does_not_make(name, operands, results, parameters):
    with pytest.raises(StructureError, match="a fault of this package"):
        check_block(block(name, operands, results, **parameters))


def test_what_nothing_makes():
    made = block("neg", "float32[2]", "float32[2]")
    for wrong in (Block((), made.operations), Block(made.inputs, [], made.outputs)):
        with pytest.raises(StructureError, match="nothing before it makes"):
            check_block(wrong)


def test_what_jax_traces_is_right():
    def function(x, y):
        start = lax.while_loop(lambda v: v.sum() < 9, lambda v: v * 2 + y, x)
        chosen = lax.cond(x[0, 0] > 0, lambda: start, lambda: start.T.reshape(start.shape))
        return jnp.argmax(chosen, 1), (chosen @ y.T).max(0, keepdims=True), jax.nn.softmax(y)

    closed = jax.make_jaxpr(function)(*[jnp.ones((2, 3))] * 2)
    check_block(build_block(closed))
