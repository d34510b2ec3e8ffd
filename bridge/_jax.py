"""The only places that touch what JAX keeps private, each as a named gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
from jax import export

__all__ = ["replace_vjp", "static_parameters"]


def replace_vjp(exported: export.Exported, vjp: Callable[[], export.Exported]) -> export.Exported:
    """The same `Exported` with another VJP, which is made each time that it is asked for.

    `Exported.vjp` calls the field `_get_vjp` with the object itself (jax/_src/export/_export.py);
    there is no public way to say what a changed `Exported` is differentiated by. The gate can go
    when there is one.
    """
    return dataclasses.replace(exported, _get_vjp=lambda _: vjp())


def static_parameters(fun: jax.stages.Wrapped) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the arguments that a `jax.jit`-ed function takes as Python values.

    Exporting such an argument with the spec of an array hands the spec to the function, which may
    even run. `jax.stages.Wrapped` does not tell which ones they are
    (https://docs.jax.dev/en/latest/jax.stages.html); what `jax.jit` was told is in `_jit_info`
    (jax/_src/pjit.py, `PjitInfo`). Without the gate none are known, and the export is refused
    afterwards, because the structure of its arguments is another. It can go when JAX tells.
    """
    info = getattr(fun, "_jit_info", None)
    return (
        tuple(getattr(info, "static_argnums", None) or ()),
        tuple(getattr(info, "static_argnames", None) or ()),
    )
