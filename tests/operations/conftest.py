"""What all targets share."""

from __future__ import annotations

import os

import pytest

from tests.operations.checking import check
from tests.operations.targets import opened
from tests.rounds import shared_folder


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory):
    """The folder of what JAX exports and computes, once for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = shared_folder() or folder.parent
    return folder / "operations"


@pytest.fixture(scope="module")
def right(request, artifacts):
    """`right(batch)` fails unless the cells of a batch in `TARGET` are right, or as recorded."""
    with opened(request.module.TARGET) as target:
        yield lambda batch: check(target, batch, artifacts)
