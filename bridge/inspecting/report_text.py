"""A report of `inspect` as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from bridge.core.mesh_text import axes_text, draw_grid
from bridge.inspecting.report import FileReport, OrderReport, SignatureReport, TensorReport
from bridge.inspecting.sharding import ShardingReport
from savedmodel.manifest import Manifest

if TYPE_CHECKING:
    from bridge.inspecting.cost import CostReport

__all__ = [
    "aval",
    "cost_facts",
    "devices_of",
    "draw_sharding",
    "manifest_facts",
    "print_costs",
    "print_report",
    "printable",
    "readers",
    "revision_of",
    "size",
    "writer_of",
]

_MAX_OPERATIONS = 12
_MAX_DEVICES_DRAWN = 64
_MAX_ARRAYS = 32
_UNITS = ("B", "KB", "MB", "GB", "TB")


def print_report(report: FileReport, console: Console) -> None:
    """Print everything in a report."""
    _heading(report.path, console)
    console.print(f"{size(report.bytes)}, {readers(report.tensorflow)}")
    _print_facts({"written by": writer_of(report), **_extras(report)}, console)
    for signature in report.signatures:
        console.print()
        _print_signature(signature, console)
    console.print()
    _print_parameters(report, console)


def print_costs(costs: Sequence[CostReport], console: Console) -> None:
    """Print the cost of each call, one line for each figure."""
    for cost in costs:
        what = f"gradient {cost.order}" if cost.order else "function"
        _heading(f"Signature {cost.signature}, {what} on {cost.platform}", console)
        _print_facts(cost_facts(cost), console)


def cost_facts(cost: CostReport) -> dict[str, str]:
    """Return the figures of a cost by name, as text."""
    sizes = ", ".join(f"{name} = {value}" for name, value in cost.sizes.items())
    counted = {
        "FLOPs": cost.flops,
        "transcendentals": cost.transcendentals,
    }
    memory = {
        "bytes accessed": cost.bytes_accessed,
        "arguments": cost.argument_bytes,
        "results": cost.result_bytes,
        "temporaries": cost.temporary_bytes,
        "peak memory": cost.peak_bytes,
    }
    return {
        "sizes": sizes or "all static",
        **{name: "unknown" if n is None else f"{n:,.0f}" for name, n in counted.items()},
        **{name: "unknown" if n is None else size(n) for name, n in memory.items()},
        "counted": "as XLA compiled it" if cost.compiled else "before XLA has optimized it",
    }


def _extras(report: FileReport) -> dict[str, str]:
    facts = {}
    if report.assets:
        names = ", ".join(f"{file.path} ({size(file.bytes)})" for file in report.assets)
        facts["assets"] = names
    if (warmup := report.warmup) is not None:
        facts["warmup"] = f"{warmup.records} records, {size(warmup.bytes)}, in {warmup.path}"
    facts |= manifest_facts(report.manifest)
    if report.others:
        facts["other signatures"] = ", ".join(report.others)
    if report.flags:
        facts["flags"] = " ".join(report.flags)
    return facts


def manifest_facts(manifest: Manifest | None) -> dict[str, str]:
    """Return the facts of a manifest by name, as text."""
    if manifest is None:
        return {}
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    facts = {"manifest": f"{len(manifest.files)} files", "made with": versions}
    if manifest.source is not None:
        facts["source"] = revision_of(manifest.source)
    if target := manifest.request.get("target"):
        facts["made of"] = str(target)
    return facts


def revision_of(source: Mapping[str, Any]) -> str:
    """Return the source revision of a manifest as text."""
    changed = source.get("changed")
    said = ", perhaps with changes" if changed is None else ", with changes" * bool(changed)
    return f"revision {source.get('revision')}{said}"


def _print_signature(signature: SignatureReport, console: Console) -> None:
    _heading(f"Signature {signature.key}", console)
    table = _table()
    for heading, tensors in (("in", signature.inputs), ("out", signature.outputs)):
        for tensor in tensors:
            note = "" if tensor.used else "unused"
            table.add_row(
                heading, _text(tensor.name), _text(aval(tensor)), _text(tensor.path), _text(note)
            )
    console.print(table)
    checks = [f"{check.name} (by {' and '.join(check.sources)})" for check in signature.checks]
    facts = {
        "function": signature.function,
        "platforms": ", ".join(signature.platforms) or "any",
        "TensorFlow": readers(signature.tensorflow),
        "disabled checks": ", ".join(checks) or "none",
        "custom calls": ", ".join(signature.custom_calls) or "none",
        "gradients": f"order {signature.gradient_order}" if signature.gradient_order else "none",
        "devices": devices_of(signature),
        "operations": _operations(signature.operations),
    }
    if signature.batch_buckets:
        facts["batch buckets"] = ", ".join(map(str, signature.batch_buckets))
    _print_facts(facts, console)
    _print_orders(signature.orders, console)
    if (sharding := signature.orders[0].sharding) is not None:
        for line in draw_sharding(sharding):
            console.print(_text(line), soft_wrap=True)


def draw_sharding(sharding: ShardingReport) -> list[str]:
    """Draw the mesh with its devices, then each array with the part of each device.

    The lines hold text of the file as it is; pass them through `printable` for a terminal.
    """
    axes = [(axis.name, axis.size) for axis in sharding.mesh]
    devices = math.prod(size for _, size in axes)
    drawn = devices <= _MAX_DEVICES_DRAWN
    lines = [f"mesh of {devices} devices: {axes_text(axes)} ({sharding.partitioner})"]
    lines += draw_grid(axes, range(devices)) if drawn else []
    for array in sharding.arrays[:_MAX_ARRAYS]:
        parts = f", {' x '.join(map(str, array.parts))} parts; on each device:"
        lines.append(f"{array.label}: {array.partition}{parts if array.is_split else ''}")
        if drawn and array.is_split:
            lines += draw_grid(axes, array.tiles)
    if (rest := len(sharding.arrays) - _MAX_ARRAYS) > 0:
        lines.append(f"and {rest} other arrays")
    return lines


def _operations(operations: Mapping[str, int]) -> str:
    shown = [f"{count} {name}" for name, count in list(operations.items())[:_MAX_OPERATIONS]]
    rest = len(operations) - len(shown)
    return ", ".join([*shown, *([f"and {rest} other kinds"] if rest else [])])


def _print_orders(orders: Sequence[OrderReport], console: Console) -> None:
    table = _table(header=True)
    for name in ("module", "bytes", "StableHLO", "convention", "TensorFlow", "operations"):
        table.add_column(name, justify="left" if name == "module" else "right")
    for order in orders:
        table.add_row(
            _text(f"{order.title}: {order.function}"),
            size(order.module_bytes),
            order.stablehlo,
            str(order.calling_convention),
            order.tensorflow,
            str(sum(order.operations.values())),
        )
    console.print(table)
    for order in orders:
        for line in [*_changes(order), *_obstacle(order), *_constants(order)]:
            console.print(_text(line), soft_wrap=True)


def _changes(order: OrderReport) -> list[str]:
    """Return what was done to the module since it was exported."""
    return [f"{order.title}: changed: {'; '.join(order.changes)}"] if order.changes else []


def _obstacle(order: OrderReport) -> list[str]:
    """Return why the release just below the oldest one that runs an order does not."""
    if not order.obstacles:
        return []
    last = order.obstacles[-1]
    operation = f" ({last.operation})" if last.operation not in ("", last.reason) else ""
    if operation and last.operation in last.reason:
        operation = ""
    cure = "" if not last.removable else f"; `retarget` gives it a form for {last.tensorflow}"
    return [f"{order.title}: not in TensorFlow {last.tensorflow}: {last.reason}{operation}{cure}"]


def _constants(order: OrderReport) -> list[str]:
    return [
        f"{order.title}: stores {constant.type}, {size(constant.bytes)}, at {constant.location}"
        for constant in order.constants
    ]


def _print_parameters(report: FileReport, console: Console) -> None:
    total = sum(parameter.bytes for parameter in report.parameters)
    _heading(f"Parameters: {len(report.parameters)}, {size(total)}", console)
    rows = [
        (
            printable(parameter.name),
            f"{parameter.dtype}[{','.join(map(str, parameter.shape))}]",
            size(parameter.bytes),
            f"{parameter.share:.1%}",
            "trainable" if parameter.trainable else "fixed",
            "constant" if parameter.constant else "",
        )
        for parameter in report.parameters_by_size
    ]
    if rows:
        console.print(Text("\n".join(_aligned(rows, right=(2, 3)))), soft_wrap=True)


def _aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> Iterator[str]:
    """Return each row as a line with columns as wide as their widest cell.

    A model may have thousands of variables, for which rich's own tables take a second.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = []
        for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
            padding = " " * (width - cell_len(cell))
            cells.append(padding + cell if index in right else cell + padding)
        yield "  ".join(cells).rstrip()


