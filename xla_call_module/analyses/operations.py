"""The StableHLO operations that do not run in TensorFlow, and on which platform.

What a module does with other devices, or with the host, needs somebody at the other end. TensorFlow
runs the module on one device and says nothing of others, which XLA takes badly: it may even end the
process. An `all_reduce` within one device is the identity and runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xla_call_module.analyses.branches import operations_on
from xla_call_module.errors import PlatformError
from xla_call_module.stablehlo.modules import splat, walk
from xla_call_module.stablehlo.operation_locations import describe_location, describe_primitive


@dataclass(frozen=True, slots=True)
class UnavailableOperation:
    """An operation that does not run everywhere.

    Attributes:
        name: the name in StableHLO.
        lacking: the platforms where it is known not to run in TensorFlow.
        outcome: the words for what happens there instead.
        source: the file or the trial from which that is known.
    """

    name: str
    lacking: tuple[str, ...]
    outcome: str
    source: str


_CPU = ("cpu",)
_RUN = "run on the CPU in TensorFlow 2.21"
_ENDS = "which ends the process of TensorFlow"
_ENDS_SOURCE = f"{_RUN}; xla/backends/cpu/runtime/ looks up a device assignment that is null"
_UNASSIGNED = "which TensorFlow refuses with 'Device assignment is null'"
_WAITS = "for which TensorFlow waits for ever"
_NOBODY = f"{_RUN}; nothing is at the other end of the queue"
_NO_THUNK = "which XLA cannot compile"
_NO_THUNK_SOURCE = f"{_RUN}: is not supported by XLA:CPU ThunkEmitter"

# On a GPU a collective within one device is a copy (xla/service/gpu, "Degenerate collectives are
# simply identity function"); of TPUs nothing is known. So only the CPU is refused.
OPERATIONS = (
    UnavailableOperation("stablehlo.collective_permute", _CPU, _ENDS, _ENDS_SOURCE),
    UnavailableOperation("stablehlo.partition_id", _CPU, _ENDS, _ENDS_SOURCE),
    UnavailableOperation("stablehlo.replica_id", _CPU, _ENDS, _ENDS_SOURCE),
    UnavailableOperation("stablehlo.all_gather", _CPU, _UNASSIGNED, _RUN),
    UnavailableOperation("stablehlo.all_to_all", _CPU, _UNASSIGNED, _RUN),
    UnavailableOperation("stablehlo.reduce_scatter", _CPU, _UNASSIGNED, _RUN),
    UnavailableOperation("stablehlo.infeed", _CPU, _WAITS, _NOBODY),
    UnavailableOperation("stablehlo.outfeed", _CPU, _WAITS, _NOBODY),
    UnavailableOperation("stablehlo.send", _CPU, _NO_THUNK, _NO_THUNK_SOURCE),
    UnavailableOperation("stablehlo.recv", _CPU, _NO_THUNK, _NO_THUNK_SOURCE),
    UnavailableOperation("stablehlo.collective_broadcast", _CPU, _NO_THUNK, _NO_THUNK_SOURCE),
)
_BY_NAME = {operation.name: operation for operation in OPERATIONS}


def check_operations(where: str, module: Any, platforms: Sequence[str]) -> None:
    """Refuse a parsed module for one device with what does not run on one of its platforms."""
    # One look at all operations; each platform's own are only looked for where it is needed.
    if not any(operation.name in _BY_NAME for operation in walk(module)):
        return
    for index, platform in enumerate(platforms):
        for operation in operations_on(module, index if len(platforms) > 1 else None):
            known = _BY_NAME.get(operation.name)
            if known is not None and platform in known.lacking and not _is_folded(operation):
                raise _refuse(where, operation, known, platforms)


def _is_folded(operation: Any) -> bool:
    """Return whether XLA knows the value without running it: `partition_id / a % 1`.

    So JAX lowers `lax.axis_index` of an axis that has one device.
    """
    if operation.name != "stablehlo.partition_id":
        return False
    quotients = [use.owner for use in operation.results[0].uses]
    return all(
        quotient.name == "stablehlo.divide"
        and all(_is_modulo_one(use.owner) for use in quotient.operation.results[0].uses)
        for quotient in quotients
    )


def _is_modulo_one(operation: Any) -> bool:
    if operation.name != "stablehlo.remainder":
        return False
    modulus = operation.operands[1].owner
    return getattr(modulus, "name", "") == "stablehlo.constant" and splat(modulus) == "1"


def _refuse(
    where: str, operation: Any, known: UnavailableOperation, platforms: Sequence[str]
) -> PlatformError:
    primitive = describe_primitive(operation)
    what = f"computes {primitive} with" if primitive else "has"
    rest = [platform for platform in platforms if platform not in known.lacking]
    shorter = f", or export it for the others, platforms={rest}" if rest else ""
    return PlatformError(
        f"{where} {what} {known.name} at {describe_location(operation)}, {known.outcome} on "
        f"{' and '.join(known.lacking)}. To do: compute this part outside the exported "
        f"function{shorter}."
    )
