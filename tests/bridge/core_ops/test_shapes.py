"""Other shapes of the same elements, of dimensions that are 0 or 1 as well."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from tests.bridge.onnx.checking import check, operations


@pytest.mark.parametrize(
    ("shape", "symbolic", "new"),
    [
        ((3, 0), None, lambda x: (0, 5)),
        ((0, 4), None, lambda x: (5, 0, 2)),
        ((3, 0), "b, 0", lambda x: (0, x.shape[0])),
        ((3, 0), "b, 0", lambda x: (x.shape[0], 0, 2)),
        ((1, 6), "b, 6", lambda x: (x.shape[0], 3, 2)),
        ((3, 6), "b, 6", lambda x: (-1, 2)),
    ],
)
def test_reshape(shape, symbolic, new):
    x = np.ones(shape, np.float32)
    check(lambda x: (x + 1).reshape(new(x)), x, shapes=symbolic and [symbolic])


@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_that_may_be_zero(batch):
    x = np.arange(batch * 20, dtype=np.float32).reshape(batch, 5, 4)

    def function(x):
        rest = x[1:]
        count, time, width = rest.shape
        turned = rest.transpose(1, 0, 2) * 2
        return (
            (rest + 1).reshape(time, count, width),
            turned.reshape(count, time, width),
            rest.reshape(count, time, 2, 2),
        )

    check(function, x, shapes=["b, t, 4"])


@pytest.mark.parametrize("symbolic", [None, "b, 8"])
def test_arrays_without_elements_are_left_out(symbolic):
    """ONNX Runtime drops some of the nodes that would make them, and then fails."""
    x = np.arange(24, dtype=np.float32).reshape(3, 8)

    def function(x):
        return jnp.pad(x, ((0, 0), (2, 3)), mode="edge"), jnp.repeat(x[:1], 0, axis=0)

    model = check(function, x, shapes=symbolic and [symbolic])
    assert symbolic or operations(model).count("Concat") == 1


def test_reshapes_one_after_another_are_one():
    x = np.ones((2, 6), np.float32)
    model = check(lambda x: (x + 1).reshape(3, 4).reshape(4, 3).reshape(1, 12), x)
    assert operations(model) == ["Add", "Reshape"]
