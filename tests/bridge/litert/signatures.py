"""Functions written as LiteRT models, and run against JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import bridge
from bridge.litert.runtime import Kernels, Runtime
from bridge.litert.worker_process import LiteRTProcess


def as_model(function: Callable[..., Any], *arrays: Any, outputs: Sequence[str] = ()) -> bytes:
    """Return the model of a function of arrays, with inputs `x0` and so on, and results `y0`."""
    specs = tuple(jax.ShapeDtypeStruct(np.shape(one), np.asarray(one).dtype) for one in arrays)
    count = len(jax.tree.leaves(jax.eval_shape(function, *specs)))
    return bridge.to_litert(
        function,
        args=specs,
        inputs=[f"x{n}" for n in range(len(arrays))],
        outputs=list(outputs) or [f"y{n}" for n in range(count)],
        verify=False,
    )


def run_as_jax(
    process: LiteRTProcess,
    function: Callable[..., Any],
    *arrays: Any,
    kernels: Sequence[Kernels] = ("delegate",),
) -> bytes:
    """Return the model of a function, after kernels have returned what JAX does."""
    model = as_model(function, *arrays)
    expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arrays))]
    for one in kernels:
        with Runtime(model, process=process, kernels=one) as runtime:
            found = runtime.run({f"x{n}": array for n, array in enumerate(arrays)})
        assert list(found) == [f"y{n}" for n in range(len(expected))]
        for got, wanted in zip(found.values(), expected, strict=True):
            assert got.dtype == wanted.dtype
            assert got.shape == wanted.shape
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    return model
