"""The command `jax-tf-bridge`, which is also `python -m bridge`.

What a command needs is imported when it runs: `inspect` does without JAX.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bridge.cli.export_command import add_export, run_export_command
from bridge.cli.manifest_command import add_manifest, run_manifest
from bridge.cli.onnx_command import add_onnx, run_onnx
from bridge.cli.publish_command import add_publish, add_rollback, run_publish, run_rollback
from bridge.inspect import inspect
from bridge.verify import verify
from savedmodel.files.model_folder import ModelFolder, read_one_version
from xla_call_module.errors import InteropError
from xla_call_module.linalg.linalg_option import LINALG

if TYPE_CHECKING:
    from bridge.inspecting.cost import CostReport

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class _Command:
    """One command of the program.

    Attributes:
        name: what the user types.
        summary: one line of `--help`.
        add_arguments: declares what it takes.
        run: does it; the exit status.
        trouble: the exit status where `run` raises an `InteropError` or an `OSError`.
    """

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    trouble: int = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status.

    Args:
        arguments: without the command's name; by default those of the process.

    Returns:
        0, or 1 where the file cannot be read; of `diff` and `manifest` 1 where files differ, and 2
        where one cannot be read; of `export` what its --help says. Wrong arguments end the process
        with 2.

    Example:
        >>> main(["inspect", "nowhere"])
        1
    """
    options = _parser().parse_args(arguments)
    command: _Command = options.command
    try:
        return command.run(options)
    except (InteropError, OSError) as error:
        print(f"jax-tf-bridge: {error}", file=sys.stderr)
        return command.trouble


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jax-tf-bridge", description="SavedModels of JAX functions, without TensorFlow."
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in _COMMANDS:
        sentence = f"{command.summary[0].upper()}{command.summary[1:]}."
        added = commands.add_parser(command.name, help=command.summary, description=sentence)
        command.add_arguments(added)
        added.set_defaults(command=command, parser=added)
    return parser


