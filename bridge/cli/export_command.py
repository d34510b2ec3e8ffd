"""The command `jax-tf-bridge export`: the whole job of an export script."""

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

from bridge.cli.lists import to_parts, to_sizes
from bridge.verify import verify
from xla_call_module.errors import InteropError, MissingDependencyError, StructureError
from xla_call_module.linalg.linalg_option import LINALG

if TYPE_CHECKING:
    from bridge.cli.export_job import ExportRequest, ExportResult
    from bridge.verifying.verification import VerifyReport

__all__ = ["DESCRIPTION", "add_export", "run_export_command"]

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
    """Declare what the command takes."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    parser.add_argument(
        "target", help="module:function, module:object.method, or a file with a serialized Exported"
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder to make")
    _add_function_options(parser)
    _add_file_options(parser)
    parser.add_argument("--check", action="store_true", help="run it in TensorFlow and compare")
    parser.add_argument(
        "--python", metavar="OTHER", help="of an environment with TensorFlow, for --check"
    )
    parser.add_argument("--json", action="store_true", help="for programs")


def _add_function_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--args", action="append", default=[], metavar="SPECS", help="see above")
    parser.add_argument(
        "--constraint", action="append", default=[], metavar="'b >= 2'", help="between symbols"
    )
    parser.add_argument("--params", metavar="PATH", help="see above")
    parser.add_argument("--params-key", metavar="A/B", help="the part of it that is meant")
    parser.add_argument("--params-separator", metavar="SIGN", help="what its keys are split at")
    parser.add_argument(
        "--trainable",
        type=to_parts,
        default=["*"],
        metavar="NAMES",
        help="names of parameters, such as head,*/bias; none for none of them, by default all",
    )
    parser.add_argument(
        "--platforms", type=to_parts, metavar="NAMES", help="by default cpu,cuda,tpu"
    )
    parser.add_argument("--x64", action="store_true", help="with 64-bit dtypes (jax_enable_x64)")


def _add_file_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--signature", metavar="KEY", default="serving_default", help="by default serving_default"
    )
    parser.add_argument("--inputs", type=_names, metavar="NAMES", help="a,b or old=new,…")
    parser.add_argument("--outputs", type=_names, metavar="NAMES", help="a,b or old=new,…")
    parser.add_argument("--gradient-order", type=int, default=1, metavar="N", help="by default 1")
    parser.add_argument(
        "--residuals", action="store_true", help="keep what the gradient needs: less time"
    )
    parser.add_argument("--tensorflow", metavar="VERSION", help="the oldest that must read it")
    parser.add_argument(
        "--disabled-checks",
        type=to_parts,
        default=[],
        metavar="CHECKS",
        help="such as platform,shape_assertions",
    )
    parser.add_argument(
        "--linalg",
        choices=LINALG,
        default=LINALG[0],
        help="whether calls of LAPACK are replaced (the default)",
    )
    parser.add_argument(
        "--batch-buckets",
        type=to_sizes,
        metavar="SIZES",
        help="batch sizes that requests are padded to, such as 1,8,32,128",
    )
    parser.add_argument(
        "--warmup",
        type=to_sizes,
        default=[],
        metavar="SIZES",
        help="batch sizes that TensorFlow Serving warms up with, such as 1,8,32",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a SavedModel at DIR")
    parser.add_argument(
        "--revision", metavar="TEXT", help="of the source, where there is no git to ask"
    )


def _names(text: str) -> list[str] | dict[str, str]:
    parts = to_parts(text)
    pairs = [part.split("=", 1) for part in parts if "=" in part]
    if pairs and len(pairs) < len(parts):
        raise argparse.ArgumentTypeError(f"{text!r} mixes names and old=new")
    return {old.strip(): new.strip() for old, new in pairs} if pairs else parts


def run_export_command(options: argparse.Namespace) -> int:
    """Do it; the exit status."""
    _check_options(options)
    # JAX is imported here, and takes a second.
    from bridge.cli.export_job import run_export
    from bridge.cli.targets import CodeError

    with _shown_progress() as progress:
        try:
            # What the user's module prints is no part of the report.
            with contextlib.redirect_stdout(sys.stderr):
                result = run_export(_to_request(options), folder=Path.cwd(), progress=progress)
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


def _check_options(options: argparse.Namespace) -> None:
    """End the process where an option would have no effect, or nothing could be written."""
    if options.python is not None and not options.check:
        options.parser.error("--python is for --check")
    if options.check and "://" in options.out:
        options.parser.error("--check needs a folder, and --out is an address")
    if not options.overwrite and os.path.lexists(options.out):
        raise StructureError(
            f"{options.out} exists. To do: pass --overwrite to replace it, or take another folder."
        )
    if options.gradient_order < 0:
        options.parser.error(f"--gradient-order is at least 0, not {options.gradient_order}")


def _to_request(options: argparse.Namespace) -> ExportRequest:
    from bridge.cli.export_job import ExportRequest

    return ExportRequest(
        target=options.target,
        out=options.out,
        args=tuple(options.args),
        constraints=tuple(options.constraint),
        params=options.params,
        params_key=options.params_key,
        params_separator=options.params_separator,
        trainable=() if options.trainable == ["none"] else tuple(options.trainable),
        signature=options.signature,
        inputs=options.inputs,
        outputs=options.outputs,
        platforms=None if options.platforms is None else tuple(options.platforms),
        x64=options.x64,
        warmup=tuple(options.warmup),
        overwrite=options.overwrite,
        revision=options.revision,
        options={
            "gradient_order": options.gradient_order,
            "residuals": options.residuals,
            "tensorflow": options.tensorflow,
            "disabled_checks": options.disabled_checks,
            "linalg": options.linalg,
            "batch_buckets": options.batch_buckets,
        },
    )


def _check(
    options: argparse.Namespace, progress: Callable[[str], None]
) -> tuple[VerifyReport | None, str]:
    """What TensorFlow computes, or why nobody knows."""
    progress("comparing TensorFlow with JAX")
    try:
        return verify(options.out, python=options.python), ""
    except (MissingDependencyError, OSError) as error:
        return None, str(error)
    except InteropError as error:
        return None, f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _shown_progress() -> Iterator[Callable[[str], None]]:
    """What shows the step that is being done: a line on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield _say_nothing
        return
    with Console(stderr=True).status("") as status:
        yield lambda step: status.update(f"{step} …")


