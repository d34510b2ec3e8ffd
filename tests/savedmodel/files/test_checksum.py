"""The checksum of saved_model.pb: damage is refused, an edit by a protobuf library is not."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import bridge
import savedmodel
from savedmodel.files import checksum
from savedmodel.protos import schema
from xla_call_module.errors import FormatError

PB = "saved_model.pb"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "m"
    exported = jax.export.export(jax.jit(lambda p, x: p * x))(np.float32(2), np.float32(3))
    bridge.save(exported, folder, params=np.float32(2))
    return folder


@pytest.fixture
def folder(original, tmp_path):
    (tmp_path / "variables").mkdir()
    for file in original.rglob("*.*"):
        (tmp_path / file.relative_to(original)).write_bytes(file.read_bytes())
    return tmp_path


def test_the_header_is_one_field_that_tensorflow_ignores(original):
    data = (original / PB).read_bytes()
    message = data[checksum.HEADER_SIZE :]
    assert checksum.header(message) + message == data
    ours, plain = map(saved_model_pb2.SavedModel.FromString, (data, message))
    ours.DiscardUnknownFields()
    assert ours == plain
    assert checksum.check(original / PB, data)
    assert not checksum.check(original / PB, message)


def test_every_byte_counts(folder):
    data = (folder / PB).read_bytes()
    for position in [*range(40), *range(40, len(data), 41), len(data) - 1]:
        flipped = data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]
        (folder / PB).write_bytes(flipped)
        with pytest.raises(FormatError, match=r"saved_model\.pb"):
            savedmodel.read(folder)


@pytest.mark.parametrize("size", [0, 3, 8, 9, 11, 500, -200, -1])
def test_a_file_that_was_cut(folder, size):
    (folder / PB).write_bytes((folder / PB).read_bytes()[:size])
    with pytest.raises(FormatError, match=r"saved_model\.pb"):
        savedmodel.read(folder)


@pytest.mark.parametrize("size", [1, 4, 5, 7, 12, 300])
def test_a_file_without_its_beginning(folder, size):
    (folder / PB).write_bytes((folder / PB).read_bytes()[size:])
    with pytest.raises(FormatError, match=r"saved_model\.pb"):
        savedmodel.read(folder)


@pytest.mark.parametrize("more", [b"\0", b"\x12\x00", b"\x78\x01"])
def test_a_file_with_more(folder, more):
    with (folder / PB).open("ab") as file:
        file.write(more)
    with pytest.raises(FormatError, match=r"byte 5: the \d+ bytes that follow have the checksum"):
        savedmodel.read(folder)


@pytest.mark.parametrize("library", [saved_model_pb2.SavedModel, schema.SavedModel])
@pytest.mark.parametrize("keep", [True, False], ids=["kept", "dropped"])
def test_an_edit_by_a_protobuf_library(folder, library, keep):
    before = savedmodel.read(folder)
    proto = library.FromString((folder / PB).read_bytes())
    proto.meta_graphs[0].meta_info_def.tensorflow_version = "edited"
    if not keep:
        proto.DiscardUnknownFields()
    data = proto.SerializeToString()
    (folder / PB).write_bytes(data)
    assert (data[-9:-4] == checksum.header(b"")[:5]) is keep
    assert savedmodel.read(folder).signatures == before.signatures


def test_tensorflow_drops_it(folder, tmp_path):
    loaded = tf.saved_model.load(folder)
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    data = (tmp_path / "again" / PB).read_bytes()
    assert checksum.header(b"")[:5] not in data
    assert savedmodel.read(tmp_path / "again").default.inputs


def test_a_file_of_before(folder):
    (folder / PB).write_bytes((folder / PB).read_bytes()[checksum.HEADER_SIZE :])
    assert savedmodel.read(folder).default.inputs


def test_another_field_in_its_place(folder):
    data = (folder / PB).read_bytes()
    (folder / PB).write_bytes(b"\xe5\xb2\xd8\x8c\x0d" + data[5:])
    with pytest.raises(FormatError, match=r"byte 0: the file begins with e5b2d88c0d, and neither"):
        savedmodel.read(folder)
