"""JAX's own examples of its primitives, lifted: some of them, chosen at random.

All of them are judged by `python -m tests.bridge.lifting.harnesses`.
"""

import pytest

from tests.bridge.lifting.harnesses import judge, sample


@pytest.mark.parametrize("x64", [False, True])
def test_some_harnesses_of_each_primitive(x64):
    outcomes = [o for h in sample(25, x64=x64) for o in judge(h, x64=x64)]
    calls = [outcome for outcome in outcomes if outcome.aspect == "call"]
    assert not [outcome for outcome in calls if outcome.verdict in ("wrong", "raised")]
    assert sum(outcome.verdict == "right" for outcome in calls) > 18
