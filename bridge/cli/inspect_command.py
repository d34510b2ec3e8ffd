"""The command `jax-tf-bridge inspect`: a report as text, JSON or HTML, or a module as MLIR.

It does without JAX, but for the costs of `--cost`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bridge.cli.command_arguments import add_arguments, expand_home
from bridge.inspect import inspect
from bridge.inspecting.wording import size
from savedmodel.files.model_folder import ModelFolder, read_one_version
from xla_call_module.errors import StructureError

if TYPE_CHECKING:
    from bridge.inspecting.cost import CostReport
    from bridge.inspecting.report import FileReport


# Constants of more elements are shown by their type alone.
_MAX_ELEMENTS = 64


def add_inspect(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_arguments(parser, "path", "imports")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--json", action="store_true", help="print JSON")
    forms.add_argument(
        "--html",
        metavar="FILE",
        type=expand_home,
        help="write one self-contained page; - prints it",
    )
    forms.add_argument(
        "--mlir",
        metavar="SIGNATURE",
        nargs="?",
        const="",
        help="print the StableHLO of a signature, without its large constants",
    )
    parser.add_argument(
        "--cost", action="store_true", help="operations, bytes and memory of a call, as XLA counts"
    )
    parser.add_argument("--order", type=int, help="the order of a gradient, for --mlir and --cost")
    parser.add_argument("--batch", type=int, help="the size of dimension variables, for --cost")
    parser.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="b=8",
        help="the size of one, for --cost",
    )
    parser.add_argument("--platform", help="for --cost; by default that of the first device here")


def run_inspect(options: argparse.Namespace) -> int:
    """Inspect a SavedModel, and return the exit status."""
    _check_inspect(options)
    is_file = os.path.isfile(options.path)
    if is_file and (options.cost or options.mlir is not None):
        raise StructureError(
            f"{options.path} is a file; --cost and --mlir are for SavedModels. To do: save it as "
            "one by bridge.save or jax-tf-bridge export."
        )
    if options.mlir is not None:
        print(module_text(options.path, signature=options.mlir, order=options.order or 0))
        return 0
    report, costs = _reports(options, is_file=is_file)
    console = Console(highlight=False)
    if options.json:
        printed = report.to_json() | ({"costs": list(map(asdict, costs))} if options.cost else {})
        print(json.dumps(printed, indent=2))
    elif options.html is not None:
        from bridge.inspecting.html import to_html

        page = to_html(report, costs)
        if options.html == "-":
            sys.stdout.write(page)
        else:
            Path(options.html).write_text(page, encoding="utf-8")
            print(f"{options.html}: {size(len(page.encode()))}")
    elif options.cost:
        from bridge.inspecting.report_text import print_costs

        print_costs(costs, console)
    else:
        from bridge.inspecting.report_text import print_report

        print_report(report, console)
    return 0


def _reports(
    options: argparse.Namespace, *, is_file: bool
) -> tuple[FileReport, tuple[CostReport, ...]]:
    if is_file:
        return inspect(options.path), ()
    return read_one_version(options.path, lambda folder: (inspect(folder), _costs(options, folder)))


def _check_inspect(options: argparse.Namespace) -> None:
    """End the process where an argument would have no effect."""
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


def module_text(path: str | os.PathLike[str], *, signature: str = "", order: int = 0) -> str:
    """Return the module of a signature, or of one of its gradients, as MLIR prints it.

    A signature of another program may have several calls; then it returns all their modules.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin))(1.0)
        >>> saved = bridge.save(exported, "my_model")
        >>> "stablehlo.sine" in module_text("my_model")
        True
    """
    from bridge.loading.signature_calls import call_of_order, calls_of
    from savedmodel.read import read

    model = read(path)
    signatures = {candidate.key: candidate for candidate in model.signatures}
    key = signature or model.default.key
    if key not in signatures:
        names = ", ".join(sorted(signatures))
        raise StructureError(
            f"{path} has no signature {key!r}. To do: name one of its signatures: {names}."
        )
    chosen = signatures[key]
    calls = [call_of_order(chosen, chain, order) for chain in calls_of(chosen)]
    return "\n".join(_print(call.module) for call in calls)


def _print(artifact: bytes) -> str:
    from xla_call_module.stablehlo.modules import open_module

    with open_module(artifact) as module:
        return str(module.operation.get_asm(large_elements_limit=_MAX_ELEMENTS))
