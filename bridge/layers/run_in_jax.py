"""A function of a layer, run by JAX."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bridge.core.keys import to_logical, to_physical
from bridge.layers.artifact import LayerFunction
from bridge.layers.computation import Run
from bridge.loading.calling import call_flat
from bridge.loading.restore import restore
from xla_call_module.dtypes import Array


def to_jax(function: LayerFunction, constants: Mapping[str, Array]) -> Run:
    """Return a function of flat arrays, which can be traced and differentiated."""
    exported = restore(function.chain, constants.__getitem__)
    call = call_flat(exported, name=function.name)
    dtypes = [spec.dtype.numpy for spec in function.specs]

    @jax.jit
    def run(*operands: Any) -> list[Any]:
        arrays = map(jnp.asarray, operands, dtypes)
        given = map(to_logical, arrays, exported.in_avals)
        return [to_physical(result) for result in call(*given)]

    return lambda operands: list(run(*operands))
