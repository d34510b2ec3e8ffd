"""Operations that JAX traces, and that no module has, are operators of a file, too."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from bridge.litert.emitting.model_emitter import SignatureBlock, emit_model
from bridge.litert.runtime import Runtime
from tests.bridge.blocks.test_block_builder import block_of


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
def test_what_jax_traces(litert_process, function):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    block = block_of(function)
    outputs = tuple(f"y{n}" for n in range(len(block.outputs)))
    signature = SignatureBlock("f", block, ("x",), outputs, ("",), ("",) * len(outputs))
    with Runtime(emit_model([signature], {}), process=litert_process) as runtime:
        found = runtime.run({"x": x})
    for got, wanted in zip(found.values(), function(jnp.asarray(x)), strict=True):
        np.testing.assert_array_equal(got, wanted)
