"""Tables round-trip, and one that is not as the format says is refused, with its place."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from savedmodel.files.sstable import (
    Cursor,
    decode_table,
    encode_table,
    mask_crc,
    unmask_crc,
)
from savedmodel.protos.wire_format import encode_varint
from xla_call_module.errors import FormatError

PATH = Path("a.index")
MAGIC = bytes.fromhex("57fb808b247547db")
RECORDS = [(f"key/{number:03}".encode(), b"value" * (number % 3)) for number in range(40)]


def _decode(data):
    return [(record.key, record.value) for record in decode_table(PATH, data)]


@given(st.dictionaries(st.binary(max_size=12), st.binary(max_size=30), max_size=70))
def test_a_table_round_trips(values):
    records = sorted(values.items())
    assert _decode(encode_table(records)) == records


def test_many_blocks_round_trip():
    records = [(f"{number:06}".encode(), bytes(100_000)) for number in range(20)]
    assert _decode(encode_table(records)) == records


@given(st.integers(0, (1 << 64) - 1))
def test_a_number_round_trips(value):
    cursor = Cursor(PATH, encode_varint(value))
    assert cursor.read_varint() == value
    assert cursor.remaining == 0


@given(st.integers(0, (1 << 32) - 1))
def test_a_checksum_round_trips(crc):
    assert unmask_crc(mask_crc(crc)) == crc


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 7: a number has no end"),
        (b"\x80", "byte 7: a number has no end"),
        (b"\x80" * 11 + b"\x01", "byte 7: a number has no end"),
        (b"\x81\x00", "byte 7: a number has more bytes than it needs"),
        (b"\xff" * 9 + b"\x02", "byte 7: a number has more than 64 bits"),
        (b"\x80" * 9 + b"\x02", "byte 7: a number has more than 64 bits"),
    ],
)
def test_a_bad_number_is_refused(data, message):
    with pytest.raises(FormatError, match=message):
        Cursor(PATH, data, origin=7).read_varint()


def test_every_flipped_bit_is_found():
    data = encode_table(RECORDS)
    for position in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[position] ^= 1 << bit
            with pytest.raises(FormatError, match=r"a\.index, byte \d+: .+ To do: "):
                _decode(bytes(damaged))


def test_bytes_that_are_too_many_are_found():
    data = encode_table(RECORDS)
    for more in (data + b"\0", b"\0" + data, data + data):
        with pytest.raises(FormatError, match=r"a\.index, byte \d+: "):
            _decode(more)


def _block(*records, restarts=(0,), kind=0):
    """A block with a good checksum, of records (bytes shared, rest of the key, value)."""
    block = b"".join(
        encode_varint(shared) + encode_varint(len(rest)) + encode_varint(len(value)) + rest + value
        for shared, rest, value in records
    )
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    return _sealed(block, kind=kind)


def _sealed(block, *, kind=0):
    block += bytes([kind])
    return block + struct.pack("<I", mask_crc(google_crc32c.value(block)))


def _span(start, block):
    return encode_varint(start) + encode_varint(len(block) - 5)


def _table(*blocks, index=None, metaindex=None, footer=None):
    """A table of these data blocks, each with a separator `z`, `zz`, `zzz`, ….

    Args:
        blocks: data blocks.
        index: gives the index block's records in place of right ones, from the right ones.
        metaindex: in place of an empty one.
        footer: gives the footer's 40 bytes, from the places of metaindex and index.
    """
    data, records = b"", []
    for number, block in enumerate(blocks, start=1):
        records.append((0, b"z" * number, _span(len(data), block)))
        data += block
    index_block = _block(*(index(records) if index else records))
    metaindex = metaindex or _block()
    spans = _span(len(data), metaindex), _span(len(data) + len(metaindex), index_block)
    footer = (footer or b"".join)(spans)
    return data + metaindex + index_block + footer.ljust(40, b"\0") + MAGIC


A, B = (0, b"a", b"1"), (0, b"b", b"2")


def test_the_tables_of_these_tests_are_good():
    assert _decode(_table(_block(A, B))) == [(b"a", b"1"), (b"b", b"2")]
    assert _decode(_table(_block(A), _block((0, b"zb", b"")))) == [(b"a", b"1"), (b"zb", b"")]
    assert _decode(_table()) == []


BAD = {
    "a block of another compression": (
        _table(_block(A, kind=1)),
        "a block is compressed by snappy, and only",
    ),
    "a block of an unknown compression": (_table(_block(A, kind=7)), "compressed by 7, and only"),
    "a block too short": (_table(_sealed(b"\0\0\0\0")), "too short for a restart point"),
    "no restart point": (_table(_block(A, restarts=())), "a block has 0 restart points"),
    "too many restart points": (
        _table(_sealed(b"\0" * 8 + b"\xff\xff\xff\xff")),
        "a block has 4294967295 restart points",
    ),
    "restart points that do not ascend": (
        _table(_block(A, B, restarts=(0, 5, 5))),
        "restart points do not ascend",
    ),
    "a restart point beside a record": (
        _table(_block(A, B, restarts=(0, 4))),
        "a restart point is not at a key that stands in full",
    ),
    "a restart point at a shared key": (
        _table(_block(A, (1, b"b", b""), restarts=(0, 5))),
        "a restart point is not at a key that stands in full",
    ),
    "a first restart point beyond the first record": (
        _table(_block(A, B, restarts=(5,))),
        "a restart point is not at a key that stands in full",
    ),
    "a key that shares too much": (
        _table(_block((1, b"a", b""))),
        "a key shares 1 bytes with one of 0",
    ),
    "a value beyond its block": (
        _table(_sealed(b"\0\1\x10a" + struct.pack("<II", 0, 1))),
        "16 bytes are to follow, but 0 are left",
    ),
    "a key of endless length": (
        _table(_sealed(b"\0" + b"\xff" * 12 + struct.pack("<II", 0, 1))),
        "a number has no end",
    ),
    "keys that do not ascend": (_table(_block(B, A)), "key b'a' is not above b'b'"),
    "a key twice": (_table(_block(A, A)), "key b'a' is not above b'a'"),
    "blocks that do not ascend": (
        _table(_block(A), _block(B)),
        "key b'b' is not above b'z'",
    ),
    "a separator below its block": (
        _table(_block((0, b"zz", b""))),
        "a block has keys above b'z'",
    ),
    "keys that grow without end": (
        _table(_block((0, b"a" * 4000, b""), *[(4000 + i, b"b", b"") for i in range(3000)])),
        "the keys are far longer than their block",
    ),
    "a block that is listed twice": (
        _table(_block(A), index=lambda records: [*records, (0, b"zz", records[0][2])]),
        "a block begins at 0, not 18",
    ),
    "the index as its own data": (
        _table(index=lambda _: [(0, b"z", encode_varint(0) + encode_varint(20))]),
        "a block reaches from 0 to 20, beyond 0",
    ),
    "a block beyond the file": (
        _table(_block(A), index=lambda _: [(0, b"z", encode_varint(0) + encode_varint(1 << 63))]),
        "a block reaches from 0 to 9223372036854775808, beyond 18",
    ),
    "a block that is not listed": (_table(_block(A), index=lambda _: []), "no block, but"),
    "half a span": (
        _table(_block(A), index=lambda _: [(0, b"z", b"\0")]),
        "a number has no end",
    ),
    "a metaindex with an entry": (
        _table(_block(A), metaindex=_block((0, b"filter", b""))),
        "the metaindex has an entry b'filter'",
    ),
    "an index that is the metaindex": (
        _table(_block(A), footer=lambda spans: spans[0] * 2),
        "the footer has blocks at",
    ),
    "a footer with more": (
        _table(_block(A), footer=lambda spans: b"".join(spans) + b"\1"),
        "the footer has bytes that are not zero",
    ),
    "a footer without spans": (_table(footer=lambda _: b"\xff" * 40), "a number has no end"),
}


@pytest.mark.parametrize(("data", "message"), BAD.values(), ids=BAD)
def test_a_bad_table_is_refused(data, message):
    with pytest.raises(FormatError, match=rf"a\.index, byte \d+: .*{re.escape(message)}"):
        _decode(data)


@given(st.binary(max_size=200))
def test_noise_is_refused(data):
    with pytest.raises(FormatError, match=r"a\.index, byte \d+: "):
        _decode(data + MAGIC)


def test_a_long_key_is_shortened_in_the_message():
    with pytest.raises(FormatError, match="is not above") as caught:
        _decode(_table(_block((0, b"b" * 10_000, b""), (0, b"a" * 10_000, b""))))
    assert len(str(caught.value)) < 300
