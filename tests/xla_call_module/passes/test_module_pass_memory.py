"""Parsed modules go when a pass is done with them: they can be as large as all of a model."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir

from bridge.chains.exported_order import carried_by
from bridge.chains.forward_and_backward import export_both, split_at_residuals
from bridge.chains.orders import ChainOptions
from xla_call_module.exported import from_exported
from xla_call_module.passes.constants import hoist_constants
from xla_call_module.passes.exported_form import DROP_LOCATIONS
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import open_pair, run_passes
from xla_call_module.passes.pipeline import Target, prepare_chain, retarget
from xla_call_module.passes.residuals import join_residuals

TABLE = np.linspace(0, 1, 9, dtype=np.float32).reshape(3, 3)


@pytest.fixture(scope="module")
def exported():
    return jax.export.export(jax.jit(lambda x: jnp.linalg.cholesky(jax.nn.gelu(x + TABLE))))(
        jax.ShapeDtypeStruct((3, 3), np.float32)
    )


def _join(exported):
    both = export_both(exported)
    passes = split_at_residuals(exported, both, ChainOptions(), describe=carried_by)
    with open_pair(*prepare_chain(passes, Target()).calls) as pair:
        join_residuals(*pair)


PASSES = {
    "from_exported": from_exported,
    "hoist_constants": lambda exported: run_passes(from_exported(exported), [hoist_constants(8)]),
    "lower_linalg": lambda exported: run_passes(from_exported(exported), [lower_linalg()]),
    "retarget": lambda exported: retarget(from_exported(exported), "2.16"),
    "prepare_chain": lambda exported: prepare_chain(
        [from_exported(exported), from_exported(exported.vjp())], Target()
    ),
    "residuals": _join,
    "strip_locations": lambda exported: run_passes(from_exported(exported), [DROP_LOCATIONS]),
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
