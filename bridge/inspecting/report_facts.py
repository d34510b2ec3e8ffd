"""The facts of a report as text, which the terminal and the page of HTML show alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bridge.inspecting.operation_counts import operations_text
from bridge.inspecting.wording import aval, counted, size
from xla_call_module.analyses.tflite_conversion import FAULTS
from xla_call_module.dimensions import aval_text

if TYPE_CHECKING:
    from bridge.inspecting.cost import CostReport
    from bridge.inspecting.graph_report import GraphCall, GraphReport, GraphSignature
    from bridge.inspecting.order_report import OrderReport
    from bridge.inspecting.report import FileReport, ParameterReport, SignatureReport
    from savedmodel.manifest import Manifest
    from xla_call_module.passes.constants import Constant


ORDER_COLUMNS = ("module", "bytes", "StableHLO", "convention", "TensorFlow", "operations")
_MAX_FUNCTIONS = 6
_MAX_PLACES = 3


def file_facts(report: FileReport) -> dict[str, str]:
    """Return the facts of a file by name; those that it has."""
    facts = {"written by": writer_of(report)}
    if report.readable_until:
        facts["modules"] = f"promised to be readable until {report.readable_until}"
    if "opset" in report.metadata:
        facts["opset"] = str(report.metadata["opset"])
    if report.assets:
        names = ", ".join(f"{file.path} ({size(file.bytes)})" for file in report.assets)
        facts["assets"] = names
    if (warmup := report.warmup) is not None:
        facts["warmup"] = f"{warmup.records} records, {size(warmup.bytes)}, in {warmup.path}"
    if report.manifest is not None:
        facts |= _manifest_facts(report.manifest)
    if report.others and report.signatures:
        facts["other signatures"] = ", ".join(report.others)
    if report.flags:
        facts["TF_XLA_FLAGS"] = " ".join(report.flags)
    return facts


def _manifest_facts(manifest: Manifest) -> dict[str, str]:
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


def writer_of(report: FileReport) -> str:
    """Return the programs that wrote the file."""
    return f"jax-tf-bridge, then {report.writer}" if report.saved_again else report.writer


def signature_facts(signature: SignatureReport) -> dict[str, str]:
    """Return the facts of a signature by name."""
    checks = [f"{check.name} (by {' and '.join(check.sources)})" for check in signature.checks]
    devices = str(signature.devices)
    if several := [order.needs_devices for order in signature.orders if order.needs_devices]:
        devices += f"; one device, as in TensorFlow, cannot run {several[0]}"
    facts = {
        "platforms": ", ".join(signature.platforms) or "any",
        "disabled checks": ", ".join(checks) or "none",
        "custom calls": ", ".join(signature.custom_calls) or "none",
        "gradients": f"order {signature.gradient_order}" if signature.gradient_order else "none",
        "devices": devices,
    }
    if count := sum(signature.graph_operations.values()):
        facts["runs"] = f"{counted(count, 'operation')} of TensorFlow, without XLA"
    elif faults := signature.orders[0].tflite_faults:
        told = "; ".join(FAULTS[name] for name in faults)
        facts["TFLite"] = (
            f"may be wrong by TensorFlow's converter ({told}); take bridge.save_litert"
        )
    if signature.assigned:
        facts["assigns"] = ", ".join(signature.assigned)
    if signature.batch_buckets:
        facts["batch buckets"] = ", ".join(map(str, signature.batch_buckets))
    return facts


def tensor_rows(signature: SignatureReport) -> list[tuple[str, ...]]:
    """Return the role, name, type and path of each input and output, and a note."""
    return [
        (role, tensor.name, aval(tensor), tensor.path, "" if tensor.used else "unused")
        for role, tensors in (("in", signature.inputs), ("out", signature.outputs))
        for tensor in tensors
    ]


def graph_facts(graph: GraphReport) -> dict[str, str]:
    """Return the facts of a graph of other operations by name."""
    largest = [f"{name} ({counted(n, 'node')})" for name, n in graph.functions.items()]
    shown = largest[:_MAX_FUNCTIONS]
    if rest := len(largest) - len(shown):
        shown.append(f"and {counted(rest, 'other')}")
    return {
        "operations": operations_text(graph.operations) or "none",
        "functions": ", ".join(shown) or "none",
    }


def graph_tensor_rows(signature: GraphSignature) -> list[tuple[str, ...]]:
    """Return the role, name and type of each input and output of a signature of a graph."""
    return [
        (role, tensor.name, aval(tensor))
        for role, tensors in (("in", signature.inputs), ("out", signature.outputs))
        for tensor in tensors
    ]


def call_title(call: GraphCall) -> str:
    """Return node, place and order of a call among other operations."""
    order = f", gradient of order {call.gradient_order}" if call.gradient_order else ""
    return f"{call.node} in {call.place or 'the main graph'}{order}"


def order_cells(order: OrderReport) -> tuple[str, ...]:
    """Return the row of a module under `ORDER_COLUMNS`."""
    return (
        f"{order.title}: {order.function}",
        size(order.module_bytes),
        order.stablehlo,
        str(order.calling_convention),
        order.tensorflow,
        str(sum(order.operations.values())),
    )


def operation_lines(orders: Sequence[OrderReport]) -> list[str]:
    """Return the operations of each order on each platform as text, one line for each."""
    return [
        f"{order.title} {count.where}: {operations_text(count.operations)}"
        for order in orders
        for count in order.counts
    ]


def constants_by_type(order: OrderReport) -> list[str]:
    """Return a text for the largest constants of each type, with where they are from."""
    types = dict.fromkeys(stored.type for stored in order.constants)
    return [_constants_text([c for c in order.constants if c.type == type_]) for type_ in types]


def _constants_text(constants: Sequence[Constant]) -> str:
    first = constants[0]
    places = list(dict.fromkeys(stored.location for stored in constants))
    rest = len(places) - _MAX_PLACES
    where = ", ".join(places[:_MAX_PLACES]) + (
        f" and {counted(rest, 'other place')}" if rest > 0 else ""
    )
    if len(constants) == 1:
        return f"{first.type}, {size(first.bytes)}, at {where}"
    return f"{len(constants)} of {first.type}, {size(first.bytes)} each, at {where}"


def obstacle_text(order: OrderReport) -> str:
    """Return why the release just below the oldest one that runs a module does not, or nothing."""
    if not order.obstacles:
        return ""
    last = order.obstacles[-1]
    where = f" ({last.operation})" if last.operation not in last.reason else ""
    cure = f"; `retarget` gives it a form for {last.tensorflow}" if last.removable else ""
    return f"{order.title}: not in TensorFlow {last.tensorflow}: {last.reason}{where}{cure}"


def parameter_cells(parameter: ParameterReport) -> tuple[str, ...]:
    """Return the name, type and kind of a variable, its size, and its share of all of them."""
    kind = "trainable" if parameter.trainable else "fixed"
    return (
        parameter.name,
        aval_text(parameter.dtype, parameter.shape),
        "constant" if parameter.constant else kind,
        size(parameter.bytes),
        f"{parameter.share:.1%}",
    )


def cost_title(cost: CostReport) -> str:
    """Return the signature, order and platform of a cost."""
    order = f"gradient {cost.order}" if cost.order else "function"
    return f"Signature {cost.signature}, {order} on {cost.platform}"


def cost_facts(cost: CostReport) -> dict[str, str]:
    """Return the figures of a cost by name."""
    sizes = ", ".join(f"{name} = {value}" for name, value in cost.sizes.items())
    counts = {"FLOPs": cost.flops, "transcendentals": cost.transcendentals}
    memory = {
        "bytes accessed": cost.bytes_accessed,
        "arguments": cost.argument_bytes,
        "results": cost.result_bytes,
        "temporaries": cost.temporary_bytes,
        "peak memory": cost.peak_bytes,
    }
    return {
        "sizes": sizes or "all static",
        **{name: "unknown" if n is None else f"{n:,.0f}" for name, n in counts.items()},
        **{name: "unknown" if n is None else size(n) for name, n in memory.items()},
        "counted": "as XLA compiled it" if cost.compiled else "before XLA has optimized it",
    }
