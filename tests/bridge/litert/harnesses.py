"""`python -m tests.bridge.litert.harnesses`: JAX's own examples of its primitives, in LiteRT.

Each harness of `jax._src.internal_test_util.test_harnesses` with arguments and results of float32,
int32 and booleans is converted and run, and compared with JAX. Printed is how many are right, and
what each refusal and each fault says.

    python -m tests.bridge.litert.harnesses [--part 0/8] [--only TEXT]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import bridge
from bridge.litert.runtime import Runtime
from bridge.litert.worker_process import LiteRTProcess
from tests.bridge.lifting.harnesses import Outcome, harnesses
from xla_call_module.errors import InteropError

__all__ = ["DTYPES", "examples", "judge"]

DTYPES = frozenset({"bool", "float32", "int32"})
# Of the largest magnitude: kernels have their own polynomials and orders of sums.
_RELATIVE = 2e-5


def examples() -> Iterator[tuple[Any, Callable[..., Any], list[Any]]]:
    """Yield each harness of these dtypes with its function and its arrays."""
    for harness in harnesses(x64=False):
        try:
            arrays = [
                jnp.asarray(value) for value in harness.dyn_args_maker(np.random.RandomState(0))
            ]
            results = jax.tree.leaves(jax.eval_shape(harness.dyn_fun, *arrays))
        except Exception:  # noqa: BLE001 - what JAX itself does not run here
            continue
        if {str(value.dtype) for value in (*arrays, *results)} <= DTYPES:
            yield harness, harness.dyn_fun, arrays


def judge(
    harness: Any, function: Callable[..., Any], arrays: list[Any], process: LiteRTProcess
) -> Outcome:
    """Return what becomes of one harness."""

    def outcome(verdict: str, reason: str = "") -> Outcome:
        return Outcome(harness.fullname, harness.group_name, "call", verdict, reason)

    try:
        exported = export.export(jax.jit(function), platforms=["cpu"])(*arrays)
        expected = [np.asarray(leaf) for leaf in jax.tree.leaves(exported.call(*arrays))]
    except Exception as error:  # noqa: BLE001 - what JAX itself does not run here
        return outcome("absent", str(error))
    try:
        names = [f"x{number}" for number in range(len(arrays))]
        model = bridge.to_litert(exported, verify=False, inputs=names)
        with Runtime(model, process=process) as runtime:
            given = {name: np.asarray(a) for name, a in zip(names, arrays, strict=True)}
            found = list(runtime.run(given).values())
    except InteropError as error:
        return outcome("refused", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - a row of the table
        return outcome("raised", f"{type(error).__name__}: {error}")
    wrong = [
        text
        for got, wanted in zip(found, expected, strict=True)
        if (text := _difference(got, wanted))
    ]
    return outcome("wrong", "; ".join(wrong)) if wrong else outcome("right")


def _difference(got: Any, wanted: Any) -> str:
    """Return what differs; empty for nothing."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype}{got.shape} for {wanted.dtype}{wanted.shape}"
    if wanted.dtype != np.float32:
        return "" if np.array_equal(got, wanted) else f"{got.ravel()[:4]} for {wanted.ravel()[:4]}"
    is_same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(is_same, 0.0, np.abs(got.astype(np.float64) - wanted))
    finite = np.abs(wanted[np.isfinite(wanted)])
    allowed = _RELATIVE * float(finite.max(initial=0)) + 1e-37
    wrong = ~(error <= allowed)
    if not wrong.any():
        return ""
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return f"{got[first]} for {wanted[first]} at {tuple(map(int, first))}, {int(wrong.sum())} wrong"


def main() -> None:
    """Judge the harnesses that the command line asks for, and print what is not right."""
    parser = argparse.ArgumentParser(prog="python -m tests.bridge.litert.harnesses")
    parser.add_argument("--part", default="0/1", metavar="N/COUNT", help="every COUNT-th, from N")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose names have it")
    options = parser.parse_args()
    number, count = map(int, options.part.split("/"))
    counts: Counter[str] = Counter()
    with LiteRTProcess() as process:
        chosen = (one for one in examples() if options.only in one[0].fullname)
        for index, (harness, function, arrays) in enumerate(chosen):
            if index % count != number:
                continue
            found = judge(harness, function, arrays, process)
            counts[found.verdict] += 1
            if found.verdict not in ("right", "absent"):
                text = " ".join(found.reason.split())[:240]
                print(f"{found.verdict:8} {found.name}: {text}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
