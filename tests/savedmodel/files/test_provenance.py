"""Which TensorFlow wrote a file."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import tensorflow as tf

import bridge
from savedmodel.files.provenance import tensorflow_writer
from xla_call_module.errors import FormatError


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("provenance") / "m"
    bridge.save(jax.export.export(jax.jit(jnp.sin))(1.0), folder)
    return folder


@pytest.fixture(scope="module")
def theirs(ours):
    folder = ours.with_name("again")
    model = tf.saved_model.load(str(ours))
    tf.saved_model.save(model, str(folder), signatures=model.signatures)
    return folder / "saved_model.pb"


def test_a_file_of_tensorflow(theirs):
    assert tensorflow_writer(theirs) == tf.__version__


def test_a_file_of_ours(ours):
    assert tensorflow_writer(ours / "saved_model.pb") == ""


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"\x12\x7f\x00", "a field of 127 bytes reaches beyond byte 3"),
        (b"\x80" * 20, "a number has no end"),
        (b"\x0f", "a field has the wire type 7"),
        (b"\x12\x03\x0a\x05\x00", "a field of 5 bytes reaches beyond byte 5"),
    ],
)
def test_damage_is_told_with_its_place(tmp_path, data, found):
    file = tmp_path / "saved_model.pb"
    file.write_bytes(data)
    with pytest.raises(FormatError, match=rf"saved_model\.pb, byte \d+: {found}"):
        tensorflow_writer(file)


def test_a_file_that_is_cut_off_has_no_other_writer(theirs, tmp_path):
    data = theirs.read_bytes()
    file = tmp_path / "saved_model.pb"
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match="reaches beyond"):
        tensorflow_writer(file)
    file.write_bytes(b"")
    assert tensorflow_writer(file) == ""
