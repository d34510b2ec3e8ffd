"""`python -m tests.operations [WORD ...]`: what becomes of each case in each target.

Printed is what is not right, and not as `deviations.toml` has it, and a count by target.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests.xla_flags import UNOPTIMIZED, with_xla_flags

# As in the rounds of tests, so that they share what JAX computes.
os.environ["XLA_FLAGS"] = with_xla_flags(UNOPTIMIZED)
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

KEPT = Path(__file__).parent.parent.parent / ".pytest_cache" / "d" / "operations"


def main() -> int:
    """Run the cells that the command names; return 1 if one is not what is recorded."""
    from tests.operations.artifacts import folder_of_this_table
    from tests.operations.case import FORMS
    from tests.operations.cells import batches, outcomes_in, unexpected
    from tests.operations.table import CASES
    from tests.operations.targets import TARGETS, opened

    parser = argparse.ArgumentParser(prog="python -m tests.operations")
    parser.add_argument("words", nargs="*", help="of the names of cases; by default all")
    parser.add_argument("--target", action="append", choices=TARGETS)
    parser.add_argument("--dtype", action="append", help="by default the first one of each case")
    parser.add_argument("--form", action="append", choices=FORMS)
    parser.add_argument("--all", action="store_true", help="all dtypes and forms")
    parser.add_argument("--quick", action="store_true", help="leave out what takes long")
    parser.add_argument("--alone", action="store_true", help="each case in a program of its own")
    parser.add_argument("--times", action="store_true", help="print the seconds of each batch")
    options = parser.parse_args()
    cases = [c for c in CASES if not options.words or any(w in c.name for w in options.words)]
    cases = [case for case in cases if not (options.quick and case.long)]
    forms = FORMS if options.all and not options.form else options.form or ["static"]
    dtypes = options.dtype or ("all" if options.all else "first")
    failed = False
    folder = folder_of_this_table(KEPT)
    for name in options.target or TARGETS:
        counts: Counter[str] = Counter()
        start = time.perf_counter()
        with opened(name) as target:
            its_forms = [form for form in forms if form in target.forms]
            for batch in batches(cases, its_forms, dtypes, alone=options.alone):
                begun = time.process_time()
                for outcome in outcomes_in(target, batch, folder):
                    counts[outcome.word] += 1
                    if unexpected(name, batch, outcome):
                        failed = True
                        print(
                            f"{name}\t{batch.dtype}\t{batch.form}\t{outcome.case}\t"
                            f"{outcome.word}\t{' '.join(outcome.reason.split())[:400]}",
                            flush=True,
                        )
                if options.times:
                    seconds = time.process_time() - begun
                    print(f"# {batch.name}, {batch.cases[0].name}: {seconds:.1f} s", flush=True)
        seconds = time.perf_counter() - start
        print(f"# {name}: {dict(counts)}, {seconds:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
