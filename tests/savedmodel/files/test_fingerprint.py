"""TensorFlow's hash of a checkpoint, as it is in fingerprint.pb."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import fingerprint_pb2

from savedmodel.files.fingerprint import fingerprint_of_bytes, renew_fingerprint
from xla_call_module.errors import FormatError


@pytest.mark.parametrize("size", [65, 100, 127, 128, 129, 192, 200, 1000, 4099])
def test_the_hash_is_tensorflows(size):
    data = bytes(number * 7 % 256 for number in range(size))
    # The only hash of TensorFlow's interface that it is, but for the remainder.
    buckets = 2**63 - 25
    expected = tf.strings.to_hash_bucket_fast([data], buckets)[0]
    assert fingerprint_of_bytes(data) % buckets == expected


@pytest.mark.parametrize("count", [1, 40])
def test_a_file_of_tensorflow(count, tmp_path):
    module = tf.Module()
    module.values = [tf.Variable(float(number)) for number in range(count)]
    tf.saved_model.save(module, tmp_path)
    data = (tmp_path / "fingerprint.pb").read_bytes()
    index = (tmp_path / "variables" / "variables.index").read_bytes()
    old = fingerprint_pb2.FingerprintDef.FromString(data)
    assert old.checkpoint_hash == fingerprint_of_bytes(index)
    new = fingerprint_pb2.FingerprintDef.FromString(renew_fingerprint(data, index + b"more"))
    assert new.checkpoint_hash == fingerprint_of_bytes(index + b"more")
    for proto in (old, new):
        proto.ClearField("checkpoint_hash")
        proto.ClearField("uuid")
    assert new == old


def test_what_is_none():
    with pytest.raises(FormatError, match=r"fingerprint\.pb is damaged: .* To do: remove it"):
        renew_fingerprint(b"\xff", bytes(100))
