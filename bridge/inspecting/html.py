"""A report of `inspect` as one page of HTML: no script, nothing from the network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from bridge.inspecting.graph_report import GraphReport, GraphSignature
from bridge.inspecting.markup import PAGE_STYLE, element, to_markup
from bridge.inspecting.order_report import OrderReport
from bridge.inspecting.pictures import areas_of, draw_flow, draw_parts, draw_releases, draw_sizes
from bridge.inspecting.report import FileReport, SignatureReport
from bridge.inspecting.report_facts import (
    ORDER_COLUMNS,
    call_title,
    cost_facts,
    cost_title,
    file_facts,
    graph_facts,
    graph_tensor_rows,
    obstacle_text,
    order_cells,
    parameter_cells,
    signature_facts,
    tensor_rows,
    writer_of,
)
from bridge.inspecting.sharding import ArraySharding, ShardingReport
from bridge.inspecting.wording import counted, readers, size

if TYPE_CHECKING:
    from bridge.inspecting.cost import CostReport


# Whatever a name from the file might smuggle in, the browser runs nothing and fetches nothing.
_CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MAX_ROWS = 200
_MAX_OPERATIONS = 20


def to_html(report: FileReport, costs: Sequence[CostReport] = ()) -> str:
    """Return the page of a file, which is also well-formed XML."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_CONTENT_SECURITY_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{report.path} · jax-tf-bridge"),
        element("style", PAGE_STYLE),
    )
    signatures = [_signature(signature, report) for signature in report.signatures]
    others = [] if report.graph is None else [*map(_other, report.graph.signatures)]
    sections = [
        _summary(report),
        *([_releases(report)] if report.signatures else []),
        *(others + signatures if report.is_default_other else signatures + others),
        *([] if report.graph is None else [_graph(report.graph)]),
        _sizes(report),
        *([_costs(costs)] if costs else []),
        _rest(report),
    ]
    page = element("html", head, element("body", element("main", *sections)), lang="en")
    return f"<!DOCTYPE html>\n{to_markup(page)}\n"


def _summary(report: FileReport) -> Element:
    variables = sum(parameter.bytes for parameter in report.parameters)
    signatures = len(report.signatures) + len(report.others)
    line = (
        f"{size(report.bytes)} · {counted(signatures, 'signature')} · "
        f"{counted(len(report.parameters), 'variable')}, {size(variables)} · {writer_of(report)}"
    )
    return element("header", element("h1", report.path), element("p", line, class_="quiet"))


def _releases(report: FileReport) -> Element:
    reasons = [
        element("p", element("code", signature.key), f", {reason}")
        for signature in report.signatures
        for order in signature.orders
        if (reason := obstacle_text(order))
    ]
    return element(
        "section",
        element("h2", readers(report.tensorflow).capitalize().replace("tensorflow", "TensorFlow")),
        _card(draw_releases(report), *reasons),
    )


def _signature(signature: SignatureReport, report: FileReport) -> Element:
    bound = set(signature.parameters)
    variable_bytes = sum(p.bytes for p in report.parameters if p.name in bound)
    tensors = tensor_rows(signature)
    sharding = signature.orders[0].sharding
    return element(
        "section",
        element("h2", f"Signature {signature.key}"),
        _card(draw_flow(signature, variable_bytes)),
        _card(_facts(signature_facts(signature))),
        element("h3", "Inputs and outputs"),
        _card(_table(["", "name", "type", "path", ""], tensors[:_MAX_ROWS], code={1, 2, 3})),
        *_more(len(tensors) - _MAX_ROWS, "input or output"),
        element("h3", "Modules"),
        _card(_orders(signature.orders)),
        element("h3", "Operations"),
        *(_card(*_operations(title, counted)) for title, counted in _counts(signature)),
        *([element("h3", "Arrays on the mesh"), _sharding(sharding)] if sharding else []),
    )


def _orders(orders: Sequence[OrderReport]) -> Element:
    heads = [*ORDER_COLUMNS, "constants"]
    rows = [[*order_cells(order), size(order.constant_bytes)] for order in orders]
    return _table(heads, rows, numbers=range(1, len(heads)))


def _counts(signature: SignatureReport) -> Iterator[tuple[str, Mapping[str, int]]]:
    """Yield the operations of each order on each platform, with a title."""
    for order in signature.orders:
        for count in order.counts:
            yield f"{order.title} {count.where}", count.operations


def _operations(title: str, operations: Mapping[str, int]) -> list[Element]:
    most = max(operations.values(), default=1)
    shown = list(operations.items())[:_MAX_OPERATIONS]
    rows = [(name, str(count), _bar(count / most)) for name, count in shown]
    more = _more(len(operations) - len(shown), "kind")
    table = _table([], rows, code={0}, numbers={1}, class_="bars")
    return [element("p", title, class_="quiet"), table, *more]


