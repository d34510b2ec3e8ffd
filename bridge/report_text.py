"""A report of `inspect` as text for a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.inspect import FileReport, SignatureReport, TensorReport

__all__ = ["print_report"]


def print_report(report: FileReport, console: Console) -> None:
    """Print everything in a report."""
    console.print(Text(report.path, style="bold"), soft_wrap=True)
    console.print(f"{_size(report.bytes)}, readable from TensorFlow {report.tensorflow} on")
    for signature in report.signatures:
        console.print()
        _print_signature(signature, console)
    console.print()
    _print_parameters(report, console)


def _print_signature(signature: SignatureReport, console: Console) -> None:
    console.print(Text(f"Signature {signature.key}", style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for heading, tensors in (("in", signature.inputs), ("out", signature.outputs)):
        for tensor in tensors:
            note = "" if tensor.used else "unused"
            table.add_row(heading, tensor.name, _aval(tensor), tensor.path, note)
    console.print(table)
    facts = {
        "function": signature.function,
        "platforms": ", ".join(signature.platforms) or "any",
        "module": f"{_size(signature.module_bytes)}, StableHLO {signature.stablehlo}, "
        f"calling convention {signature.calling_convention}",
        "TensorFlow": f"{signature.tensorflow} or newer",
        "disabled checks": ", ".join(signature.disabled_checks) or "none",
        "custom calls": ", ".join(signature.custom_calls) or "none",
        "gradients": f"order {signature.gradient_order}" if signature.gradient_order else "none",
        "devices": str(signature.devices),
    }
    grid = Table(box=None, pad_edge=False, show_header=False)
    for name, value in facts.items():
        grid.add_row(Text(name, style="dim"), Text(value))
    console.print(grid)


def _print_parameters(report: FileReport, console: Console) -> None:
    total = sum(parameter.bytes for parameter in report.parameters)
    heading = f"Parameters: {len(report.parameters)}, {_size(total)}"
    console.print(Text(heading, style="bold"))
    table = Table(box=None, pad_edge=False, show_header=False)
    for parameter in report.parameters:
        shape = ",".join(map(str, parameter.shape))
        table.add_row(
            Text(parameter.name),
            Text(f"{parameter.dtype}[{shape}]"),
            Text(_size(parameter.bytes)),
            "trainable" if parameter.trainable else "fixed",
        )
    if report.parameters:
        console.print(table)


def _aval(tensor: TensorReport) -> Text:
    shape = "..." if tensor.shape is None else ",".join(map(str, tensor.shape))
    element = f" ({tensor.element})" if tensor.element else ""
    return Text(f"{tensor.dtype}[{shape}]{element}")


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
