"""`NodeDef` attributes <-> `CallModule`: every attribute of the op, and ours.

The op is registered in tensorflow/compiler/tf2xla/ops/xla_ops.cc (`XlaCallModule`). TensorFlow
ignores attributes whose names begin with an underscore and keeps them when it saves a function
again, so a node carries its own description:

- `_jax_call`: JSON, the flat arguments and results with their pytree paths and symbolic
  dimensions, which can be read without JAX, and a checksum of the module;
- `_jax_exported`: JSON, the description of the `Exported` without its module (`descriptions`). An
  older file has what JAX serialized, and in `_jax_call` the pytrees that JAX could not write down.

Both are compressed with zlib; with many parameters they are most of a small model's file.

A call may also be one of a TensorFlow function that computes the same by plain operations. Its node
has the same name, operands and results, both descriptions, and the other attributes of the
XlaCallModule node with `_jax_node_` in front, so that it stands for that node. TensorFlow refuses
an attribute of a function that it does not know (`parse_func_attrs` in
tensorflow/python/eager/polymorphic_function/attributes.py); of a node it keeps it.

The functions take and make messages of any class with the fields of tensorflow.NodeDef: those of
TensorFlow and those of a private descriptor pool alike.

XlaSharding nodes tell TensorFlow's tools how the tensors around a call lie on its devices. The
module says it, too; but TensorFlow's converter for TPUs looks at the graph: a node on each argument
and result, and on what is read of a variable, with the sharding in three attributes. On CPU and GPU
the node passes its tensor on. A tensor that is said to be replicated has one, too; without one it
is the converter's to place (tensorflow/compiler/xla/experimental/xla_sharding/xla_sharding.py,
`apply_to_tensor`).
"""

from __future__ import annotations

import dataclasses
import json
import operator
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from xla_call_module.allowance import Allowance
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import DisabledCheck
from xla_call_module.dimensions import Shape
from xla_call_module.dtypes import dtype_from_tensorflow
from xla_call_module.errors import FormatError, InteropError, StructureError, quote
from xla_call_module.platforms import platform_from_tensorflow, platform_to_tensorflow
from xla_call_module.pytrees.tree_nodes import Trees
from xla_call_module.shardings.array_sharding import TUPLE, UNKNOWN, Sharding
from xla_call_module.shardings.sharding_json import decode_shardings, encode_shardings
from xla_call_module.shardings.sharding_protos import sharding_to_proto
from xla_call_module.versions import FIRST_CONVENTION

OP = "XlaCallModule"
SHARDING_OP = "XlaSharding"
FUNCTION_CALL = "StatefulPartitionedCall"
# TensorFlow's graph optimizer inlines no function with the first attribute into what calls it
# (tensorflow/core/grappler/optimizers/function_optimizer.cc), and optimizes none with the second
# where it stands (tensorflow/core/grappler/optimizers/meta_optimizer.cc).
NOT_INLINED, NOT_OPTIMIZED = "_noinline", "_tf_data_function"
# Of the call of a function that leaves NaN and signs of zeros to TensorFlow's kernels.
INEXACT = "_inexact"
# A ConfigProto with graph_options.rewrite_options.disable_meta_optimizer, for what is optimized
# when a call first runs (tensorflow/core/kernels/partitioned_function_ops.cc); and with
# allow_soft_placement, which is what TensorFlow's own calls of functions have.
NO_OPTIMIZER = bytes.fromhex("380152055203980101")
_FOR_CONVERTERS = "_for_converters"
DESCRIPTION_ATTR = "_jax_call"
EXPORTED_ATTR = "_jax_exported"
# In front of the name of an attribute that the call of a function has of an XlaCallModule node.
_PREFIX = "_jax_node_"
_MODULE_ATTR = f"{_PREFIX}module"

_KNOWN = frozenset({
    "Tin", "Tout", "Sout", "module", "version", "platforms", "disabled_checks", "dim_args_spec",
    "use_shardy_partitioner", "function_list", "has_token_input_output",
})  # fmt: skip

