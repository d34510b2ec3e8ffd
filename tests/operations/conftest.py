"""What all targets share."""

from __future__ import annotations

import os

import pytest

from tests.rounds import shared_folder


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory):
    """The folder of what JAX exports and computes, once for all processes of a run."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = shared_folder() or folder.parent
    return folder / "operations"
