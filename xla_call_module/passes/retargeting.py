"""The last step of a pipeline: a parsed module as a portable artifact that a TensorFlow reads.

JAX writes portable artifacts about four weeks behind its own StableHLO, asking no consumer
(https://github.com/openxla/stablehlo/blob/main/docs/compatibility.md). TensorFlow releases are
older, so the artifact is serialized at the version that the consumer reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xla_call_module._jax import failed_legalization, stablehlo_versions
from xla_call_module.call import CallModule, read_artifact_version
from xla_call_module.errors import VersionError
from xla_call_module.passes.gspmd import is_only_shardy
from xla_call_module.passes.module_pass import ParsedCall
from xla_call_module.stablehlo.call_graph import COMPOSITE
from xla_call_module.stablehlo.mhlo import feature_of_call
from xla_call_module.stablehlo.modules import (
    custom_call_target,
    first_line,
    serialize_module,
    takes_platform_index_alone,
    walk,
)
from xla_call_module.stablehlo.operation_locations import describe_location
from xla_call_module.versions import (
    BEFORE_BATCHING_DIMENSIONS,
    NEWEST,
    RELEASES,
    SHARDY_CONVENTION,
    Feature,
    Release,
    StablehloVersion,
    oldest_running,
    parse_stablehlo_version,
)

# https://openxla.org/stablehlo/spec, "Accuracy": part of some operations since StableHLO 1.9.
_ACCURACY = "result_accuracy"
_SET_SIZE = "stablehlo.set_dimension_size"


@dataclass(frozen=True, slots=True)
class Need:
    """An operation with a feature that some releases read and do not run.

    Attributes:
        what: the name of the operation, and the part of it that some releases do not run.
        operation: the operation, which is valid while its module lives.
    """

    feature: Feature
    what: str
    operation: Any

    @property
    def reason(self) -> str:
        """The operation and its source line, which is looked for in the whole module."""
        return f"{self.what} at {describe_location(self.operation)}"


def needs_of(module: Any) -> list[Need]:
    """Return the operations of a parsed module that not every release runs."""
    return [need for operation in walk(module) if (need := _need(operation)) is not None]


def _need(operation: Any) -> Need | None:
    feature, what = feature_of_call(operation), operation.name
    if what == COMPOSITE:
        feature = Feature.COMPOSITE
    elif what == "stablehlo.dot_general" and "algorithm" in operation.attributes:
        feature = Feature.DOT_ALGORITHM
        what = f"{what} with an explicit algorithm"
    elif has_size_of_data(operation):
        feature, what = Feature.SIZE_OF_DATA, f"{what}, {Feature.SIZE_OF_DATA.value},"
    elif takes_platform_index_alone(operation):
        feature, what = Feature.PLATFORM_INDEX_ALONE, Feature.PLATFORM_INDEX_ALONE.value
    elif is_only_shardy(operation):
        feature, what = Feature.SHARDY, f"{what} with a sharding that only Shardy has"
    elif feature is not None:
        what = custom_call_target(operation)
    return None if feature is None else Need(feature, what, operation)


def has_size_of_data(operation: Any) -> bool:
    """Return whether an operation sets a size that depends on data, whose bound is in its type.

    The size that is set of a sorted array is the one that it has.
    """
    return operation.name == _SET_SIZE and "bounds" in str(operation.results[0].type)


def unmet_needs(needs: Sequence[Need], release: Release) -> list[Need]:
    """Return the needs that a release does not meet, those that the fewest releases meet first."""
    unmet = [need for need in needs if need.feature in release.lacks]
    return sorted(unmet, key=lambda need: _first(need), reverse=True)


def _first(need: Need) -> tuple[int, ...]:
    oldest = oldest_running([need.feature])
    return () if oldest is None else oldest.tensorflow


def serialize_for(
    parsed: ParsedCall, release: Release | None, *, newest: bool = False
) -> CallModule:
    """Return a call as a release reads it: artifact, calling convention and Shardy flag."""
    call, module = parsed.call, parsed.module
    needs = needs_of(module)
    if release is None:
        usable = [known for known in RELEASES if known.shardy or not call.uses_shardy]
        if (first := _first_artifact(call, module, needs, usable)) is not None:
            return label_for(call, *first)
        release = NEWEST
    return label_for(call, release, _artifact(call, module, needs, release, newest=newest))


def _first_artifact(
    call: CallModule, module: Any, needs: Sequence[Need], releases: Sequence[Release]
) -> tuple[Release, bytes] | None:
    """Return the first release that has a form of every operation, and the artifact for it."""
    for release in releases:
        if not unmet_needs(needs, release):
            with contextlib.suppress(RuntimeError, ValueError):
                return release, serialize_module_for(call, module, release)
    return None


def _artifact(
    call: CallModule, module: Any, needs: Sequence[Need], release: Release, *, newest: bool
) -> bytes:
    if unmet := unmet_needs(needs, release):
        raise _too_old(call, module, needs, release, unmet[0].reason)
    try:
        return serialize_module(module, version_for(call, release, newest=newest))
    except (RuntimeError, ValueError) as error:
        raise _too_old(call, module, needs, release, explain_failure(module, error)) from error


def serialize_module_for(call: CallModule, module: Any, release: Release) -> bytes:
    """Return the portable artifact of a module at a version that a release reads, none newer."""
    return serialize_module(module, version_for(call, release))


def version_for(call: CallModule, release: Release, *, newest: bool = False) -> StablehloVersion:
    """Return the StableHLO version at which a call is serialized for a release."""
    own = parse_stablehlo_version(stablehlo_versions()[1]) if newest else call.stablehlo_version
    version = min(release.stablehlo, own)
    if Feature.BATCHING_DIMENSIONS in release.lacks:
        version = min(version, BEFORE_BATCHING_DIMENSIONS)
    return version


def describe_version(before: StablehloVersion, after: StablehloVersion) -> tuple[str, ...]:
    """Return the entry of `CallModule.changes` for another StableHLO version, if it is another."""
    texts = [".".join(map(str, version)) for version in (before, after)]
    return () if before == after else (f"StableHLO {' to '.join(texts)}",)


def label_for(call: CallModule, release: Release, artifact: bytes) -> CallModule:
    """Return a call with an artifact and the calling convention for a release."""
    shardy = call.uses_shardy and release.shardy
    changed = describe_version(call.stablehlo_version, read_artifact_version(artifact))
    return dataclasses.replace(
        call,
        module=artifact,
        changes=(*call.changes, *changed),
        version=SHARDY_CONVENTION if shardy else min(call.version, release.writes_convention),
        uses_shardy=shardy,
    )


def explain_failure(module: Any, error: Exception) -> str:
    """Return the operation that has no form at a version, and its place."""
    failed = failed_legalization(error)
    if failed is None:
        return first_line(error)
    place, scope, name = failed
    same = re.sub(r"vhlo\.(\w+)_v\d+", r"stablehlo.\1", name)
    alike = [op for op in walk(module) if op.name == same]
    accurate = [op for op in alike if _accuracy(op)]
    if (scope or not place) and alike:
        place = describe_location([*accurate, *alike][0])
    what = f"{name} with {_ACCURACY} {_accuracy(accurate[0])}" if accurate else name
    return f"{what} at {place}"


def _accuracy(operation: Any) -> str:
    """Return the accuracy that an operation asks for; empty for the default."""
    if _ACCURACY not in operation.attributes:
        return ""
    mode = re.search(r"mode<(\w+)>", str(operation.attributes[_ACCURACY]))
    return "" if mode is None or mode[1] == "DEFAULT" else mode[1]


def _too_old(
    call: CallModule, module: Any, needs: Sequence[Need], release: Release, reason: str
) -> VersionError:
    able = _first_artifact(call, module, needs, RELEASES)
    cure = (
        f"No TensorFlow up to {NEWEST.name} runs it."
        if able is None
        else f"The oldest TensorFlow that runs it is {able[0].name}."
    )
    other = "leave the operation out of what is exported"
    if _SET_SIZE in reason:
        other += ", or pass graph=True to the bridge.call_tf that it comes from"
    if f" with {_ACCURACY} " in reason:
        other = (
            "ask for no accuracy= of that function of jax.lax. JAX 0.12 itself asks for one in the "
            "gradients of erf and erfc: there use jax.nn.gelu(approximate=True), or give erf "
            "another gradient with jax.custom_jvp"
        )
    return VersionError(
        f"{call.name} cannot be expressed for TensorFlow {release.name} (StableHLO "
        f"{'.'.join(map(str, release.stablehlo))}): {reason}. {cure} To do: ask for that version, "
        f"or {other}."
    )
