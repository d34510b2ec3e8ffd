"""The command `jax-tf-bridge`, which is also `python -m bridge`.

What a command needs is imported when it runs: `inspect` does without JAX.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bridge.cli.benchmark_command import add_benchmark, run_benchmark
from bridge.cli.command_arguments import (
    add_arguments,
    expand_home,
    read_save_arguments,
    to_labels,
    to_parts,
    to_sizes,
)
from bridge.cli.convert_command import add_convert, run_convert
from bridge.cli.explain_command import add_explain, run_explain
from bridge.cli.export_command import add_export, run_export_command
from bridge.cli.inspect_command import add_inspect, run_inspect
from bridge.cli.serve_command import add_serve, run_serve
from bridge.cli.update_command import add_update, run_update
from bridge.core.operations_option import OPERATIONS
from bridge.formats.format_registry import all_formats, file_names
from bridge.verify import verify
from savedmodel.files.model_folder import read_one_version
from savedmodel.manifest import compare_manifest, read_manifest
from xla_call_module.errors import InteropError

if TYPE_CHECKING:
    from bridge.serving.publishing import Published


_TROUBLE = 2
_INTERRUPTED = 128 + signal.SIGINT  # as shells have it


@dataclass(frozen=True, slots=True)
class _Command:
    """One command of the program."""

    name: str
    summary: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, and return the exit status.

    Example:
        >>> main(["inspect", "nowhere"])
        2
    """
    options = _parser().parse_args(arguments)
    command: _Command = options.command
    try:
        with _short_warnings():
            _import_modules(getattr(options, "imports", []))
            status = command.run(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Whoever read the output has seen enough. Python would complain of the rest when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("jax-tf-bridge: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except (InteropError, OSError) as error:
        message = f"{error}{_cure_of(error)}"
        print(f"jax-tf-bridge: {_name_options(message, options.parser)}", file=sys.stderr)
        return _TROUBLE


def _cure_of(error: Exception) -> str:
    """Return what to do about an error of the system, which does not say it."""
    if isinstance(error, FileNotFoundError):
        return ". To do: name a file or folder that is there."
    if isinstance(error, PermissionError):
        return ". To do: name a place that this user may read and write."
    return ""


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Have warnings in one line, as errors are, without the line of code that they come from."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"jax-tf-bridge: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _import_modules(names: Sequence[str]) -> None:
    """Import the modules that the user names, also from the working directory."""
    if names:
        from bridge.cli.targets import import_module
    # What the module prints is no part of the report.
    with contextlib.redirect_stdout(sys.stderr):
        for name in names:
            import_module(name, Path.cwd())


def _name_options(message: str, parser: argparse.ArgumentParser) -> str:
    """Return an error message with the arguments of Python as the options of the command.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--overwrite", action="store_true")
    >>> _ = parser.add_argument("--platforms", metavar="NAMES")
    >>> _name_options("m exists. To do: overwrite=True, platforms=['cpu', 'tpu'].", parser)
    'm exists. To do: --overwrite, --platforms cpu,tpu.'
    >>> _ = parser.add_argument("--args", metavar="SPECS")
    >>> print(_name_options("To do: args='f32[b,3]', not args=['f32[3]'].", parser))
    To do: --args 'f32[b,3]', not args=['f32[3]'].
    """
    options = set(re.findall(r"--[a-z0-9-]+", parser.format_help()))

    def rename(argument: re.Match[str]) -> str:
        option = f"--{argument[1].replace('_', '-')}"
        if option not in options:
            return argument[0]
        if argument[2] == "True":
            return option
        values = re.findall(r"[^\s,'\"()]+", argument[2].strip("[]"))
        quoted = argument[2][0] in "'\""
        value = argument[2][1:-1] if quoted else ",".join(values)
        return f"{option} {shlex.quote(value)}"

    # What has brackets inside of brackets stays as Python has it.
    value = r"""\[[^\[\]]*\]|\([^()]*\)|'[^']*'|"[^"]*"|\w+"""
    return re.sub(rf"(?<![\w.])([a-z_0-9]+)=({value})", rename, message)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jax-tf-bridge", description="SavedModels of JAX functions, without TensorFlow."
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(metavar="command", required=True, parser_class=_CommandParser)
    for command in _commands():
        sentence = f"{command.summary[0].upper()}{command.summary[1:]}."
        added = commands.add_parser(command.name, help=command.summary, description=sentence)
        command.add_arguments(added)
        added.set_defaults(command=command, parser=added)
    return parser


class _CommandParser(argparse.ArgumentParser):
    """The parser of a command, in which options may stand between its arguments.

    Of arguments of which one may be missing, Python's own takes those before the first option for
    all (https://github.com/python/cpython/issues/59317).
    """

    _is_intermixed = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return what was parsed, and the rest."""
        if self._is_intermixed:  # the other one calls this one
            return super().parse_known_args(args, namespace)
        self._is_intermixed = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_intermixed = False


class _Version(argparse.Action):
    """Prints the version, which is looked up only then."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib import metadata

        print(parser.prog, metadata.version("jax-tf-bridge"))
        parser.exit()  # with a message, that would be on standard error


def _named(options: argparse.Namespace, names: str) -> dict[str, Any]:
    """Return the options of some names, as a verb takes them."""
    return {name: getattr(options, name) for name in names.split()}


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


def _add_diff(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", type=expand_home, help="the folder of a SavedModel")
    parser.add_argument("second", metavar="B", type=expand_home, help="the folder of another")
    add_arguments(parser, "json", "imports")


def _run_diff(options: argparse.Namespace) -> int:
    """Return the exit status of the program `diff`: 0 equal, 1 different, 2 trouble."""
    from bridge.cli.terminal import print_diff
    from bridge.diff import diff

    report = diff(options.first, options.second)
    if options.json:
        _print_json(report.to_json())
    else:
        print_diff(report, Console(highlight=False))
    return 0 if report.equal else 1


def _add_manifest(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, "path", "json")


def _run_manifest(options: argparse.Namespace) -> int:
    """Return 0 where the files are those of the manifest, and 1 where they differ."""
    folder = Path(options.path)
    differences, manifest = read_one_version(
        folder, lambda opened: (compare_manifest(opened), read_manifest(opened))
    )
    assert manifest is not None
    if options.json:
        _print_json({"path": options.path, "differences": differences, **manifest.to_json()})
        return 1 if differences else 0
    for difference in differences:
        print(difference)
    if not differences:
        print(f"{options.path}: {len(manifest.files)} files, all as in the manifest")
    return 1 if differences else 0


def _add_passes(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, "path", "tensorflow", "linalg", "platforms", "imports")
    parser.add_argument("--run", metavar="NAME", help="run one pass and print each module after it")


def _run_passes(options: argparse.Namespace) -> int:
    from bridge.cli.passes_command import run_passes_command

    return run_passes_command(options)


def _add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        type=expand_home,
        help="the folder of a SavedModel of any writer; with --weights by default BASE's newest "
        "version",
    )
    add_arguments(parser, "base_path", "keep", "json")
    parser.add_argument(
        "--weights",
        metavar="PATH",
        type=expand_home,
        help="a file of parameters as for update, whose values the new version has",
    )
    parser.add_argument(
        "--version", type=int, help="the version's number; by default the next after the highest"
    )
    parser.add_argument(
        "--warmup", metavar="SIZES", type=to_sizes, help="batch sizes of warmup requests: 1,8,32"
    )
    parser.add_argument(
        "--batching",
        metavar="SIZES",
        type=to_sizes,
        help="batch sizes that the server runs: 1,8,32",
    )
    parser.add_argument("--name", help="the model's name in its configuration; by default BASE's")
    parser.add_argument(
        "--measure",
        metavar="SECONDS",
        type=float,
        help="measure the first request of each batch size in TensorFlow, for so long at most",
    )
    parser.add_argument(
        "--force", action="store_true", help="make a new version although nothing has changed"
    )
    parser.add_argument(
        "--operations",
        choices=OPERATIONS,
        help="what MODEL's copy runs: TensorFlow's own operations, on every server, which is the "
        "default, or its modules, which XLA compiles where the server has the option for it",
    )
    parser.add_argument(
        "--labels",
        metavar="OUTPUT=FILE",
        type=to_labels,
        action="append",
        help="a file with a text a line, for each index of OUTPUT or for its greatest score: the "
        "model then returns OUTPUT_label, too",
    )


def _add_rollback(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, "base_path", "keep", "json")
    parser.add_argument(
        "--to", metavar="VERSION", type=int, help="by default the one before the newest"
    )


def _run_publish(options: argparse.Namespace) -> int:
    from bridge.serving.publishing import publish

    if options.model is None and options.weights is None:
        options.parser.error("MODEL or --weights is required")
    operations = {} if options.operations is None else {"operations": options.operations}
    published = publish(
        options.model,
        options.base_path,
        **_named(options, "weights version warmup batching keep name measure force"),
        labels=dict(options.labels) if options.labels else None,
        **operations,
    )
    _print_published(published, as_json=options.json)
    return 0


def _run_rollback(options: argparse.Namespace) -> int:
    from bridge.serving.publishing import rollback

    published = rollback(options.base_path, to=options.to, keep=options.keep)
    _print_published(published, as_json=options.json)
    return 0


def _print_published(published: Published, *, as_json: bool) -> None:
    if as_json:
        _print_json(asdict(published))
        return
    print(published)


def _add_retarget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="IN", type=expand_home, help="the folder of a SavedModel of any writer"
    )
    parser.add_argument("target", metavar="OUT", type=expand_home, help="the new folder")
    add_arguments(
        parser, "tensorflow", "linalg", "platforms", "disabled_checks", "operations",
        "for_converters", "imports",
    )  # fmt: skip
    parser.add_argument(
        "--gradient-order",
        metavar="N",
        type=int,
        help="the highest order of gradients that is kept; by default all",
    )
    parser.add_argument(
        "--lift",
        action="store_true",
        help="write modules at the newest StableHLO that --tensorflow (or the newest one) reads",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a SavedModel at OUT")


def _run_retarget(options: argparse.Namespace) -> int:
    from bridge.retarget import retarget

    report = retarget(
        options.source,
        to=options.target,
        platforms=options.platforms,
        lift=options.lift,
        overwrite=options.overwrite,
        **read_save_arguments(options),  # --gradient-order is one of them
    )
    print(report)
    return 0


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        metavar="FILE",
        type=expand_home,
        help=f"the folder of a SavedModel or of its versions, or the file of {file_names()}",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an input by its name or the path of its argument: a file of .npy, .npz or .json, "
        "JSON such as [[1, 2]], random, zeros or another kind of probe; or a file of .npz, or a "
        "kind of probe, for all inputs",
    )
    parser.add_argument("--signature", metavar="KEY", help="the signature, if not the default")
    parser.add_argument(
        "--size", action="append", default=[], metavar="b=8", help="the size of one, for probes"
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random inputs")
    parser.add_argument(
        "--output", metavar="FILE.npz", type=expand_home, help="write the results to a file"
    )
    add_arguments(parser, "json", "imports")


def _run_run(options: argparse.Namespace) -> int:
    from bridge.cli.run_command import run_run_command

    return run_run_command(options)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser, "path", "python", "tolerance", "json", "imports")
    parser.add_argument(
        "--record", metavar="FILE", type=expand_home, help="write the inputs and what JAX computes"
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        type=expand_home,
        help="compare with what was recorded, without JAX",
    )
    parser.add_argument("--seed", type=int, default=0, help="the seed of the random inputs")
    parser.add_argument(
        "--probes",
        metavar="KINDS",
        type=to_parts,
        help="some of random, zeros, ones, negative, huge, nan, inf; by default all",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE.npz",
        type=expand_home,
        help="arrays by the names of inputs, or by SIGNATURE/INPUT, to try instead of probes",
    )
    parser.add_argument("--quick", action="store_true", help="random inputs of one size alone")
    parser.add_argument(
        "--steps",
        metavar="COUNT",
        type=int,
        help="how many calls in a row of a signature that assigns variables; by default 3",
    )


def _run_verify(options: argparse.Namespace) -> int:
    from bridge.cli.terminal import print_verification

    names = "python record against seed tolerance probes inputs quick steps"
    report = verify(options.path, **_named(options, names))
    if options.json:
        _print_json(report.to_json())
    else:
        print_verification(report, Console(highlight=False))
    return 0 if report.passed else 1


_COMMANDS = (
    _Command("benchmark", "run a file by every runtime at hand", add_benchmark, run_benchmark),
    _Command("diff", "show in what two SavedModels differ", _add_diff, _run_diff),
    _Command("explain", "print what helps against a class of errors", add_explain, run_explain),
    _Command("export", "write a SavedModel", add_export, run_export_command),
    _Command("inspect", "show what is in a SavedModel", add_inspect, run_inspect),
    _Command("manifest", "compare a SavedModel with its manifest", _add_manifest, _run_manifest),
    _Command("passes", "list the passes that would run", _add_passes, _run_passes),
    _Command(
        "publish", "put a SavedModel where TensorFlow Serving finds it", _add_publish, _run_publish
    ),
    _Command("retarget", "make a SavedModel for an older TensorFlow", _add_retarget, _run_retarget),
    _Command("rollback", "serve an older version again", _add_rollback, _run_rollback),
    _Command("run", "call a function of a file, and show its results", _add_run, _run_run),
    _Command("serve", "run a model server on this machine, for trying it", add_serve, run_serve),
    _Command("update", "put new weights into a SavedModel", add_update, run_update),
    _Command(
        "verify", "compare a file with JAX in the runtime that serves it", _add_verify, _run_verify
    ),
)


def _commands() -> list[_Command]:
    """Return all commands, with those that the formats of files have, by their names."""
    converting = [
        _Command(
            format_.command.name,
            f"make {format_.name} of a SavedModel or artifact",
            partial(add_convert, format_=format_),
            partial(run_convert, format_=format_),
        )
        for format_ in all_formats()
        if format_.command is not None
    ]
    return sorted([*_COMMANDS, *converting], key=lambda command: command.name)