class _Version(argparse.Action):
    """Prints the version, which is looked up then alone."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata

        parser.exit(message=f"{parser.prog} {metadata.version('jax-tf-bridge')}\n")


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="the folder with saved_model.pb")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="for programs")
    forms.add_argument("--html", metavar="FILE", help="as a page that needs nothing but itself")
    forms.add_argument(
        "--mlir",
        metavar="SIGNATURE",
        nargs="?",
        const="",
        help="the StableHLO of a signature, without its large constants",
    )
    parser.add_argument(
        "--cost", action="store_true", help="operations, bytes and memory of a call, as XLA counts"
    )
    parser.add_argument("--order", type=int, help="of a gradient, for --mlir and --cost")
    parser.add_argument("--batch", type=int, help="the size of dimension variables, for --cost")
    parser.add_argument(
        "--size", action="append", default=[], metavar="b=8", help="of one of them, for --cost"
    )
    parser.add_argument("--platform", help="for --cost; by default that of the first device here")


def _run_inspect(options: argparse.Namespace) -> int:
    _check_inspect(options)
    if options.mlir is not None:
        from bridge.inspecting.module_text import module_text

        print(module_text(options.path, signature=options.mlir, order=options.order or 0))
        return 0
    report, costs = read_one_version(
        options.path, lambda folder: (inspect(folder), _costs(options, folder))
    )
    console = Console(highlight=False)
    if options.json:
        printed = report.to_json() | ({"costs": list(map(asdict, costs))} if options.cost else {})
        print(json.dumps(printed, indent=2))
    elif options.html is not None:
        from bridge.inspecting.html import to_html

        Path(options.html).write_text(to_html(report, costs), encoding="utf-8")
    elif options.cost:
        from bridge.inspecting.report_text import print_costs

        print_costs(costs, console)
    else:
        from bridge.inspecting.report_text import print_report

        print_report(report, console)
    return 0


def _check_inspect(options: argparse.Namespace) -> None:
    """End the process where an option would have no effect."""
    of_cost = {"--batch": options.batch, "--size": options.size, "--platform": options.platform}
    given = [name for name, value in of_cost.items() if value not in (None, [])]
    if given and not options.cost:
        options.parser.error(f"{given[0]} is for --cost")
    if options.order is not None and not options.cost and options.mlir is None:
        options.parser.error("--order is for --mlir and --cost")
    if options.cost and options.mlir is not None:
        options.parser.error("--mlir and --cost exclude each other")
    if options.batch is not None and options.batch < 1:
        options.parser.error(f"--batch is at least 1, not {options.batch}")


def _costs(options: argparse.Namespace, folder: ModelFolder) -> tuple[CostReport, ...]:
    if not options.cost:
        return ()
    from bridge.inspecting.cost import costs_of_model, parse_sizes
    from savedmodel.read import read

    return costs_of_model(
        read(folder),
        order=options.order or 0,
        platform=options.platform,
        batch=options.batch,
        sizes=parse_sizes(options.size),
    )


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="the folder of a SavedModel")
    parser.add_argument("second", metavar="B", help="the folder of another")
    parser.add_argument("--json", action="store_true", help="for programs")


def _run_diff(options: argparse.Namespace) -> int:
    """The status is that of the program `diff`: 0 equal, 1 different, 2 trouble."""
    from bridge.cli.diff_text import print_diff
    from bridge.diff import diff

    report = diff(options.first, options.second)
    if options.json:
        print(json.dumps(report.to_json(), indent=2, allow_nan=False))
    else:
        print_diff(report, Console(highlight=False))
    return 0 if report.equal else 1


def _add_retarget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="the folder of a SavedModel of any writer")
    parser.add_argument("target", metavar="OUT", help="the new folder")
    parser.add_argument("--tensorflow", metavar="VERSION", help="the oldest that must read it")
    parser.add_argument(
        "--platforms", metavar="NAMES", type=_names, help="those that stay, such as cpu,tpu"
    )
    parser.add_argument(
        "--disabled-checks",
        metavar="CHECKS",
        type=_names,
        help="instead of those of the file, such as platform,shape_assertions",
    )
    parser.add_argument(
        "--linalg",
        choices=LINALG,
        default=LINALG[0],
        help="whether calls of LAPACK are replaced (the default)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a SavedModel at OUT")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _run_retarget(options: argparse.Namespace) -> int:
    from bridge.retarget_file import retarget_file

    report = retarget_file(
        options.source,
        options.target,
        tensorflow=options.tensorflow,
        platforms=options.platforms,
        disabled_checks=options.disabled_checks,
        linalg=options.linalg,
        overwrite=options.overwrite,
    )
    readable = f"readable from TensorFlow {report.tensorflow} on"
    print(
        f"{options.target}: {report.nodes} calls of {report.modules} modules, "
        f"{readable if report.tensorflow else 'readable by no TensorFlow that is known'}"
    )
    return 0


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="the folder with saved_model.pb")
    parser.add_argument(
        "--python", metavar="OTHER", help="of an environment with TensorFlow; by default this one"
    )
    parser.add_argument("--record", metavar="FILE", help="write the inputs and what JAX computes")
    parser.add_argument(
        "--against", metavar="FILE", help="compare with what was recorded, without JAX"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument("--json", action="store_true", help="for programs")


def _run_verify(options: argparse.Namespace) -> int:
    from bridge.verifying.verify_text import print_verification

    report = verify(
        options.path,
        python=options.python,
        record=options.record,
        against=options.against,
        seed=options.seed,
    )
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_verification(report, Console(highlight=False))
    return 0 if report.passed else 1


_COMMANDS = (
    _Command("diff", "show in what two SavedModels differ", _add_diff, _run_diff, trouble=2),
    _Command("export", "write a SavedModel", add_export, run_export_command, trouble=2),
    _Command("inspect", "show what is in a SavedModel", _add_inspect, _run_inspect),
    _Command(
        "manifest",
        "compare a SavedModel with its manifest",
        add_manifest,
        run_manifest,
        trouble=2,
    ),
    _Command("onnx", "make an ONNX model of a SavedModel or artifact", add_onnx, run_onnx),
    _Command(
        "publish", "put a SavedModel where TensorFlow Serving finds it", add_publish, run_publish
    ),
    _Command("retarget", "make a SavedModel for an older TensorFlow", _add_retarget, _run_retarget),
    _Command("rollback", "serve an older version again", add_rollback, run_rollback),
    _Command("verify", "compare TensorFlow with JAX", _add_verify, _run_verify, trouble=2),
)
