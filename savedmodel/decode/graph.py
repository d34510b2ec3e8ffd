"""Files that have a session graph only, as TensorFlow 1 and its `simple_save` write them.

There an input is any tensor that is fed, and a variable is an operation whose value lies in the
checkpoint under its own name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from savedmodel.decode.dataflow import CallNode, index_functions, steps_allowance, trace
from savedmodel.decode.functions import SignatureSource, read_signature
from savedmodel.decode.gradients import Described, Gradients
from savedmodel.decode.graph_functions import read_operations
from savedmodel.decode.objects import open_checkpoint, stored_variable
from savedmodel.files.model_folder import ModelFolder
from savedmodel.model import INTERNAL_SIGNATURE, Parameter, Signature, Variable
from savedmodel.protos.schema import Proto
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import Shape
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import FormatError
from xla_call_module.node import decode_node, description_allowance

_VARIABLE_OPS = frozenset({"VarHandleOp", "Variable", "VariableV2"})


@dataclass(frozen=True, slots=True)
class _Argument:
    name: str


@dataclass(frozen=True, slots=True)
class _Signature:
    name: str
    input_arg: tuple[_Argument, ...]
    output_arg: tuple[_Argument, ...]


@dataclass(frozen=True, slots=True)
class _Graph:
    """A session graph with the attributes of a FunctionDef; nothing is copied."""

    signature: _Signature
    node_def: Sequence[Proto]
    ret: Mapping[str, str]


def read_graph(
    folder: ModelFolder, meta_graph: Proto
) -> tuple[tuple[Signature, ...], tuple[Variable, ...]]:
    """Return the signatures of a session graph, and its variables in the order of their nodes."""
    graph = meta_graph.graph_def
    handles = [node for node in graph.node if node.op in _VARIABLE_OPS]
    functions, steps = index_functions(graph.library), steps_allowance()
    gradients = Gradients.of(graph.library, functions, _nothing_described, allowance=steps)
    descriptions = description_allowance()

    def chain(call: CallNode) -> tuple[tuple[CallModule, ...], tuple[TensorFlowGraph, ...]]:
        """Return a call and the function that it runs; a session graph has no gradients."""
        calls = (decode_node(call.node, allowance=descriptions),)
        return calls, read_operations([call.node], functions, steps)

    signatures = [
        read_signature(_signature_source(key, definition, graph, handles, gradients, chain))
        for key, definition in sorted(meta_graph.signature_def.items())
        if not key.startswith(INTERNAL_SIGNATURE)
    ]
    return tuple(signatures), tuple(_read_variables(folder, handles))


def _signature_source(
    key: str,
    definition: Proto,
    graph: Proto,
    handles: Sequence[Proto],
    gradients: Gradients,
    chain: Callable[[CallNode], tuple[tuple[CallModule, ...], tuple[TensorFlowGraph, ...]]],
) -> SignatureSource:
    inputs, outputs = sorted(definition.inputs), sorted(definition.outputs)
    fed = [definition.inputs[name].name.partition(":")[0] for name in inputs]
    given = [*fed, *(node.name for node in handles)]
    known = frozenset(given)
    gradients.allowance.spend(len(graph.node))
    function: Any = _Graph(  # what `trace` reads of a FunctionDef
        _Signature(f"the graph of {key}", _arguments(given), _arguments(outputs)),
        [node for node in graph.node if node.name not in known],
        {name: definition.outputs[name].name for name in outputs},
    )
    origins = trace(function, gradients.functions, allowance=gradients.allowance)
    return SignatureSource(
        key=key,
        inputs={name: _input_spec(name, definition.inputs[name]) for name in inputs},
        outputs=dict(zip(outputs, origins, strict=True)),
        capture=Parameter,
        gradients=gradients,
        chain=chain,
    )


def _nothing_described(name: str) -> Described:
    raise FormatError(f"The file has no object graph, which would tell what {name} captures.")


def _arguments(names: Sequence[str]) -> tuple[_Argument, ...]:
    return tuple(map(_Argument, names))


def _input_spec(name: str, info: Proto) -> TensorSpec:
    dtype = dtype_from_tensorflow(info.dtype, where=f"The input {name}")
    shape: Shape | None = None
    if not info.tensor_shape.unknown_rank:
        sizes = [dim.size for dim in info.tensor_shape.dim]
        shape = tuple(f"{name}_{i}" if size < 0 else size for i, size in enumerate(sizes))
    return TensorSpec(shape, dtype, name)


def _read_variables(folder: ModelFolder, handles: Sequence[Proto]) -> Iterator[Variable]:
    if not handles:
        return
    index = open_checkpoint(folder)
    for node in handles:
        shared = node.attr["shared_name"].s.decode("utf-8", "replace")
        key = shared if shared in index.entries else str(node.name)
        yield stored_variable(index, key, str(node.name))