def _other(signature: GraphSignature) -> Element:
    """Return the section of a signature of other operations."""
    tensors = graph_tensor_rows(signature)
    return element(
        "section",
        element("h2", f"Signature {signature.key}, of other operations"),
        _card(_table(["", "name", "type"], tensors[:_MAX_ROWS], code={1, 2})),
        *_more(len(tensors) - _MAX_ROWS, "input or output"),
        _card(*_operations("operations", signature.operations)),
    )


def _graph(graph: GraphReport) -> Element:
    """Return the section of the whole graph."""
    calls = [
        part
        for call in graph.calls[:_MAX_ROWS]
        for part in (element("h3", call_title(call)), _card(_orders([call.module])))
    ]
    return element(
        "section",
        element("h2", "Graph"),
        _card(_facts(graph_facts(graph))),
        *calls,
        *_more(len(graph.calls) - _MAX_ROWS, "call"),
    )


def _sharding(sharding: ShardingReport) -> Element:
    arrays = [_array(array, sharding) for array in sharding.arrays[:_MAX_ROWS]]
    return _card(element("p", sharding.title), element("div", *arrays, class_="arrays"))


def _array(array: ArraySharding, sharding: ShardingReport) -> Element:
    name = array.label.removeprefix(f"{array.role} ")
    title = element("p", f"{array.role} ", element("code", name))
    drawn = [element("div", *draw_parts(array, sharding), class_="arrays")] if array.tiles else []
    return element("div", title, element("p", array.partition, class_="quiet"), *drawn)


def _sizes(report: FileReport) -> Element:
    areas = areas_of(report)
    kinds = {"variable": "variables", "constant": "constants", "graph": "modules"}
    present = [kind for kind in kinds if any(area.kind == kind for area in areas)]
    legend = element("p", *(_legend_key(kind, kinds[kind]) for kind in present), class_="legend")
    parameters = report.parameters_by_size[:_MAX_ROWS]
    rows: list[Sequence[str | Element]] = [(*parameter_cells(p), _bar(p.share)) for p in parameters]
    variables = [_card(_table([], rows, code={0, 1}, numbers={3, 4}, class_="bars"))]
    stored = [
        [f"{signature.key}, {order.title}", c.type, size(c.bytes), c.location]
        for signature in report.signatures
        for order in signature.orders
        for c in order.constants
    ]
    constants = [
        element("h3", "Constants in modules"),
        _card(_table(["", "type", "bytes", "from"], stored, code={1, 3})),
    ]
    return element(
        "section",
        element("h2", "Sizes"),
        _card(draw_sizes(areas), legend),
        *(variables if rows else []),
        *_more(len(report.parameters) - len(parameters), "variable"),
        *(constants if stored else []),
    )


def _legend_key(kind: str, name: str) -> Element:
    swatch = element("rect", width=12, height=12, rx=3, class_=kind)
    return element("span", element("svg", swatch, width=12, height=12), name)


def _more(count: int, noun: str) -> list[Element]:
    text = f"and {counted(count, f'other {noun}')}"
    return [element("p", text, class_="quiet")] if count > 0 else []


def _costs(costs: Iterable[CostReport]) -> Element:
    cards = ((element("h3", cost_title(c)), _card(_facts(cost_facts(c)))) for c in costs)
    return element("section", element("h2", "Cost of a call"), *chain.from_iterable(cards))


def _rest(report: FileReport) -> Element:
    metadata = {key: str(value) for key, value in report.metadata.items()}
    facts = metadata | {"assets": "none", "warmup": "none"} | file_facts(report)
    rows = [[file.path, size(file.bytes)] for file in report.files[:_MAX_ROWS]]
    return element(
        "section",
        element("h2", "File"),
        _card(_facts(facts)),
        _card(_table(["file", "bytes"], rows, code={0}, numbers={1})),
        *_more(len(report.files) - len(rows), "file"),
    )


def _card(*children: Element) -> Element:
    return element("div", *children, class_="card")


def _facts(facts: Mapping[str, str]) -> Element:
    pairs = [(element("dt", name), element("dd", value)) for name, value in facts.items()]
    return element("dl", *chain.from_iterable(pairs), class_="facts")


def _bar(share: float) -> Element:
    return element("div", class_="bar", style=f"width:{100 * share:.1f}%")


def _table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str | Element]],
    *,
    code: Collection[int] = (),
    numbers: Collection[int] = (),
    class_: str | None = None,
) -> Element:
    """Return a table."""

    def row(tag: str, cells: Sequence[str | Element], code: Collection[int]) -> Element:
        made = (
            element(
                tag,
                element("code", cell) if index in code else cell,
                class_="number" if index in numbers else None,
            )
            for index, cell in enumerate(cells)
        )
        return element("tr", *made)

    head = [row("th", heads, ())] if heads else []
    return element("table", *head, *(row("td", cells, code) for cells in rows), class_=class_)
