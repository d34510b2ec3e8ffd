"""A SavedModel, of this project or another, for an older TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.rewriting import rewrite_nodes
from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck, parse_checks
from xla_call_module.linalg.linalg_option import parse_linalg
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.passes.retargeting import oldest_release, retarget
from xla_call_module.versions import RELEASES, Release, parse_release

__all__ = ["RetargetReport", "retarget_file"]


@dataclass(frozen=True, slots=True)
class RetargetReport:
    """What became of a file.

    Attributes:
        nodes: how many XlaCallModule nodes it has that compute something, those of gradients
            included; others only assert shapes.
        modules: how many different modules they have.
        tensorflow: the oldest release known to run all of them; empty where there is none.
    """

    nodes: int
    modules: int
    tensorflow: str


def retarget_file(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    tensorflow: str | None = None,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[object] | None = None,
    linalg: str = "portable",
    overwrite: bool = False,
) -> RetargetReport:
    """Write a SavedModel again, as other consumers need its modules.

    Args:
        source: its folder. Whatever wrote it: all XlaCallModule nodes of all its graphs and
            functions are changed, and everything else is kept.
        target: the new folder, or an address as for `bridge.save`.
        tensorflow: the oldest TensorFlow that must read it; None leaves the modules as old as they
            are.
        platforms: those that stay, in the order of the platform index; None for all.
        disabled_checks: the safety checks that do not apply, instead of those of the file; None
            for the latter.
        linalg: `"portable"` replaces the calls of LAPACK and its kin, which TensorFlow does not
            have; `"lapack"` leaves them.
        overwrite: whether a SavedModel at `target` is replaced; it may be `source`.

    Raises:
        VersionError: an operation has no form that this TensorFlow reads.
        PlatformError: a module was not lowered for one of the platforms.
        StructureError, FormatError, OSError: as for `savedmodel.rewriting.rewrite_nodes`; or a
            check is unknown.
    """
    release = None if tensorflow is None else parse_release(tensorflow)
    checks = None if disabled_checks is None else parse_checks(disabled_checks)
    portable_linalg = parse_linalg(linalg)

    def rewrite(folder: ModelFolder) -> RetargetReport:
        change = _Change(release, platforms, checks, portable_linalg)
        nodes = rewrite_nodes(
            folder, target, change.apply, metadata=change.metadata, overwrite=overwrite
        )
        return RetargetReport(nodes, change.modules, change.metadata().get("tensorflow", ""))

    return read_one_version(source, rewrite)


@dataclass(slots=True)
class _Change:
    """What is made of each call, and which releases run what came of it."""

    tensorflow: Release | None
    platforms: Sequence[str] | None
    checks: tuple[DisabledCheck, ...] | None
    portable_linalg: bool
    releases: list[Release | None] = dataclasses.field(default_factory=list)
    modules: int = 0

    def apply(self, call: CallModule) -> CallModule:
        if self.platforms is not None:
            call = select_platforms(call, self.platforms)
        if self.portable_linalg:
            call = lower_linalg(call)
        if self.tensorflow is not None:
            call = retarget(call, self.tensorflow)
        if self.checks is not None:
            call = dataclasses.replace(call, disabled_checks=self.checks)
        self.releases.append(oldest_release(call))
        self.modules += bool(call.results)
        return call

    def metadata(self) -> Mapping[str, Any]:
        known = [RELEASES.index(release) for release in self.releases if release is not None]
        if len(known) < len(self.releases):
            return {}
        return {"tensorflow": RELEASES[max(known)].name}
