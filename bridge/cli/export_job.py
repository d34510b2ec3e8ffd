"""The steps of an export, from `module:function` and files of parameters to a SavedModel."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import signature
from pathlib import Path
from typing import Any

import jax
from jax import tree_util

from bridge.cli.command_arguments import SAVE_ARGUMENTS
from bridge.cli.export_request import ExportRequest
from bridge.cli.targets import CodeError, Target, find_target
from bridge.cli.update_command import read_params_option
from bridge.core.operations_option import resolve_order
from bridge.core.trees import key_names
from bridge.core.updates import Updates, parse_updates
from bridge.exporting.argument_text import parse_arguments, to_text
from bridge.exporting.environment import describe_environment, relative_locations
from bridge.exporting.export_model import ExportedModel, export_model
from bridge.exporting.plain_parameters import with_counters
from bridge.inspect import inspect
from bridge.inspecting.report import FileReport
from bridge.save import save
from savedmodel.files.folder import staged_folder
from savedmodel.files.remote import is_remote, parse_path
from savedmodel.manifest import Manifest, hash_file, write_manifest
from savedmodel.model import DEFAULT_SIGNATURE
from xla_call_module.checks import parse_checks
from xla_call_module.errors import InteropError, StructureError


@dataclass(frozen=True, slots=True)
class ExportResult:
    """A SavedModel that has been exported.

    Attributes:
        report: what `bridge.inspect` finds in it.
        manifest: its files, and the versions and the request that they were made with.
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
    """
    with contextlib.ExitStack() as stack:
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        if request.x64:
            stack.enter_context(jax.enable_x64(True))
        stack.enter_context(relative_locations(folder))
        progress(f"importing {request.target}")
        target = find_target(request.target, folder)
        progress("reading the parameters")
        params = read_params_option(request, folder)
        progress(f"exporting {request.target}")
        traced = _trace(target, params, request)
        out = parse_path(request.out)
        out = out if is_remote(out) else os.path.join(folder, out)
        with staged_folder(out, overwrite=request.overwrite) as staged:
            progress("saving")
            _save(traced, staged, request)
            if request.warmup:
                from bridge.serving.warmup import add_warmup

                add_warmup(staged, request.warmup)
            environment = describe_environment(target.file)
            if request.revision is not None:
                environment["source"] = {"revision": request.revision, "changed": None}
            manifest = write_manifest(
                staged, **environment, request=_describe(request, target, folder)
            )
            report = dataclasses.replace(inspect(staged), path=request.out)
    return ExportResult(report, manifest, tuple(dict.fromkeys(str(w.message) for w in caught)))


def _trace(target: Target, params: Any, request: ExportRequest) -> ExportedModel:
    # A model of Keras knows its arguments, and says so where none are given.
    is_exported = not request.args
    positions = parse_updates(_updates(target.value, request), target.value)
    params = with_counters(params) if positions else params
    with _explaining(target.name):
        traced = export_model(
            target.value,
            params=params,
            inputs=request.inputs,
            args=None if is_exported else list(request.args),
            platforms=request.platforms,
            disabled_checks=parse_checks(request.options.get("disabled_checks", ())),
            constraints=request.constraints,
            updates=positions,
        )
    return dataclasses.replace(traced, trainable=_trainable(traced, request.trainable))


def _updates(model: Any, request: ExportRequest) -> Updates | None:
    """Return where the new parameters stand, of a single function not by its signature key."""
    updates: Updates | None = request.options.get("updates")
    if isinstance(updates, Mapping) and not isinstance(model, Mapping):
        return updates[request.signature] if [*updates] == [request.signature] else updates
    return updates


@contextlib.contextmanager
def _explaining(name: str) -> Iterator[None]:
    """Raise a `CodeError` for an error of the user's function, which becomes its cause."""
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


def _trainable(traced: ExportedModel, patterns: Sequence[str]) -> Any:
    """Return a pytree of bools: a parameter is trained if a pattern fits and its framework does."""
    if traced.params is None:
        return True
    tree: Any = tree_util.tree_structure(traced.params)
    names = ["/".join(path) for path in key_names(tree)]
    for pattern in patterns:
        if pattern != "*" and not any(_fits(name, pattern) for name in names):
            raise StructureError(
                f"--trainable {pattern!r} fits none of the {len(names)} parameters: "
                f"{', '.join(names[:10])}{', …' * (len(names) > 10)}. To do: name some of "
                "these, with * for any part."
            )
    wanted = [any(_fits(name, pattern) for pattern in patterns) for name in names]
    own = traced.trainable
    own = [own] * len(names) if isinstance(own, bool) else tree_util.tree_leaves(own)
    both = [flag and other for flag, other in zip(wanted, own, strict=True)]
    return tree_util.tree_unflatten(tree, both)


def _fits(name: str, pattern: str) -> bool:
    """Return whether a pattern is of the name of a parameter, or of a level above it."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}/*")


def _save(traced: ExportedModel, staged: Path, request: ExportRequest) -> None:
    model: Any = traced.exported
    if isinstance(model, Mapping) and request.signature != DEFAULT_SIGNATURE:
        raise StructureError(
            f"{request.target} names its signatures itself, {sorted(model)}, so --signature "
            f"{request.signature} has no effect. To do: leave it out."
        )
    options = dict(request.options)
    if not isinstance(model, Mapping):
        updates = _updates(model, request)
        model = {request.signature: model}
        options["updates"] = None if updates is None else {request.signature: updates}
    save(
        model,
        staged,
        params=traced.params,
        trainable=traced.trainable,
        inputs=traced.inputs,
        outputs=request.outputs,
        **options,
    )


def _describe(request: ExportRequest, target: Target, folder: Path) -> dict[str, Any]:
    """Return the request for the manifest, without paths and without what is off."""
    described = {
        "target": target.name,
        "args": to_text(parse_arguments(request.args)) if request.args else None,
        "constraints": list(request.constraints),
        "params": None if request.params is None else os.path.basename(request.params.rstrip("/")),
        "params_key": request.params_key,
        "trainable": list(request.trainable),
        "signature": request.signature,
        "platforms": request.platforms,
        "x64": request.x64,
        "warmup": list(request.warmup),
        **_save_options(request),
    }
    if target.file is not None:
        described["source_sha256"] = _sha256(target.file)
    if request.params is not None and (folder / request.params).is_file():
        described["params_sha256"] = _sha256(folder / request.params)
    absent = (None, False)
    return {
        name: value
        for name, value in described.items()
        if not any(value is none for none in absent) and value not in ([], ())
    }


def _save_options(request: ExportRequest) -> dict[str, Any]:
    """Return the options of `save` that the command has, with the defaults of `save`."""
    parameters = signature(save).parameters
    options = {name: request.options.get(name, parameters[name].default) for name in SAVE_ARGUMENTS}
    order = resolve_order(options["gradient_order"], for_converters=options["for_converters"])
    return {**options, "gradient_order": order}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hash_file(file).sha256
