"""Functions of JAX converted as they are, without being lowered, and run against JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import export

from bridge.litert.converter import SignatureModule, convert
from bridge.litert.runtime import Runtime
from bridge.litert.worker_process import LiteRTProcess


def as_module(
    function: Callable[..., Any],
    *arrays: Any,
    signature: str = "serving_default",
    sizes: str = "",
) -> SignatureModule:
    """Return the module of a function, with inputs `x0` and so on, and results `y0` and so on.

    Args:
        function: the function of arrays, or of what stands for them.
        arrays: arrays of the shapes and dtypes.
        signature: the name.
        sizes: the shape of every array, if some sizes are symbolic.
    """
    specs = [jax.ShapeDtypeStruct(np.shape(array), np.asarray(array).dtype) for array in arrays]
    if sizes:
        specs = list(export.symbolic_args_specs(specs, sizes))
    exported = export.export(jax.jit(function, keep_unused=True), platforms=["cpu"])(*specs)
    return SignatureModule(
        signature,
        bytes(exported.mlir_module_serialized),
        tuple(f"x{n}" for n in range(len(exported.in_avals))),
        tuple(f"y{n}" for n in range(len(exported.out_avals))),
    )


def run_as_jax(process: LiteRTProcess, function: Callable[..., Any], *arrays: Any) -> bytes:
    """Return the model of a function, after it was run and has returned what JAX does."""
    module = as_module(function, *arrays)
    model = convert([module], process=process)
    with Runtime(model, process=process) as runtime:
        found = runtime.run(dict(zip(module.inputs, arrays, strict=True)))
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arrays))]
    assert list(found) == list(module.outputs)
    for got, wanted in zip(found.values(), expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return model
