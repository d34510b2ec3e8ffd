"""The command `jax-tf-bridge export`: from a function to a SavedModel with its manifest."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bridge.cli.command_arguments import (
    SAVE_ARGUMENTS,
    add_arguments,
    add_fields,
    read_fields,
    read_save_arguments,
)
from bridge.cli.export_request import ExportRequest
from bridge.inspecting.report_facts import revision_of
from bridge.inspecting.wording import readers
from bridge.verify import verify
from savedmodel.files.remote import is_remote, parse_path
from xla_call_module.errors import InteropError, MissingDependencyError, StructureError

if TYPE_CHECKING:
    from bridge.cli.export_job import ExportResult
    from bridge.verifying.verification import VerifyReport


_DIFFERS, _TROUBLE, _UNCHECKED = 1, 2, 3
DESCRIPTION = """\
Export a JAX function, or a module of Flax, Haiku, Equinox or Keras on JAX, and write it as a
SavedModel with a manifest, without TensorFlow. The folder appears whole or not at all, and the same
inputs give the same bytes.

exit status:
  0  written; with --check, TensorFlow computes what JAX does
  1  written, and --check found that TensorFlow computes something else
  2  nothing written: wrong options, a function that cannot be exported, a file that cannot be read
  3  written, and --check could not be made: there is no TensorFlow, or it does not run

arguments (--args), each a dtype as JAX abbreviates it and a shape, whose names are symbolic:
  f32[b,28,28]               an array with a batch of any size
  f32[b,3], i32[2*b]         two arguments; the same as --args 'f32[b,3]' --args 'i32[2*b]'
  f32[]                      a scalar
  mask=bool[b]               a keyword argument
  {image: f32[b,28], ids: (i32[b], i32[b])}     pytrees: dicts, tuples, lists in []
dtypes: bool i8 i16 i32 i64 u8 u16 u32 u64 bf16 f16 f32 f64 c64 c128 f8_e4m3fn f8_e5m2

parameters (--params) are the first argument of the function, and become variables:
  params.npz, params.safetensors   keys are split at '/', or if none has one at '.'; a level
                                   whose keys are 0, 1, 2, … is a list
  a checkpoint folder of orbax     as it is
Pickles are not read, since reading them runs code.
"""


def add_export(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    add_fields(parser, ExportRequest)
    add_arguments(parser, *SAVE_ARGUMENTS)
    parser.add_argument("--check", action="store_true", help="run it in TensorFlow and compare")
    add_arguments(parser, "python", "tolerance", "json", "imports")


def run_export_command(options: argparse.Namespace) -> int:
    """Export, and return the exit status."""
    request = read_fields(options, ExportRequest, options=read_save_arguments(options))
    _check_request(request, options)
    # JAX is imported here, and takes a second.
    from bridge.cli.export_job import run_export
    from bridge.cli.targets import CodeError

    with _shown_progress() as progress:
        try:
            # What the user's module prints is no part of the report.
            with contextlib.redirect_stdout(sys.stderr):
                result = run_export(request, folder=Path.cwd(), progress=progress)
        except CodeError as error:
            _show_traceback(error.__cause__)
            raise
        checked, failure = _check(options, progress) if options.check else (None, "")
    for warning in result.warnings:
        print(f"jax-tf-bridge: {warning}", file=sys.stderr)
    if failure:
        print(
            f"jax-tf-bridge: {options.out} is written, and not checked: {failure}", file=sys.stderr
        )
    _print(options, result, checked, failure)
    if failure:
        return _UNCHECKED
    return 0 if checked is None or checked.passed else _DIFFERS


def _check_request(request: ExportRequest, options: argparse.Namespace) -> None:
    """End the process where an argument would have no effect, or nothing could be written."""
    if options.python is not None and not options.check:
        options.parser.error("--python is for --check")
    if options.tolerance is not None and not options.check:
        options.parser.error("--tolerance is for --check")
    if options.check and is_remote(parse_path(request.out)):
        options.parser.error("--check needs a folder, and --out is an address")
    if not request.overwrite and os.path.lexists(request.out):
        raise StructureError(
            f"{request.out} exists. To do: pass --overwrite to replace it, or take another folder."
        )
    order = request.options.get("gradient_order", 0)
    if order < 0:
        options.parser.error(f"--gradient-order is at least 0, not {order}")


def _check(
    options: argparse.Namespace, progress: Callable[[str], None]
) -> tuple[VerifyReport | None, str]:
    """Return the comparison with TensorFlow, or why it could not be made."""
    progress("comparing TensorFlow with JAX")
    try:
        return verify(options.out, python=options.python, tolerance=options.tolerance), ""
    except (MissingDependencyError, OSError) as error:
        return None, str(error)
    except InteropError as error:
        return None, f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _shown_progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current step on a terminal, and nothing elsewhere."""
    if not sys.stderr.isatty():
        yield _show_nothing
        return
    with Console(stderr=True).status("") as status:
        yield lambda step: status.update(f"{step} …")


def _show_nothing(step: str) -> None:
    pass


def _show_traceback(error: BaseException | None) -> None:
    """Print the traceback of an error that the user's function or module raised."""
    lines = traceback.format_exception(error, chain=False)
    print("".join(lines), file=sys.stderr, end="")


def _print(
    options: argparse.Namespace,
    result: ExportResult,
    checked: VerifyReport | None,
    failure: str,
) -> None:
    if options.json:
        print(json.dumps(_to_json(result, checked, failure), indent=2, allow_nan=False))
        return
    from bridge.inspecting.written_file import signature_text

    report, manifest = result.report, result.manifest
    print(
        f"{options.out}: {report.bytes:,} bytes in {len(report.files)} files, "
        f"{readers(report.tensorflow)}"
    )
    for signature in report.signatures:
        print(signature_text(signature))
    if manifest.source is not None:
        print(f"from {revision_of(manifest.source)}")
    if (warmup := report.warmup) is not None:
        print(f"{warmup.records} warmup requests")
    if checked is not None and checked.passed:
        count = len(checked.rows)
        print(f"{count} comparisons with TensorFlow {checked.tensorflow}: all as in JAX")
    elif checked is not None:
        from bridge.cli.terminal import print_verification

        print_verification(checked, Console(highlight=False))


def _to_json(result: ExportResult, checked: VerifyReport | None, failure: str) -> dict[str, Any]:
    report = result.report.to_json()
    kept = ("path", "bytes", "tensorflow", "files", "warmup")
    signatures = [
        {
            name: signature[name]
            for name in ("key", "function", "inputs", "outputs", "platforms", "gradient_order")
        }
        for signature in report["signatures"]
    ]
    parameters = [
        {name: parameter[name] for name in ("name", "dtype", "shape", "trainable")}
        for parameter in report["parameters"]
    ]
    return {
        **{name: report[name] for name in kept},
        "signatures": signatures,
        "parameters": parameters,
        "manifest": result.manifest.to_json(),
        "warnings": list(result.warnings),
        "check": None if checked is None else checked.to_json(),
        "unchecked": failure or None,
    }
