"""A sharding as the message `xla.OpSharding`, which nodes have in attributes, as bytes.

The message is declared here in a descriptor pool of its own, beside those of TensorFlow and of JAX.

Source: xla/xla_data.proto, `OpSharding`.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from xla_call_module.errors import FormatError
from xla_call_module.shardings.array_sharding import (
    MANUAL,
    MAXIMAL,
    REPLICATED,
    TILED,
    TUPLE,
    UNKNOWN,
    UNREDUCED,
    Sharding,
    maximal,
)
from xla_call_module.shardings.device_order import DeviceOrder, iota_order, listed_order

_TYPES = {
    REPLICATED: 0, MAXIMAL: 1, TUPLE: 2, TILED: 3, MANUAL: 4, UNKNOWN: 5, UNREDUCED: 6,
}  # fmt: skip
_KINDS = {number: kind for kind, number in _TYPES.items()}
# Of a message `OpMetadata`: how XLA marks what is to become of unreduced parts.
_REDUCTION, _SUM = b"sdy::reduction_op", b"\x12\x03SUM"
# The enum is a number here, and the metadata are bytes; on the wire they are the same.
_SCALAR = FieldDescriptorProto.LABEL_OPTIONAL
_REPEATED = FieldDescriptorProto.LABEL_REPEATED
_FIELDS = (
    ("type", 1, _SCALAR, FieldDescriptorProto.TYPE_INT32),
    ("tile_assignment_dimensions", 3, _REPEATED, FieldDescriptorProto.TYPE_INT64),
    ("tile_assignment_devices", 4, _REPEATED, FieldDescriptorProto.TYPE_INT64),
    ("tuple_shardings", 5, _REPEATED, FieldDescriptorProto.TYPE_MESSAGE),
    ("replicate_on_last_tile_dim", 6, _SCALAR, FieldDescriptorProto.TYPE_BOOL),
    ("metadata", 7, _REPEATED, FieldDescriptorProto.TYPE_BYTES),
    ("last_tile_dims", 8, _REPEATED, FieldDescriptorProto.TYPE_INT32),
    ("iota_reshape_dims", 9, _REPEATED, FieldDescriptorProto.TYPE_INT64),
    ("iota_transpose_perm", 10, _REPEATED, FieldDescriptorProto.TYPE_INT32),
)


def _declare_message() -> Any:
    file = FileDescriptorProto(name="op_sharding.proto", package="xla", syntax="proto3")
    message = file.message_type.add(name="OpSharding")
    for name, number, label, kind in _FIELDS:
        field = message.field.add(name=name, number=number, label=label, type=kind)
        if kind == FieldDescriptorProto.TYPE_MESSAGE:
            field.type_name = ".xla.OpSharding"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("xla.OpSharding"))


_OpSharding = _declare_message()


def sharding_to_proto(sharding: Sharding, *, version: int = 2) -> bytes:
    """Return the serialized `OpSharding`, byte by byte as XLA serializes it.

    Example:
        >>> from xla_call_module.shardings.array_sharding import tiled
        >>> sharding_to_proto(tiled([2, 2]), version=1).hex(" ")
        '08 03 1a 02 02 02 22 04 00 01 02 03'
    """
    return bytes(_encode(sharding, version).SerializeToString(deterministic=True))


def sharding_from_proto(data: bytes) -> Sharding:
    """Return the sharding that a serialized `OpSharding` says, of either version.

    Where in the program it was set is left out.

    Example:
        >>> str(sharding_from_proto(bytes.fromhex("08031a0202024a0104520100")))
        '2 x 2 parts over 4 devices'
    """
    try:
        message = _OpSharding.FromString(data)
    except DecodeError as error:
        raise FormatError(
            f"{len(data)} bytes are not an OpSharding message: {error}. To do: write the file "
            "again."
        ) from error
    return _decode(message, is_element=False)


def _encode(sharding: Sharding, version: int) -> Any:
    order = sharding.order
    is_iota = order is not None and order.is_iota and version != 1
    last_replicated = sharding.subgroups == (REPLICATED,)
    return _OpSharding(
        type=_TYPES[sharding.kind],
        tile_assignment_dimensions=sharding.tiles,
        tile_assignment_devices=() if order is None or is_iota else order.devices(),
        tuple_shardings=[_encode(element, version) for element in sharding.elements],
        replicate_on_last_tile_dim=last_replicated,
        last_tile_dims=() if last_replicated else [_TYPES[kind] for kind in sharding.subgroups],
        iota_reshape_dims=order.reshape if order is not None and is_iota else (),
        iota_transpose_perm=order.transpose if order is not None and is_iota else (),
    )


def _decode(message: Any, *, is_element: bool) -> Sharding:
    unknown: Any = UnknownFieldSet(message)  # a sequence, and its stub does not say so
    fields = [field.field_number for field in unknown if field.data]
    # A tuple has no tuples in it.
    if is_element and message.tuple_shardings:
        fields.append(_OpSharding.DESCRIPTOR.fields_by_name["tuple_shardings"].number)
    if fields:
        raise FormatError(
            f"An OpSharding message has the field {fields[0]}, which has no meaning here. To do: "
            "read it with a newer version of this package."
        )
    for metadata in message.metadata:
        _check_metadata(metadata)
    kind, devices = _kind(message.type), message.tile_assignment_devices
    elements = tuple(_decode(element, is_element=True) for element in message.tuple_shardings)
    if kind == TUPLE:
        return Sharding(TUPLE, elements=elements)
    if kind == MAXIMAL and len(devices) == 1:
        return maximal(devices[0])
    subgroups = tuple(map(_kind, message.last_tile_dims))
    return Sharding(
        kind,
        tuple(message.tile_assignment_dimensions),
        _order(message),
        (REPLICATED,) if message.replicate_on_last_tile_dim else subgroups,
        elements,
    )


def _order(message: Any) -> DeviceOrder | None:
    if message.iota_reshape_dims:
        return iota_order(message.iota_reshape_dims, message.iota_transpose_perm)
    devices = message.tile_assignment_devices
    return listed_order(devices) if devices else None


def _check_metadata(data: bytes) -> None:
    """Refuse what is more than where in the program a sharding was set."""
    if _REDUCTION in data and _SUM not in data:
        raise FormatError(
            f"An OpSharding message has parts that are not summands: {data!r}. To do: export the "
            "function with results that are whole or split."
        )


def _kind(number: int) -> str:
    if number not in _KINDS:
        raise FormatError(f"An OpSharding message has the type {number}; known are {_KINDS}.")
    return _KINDS[number]