def printable(text: str) -> str:
    """Return the text with escapes for control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _text(text: str, style: str = "", *, justify: JustifyMethod | None = None) -> Text:
    return Text(printable(text), style=style, justify=justify)


def _heading(text: str, console: Console) -> None:
    console.print(_text(text, style="bold"), soft_wrap=True)


def _print_facts(facts: Mapping[str, str], console: Console) -> None:
    grid = _table()
    for name, value in facts.items():
        grid.add_row(_text(name, style="dim"), _text(value))
    console.print(grid)


def _table(*, header: bool = False) -> Table:
    return Table(box=None, pad_edge=False, show_header=header)


def readers(tensorflow: str) -> str:
    """Return the sentence about the oldest TensorFlow that reads a file or a signature."""
    if tensorflow.startswith(">"):
        return f"readable by no TensorFlow up to {tensorflow.removeprefix('> ')}"
    return f"readable from TensorFlow {tensorflow} on"


def writer_of(report: FileReport) -> str:
    """Return the programs that wrote the file."""
    return f"jax-tf-bridge, then {report.writer}" if report.saved_again else report.writer


def devices_of(signature: SignatureReport) -> str:
    """Return the number of devices, and the operation that one device cannot run."""
    operation = next((order.needs_devices for order in signature.orders if order.needs_devices), "")
    if not operation:
        return str(signature.devices)
    return f"{signature.devices}; one device, as in TensorFlow, cannot run {operation}"


def aval(tensor: TensorReport) -> str:
    """Return dtype and shape as JAX prints them, with the dtype in JAX where it is another."""
    shape = "..." if tensor.shape is None else ",".join(map(str, tensor.shape))
    element = f" ({tensor.element})" if tensor.element else ""
    return f"{tensor.dtype}[{shape}]{element}"


def size(count: float) -> str:
    """Return a number of bytes as text, such as `1.5 MB`."""
    for unit in _UNITS:
        if count < 1000 or unit == _UNITS[-1]:
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
