"""Blocks with names become one LiteRT model: a signature for each, and variables that they share.

A signature reads its variables when it begins, and assigns them before it ends. The first values
are assigned by a subgraph without arguments, which the first signature to run calls once. A
`CompiledModel` has the same variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.blocks.block import Block
from bridge.litert.emitting import (
    element_operators,
    index_operators,
    loops,
    product_operators,
    shape_operators,
)
from bridge.litert.emitting.block_emitter import BlockEmitter
from bridge.litert.emitting.flatbuffer_file import FlatbufferFile, tensor_name
from bridge.litert.emitting.shared_buffers import keep_what_is_read
from xla_call_module.dtypes import Array

_FAMILIES = (element_operators, index_operators, loops, product_operators, shape_operators)
_TABLE = {name: emit for family in _FAMILIES for name, emit in family.EMITTERS.items()}


@dataclass(frozen=True, slots=True)
class SignatureBlock:
    """A block that becomes a signature of a model.

    Attributes:
        inputs: the names of the inputs.
        reads: for each input the name of the variable that it is; empty for an input.
        assigns: for each result the name of the variable whose new value it is; empty for an
            output.
        places: the operations of the user's program, by the numbers in the places of operations.
    """

    signature: str
    block: Block
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    assigns: tuple[str, ...]
    places: Sequence[str] = ()


def emit_model(
    signatures: Sequence[SignatureBlock], variables: Mapping[str, Array], *, exact: bool = True
) -> bytes:
    """Return a LiteRT model with a signature for each block, which share their constants.

    Args:
        signatures: the blocks.
        variables: the first values of variables.
        exact: whether operators that lose NaN are left out.
    """
    file = FlatbufferFile(exact=exact)
    # The subgraph of the first signature is the first one; the others follow where they are made.
    table = _TABLE if exact else {**_TABLE, **element_operators.INEXACT_EMITTERS}
    mains = [BlockEmitter(file, one.signature, table, places=one.places) for one in signatures]
    first = _first_values(file, variables) if variables else None
    for one, emitter in zip(signatures, mains, strict=True):
        _write(one, emitter, first)
    return file.to_bytes()


def _first_values(file: FlatbufferFile, variables: Mapping[str, Array]) -> int:
    """Return the number of the subgraph that assigns the first values of variables."""
    emitter = BlockEmitter(file, "first_values", _TABLE)
    for name, array in variables.items():
        value = emitter.graph.constant(array)
        emitter.graph.operator("ASSIGN_VARIABLE", [_handle(emitter, name), value], [])
    return emitter.graph.number


def _handle(emitter: BlockEmitter, name: str) -> int:
    tensor = emitter.graph.tensor((), None, name=tensor_name(name), kind="resource")
    emitter.graph.operator("VAR_HANDLE", [], [tensor], container="", sharedName=name)
    return tensor


def _write(one: SignatureBlock, emitter: BlockEmitter, first: int | None) -> None:
    graph, block = emitter.graph, one.block
    handles: dict[str, int] = {}
    names = [name for name in (*one.reads, *one.assigns) if name]
    if names and first is not None:
        graph.operator("CALL_ONCE", [], [], initSubgraphIndex=first)
        handles = {name: _handle(emitter, name) for name in dict.fromkeys(names)}
    named = []
    for value, name, variable in zip(block.inputs, one.inputs, one.reads, strict=True):
        if variable:
            emitter.bind(value, emitter.make("READ_VARIABLE", [handles[variable]], value))
        else:
            named.append((name, emitter.input(value, tensor_name(f"{one.signature}_{name}"))))
    emitter.measure(block.inputs)
    made = _separated(emitter, block, emitter.block(block), one)
    outputs = []
    for tensor, name, variable in zip(made, one.outputs, one.assigns, strict=True):
        if variable:
            graph.operator("ASSIGN_VARIABLE", [handles[variable], tensor], [])
        else:
            own = emitter.file.unique(tensor_name(f"{one.signature}_{name}"))
            graph.table.tensors[tensor].name = own
            graph.table.outputs.append(tensor)
            outputs.append((name, tensor))
    for subgraph in [emitter, *emitter.all_inner()]:
        keep_what_is_read(subgraph)
    emitter.file.sign(one.signature, graph, named, outputs)


def _separated(
    emitter: BlockEmitter, block: Block, made: list[int], one: SignatureBlock
) -> list[int]:
    """Return the results, copies of what are an input, a variable, a constant, or another result.

    To the runtime's `CompiledModel`, and to what is built on it, a tensor has one buffer: a result
    that is something else, too, is not written there. The interpreter copies them.
    """
    seen = {emitter.read(value) for value in block.inputs}
    results = []
    for tensor, variable in zip(made, one.assigns, strict=True):
        is_apart = tensor not in seen and not emitter.graph.is_constant(tensor)
        results.append(tensor if is_apart or variable else emitter.copy(tensor))
        seen.add(tensor)
    return results
