"""Parsed modules go when a pass is done with them: they can be as large as all of a model."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir

from xla_call_module.exported import from_exported
from xla_call_module.passes.constants import hoist_constants
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.locations import strip_locations
from xla_call_module.passes.residuals import split_residuals
from xla_call_module.passes.retargeting import retarget

TABLE = np.linspace(0, 1, 9, dtype=np.float32).reshape(3, 3)


@pytest.fixture(scope="module")
def exported():
    return jax.export.export(jax.jit(lambda x: jnp.linalg.cholesky(jax.nn.gelu(x + TABLE))))(
        jax.ShapeDtypeStruct((3, 3), np.float32)
    )


PASSES = {
    "from_exported": from_exported,
    "hoist_constants": lambda exported: hoist_constants(from_exported(exported), 8),
    "lower_linalg": lambda exported: lower_linalg(from_exported(exported)),
    "retarget": lambda exported: retarget(from_exported(exported), "2.16"),
    "split_residuals": lambda exported: split_residuals(
        from_exported(exported), from_exported(exported.vjp())
    ),
    "strip_locations": lambda exported: strip_locations(from_exported(exported)),
}


@pytest.mark.parametrize("name", PASSES)
def test_nothing_is_left_to_the_garbage_collector(name, exported):
    PASSES[name](exported)  # what JAX makes once is made
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        PASSES[name](exported)
        gc.collect()
        left = [str(type(thing)) for thing in gc.garbage if isinstance(thing, ir.OpView)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
