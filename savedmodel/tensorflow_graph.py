"""The value of a function of plain TensorFlow operations, before it is protos and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xla_call_module.dtypes import DType

# The dtype of texts, which messages have, and JAX has not.
STRING = DType("string", 7, "!tf_type.string")
# That of a list of tensors, which loops fill.
VARIANT = DType("variant", 21, "!tf_type.variant")


@dataclass(frozen=True, slots=True)
class FunctionName:
    """The value of an attribute that names a function of the same graph."""

    name: str


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One node of a function.

    Attributes:
        op: the name of the operation, such as `MatMul`.
        name: the name of the node, unique in its function.
        inputs: the names of the tensors that it takes, as a FunctionDef has them: the name of an
            argument, or `node:output:index` with the name of an output of the operation, such as
            `mul:product:0`; `^node` for a node that runs before it.
        attributes: the attributes. A dtype is a `DType`, a shape a tuple of sizes with None for a
            dynamic one (None in place of the tuple for any shape), a tensor a NumPy array, a
            function a `FunctionName`; lists are lists of these; other values are numbers, flags and
            texts as they are.
        place: the line in the source that the node comes from; empty where nothing says it.
    """

    op: str
    name: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    place: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An argument or a result of a function.

    Attributes:
        shape: the shape, with None for a dynamic size; None where even the rank is dynamic.
        source: of a result the tensor that it is, as in `GraphNode.inputs`; empty for an argument.
    """

    name: str
    dtype: DType
    shape: tuple[int | None, ...] | None
    source: str = ""


@dataclass(frozen=True, slots=True)
class GraphFunction:
    """One function: arguments, nodes in an order in which they can run, results."""

    name: str
    arguments: tuple[GraphTensor, ...]
    nodes: tuple[GraphNode, ...]
    results: tuple[GraphTensor, ...]


@dataclass(frozen=True, slots=True)
class TensorFlowGraph:
    """The computation of one call of StableHLO in TensorFlow's own operations.

    Attributes:
        main: the function that takes the arguments that the module of the call takes, in their
            order, and has the results of the call.
        functions: the functions that its nodes and theirs name: bodies of loops and branches.
        for_converters: whether converters are to read it, and TensorFlow is not to run it.
        exact: whether it has NaN, signs of zeros and integers divided by 0 as JAX.
    """

    main: GraphFunction
    functions: tuple[GraphFunction, ...] = ()
    for_converters: bool = False
    exact: bool = True
