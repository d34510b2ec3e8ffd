"""Some of JAX's own examples of its primitives, run by LiteRT."""

from __future__ import annotations

import itertools

import pytest

from tests.bridge.lifting.harnesses import sample
from tests.bridge.litert.harnesses import examples, gradients, judge

_COUNT = 24


@pytest.fixture(scope="module")
def chosen():
    """Return examples of as many primitives as there are."""
    return list(itertools.islice(examples(sample(4 * _COUNT, x64=False)), _COUNT))


def test_what_litert_runs_is_what_jax_computes(chosen, litert_process):
    found = [judge(*example, litert_process) for example in chosen]
    assert [one for one in found if one.verdict in ("wrong", "raised")] == []
    refused = [one for one in found if one.verdict == "refused"]
    assert len(refused) <= 0.1 * len(found), refused


def test_gradients_that_litert_runs_are_those_of_jax(litert_process):
    found = [
        judge(*example, litert_process) for example in itertools.islice(gradients(), 0, None, 3)
    ]
    assert [one for one in found if one.verdict != "right"] == []
