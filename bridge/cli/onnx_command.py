"""The command `jax-tf-bridge onnx`."""

from __future__ import annotations

import argparse
from pathlib import Path

__all__ = ["add_onnx", "run_onnx"]


def add_onnx(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.add_argument(
        "source",
        metavar="SAVEDMODEL_OR_ARTIFACT",
        help="the folder of a SavedModel, or the file of a serialized Exported or of StableHLO",
    )
    parser.add_argument("target", metavar="OUT.onnx", help="the file to write")
    parser.add_argument("--signature", metavar="KEY", help="of the SavedModel, if not the default")
    parser.add_argument("--opset", type=int, help="the version of ONNX's operations")
    parser.add_argument("--platform", default="cpu", help="of those that it was lowered for")
    parser.add_argument(
        "--gradient-order", type=int, default=0, metavar="N", help="1 for the VJP, and so on"
    )
    parser.add_argument(
        "--external-data",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether weights are in a file of their own; by default past 1 GiB",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace OUT.onnx")


def run_onnx(options: argparse.Namespace) -> int:
    """Write the file; the exit status.

    Raises:
        InteropError, OSError: as for `bridge.save_onnx`.
    """
    from bridge.load import load
    from bridge.onnx.conversion import save_onnx
    from xla_call_module.errors import StructureError

    source = options.source
    apart: dict[str, str | bool] = {"auto": "auto", "yes": True, "no": False}
    if options.signature is not None:
        signatures = load(source).signatures
        if options.signature not in signatures:
            raise StructureError(
                f"{source} has no signature {options.signature!r}; it has "
                f"{', '.join(map(repr, signatures))}. To do: name one of these."
            )
        source = signatures[options.signature]
    save_onnx(
        source,
        options.target,
        gradient_order=options.gradient_order,
        external_data=apart[options.external_data],
        platform=options.platform,
        opset=options.opset,
        overwrite=options.overwrite,
    )
    size = Path(options.target).stat().st_size
    print(f"{options.target}: {size:,} bytes")
    return 0
