"""The releases of TensorFlow that run a call as it stands, and the obstacles for the others."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xla_call_module.analyses.readable import is_read_as_written
from xla_call_module.call import CallModule
from xla_call_module.errors import VersionError
from xla_call_module.passes.module_pass import open_call, run_on_module
from xla_call_module.passes.older_forms import forms_for
from xla_call_module.passes.retargeting import (
    Need,
    explain_failure,
    needs_of,
    serialize_for,
    serialize_module_for,
    unmet_needs,
)
from xla_call_module.stablehlo.bytecode import operation_versions, without_version
from xla_call_module.stablehlo.modules import open_module, serialize_module, walk
from xla_call_module.stablehlo.operation_locations import describe_location
from xla_call_module.versions import RELEASES, Release, oldest_running


def oldest_release(call: CallModule, module: Any = None) -> Release | None:
    """Return the oldest known release that reads a call as it stands; None if none does."""
    able = [r for r in RELEASES if call.version <= r.convention and _may_read(call, r)]
    if not able:
        return None
    # Operations of Shardy become calls and attributes only when they are serialized.
    is_parsed = module is not None and not call.uses_shardy
    with contextlib.nullcontext(module) if is_parsed else open_module(call.module) as parsed:
        needs = needs_of(parsed)
        return next((r for r in able if not _obstacle(call, parsed, needs, r)[0]), None)


def _may_read(call: CallModule, release: Release) -> bool:
    is_older = call.stablehlo_version <= release.stablehlo
    return is_older or release.reads_newer


@dataclass(frozen=True, slots=True)
class Obstacle:
    """The reason why a release does not run a call as it stands.

    Attributes:
        reason: the operation, version of StableHLO or calling convention that it does not take.
        operation: the operation that has no older form or that the release refuses, with its source
            line; empty where only a version is in the way, and where that was not looked for.
        removable: whether the pipeline finds another form for the release; None where that was not
            tried.
    """

    release: Release
    reason: str
    operation: str = ""
    removable: bool | None = None


def find_obstacles(call: CallModule, module: Any) -> tuple[Obstacle, ...]:
    """Return the obstacle of each release that does not run a call as it stands, oldest first.

    All fields are filled in for the last one, the newest release that does not run it.
    """
    needs = needs_of(module)
    obstacles = [
        Obstacle(release, reason, operation)
        for release in RELEASES
        for reason, operation in [_obstacle(call, module, needs, release)]
        if reason
    ]
    if not obstacles:
        return ()
    last = obstacles[-1]
    operation = last.operation or _operation_in_the_way(call, module, last.release)
    try:
        with open_call(call) as parsed:
            serialize_for(run_on_module(parsed, forms_for(last.release)), last.release)
        removable = True
    except VersionError:
        removable = False
    known = dataclasses.replace(last, operation=operation, removable=removable)
    return (*obstacles[:-1], known)


def _obstacle(
    call: CallModule, module: Any, needs: Sequence[Need], release: Release
) -> tuple[str, str]:
    """Return the feature that a release lacks, and its operation; empty texts where it runs."""
    if unmet := unmet_needs(needs, release):
        reason, oldest = unmet[0].reason, oldest_running([unmet[0].feature])
        where = "on no known TensorFlow" if oldest is None else f"from TensorFlow {oldest.name} on"
        return f"{reason} runs {where}", reason
    if not _reads(call, module, release):
        ours, theirs = (".".join(map(str, v)) for v in (call.stablehlo_version, release.stablehlo))
        return f"it reads StableHLO up to {theirs}, and the module is {ours}", ""
    if call.version > release.convention:
        return f"it takes calling conventions up to {release.convention}, not {call.version}", ""
    return "", ""


def _reads(call: CallModule, module: Any, release: Release) -> bool:
    """Return whether a release knows every operation of a module in the version that it has.

    So it is where the module is the same at the release's own version of StableHLO.
    """
    if call.stablehlo_version <= release.stablehlo or is_read_as_written(call, release):
        return True
    if not _may_read(call, release):
        return False
    try:
        forms = {
            without_version(serialize_module(module, version))
            for version in (call.stablehlo_version, release.stablehlo)
        }
    except (RuntimeError, ValueError):
        return False
    return len(forms) == 1


def _operation_in_the_way(call: CallModule, module: Any, release: Release) -> str:
    """Return the first operation that the release's StableHLO lacks, or has in an older form."""
    try:
        older = serialize_module_for(call, module, release)
    except (RuntimeError, ValueError) as error:
        return explain_failure(module, error)
    names = operation_versions(call.module) - operation_versions(older)
    newer = {f"stablehlo.{name}": version for name, version in names}
    first = next((op for op in walk(module) if op.name in newer), None)
    if first is None:
        return ""
    name = first.name.replace("stablehlo", "vhlo")
    return f"{name}{newer[first.name]} at {describe_location(first)}"
