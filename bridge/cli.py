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
from xla_call_module.errors import InteropError

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


_COMMANDS = (_Command("inspect", "show what is in a SavedModel", _add_inspect, _run_inspect),)
