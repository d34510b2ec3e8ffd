"""`CallModule` -> the call of a function of plain operations, in the imported TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from xla_call_module._tf import function_body, graph_operation_maker, stop_recording
from xla_call_module.call import CallModule
from xla_call_module.checks import SHAPE_ASSERTIONS
from xla_call_module.node import (
    FUNCTION_CALL,
    NO_OPTIMIZER,
    NOT_INLINED,
    NOT_OPTIMIZED,
    OP,
    encode_node,
    to_function_call,
)
from xla_call_module.runtime.op import Op, scope_name
from xla_call_module.runtime.shape_guard import read_check
from xla_call_module.shape_checks import ShapeCheck, refusal_text


class FunctionOp(Op):
    """One call whose node runs a function of TensorFlow's own operations, on whatever device."""

    __slots__ = ("_assert_shapes", "_definitions", "_dtypes", "_traced")

    def __init__(
        self,
        call: CallModule,
        definitions: Sequence[bytes],
        *,
        assert_shapes: bool = True,
        read_check: Callable[[CallModule], ShapeCheck | None] = read_check,
    ) -> None:
        """Prepare a call."""
        super().__init__(call, read_check=read_check)
        self._definitions = tuple(definitions)
        self._assert_shapes = assert_shapes and SHAPE_ASSERTIONS not in self.disabled_checks
        self._dtypes = [tf.as_dtype(spec.dtype.enum) for spec in call.results]
        self._traced: Any = None

    def run(self, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The results in eager mode."""
        function = self._function_of_operations()
        with stop_recording():  # TensorFlow's gradients of the operations are not those of JAX
            results: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(
                args=list(operands), Tout=self._dtypes, f=function, config_proto=NO_OPTIMIZER
            )
        return results

    def add_to_graph(
        self,
        operands: Sequence[tf.Tensor],
        result_shapes: Sequence[Sequence[int | None] | None],
        *,
        assert_shapes: bool = True,
    ) -> list[tf.Tensor]:
        """The results as tensors of the current graph."""
        graph, function = tf.compat.v1.get_default_graph(), self._function_of_operations()
        function.add_to_graph(graph)
        node = encode_node(
            self.call, name=OP, inputs=[""] * len(operands), new_node=tf.compat.v1.NodeDef
        )
        to_function_call(node, tf.compat.as_str(function.name))
        with tf.control_dependencies(self._static_checks(operands) if assert_shapes else []):
            operation = graph_operation_maker()(
                graph,
                FUNCTION_CALL,
                list(operands),
                self._dtypes,
                attrs=dict(node.attr),
                name=scope_name(self.call.name),
            )
        for tensor, shape in zip(operation.outputs, result_shapes, strict=True):
            tensor.set_shape(shape)
        return list(operation.outputs)

    def _static_checks(self, operands: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Refuse shapes that are wrong already; return what compares sizes that are fixed."""
        if SHAPE_ASSERTIONS in self.disabled_checks:
            return []
        self._guard.refuse_known(operands)
        return self.size_assertions(operands)

    def _function_of_operations(self) -> Any:
        """Return the concrete function, which is traced once, outside of whatever runs it.

        So are the bodies of its loops and branches: TensorFlow vectorizes the functions that it has
        traced, and no others.
        """
        if self._traced is None:
            with tf.init_scope(), tf.device(None):
                main, *bodies = self._read_definitions()
                traced: dict[str, Any] = {}
                for definition in bodies:  # each behind those that it names
                    traced[definition.signature.name] = _trace(definition, traced)
                self._traced = _trace(main, traced, self._signature(), self._compared)
        return self._traced

    def _signature(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec(spec.static_shape, tf.as_dtype(spec.dtype.enum), f"arg_{index}")
            for index, spec in enumerate(self.call.operands)
        ]

    def _compared(self, operands: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
        """Return tensors that are there once their sizes were compared."""
        if not self._assert_shapes:
            return operands
        with tf.control_dependencies(self._guard.before(operands, self._add_assertions)):
            return [tf.identity(operand) for operand in operands]

    def _add_assertions(self, call: CallModule, operands: Sequence[tf.Tensor]) -> tf.Operation:
        """Fail in the current graph, since sizes were compared and do not fit."""
        data = [refusal_text(call), *map(tf.shape, operands)]
        return tf.raw_ops.Assert(condition=False, data=data, summarize=64)

    def _read_definitions(self) -> list[Any]:
        """Return the FunctionDefs."""
        library = tf.compat.v1.GraphDef().library
        for definition in self._definitions:
            library.function.add().ParseFromString(definition)
        return list(library.function)


def _nodes_behind(nodes: Any, arguments: Sequence[str]) -> tuple[Any, set[str]]:
    """Return the nodes behind the arguments of a function, and the tensors that they read.

    XLA compiles every node of the body of a loop, a placeholder that nothing reads as well, of
    which it knows none.
    """
    placeholders = {name.partition(":")[0] for name in arguments}
    kept = tf.compat.v1.GraphDef(versions=nodes.versions)
    kept.node.extend(node for node in nodes.node if node.name not in placeholders)
    read = {name if ":" in name else f"{name}:0" for node in kept.node for name in node.input}
    return kept, read


def _trace(
    definition: Any,
    traced: Mapping[str, Any],
    signature: Sequence[tf.TensorSpec] | None = None,
    prepare: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]] | None = None,
) -> Any:
    """Return the concrete function of a FunctionDef."""
    used = {}
    for node in definition.node_def:
        for attribute in node.attr.values():
            if attribute.func.name in traced:
                function = used[attribute.func.name] = traced[attribute.func.name]
                attribute.func.name = tf.compat.as_str(function.name)
    body = function_body(definition)
    arguments, results = ([one.name for one in ends] for ends in (body.inputs, body.outputs))
    nodes, read = _nodes_behind(body.as_graph_def(), arguments)

    def run(*tensors: tf.Tensor) -> list[tf.Tensor]:
        for function in used.values():
            function.add_to_graph(tf.compat.v1.get_default_graph())
        given = tensors if prepare is None else prepare(tensors)
        passed = dict(zip(arguments, given, strict=True))
        computed = [name for name in results if name not in passed]
        made = tf.graph_util.import_graph_def(
            nodes,
            input_map={name: passed[name] for name in arguments if name in read},
            return_elements=computed,
            name="",
        )
        found = passed | dict(zip(computed, made, strict=True))
        return [found[name] for name in results]

    attributes = {NOT_OPTIMIZED: True} | ({} if prepare is None else {NOT_INLINED: True})
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in body.inputs]
    return tf.function(
        run,
        input_signature=specs if signature is None else signature,
        autograph=False,
        experimental_attributes=attributes,
    ).get_concrete_function()
