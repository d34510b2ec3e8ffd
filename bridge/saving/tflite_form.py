"""Functions in operations that the converter to TFLite in TensorFlow makes the same of."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import export, tree_util

from bridge.core.keys import to_physical
from bridge.exporting.export_model import is_exported
from bridge.litert.lowering.call_lowering import lower_call
from bridge.litert.lowering.converter_misreadings import prevent_misreadings
from bridge.litert.lowering.lowering_table import TENSORFLOW_TABLE
from bridge.litert.lowering.storage_dtypes import boundary_dtype
from bridge.saving.processes import is_multi_process
from xla_call_module._jax import PassManager, ir
from xla_call_module.analyses.tflite_conversion import FAULTS, conversion_faults
from xla_call_module.call import CallModule, read_artifact_version
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import (
    DtypeError,
    PlatformError,
    ShardingError,
    StructureError,
    UnsupportedError,
)
from xla_call_module.exported import from_exported
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.platforms import parse_platforms
from xla_call_module.stablehlo.inlining import inline_calls
from xla_call_module.stablehlo.modules import find_main, open_module, serialize_module

__all__ = ["check_tflite_options", "check_tflite_params", "tflite_platforms", "to_tflite_form"]

_PLATFORM = "cpu"


def check_tflite_options(*, residuals: bool, updates: Any) -> None:
    """Refuse options that change what a signature runs.

    Raises:
        StructureError: one of them is on.
    """
    if residuals:
        raise StructureError(
            "residuals=True has the function compute what its gradient needs, which is nothing for "
            "TFLite. To do: leave out residuals=True, or tflite=True."
        )
    if updates is not None:
        raise StructureError(
            "updates= assigns variables, which the converter to TFLite in TensorFlow makes "
            "constants. To do: leave out updates=, so that the state is an argument and a result; "
            "or leave out tflite=True."
        )


def tflite_platforms(model: Any, platforms: Sequence[str] | None) -> Sequence[str] | None:
    """Return what a function is exported for: TFLite runs what is for a CPU.

    Args:
        model: as for `bridge.save`.
        platforms: those that were asked for.

    Raises:
        PlatformError: there are others among them.
    """
    if platforms is not None and parse_platforms(platforms) != (_PLATFORM,):
        raise PlatformError(
            f"platforms is {', '.join(platforms)}, and tflite=True writes a file for cpu. To do: "
            "leave out platforms, and save a file for the others without tflite=True."
        )
    models = model.values() if isinstance(model, Mapping) else [model]
    return platforms if all(map(is_exported, models)) else [_PLATFORM]


def check_tflite_params(params: Any) -> None:
    """Refuse parameters that the converter makes others of.

    Raises:
        UnsupportedError: there is an infinity in one.
        ShardingError: one is on devices of several processes.
    """
    if is_multi_process(params):
        raise ShardingError(
            "Several processes hold the parameters, and TFLite has them in one file. To do: gather "
            "them in one process first, or leave out tflite=True."
        )
    for path, leaf in tree_util.tree_leaves_with_path(params):
        array = np.asarray(to_physical(leaf))
        if jnp.issubdtype(array.dtype, jnp.floating) and np.isinf(array).any():
            raise UnsupportedError(
                f"The parameter params{tree_util.keystr(path)} has infinite elements, of which the "
                "converter to TFLite in TensorFlow makes the greatest numbers. To do: make them in "
                "the function, such as jnp.where(mask, 0, -jnp.inf)."
            )


def to_tflite_form(exported: export.Exported, parameters: int) -> export.Exported:
    """Return a function for CPUs, of operations that TensorFlow converts to TFLite rightly.

    Args:
        exported: the function.
        parameters: how many of its first flat arguments are variables.

    Raises:
        UnsupportedError: an operation that cannot be converted rightly, with its source line.
        DtypeError: arguments or results of dtypes that TFLite does not have.
        PlatformError: it was not exported for CPUs.
        ShardingError: it is for several devices.
    """
    call = _one_platform(exported)
    lowered = lower_call(call, table=TENSORFLOW_TABLE)
    made = dataclasses.replace(
        exported,
        mlir_module_serialized=_corrected(
            lowered.mlir_module_serialized, [spec.name for spec in call.args], parameters
        ),
        platforms=(_PLATFORM,),
        module_kept_var_idx=lowered.module_kept_var_idx,
        calling_convention_version=lowered.calling_convention_version,
        uses_global_constants=lowered.uses_global_constants,
    )
    _refuse_faults(from_exported(made, carried=False))
    return made


def _one_platform(exported: export.Exported) -> CallModule:
    """Return the call of a function for the platform and the dtypes that TFLite has."""
    if _PLATFORM not in exported.platforms:
        raise PlatformError(
            f"{exported.fun_name} was exported for {', '.join(exported.platforms)}, and TFLite "
            "runs what is for a CPU. To do: export it for cpu, too."
        )
    if exported.nr_devices != 1:
        raise ShardingError(
            f"{exported.fun_name} was exported for {exported.nr_devices} devices, and TFLite runs "
            "on one. To do: export it without shardings, or save it without tflite=True."
        )
    checks = [DisabledCheck(f"custom_call:{name}") for name in TENSORFLOW_TABLE.custom_calls]
    call = from_exported(exported, disabled_checks=checks, carried=False)
    for spec in (*call.args, *call.results):
        if boundary_dtype(spec.dtype.numpy) != spec.dtype.numpy:
            raise DtypeError(
                f"{spec.path} of {call.name} is {spec.dtype.name}, and TFLite takes and returns no "
                "such numbers. To do: pass and return float32 or int32; others may stand inside of "
                "the function."
            )
    return run_passes(call, [select_platforms([_PLATFORM]), lower_linalg(operations=True)])


def _corrected(artifact: bytes, names: Sequence[str], parameters: int) -> bytes:
    """Return a module without what the converter makes wrong, and with the names of arguments."""
    with open_module(artifact) as module:
        inline_calls(module)
        # The places are those in this package.
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        prevent_misreadings(module, parameters)
        _name_arguments(find_main(module), names)
        return serialize_module(module, read_artifact_version(artifact), mixed=True)


def _name_arguments(main: Any, names: Sequence[str]) -> None:
    """Give the arguments of a function names, which JAX keeps in their locations."""
    (block,) = main.regions[0].blocks
    for argument, name in zip(list(block.arguments), names, strict=True):
        with main.context:
            new = block.add_argument(argument.type, ir.Location.name(name))
        argument.replace_all_uses_with(new)
    for _ in names:
        block.erase_argument(0)


def _refuse_faults(call: CallModule) -> None:
    with open_module(call.module) as module:
        faults = conversion_faults(call, module)
    if faults:
        raise UnsupportedError(
            f"Of {call.name} the converter in TensorFlow would make something else: "
            f"{'; '.join(FAULTS[fault] for fault in faults)}. To do: leave that out of the "
            "function, or convert it by bridge.save_litert, which needs no TensorFlow."
        )
