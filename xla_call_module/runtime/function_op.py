"""`CallModule` -> the call of a function of plain operations, in the imported TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from xla_call_module._tf import graph_operation_maker
from xla_call_module.call import CallModule
from xla_call_module.checks import SHAPE_ASSERTIONS
from xla_call_module.node import FUNCTION_CALL, OP, encode_node, to_function_call
from xla_call_module.runtime.op import Op, add_functions, scope_name
from xla_call_module.runtime.shape_guard import read_check
from xla_call_module.shape_checks import ShapeCheck

__all__ = ["FunctionOp"]


class FunctionOp(Op):
    """One call whose node runs a function of TensorFlow's own operations, on whatever device."""

    __slots__ = ("_definitions",)

    def __init__(
        self,
        call: CallModule,
        definitions: Sequence[bytes],
        *,
        read_check: Callable[[CallModule], ShapeCheck | None] = read_check,
    ) -> None:
        """Prepare a call.

        Args:
            call: the call, which the node describes.
            definitions: FunctionDefs with names that no others have; the first one computes what
                the call does, and asserts what it asserts of sizes.
            read_check: as for `Op`.
        """
        super().__init__(call, read_check=read_check)
        self._definitions = tuple(definitions)

    def run(self, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The results in eager mode, of a graph."""
        return self._run_as_function(operands)

    def add_to_graph(
        self,
        operands: Sequence[tf.Tensor],
        result_shapes: Sequence[Sequence[int | None] | None],
        *,
        assert_shapes: bool = True,
    ) -> list[tf.Tensor]:
        """The results as tensors of the current graph."""
        name = add_functions(self._definitions)
        node = encode_node(
            self.call, name=OP, inputs=[""] * len(operands), new_node=tf.compat.v1.NodeDef
        )
        to_function_call(node, name)
        with tf.control_dependencies(self._static_checks(operands) if assert_shapes else []):
            operation = graph_operation_maker()(
                tf.compat.v1.get_default_graph(),
                FUNCTION_CALL,
                list(operands),
                [tf.as_dtype(spec.dtype.enum) for spec in self.call.results],
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
