"""A report of `inspect` as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.core.mesh_text import draw_grid, draw_mesh
from bridge.inspecting.graph_report import GraphReport, GraphSignature
from bridge.inspecting.operation_counts import operations_text
from bridge.inspecting.order_report import OrderReport
from bridge.inspecting.report import FileReport, SignatureReport
from bridge.inspecting.report_facts import (
    ORDER_COLUMNS,
    call_title,
    constants_by_type,
    cost_facts,
    cost_title,
    file_facts,
    graph_facts,
    graph_tensor_rows,
    obstacle_text,
    operation_lines,
    order_cells,
    parameter_cells,
    signature_facts,
    tensor_rows,
)
from bridge.inspecting.sharding import ShardingReport
from bridge.inspecting.wording import printable, readers, size

if TYPE_CHECKING:
    from bridge.inspecting.cost import CostReport


_MAX_ARRAYS = 32


def print_report(report: FileReport, console: Console) -> None:
    """Print everything in a report."""
    _heading(report.path, console)
    read = f", {readers(report.tensorflow)}" if report.tensorflow else ""
    console.print(f"{size(report.bytes)}{read}")
    _print_facts(file_facts(report), console)
    others = () if report.graph is None else report.graph.signatures
    if report.is_default_other:
        _print_others(others, console)
    for signature in report.signatures:
        console.print()
        _print_signature(signature, console)
    if not report.is_default_other:
        _print_others(others, console)
    if report.graph is not None:
        _print_graph(report.graph, console)
    console.print()
    _print_parameters(report, console)


def print_costs(costs: Sequence[CostReport], console: Console) -> None:
    """Print the cost of each call, one line for each figure."""
    for cost in costs:
        _heading(cost_title(cost), console)
        _print_facts(cost_facts(cost), console)


def _print_signature(signature: SignatureReport, console: Console) -> None:
    _heading(f"Signature {signature.key}", console)
    table = _table()
    for row in tensor_rows(signature):
        table.add_row(*map(_text, row))
    console.print(table)
    facts = {
        "function": signature.function,
        "TensorFlow": readers(signature.tensorflow),
        **signature_facts(signature),
    }
    _print_facts(facts, console)
    for line in operation_lines(signature.orders):
        console.print(_text(f"operations, {line}"), soft_wrap=True)
    _print_orders(signature.orders, console)
    if (sharding := signature.orders[0].sharding) is not None:
        for line in draw_sharding(sharding):
            console.print(_text(line), soft_wrap=True)


def _print_others(signatures: Sequence[GraphSignature], console: Console) -> None:
    """Print the signatures that compute more than calls of modules."""
    for signature in signatures:
        console.print()
        _heading(f"Signature {signature.key}, of other operations", console)
        table = _table()
        for row in graph_tensor_rows(signature):
            table.add_row(*map(_text, row))
        console.print(table)
        console.print(_text(f"operations: {operations_text(signature.operations)}"), soft_wrap=True)


def _print_graph(graph: GraphReport, console: Console) -> None:
    """Print the operations and calls of a graph."""
    console.print()
    _heading("Graph", console)
    _print_facts(graph_facts(graph), console)
    for call in graph.calls:
        console.print()
        _heading(f"Call {call_title(call)}", console)
        for line in operation_lines([call.module]):
            console.print(_text(f"operations, {line}"), soft_wrap=True)
        _print_orders([call.module], console)


def draw_sharding(sharding: ShardingReport) -> list[str]:
    """Draw the mesh with its devices, then each array with the part of each device.

    The lines hold text of the file as it is; pass them through `printable` for a terminal.
    """
    axes = sharding.axes
    devices = draw_mesh(axes)[1:]
    lines = [sharding.title, *devices]
    for array in sharding.arrays[:_MAX_ARRAYS]:
        parts = f", {' x '.join(map(str, array.parts))} parts; on each device:"
        lines.append(f"{array.label}: {array.partition}{parts if array.is_split else ''}")
        if devices and array.is_split:
            lines += draw_grid(axes, array.tiles)
    if (rest := len(sharding.arrays) - _MAX_ARRAYS) > 0:
        lines.append(f"and {rest} other arrays")
    return lines


def _print_orders(orders: Sequence[OrderReport], console: Console) -> None:
    table = _table(header=True)
    for name in ORDER_COLUMNS:
        table.add_column(name, justify="left" if name == "module" else "right")
    for order in orders:
        table.add_row(*map(_text, order_cells(order)))
    console.print(table)
    for line in (line for order in orders for line in _notes(order)):
        console.print(_text(line), soft_wrap=True)


def _notes(order: OrderReport) -> Iterator[str]:
    """Yield what was done to a module, why older releases do not run it, and its constants."""
    if order.changes:
        yield f"{order.title}: changed: {'; '.join(order.changes)}"
    if obstacle := obstacle_text(order):
        yield obstacle
    for constants in constants_by_type(order):
        yield f"{order.title}: stores {constants}"


def _print_parameters(report: FileReport, console: Console) -> None:
    total = sum(parameter.bytes for parameter in report.parameters)
    _heading(f"Parameters: {len(report.parameters)}, {size(total)}", console)
    rows = [tuple(map(printable, parameter_cells(p))) for p in report.parameters_by_size]
    if rows:
        console.print(Text("\n".join(_aligned(rows, right=(3, 4)))), soft_wrap=True)


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


def _text(text: str, style: str = "") -> Text:
    return Text(printable(text), style=style)


def _heading(text: str, console: Console) -> None:
    console.print(_text(text, style="bold"), soft_wrap=True)


def _print_facts(facts: Mapping[str, str], console: Console) -> None:
    grid = _table()
    for name, value in facts.items():
        grid.add_row(_text(name, style="dim"), _text(value))
    console.print(grid)


def _table(*, header: bool = False) -> Table:
    return Table(box=None, pad_edge=False, show_header=header)
