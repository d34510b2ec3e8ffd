"""The pass that makes a call readable for a given TensorFlow.

JAX writes portable artifacts about four weeks behind its own StableHLO, asking no consumer
(https://github.com/openxla/stablehlo/blob/main/docs/compatibility.md). TensorFlow releases are
older, so the artifact is serialized again at the version that the consumer reads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from xla_call_module.analyses.readable import is_read_as_written
from xla_call_module.call import CallModule, read_artifact_version
from xla_call_module.errors import StructureError, VersionError
from xla_call_module.passes.gspmd import is_only_shardy, to_gspmd
from xla_call_module.passes.locations import drop_locations
from xla_call_module.stablehlo.composites import COMPOSITE, call_definitions
from xla_call_module.stablehlo.mhlo import expand_custom_calls, first_release_with
from xla_call_module.stablehlo.modules import (
    custom_call_target,
    describe_location,
    first_line,
    open_module,
    serialize_module,
    uses_shardy,
    walk,
)
from xla_call_module.versions import RELEASES, Release, parse_release

__all__ = ["Obstacle", "adapt", "find_obstacles", "oldest_release", "retarget"]

_SHARDY_CONVENTION = 10
# https://docs.jax.dev/en/latest/export/export.html#calling-convention-versions, version 8
_POLYMORPHIC = "jax.uses_shape_polymorphism"
# TensorFlow 2.17 and older read a composite and then refuse it; see `_needs`.
_FIRST_WITH_COMPOSITES = (2, 18)
# TensorFlow 2.18's XLA ends the process on a dot with an explicit algorithm.
_FIRST_WITH_DOT_ALGORITHMS = (2, 19)
# TensorFlow 2.17 reads a gather or scatter with batching dimensions, new in StableHLO 1.1, and then
# refuses it. In an older artifact it has another form, where the shapes of its indices are static.
_FIRST_WITH_BATCHING = (2, 18)
_BEFORE_BATCHING = (1, 0, 0)
# From here on TensorFlow looks at the version of each operation, and not at the artifact's: it runs
# what a newer JAX wrote as long as nothing in it is newer. Found by running it.
_FIRST_THAT_READS_NEWER = (2, 20)
_VERSION_IN_HEADER = re.compile(rb"StableHLO_v[\d.]+\x00")
# https://openxla.org/stablehlo/spec, "Accuracy": part of some operations since StableHLO 1.9.
_ACCURACY = "result_accuracy"
# An artifact has the names of its operations as text, each with its version.
_VERSIONED = re.compile(rb"\x00([a-z][a-z0-9_]*)(_v\d+)(?=\x00)")
_FIRST_WITH_SHARDY = next(known.tensorflow for known in RELEASES if known.shardy)
# What is written for no release in particular keeps what this one runs: a composite may have a
# faster form in the consumer than its definition.
_UNCHANGED = (2, 18)


def retarget(
    call: CallModule, tensorflow: str | Release | None = None, *, locations: bool = True
) -> CallModule:
    """The same computation as TensorFlow `tensorflow` reads it.

    Args:
        call: any call.
        tensorflow: the consumer, for example `"2.18"`; None for the oldest one that can run the
            computation without another form of its composites.
        locations: whether the module keeps its source locations, which errors quote.

    Returns:
        A call whose artifact, calling convention and Shardy flag that consumer reads. Arguments
        and results are the same.

    Raises:
        VersionError: an operation has no form that the consumer reads; the message names it, its
            place in the Python source, and the oldest TensorFlow that would do. Or `tensorflow`
            is no version.
        StructureError: it is no call.

    Example:
        >>> import jax
        >>> from xla_call_module import from_exported, retarget
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> call = from_exported(jax.export.export(jax.jit(jax.lax.erf))(spec))
        >>> retarget(call, "2.18").stablehlo_version
        (1, 7, 3)
    """
    if not isinstance(call, CallModule):
        raise StructureError(
            f"Expected a CallModule, got {type(call).__name__}. To do: make one with "
            "from_exported; bridge.retarget takes an Exported."
        )
    if tensorflow is None or isinstance(tensorflow, Release):
        release = tensorflow
    else:
        release = parse_release(tensorflow)
    call = _refinable(call)
    with _open(call, release) as module:
        _rewrite(module, release)
        if not locations:
            drop_locations(module)
        needs = _needs(module)
        if release is None:
            usable = [known for known in RELEASES if known.shardy or not call.uses_shardy]
            if (found := _first_artifact(call, module, needs, usable)) is not None:
                return _relabel(call, *found)
            release = RELEASES[-1]
        return _relabel(call, release, _artifact(call, module, needs, release))


def adapt(call: CallModule, release: Release) -> CallModule:
    """The same computation for a TensorFlow that is running, with as little work as that needs.

    Unlike what `retarget` returns its artifact may be newer than the release, in nothing but name.

    Args:
        call: any call.
        release: that runs it.

    Raises:
        VersionError: as `retarget`.
    """
    if is_read_as_written(call, release):
        return _relabel(call, release, call.module)
    return retarget(call, release)


def _rewrite(module: Any, release: Release | None) -> None:
    """Give, in place, another form to what the release does not run, as far as there is one."""
    able = _UNCHANGED if release is None else release.tensorflow
    if _is_polymorphic(module) or able < _FIRST_WITH_COMPOSITES:
        call_definitions(module)
    expand_custom_calls(module, able)


def _is_polymorphic(module: Any) -> bool:
    """Whether JAX lowered it with symbolic dimensions, which a node need not tell."""
    attributes = module.operation.attributes
    return _POLYMORPHIC in attributes and str(attributes[_POLYMORPHIC]) == "true"


def _refinable(call: CallModule) -> CallModule:
    """The call in a form whose symbolic dimensions TensorFlow can replace by sizes.

    It does not know the shape of what the call returns that holds Shardy's sharding of a result.
    XLA's older partitioner has the same shardings as attributes.
    """
    if not call.uses_shardy or not call.symbols:
        return call
    artifact = to_gspmd(call.module)
    with open_module(artifact) as module:
        if any(map(is_only_shardy, walk(module))):
            return call
    return dataclasses.replace(
        call,
        module=artifact,
        uses_shardy=False,
        version=min(call.version, _SHARDY_CONVENTION - 1),
        changes=(*call.changes, "shardings for GSPMD"),
    )


@contextlib.contextmanager
def _open(call: CallModule, release: Release | None) -> Iterator[Any]:
    """The parsed module, with GSPMD's shardings alone where the release has no other.

    On one device both partitioners have nothing to do, so any release takes that form.
    """
    has_shardy = call.uses_shardy and (release is None or release.shardy)
    with open_module(call.module) as module:
        if has_shardy or not uses_shardy(module):
            yield module
            return
    with open_module(to_gspmd(call.module)) as module:
        yield module


def oldest_release(call: CallModule) -> Release | None:
    """The oldest known release that reads a call as it stands; None if not even the newest does."""
    able = [r for r in RELEASES if call.version <= r.convention and _may_read(call, r)]
    if not able:
        return None
    with open_module(call.module) as module:
        needs = _needs(module)
        return next((r for r in able if not _obstacle(call, module, needs, r)[0]), None)


def _may_read(call: CallModule, release: Release) -> bool:
    is_older = call.stablehlo_version <= release.stablehlo
    return is_older or release.tensorflow >= _FIRST_THAT_READS_NEWER


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a release does not run a call as it stands.

    Attributes:
        release: the release.
        reason: what it does not take: an operation, a version of StableHLO, a calling convention.
        operation: the operation that has no older form or that the release refuses, with its source
            line; empty where only a version is in the way, and where that was not looked for.
        removable: whether `retarget` finds another form for the release; None where that was not
            tried.
    """

    release: Release
    reason: str
    operation: str = ""
    removable: bool | None = None


