"""The same elements in other shapes: in few nodes, of symbolic sizes that may be 0 or 1 as well."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tests.bridge.onnx.checking import check, operations


def _numbers(*shape):
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("symbolic", [None, "b, 8"])
def test_arrays_without_elements_are_left_out(symbolic):
    """ONNX Runtime drops some of the nodes that would make them, and then fails."""

    def function(x):
        return jnp.pad(x, ((0, 0), (2, 3)), mode="edge"), jnp.repeat(x[:1], 0, axis=0)

    model = check(function, _numbers(3, 8), shapes=symbolic and [symbolic])
    assert symbolic or operations(model).count("Concat") == 1


@pytest.mark.parametrize(
    ("view", "symbolic", "nodes"),
    [
        (lambda x: x.reshape(-1, 3, 5, 2), "b, 30", ["Reshape"]),
        (lambda x: x.reshape(4, 5, 6).reshape(20, 6), None, ["Reshape"]),
        (lambda x: (x + 1).reshape(8, 15).reshape(15, 8).reshape(1, 120), None, ["Add", "Reshape"]),
    ],
)
def test_a_view_is_one_node(view, symbolic, nodes):
    assert operations(check(view, _numbers(4, 30), shapes=symbolic and [symbolic])) == nodes