# What the call of a function and an XlaCallModule node have under the same names.
_SHARED_ATTRS = frozenset({"Tin", "Tout", DESCRIPTION_ATTR, EXPORTED_ATTR})

# JSON takes up to twenty times its size as Python's objects, and 2^22 bytes describe some 40,000
# arguments; the rest of an Exported is as large at most. For all nodes of a file together:
MAX_DESCRIPTION_BYTES = 2**22
_MAX_DESCRIPTIONS_BYTES = 2**26

# The fields of a call whose members have shardings.
_SHARDED = ("args", "results")

Node = TypeVar("Node")


def encode_node(
    call: CallModule, *, name: str, inputs: Sequence[str], new_node: Callable[[], Node]
) -> Node:
    """Return the XlaCallModule node of a call.

    Args:
        call: the call.
        name: the node's name.
        inputs: the names of the tensors that it takes, one for each of `call.operands`.
        new_node: the function that makes the empty message, for example `tf.compat.v1.NodeDef`.

    Raises:
        FormatError: the number of inputs is not that of the operands.
        StructureError: there are too many arguments to describe.

    Example:
        >>> import jax, jax.numpy as jnp, tensorflow as tf
        >>> from xla_call_module import encode_node, from_exported
        >>> exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), "float32"))
        >>> node = encode_node(from_exported(exported), name="sin", inputs=["x"],
        ...                    new_node=tf.compat.v1.NodeDef)
        >>> node.op, list(node.input), list(node.attr["platforms"].list.s)
        ('XlaCallModule', ['x'], [b'CPU'])
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
    attr[DESCRIPTION_ATTR].s = _compress(call, _describe(call))
    if call.exported:
        attr[EXPORTED_ATTR].s = _compress(call, call.exported)
    return node  # type: ignore[no-any-return]  # it was made as Any to reach its fields


def description_allowance() -> Allowance:
    """Return the bytes that the descriptions of all nodes of one file may have, not compressed."""
    return Allowance(_MAX_DESCRIPTIONS_BYTES, what="bytes of descriptions")


def decode_node(node: Any, *, allowance: Allowance | None = None) -> CallModule:
    """Return the call that an XlaCallModule node makes, or the call of a function in its place.

    Args:
        node: a NodeDef of any pool, written by this package or another program. Without our
            description its arguments have dtypes but no known shapes.
        allowance: the bytes that are left to the file, from `description_allowance`.

    Raises:
        FormatError: it is another op; an attribute is missing, unknown, or contradicts another.
        DtypeError, PlatformError, StructureError, VersionError: an attribute's value is not one
            that JAX has.

    Example:
        >>> import bridge, jax.numpy as jnp, tensorflow as tf
        >>> from xla_call_module import decode_node
        >>> function = tf.function(bridge.convert(lambda image: jnp.sin(image)))
        >>> graph = function.get_concrete_function(tf.TensorSpec([3])).graph.as_graph_def()
        >>> nodes = [n for f in graph.library.function for n in f.node_def] + [*graph.node]
        >>> call = next(decode_node(node) for node in nodes if node.op == "XlaCallModule")
        >>> call.args[0].name, str(call.args[0])
        ('image', 'float32[3]')
    """
    if node.op != OP:
        if not is_call(node):
            raise FormatError(f"Node {node.name} is a {node.op}, not an {OP}.")
        function_call, node = node, type(node)()
        node.CopyFrom(function_call)
        to_module_call(node)
    unknown = sorted(key for key in node.attr if key not in _KNOWN and not key.startswith("_"))
    missing = sorted({"Tin", "Tout", "Sout", "module", "version"} - set(node.attr))
    if unknown or missing:
        raise FormatError(
            f"Node {node.name}: attributes {unknown} are unknown and {missing} are missing. "
            "To do: read it with a newer version of this package."
        )
    # Looking up an absent key of a message's map would add it to the node.
    optional = {key: node.attr[key] for key in _KNOWN | {EXPORTED_ATTR} if key in node.attr}
    if _flag(optional, "has_token_input_output") or _texts(optional, "dim_args_spec"):
        raise FormatError(
            f"Node {node.name} passes tokens or dimension arguments, as calling conventions "
            f"before {FIRST_CONVENTION} did. To do: export it again."
        )
    functions = optional["function_list"].list.func if "function_list" in optional else ()
    allowance = allowance or description_allowance()
    described = _read_description(node, allowance)
    call = CallModule(
        module=node.attr["module"].s,
        version=node.attr["version"].i,
        platforms=tuple(map(platform_from_tensorflow, _texts(optional, "platforms"))),
        disabled_checks=tuple(map(DisabledCheck, _texts(optional, "disabled_checks"))),
        uses_shardy=_flag(optional, "use_shardy_partitioner"),
        function_list=tuple(function.name for function in functions),
        exported=_decompress(node, EXPORTED_ATTR, allowance) if EXPORTED_ATTR in optional else b"",
        **described,
    )
    _check_types(call, node)
    return call


def update_node(node: Any, before: CallModule, after: CallModule) -> None:
    """Make a node make another call; only attributes that differ are touched.

    Name, inputs, device, the attributes of others, and the function that it may run stay. A node
    that has no description of its call gets none.
    """
    if (before.operands, before.results) != (after.operands, after.results):
        raise StructureError(
            f"Node {node.name} takes {list(map(str, before.operands))} and returns "
            f"{list(map(str, before.results))}; the call that is to take its place takes "
            f"{list(map(str, after.operands))} and returns {list(map(str, after.results))}. "
            "To do: keep both."
        )
    inputs = [name for name in node.input if not name.startswith("^")]
    old, new = (
        encode_node(call, name=node.name, inputs=inputs, new_node=type(node)).attr
        for call in (before, after)
    )
    for key in sorted({*old, *new}):
        if key in (DESCRIPTION_ATTR, EXPORTED_ATTR) and key not in node.attr:
            continue
        place = key if node.op == OP or key in _SHARED_ATTRS else f"{_PREFIX}{key}"
        if key not in new:
            if place in node.attr:
                del node.attr[place]
        elif key not in old or old[key] != new[key]:
            node.attr[place].CopyFrom(new[key])


def is_call(node: Any) -> bool:
    """Return whether a NodeDef is an XlaCallModule, or the call of a function in its place."""
    return node.op == OP or (node.op == FUNCTION_CALL and _MODULE_ATTR in node.attr)


def called_function(node: Any) -> str:
    """Return the name of the function in the place of an XlaCallModule; empty for that itself."""
    return "" if node.op == OP else str(node.attr["f"].func.name)


def is_for_converters(node: Any) -> bool:
    """Return whether a node calls a function that converters are to read."""
    return _FOR_CONVERTERS in node.attr


def to_function_call(
    node: Any, function: str, *, is_opaque: bool = True, exact: bool = True
) -> None:
    """Make an XlaCallModule node the call of a function that computes the same, in place.

    Example:
        >>> import jax, jax.numpy as jnp, tensorflow as tf
        >>> from xla_call_module import encode_node, from_exported
        >>> from xla_call_module.node import decode_node, to_function_call, to_module_call
        >>> call = from_exported(jax.export.export(jax.jit(jnp.sin))(1.0))
        >>> node = encode_node(call, name="sin", inputs=["x"], new_node=tf.compat.v1.NodeDef)
        >>> to_function_call(node, "plain_sin")
        >>> node.op, node.attr["f"].func.name, decode_node(node) == call
        ('StatefulPartitionedCall', 'plain_sin', True)
        >>> to_module_call(node)
        >>> node.op
        'XlaCallModule'
    """
    for key in [key for key in node.attr if key in _KNOWN - _SHARED_ATTRS]:
        node.attr[f"{_PREFIX}{key}"].CopyFrom(node.attr[key])
        del node.attr[key]
    node.op = FUNCTION_CALL
    node.attr["f"].func.name = function
    if is_opaque:
        node.attr["config_proto"].s = NO_OPTIMIZER
    else:
        node.attr[_FOR_CONVERTERS].b = True
    if not exact:
        node.attr[INEXACT].b = True
    node.attr["_output_shapes"].CopyFrom(node.attr[f"{_PREFIX}Sout"])


def to_module_call(node: Any) -> None:
    """Make the call of a function the XlaCallModule node that it stands for, in place."""
    options = ("config", "config_proto", "executor_type")
    for key in ("_output_shapes", "f", *options, _FOR_CONVERTERS, INEXACT):
        if key in node.attr:
            del node.attr[key]
    for key in [key for key in node.attr if key.startswith(_PREFIX)]:
        node.attr[key.removeprefix(_PREFIX)].CopyFrom(node.attr[key])
        del node.attr[key]
    node.op = OP


def _flag(attributes: Mapping[str, Any], key: str) -> bool:
    return key in attributes and bool(attributes[key].b)


def _texts(attributes: Mapping[str, Any], key: str) -> list[str]:
    try:
        return [text.decode() for text in attributes[key].list.s] if key in attributes else []
    except UnicodeDecodeError as error:
        raise FormatError(f"The attribute {key} is not UTF-8 text: {quote(error)}.") from error


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
        # A GraphDef has none, and MLIR's reader can end the process on damaged bytecode.
        "module_crc32": zlib.crc32(call.module),
    }
    if call.residual_results or call.residual_args:
        description["residuals"] = [call.residual_results, call.residual_args]
    if call.hoisted:
        description["hoisted"] = list(call.hoisted)
    if call.trees is not None:
        description["trees"] = call.trees.to_json()
    if call.changes:
        description["changes"] = list(call.changes)
    shardings = encode_shardings(
        {key: [spec.sharding for spec in getattr(call, key)] for key in _SHARDED}
    )
    if shardings:
        description["shardings"] = shardings
    return json.dumps(description, sort_keys=True, separators=(",", ":")).encode()


def _read_description(node: Any, allowance: Allowance) -> dict[str, Any]:
    where = f"node {node.name}, attribute {DESCRIPTION_ATTR}"
    if DESCRIPTION_ATTR not in node.attr:
        return _infer_description(node)
    text = _decompress(node, DESCRIPTION_ATTR, allowance)
    try:
        fields = json.loads(text)
        if fields["module_crc32"] != zlib.crc32(node.attr["module"].s):
            raise FormatError(
                f"Node {node.name}: the {len(node.attr['module'].s)} bytes of its module have "
                "another checksum than those that were written. To do: write the file again."
            )
        residual_results, residual_args = map(operator.index, fields.get("residuals", (0, 0)))
        return {
            "name": str(fields["name"]),
            **_read_specs(fields, where),
            "kept": tuple(map(operator.index, fields["kept"])),
            "nr_devices": operator.index(fields["nr_devices"]),
            "residual_results": residual_results,
            "residual_args": residual_args,
            "hoisted": tuple(map(str, fields.get("hoisted", ()))),
            "trees": Trees.from_json(fields["trees"], where=where) if "trees" in fields else None,
            "changes": tuple(map(str, fields.get("changes", ()))),
        }
    except InteropError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"The {where}, is damaged: {text[:80]!s}…") from error


def _read_specs(fields: Mapping[str, Any], where: str) -> dict[str, tuple[TensorSpec, ...]]:
    specs = {
        key: [TensorSpec.from_json(spec, where=where) for spec in fields[key]] for key in _SHARDED
    }
    counts = {key: len(members) for key, members in specs.items()}
    shardings = decode_shardings(fields.get("shardings", {}), counts)
    return {key: tuple(map(_with_sharding, specs[key], shardings[key])) for key in specs}


def _with_sharding(spec: TensorSpec, sharding: Sharding | None) -> TensorSpec:
    return spec if sharding is None else dataclasses.replace(spec, sharding=sharding)


def _compress(call: CallModule, text: bytes) -> bytes:
    if len(text) > MAX_DESCRIPTION_BYTES:
        raise StructureError(
            f"{call.name} has {len(call.args)} arguments and {len(call.results)} results, whose "
            f"description takes {len(text):,} bytes; expected at most {MAX_DESCRIPTION_BYTES:,}. "
            "To do: stack arrays that are alike into one, or save several functions."
        )
    # A window no larger than the text: to make the memory of the largest one ready takes ten times
    # as long as to compress what most calls say.
    bits = min(max(len(text).bit_length(), 9), zlib.MAX_WBITS)
    writer = zlib.compressobj(9, zlib.DEFLATED, bits, min(bits - 6, zlib.DEF_MEM_LEVEL))
    return writer.compress(text) + writer.flush()


def _decompress(node: Any, key: str, allowance: Allowance) -> bytes:
    data = node.attr[key].s
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(data, MAX_DESCRIPTION_BYTES)
    except zlib.error as error:
        raise FormatError(
            f"Node {node.name}: the attribute {key} is damaged: {quote(error)}."
        ) from error
    if not reader.eof or reader.unused_data:
        raise FormatError(
            f"Node {node.name}: the attribute {key} is damaged: {len(data)} bytes are cut off, go "
            f"on, or hold more than {MAX_DESCRIPTION_BYTES}."
        )
    allowance.spend(len(text))
    return text


def _infer_description(node: Any) -> dict[str, Any]:
    """Return the arguments and results that the node of another program states."""
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
            _name_unknown(_decode_shape(shape), i),
            dtype_from_tensorflow(enum, where=f"output {i} of {node.name}"),
            f"result[{i}]",
        )
        for i, (enum, shape) in enumerate(zip(types["Tout"], shapes, strict=True))
    )
    kept = tuple(range(len(args)))
    return {"name": node.name, "args": args, "results": results, "kept": kept, "nr_devices": 1}


def _decode_shape(proto: Any) -> tuple[int | None, ...] | None:
    if proto.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else dim.size for dim in proto.dim)


def _name_unknown(shape: tuple[int | None, ...] | None, index: int) -> Shape | None:
    if shape is None:
        return None
    return tuple(f"_{index}_{axis}" if size is None else size for axis, size in enumerate(shape))


def _check_types(call: CallModule, node: Any) -> None:
    """TensorFlow believes Tin, Tout and Sout; where the description differs, one is wrong."""
    attributes = {
        "Tin": list(node.attr["Tin"].list.type),
        "Tout": list(node.attr["Tout"].list.type),
        "Sout": [_decode_shape(shape) for shape in node.attr["Sout"].list.shape],
    }
    described = {
        "Tin": [spec.dtype.enum for spec in call.operands],
        "Tout": [spec.dtype.enum for spec in call.results],
        "Sout": [spec.static_shape for spec in call.results],
    }
    for key in attributes:
        if attributes[key] != described[key]:
            raise FormatError(
                f"Node {node.name}: {key} is {attributes[key]}, but its description says "
                f"{described[key]} (dtypes are numbers of TensorFlow's DataType)."
            )


def shown_sharding(call: CallModule, spec: TensorSpec) -> Sharding | None:
    """Return the sharding of an XlaSharding node on an argument or a result; None without one."""
    sharding = spec.sharding
    if sharding is None or call.nr_devices < 2 or sharding.kind in (TUPLE, UNKNOWN):
        return None
    return sharding.canonical()


def encode_sharding_node(
    call: CallModule,
    spec: TensorSpec,
    *,
    name: str,
    input: str,  # the field of a NodeDef
    new_node: Callable[[], Node],
) -> Node | None:
    """Return the XlaSharding node on an argument or a result; None where it is left open.

    The short form of the sharding is there for Shardy, which has no other.

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
    sharding = shown_sharding(call, spec)
    if sharding is None:
        return None
    node: Any = new_node()
    node.name, node.op = name, SHARDING_OP
    node.input.append(input)
    node.attr["T"].type = spec.dtype.enum
    listed = sharding_to_proto(sharding, version=1)
    node.attr["sharding"].s = listed
    node.attr["_XlaSharding"].s = listed
    if call.uses_shardy:
        node.attr["_XlaShardingV2"].s = sharding_to_proto(sharding, version=2)
    return node  # type: ignore[no-any-return]  # it was made as Any to reach its fields
