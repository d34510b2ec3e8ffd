"""`python -m tests.bridge.lifting.judged_operations`: each operation of StableHLO, lifted.

Each is judged by the reference interpreter, of each dtype that it has, with its operands as
arguments under `jax.jit` and as constants, which are folded. Printed is what differs.

    python -m tests.bridge.lifting.judged_operations [DTYPE ...]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
from jax import enable_x64

import bridge
from tests.bridge.lifting.operation_programs import (
    DTYPES,
    OperationCase,
    conversion_cases,
    elementwise_cases,
    joined,
)
from tests.bridge.lifting.reference_interpreter import differs, interpret
from tests.bridge.lifting.structural_programs import structural_cases


def all_cases(dtype: str) -> Iterator[OperationCase]:
    """Yield the cases of all operations of a dtype."""
    yield from elementwise_cases(dtype)
    yield from conversion_cases(dtype)
    yield from structural_cases(dtype)


def faults_of(cases: Sequence[OperationCase], *, constants: bool = False) -> list[str]:
    """Return the names of the cases whose lifted result is not the interpreter's, and how not."""
    text, arrays = joined(cases, constants=constants)
    expected = interpret(text, arrays)
    with enable_x64(True):
        found = jax.device_get(jax.tree.leaves(jax.jit(bridge.to_jax(text))(*arrays)))
    triples = zip(cases, found, expected, strict=True)
    faults = (
        (case.name, differs(*pair, ulps=case.ulps, absolute=case.absolute))
        for case, *pair in triples
    )
    return [f"{name}: {fault}" for name, fault in faults if fault]


def main() -> int:
    """Judge the dtypes that the command names, or all; return 1 if an operation is wrong."""
    count = 0
    for dtype in sys.argv[1:] or DTYPES:
        cases = list(all_cases(dtype))
        faults = [f for held in (False, True) for f in faults_of(cases, constants=held)]
        print(f"{dtype}: {len(cases)} cases, {len(faults)} faults", flush=True)
        print("".join(f"  {fault}\n" for fault in faults), end="")
        count += len(faults)
        jax.clear_caches()
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
