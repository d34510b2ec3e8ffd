"""A report of `inspect` as one page of HTML: no script, nothing from the network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from bridge.inspecting.markup import PAGE_STYLE, element, to_markup
from bridge.inspecting.pictures import (
    areas_of,
    draw_flow,
    draw_parts,
    draw_releases,
    draw_sizes,
)
from bridge.inspecting.report import FileReport, OrderReport, ParameterReport, SignatureReport
from bridge.inspecting.report_text import (
    cost_facts,
    devices_of,
    manifest_facts,
    readers,
    size,
    writer_of,
)
from bridge.inspecting.sharding import ArraySharding, ShardingReport

if TYPE_CHECKING:
    from bridge.inspecting.cost import CostReport

__all__ = ["to_html"]

# Whatever a name from the file might smuggle in, the browser runs nothing and fetches nothing.
_CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MAX_ROWS = 200
_MAX_OPERATIONS = 20


def to_html(report: FileReport, costs: Sequence[CostReport] = ()) -> str:
    """Return the page of a file, which is also well-formed XML.

    Args:
        report: the report of `inspect`.
        costs: the costs of calls, which get a section of their own.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_CONTENT_SECURITY_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{report.path} · jax-tf-bridge"),
        element("style", PAGE_STYLE),
    )
    sections = [
        _summary(report),
        _releases(report),
        *(_signature(signature, report) for signature in report.signatures),
        _sizes(report),
        *([_costs(costs)] if costs else []),
        _rest(report),
    ]
    page = element("html", head, element("body", element("main", *sections)), lang="en")
    return f"<!DOCTYPE html>\n{to_markup(page)}\n"


def _summary(report: FileReport) -> Element:
    variables = sum(parameter.bytes for parameter in report.parameters)
    line = (
        f"{size(report.bytes)} · {_count(len(report.signatures), 'signature')} · "
        f"{_count(len(report.parameters), 'variable')}, {size(variables)} · {writer_of(report)}"
    )
    return element("header", element("h1", report.path), element("p", line, class_="quiet"))


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _releases(report: FileReport) -> Element:
    reasons = [
        _obstacle(s, order) for s in report.signatures for order in s.orders if order.obstacles
    ]
    return element(
        "section",
        element("h2", readers(report.tensorflow).capitalize().replace("tensorflow", "TensorFlow")),
        _card(draw_releases(report), *reasons),
    )


def _obstacle(signature: SignatureReport, order: OrderReport) -> Element:
    """Return why the release just below the oldest one that runs an order does not."""
    last = order.obstacles[-1]
    known = last.operation and last.operation not in last.reason
    where = f" ({last.operation})" if known else ""
    cure = f" Retargeting finds a form for {last.tensorflow}." if last.removable else ""
    reason = f"TensorFlow {last.tensorflow} does not, since {last.reason}{where}.{cure}"
    return element("p", element("code", signature.key), f", {order.title}: {reason}")


def _signature(signature: SignatureReport, report: FileReport) -> Element:
    bound = set(signature.parameters)
    variable_bytes = sum(p.bytes for p in report.parameters if p.name in bound)
    checks = [f"{check.name} (by {' and '.join(check.sources)})" for check in signature.checks]
    facts = {
        "platforms": ", ".join(signature.platforms) or "any",
        "safety checks off": ", ".join(checks) or "none",
        "custom calls": ", ".join(signature.custom_calls) or "none",
        "gradients": f"to order {signature.gradient_order}" if signature.gradient_order else "none",
        "devices": devices_of(signature),
    }
    if signature.batch_buckets:
        facts["batch buckets"] = ", ".join(map(str, signature.batch_buckets))
    sharding = signature.orders[0].sharding
    return element(
        "section",
        element("h2", f"Signature {signature.key}"),
        _card(draw_flow(signature, variable_bytes)),
        _card(_facts(facts)),
        element("h3", "Inputs and outputs"),
        _card(_tensors(signature)),
        element("h3", "Modules"),
        _card(_orders(signature.orders)),
        element("h3", "Operations"),
        _card(*_operations(signature.operations)),
        *([element("h3", "Arrays on the mesh"), _sharding(sharding)] if sharding else []),
    )


def _tensors(signature: SignatureReport) -> Element:
    rows = []
    for role, tensors in (("in", signature.inputs), ("out", signature.outputs)):
        for tensor in tensors[:_MAX_ROWS]:
            dims = "..." if tensor.shape is None else ",".join(map(str, tensor.shape))
            note = tensor.element if tensor.used else f"{tensor.element} unused"
            rows.append([role, tensor.name, f"{tensor.dtype}[{dims}]", tensor.path, note])
    return _table(["", "name", "type", "path", ""], rows, code={1, 2, 3})


