"""The whole of an export: from `module:function` and files of parameters to a SavedModel."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from jax import tree_util

from bridge.cli.targets import CodeError, Target, find_target
from bridge.core._jax import enable_x64
from bridge.core.trees import key_names
from bridge.exporting.argument_text import parse_arguments, to_text
from bridge.exporting.environment import describe_environment
from bridge.exporting.export_model import TracedModel, export_model
from bridge.exporting.parameter_files import read_parameters, select
from bridge.exporting.source_locations import relative_locations
from bridge.inspect import inspect
from bridge.inspecting.report import FileReport
from bridge.save import save
from bridge.serving.warmup import add_warmup
from savedmodel.files.staging import staged_folder
from savedmodel.manifest import Manifest, hash_file, write_manifest
from savedmodel.model import DEFAULT_SIGNATURE
from xla_call_module.checks import parse_checks
from xla_call_module.errors import InteropError, StructureError

__all__ = ["ExportRequest", "ExportResult", "run_export"]


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What is exported, and how.

    Attributes:
        target: `module:function`, or a file with a serialized `Exported`.
        out: the folder to make, or an address.
        args: texts of the arguments, as `bridge.exporting.argument_text` reads them.
        constraints: between their symbols.
        params: a file or folder that `bridge.exporting.parameter_files` reads; None for none.
        params_key: the part of it that is the parameters, such as `model/params`.
        params_separator: what the keys of a file are split at.
        trainable: patterns of the names of parameters, or of what they lie in, as a shell has them.
        signature: its key.
        inputs: names for its inputs, as for `bridge.save`.
        outputs: names for its outputs.
        platforms: what to lower for; None for cpu, cuda and tpu.
        x64: whether JAX has 64-bit dtypes.
        warmup: batch sizes of the requests that TensorFlow Serving warms it up with.
        overwrite: whether a SavedModel that is there is replaced.
        options: what else `bridge.save` takes.
        revision: of the source, where git does not know it.
    """

    target: str
    out: str
    args: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    params: str | None = None
    params_key: str | None = None
    params_separator: str | None = None
    trainable: tuple[str, ...] = ("*",)
    signature: str = DEFAULT_SIGNATURE
    inputs: Any = None
    outputs: Any = None
    platforms: tuple[str, ...] | None = None
    x64: bool = False
    warmup: tuple[int, ...] = ()
    overwrite: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was written.

    Attributes:
        report: what `bridge.inspect` says of it.
        manifest: its files and what they were made of.
        warnings: what was said on the way.
    """

    report: FileReport
    manifest: Manifest
    warnings: tuple[str, ...]


def run_export(
    request: ExportRequest, *, folder: Path, progress: Callable[[str], None]
) -> ExportResult:
    """Export a function, and write it with its warmup requests and its manifest.

    The folder appears whole or not at all. The same request gives the same bytes, in whatever
    folder and process it is made.

    Args:
        request: what is asked for.
        folder: where modules and files are looked for.
        progress: is told of each step.

    Raises:
        CodeError: the function or its module raised an error, which is the cause.
        InteropError: something asked for does not fit. Nothing has been written.
        OSError: a file cannot be read or written.
    """
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(warnings.catch_warnings(record=True))
        if request.x64:
            stack.enter_context(enable_x64())
        stack.enter_context(relative_locations(folder))
        progress(f"importing {request.target}")
        target = find_target(request.target, folder)
        progress("reading the parameters")
        params = _read_params(request, folder)
        progress(f"exporting {request.target}")
        traced = _trace(target, params, request)
        out = request.out if "://" in request.out else folder / request.out
        with staged_folder(out, overwrite=request.overwrite) as staged:
            progress("saving")
            _save(traced, staged, request)
            if request.warmup:
                add_warmup(staged, request.warmup)
            environment = describe_environment(target.file)
            if request.revision is not None:
                environment["source"] = {"revision": request.revision, "changed": None}
            manifest = write_manifest(
                staged, **environment, request=_describe(request, target, folder)
            )
            report = dataclasses.replace(inspect(staged), path=request.out)
    return ExportResult(report, manifest, tuple(dict.fromkeys(str(w.message) for w in said)))


def _read_params(request: ExportRequest, folder: Path) -> Any:
    if request.params is None:
        for name in ("params_key", "params_separator"):
            if getattr(request, name) is not None:
                raise StructureError(
                    f"--{name.replace('_', '-')} is for --params, which is missing."
                )
        return None
    params = read_parameters(folder / request.params, separator=request.params_separator)
    return params if request.params_key is None else select(params, request.params_key)


def _trace(target: Target, params: Any, request: ExportRequest) -> TracedModel:
    # A model of Keras knows its arguments, and says so where none are given.
    is_exported = not request.args
    with _explaining(target.name):
        traced = export_model(
            target.value,
            params=params,
            inputs=request.inputs,
            args=None if is_exported else list(request.args),
            platforms=request.platforms,
            disabled_checks=parse_checks(request.options.get("disabled_checks", ())),
            constraints=request.constraints,
        )
    return dataclasses.replace(traced, trainable=_trainable(traced, request.trainable))


@contextlib.contextmanager
def _explaining(name: str) -> Iterator[None]:
    """What the function itself raises becomes the cause of an error that says what was done."""
    try:
        yield
    except InteropError:
        raise
    except Exception as error:
        raise CodeError(
            f"{name} cannot be exported for these arguments: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else ''} To do: see where "
            "it comes from above, and change the function, --args or --params."
        ) from error


def _trainable(traced: TracedModel, patterns: Sequence[str]) -> Any:
    """Which parameters are trained, as a pytree like them: those that a pattern and all know."""
    if traced.params is None:
        return True
    tree: Any = tree_util.tree_structure(traced.params)
    names = ["/".join(path) for path in key_names(tree)]
    for pattern in patterns:
        if pattern != "*" and not any(_fits(name, pattern) for name in names):
            raise StructureError(
                f"--trainable {pattern!r} fits none of the {len(names)} parameters: "
                f"{', '.join(names[:10])}{', …' * (len(names) > 10)}."
            )
    wanted = [any(_fits(name, pattern) for pattern in patterns) for name in names]
    own = traced.trainable
    own = [own] * len(names) if isinstance(own, bool) else tree_util.tree_leaves(own)
    both = [flag and other for flag, other in zip(wanted, own, strict=True)]
    return tree_util.tree_unflatten(tree, both)


def _fits(name: str, pattern: str) -> bool:
    """Whether the pattern is of the name, or of what it lies in."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")


