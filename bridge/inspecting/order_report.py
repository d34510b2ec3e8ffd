"""The report of one module of a signature: the function, or one order of its gradients."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.inspecting.operation_counts import OperationCount, count_by_platform, most_frequent
from bridge.inspecting.sharding import ShardingReport, read_shardings
from xla_call_module.analyses.several_devices import operation_of_several_devices
from xla_call_module.analyses.tflite_conversion import conversion_faults
from xla_call_module.call import CallModule
from xla_call_module.descriptions.description_json import description_to_json, read_description
from xla_call_module.errors import VersionError
from xla_call_module.passes.constants import Constant, constants_of
from xla_call_module.passes.obstacles import Obstacle, find_obstacles
from xla_call_module.stablehlo.modules import custom_call_targets, open_module, walk
from xla_call_module.versions import NEWEST, RELEASES, promised_until

_MAX_CONSTANTS = 10


@dataclass(frozen=True, slots=True)
class ObstacleReport:
    """A release that does not run a module as it stands.

    Attributes:
        tensorflow: the release.
        reason: why the release does not run the module.
        operation: the operation that is the reason, with its source line; empty where unknown.
        removable: whether `retarget` removes the obstacle; None where that was not tried.
    """

    tensorflow: str
    reason: str
    operation: str
    removable: bool | None


@dataclass(frozen=True, slots=True)
class OrderReport:
    """One module of a signature: the function, its VJP, the VJP of that.

    Attributes:
        call: the index of the call in the signature; files of this package have only 0.
        order: the order of the gradient; 0 for the function.
        function: the name of the function.
        module_bytes: the number of bytes of the module.
        stablehlo: the StableHLO version of the portable artifact.
        readable_until: the day until which StableHLO promises to read that version, such as
            `2030-08-18`; empty where it promises nothing.
        calling_convention: the version of the XlaCallModule node.
        tensorflow: the oldest release known to run the module.
        obstacles: the obstacle of each older release, the oldest first; only the last one is
            complete.
        operations: the number of each operation in the module, the most frequent first.
        counts: the same for each platform, of what runs there.
        custom_calls: the targets of custom calls, sorted.
        constants: the largest constants of the module, the largest first.
        constant_bytes: the number of bytes of all its constants.
        sharding: the shardings of its arrays; None for one device.
        tflite_faults: what the converter to TFLite in TensorFlow may make wrong of it, by the names
            of `xla_call_module.analyses.tflite_conversion.FAULTS`.
        needs_devices: the operation, with its source line, that one device, such as that of
            TensorFlow, cannot run; empty where there is none.
        changes: what was done to the module since it was exported.
        description: the JSON text of all other fields of its `Exported`, which
            `docs/internals/exported_description.md` has; in JSON an object, and null for none.
            Empty where another program wrote the call, or a newer release the description.
    """

    call: int
    order: int
    function: str
    module_bytes: int
    stablehlo: str
    readable_until: str
    calling_convention: int
    tensorflow: str
    obstacles: tuple[ObstacleReport, ...]
    operations: Mapping[str, int]
    counts: tuple[OperationCount, ...]
    custom_calls: tuple[str, ...]
    constants: tuple[Constant, ...]
    constant_bytes: int
    sharding: ShardingReport | None
    tflite_faults: tuple[str, ...]
    needs_devices: str
    changes: tuple[str, ...]
    description: str

    @property
    def title(self) -> str:
        """The text `function` or `gradient N`, with the number of a call after the first."""
        title = f"gradient {self.order}" if self.order else "function"
        return f"call {self.call + 1}, {title}" if self.call else title


def report_order(call: CallModule) -> OrderReport:
    """Return the report of a call, as that of a function of order 0."""
    with open_module(call.module) as module:
        targets = set(custom_call_targets(walk(module)))
        names = Counter(operation.name for operation in walk(module))
        counts = count_by_platform(call, module)
        constants, constant_bytes = constants_of(module, _MAX_CONSTANTS)
        obstacles = tuple(map(_report_obstacle, find_obstacles(call, module)))
        sharding = read_shardings(call, module)
        needs_devices = operation_of_several_devices(call, module)
        faults = conversion_faults(call, module)
    until = promised_until(call.stablehlo_version)
    return OrderReport(
        call=0,
        order=0,
        function=call.name,
        module_bytes=len(call.module),
        stablehlo=".".join(map(str, call.stablehlo_version)),
        readable_until="" if until is None else until.isoformat(),
        calling_convention=call.version,
        tensorflow=_first_after(obstacles),
        obstacles=obstacles,
        operations=most_frequent(names),
        counts=counts,
        custom_calls=tuple(sorted(targets)),
        constants=tuple(constants),
        constant_bytes=constant_bytes,
        sharding=sharding,
        tflite_faults=faults,
        needs_devices=needs_devices,
        changes=call.changes,
        description=_description_of(call),
    )


def _description_of(call: CallModule) -> str:
    """Return the description of what a call was made of; of older files in the form of today."""
    if not call.exported:
        return ""
    try:
        return description_to_json(read_description(call.exported, where=call.name)).decode()
    except VersionError:
        return ""


def _report_obstacle(obstacle: Obstacle) -> ObstacleReport:
    return ObstacleReport(
        obstacle.release.name, obstacle.reason, obstacle.operation, obstacle.removable
    )


def _first_after(obstacles: Sequence[ObstacleReport]) -> str:
    """Return the oldest release from which on none has an obstacle."""
    names = {obstacle.tensorflow for obstacle in obstacles}
    if NEWEST.name in names:
        return f"> {NEWEST.name}"
    free = itertools.takewhile(lambda release: release.name not in names, reversed(RELEASES))
    return min(free, key=lambda release: release.tensorflow).name
