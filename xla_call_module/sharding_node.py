"""The nodes that tell TensorFlow's tools how the tensors around a call lie on its devices.

The module says it, too. TensorFlow's converter for TPUs looks at the graph: an XlaSharding node on
each argument and result, and on what is read of a variable, with the sharding in three attributes.
On CPU and GPU the node passes its tensor on. A tensor that is said to be replicated has one, too;
without one it is the converter's to place.

Source: tensorflow/compiler/tf2xla/ops/xla_ops.cc; tensorflow/compiler/xla/experimental/
xla_sharding/xla_sharding.py, `apply_to_tensor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.shardings.array_sharding import TUPLE, UNKNOWN, Sharding
from xla_call_module.shardings.sharding_protos import sharding_to_proto

__all__ = ["SHARDING_OP", "encode_sharding_node", "shown_sharding"]

SHARDING_OP = "XlaSharding"

Node = TypeVar("Node")


def shown_sharding(call: CallModule, spec: TensorSpec) -> Sharding | None:
    """What a node on an argument or a result says; None where there is no node."""
    found = spec.sharding
    if found is None or call.nr_devices < 2 or found.kind in (TUPLE, UNKNOWN):
        return None
    return found.canonical()


def encode_sharding_node(
    call: CallModule,
    spec: TensorSpec,
    *,
    name: str,
    input: str,  # the field of a NodeDef
    new_node: Callable[[], Node],
) -> Node | None:
    """The XlaSharding node on an argument or a result; None where it is left open.

    The short form of the sharding is there for Shardy, which has no other.

    Args:
        call: whose argument or result it is.
        spec: which one.
        name: of the node.
        input: the tensor that it passes on.
        new_node: makes the empty message.

    Example:
        >>> import jax, tensorflow as tf
        >>> from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
        >>> from xla_call_module import from_exported
        >>> split = NamedSharding(AbstractMesh((2,), ("data",)), PartitionSpec("data"))
        >>> spec = jax.ShapeDtypeStruct((4,), "float32", sharding=split)
        >>> call = from_exported(jax.export.export(jax.jit(lambda x: x * 2))(spec))
        >>> node = encode_sharding_node(
        ...     call, call.args[0], name="n", input="x", new_node=tf.compat.v1.NodeDef)
        >>> node.attr["sharding"].s.hex(" ")
        '08 03 1a 01 02 22 02 00 01'
    """
    found = shown_sharding(call, spec)
    if found is None:
        return None
    node: Any = new_node()
    node.name, node.op = name, SHARDING_OP
    node.input.append(input)
    node.attr["T"].type = spec.dtype.enum
    listed = sharding_to_proto(found, version=1)
    node.attr["sharding"].s = listed
    node.attr["_XlaSharding"].s = listed
    if call.uses_shardy:
        node.attr["_XlaShardingV2"].s = sharding_to_proto(found, version=2)
    return node  # type: ignore[no-any-return]  # it was made as Any to reach its fields
