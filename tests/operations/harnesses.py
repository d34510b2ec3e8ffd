"""`python -m tests.operations.harnesses`: JAX's own examples of its primitives, in a target.

Each harness of `jax._src.internal_test_util.test_harnesses` is a case with the arrays that it has.
Printed is what is not right, and a count.

    python -m tests.operations.harnesses [--target JAX] [--form vmap] [--only TEXT] [--sample 200]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import enable_x64

from tests.operations.artifacts import Batch
from tests.operations.case import FORMS, Case
from tests.operations.judging import Outcome, outcomes
from tests.operations.operands import fixed
from tests.operations.targets import TARGETS, Target, opened

WIDE = ("int64", "uint64", "float64", "complex128")


def harness_cases() -> Iterator[Case]:
    """Yield a case for each harness for CPUs whose arguments are arrays of numbers."""
    with enable_x64(True):
        from jax._src.internal_test_util import test_harnesses

        for harness in test_harnesses.all_harnesses:
            if not harness.filter("cpu"):
                continue
            arrays = harness.dyn_args_maker(np.random.RandomState(0))
            if any(jax.dtypes.issubdtype(_dtype(x), jax.dtypes.extended) for x in arrays):
                continue
            operands = tuple(fixed(np.asarray(x), np.asarray(x).dtype.name) for x in arrays)
            told = [harness.fullname, *map(repr, harness.params.values())]
            names = [np.dtype(harness.dtype).name, *(str(one.dtype) for one in operands), *told]
            is_wide = any(wide in name for name in names for wide in WIDE)
            dtypes = ("float64",) if is_wide else ("float32",)
            yield Case(harness.fullname, harness.group_name, harness.dyn_fun, operands, dtypes)


def _dtype(value: Any) -> Any:
    return value.dtype if isinstance(value, jax.Array) else np.asarray(value).dtype


def sample(cases: Sequence[Case], number: int, *, seed: int = 0) -> list[Case]:
    """Return some cases, of each primitive one before another one of the same."""
    order = np.random.default_rng(seed).permutation(len(cases))
    counts: Counter[str] = Counter()
    ranks = {}
    for place in order:
        subject = cases[place].subject
        ranks[place] = counts[subject]
        counts[subject] += 1
    return [cases[place] for place in sorted(order, key=ranks.__getitem__)[:number]]


def judge(target: Target, cases: Sequence[Case], form: str) -> Iterator[Outcome]:
    """Yield what becomes of each case."""
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            yield from outcomes(target, Batch((case,), form, case.dtypes[0]), Path(folder))


def main() -> int:
    """Judge the harnesses that the command names; return 1 if one differs or raises."""
    parser = argparse.ArgumentParser(prog="python -m tests.operations.harnesses")
    parser.add_argument("--target", choices=TARGETS, default="JAX")
    parser.add_argument("--form", choices=FORMS, default="static")
    parser.add_argument("--only", default="", help="a part of the names of harnesses")
    parser.add_argument("--sample", type=int, help="how many, chosen at random; by default all")
    options = parser.parse_args()
    cases = [case for case in harness_cases() if options.only in case.name]
    counts: Counter[str] = Counter()
    with opened(options.target) as target:
        for outcome in judge(target, sample(cases, options.sample or len(cases)), options.form):
            counts[outcome.word] += 1
            if outcome.word not in ("right", "absent"):
                print(outcome.word, outcome.case, outcome.reason[:400], sep="\t", flush=True)
    print(dict(counts))
    return int(bool(counts["differs"] + counts["raised"]))


if __name__ == "__main__":
    sys.exit(main())
