"""A file that a CPU-only process wrote, loaded on an accelerator."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from tests.policy.source import ROOT

NAMES = ("linear_algebra", "transformer_block")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The files, written where JAX sees a CPU alone."""
    folder = tmp_path_factory.mktemp("device")
    subprocess.run(
        [sys.executable, "-m", "tests.device.write", folder],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        check=True,
    )
    return folder


@pytest.fixture(params=["cpu", "gpu", "tpu"])
def device(request):
    """A device of JAX."""
    try:
        return jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip(f"JAX has no {request.param} here")


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients(written, device, name):
    with np.load(written / name / "values.npz") as stored:
        arrays = dict(stored)

    def compare(kind, found):
        for index, leaf in enumerate(jax.tree.leaves(found)):
            assert leaf.devices() == {device}
            expected = arrays[f"{kind}/{index}"]
            scale = np.abs(expected).max()
            np.testing.assert_allclose(leaf, expected, rtol=1e-3, atol=1e-3 * scale)

    with jax.default_device(device), jax.default_matmul_precision("highest"):
        signature = bridge.load(written / name / "model").signatures["serving_default"]
        x = arrays["argument/0"]
        compare("result", signature(x))
        total = lambda params, x: sum(  # noqa: E731
            map(jnp.sum, jax.tree.leaves(signature.exported.call(params, x)))
        )
        compare("gradient", jax.grad(total, argnums=(0, 1))(signature.params, x))
