"""`NodeDef` attributes <-> `CallModule`: every attribute of the op, and ours.

The op is registered in tensorflow/compiler/tf2xla/ops/xla_ops.cc (`XlaCallModule`). TensorFlow
ignores attributes whose names begin with an underscore and keeps them when it saves a function
again, so a node carries its own description:

- `_jax_call`: JSON, the flat arguments and results with their pytree paths and symbolic
  dimensions, which can be read without JAX;
- `_jax_exported`: the `Exported` without its module, for JAX.

The functions take and make messages of any class with the fields of tensorflow.NodeDef: those of
TensorFlow and those of a private descriptor pool alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import DisabledCheck
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import FormatError
from xla_call_module.platforms import platform_from_tensorflow, platform_to_tensorflow

__all__ = ["OP", "decode_node", "encode_node"]

OP = "XlaCallModule"
DESCRIPTION_ATTR = "_jax_call"
EXPORTED_ATTR = "_jax_exported"

_KNOWN = frozenset({
    "Tin", "Tout", "Sout", "module", "version", "platforms", "disabled_checks", "dim_args_spec",
    "use_shardy_partitioner", "function_list", "has_token_input_output",
})  # fmt: skip
_FIRST_CONVENTION_WITH_CHECKS = 6

Node = TypeVar("Node")


def encode_node(
    call: CallModule, *, name: str, inputs: Sequence[str], new_node: Callable[[], Node]
) -> Node:
    """The XlaCallModule node of a call.

    Args:
        call: what the node calls.
        name: the node's name.
        inputs: the names of the tensors that it takes, one for each of `call.operands`.
        new_node: makes the empty message, for example `tf.compat.v1.NodeDef`.

    Raises:
        FormatError: the number of inputs is not that of the operands.
    """
    if len(inputs) != len(call.operands):
        raise FormatError(
            f"Node {name} has {len(inputs)} inputs; {call.name} takes {len(call.operands)}."
        )
    node: Any = new_node()
    node.name, node.op = name, OP
    node.input.extend(inputs)
    attr = node.attr
    attr["Tin"].list.type.extend(spec.dtype.enum for spec in call.operands)
    attr["Tout"].list.type.extend(spec.dtype.enum for spec in call.results)
    # An empty list is no value: `list` must be set for the attribute to exist.
    attr["Tin"].list.SetInParent()
    attr["Tout"].list.SetInParent()
    attr["Sout"].list.SetInParent()
    for spec in call.results:
        _encode_shape(spec, attr["Sout"].list.shape.add())
    attr["module"].s = call.module
    attr["version"].i = call.version
    attr["platforms"].list.s.extend(platform_to_tensorflow(p).encode() for p in call.platforms)
    attr["disabled_checks"].list.s.extend(check.name.encode() for check in call.disabled_checks)
    attr["disabled_checks"].list.SetInParent()
    for function in call.function_list:
        attr["function_list"].list.func.add().name = function
    if call.uses_shardy:
        attr["use_shardy_partitioner"].b = True
    attr[DESCRIPTION_ATTR].s = _describe(call)
    if call.exported:
        attr[EXPORTED_ATTR].s = call.exported
    return node  # type: ignore[no-any-return]  # it was made as Any to reach its fields


def decode_node(node: Any) -> CallModule:
    """The call that an XlaCallModule node makes.

    Args:
        node: a NodeDef of any pool, written by this package or another program. Without our
            description its arguments have dtypes but no known shapes.

    Raises:
        FormatError: it is another op; an attribute is missing, unknown, or contradicts another.
        DtypeError, PlatformError, StructureError: an attribute's value is not one that JAX has.
    """
    if node.op != OP:
        raise FormatError(f"Node {node.name} is a {node.op}, not an {OP}.")
    unknown = sorted(key for key in node.attr if key not in _KNOWN and not key.startswith("_"))
    missing = sorted({"Tin", "Tout", "Sout", "module", "version"} - set(node.attr))
    if unknown or missing:
        raise FormatError(
            f"Node {node.name}: attributes {unknown} are unknown and {missing} are missing. "
            "To do: read it with a newer version of this package."
        )
    if node.attr["has_token_input_output"].b or node.attr["dim_args_spec"].list.s:
        raise FormatError(
            f"Node {node.name} passes tokens or dimension arguments, as calling conventions "
            f"before {_FIRST_CONVENTION_WITH_CHECKS} did. To do: export it again."
        )
    described = _read_description(node)
    args, results, kept = described["args"], described["results"], described["kept"]
    call = CallModule(
        name=described["name"],
        module=node.attr["module"].s,
        version=node.attr["version"].i,
        platforms=tuple(
            platform_from_tensorflow(name.decode()) for name in node.attr["platforms"].list.s
        ),
        args=args,
        results=results,
        kept=kept,
        disabled_checks=tuple(
            DisabledCheck(name.decode()) for name in node.attr["disabled_checks"].list.s
        ),
        uses_shardy=node.attr["use_shardy_partitioner"].b,
        nr_devices=described["nr_devices"],
        function_list=tuple(function.name for function in node.attr["function_list"].list.func),
        exported=node.attr[EXPORTED_ATTR].s,
    )
    _check_dtypes(call, node)
    return call


def _encode_shape(spec: TensorSpec, proto: Any) -> None:
    if spec.static_shape is None:
        proto.unknown_rank = True
    for size in spec.static_shape or ():
        proto.dim.add().size = -1 if size is None else size


def _describe(call: CallModule) -> bytes:
    description = {
        "name": call.name,
        "args": [spec.to_json() for spec in call.args],
        "results": [spec.to_json() for spec in call.results],
        "kept": list(call.kept),
        "nr_devices": call.nr_devices,
    }
    return json.dumps(description, sort_keys=True, separators=(",", ":")).encode()


def _read_description(node: Any) -> dict[str, Any]:
    where = f"node {node.name}, attribute {DESCRIPTION_ATTR}"
    text = node.attr[DESCRIPTION_ATTR].s
    if not text:
        return _infer_description(node)
    try:
        fields = json.loads(text)
        return {
            "name": str(fields["name"]),
            "args": tuple(TensorSpec.from_json(spec, where=where) for spec in fields["args"]),
            "results": tuple(TensorSpec.from_json(spec, where=where) for spec in fields["results"]),
            "kept": tuple(int(index) for index in fields["kept"]),
            "nr_devices": int(fields["nr_devices"]),
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"The {where}, is damaged: {text[:80]!s}…") from error


def _infer_description(node: Any) -> dict[str, Any]:
    """What a node that another program wrote says of its arguments and results."""
    types = {key: list(node.attr[key].list.type) for key in ("Tin", "Tout")}
    shapes = list(node.attr["Sout"].list.shape)
    if len(shapes) != len(types["Tout"]):
        raise FormatError(
            f"Node {node.name} has {len(types['Tout'])} result dtypes and {len(shapes)} shapes."
        )
    args = tuple(
        TensorSpec(
            None, dtype_from_tensorflow(enum, where=f"input {i} of {node.name}"), f"args[{i}]"
        )
        for i, enum in enumerate(types["Tin"])
    )
    results = tuple(
        TensorSpec(
            _decode_shape(shape, i),
            dtype_from_tensorflow(enum, where=f"output {i} of {node.name}"),
            f"result[{i}]",
        )
        for i, (enum, shape) in enumerate(zip(types["Tout"], shapes, strict=True))
    )
    kept = tuple(range(len(args)))
    return {"name": node.name, "args": args, "results": results, "kept": kept, "nr_devices": 1}


def _decode_shape(proto: Any, index: int) -> tuple[int | str, ...] | None:
    if proto.unknown_rank:
        return None
    sizes = [dim.size for dim in proto.dim]
    return tuple(f"_{index}_{axis}" if size < 0 else size for axis, size in enumerate(sizes))


def _check_dtypes(call: CallModule, node: Any) -> None:
    """TensorFlow believes Tin and Tout; where they differ from the description one is wrong."""
    for key, specs in (("Tin", call.operands), ("Tout", call.results)):
        described = [spec.dtype.enum for spec in specs]
        if list(node.attr[key].list.type) != described:
            raise FormatError(
                f"Node {node.name}: {key} is {list(node.attr[key].list.type)}, but its "
                f"description says {described} (numbers of TensorFlow's DataType)."
            )
