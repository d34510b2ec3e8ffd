"""The process that runs the programs of some seeds; what it finds goes down a pipe, a line each.

    python -m tests.fuzzing.programs.worker SUITE X64 FIRST COUNT FD

Of the keys of failures that stdin has as JSON, with how many of each were reduced, those that were
often enough are reported and not reduced again.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import time
from collections import Counter
from typing import Any

from tests.xla_flags import is_unoptimized, set_unoptimized

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

_REDUCED_OF_A_KEY = 2
_REDUCING_SECONDS = 60
_CLEARED_EVERY = 40


def _main() -> None:
    name, x64, first, count, pipe = sys.argv[1:6]
    known = Counter(json.load(sys.stdin))
    import jax

    jax.config.update("jax_enable_x64", x64 == "1")
    if is_unoptimized():
        set_unoptimized(of_tensorflow=False)
    suite = importlib.import_module(name)
    with os.fdopen(int(pipe), "w", buffering=1) as out:

        def say(**fields: Any) -> None:
            out.write(json.dumps(fields) + "\n")

        for number in range(int(count)):
            seed = int(first) + number
            say(begin=seed)
            say(**_record(suite, seed, x64 == "1", known, say))
            if number % _CLEARED_EVERY == _CLEARED_EVERY - 1:
                suite.clear()


def _record(suite: Any, seed: int, x64: bool, known: Counter[str], say: Any) -> dict[str, Any]:
    from tests.fuzzing.programs.outcomes import FAILURES

    start, cpu = time.monotonic(), time.process_time()
    program = suite.generate(seed, x64=x64)
    outcomes = suite.run(program)
    record = {
        "seed": seed,
        "x64": x64,
        "seconds": round(time.monotonic() - start, 2),
        "cpu": round(time.process_time() - cpu, 2),
        "outcomes": [outcome.to_json() for outcome in outcomes],
        "templates": [statement.template for statement in program.statements],
        "options": dict(program.options),
    }
    failed = [outcome for outcome in outcomes if outcome.kind in FAILURES]
    if failed:
        record["source"] = program.describe()
        record["findings"] = []
        for outcome in failed:
            known[outcome.key] += 1
            if known[outcome.key] <= _REDUCED_OF_A_KEY:
                record["findings"].append(_reduced(suite, program, outcome, say))
    return record


def _reduced(suite: Any, program: Any, outcome: Any, say: Any) -> dict[str, Any]:
    """The few lines, and what they end in."""
    from tests.fuzzing.programs.reducing import reduce

    alone = dataclasses.replace(program, checks=(outcome.check,))
    last = [outcome]

    def fails(candidate: Any) -> bool:
        say(reducing=program.seed)
        try:
            found = suite.run(candidate)
        except Exception:  # noqa: BLE001 - it is no program
            return False
        same = [o for o in found if o.key == outcome.key]
        last[:] = same or last
        return bool(same)

    if not fails(alone):
        return {"key": outcome.key, "reason": outcome.reason, "reduced": "does not fail again"}
    small = reduce(alone, fails, seconds=_REDUCING_SECONDS, more=suite.simpler)
    return {
        "key": outcome.key,
        "reason": last[0].reason,
        "templates": [statement.template for statement in small.statements],
        "reduced": small.describe(),
    }


if __name__ == "__main__":
    _main()
