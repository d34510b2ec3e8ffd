"""What all targets share."""

from __future__ import annotations

import pytest

from tests.operations.artifacts import folder_of_this_table


@pytest.fixture(scope="session")
def artifacts(request):
    """The folder of what JAX exports and computes: once for all processes, and for later runs."""
    return folder_of_this_table(request.config.cache.mkdir("operations"))
