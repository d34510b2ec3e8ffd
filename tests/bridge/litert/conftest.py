"""The process that runs models, one for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bridge.litert.worker_process import LiteRTProcess


@pytest.fixture(scope="session")
def litert_process() -> Iterator[LiteRTProcess]:
    """Return the process."""
    pytest.importorskip("ai_edge_litert")
    with LiteRTProcess() as process:
        yield process
