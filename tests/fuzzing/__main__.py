"""`make fuzz`: random programs through the bridge, and mutated files.

    python -m tests.fuzzing [SUITE] [--seconds N] [--seed N] [--count N]
    python -m tests.fuzzing summary [SUITE] [--file FILE]

A suite is `programs` (JAX programs), `call_tf` (TensorFlow functions in JAX), `plain` (programs
that an optimizer is tempted to rewrite, as files of TensorFlow's own operations in a session
without XLA), `files` (mutations of SavedModels), or `all`, which is the default and shares the time
out. Programs that are wrong are reduced to a few lines and printed, and at the end how many arrays
were compared; all that was run is in `.fuzz/SUITE.jsonl`, where the next run goes on. The mutations
are coverage-guided where atheris is installed, and seeded otherwise; what ends in anything but a
value or an `InteropError` is left behind in the folder `.fuzz`, next to the inputs that were found
to reach something new.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzzing.programs.campaign import SUITES, campaign, read, summary

FOLDER = Path(".fuzz")
CHUNK = 1000


def _seeded(seconds: float, seed: int) -> None:
    from tests.fuzzing.models import make
    from tests.fuzzing.run import run, show

    print("atheris is not installed: seeded mutations, which coverage does not guide.", flush=True)
    ends: Counter[str] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        models = make(Path(folder) / "models")
        while time.monotonic() - start < seconds:
            ends += run(models, Path(folder) / "scratch", range(seed, seed + CHUNK))
            seed += CHUNK
            print(f"up to seed {seed}: {show(ends)}", flush=True)


def _guided(seconds: float, seed: int) -> None:
    import atheris

    # Only what is imported in this block is watched. What tells the kinds of inputs apart is, too:
    # each of them reads a whole model, so that all would seem alike.
    watched = ["savedmodel", "tests.fuzzing.guided", "xla_call_module"]
    with atheris.instrument_imports(include=watched):
        from tests.fuzzing.guided import search
    shutil.rmtree(FOLDER / "models", ignore_errors=True)
    (FOLDER / "corpus").mkdir(parents=True, exist_ok=True)
    options = [f"-max_total_time={seconds:.0f}", f"-seed={seed}", f"-artifact_prefix={FOLDER}/"]
    limits = ["-max_len=100000", "-len_control=0", "-timeout=20", "-rss_limit_mb=4096"]
    arguments = [sys.argv[0], *options, *limits, str(FOLDER / "corpus")]
    atheris.Setup(arguments, search(FOLDER))
    atheris.Fuzz()


def _files(seconds: float, seed: int) -> None:
    guided = importlib.util.find_spec("atheris") is not None
    (_guided if guided else _seeded)(seconds, seed)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument(
        "suite", nargs="*", default=["all"], help="all, files, programs, call_tf, plain"
    )
    parser.add_argument("--seconds", type=float, default=600, help="how long")
    parser.add_argument("--seed", type=int, help="the first one; by default the next one")
    parser.add_argument("--count", type=int, help="how many programs")
    parser.add_argument("--x64", type=int, choices=[0, 1], help="whether JAX has 64-bit types")
    parser.add_argument("--file", type=Path, help="instead of .fuzz/SUITE.jsonl")
    options = parser.parse_args()
    names = [*SUITES] if options.suite[-1] in ("all", "summary") else [options.suite[-1]]
    if options.suite[0] == "summary":
        for name in names:
            print(name, summary(read(options.file or FOLDER / f"{name}.jsonl")))
        return
    share = options.seconds / (len(names) + 1) if options.suite == ["all"] else options.seconds
    for name in names:
        if name in SUITES:
            file = options.file or FOLDER / f"{name}.jsonl"
            limits = {"seconds": share, "count": options.count, "first": options.seed}
            limits["x64"] = None if options.x64 is None else bool(options.x64)
            records = campaign(name, file, **limits, tell=lambda text: print(text, flush=True))
            print(name, summary(records), flush=True)
    if options.suite[-1] in ("all", "files"):
        _files(share, options.seed or 1_000_000)


if __name__ == "__main__":
    _main()
