"""A process that sees a CPU alone, for what another machine writes and reads."""

from __future__ import annotations

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import jax
import pytest

from tests.device.writing import write


@pytest.fixture(scope="session")
def on_cpu():
    """`on_cpu(function, *args)` is what the function returns in that process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_PLATFORMS", "cpu")
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.delenv("JAX_DEFAULT_MATMUL_PRECISION", raising=False)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as process:
            process.submit(int).result()  # it has read the environment when this comes back
            patch.undo()
            yield lambda function, *args: process.submit(function, *args).result()


@pytest.fixture(scope="session")
def written(on_cpu, tmp_path_factory):
    """`written(name)` is a case of the matrix that the process wrote, once."""

    @functools.cache
    def get(name):
        return on_cpu(write, name, tmp_path_factory.mktemp("device"))

    return get


@pytest.fixture(scope="session")
def device():
    """The device that JAX computes on where nothing else is said."""
    return jax.devices()[0]
