"""`make fuzz`: coverage-guided where atheris is installed, otherwise many more seeded mutations.

    python -m tests.fuzzing [--seconds N] [--seed N]

What ends in anything but a value or an `InteropError` is left behind in the folder `.fuzz`, next to
the inputs that were found to reach something new.
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


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing")
    parser.add_argument("--seconds", type=float, default=600, help="how long")
    parser.add_argument("--seed", type=int, default=1_000_000, help="of the first mutation")
    options = parser.parse_args()
    guided = importlib.util.find_spec("atheris") is not None
    (_guided if guided else _seeded)(options.seconds, options.seed)


if __name__ == "__main__":
    _main()