def find_obstacles(call: CallModule, module: Any) -> tuple[Obstacle, ...]:
    """Why each release that does not run a call as it stands does not, the oldest release first.

    All of the last one is found out, which is the release just below the oldest that runs it.

    Args:
        call: any call.
        module: its parsed module, which stays as it is.
    """
    needs = _needs(module)
    found = [
        Obstacle(release, reason, operation)
        for release in RELEASES
        for reason, operation in [_obstacle(call, module, needs, release)]
        if reason
    ]
    if not found:
        return ()
    last = found[-1]
    operation = last.operation or _operation_in_the_way(call, module, last.release)
    try:
        retarget(call, last.release)
        removable = True
    except VersionError:
        removable = False
    known = dataclasses.replace(last, operation=operation, removable=removable)
    return (*found[:-1], known)


def _obstacle(
    call: CallModule, module: Any, needs: Sequence[_Need], release: Release
) -> tuple[str, str]:
    """What a release does not take and the operation behind it; empty texts where it runs."""
    if unmet := _unmet(needs, release):
        hardest = max(unmet, key=lambda need: need.release)
        first = ".".join(map(str, hardest.release))
        return f"{hardest.reason} runs from TensorFlow {first} on", hardest.reason
    if not _reads(call, module, release):
        ours, theirs = (".".join(map(str, v)) for v in (call.stablehlo_version, release.stablehlo))
        return f"it reads StableHLO up to {theirs}, and the module is {ours}", ""
    if call.version > release.convention:
        return f"it takes calling conventions up to {release.convention}, not {call.version}", ""
    return "", ""


def _reads(call: CallModule, module: Any, release: Release) -> bool:
    """Whether a release knows every operation of a module in the version that it has there.

    So it is where the module is the same at the release's own version of StableHLO.
    """
    if call.stablehlo_version <= release.stablehlo or is_read_as_written(call, release):
        return True
    if not _may_read(call, release):
        return False
    try:
        forms = {
            _VERSION_IN_HEADER.sub(b"", serialize_module(module, version), count=1)
            for version in (call.stablehlo_version, release.stablehlo)
        }
    except (RuntimeError, ValueError):
        return False
    return len(forms) == 1


