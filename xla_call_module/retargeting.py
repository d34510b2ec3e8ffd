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
    if tensorflow is None:
        wanted: tuple[Release, ...] = RELEASES
    else:
        wanted = (parse_release(tensorflow) if isinstance(tensorflow, str) else tensorflow,)
    problem: VersionError | None = None
    with open_module(call.module) as module:
        needs = _needs(module)
        # From the oldest on: nearly every computation fits the first.
        for release in wanted:
            if tensorflow is None and call.uses_shardy and not release.shardy:
                continue
            try:
                return _retarget_module(call, module, needs, release)
            except VersionError as error:
                problem = error
    assert problem is not None, "some release takes Shardy"
    raise problem


def oldest_release(call: CallModule) -> Release | None:
    """The oldest known release that reads a call as it stands; None if not even the newest does."""
    for release in RELEASES:
        if (
            call.version <= release.convention
            and call.stablehlo_version <= release.stablehlo
            and release.tensorflow >= _first_release_for(call)
        ):
            return release
    return None


def _first_release_for(call: CallModule) -> tuple[int, int]:
    with open_module(call.module) as module:
        return max((need.release for need in _needs(module)), default=RELEASES[0].tensorflow)


def _retarget_module(
    call: CallModule, module: Any, needs: Sequence[_Need], release: Release
) -> CallModule:
    for need in needs:
        if release.tensorflow < need.release:
            raise _too_old(call, release, need.reason, need.release)
    try:
        artifact = serialize_module(module, min(release.stablehlo, call.stablehlo_version))
    except (RuntimeError, ValueError) as error:
        reason = _unexpressible(error)
        raise _too_old(call, release, reason, _first_that_serializes(module)) from error
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
    needs = []
    for operation in walk(module):
        if operation.name == "stablehlo.composite":
            first, what = _FIRST_WITH_COMPOSITES, operation.name
        elif operation.name == "stablehlo.dot_general" and "algorithm" in operation.attributes:
            first, what = _FIRST_WITH_DOT_ALGORITHMS, f"{operation.name} with an explicit algorithm"
        else:
            continue
        needs.append(_Need(first, f"{what} at {describe_location(operation)}"))
    return needs


def _first_that_serializes(module: Any) -> tuple[int, int] | None:
    for release in RELEASES:
        with contextlib.suppress(RuntimeError, ValueError):
            serialize_module(module, release.stablehlo)
            return release.tensorflow
    return None


def _unexpressible(error: Exception) -> str:
    """The operation and place that an MLIR legalization error names.

    It reads `f.py:3:9: error: failed to legalize operation 'vhlo.composite_v2' that was …`.
    """
    text = str(error)
    found = re.search(r"(\S+): error: failed to legalize operation '([^']+)'", text)
    return f"{found[2]} at {found[1]}" if found else first_line(error)


def _too_old(
    call: CallModule, release: Release, reason: str, needed: tuple[int, int] | None
) -> VersionError:
    cure = (
        f"The oldest TensorFlow that runs it is {needed[0]}.{needed[1]}."
        if needed
        else f"No TensorFlow up to {RELEASES[-1].name} runs it."
    )
    return VersionError(
        f"{call.name} cannot be expressed for TensorFlow {release.name} (StableHLO "
        f"{'.'.join(map(str, release.stablehlo))}): {reason}. {cure} To do: ask for that version, "
        "or leave the operation out of what is exported."
    )
