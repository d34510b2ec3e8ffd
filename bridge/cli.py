"""The command `jax-tf-bridge`, which is also `python -m bridge`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata

from rich.console import Console

from bridge.inspect import inspect
from bridge.report_text import print_report
from bridge.retarget_file import retarget_file
from bridge.verify import verify
from bridge.verify_text import print_verification
from xla_call_module.errors import InteropError
from xla_call_module.linalg import LINALG

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
        0, or 1 where the file cannot be read; wrong arguments end the process with 2.

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
    version = metadata.version("jax-tf-bridge")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version}")
    commands = parser.add_subparsers(metavar="command", required=True)
    for command in _COMMANDS:
        sentence = f"{command.summary[0].upper()}{command.summary[1:]}."
        added = commands.add_parser(command.name, help=command.summary, description=sentence)
        command.add_arguments(added)
        added.set_defaults(command=command)
    return parser


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="the folder with saved_model.pb")
    parser.add_argument("--json", action="store_true", help="for programs")


def _run_inspect(options: argparse.Namespace) -> int:
    report = inspect(options.path)
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_report(report, Console(highlight=False))
    return 0


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
    _Command("inspect", "show what is in a SavedModel", _add_inspect, _run_inspect),
    _Command("retarget", "make a SavedModel for an older TensorFlow", _add_retarget, _run_retarget),
    _Command("verify", "compare TensorFlow with JAX", _add_verify, _run_verify, trouble=2),
)