def _operation_in_the_way(call: CallModule, module: Any, release: Release) -> str:
    """The first operation that has no form in the release's StableHLO, or had to be given one."""
    try:
        older = _serialize(call, module, release)
    except (RuntimeError, ValueError) as error:
        return _unexpressible(module, error)
    names = set(_VERSIONED.findall(call.module)) - set(_VERSIONED.findall(older))
    newer = {f"stablehlo.{name.decode()}": version.decode() for name, version in names}
    first = next((op for op in walk(module) if op.name in newer), None)
    if first is None:
        return ""
    name = first.name.replace("stablehlo", "vhlo")
    return f"{name}{newer[first.name]} at {describe_location(first)}"


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
        raise _too_old(call, module, needs, release, _unexpressible(module, error)) from error


def _unmet(needs: Sequence[_Need], release: Release) -> list[_Need]:
    return [need for need in needs if release.tensorflow < need.release]


def _serialize(call: CallModule, module: Any, release: Release) -> bytes:
    version = min(release.stablehlo, call.stablehlo_version)
    if release.tensorflow < _FIRST_WITH_BATCHING:
        version = min(version, _BEFORE_BATCHING)
    return serialize_module(module, version)


def _relabel(call: CallModule, release: Release, artifact: bytes) -> CallModule:
    shardy = call.uses_shardy and release.shardy
    before, after = call.stablehlo_version, read_artifact_version(artifact)
    versions = " to ".join(".".join(map(str, version)) for version in (before, after))
    changed = () if artifact == call.module else (f"StableHLO {versions}",)
    return dataclasses.replace(
        call,
        module=artifact,
        changes=(*call.changes, *changed),
        version=_SHARDY_CONVENTION if shardy else min(call.version, release.convention, 9),
        uses_shardy=shardy,
    )


@dataclass(frozen=True, slots=True)
class _Need:
    """An operation that some releases read and cannot run, whatever its version.

    Attributes:
        release: the first that runs it.
        what: its name, and what of it others do not run.
        operation: it, while its module lives.
    """

    release: tuple[int, int]
    what: str
    operation: Any

    @property
    def reason(self) -> str:
        """What it is, and its source line, which is looked for in the whole module."""
        return f"{self.what} at {describe_location(self.operation)}"


def _needs(module: Any) -> list[_Need]:
    return [need for operation in walk(module) if (need := _need(operation)) is not None]


def _need(operation: Any) -> _Need | None:
    first, what = first_release_with(operation), operation.name
    if what == COMPOSITE:
        first = _FIRST_WITH_COMPOSITES
    elif what == "stablehlo.dot_general" and "algorithm" in operation.attributes:
        first, what = _FIRST_WITH_DOT_ALGORITHMS, f"{what} with an explicit algorithm"
    elif is_only_shardy(operation):
        first, what = _FIRST_WITH_SHARDY, f"{what} with a sharding that only Shardy has"
    elif first is not None:
        what = custom_call_target(operation)
    return None if first is None else _Need(first, what, operation)


def _unexpressible(module: Any, error: Exception) -> str:
    """The operation that an MLIR legalization error names, and its place.

    The error reads `f.py:3:9: error: failed to legalize operation 'vhlo.composite_v2' that was …`,
    or has a scope where the operation has no file of its own.
    """
    text = str(error)
    found = re.search(r"(\S+): error: (.*)failed to legalize operation '([^']+)'", text)
    if found is None:
        return first_line(error)
    place, scope, name = found.groups()
    same = re.sub(r"vhlo\.(\w+)_v\d+", r"stablehlo.\1", name)
    alike = [op for op in walk(module) if op.name == same]
    accurate = [op for op in alike if _accuracy(op)]
    if scope and alike:
        place = describe_location([*accurate, *alike][0])
    what = f"{name} with {_ACCURACY} {_accuracy(accurate[0])}" if accurate else name
    return f"{what} at {place}"


def _accuracy(operation: Any) -> str:
    """What is asked of the accuracy of an operation; empty for what each release gives anyway."""
    if _ACCURACY not in operation.attributes:
        return ""
    mode = re.search(r"mode<(\w+)>", str(operation.attributes[_ACCURACY]))
    return "" if mode is None or mode[1] == "DEFAULT" else mode[1]


def _too_old(
    call: CallModule, module: Any, needs: Sequence[_Need], release: Release, reason: str
) -> VersionError:
    found = _first_artifact(call, module, needs, RELEASES)
    cure = (
        f"No TensorFlow up to {RELEASES[-1].name} runs it."
        if found is None
        else f"The oldest TensorFlow that runs it is {found[0].name}."
    )
    other = "leave the operation out of what is exported"
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
