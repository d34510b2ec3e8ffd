"""The session graph: what TensorFlow Serving, the C API and the TF1 loader run.

Placeholders feed the signature wrappers; the variables are restored from the checkpoint by
`saver_def`'s restore op (tensorflow/cc/saved_model/loader.cc, `RunRestore`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from savedmodel.encode.body import RESOURCE, set_function_call
from savedmodel.encode.functions import WrittenSignature
from savedmodel.encode.objects import OBJECT_GRAPH_KEY
from savedmodel.encode.state import StateReader
from savedmodel.model import Variable
from savedmodel.protos.schema import GraphDef, Proto, SaverDef, SignatureDef
from savedmodel.protos.structures import fill_shape
from savedmodel.protos.tensor_values import fill_tensor
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.unique_names import UniqueNames

INIT_OP = "init"
PREDICT = "tensorflow/serving/predict"
_STRING = 7
_CPU = "/device:CPU:0"
_FILENAME = "saver_filename"
# The version of the graph format (TF_GRAPH_DEF_VERSION in tensorflow/core/public/version.h) of
# TensorFlow 2.14, the oldest in our table; newer releases read it as what it is.
_PRODUCER, _MIN_CONSUMER = 1482, 12


class SessionGraph:
    """The GraphDef in the making, with what points into it."""

    def __init__(
        self,
        variables: Sequence[Variable],
        keys: Sequence[str],
        objects: bytes | None,
        reader: StateReader | None,
    ) -> None:
        """Write the variables, how they are restored and how they are saved."""
        self.proto = GraphDef()
        self.proto.versions.producer, self.proto.versions.min_consumer = _PRODUCER, _MIN_CONSUMER
        self.signatures: dict[str, Proto] = {}
        self._names = UniqueNames(ignore_case=True)
        self._variables = variables
        # These have fixed names, so they come before the variables, which take what is left.
        self._node("NoOp", INIT_OP)
        self._placeholder(_FILENAME, _STRING, ())
        self._handles = [self._add_handle(variable) for variable in variables]
        self.saver = SaverDef(
            filename_tensor_name=f"{_FILENAME}:0",
            save_tensor_name=f"{self._add_save(keys, objects, reader)}:0",
            restore_op_name=self._add_restore(keys),
            version=SaverDef.V2,
        )

    def add_signature(self, written: WrittenSignature) -> None:
        """Placeholders, a call of the wrapper, and the SignatureDef that names them."""
        signature, call = written.signature, written.signature.function.call
        definition = SignatureDef(method_name=PREDICT)
        node_inputs = []
        for name in written.inputs:
            spec = call.args[signature.inputs[name]]
            node = self._placeholder(
                f"{signature.key}_{name}",
                spec.dtype.enum,
                spec.static_shape,
                default=signature.defaults.get(name),
            )
            if name in signature.defaults:
                fill_tensor(definition.defaults[name], signature.defaults[name])
            node_inputs.append(node)
            _fill_info(definition.inputs[name], f"{node}:0", spec.dtype.enum, spec.static_shape)
        partitioned = self._node("StatefulPartitionedCall", "StatefulPartitionedCall", node_inputs)
        partitioned.input.extend(self._handles[index] for index in written.variables)
        types = [call.args[signature.inputs[name]].dtype.enum for name in written.inputs]
        set_function_call(
            partitioned,
            written.wrapper.name,
            types + [RESOURCE] * len(written.variables),
            [signature.output_spec(name).dtype.enum for name in written.outputs],
        )
        for position, name in enumerate(written.outputs):
            spec = signature.output_spec(name)
            tensor = f"{partitioned.name}:{position}"
            _fill_info(definition.outputs[name], tensor, spec.dtype.enum, spec.static_shape)
        self.signatures[signature.key] = definition

    def _add_handle(self, variable: Variable) -> str:
        node = self._node("VarHandleOp", variable.name)
        node.attr["dtype"].type = variable.dtype.enum
        fill_shape(node.attr["shape"].shape, variable.shape)
        node.attr["shared_name"].s = node.name.encode()
        node.attr["container"].s = b""
        return node.name  # type: ignore[no-any-return]

    def _add_restore(self, keys: Sequence[str]) -> str:
        """Add an op that gives every variable its value in the checkpoint; return its name."""
        assigned = []
        if keys:
            inputs = [_FILENAME, *self._names_and_slices("restore", keys)]
            restore = self._node("RestoreV2", "restore/RestoreV2", inputs, device=_CPU)
            restore.attr["dtypes"].list.type.extend(v.dtype.enum for v in self._variables)
            for index, (handle, variable) in enumerate(
                zip(self._handles, self._variables, strict=True)
            ):
                value = f"{restore.name}:{index}" if index else restore.name
                assign = self._node("AssignVariableOp", "restore/Assign", [handle, value])
                assign.attr["dtype"].type = variable.dtype.enum
                assigned.append(f"^{assign.name}")
        return self._node("NoOp", "restore/all", assigned).name  # type: ignore[no-any-return]

    def _add_save(
        self, keys: Sequence[str], objects: bytes | None, reader: StateReader | None
    ) -> str:
        """Add a tensor of the checkpoint's prefix, which saves the variables; return its node."""
        controls = []
        if keys:
            extra = [] if objects is None else [OBJECT_GRAPH_KEY]
            inputs = [_FILENAME, *self._names_and_slices("save", [*keys, *extra])]
            inputs += self._add_reads(reader)
            if objects is not None:
                inputs.append(self._add_strings("save/objects", [objects], ()))
            save = self._node("SaveV2", "save/SaveV2", inputs, device=_CPU)
            save.attr["dtypes"].list.type.extend(v.dtype.enum for v in self._variables)
            save.attr["dtypes"].list.type.extend([_STRING] * len(extra))
            controls.append(f"^{save.name}")
        done = self._node("Identity", "save/prefix", [_FILENAME, *controls])
        done.attr["T"].type = _STRING
        return done.name  # type: ignore[no-any-return]

    def _add_reads(self, reader: StateReader | None) -> list[str]:
        """Add what reads the variables, those that change all at one moment."""
        values: dict[int, str] = {}
        if reader is not None:
            handles = [self._handles[index] for index in reader.variables]
            node = self._node("StatefulPartitionedCall", "save/state", handles)
            reader.set_call(node, self._variables)
            values = {index: f"{node.name}:{n}" for n, index in enumerate(reader.variables)}
        for index, variable in enumerate(self._variables):
            if index not in values:
                read = self._node("ReadVariableOp", "save/Read", [self._handles[index]])
                read.attr["dtype"].type = variable.dtype.enum
                values[index] = read.name
        return [values[index] for index in range(len(self._variables))]

    def _names_and_slices(self, scope: str, keys: Sequence[str]) -> list[str]:
        """Constants that name the tensors, and ask for the whole of each."""
        return [
            self._add_strings(f"{scope}/{name}", [v.encode() for v in values], (len(keys),))
            for name, values in (("names", keys), ("slices", [""] * len(keys)))
        ]

    def _add_strings(self, name: str, values: Sequence[bytes], shape: Sequence[int]) -> str:
        """Add a constant of strings; return the name of its node."""
        node = self._node("Const", name, device=_CPU)
        node.attr["dtype"].type = _STRING
        tensor = node.attr["value"].tensor
        tensor.dtype = _STRING
        for size in shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.string_val.extend(values)
        return node.name  # type: ignore[no-any-return]

    def _placeholder(
        self,
        name: str,
        enum: int,
        shape: Sequence[int | None] | None,
        *,
        default: Array | None = None,
    ) -> str:
        """Add a tensor that is fed, or has its default; return the name of its node."""
        if default is None:
            node = self._node("Placeholder", name)
        else:
            value = self._node("Const", f"{name}_default")
            value.attr["dtype"].type = enum
            fill_tensor(value.attr["value"].tensor, default)
            node = self._node("PlaceholderWithDefault", name, [value.name])
        node.attr["dtype"].type = enum
        fill_shape(node.attr["shape"].shape, shape)
        return node.name  # type: ignore[no-any-return]

    def _node(self, op: str, name: str, inputs: Iterable[str] = (), *, device: str = "") -> Proto:
        base = re.sub(r"[^A-Za-z0-9_./-]", "_", name).lstrip("_./-") or op
        unique = self._names.take(base)
        return self.proto.node.add(name=unique, op=op, input=inputs, device=device)  # type: ignore[no-any-return]


def write_graph(
    variables: Sequence[Variable],
    keys: Sequence[str],
    signatures: Iterable[WrittenSignature],
    objects: bytes | None = None,
    reader: StateReader | None = None,
) -> SessionGraph:
    """Return the session graph of a file, but for its function library."""
    graph = SessionGraph(variables, keys, objects, reader)
    for written in signatures:
        graph.add_signature(written)
    return graph


def _fill_info(info: Proto, name: str, enum: int, shape: Sequence[int | None] | None) -> None:
    info.name, info.dtype = name, enum
    fill_shape(info.tensor_shape, shape)
