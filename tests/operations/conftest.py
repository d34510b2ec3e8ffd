"""What all targets share."""

from __future__ import annotations

import pytest

from tests.operations.artifacts import folder_of_this_table
from tests.operations.checking import check
from tests.operations.targets import opened


@pytest.fixture(scope="session")
def artifacts(request):
    """The folder of what JAX exports and computes: once for all processes, and for later runs."""
    return folder_of_this_table(request.config.cache.mkdir("operations"))


@pytest.fixture(scope="module")
def right(request, artifacts):
    """`right(batch)` fails unless a batch is right, or as recorded, in the target of the file."""
    with opened(request.module.TARGET) as target:
        yield lambda batch: check(target, batch, artifacts)
