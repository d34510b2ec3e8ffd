"""Tables of FlatBuffers, as the library of FlatBuffers writes them, and with distances that lie."""

from __future__ import annotations

import struct

import flatbuffers
import numpy as np
import pytest

from xla_call_module.descriptions.flatbuffer import read_root
from xla_call_module.errors import FormatError


@pytest.fixture(scope="module")
def data():
    builder = flatbuffers.Builder()
    texts = [builder.CreateString(text) for text in ("one", "zwölf", "")]
    builder.StartVector(4, len(texts), 4)
    for text in reversed(texts):
        builder.PrependUOffsetTRelative(text)
    vector = builder.EndVector()
    numbers = builder.CreateNumpyVector(np.array([1, 2, 70000], np.uint32))
    block = builder.CreateByteVector(b"\x00\xff")
    builder.StartObject(1)
    builder.PrependInt8Slot(0, -3, 0)
    inner = builder.EndObject()
    builder.StartObject(7)
    builder.PrependUint16Slot(0, 12, 0)
    builder.PrependUOffsetTRelativeSlot(1, texts[1], 0)
    builder.PrependUOffsetTRelativeSlot(2, vector, 0)
    builder.PrependUOffsetTRelativeSlot(3, numbers, 0)
    builder.PrependUOffsetTRelativeSlot(4, block, 0)
    builder.PrependUOffsetTRelativeSlot(5, inner, 0)
    builder.Finish(builder.EndObject())
    return bytes(builder.Output())


def test_fields(data):
    root = read_root(data)
    assert (root.number(0, "H"), root.number(6, "I", 5), root.number(90, "I")) == (12, 5, 0)
    assert [root.has(field) for field in (0, 6, 90)] == [True, False, False]
    assert root.numbers(3, "I") == (1, 2, 70000)
    assert root.block(4) == b"\x00\xff"
    assert root.table(5).number(0, "b") == -3
    assert root.table(6) is None
    assert root.text(1) == "zwölf"


def test_texts(data):
    assert read_root(data).texts(2) == ("one", "zwölf", "")
    assert read_root(data).texts(6) == ()
    assert read_root(data).tables(6) == []


@pytest.mark.parametrize("size", [0, 3, 4, 8, 20])
def test_cut_off(data, size):
    with pytest.raises(FormatError, match="bytes has an object of"):
        read_root(data[:size]).text(1)


def test_a_distance_beyond_the_end(data):
    for value in (2**32 - 1, len(data), 2**31):
        with pytest.raises(FormatError, match="bytes at byte"):
            read_root(struct.pack("<I", value) + data[4:])


def test_no_text():
    builder = flatbuffers.Builder()
    block = builder.CreateByteVector(b"\xff\xfe")
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, block, 0)
    builder.Finish(builder.EndObject())
    with pytest.raises(FormatError, match=r"no UTF-8 text at byte \d+"):
        read_root(bytes(builder.Output())).text(0)


def test_a_vector_that_is_read_again_and_again(data):
    for read in (lambda root: root.numbers(3, "I"), lambda root: root.text(1)):
        root = read_root(data)
        with pytest.raises(FormatError, match=r"objects, .* that share their bytes"):
            [read(root) for _ in range(1000)]
