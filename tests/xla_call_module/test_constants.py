"""What makes a module large is named."""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from xla_call_module.constants import largest_constants
from xla_call_module.errors import StructureError

LARGE = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
SMALL = np.arange(8, dtype=np.int8)


@pytest.fixture
def exported():
    # the ones are stored as a single element
    function = lambda x: jnp.sum(LARGE) * x + jnp.sum(SMALL) + jnp.ones((500, 500)).sum()  # noqa: E731
    return jax.export.export(jax.jit(function))(1.0)


def test_largest_constants(exported):
    first, second = largest_constants(exported.mlir_module_serialized, 2)
    assert (first.type, first.size) == ("tensor<40x30xf32>", 4800)
    assert (second.type, second.size) == ("tensor<8xi8>", 8)
    assert "test_constants.py:" in first.location


def test_a_file_that_would_be_too_large(exported, tmp_path, monkeypatch):
    # `bridge.save` is the function; the module of the same name is behind it
    monkeypatch.setattr(sys.modules["bridge.save"], "MAX_PROTO_BYTES", 10_000)
    with pytest.raises(StructureError, match=r"tensor<40x30xf32> \(4,800 bytes\).*as params"):
        bridge.save(exported, tmp_path / "model")
    assert not list(tmp_path.iterdir())
