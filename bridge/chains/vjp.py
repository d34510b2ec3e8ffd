"""The VJP of an `Exported`, whatever JAX is set to by now."""

from __future__ import annotations

import contextlib
import gc
from typing import Any

import jax
from jax import export

from bridge.core._jax import enable_x64
from bridge.core.explaining import explain_tracing
from xla_call_module.dtypes import WIDE
from xla_call_module.errors import ShardingError

__all__ = ["vjp_of"]

_LARGE = 64 * 1024 * 1024  # bytes of a module that are not kept longer than they are needed


def vjp_of(exported: export.Exported) -> export.Exported:
    """What `Exported.vjp()` returned when the function was exported.

    JAX traces the VJP of a function of this process when it is asked for, under the settings of
    that moment (jax/_src/export/_export.py, `_get_exported_vjp`). While x64 is off, what is wide in
    the function would be narrow in its VJP, and the two would not fit.

    Raises:
        ShardingError: JAX 0.8 or older was to export for GSPMD, on a mesh without devices.
        StructureError: it has symbolic sizes that its VJP needs as numbers.
        ValueError: it has no VJP, or JAX cannot differentiate it in reverse mode.
        NotImplementedError, TypeError, LookupError: the same.
    """
    _collect_modules(exported)
    avals = [*exported.in_avals, *exported.out_avals]
    wide = any(_is_wide(aval.dtype) for aval in avals)
    with enable_x64() if wide else contextlib.nullcontext():
        vjp = _vjp_on_mesh(exported)
    _collect_modules(vjp)
    return vjp


def _vjp_on_mesh(exported: export.Exported) -> export.Exported:
    """Its VJP; an error of JAX that says little says what to do."""
    try:
        return exported.vjp()
    except Exception as error:
        explained = explain_tracing(f"The gradient of {exported.fun_name}", error)
        if explained is not None:
            raise explained from error
        if exported.nr_devices == 1 or not isinstance(error, AssertionError):
            raise
        raise ShardingError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices of an "
            f"AbstractMesh by GSPMD, and JAX {jax.__version__} makes gradients of such a function "
            "only by Shardy or on a mesh of devices. To do: turn on jax_use_shardy_partitioner "
            "before the export, make the mesh with jax.make_mesh, or take JAX 0.9 or newer."
        ) from error


def _collect_modules(exported: export.Exported) -> None:
    """Free the parsed module that `jax.export.export` leaves to the garbage collector.

    That counts objects and not bytes, so that it may come when several modules have come together.
    """
    if len(exported.mlir_module_serialized) >= _LARGE:
        gc.collect()


def _is_wide(dtype: Any) -> bool:
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or dtype == jax.dtypes.float0:
        return False
    return dtype.name in WIDE
