"""The pass that makes a call readable for a given TensorFlow.

JAX writes portable artifacts about four weeks behind its own StableHLO, asking no consumer
(https://github.com/openxla/stablehlo/blob/main/docs/compatibility.md). TensorFlow releases are
older, so the artifact is serialized again at the version that the consumer reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from xla_call_module.call import CallModule
from xla_call_module.composites import COMPOSITE, call_definitions
from xla_call_module.errors import VersionError
from xla_call_module.stablehlo import (
    describe_location,
    first_line,
    open_module,
    serialize_module,
    walk,
)
from xla_call_module.versions import RELEASES, Release, parse_release

__all__ = ["oldest_release", "retarget"]

_SHARDY_CONVENTION = 10
# TensorFlow 2.17 and older read a composite and then refuse it; see `_needs`.
_FIRST_WITH_COMPOSITES = (2, 18)
# TensorFlow 2.18's XLA ends the process on a dot with an explicit algorithm.
_FIRST_WITH_DOT_ALGORITHMS = (2, 19)
# How JAX before 0.9.1 writes what StableHLO has no operation for: custom calls that XLA turns into
# operations of its own dialect, MHLO. A release whose MHLO lacks the operation, or has another form
# of it, reads the call and refuses it when it runs. Found by running each in each release.
_FIRST_WITH_MHLO = {
    "mhlo.acos": (2, 21),
    "mhlo.acosh": (2, 21),
    "mhlo.asin": (2, 21),
    "mhlo.asinh": (2, 21),
    "mhlo.atanh": (2, 21),
    "mhlo.cosh": (2, 21),
    "mhlo.erf": (2, 16),
    "mhlo.sinh": (2, 21),
    "mhlo.topk": (2, 16),
}


def retarget(call: CallModule, tensorflow: str | Release | None = None) -> CallModule:
    """The same computation as TensorFlow `tensorflow` reads it.

    Args:
        call: any call.
        tensorflow: the consumer, for example `"2.18"`; None for the oldest one that can run the
            computation unchanged.

    Returns:
        A call whose artifact, calling convention and Shardy flag that consumer reads. Arguments
        and results are the same.

    Raises:
        VersionError: an operation has no form that the consumer reads; the message names it, its
            place in the Python source, and the oldest TensorFlow that would do.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported, retarget
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> call = from_exported(jax.export.export(jax.jit(jax.lax.erf))(spec))
        >>> retarget(call, "2.18").stablehlo_version
        (1, 7, 3)
    """
    with open_module(call.module) as module:
        if call.symbols:
            call_definitions(module)
        needs = _needs(module)
        if tensorflow is None:
            usable = [release for release in RELEASES if release.shardy or not call.uses_shardy]
            if (found := _first_artifact(call, module, needs, usable)) is not None:
                return _relabel(call, *found)
            tensorflow = RELEASES[-1]
        release = parse_release(tensorflow) if isinstance(tensorflow, str) else tensorflow
        return _relabel(call, release, _artifact(call, module, needs, release))


def oldest_release(call: CallModule) -> Release | None:
    """The oldest known release that reads a call as it stands; None if not even the newest does."""
    first: tuple[int, int] | None = None
    for release in RELEASES:
        if call.version <= release.convention and call.stablehlo_version <= release.stablehlo:
            first = first or _first_release_for(call)
            if first <= release.tensorflow:
                return release
    return None


def _first_release_for(call: CallModule) -> tuple[int, int]:
    with open_module(call.module) as module:
        return max((need.release for need in _needs(module)), default=RELEASES[0].tensorflow)


def _first_artifact(
    call: CallModule, module: Any, needs: Sequence[_Need], releases: Sequence[Release]
) -> tuple[Release, bytes] | None:
    """The first release that meets the needs and has a form of every operation, with that form."""
    for release in releases:
        if not _unmet(needs, release):
            with contextlib.suppress(RuntimeError, ValueError):
                return release, _serialize(call, module, release)
    return None


def _artifact(call: CallModule, module: Any, needs: Sequence[_Need], release: Release) -> bytes:
    if unmet := _unmet(needs, release):
        hardest = max(unmet, key=lambda need: need.release)
        raise _too_old(call, module, needs, release, hardest.reason)
    try:
        return _serialize(call, module, release)
    except (RuntimeError, ValueError) as error:
        raise _too_old(call, module, needs, release, _unexpressible(error)) from error


def _unmet(needs: Sequence[_Need], release: Release) -> list[_Need]:
    return [need for need in needs if release.tensorflow < need.release]


def _serialize(call: CallModule, module: Any, release: Release) -> bytes:
    return serialize_module(module, min(release.stablehlo, call.stablehlo_version))


def _relabel(call: CallModule, release: Release, artifact: bytes) -> CallModule:
    shardy = call.uses_shardy and release.shardy
    return dataclasses.replace(
        call,
        module=artifact,
        version=_SHARDY_CONVENTION if shardy else min(call.version, release.convention, 9),
        uses_shardy=shardy,
    )


@dataclass(frozen=True, slots=True)
class _Need:
    """An operation that some releases read and cannot run, whatever its version."""

    release: tuple[int, int]
    reason: str


def _needs(module: Any) -> list[_Need]:
    return [need for operation in walk(module) if (need := _need(operation)) is not None]


def _need(operation: Any) -> _Need | None:
    what = operation.name
    if what == COMPOSITE:
        first = _FIRST_WITH_COMPOSITES
    elif what == "stablehlo.dot_general" and "algorithm" in operation.attributes:
        first, what = _FIRST_WITH_DOT_ALGORITHMS, f"{what} with an explicit algorithm"
    elif what == "stablehlo.custom_call":
        what = str(operation.attributes["call_target_name"]).strip('"')
        if not what.startswith("mhlo."):
            return None
        first = _FIRST_WITH_MHLO.get(what, RELEASES[-1].tensorflow)
    else:
        return None
    return _Need(first, f"{what} at {describe_location(operation)}")


def _unexpressible(error: Exception) -> str:
    """The operation and place that an MLIR legalization error names.

    It reads `f.py:3:9: error: failed to legalize operation 'vhlo.composite_v2' that was …`.
    """
    text = str(error)
    found = re.search(r"(\S+): error: failed to legalize operation '([^']+)'", text)
    return f"{found[2]} at {found[1]}" if found else first_line(error)


def _too_old(
    call: CallModule, module: Any, needs: Sequence[_Need], release: Release, reason: str
) -> VersionError:
    found = _first_artifact(call, module, needs, RELEASES)
    cure = (
        f"No TensorFlow up to {RELEASES[-1].name} runs it."
        if found is None
        else f"The oldest TensorFlow that runs it is {found[0].name}."
    )
    return VersionError(
        f"{call.name} cannot be expressed for TensorFlow {release.name} (StableHLO "
        f"{'.'.join(map(str, release.stablehlo))}): {reason}. {cure} To do: ask for that version, "
        "or leave the operation out of what is exported."
    )
