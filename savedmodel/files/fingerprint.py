"""fingerprint.pb, in which TensorFlow writes hashes of a SavedModel that it has saved.

Nothing compares them with the files; who keeps models in a store tells them apart by these. They
are of parts of saved_model.pb, and one is of the checkpoint's table of contents
(tensorflow/cc/saved_model/fingerprinting.cc).
"""

from __future__ import annotations

import struct

from google.protobuf.message import DecodeError

from savedmodel.protos.schema import FingerprintDef
from xla_call_module.errors import FormatError

FINGERPRINT_FILE = "fingerprint.pb"
_MASK = (1 << 64) - 1
# FarmHash's constants (farmhashna in https://github.com/google/farmhash, src/farmhash.cc).
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_SEED = 81
_BLOCK = 64


def renew_fingerprint(data: bytes, index: bytes) -> bytes:
    """Return the content of a fingerprint.pb for a model with the same program and other values."""
    try:
        proto = FingerprintDef.FromString(data)
    except DecodeError as error:
        raise FormatError(
            f"{FINGERPRINT_FILE} is damaged: {error}. To do: remove it, since no loader needs it."
        ) from error
    proto.checkpoint_hash = fingerprint_of_bytes(index)
    # It is of one save, and the same values are to give the same bytes.
    proto.ClearField("uuid")
    return bytes(proto.SerializeToString(deterministic=True))


def fingerprint_of_bytes(data: bytes) -> int:
    """Return TensorFlow's `Fingerprint64`, which is FarmHash, of more than 64 bytes.

    >>> hex(fingerprint_of_bytes(bytes(range(100))))
    '0x3cff0f886d8d6195'
    """
    assert len(data) > _BLOCK
    x = (_SEED * _K2 + int.from_bytes(data[:8], "little")) & _MASK
    y = (_SEED * _K1 + 113) & _MASK
    z = _shift_mix(y * _K2 + 113) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    for start in range(0, (len(data) - 1) // _BLOCK * _BLOCK, _BLOCK):
        x, y, z, v, w = _mix(data, start, (x, y, z, v, w), _K1, 1)
    factor = _K1 + ((z & 0xFF) << 1) & _MASK
    first = w[0] + (len(data) - 1 & _BLOCK - 1) & _MASK
    v = (v[0] + first & _MASK, v[1])
    w = (first + v[0] & _MASK, w[1])
    x, y, z, v, w = _mix(data, len(data) - _BLOCK, (x, y, z, v, w), factor, 9)
    return _hash_pair(
        _hash_pair(v[0], w[0], factor) + _shift_mix(y) * _K0 + z,
        _hash_pair(v[1], w[1], factor) + x,
        factor,
    )


_Pair = tuple[int, int]
_State = tuple[int, int, int, _Pair, _Pair]


def _mix(data: bytes, start: int, state: _State, factor: int, weight: int) -> _State:
    """Return the state after a block; in the last one some words have another weight."""
    x, y, z, v, w = state
    words = struct.unpack_from("<8Q", data, start)
    x = _rotate(x + y + v[0] + words[1], 37) * factor & _MASK
    y = _rotate(y + v[1] + words[6], 42) * factor & _MASK
    x ^= w[1] * weight & _MASK
    y = y + v[0] * weight + words[5] & _MASK
    z = _rotate(z + w[0], 33) * factor & _MASK
    v = _weak_pair(words[:4], v[1] * factor, x + w[0])
    w = _weak_pair(words[4:], z + w[1], y + words[2])
    return z, y, x, v, w


def _weak_pair(words: tuple[int, ...], a: int, b: int) -> _Pair:
    a += words[0]
    b = _rotate(b + a + words[3], 21)
    c = a
    a += words[1] + words[2]
    b += _rotate(a, 44)
    return a + words[3] & _MASK, b + c & _MASK


def _hash_pair(u: int, v: int, factor: int) -> int:
    a = _shift_mix((u ^ v) * factor)
    b = _shift_mix((v ^ a) * factor)
    return b * factor & _MASK


def _shift_mix(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _rotate(value: int, shift: int) -> int:
    value &= _MASK
    return (value >> shift | value << 64 - shift) & _MASK
