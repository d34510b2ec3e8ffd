"""A model that takes batches, exported once and saved once."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import bridge

PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(3, 2)}


def predict(params, x):
    return x @ params["w"]


def export(shape, constraints=()):
    dims = jax.export.symbolic_shape(shape, constraints=constraints)
    return jax.export.export(jax.jit(predict))(PARAMS, jax.ShapeDtypeStruct(dims, "float32"))


@pytest.fixture(scope="package")
def exported():
    return export("b, 3")


@pytest.fixture(scope="package")
def saved(exported, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    bridge.save(exported, path, params=PARAMS, gradient_order=0)
    return path
