"""The command `jax-tf-bridge benchmark`: one call of a file in every runtime at hand."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from bridge.cli.command_arguments import add_arguments, expand_home, to_parts
from bridge.formats.format_registry import file_names, format_runtimes
from xla_call_module.errors import StructureError


def add_benchmark(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "path",
        metavar="FILE",
        type=expand_home,
        help=f"the folder of a SavedModel, or the file of {file_names()}",
    )
    parser.add_argument("--signature", metavar="KEY", help="the signature, if not the default")
    parser.add_argument(
        "--runtimes",
        metavar="NAMES",
        type=to_parts,
        help=f"some of jax, {', '.join(format_runtimes())}; by default all",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help="how long calls are repeated in each runtime, at most 200 times",
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random inputs")
    parser.add_argument("--plot", metavar="FILE.svg", type=expand_home, help="write a picture")
    add_arguments(parser, "json", "imports")


def run_benchmark(options: argparse.Namespace) -> int:
    """Print the table; 1 where a runtime at hand does not run the file."""
    from bridge.benchmarking.benchmark import benchmark
    from bridge.benchmarking.benchmark_report import draw, print_benchmark
    from bridge.formats.runtime_calls import RUNTIMES

    by_option = {runtime.option: name for name, runtime in RUNTIMES.items()}
    names = options.runtimes or [*by_option]
    if unknown := [name for name in names if name not in by_option]:
        raise StructureError(
            f"--runtimes has {unknown[0]!r}; expected some of {', '.join(by_option)}. To do: name "
            "those."
        )
    report = benchmark(
        options.path,
        signature=options.signature,
        runtimes=[by_option[name] for name in names],
        seconds=options.seconds,
        seed=options.seed,
    )
    if options.plot is not None:
        Path(options.plot).write_text(draw(report), encoding="utf-8")
    if options.json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_benchmark(report, Console(highlight=False))
    return 1 if any(row.problem and row.version for row in report.rows) else 0
