"""One order of the chain that begins with an `Exported`.

`Exported.vjp()` makes the next order without tracing the user's function again.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import export

from bridge.chains.lifted_export import export_vjp_of_lifted
from bridge.chains.orders import NOT_DIFFERENTIABLE, ChainOptions
from bridge.core._jax import cut_vjp, trace_with_symbolic_solves
from bridge.core.explaining import explain_tracing
from bridge.core.narrowing import x64_if_needed
from bridge.exporting.lowering import explain_gradient
from bridge.loading.derivative_primitives import cause_of
from xla_call_module.analyses.readable import is_plain
from xla_call_module.call import CallModule
from xla_call_module.dtypes import Array
from xla_call_module.errors import InteropError, StructureError, UnsupportedError, VersionError
from xla_call_module.exported import from_exported, strip_exported
from xla_call_module.passes.module_pass import UnparsedCall
from xla_call_module.versions import Release

_LARGE_MODULE_BYTES = 64 * 1024 * 1024  # are not kept longer than they are needed


class ExportedOrder:
    """One order of the chain that begins with an `Exported`; its VJP is made on demand."""

    __slots__ = ("_call", "_finds_zeros", "_name", "_names", "_options", "exported")

    exported: export.Exported
    shape_check: None = None  # its module is parsed whenever a TensorFlow runs it

    def __init__(
        self,
        exported: export.Exported,
        options: ChainOptions,
        *,
        name: str = "",
        argument_names: Sequence[str] | None = None,
        finds_zeros: bool = True,
    ) -> None:
        """Take over the `Exported`; nothing is read yet."""
        self.exported = exported
        self._options = options
        self._name = name or getattr(exported, "fun_name", "")
        self._names = argument_names
        self._finds_zeros = finds_zeros
        self._call: CallModule | None = None

    @property
    def call(self) -> CallModule:
        """The call of this order as JAX lowered it: no pass of the pipeline has run on it."""
        if self._call is None:
            self._call = self._read()
        return self._call

    def _read(self, module: Any = None) -> CallModule:
        checks = self._options.disabled_checks
        return from_exported(
            self.exported, disabled_checks=checks, carried=False, names=self._names, module=module
        )

    def whole(self) -> CallModule | UnparsedCall:
        """Return the call with the `Exported`, which it carries without its module.

        Where nobody has asked for the call yet, it is read when the pipeline parses its module.
        """
        artifact = self.exported.mlir_module_serialized
        if self._call is None and (self._names is None or not is_plain(artifact)):
            return UnparsedCall(artifact, self._read_whole)
        return self._with_carried(self.call)

    def _read_whole(self, module: Any) -> CallModule:
        self._call = self._read(module)
        return self._with_carried(self._call)

    def _with_carried(self, call: CallModule) -> CallModule:
        return dataclasses.replace(call, exported=carried_by(self.exported))

    @property
    def constants(self) -> Mapping[str, Array]:
        """No constants: they are in the module."""
        return {}

    def runs_on(self, release: Release) -> bool:
        """Return False: which release runs it is found out when the pipeline prepares it."""
        del release
        return False

    def vjp(self) -> ExportedOrder:
        """Return the next order."""
        try:
            vjp = vjp_of(self.exported)
        except NOT_DIFFERENTIABLE as error:
            if self.exported.has_vjp():
                raise
            raise StructureError(
                f"{self._name} was serialized without its VJP, which its operations do not yield: "
                f"{cause_of(error)} To do: serialize it with Exported.serialize(vjp_order=1) or "
                "more."
            ) from error
        is_read = self._finds_zeros or self._names is None
        return ExportedOrder(
            vjp,
            self._options,
            name=self._name,
            argument_names=None if is_read else ("",) * len(vjp.in_avals),
            finds_zeros=self._finds_zeros,
        )


def vjp_of(
    exported: export.Exported, *, trace: Callable[[], export.Exported] | None = None
) -> export.Exported:
    """Return the VJP of an `Exported`, whatever JAX is set to by now.

    That of one without a VJP is made of its lifted function, unless there is another way.

    JAX traces the VJP of a function of this process when it is asked for, under the settings of
    that moment (jax/_src/export/_export.py, `_get_exported_vjp`). While x64 is off, what is wide in
    the function would be narrow in its VJP, and the two would not fit.
    """
    _collect_modules(exported)
    with x64_if_needed(aval.dtype for aval in (*exported.in_avals, *exported.out_avals)):
        vjp = _trace_vjp(exported, trace)
    _collect_modules(vjp)
    return vjp


def _trace_vjp(
    exported: export.Exported, trace: Callable[[], export.Exported] | None
) -> export.Exported:
    """Return the VJP; an error of JAX that says little becomes one that says what to do."""
    saved = exported.has_vjp()
    if trace is None:
        trace = exported.vjp if saved else functools.partial(export_vjp_of_lifted, exported)
    try:
        return trace_with_symbolic_solves(trace)
    except Exception as error:
        if not saved:
            raise
        explained: InteropError | None = None
        if isinstance(error, NotImplementedError):
            explained = explain_gradient(exported.fun_name, exported.platforms, error)
        explained = explained or explain_tracing(f"The gradient of {exported.fun_name}", error)
        if explained is not None:
            raise explained from error
        raise


def _collect_modules(exported: export.Exported) -> None:
    """Free the parsed module that `jax.export.export` leaves to the garbage collector.

    That counts objects and not bytes, so that it may come when several modules have come together.
    """
    if len(exported.mlir_module_serialized) >= _LARGE_MODULE_BYTES:
        gc.collect()


def carried_by(exported: export.Exported) -> bytes:
    """Return the description of an `Exported`, with flat arguments where it has to be.

    To make it takes a node longer than all else that is written in it; and it is the same for all
    functions of one name with the same arguments and results. So it is made once for those that are
    equal.
    """
    avals = [*exported.in_avals, *exported.out_avals]
    # Dimension variables of two functions cannot be compared.
    if not any(export.is_symbolic_dim(dim) for aval in avals for dim in aval.shape):
        try:
            return _serialized(_WithoutModule(exported))
        except (TypeError, UnsupportedError, VersionError):  # it has no hash, is flat, or whole
            pass
    return strip_exported(exported, allow_flat_trees=True)


class _WithoutModule:
    """An `Exported` without its module and its VJP, equal to others with the same fields."""

    __slots__ = ("_fields", "exported")

    def __init__(self, exported: export.Exported) -> None:
        """Keep nothing that belongs to the function."""
        bare = cut_vjp(dataclasses.replace(exported, mlir_module_serialized=b""), 0)
        self.exported = bare
        fields = (getattr(bare, field.name) for field in dataclasses.fields(bare))
        # Equal names may carry other fields of a newer release.
        self._fields = (*fields, getattr(bare.fun_name, "unknown", ""))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _WithoutModule) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(self._fields)


@functools.lru_cache(maxsize=64)
def _serialized(bare: _WithoutModule) -> bytes:
    return strip_exported(bare.exported, allow_flat_trees=False)
