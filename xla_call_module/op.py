"""`CallModule` -> the XlaCallModule op of the imported TensorFlow, eager and in graphs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from xla_call_module._tf import eager_call_module
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.node import OP, encode_node
from xla_call_module.platforms import platform_to_tensorflow

__all__ = ["Op"]


class Op:
    """One call, ready to be run on tensors again and again.

    The attributes are prepared once, as plain lists and numbers: a TensorShape and a DType are
    taken apart at every eager call, at a tenth of its cost.
    """

    __slots__ = ("_attributes", "_endpoint", "call")

    def __init__(self, call: CallModule) -> None:
        """Prepare `call`, which must already be retargeted to the imported TensorFlow."""
        self.call = call
        self._endpoint = eager_call_module()
        self._attributes: dict[str, Any] = {
            "version": call.version,
            "module": call.module,
            "Sout": [_plain_shape(spec) for spec in call.results],
            "Tout": [spec.dtype.enum for spec in call.results],
            "dim_args_spec": [],
            "platforms": [platform_to_tensorflow(name) for name in call.platforms],
            "function_list": list(call.function_list),
            "has_token_input_output": False,
            "disabled_checks": [check.name for check in call.disabled_checks],
        }
        if call.uses_shardy:
            self._attributes["use_shardy_partitioner"] = True

    def run(self, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The results in eager mode.

        Args:
            operands: eager tensors, one for each of `call.operands`.
        """
        results = self._endpoint(list(operands), **self._attributes)
        return list(results) if isinstance(results, (list, tuple)) else []

    def add_to_graph(
        self, operands: Sequence[tf.Tensor], result_shapes: Sequence[Sequence[int | None] | None]
    ) -> list[tf.Tensor]:
        """The results as tensors of the current graph.

        Args:
            operands: symbolic tensors, one for each of `call.operands`.
            result_shapes: what is known of the results' shapes here, where the operands' are known.
        """
        node = encode_node(
            self.call, name=OP, inputs=[""] * len(operands), new_node=tf.compat.v1.NodeDef
        )
        operation = tf.compat.v1.get_default_graph().create_op(
            OP,
            list(operands),
            [tf.as_dtype(enum) for enum in self._attributes["Tout"]],
            attrs=dict(node.attr),
            name=_scope_name(self.call.name),
        )
        for tensor, shape in zip(operation.outputs, result_shapes, strict=True):
            tensor.set_shape(shape)
        return list(operation.outputs)


def _plain_shape(spec: TensorSpec) -> list[int] | None:
    if spec.static_shape is None:
        return None
    return [-1 if size is None else size for size in spec.static_shape]


def _scope_name(name: str) -> str:
    """A node name as TensorFlow allows it: letters, digits and `_.-`, a letter or digit first."""
    return re.sub(r"[^A-Za-z0-9_.-]", "", name).lstrip("_.-") or OP
