"""The command `jax-tf-bridge update`, and the options by which commands read parameters."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from bridge.cli.command_arguments import add_arguments, expand_home
from xla_call_module.errors import StructureError

DESCRIPTION = """\
Write a SavedModel again with new values of its variables. saved_model.pb is the old one byte for
byte, nothing is exported or compiled, and variables that the file of parameters lacks keep their
values. The folder appears whole or not at all.

parameters (--params) are for the variables at the same paths, or of the same names or checkpoint
keys:
  params.npz, params.safetensors   keys such as layers/0/w or layers.0.w
  a checkpoint folder of orbax     as it is
"""


class ParamsOptions(Protocol):
    """The options of a command that reads parameters; see `export --help`."""

    @property
    def params(self) -> str | None:
        """The path of the file."""

    @property
    def params_key(self) -> str | None:
        """The part of it that is the parameters."""

    @property
    def params_separator(self) -> str | None:
        """The sign at which its keys are split."""


@contextmanager
def open_params_option(options: ParamsOptions, folder: Path) -> Iterator[Any]:
    """Return a context with the pytree of parameters that the options of a command name.

    It is None without any; its arrays are `StoredArray`s.
    """
    if options.params is None:
        for name in ("params_key", "params_separator"):
            if getattr(options, name) is not None:
                raise StructureError(
                    f"--{name.replace('_', '-')} is for --params, which is missing. To do: "
                    "pass --params, or leave it out."
                )
        yield None
        return
    from bridge.exporting.parameter_files import open_parameters, select

    with open_parameters(folder / options.params, separator=options.params_separator) as params:
        yield params if options.params_key is None else select(params, options.params_key)


def read_params_option(options: ParamsOptions, folder: Path) -> Any:
    """Return the pytree of parameters that the options of a command name, as numpy arrays."""
    from bridge.exporting.parameter_files import to_memory

    with open_params_option(options, folder) as params:
        return to_memory(params)


def add_update(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = DESCRIPTION
    add_arguments(parser, "path")
    parser.add_argument(
        "--params", metavar="PATH", type=expand_home, required=True, help="see above"
    )
    add_arguments(parser, "params_key", "params_separator")
    parser.add_argument(
        "--to",
        metavar="DIR",
        type=expand_home,
        help="the new folder; by default the new SavedModel takes the place of the old one",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a SavedModel at DIR")
    add_arguments(parser, "json")


def run_update(options: argparse.Namespace) -> int:
    """Run the command, and return the exit status."""
    from bridge.update import update

    is_plain = options.params_key is None and options.params_separator is None
    with (
        nullcontext(options.params) if is_plain else open_params_option(options, Path.cwd())
    ) as params:
        updated = update(options.path, params, to=options.to, overwrite=options.overwrite)
    if options.json:
        print(json.dumps(dataclasses.asdict(updated), indent=2, allow_nan=False))
    else:
        print(updated)
    return 0