def _orders(orders: Sequence[OrderReport]) -> Element:
    heads = [
        "",
        "name",
        "bytes",
        "StableHLO",
        "convention",
        "TensorFlow",
        "operations",
        "constants",
    ]
    rows = [
        [
            order.title,
            order.function,
            size(order.module_bytes),
            order.stablehlo,
            str(order.calling_convention),
            order.tensorflow,
            str(sum(order.operations.values())),
            size(order.constant_bytes),
        ]
        for order in orders
    ]
    return _table(heads, rows, code={1}, numbers={2, 3, 4, 5, 6, 7})


def _operations(operations: Mapping[str, int]) -> list[Element]:
    most = max(operations.values(), default=1)
    shown = list(operations.items())[:_MAX_OPERATIONS]
    rows = [
        element(
            "tr",
            element("td", element("code", name)),
            element("td", str(count), class_="number"),
            element("td", element("div", class_="bar", style=f"width:{100 * count / most:.1f}%")),
        )
        for name, count in shown
    ]
    rest = len(operations) - len(shown)
    return [element("table", *rows, class_="bars"), *_more(rest, "kind")]


def _sharding(sharding: ShardingReport) -> Element:
    devices = math.prod(axis.size for axis in sharding.mesh)
    axes = " × ".join(
        f"{axis.name or f'axis {index}'} {axis.size}" for index, axis in enumerate(sharding.mesh)
    )
    line = f"{devices} devices: {axes}, partitioned by {sharding.partitioner}"
    arrays = [_array(array, sharding) for array in sharding.arrays[:_MAX_ROWS]]
    return _card(element("p", line), element("div", *arrays, class_="arrays"))


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
    rows = [
        element(
            "tr",
            element("td", element("code", p.name)),
            element("td", element("code", _type(p)), class_="whole"),
            element("td", _kind(p), class_="whole"),
            element("td", size(p.bytes), class_="number"),
            element("td", f"{p.share:.1%}", class_="number"),
            element("td", element("div", class_="bar", style=f"width:{100 * p.share:.1f}%")),
        )
        for p in parameters
    ]
    constants = [
        [f"{signature.key}, {order.title}", c.type, size(c.bytes), c.location]
        for signature in report.signatures
        for order in signature.orders
        for c in order.constants
    ]
    return element(
        "section",
        element("h2", "Sizes"),
        _card(draw_sizes(areas), legend),
        *([_card(element("table", *rows, class_="bars"))] if rows else []),
        *_more(len(report.parameters) - len(parameters), "variable"),
        *([element("h3", "Constants in modules")] if constants else []),
        *(
            [_card(_table(["", "type", "bytes", "from"], constants, code={1, 3}))]
            if constants
            else []
        ),
    )


def _type(parameter: ParameterReport) -> str:
    return f"{parameter.dtype}[{','.join(map(str, parameter.shape))}]"


def _kind(parameter: ParameterReport) -> str:
    if parameter.constant:
        return "constant"
    return "trainable" if parameter.trainable else "fixed"


def _legend_key(kind: str, name: str) -> Element:
    swatch = element("rect", width=12, height=12, rx=3, class_=kind)
    return element("span", element("svg", swatch, width=12, height=12), name)


def _more(count: int, what: str) -> list[Element]:
    return (
        [element("p", f"and {_count(count, f'other {what}')}", class_="quiet")] if count > 0 else []
    )


def _costs(costs: Iterable[CostReport]) -> Element:
    cards = []
    for cost in costs:
        what = f"gradient {cost.order}" if cost.order else "function"
        cards += [
            element("h3", f"{cost.signature}, {what}, on {cost.platform}"),
            _card(_facts(cost_facts(cost))),
        ]
    return element("section", element("h2", "Cost of a call"), *cards)


def _rest(report: FileReport) -> Element:
    warmup = report.warmup
    facts = {
        "written by": writer_of(report),
        **{key: str(value) for key, value in report.metadata.items()},
        **manifest_facts(report.manifest),
        "assets": ", ".join(file.path for file in report.assets) or "none",
        "warmup": "none" if warmup is None else f"{warmup.records} records in {warmup.path}",
        **({"other signatures": ", ".join(report.others)} if report.others else {}),
        **({"TF_XLA_FLAGS": " ".join(report.flags)} if report.flags else {}),
    }
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


def _table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    code: set[int] | None = None,
    numbers: set[int] | None = None,
) -> Element:
    def cell(index: int, text: str) -> Element:
        inside = element("code", text) if index in (code or ()) else text
        return element("td", inside, class_="number" if index in (numbers or ()) else None)

    def head(index: int, text: str) -> Element:
        return element("th", text, class_="number" if index in (numbers or ()) else None)

    return element(
        "table",
        element("tr", *(head(index, text) for index, text in enumerate(heads))),
        *(element("tr", *(cell(index, text) for index, text in enumerate(row))) for row in rows),
    )
