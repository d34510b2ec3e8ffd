"""The nodes that compare sizes in front of a call in a file.

Plain operations compare the sizes, at a few microseconds a call. Only where one is wrong the
module of the assertions runs, so that TensorFlow's own safety check decides, which a node and
TF_XLA_FLAGS disable, and its message says what was specified and what arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from savedmodel.encode.body import Body, Tensor
from savedmodel.tensorflow_graph import (
    STRING,
    GraphFunction,
    GraphNode,
    GraphTensor,
    TensorFlowGraph,
)
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.node import OP, encode_node
from xla_call_module.shape_checks import (
    OperandSize,
    ScalarConstant,
    ScalarOperation,
    ShapeCheck,
    Step,
    refusal_text,
)

_BOOL = dtype_from_name("bool", where="bool")
_INT32 = dtype_from_name("int32", where="int32")
_MAX_RANK = 64
# Operations without an attribute for the dtype of what they take.
_OF_BOOLS = frozenset({"LogicalAnd", "LogicalNot", "LogicalOr"})
_EQUALITIES = frozenset({"Equal", "NotEqual"})


def write_shape_check(body: Body, check: ShapeCheck, argument: Callable[[int], Tensor]) -> str:
    """Write the check into a function; return the name of the node to be run before the call."""
    operands = [argument(index) for index in check.kept]
    writer = _Writer(body, check.call.operands, operands)
    holds = [writer.add(step) for step in check.steps][-1]
    node = body.add_node("If", "shapes_fit")
    node.input.append(holds.in_function)
    node.input.extend(tensor.in_function for tensor in operands)
    node.attr["Tcond"].type = _BOOL.enum
    node.attr["Tin"].list.type.extend(spec.dtype.enum for spec in check.call.operands)
    node.attr["Tout"].list.SetInParent()
    node.attr["output_shapes"].list.SetInParent()
    node.attr["then_branch"].func.name = _write_branch(body, check, "shapes_fit")
    node.attr["else_branch"].func.name = _write_branch(body, check, "shape_assertions")
    # As TensorFlow marks the conditionals that it writes: the branches become part of the graph,
    # by operations without kernels for 8-bit floats, tensorflow/core/kernels/control_flow_ops.cc.
    node.attr["_lower_using_switch_merge"].b = not any(
        spec.dtype.name.startswith("float8") for spec in check.call.operands
    )
    node.attr["_read_only_resource_inputs"].list.SetInParent()
    return str(node.name)


def _write_branch(body: Body, check: ShapeCheck, name: str) -> str:
    """Write a function of the operands that returns nothing: one asserts, the other does not."""
    branch = Body(body.library, name)
    inputs = [branch.add_input(f"arg_{i}", spec) for i, spec in enumerate(check.call.operands)]
    if name == "shape_assertions":
        node = encode_node(
            check.call,
            name=branch.reserve(OP),
            inputs=[tensor.in_function for tensor in inputs],
            new_node=branch.new_node,
        )
        branch.library.write_call(node, check.call)
        branch.add_effect(node.name)
    branch.finish_shapes()
    return branch.name


def refusal_graph(call: CallModule) -> TensorFlowGraph:
    """Return the graph that replaces a module where one of its assertions fails."""
    arguments = tuple(
        GraphTensor(f"arg_{n}", spec.dtype, spec.static_shape)
        for n, spec in enumerate(call.operands)
    )
    shapes = [
        GraphNode("Shape", f"shape_{n}", (one.name,), {"T": one.dtype, "out_type": _INT32})
        for n, one in enumerate(arguments)
    ]
    said = np.array(refusal_text(call), object)
    nodes = (
        GraphNode("Const", "fits", (), {"dtype": _BOOL, "value": np.array(False)}),
        GraphNode("Const", "said", (), {"dtype": STRING, "value": said}),
        *shapes,
        GraphNode(
            "Assert",
            "assert",
            ("fits:output:0", "said:output:0", *(f"{node.name}:output:0" for node in shapes)),
            {"T": [STRING, *[_INT32] * len(shapes)], "summarize": _MAX_RANK},
        ),
    )
    return TensorFlowGraph(GraphFunction(f"{call.name}_shapes", arguments, nodes, ()))


class _Writer:
    """Scalars in a function, each made of those before it."""

    def __init__(self, body: Body, specs: Sequence[TensorSpec], operands: Sequence[Tensor]) -> None:
        self._body = body
        self._specs = specs
        self._operands = operands
        self._shapes: dict[int, Tensor] = {}
        self._vectors: dict[int, Tensor] = {}
        self._steps: list[Tensor] = []

    def add(self, step: Step) -> Tensor:
        match step:
            case OperandSize(operand, axis):
                made = self._size(operand, axis)
            case ScalarConstant(value, dtype):
                made = self._body.add_constant("number", value, dtype)
            case ScalarOperation():
                made = self._operation(step)
        self._steps.append(made)
        return made

    def _size(self, operand: int, axis: int) -> Tensor:
        inputs = [self._shape(operand), *map(self._vector, (axis, axis + 1, 1))]
        types = {"T": _INT32.enum, "Index": _INT32.enum}
        node = self._body.add_operation("StridedSlice", "size", inputs, types)
        for mask in ("begin", "ellipsis", "end", "new_axis"):
            node.attr[f"{mask}_mask"].i = 0
        node.attr["shrink_axis_mask"].i = 1
        return Tensor(node.name, "output")

    def _shape(self, operand: int) -> Tensor:
        if operand not in self._shapes:
            tensor, spec = self._operands[operand], self._specs[operand]
            self._shapes[operand] = self._body.add_shape("shape", tensor, spec)
        return self._shapes[operand]

    def _vector(self, value: int) -> Tensor:
        if value not in self._vectors:
            self._vectors[value] = self._body.add_constant("number", [value], _INT32)
        return self._vectors[value]

    def _operation(self, step: ScalarOperation) -> Tensor:
        inputs = [self._steps[number] for number in step.inputs]
        if step.op == "Cast":
            return self._body.cast("Cast", inputs[0], step.taken, step.dtype)
        types = {} if step.op in _OF_BOOLS else {"T": step.taken.enum}
        node = self._body.add_operation(step.op, step.op, inputs, types)
        if step.op in _EQUALITIES:
            node.attr["incompatible_shape_error"].b = True
        return Tensor(node.name, _OUTPUTS.get(step.op, "z"))


# What TensorFlow calls the result in the definition of an operation.
_OUTPUTS = {"SelectV2": "output", "Neg": "y", "Sign": "y", "LogicalNot": "y"}