def _save(traced: TracedModel, staged: Path, request: ExportRequest) -> None:
    model: Any = traced.exported
    if isinstance(model, Mapping) and request.signature != DEFAULT_SIGNATURE:
        raise StructureError(
            f"{request.target} has the signatures {sorted(model)}, so that --signature "
            f"{request.signature} names none. To do: leave it out."
        )
    save(
        model if isinstance(model, Mapping) else {request.signature: model},
        staged,
        params=traced.params,
        trainable=traced.trainable,
        inputs=traced.inputs,
        outputs=request.outputs,
        **request.options,
    )


def _describe(request: ExportRequest, target: Target, folder: Path) -> dict[str, Any]:
    """The request as a manifest has it: no place on a disk, and no default that was not named."""
    described = {
        "target": target.name,
        "args": to_text(parse_arguments(request.args)) if request.args else None,
        "constraints": list(request.constraints),
        "params": None if request.params is None else os.path.basename(request.params.rstrip("/")),
        "params_key": request.params_key,
        "trainable": list(request.trainable),
        "signature": request.signature,
        "platforms": None if request.platforms is None else list(request.platforms),
        "x64": request.x64,
        "warmup": list(request.warmup),
        **request.options,
    }
    if target.file is not None:
        described["source_sha256"] = _sha256(target.file)
    if request.params is not None and (folder / request.params).is_file():
        described["params_sha256"] = _sha256(folder / request.params)
    return {name: value for name, value in described.items() if value not in (None, [], False)}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hash_file(file).sha256