def _say_nothing(step: str) -> None:
    pass


def _show_traceback(error: BaseException | None) -> None:
    """The traceback of what a user's function or module raised."""
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
    report, manifest = result.report, result.manifest
    print(
        f"{options.out}: {report.bytes:,} bytes in {len(report.files)} files, readable from "
        f"TensorFlow {report.tensorflow} on"
    )
    for signature in report.signatures:
        names = ", ".join(_aval(tensor) for tensor in signature.inputs)
        results = ", ".join(_aval(tensor) for tensor in signature.outputs)
        print(f"{signature.key}({names}) -> {results}, for {', '.join(signature.platforms)}")
    if manifest.source is not None:
        from bridge.inspecting.report_text import revision_of

        print(f"from {revision_of(manifest.source)}")
    if (warmup := report.warmup) is not None:
        print(f"{warmup.records} warmup requests")
    if checked is not None and checked.passed:
        count = len(checked.rows)
        print(f"{count} comparisons with TensorFlow {checked.tensorflow}: all as in JAX")
    elif checked is not None:
        from bridge.verifying.verify_text import print_verification

        print_verification(checked, Console(highlight=False))


def _aval(tensor: Any) -> str:
    from bridge.inspecting.report_text import aval

    return f"{tensor.name}: {aval(tensor)}"


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
