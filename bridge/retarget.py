"""`retarget`: rewrite an `Exported`, or a whole SavedModel, for an older TensorFlow."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from jax import export

from bridge.chains.lifted_export import export_for_platforms
from bridge.chains.orders import ChainOptions, check_order
from bridge.chains.plain_operations import lower_written
from bridge.core._jax import cut_vjp, replace_vjp
from bridge.core.operations_option import OperationsOption, parse_operations
from bridge.inspecting.wording import counted, printable
from bridge.inspecting.written_file import WrittenFile, facts_of
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.rewrite import Operations, rewrite_nodes
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck, parse_checks
from xla_call_module.errors import InteropError, StructureError, remedy_for
from xla_call_module.exported import from_exported
from xla_call_module.linalg.linalg_option import LinalgOption, parse_linalg
from xla_call_module.passes.pipeline import Artifact, Target, prepare
from xla_call_module.platforms import parse_platforms
from xla_call_module.tracebacks import api_boundary
from xla_call_module.versions import NEWEST, OLDEST, Release, parse_release


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RetargetReport(WrittenFile):
    """A file that was written again for other TensorFlow releases or platforms.

    Attributes:
        nodes: the number of XlaCallModule nodes that compute something, those of gradients
            included; others only assert shapes.
        modules: the number of different modules that they have.
        tensorflow: the oldest release known to run all of them; empty where there is none.
    """

    nodes: int
    modules: int

    def _title(self) -> str:
        reader = self._reader() or "readable by no TensorFlow that is known"
        nodes, modules = counted(self.nodes, "call"), counted(self.modules, "module")
        return printable(f"{self.path}: {nodes} of {modules}, {reader}")


@overload
def retarget(
    exported: export.Exported,
    tensorflow: str | None = None,
    *,
    platforms: Sequence[str] | None = None,
    gradient_order: int | None = None,
) -> export.Exported: ...


@overload
def retarget(
    exported: str | os.PathLike[str],
    tensorflow: str | None = None,
    *,
    to: str | os.PathLike[str],
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[object] | None = None,
    linalg: LinalgOption = "portable",
    gradient_order: int | None = None,
    lift: bool = False,
    operations: OperationsOption | None = None,
    for_converters: bool = False,
    overwrite: bool = False,
) -> RetargetReport: ...


@api_boundary
def retarget(
    exported: export.Exported | str | os.PathLike[str],
    tensorflow: str | None = None,
    *,
    to: str | os.PathLike[str] | None = None,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[object] | None = None,
    linalg: LinalgOption = "portable",
    gradient_order: int | None = None,
    lift: bool = False,
    operations: OperationsOption | None = None,
    for_converters: bool = False,
    overwrite: bool = False,
) -> export.Exported | RetargetReport:
    """Rewrite a computation, and its VJPs of every order, so that an older TensorFlow reads it.

    `bridge.save(..., tensorflow=...)` does this by itself; this function is for an `Exported` that
    is used otherwise, such as by `jax.experimental.jax2tf`, and for an existing SavedModel of this
    project, jax2tf, orbax or Keras. JAX can still call, differentiate and serialize the new
    `Exported`. A SavedModel is written to `to`: all its XlaCallModule nodes are changed, those of
    gradients included, and nothing else; variables and assets are hard links if the file system has
    them.

    Args:
        exported: the result of `jax.export.export(...)(...)` or of `jax.export.deserialize`; or
            the folder of a SavedModel.
        tensorflow: the oldest TensorFlow that must read it, such as `"2.16"`. For a SavedModel None
            leaves its modules as old as they are.
        to: the new folder of the SavedModel, or an address as for `bridge.save`.
        platforms: for a SavedModel, the platforms to keep; None for all. For an `Exported` its new
            platforms, of which some may be new: it is exported again from its operations, where
            these are the same on every platform. Static shapes stay static.
        disabled_checks: for a SavedModel, the disabled safety checks, instead of those of the file;
            None to keep these.
        linalg: for a SavedModel, `"portable"` replaces calls of LAPACK and similar libraries, which
            TensorFlow does not have; `"lapack"` leaves them.
        gradient_order: the highest order of gradients that is kept, if there are more; 0 for the
            function alone, None for all.
        lift: for a SavedModel, whether its modules are written at the newest version of StableHLO
            that `tensorflow`, by default the newest known release, reads. That puts off the day
            until which they are promised to be readable, as `bridge.inspect` prints it; older
            TensorFlow releases do not read the new file.
        operations: for a SavedModel, `"tensorflow"` to run TensorFlow's own operations in the place
            of modules, `"xla"` for the modules again; None leaves what the file runs.
        for_converters: with `operations="tensorflow"`, whether the new file is for what reads the
            graph and does not run it, as for `bridge.save`. It keeps no gradients unless
            `gradient_order` says so.
        overwrite: whether a SavedModel at `to` is replaced; it may be the old folder.

    Returns:
        The new `Exported`; for a SavedModel what was written: its path, signatures and size.

    Raises:
        VersionError: an operation has no form that this TensorFlow reads; the message names it,
            its source line, the order of the gradient where it is in one, and the oldest
            TensorFlow that would do. What only a VJP of an
            `Exported` contains is found when that VJP is asked for: by `vjp()`, by JAX's
            differentiation or by `serialize(vjp_order=...)`.
        PlatformError: a SavedModel was not lowered for one of the platforms; an `Exported` computes
            something else on each platform, and nothing for a new one.
        UnsupportedError: an operation of an `Exported` for new platforms is of its old ones alone.
        FormatError: a SavedModel is damaged, or has no XlaCallModule node.
        StructureError: `to` exists or is missing, a check is unknown, or an option for a SavedModel
            comes with an `Exported`.
        OSError: a file cannot be read or written; an older folder is untouched.
        InteropError: TensorFlow cannot run the computation at all.

    Example:
        >>> import bridge, jax
        >>> spec = jax.ShapeDtypeStruct((3,), "float32")
        >>> exported = jax.export.export(jax.jit(jax.lax.asinh))(spec)
        >>> older = bridge.retarget(exported, "2.16")
        >>> older.calling_convention_version, older.vjp().calling_convention_version
        (9, 9)
        >>> saved = bridge.save(exported, "my_model", tensorflow="2.21")
        >>> print(bridge.retarget("my_model", "2.16", to="for_2_16"))
        for_2_16: 2 calls of 2 modules, readable from TensorFlow 2.16 on
        serving_default(x: float32[3]) -> output_0: float32[3], for cpu
        >>> bridge.retarget("my_model", to="without_gradients", gradient_order=0).nodes
        1
    """
    if gradient_order is not None:
        check_order(gradient_order)
    plain = _parse_operations(operations, for_converters=for_converters)
    if isinstance(exported, str | os.PathLike):
        if to is None:
            raise StructureError(
                f"The folder for the new SavedModel of {os.fspath(exported)} is missing. To do: "
                "pass to=."
            )
        release = None if tensorflow is None else parse_release(tensorflow)
        target = Target(
            NEWEST if release is None and lift else release,
            _artifact(release, lift=lift),
            platforms=None if platforms is None else parse_platforms(platforms),
            portable_linalg=parse_linalg(linalg),
            for_file=True,
        )
        checks = None if disabled_checks is None else parse_checks(disabled_checks)
        return _retarget_file(
            exported,
            to,
            target,
            checks=checks,
            gradient_order=0 if for_converters and gradient_order is None else gradient_order,
            plain=plain,
            for_converters=for_converters,
            overwrite=overwrite,
        )
    if not isinstance(exported, export.Exported):
        raise StructureError(
            f"Expected a jax.export.Exported, got {type(exported).__name__}. "
            f"{remedy_for(exported, otherwise='pass one, or the folder of a SavedModel')}"
        )
    given = (to, disabled_checks, operations)
    is_changed = tensorflow is not None or platforms is not None
    if not is_changed or lift or any(option is not None for option in given):
        raise StructureError(
            f"{exported.fun_name} is an Exported, which needs tensorflow= or platforms= and takes "
            "only gradient_order= besides. To do: export it again for other disabled_checks=, or "
            "with a newer JAX."
        )
    kept = exported if gradient_order is None else cut_vjp(exported, gradient_order)
    if platforms is not None:
        kept = export_for_platforms(kept, parse_platforms(platforms))
    if tensorflow is None:
        return kept
    return _retarget_exported(kept, Target(parse_release(tensorflow), is_exported=True))


def _parse_operations(operations: str | None, *, for_converters: bool) -> bool | None:
    if operations is not None:
        return parse_operations(operations, for_converters=for_converters)
    if for_converters:
        raise StructureError(
            "for_converters=True needs TensorFlow's own operations, and operations= is missing. To "
            'do: pass operations="tensorflow".'
        )
    return None


def _artifact(release: Release | None, *, lift: bool) -> Artifact:
    if lift:
        return Artifact.NEWEST
    return Artifact.UNCHANGED if release is None else Artifact.FOR_RELEASE


def _retarget_exported(
    exported: export.Exported, target: Target, order: int = 0
) -> export.Exported:
    """Return an `Exported` for a target; its VJPs are made when they are asked for."""
    try:
        changed = _retarget_order(exported, target)
    except InteropError as error:
        if order == 0:
            raise
        raise type(error)(
            f"In the gradient of order {order}: {error} Or keep fewer gradients: "
            f"gradient_order={order - 1}."
        ) from error
    if not exported.has_vjp():
        return changed
    return replace_vjp(changed, lambda: _retarget_exported(exported.vjp(), target, order + 1))


def _retarget_order(exported: export.Exported, target: Target) -> export.Exported:
    (call,) = prepare(from_exported(exported, allow_flat_trees=True), target).calls
    return dataclasses.replace(
        exported,
        mlir_module_serialized=call.module,
        calling_convention_version=call.version,
    )


def _retarget_file(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    target: Target,
    *,
    checks: tuple[DisabledCheck, ...] | None,
    gradient_order: int | None,
    plain: bool | None,
    for_converters: bool,
    overwrite: bool,
) -> RetargetReport:
    def rewrite(folder: ModelFolder) -> RetargetReport:
        change = _Change(target, checks)
        operations = Operations(
            change.lower,
            change.run_plain,
            plain,
            again=checks is not None,
            for_converters=for_converters,
        )
        facts: dict[str, Any] = {}
        nodes = rewrite_nodes(
            folder,
            path,
            change.apply,
            operations=operations,
            metadata=change.metadata,
            gradient_order=gradient_order,
            written=lambda new: facts.update(facts_of(new)),
            overwrite=overwrite,
        )
        # Of files of other writers the metadata say nothing.
        facts["tensorflow"] = change.metadata().get("tensorflow", "")
        return RetargetReport(path=os.fspath(path), nodes=nodes, modules=change.modules, **facts)

    return read_one_version(source, rewrite)


@dataclass(slots=True)
class _Change:
    """The change of each call of a file.

    Attributes:
        target: the consumer of the calls.
        checks: the disabled safety checks; None for those that each call has.
        releases: for each call the oldest release that runs it now; None where none does.
        modules: the number of calls that return something.
    """

    target: Target
    checks: tuple[DisabledCheck, ...] | None
    releases: dict[CallModule, Release | None] = dataclasses.field(default_factory=dict)
    modules: int = 0

    def apply(self, call: CallModule) -> CallModule:
        prepared = prepare(call, self.target, is_first=False)
        (call,) = prepared.calls
        if self.checks is not None:
            call = dataclasses.replace(call, disabled_checks=self.checks)
        (self.releases[call],) = prepared.releases
        self.modules += bool(call.results)
        return call

    def lower(
        self, call: CallModule, order: int, *, for_converters: bool, exact: bool
    ) -> TensorFlowGraph:
        """Return the graph that is to run in the place of a changed call."""
        self.run_plain(call)
        options = ChainOptions(for_converters=for_converters, exact=exact)
        return lower_written(call, order=order, options=options)

    def run_plain(self, call: CallModule) -> None:
        """Note that a changed call runs TensorFlow's own operations, which every release has."""
        self.releases[call] = OLDEST

    def metadata(self) -> Mapping[str, Any]:
        known = [release for release in self.releases.values() if release is not None]
        if len(known) < len(self.releases):
            return {}
        return {"tensorflow": max(known, key=lambda release: release.tensorflow).name}
