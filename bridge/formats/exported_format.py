"""Serialized `Exported`s, and StableHLO as text or bytecode, as formats: one function in a file."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.formats.file_format import FileFormat
from xla_call_module.errors import StructureError, quote

if TYPE_CHECKING:
    from jax import export

    from bridge.formats.runnable import Runnable
    from bridge.inspecting.report import FileReport
    from xla_call_module.call import CallModule
    from xla_call_module.dtypes import Array


def _is_stablehlo(path: str, head: bytes) -> bool:
    from xla_call_module.mlir_files import is_mlir

    del path
    return is_mlir(head)


def _read_stablehlo(path: str | os.PathLike[str]) -> CallModule:
    from bridge.exporting.source import open_model

    call: CallModule = open_model(path)
    return call


def _inspect_stablehlo(path: str | os.PathLike[str]) -> FileReport:
    from bridge.inspecting.call_report import report_of_calls

    # A module does not say for which platforms it was lowered.
    return report_of_calls(
        Path(path), [_read_stablehlo(path)], writer="StableHLO", any_platform=True
    )


def _inspect_exported(path: str | os.PathLike[str]) -> FileReport:
    from bridge.exporting.exported_file import read_exported
    from bridge.inspecting.call_report import report_of_calls
    from xla_call_module.exported import call_of_exported

    exported = read_exported(path, stand_ins=True)
    calls = [call_of_exported(exported, carried=True)]
    while exported.has_vjp():
        exported = exported.vjp()
        calls.append(call_of_exported(exported, carried=True))
    return report_of_calls(Path(path), calls, writer="jax.export")


def _open_stablehlo(path: str, signature: str | None) -> Runnable:
    from bridge.loading.exported_from_call import exported_from_call

    _check_alone(path, signature)
    return _runnable(exported_from_call(_read_stablehlo(path)))


def _open_exported(path: str, signature: str | None) -> Runnable:
    from bridge.exporting.exported_file import read_exported

    _check_alone(path, signature)
    return _runnable(read_exported(path, stand_ins=True))


def _check_alone(path: str, signature: str | None) -> None:
    from savedmodel.model import DEFAULT_SIGNATURE

    if signature not in (None, DEFAULT_SIGNATURE):
        raise StructureError(f"{path} is one function. To do: leave out --signature.")


def _runnable(exported: export.Exported) -> Runnable:
    import jax
    from jax import tree_util

    from bridge.core.keys import to_logical, to_physical
    from bridge.core.names import input_names, output_names
    from bridge.formats.runnable import Runnable
    from xla_call_module.exported import argument_specs, call_of_exported
    from xla_call_module.stablehlo.refining import accepts_sizes

    call = call_of_exported(exported)
    specs = argument_specs(exported)
    names = input_names(call.name, call, range(len(specs)), None)

    def bind(arrays: Mapping[str, Array]) -> Callable[[], Sequence[Any]]:
        avals = zip(names, exported.in_avals, strict=True)
        leaves = [jax.device_put(to_logical(arrays[name], aval)) for name, aval in avals]
        args, kwargs = tree_util.tree_unflatten(exported.in_tree, leaves)
        function = jax.jit(exported.call)

        def run() -> Sequence[Any]:
            try:
                results = jax.block_until_ready(function(*args, **kwargs))
            except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
                raise StructureError(
                    f"JAX cannot call {call.name}, exported for {', '.join(exported.platforms)} "
                    f"and {exported.nr_devices} device(s): {quote(error)}. To do: run it on what "
                    "it was exported for."
                ) from error
            return [to_physical(leaf) for leaf in tree_util.tree_leaves(results)]

        return run

    return Runnable(
        name=call.name,
        inputs=dict(zip(names, specs, strict=True)),
        outputs=tuple(output_names(call.name, call, None)) if call.results else (),
        bind=bind,
        defaults={},
        accepts=functools.partial(accepts_sizes, call),
    )


STABLEHLO = FileFormat(
    name="StableHLO",
    recognises=_is_stablehlo,
    inspect=_inspect_stablehlo,
    open=_open_stablehlo,
    is_source=True,
)
EXPORTED = FileFormat(
    name="a serialized Exported",
    recognises=lambda *_: True,  # what no other file is, is refused as one of these
    inspect=_inspect_exported,
    open=_open_exported,
    is_source=True,
)
