"""The report of a SavedModel as values, which `inspect` returns."""

from __future__ import annotations

import dataclasses
import functools
import json
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bridge.inspecting.graph_report import (
    GraphReport,
    GraphVariable,
    report_of_graph,
    variables_of_graph,
)
from bridge.inspecting.operation_counts import most_frequent
from bridge.inspecting.order_report import OrderReport, report_order
from bridge.inspecting.tensor_report import TensorReport
from bridge.loading.signature_calls import assigned_of, calls_of, inputs_of, names_of, outputs_of
from savedmodel.files.assets import WARMUP_FILE
from savedmodel.files.model_folder import ModelFolder
from savedmodel.files.records import record_sizes
from savedmodel.manifest import Manifest, read_manifest
from savedmodel.model import (
    DEFAULT_SIGNATURE,
    SERVE_TAG,
    Parameter,
    SavedModel,
    Signature,
    Variable,
)
from savedmodel.read import read_proto, served_graphs, tensorflow_of
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import unite
from xla_call_module.errors import FormatError
from xla_call_module.flags import VARIABLE, read_flags
from xla_call_module.versions import OLDEST, RELEASES

__all__ = [
    "CheckReport",
    "FileReport",
    "ParameterReport",
    "SignatureReport",
    "StoredFile",
    "WarmupReport",
    "report_function",
    "report_graph_variables",
    "report_of",
    "report_of_plain",
]

_MAX_OPERATIONS = 8


