"""JAX's own examples of its primitives, lifted: some of them, chosen at random.

All of them, in each target, are judged by `python -m tests.operations.harnesses`.
"""

import pytest

from tests.operations.harnesses import harness_cases, judge, sample
from tests.operations.targets import opened


@pytest.mark.parametrize(
    ("form", "count"), [("static", 25), pytest.param("gradient", 40, marks=pytest.mark.slow)]
)
def test_some_harnesses_of_each_primitive(form, count):
    with opened("JAX") as target:
        found = list(judge(target, sample(list(harness_cases()), count), form))
    assert not [one for one in found if one.word in ("differs", "raised")]
    assert sum(one.word == "right" for one in found) > count // 2
