"""Functions of JAX lowered, converted and run by LiteRT, and compared with JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from bridge.litert.converter import SignatureModule, convert
from bridge.litert.lowering.call_lowering import lower_call
from bridge.litert.lowering.lowering_table import KERNEL_TABLE, LITERT_TABLE
from bridge.litert.lowering.storage_dtypes import at_boundary
from bridge.litert.runtime import Runtime
from bridge.litert.worker_process import LiteRTProcess
from xla_call_module.checks import DisabledCheck
from xla_call_module.exported import from_exported
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.platform_selection import select_platforms


class LiteRTCheck:
    """Functions run by LiteRT in one process, against JAX."""

    def __init__(self, process: LiteRTProcess) -> None:
        """Use a process."""
        self._process = process

    def __call__(self, function: Callable[..., Any], *arrays: Any, relative: float = 2e-6) -> None:
        """Fail unless LiteRT computes what JAX does.

        Args:
            function: the function of flat arrays.
            arrays: the arguments.
            relative: how far floats may be off, as a part of the greatest finite one.
        """
        given = [jnp.asarray(array) for array in arrays]
        expected = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*given))]
        found = self.run(function, *arrays)
        assert len(found) == len(expected)
        for got, wanted in zip(found, expected, strict=True):
            assert_same(got, wanted, relative=relative)

    def run(self, function: Callable[..., Any], *arrays: Any) -> list[Any]:
        """Return the results of LiteRT."""
        model = self.model(function, *arrays)
        feeds = {f"x{n}": at_boundary(np.asarray(array)) for n, array in enumerate(arrays)}
        with Runtime(model, process=self._process) as runtime:
            results = runtime.run(feeds)
        return [results[f"y{n}"] for n in range(len(results))]

    def model(self, function: Callable[..., Any], *arrays: Any) -> bytes:
        """Return the model of a function."""
        specs = [jax.ShapeDtypeStruct(np.shape(a), jnp.asarray(a).dtype) for a in arrays]
        exported = export.export(
            jax.jit(lambda *given: jax.tree.leaves(function(*given))), platforms=["cpu"]
        )(*specs)
        checks = [DisabledCheck(f"custom_call:{name}") for name in LITERT_TABLE.custom_calls]
        call = from_exported(exported, disabled_checks=checks, carried=False)
        call = run_passes(call, [select_platforms(["cpu"]), lower_linalg(operations=True)])
        lowered = lower_call(call, table=KERNEL_TABLE)
        module = SignatureModule(
            "serving_default",
            bytes(lowered.mlir_module_serialized),
            tuple(f"x{n}" for n in range(len(lowered.in_avals))),
            tuple(f"y{n}" for n in range(len(lowered.out_avals))),
        )
        return convert([module], process=self._process)


def assert_same(got: Any, wanted: Any, *, relative: float) -> None:
    """Fail unless numbers are the same, but for what floats may be off."""
    if wanted.dtype.kind == "c" and got.dtype.kind != "c":
        wanted = np.stack([wanted.real, wanted.imag], -1)
    assert got.shape == wanted.shape
    if wanted.dtype.kind in "biu":
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)
        return
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, wanted))
    size = np.max(np.abs(wanted), where=finite, initial=0)
    np.testing.assert_allclose(got[finite], wanted[finite], rtol=0, atol=relative * size)
