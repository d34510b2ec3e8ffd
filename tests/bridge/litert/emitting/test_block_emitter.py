"""What LiteRT has no operator for is refused with its place; sizes follow from those of inputs."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import bridge
from bridge.blocks.block import Block, Operation, Value
from bridge.litert.emitting.model_emitter import SignatureBlock, emit_model
from bridge.litert.runtime import Runtime
from tests.bridge.blocks.test_block_builder import block_of
from xla_call_module.dimensions import parse_size
from xla_call_module.errors import StructureError, UnsupportedError

F32, I32 = np.dtype(np.float32), np.dtype(np.int32)


def written(block: Block) -> bytes:
    """The model of a block with an input `x`."""
    outputs = tuple(f"y{n}" for n in range(len(block.outputs)))
    names = (("x",), outputs, ("",), ("",) * len(outputs))
    return emit_model(
        [SignatureBlock("f", block, *names, places=("first", "tf.Sin at a.py:7"))], {}
    )


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [("igamma", F32, "no operator for igamma"), ("sin", I32, "LiteRT has no SIN of int32")],
)
def test_refusals_name_the_operation_and_its_line(name, dtype, message):
    x, y = Value((3,), dtype), Value((3,), dtype)
    block = Block((x,), [Operation(name, (x,), {}, (y,), "f/@0/@1/g")], (y,))
    with pytest.raises(UnsupportedError, match=rf"^tf\.Sin at a\.py:7: .*{message}.*To do: "):
        written(block)


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        (lambda x: lax.reduce_window(x, 1.0, lax.mul, (2,), (1,), "VALID"), "f32[b]",
         r"stablehlo\.reduce_window at .*test_block_emitter\.py:\d+: .*sizes"),
        (lambda x: jnp.linalg.eigvals(x).real, "f32[3,3]",
         r"calls lapack_sgeev_ffi at .*test_block_emitter\.py:\d+"),
    ],
)  # fmt: skip
def test_refusals_name_the_line_of_a_user(function, args, message):
    with pytest.raises(UnsupportedError, match=rf"(?s){message}.*To do: "):
        bridge.to_litert(function, args=args)


def test_a_size_that_no_input_has_is_refused():
    x, y = Value((3,), F32), Value((parse_size("b"), 3), F32)
    broadcast = Operation("broadcast_in_dim", (x,), {"broadcast_dimensions": (1,)}, (y,))
    with pytest.raises(StructureError, match=r"variable b does not follow from .* any input"):
        written(Block((x,), [broadcast], (y,)))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: tuple(x), id="unstack"),
        pytest.param(lambda x: jnp.unstack(x, axis=1), id="unstack columns"),
        pytest.param(lambda x: (jnp.stack([x, -x], 1),), id="stack"),
        pytest.param(lambda x: (jnp.tile(x, (2, 3)),), id="tile"),
        pytest.param(lambda x: jnp.split(x, [1, 3], axis=1), id="split"),
    ],
)
def test_what_jax_traces_and_no_module_has(litert_process, function):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with Runtime(written(block_of(function)), process=litert_process) as runtime:
        found = runtime.run({"x": x})
    for got, wanted in zip(found.values(), function(jnp.asarray(x)), strict=True):
        np.testing.assert_array_equal(got, wanted)
