"""Outputs of texts: beside an output of indices or scores the label of each.

They are written into the signature wrapper of a file, of any writer that has one for each
signature, as TensorFlow 2 has (tensorflow/python/saved_model/signature_serialization.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from savedmodel.encode.graph import PREDICT
from savedmodel.model import label_output
from savedmodel.protos.schema import Proto
from savedmodel.protos.structures import encode_tensor_spec, fill_shape
from savedmodel.protos.tensor_values import fill_tensor
from savedmodel.tensorflow_graph import STRING
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import DTYPES, Array, dtype_from_name
from xla_call_module.errors import DtypeError, StructureError
from xla_call_module.stablehlo.unique_names import UniqueNames

_INT32, _INT64 = (dtype_from_name(name, where=name) for name in ("int32", "int64"))
_BY_ENUM = {dtype.enum: dtype.name for dtype in DTYPES}
# What TensorFlow's ArgMax takes, and what its Cast makes an int64 of.
_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})
_INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def write_labels(meta_graph: Proto, key: str, output: str, labels: Sequence[str]) -> None:
    """Add to a signature the output of the labels of one of its outputs."""
    definition = meta_graph.signature_def[key]
    name, info = label_output(output), definition.outputs[output]
    where = f"labels of {output!r} in the signature {key!r}"
    if name in definition.outputs:
        raise StructureError(
            f"The {where} would be the output {name!r}, and there is one already. To do: leave out "
            "labels=, or give the outputs other names."
        )
    if definition.method_name != PREDICT:
        raise StructureError(
            f"The {where}: {definition.method_name} allows no further outputs. To do: pass "
            "classes= for scores of classify."
        )
    is_score = _check_labels(info, labels, where)
    wrapper = _Wrapper.of(meta_graph, definition, where)
    sizes = [None if dim.size < 0 else int(dim.size) for dim in info.tensor_shape.dim]
    shape = None if info.tensor_shape.unknown_rank else sizes[:-1] if is_score else sizes
    position = sorted([*definition.outputs, name]).index(name)
    tensor = wrapper.add_lookup(sorted(definition.outputs).index(output), info.dtype, labels)
    wrapper.insert_output(position, name, tensor, shape)
    for other in definition.outputs.values():
        other.name = wrapper.moved(other.name, position)
    added = definition.outputs[name]
    added.name, added.dtype = f"{wrapper.call.name}:{position}", STRING.enum
    fill_shape(added.tensor_shape, shape)


def _check_labels(info: Proto, labels: Sequence[str], where: str) -> bool:
    """Return whether an output has scores, and no indices, which labels are for."""
    dtype = _BY_ENUM.get(info.dtype, f"of TensorFlow's dtype number {info.dtype}")
    if dtype not in _FLOATS | _INTEGERS:
        raise DtypeError(
            f"The {where}: it is {dtype}; expected integers, which are indices, or floats, of "
            "which the greatest is labeled. To do: return one of these."
        )
    if dtype in _INTEGERS:
        return False
    dims = info.tensor_shape.dim
    size = dims[-1].size if dims and not info.tensor_shape.unknown_rank else None
    if size != len(labels):
        found = "no last dimension" if size is None else f"{'?' if size < 0 else size} scores"
        raise StructureError(
            f"The {where}: there are {len(labels)} labels, and the output has {found}. To do: pass "
            "a label for each score, of an output whose last dimension has that size."
        )
    return True


@dataclass(frozen=True, slots=True)
class _Wrapper:
    """The function of a signature, which one node of the session graph calls.

    Attributes:
        outputs: the StructuredValues of the results in the object graph, by their names.
    """

    graph: Proto
    call: Proto
    function: Proto
    outputs: Any

    @classmethod
    def of(cls, meta_graph: Proto, definition: Proto, where: str) -> _Wrapper:
        """Return that of a signature."""
        graph, names = meta_graph.graph_def, sorted(definition.outputs)
        node_name = definition.outputs[names[0]].name.partition(":")[0]
        calls = [node for node in graph.node if node.name == node_name]
        callee = calls[0].attr["f"].func.name if calls and "f" in calls[0].attr else ""
        functions = [f for f in graph.library.function if f.signature.name == callee]
        bodies = [graph.node, *(f.node_def for f in graph.library.function)]
        callers = [
            node
            for body in bodies
            for node in body
            if node.op == callee or ("f" in node.attr and node.attr["f"].func.name == callee)
        ]
        tensors = [definition.outputs[name].name for name in names]
        concrete = meta_graph.object_graph_def.concrete_functions
        if (
            not functions
            or len(callers) != 1
            or callee not in concrete
            or len(functions[0].signature.output_arg) != len(names)
            or tensors != [f"{node_name}:{position}" for position in range(len(names))]
            or sorted(concrete[callee].output_signature.dict_value.fields) != names
        ):
            raise StructureError(
                f"The {where} cannot be added: the signature has no function, as those of "
                "TensorFlow 2 and jax-tf-bridge have. To do: save the model again."
            )
        outputs = concrete[callee].output_signature.dict_value.fields
        return cls(graph, calls[0], functions[0], outputs)

    def add_lookup(self, position: int, enum: int, labels: Sequence[str]) -> str:
        """Add the nodes that look up the labels of an output; return the tensor of them."""
        index = self.function.ret[self.function.signature.output_arg[position].name]
        if _BY_ENUM[enum] in _FLOATS:
            last = self._add_const("labels_dimension", np.array(-1, np.int32))
            types = {"T": enum, "Tidx": _INT32.enum, "output_type": _INT64.enum}
            index = self._add("ArgMax", "labels_index", [index, last], types) + ":output:0"
        elif enum not in (_INT32.enum, _INT64.enum):
            types = {"SrcT": enum, "DstT": _INT64.enum}
            index = self._add("Cast", "labels_index", [index], types) + ":y:0"
            enum = _INT64.enum
        indices = _INT64.enum if _BY_ENUM[enum] in _FLOATS else enum
        table = self._add_const("labels_table", np.array(labels, object))
        axis = self._add_const("labels_axis", np.array(0, np.int32))
        types = {"Tparams": STRING.enum, "Tindices": indices, "Taxis": _INT32.enum}
        return self._add("GatherV2", "labels", [table, index, axis], types) + ":output:0"

    def insert_output(
        self, position: int, name: str, tensor: str, shape: Sequence[int | None] | None
    ) -> None:
        """Return a tensor, before the outputs whose names come after its name."""
        signature, call = self.function.signature, self.call
        argument = self._unique("labels")
        signature.output_arg.add(name=argument, type=STRING.enum)
        signature.output_arg.insert(position, signature.output_arg.pop())
        self.function.ret[argument] = tensor
        call.attr["Tout"].list.type.insert(position, STRING.enum)
        call.attr.pop("_output_shapes", None)
        for node in self.graph.node:
            node.input[:] = [self.moved(reference, position) for reference in node.input]
        dims = None if shape is None else tuple("_" if size is None else size for size in shape)
        self.outputs[name].CopyFrom(encode_tensor_spec(name, TensorSpec(dims, STRING, name)))

    def moved(self, reference: str, position: int) -> str:
        """Return the name of a tensor of the session graph once the output is inserted."""
        node, _, index = reference.partition(":")
        if node != self.call.name or int(index or 0) < position:
            return reference
        return f"{node}:{int(index or 0) + 1}"

    def _add_const(self, name: str, value: Array) -> str:
        node = self._new("Const", name)
        fill_tensor(node.attr["value"].tensor, value)
        node.attr["dtype"].type = node.attr["value"].tensor.dtype
        return f"{node.name}:output:0"

    def _add(self, op: str, name: str, inputs: Sequence[str], types: dict[str, int]) -> str:
        node = self._new(op, name)
        node.input.extend(inputs)
        for attribute, enum in types.items():
            node.attr[attribute].type = enum
        return str(node.name)

    def _new(self, op: str, name: str) -> Proto:
        return self.function.node_def.add(name=self._unique(name), op=op)  # type: ignore[no-any-return]

    def _unique(self, name: str) -> str:
        """Return a name that no node, argument or result of the function has."""
        signature = self.function.signature
        names = UniqueNames(ignore_case=True)
        for each in [*signature.input_arg, *signature.output_arg, *self.function.node_def]:
            names.take(each.name)
        return names.take(name)
