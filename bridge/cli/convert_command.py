"""The commands that make a file of another format, such as `jax-tf-bridge onnx`: one each."""

from __future__ import annotations

import argparse

from bridge.cli.command_arguments import add_arguments, add_declared, expand_home
from bridge.formats.file_format import Conversion, FileFormat


def add_convert(parser: argparse.ArgumentParser, format_: FileFormat) -> None:
    """Declare the arguments of the command for a format."""
    assert format_.command is not None
    suffix = format_.command.suffix
    add_arguments(parser, "artifact")
    parser.add_argument(
        "target", metavar=f"OUT{suffix}", type=expand_home, help="the file to write"
    )
    parser.add_argument(
        "--signature",
        metavar="KEY",
        action="append",
        default=[],
        help="a signature of the SavedModel, several times for several",
    )
    add_arguments(parser, "platform", "vjp_order")
    add_declared(parser, format_.command.options)
    parser.add_argument("--overwrite", action="store_true", help=f"replace OUT{suffix}")
    add_arguments(parser, "imports")


def run_convert(options: argparse.Namespace, format_: FileFormat) -> int:
    """Write the file, and print what is in it."""
    assert format_.command is not None
    assert format_.convert is not None
    request = Conversion(
        source=options.artifact,
        target=options.target,
        signatures=tuple(options.signature),
        platform=options.platform,
        gradient_order=options.vjp_order,
        overwrite=options.overwrite,
        options={k: v for k, v in vars(options).items() if k in format_.command.options},
    )
    print(format_.convert(request))
    return 0
