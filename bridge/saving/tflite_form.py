"""Functions in operations that the converter to TFLite in TensorFlow makes the same of."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from jax import export

from bridge.litert.lowering.call_lowering import lower_call
from bridge.litert.lowering.converter_misreadings import prevent_misreadings
from bridge.litert.lowering.lowering_table import TENSORFLOW_TABLE
from bridge.litert.lowering.storage_dtypes import boundary_dtype
from bridge.saving.tflite_options import TFLITE_PLATFORM
from xla_call_module._jax import PassManager, ir
from xla_call_module.analyses.tflite_conversion import FAULTS, conversion_faults
from xla_call_module.call import CallModule, read_artifact_version
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import DtypeError, PlatformError, ShardingError, UnsupportedError
from xla_call_module.exported import from_exported
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.stablehlo.inlining import inline_calls
from xla_call_module.stablehlo.modules import find_main, open_module, serialize_module

__all__ = ["to_tflite_form"]


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
        platforms=(TFLITE_PLATFORM,),
        module_kept_var_idx=lowered.module_kept_var_idx,
        calling_convention_version=lowered.calling_convention_version,
        uses_global_constants=lowered.uses_global_constants,
    )
    _refuse_faults(from_exported(made, carried=False))
    return made


def _one_platform(exported: export.Exported) -> CallModule:
    """Return the call of a function for the platform and the dtypes that TFLite has."""
    if TFLITE_PLATFORM not in exported.platforms:
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
    return run_passes(call, [select_platforms([TFLITE_PLATFORM]), lower_linalg(operations=True)])


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
