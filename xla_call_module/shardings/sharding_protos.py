"""A sharding as the message `xla.OpSharding`, in its wire format.

TensorFlow keeps such messages as bytes in attributes of nodes, so the few fields are read and
written here, without a class of the message: one of TensorFlow's, one of JAX's and one of our own
would have to be kept apart.

Source: xla/xla_data.proto, `OpSharding`; https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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

__all__ = ["sharding_from_proto", "sharding_to_proto"]

_TYPES = {
    REPLICATED: 0, MAXIMAL: 1, TUPLE: 2, TILED: 3, MANUAL: 4, UNKNOWN: 5, UNREDUCED: 6,
}  # fmt: skip
_KINDS = {number: kind for kind, number in _TYPES.items()}
_TYPE, _TILES, _DEVICES, _ELEMENTS, _LAST_REPLICATED, _METADATA = 1, 3, 4, 5, 6, 7
_SUBGROUPS, _RESHAPE, _TRANSPOSE = 8, 9, 10
_REPEATED = (_TILES, _DEVICES, _SUBGROUPS, _RESHAPE, _TRANSPOSE)
_VARINT, _BYTES = 0, 2
# Of a message `OpMetadata`: how XLA marks what is to become of unreduced parts.
_REDUCTION, _SUM = b"sdy::reduction_op", b"\x12\x03SUM"
_MAX_VARINT = 10
# A tuple has no tuples in it.
_MAX_DEPTH = 1


def sharding_to_proto(sharding: Sharding, *, version: int = 2) -> bytes:
    """The serialized `OpSharding`, byte by byte as XLA serializes it.

    Args:
        sharding: any; kinds of memory and names of axes have no place in it.
        version: 1 lists the devices one by one, 2 keeps a short form that there is.

    Example:
        >>> from xla_call_module.shardings.array_sharding import tiled
        >>> sharding_to_proto(tiled([2, 2]), version=1).hex(" ")
        '08 03 1a 02 02 02 22 04 00 01 02 03'
    """
    fields = bytearray()
    if _TYPES[sharding.kind]:
        fields += _number(_TYPE, _TYPES[sharding.kind])
    fields += _packed(_TILES, sharding.tiles)
    iota = sharding.order if sharding.order is not None and sharding.order.is_iota else None
    if sharding.order is not None and (iota is None or version == 1):
        fields += _packed(_DEVICES, sharding.order.devices())
    for element in sharding.elements:
        fields += _message(_ELEMENTS, sharding_to_proto(element, version=version))
    if sharding.subgroups == (REPLICATED,):
        fields += _number(_LAST_REPLICATED, 1)
    else:
        fields += _packed(_SUBGROUPS, [_TYPES[kind] for kind in sharding.subgroups])
    if iota is not None and version != 1:
        fields += _packed(_RESHAPE, iota.reshape) + _packed(_TRANSPOSE, iota.transpose)
    return bytes(fields)


def sharding_from_proto(data: bytes) -> Sharding:
    """The sharding that a serialized `OpSharding` says, of either version.

    Where in the program it was set is left out.

    Raises:
        FormatError: the bytes are no such message, or one of a form that is not known: a group of
            shardings that are to be alike, one by the names of axes, or parts of which the largest
            or the smallest is meant and not the sum.

    Example:
        >>> sharding_from_proto(bytes.fromhex("08031a0202024a0104520100")).device_indices((4, 2))[1]
        (slice(0, 2, None), slice(1, 2, None))
    """
    return _decode(data, 0)


def _decode(data: bytes, depth: int) -> Sharding:
    kind, last_replicated, elements = REPLICATED, False, []
    lists: dict[int, list[int]] = {field: [] for field in _REPEATED}
    for field, value in _fields(data):
        if field in lists:
            lists[field] += _varints(value) if isinstance(value, bytes) else [value]
        elif field == _TYPE and isinstance(value, int):
            kind = _kind(value)
        elif field == _LAST_REPLICATED and isinstance(value, int):
            last_replicated = bool(value)
        elif field == _ELEMENTS and isinstance(value, bytes) and depth < _MAX_DEPTH:
            elements.append(_decode(value, depth + 1))
        elif field == _METADATA and isinstance(value, bytes):
            _check_metadata(value)
        elif value:
            raise FormatError(
                f"An OpSharding message has the field {field}, which has no meaning here: {value!r}"
                ". To do: read it with a newer version of this package."
            )
    if kind == TUPLE:
        return Sharding(TUPLE, elements=tuple(elements))
    if kind == MAXIMAL and len(lists[_DEVICES]) == 1:
        return maximal(lists[_DEVICES][0])
    subgroups = tuple(_kind(number) for number in lists[_SUBGROUPS])
    return Sharding(
        kind,
        tuple(lists[_TILES]),
        _order(lists),
        (REPLICATED,) if last_replicated else subgroups,
        tuple(elements),
    )


def _check_metadata(data: bytes) -> None:
    """Refuse what is more than where in the program a sharding was set."""
    if _REDUCTION in data and _SUM not in data:
        raise FormatError(
            f"An OpSharding message is about parts that are no summands: {data!r}. To do: export "
            "the function with results that are whole or split."
        )


def _order(lists: dict[int, list[int]]) -> DeviceOrder | None:
    if lists[_RESHAPE]:
        return iota_order(lists[_RESHAPE], lists[_TRANSPOSE])
    return listed_order(lists[_DEVICES]) if lists[_DEVICES] else None


def _kind(number: int) -> str:
    if number not in _KINDS:
        raise FormatError(f"An OpSharding message has the type {number}; known are {_KINDS}.")
    return _KINDS[number]


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, each with its number or its bytes."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        value, position = _varint(data, position)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            yield field, value
            continue
        if wire != _BYTES or position + value > len(data):
            raise FormatError(
                f"{len(data)} bytes are no OpSharding message: at byte {position} is a field of "
                f"wire type {wire} and length {value}. To do: write the file again."
            )
        yield field, data[position : position + value]
        position += value


def _varints(data: bytes) -> list[int]:
    found, position = [], 0
    while position < len(data):
        value, position = _varint(data, position)
        found.append(value)
    return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(_MAX_VARINT):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position
    raise FormatError(
        f"{len(data)} bytes are no OpSharding message: a number does not end at byte {position}. "
        "To do: write the file again."
    )


def _encode_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(field: int, value: int) -> bytes:
    return _encode_varint(field << 3 | _VARINT) + _encode_varint(value)


def _message(field: int, data: bytes) -> bytes:
    return _encode_varint(field << 3 | _BYTES) + _encode_varint(len(data)) + data


def _packed(field: int, values: Iterable[int] | Sequence[int]) -> bytes:
    data = b"".join(map(_encode_varint, values))
    return _message(field, data) if data else b""
