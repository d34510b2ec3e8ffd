"""The targets of custom calls that run in TensorFlow, and on which platform.

A `stablehlo.custom_call` names a function outside the module. JAX guarantees that some of these
names keep their meaning
(https://docs.jax.dev/en/latest/export/export.html#compatibility-guarantees-for-custom-calls), which
says nothing of who provides them: XLA's compilers expand a few, TensorFlow's loader of the op
handles others, and the rest is linked into jaxlib and not into TensorFlow.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from xla_call_module.analyses.branches import operations_on
from xla_call_module.analyses.tensorflow_functions import refuse_functions
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.linalg.lapack import is_portable
from xla_call_module.platforms import PLATFORMS
from xla_call_module.stablehlo.modules import custom_call_target, walk
from xla_call_module.stablehlo.operation_locations import describe_location, describe_primitive


class Provider(enum.Enum):
    """The provider of what a custom call names, in a process of TensorFlow."""

    XLA = "expanded by XLA"
    TENSORFLOW = "present in TensorFlow"
    ABSENT = "absent"
    CALLBACK = "a Python function of the process that exported"


@dataclass(frozen=True, slots=True)
class CustomCallTarget:
    """A family of targets.

    Attributes:
        pattern: the regular expression that matches their names in full.
        provider: the part of the process that has them.
        source: the file or the trial from which that is known.
        stable: whether JAX guarantees that their meaning stays.
        platforms: the platforms on which they run in TensorFlow.
    """

    pattern: str
    provider: Provider
    source: str
    stable: bool = False
    platforms: tuple[str, ...] = PLATFORMS


_JAX_LIST = "jax/_src/export/_export.py, _CUSTOM_CALL_TARGETS_GUARANTEED_STABLE"
_ON_CPU = "run on the CPU"
_GPUS = ("cuda", "rocm")
_NOT_ON_CPU = "on the CPU: No registered implementation for untyped custom call to "
_XLA, _TENSORFLOW = Provider.XLA, Provider.TENSORFLOW
_ABSENT, _CALLBACK = Provider.ABSENT, Provider.CALLBACK

# The first that matches counts. "Run on the CPU" means in TensorFlow 2.21; what is said of other
# platforms was read and not run.
TARGETS = (
    CustomCallTarget("shape_assertion", _TENSORFLOW, _ON_CPU, stable=True),
    CustomCallTarget(
        r"tf\.call_tf_function",
        _TENSORFLOW,
        "tensorflow/compiler/tf2xla/kernels/xla_call_module_op.cc",
        stable=True,
    ),
    CustomCallTarget(
        r"stablehlo\.dynamic_(reduce_window|rng_bit_generator|top_k|approx_top_k)",
        _XLA,
        "the first two run on the CPU; stablehlo/transforms/StablehloRefineShapes.cpp",
        stable=True,
    ),
    CustomCallTarget(
        "Sharding|SPMDFullToShardShape|SPMDShardToFullShape",
        _XLA,
        "xla/service/sharding_propagation.cc, xla/service/spmd/spmd_partitioner.cc",
        stable=True,
    ),
    CustomCallTarget(r"xla\.sdy\..*", _XLA, "xla/service/spmd/shardy/constants.h"),
    CustomCallTarget("annotate_device_placement", _XLA, _JAX_LIST, stable=True),
    CustomCallTarget(
        "Eigh|Qr|ProductOfElementaryHouseholderReflectors",
        _XLA,
        "run on the CPU; xla/hlo/transforms/expanders/eigh_expander.cc and qr_expander.cc",
        stable=True,
    ),
    CustomCallTarget("ApproxTopK", _XLA, _ON_CPU, stable=True),
    CustomCallTarget("LuDecomposition", _XLA, f"{_NOT_ON_CPU}LuDecomposition", True, ("tpu",)),
    CustomCallTarget(
        "AllocateBuffer", _XLA, f"{_NOT_ON_CPU}AllocateBuffer", True, ("cuda", "rocm", "tpu")
    ),
    CustomCallTarget("tpu_custom_call", _XLA, _JAX_LIST, True, ("tpu",)),
    CustomCallTarget(r"mhlo\..*", _XLA, "xla/mlir_hlo, the pass stablehlo-ext"),
    CustomCallTarget(r"__gpu\$xla\.gpu\.triton", _XLA, "xla/backends/gpu/codegen", platforms=_GPUS),
    CustomCallTarget(
        r"__(cublas|cudnn)\$.*", _XLA, "xla/service/gpu/cublas_cudnn.h", platforms=("cuda",)
    ),
    CustomCallTarget(
        r"xla_python_.*|xla_ffi_python_.*|xla_ffi_partitioned_python_.*|xla_buffer_python_.*",
        _CALLBACK,
        "jax/_src/callback.py",
        platforms=(),
    ),
    CustomCallTarget(
        r"lapack_\w+_ffi",
        _ABSENT,
        "run on the CPU: No FFI handler registered for lapack_spotrf_ffi on a platform Host",
        True,
        (),
    ),
    CustomCallTarget(
        r"(cusolver|hipsolver|cusparse)_\w+_ffi|(cu|hip)_lu_pivots_to_permutation"
        r"|(cu|hip)_threefry2x32_ffi|mosaic_gpu_v2",
        _ABSENT,
        "jaxlib/gpu, which registers them",
        True,
        (),
    ),
)
# Targets that nobody is known to have.
_UNKNOWN = CustomCallTarget(".*", _ABSENT, "in none of the lists above", platforms=())
_COMPILED = tuple((re.compile(target.pattern), target) for target in TARGETS)


def classify(target: str) -> CustomCallTarget:
    """Return the record of a target.

    Example:
        >>> classify("lapack_spotrf_ffi").provider.value, classify("Eigh").provider.value
        ('absent', 'expanded by XLA')
    """
    return next((record for name, record in _COMPILED if name.fullmatch(target)), _UNKNOWN)


def check_custom_calls(
    where: str, module: Any, platforms: Sequence[str], checks: Collection[DisabledCheck]
) -> None:
    """Refuse a parsed module that calls what TensorFlow does not have on one of its platforms."""
    allowed = {check.custom_call for check in checks}
    refuse_callbacks(where, module)
    if "ALL" in allowed:
        return
    for index, platform in enumerate(platforms):
        operations = operations_on(module, index if len(platforms) > 1 else None)
        for operation in operations:
            target = custom_call_target(operation)
            # What is portable is replaced by `lower_linalg`, unless the user wants the library.
            if not target or target in allowed or is_portable(target):
                continue
            if platform not in classify(target).platforms:
                raise _absent(where, operation, platform)


def refuse_other_programs(where: str, module: Any) -> None:
    """Refuse a parsed module that calls what JAX alone does not run: Python, or TensorFlow."""
    refuse_callbacks(where, module)
    refuse_functions(where, module)


def refuse_callbacks(where: str, module: Any) -> None:
    """Refuse a parsed module that calls back to Python.

    What it would call is an address in the process that exported; JAX, too, would jump there.
    """
    for operation in walk(module):
        target = custom_call_target(operation)
        if target and classify(target).provider is _CALLBACK:
            place = describe_location(operation)
            raise StructureError(
                f"{where} calls back to Python at {place} (custom call {target}); the function "
                "lives in the process that exported. To do: leave pure_callback, "
                "io_callback and debug.print out of what is exported."
            )


def _absent(where: str, operation: Any, platform: str) -> InteropError:
    name, primitive = custom_call_target(operation), describe_primitive(operation)
    target = classify(name)
    who = f" for the primitive {primitive}" if primitive else ""
    if target.provider is _XLA:
        what = f"which XLA has on {' and '.join(target.platforms)} only"
    elif target.stable:
        what = "a library that JAX links and TensorFlow does not"
    else:
        what = "which neither XLA nor TensorFlow is known to have"
    return InteropError(
        f"{where} calls {name} at {describe_location(operation)}, {what},{who} on {platform}: the "
        "call would fail when it runs. To do: compute this part outside the exported function, or, "
        "if the TensorFlow that will run it has the target, export with disabled_checks=["
        f"jax.export.DisabledSafetyCheck.custom_call({name!r})]."
    )