@dataclass(frozen=True, slots=True)
class CheckReport:
    """A disabled safety check, and what disables it: `file`, `TF_XLA_FLAGS`, or both."""

    name: str
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SignatureReport:
    """A signature and the modules behind it.

    Attributes:
        key: the key, such as `serving_default`.
        function: the name of the exported function.
        inputs: the inputs, in the order of the function's arguments.
        outputs: the outputs, in the order of its results.
        platforms: the platforms it was lowered for, in the order of the platform index.
        calling_convention: the version of the XlaCallModule node.
        stablehlo: the StableHLO version of the portable artifact.
        tensorflow: the oldest release known to run it, gradients included.
        disabled_checks: the safety checks that the file disables.
        checks: all disabled checks, with what disables each in this process.
        custom_calls: the targets of custom calls, sorted.
        gradient_order: the highest order of its gradients in the file.
        module_bytes: the number of bytes of the function's module.
        devices: the number of devices that it was partitioned for.
        parameters: the names of the variables that are bound to it.
        operations: the number of each operation in the function and its gradients.
        orders: the function's module, then those of its gradients.
        batch_buckets: the sizes that batches are padded to; empty where they are not.
        assigned: the names of the variables that a call assigns; empty where it only reads.
        graph_operations: the number of each of TensorFlow's own operations that run in the place of
            the modules, gradients included; empty where XLA compiles the modules.
    """

    key: str
    function: str
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    platforms: tuple[str, ...]
    calling_convention: int
    stablehlo: str
    tensorflow: str
    disabled_checks: tuple[str, ...]
    checks: tuple[CheckReport, ...]
    custom_calls: tuple[str, ...]
    gradient_order: int
    module_bytes: int
    devices: int
    parameters: tuple[str, ...]
    operations: Mapping[str, int]
    orders: tuple[OrderReport, ...]
    batch_buckets: tuple[int, ...]
    assigned: tuple[str, ...]
    graph_operations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParameterReport:
    """A variable.

    Attributes:
        name: its pytree path with slashes.
        dtype: the element type.
        shape: the shape.
        bytes: the number of bytes of its value.
        trainable: whether it is among TensorFlow's trainable variables.
        constant: whether it is a constant of the computation, not a parameter of the model.
        share: its share of the bytes of all variables, from 0 to 1.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    trainable: bool
    constant: bool
    share: float


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of the SavedModel: its path in the folder, and its size."""

    path: str
    bytes: int


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """The requests that TensorFlow Serving runs before the first real one.

    Attributes:
        path: the path in the folder.
        records: the number of requests.
        bytes: the number of bytes of all requests.
    """

    path: str
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FileReport:
    """The report of a SavedModel.

    Attributes:
        path: the folder.
        bytes: the number of bytes of all its files.
        tensorflow: the oldest release known to read the whole file; empty where no module tells.
        signatures: the signatures that call modules, sorted by key, the default one first.
        parameters: the variables, in the order of their pytree; then the constants that are
            variables.
        metadata: the record of the writer; empty after TensorFlow has saved the file again.
        writer: the program that wrote the file, as far as the file says.
        saved_again: whether TensorFlow has saved again a file of this package.
        files: the files in the folder, sorted by path.
        assets: those of them that are the model's assets.
        warmup: the warmup requests; None where there are none.
        manifest: the hashes and origin of the files; None where there is no manifest. The command
            `jax-tf-bridge manifest` compares them.
        flags: the parts of TF_XLA_FLAGS that have no effect, or end TensorFlow's process.
        others: the signatures that compute something besides calls of modules, and what that is.
        graph: the rest of its graph, of a file that has such signatures, or no others, and of an
            ONNX model; None for any other file.
    """

    path: str
    bytes: int
    tensorflow: str = ""
    signatures: tuple[SignatureReport, ...] = ()
    parameters: tuple[ParameterReport, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    writer: str = ""
    saved_again: bool = False
    files: tuple[StoredFile, ...] = ()
    assets: tuple[StoredFile, ...] = ()
    warmup: WarmupReport | None = None
    manifest: Manifest | None = None
    flags: tuple[str, ...] = ()
    others: Mapping[str, str] = field(default_factory=dict)
    graph: GraphReport | None = None

    @property
    def is_default_other(self) -> bool:
        """Return whether what clients call by default computes more than calls of modules."""
        return DEFAULT_SIGNATURE in self.others

    @property
    def readable_until(self) -> str:
        """The day until which StableHLO promises to read all modules; empty for no promise.

        `bridge.retarget(..., lift=True)` puts it off.
        """
        orders = (order for signature in self.signatures for order in signature.orders)
        return min((order.readable_until for order in orders), default="")

    @property
    def parameters_by_size(self) -> tuple[ParameterReport, ...]:
        """The variables, the largest first."""
        return tuple(sorted(self.parameters, key=lambda parameter: -parameter.bytes))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object with the fields of these classes."""
        made = asdict(self)
        orders = [order for signature in made["signatures"] for order in signature["orders"]]
        calls = made["graph"]["calls"] if made["graph"] else ()
        for order in [*orders, *(call["module"] for call in calls)]:
            order["description"] = json.loads(order["description"] or "null")
        return made


def report_of_plain(folder: ModelFolder) -> FileReport:
    """Return the report of a SavedModel of which no signature is calls of modules alone."""
    graphs = served_graphs(read_proto(folder))
    if not graphs:
        raise FormatError(f"{folder.path} has no graph with the tag {SERVE_TAG!r}.")
    return report_of(SavedModel((), tensorflow=tensorflow_of(graphs[0])), folder)


def report_of(model: SavedModel, folder: ModelFolder) -> FileReport:
    """Return the report of a SavedModel that has been read."""
    default = model.default.key if model.signatures else ""
    signatures = sorted(model.signatures, key=lambda s: (s.key != default, s.key))
    cached_order = functools.cache(report_order)  # other programs' files call one module often
    graph = None
    if model.others or not signatures:
        graph = report_of_graph(folder, cached_order, known={s.key for s in signatures})
    reports = tuple(
        _report_signature(signature, model.variables, cached_order) for signature in signatures
    )
    releases = [report.tensorflow for report in reports]
    releases += [call.module.tensorflow for call in (graph.calls if graph else ())]
    files = _files(folder)
    writer, saved_again = _writer(model)
    flags = read_flags()
    return FileReport(
        path=str(folder.path),
        bytes=sum(file.bytes for file in files),
        tensorflow=_newest(releases) if releases else "",
        signatures=reports,
        parameters=(
            _report_parameters(model.variables)
            if signatures
            else report_graph_variables(variables_of_graph(folder))
        ),
        metadata={key: value for key, value in model.metadata.items() if key != "signatures"},
        writer=writer,
        saved_again=saved_again,
        files=files,
        assets=tuple(file for file in files if file.path.startswith("assets/")),
        warmup=_report_warmup(folder),
        manifest=read_manifest(folder),
        flags=(*flags.ignored, *flags.fatal),
        others=dict(model.others) or _others_of(graph),
        graph=graph,
    )


def _others_of(graph: GraphReport | None) -> dict[str, str]:
    """Return the signatures of a graph, with the operations that they compute most."""
    if graph is None:
        return {}
    return {s.key: ", ".join([*s.operations][:_MAX_OPERATIONS]) for s in graph.signatures}


def _report_signature(
    signature: Signature,
    variables: Sequence[Variable],
    report_of_order: Callable[[CallModule], OrderReport],
) -> SignatureReport:
    chains = calls_of(signature)
    buckets = signature.function.batch_buckets
    report = report_function(
        signature.key,
        chains,
        inputs=inputs_of(signature, chains[0][0]),
        outputs=outputs_of(signature, chains, variables),
        report_of_order=report_of_order,
        parameters=_bound(signature, variables),
        batch_buckets=() if buckets is None else buckets.sizes,
        assigned=assigned_of(signature, variables),
    )
    if not (counts := _count_operations(signature)):
        return report
    return dataclasses.replace(
        report, graph_operations=most_frequent(counts), tensorflow=OLDEST.name
    )


def _count_operations(signature: Signature) -> Counter[str]:
    """Count TensorFlow's own operations in the place of the modules of a signature."""
    graphs = (graph for function in signature.functions for graph in function.operations)
    functions = (function for graph in graphs for function in (graph.main, *graph.functions))
    return Counter(node.op for function in functions for node in function.nodes)


def report_function(
    key: str,
    chains: Sequence[Sequence[CallModule]],
    *,
    inputs: Iterable[tuple[str, TensorSpec, bool]],
    outputs: Iterable[tuple[str, TensorSpec]],
    report_of_order: Callable[[CallModule], OrderReport],
    parameters: Sequence[str] = (),
    batch_buckets: Sequence[int] = (),
    assigned: Sequence[str] = (),
) -> SignatureReport:
    """Return the report of a function with its gradients, in a SavedModel or not."""
    call = chains[0][0]
    orders = tuple(
        dataclasses.replace(report_of_order(module), call=number, order=order)
        for number, chain in enumerate(chains)
        for order, module in enumerate(chain)
    )
    main = orders[0]
    return SignatureReport(
        key=key,
        function=call.name,
        inputs=tuple(TensorReport.of(name, spec, used=used) for name, spec, used in inputs),
        outputs=tuple(TensorReport.of(name, spec) for name, spec in outputs),
        platforms=call.platforms,
        calling_convention=call.version,
        stablehlo=main.stablehlo,
        tensorflow=_newest([order.tensorflow for order in orders]),
        disabled_checks=tuple(map(str, call.disabled_checks)),
        checks=_report_checks(call),
        custom_calls=main.custom_calls,
        gradient_order=min(map(len, chains)) - 1,
        module_bytes=main.module_bytes,
        devices=call.nr_devices,
        parameters=tuple(parameters),
        operations=most_frequent(sum((Counter(o.operations) for o in orders), Counter[str]())),
        orders=orders,
        batch_buckets=tuple(batch_buckets),
        assigned=tuple(assigned),
    )


def _bound(signature: Signature, variables: Sequence[Variable]) -> tuple[str, ...]:
    """Return the names of the variables that are bound to a signature, in their order."""
    function, names = signature.function, names_of(variables)
    values = (value for value in signature.values() if isinstance(value, Parameter))
    indices = {value.variable for value in values} | {*function.constants.values()}
    return tuple(names[index] for index in sorted(indices))


def _report_checks(call: CallModule) -> tuple[CheckReport, ...]:
    """Return the disabled checks, each with what disables it."""
    sources = {"file": call.disabled_checks, VARIABLE: read_flags().disabled_checks}
    return tuple(
        CheckReport(str(check), tuple(by for by, checks in sources.items() if check in checks))
        for check in unite(*sources.values())
    )


def _report_parameters(variables: Sequence[Variable]) -> tuple[ParameterReport, ...]:
    total = sum(variable.size for variable in variables)
    return tuple(
        ParameterReport(
            name,
            variable.dtype.name,
            variable.shape,
            variable.size,
            variable.trainable,
            variable.constant,
            variable.size / total if total else 0.0,
        )
        for name, variable in zip(names_of(variables), variables, strict=True)
    )


def report_graph_variables(variables: Sequence[GraphVariable]) -> tuple[ParameterReport, ...]:
    """Return the reports of variables that a graph describes."""
    total = sum(variable.bytes for variable in variables) or 1
    return tuple(
        ParameterReport(v.name, v.dtype, v.shape, v.bytes, v.trainable, False, v.bytes / total)
        for v in variables
    )


def _newest(names: Sequence[str]) -> str:
    """Return the newest of several releases; `> N` is newer than all known ones."""
    order = [release.name for release in RELEASES]
    return max(names, key=lambda name: order.index(name) if name in order else len(order))


def _writer(model: SavedModel) -> tuple[str, bool]:
    """Return the program that wrote the file, and whether TensorFlow saved a file of ours again."""
    if model.tensorflow:
        return f"TensorFlow {model.tensorflow}", any(call.exported for call in model.calls)
    return str(model.metadata.get("writer", "another program")), False


def _files(folder: ModelFolder) -> tuple[StoredFile, ...]:
    """Return the regular files below a folder; links are not followed."""
    files = sorted(folder.walk())
    return tuple(StoredFile(n, s.st_size) for n, s in files if stat.S_ISREG(s.st_mode))


def _report_warmup(folder: ModelFolder) -> WarmupReport | None:
    if folder.find(WARMUP_FILE) is None:
        return None
    records, total = 0, 0
    for size in record_sizes(WARMUP_FILE, within=folder):
        records, total = records + 1, total + size
    return WarmupReport(WARMUP_FILE, records, total)
