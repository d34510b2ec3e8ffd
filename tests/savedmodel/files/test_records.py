"""TFRecord files, as TensorFlow writes them."""

from __future__ import annotations

import pytest
import tensorflow as tf

from savedmodel.files.records import record_sizes, write_records
from xla_call_module.errors import FormatError

RECORDS = [b"", b"one", bytes(range(256)) * 5000]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "records"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    return path


def test_the_sizes_of_what_tensorflow_wrote(file):
    assert list(record_sizes(file)) == [len(record) for record in RECORDS]


def test_the_bytes_are_those_that_tensorflow_writes(file, tmp_path):
    assert write_records(tmp_path / "ours", iter(RECORDS)) == len(RECORDS)
    assert (tmp_path / "ours").read_bytes() == file.read_bytes()


def test_an_empty_file(tmp_path):
    (tmp_path / "empty").touch()
    assert list(record_sizes(tmp_path / "empty")) == []


@pytest.mark.parametrize(
    ("offset", "found"),
    [
        (0, "byte 0: .*the length of a record has another checksum"),
        (8, "byte 0: .*the length of a record has another checksum"),
        (28, "byte 28: .*the 3 bytes of a record have another checksum"),
        (31, "byte 28: .*the 3 bytes of a record have another checksum"),
        (1000, "the 1280000 bytes of a record have another checksum"),
    ],
)
def test_a_flipped_bit_is_found(file, offset, found):
    data = bytearray(file.read_bytes())
    data[offset] ^= 1
    file.write_bytes(data)
    with pytest.raises(FormatError, match=found):
        list(record_sizes(file))


@pytest.mark.parametrize(
    ("size", "found"),
    [(20, "ends within the length"), (100, "a record of 1280000 bytes reaches beyond byte 100")],
)
def test_a_file_that_is_cut_off(file, size, found):
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(FormatError, match=found):
        list(record_sizes(file))


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(FormatError, match="not a regular file"):
        list(record_sizes(tmp_path))
