"""Many mutations, one after another, each on a fresh copy."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.fuzzing.mutations import DAMAGE, EDITS, mutate
from tests.fuzzing.reading import TookTooLongError, outcome, read_all


def copy(source: Path, scratch: Path) -> Path:
    """A fresh copy of a model, under its own name; an older one is written over."""
    folder = scratch / source.name
    (folder / "variables").mkdir(parents=True, exist_ok=True)
    for name in ("saved_model.pb", *(f"variables/{p.name}" for p in source.glob("variables/*"))):
        target = folder / name
        if target.is_dir():
            target.rmdir()
        elif target.is_symlink() or target.is_fifo():
            target.unlink()
        target.write_bytes((source / name).read_bytes())
    return folder


def run(
    models: dict[str, Path],
    scratch: Path,
    seeds: range,
    read: Callable[[Path], Any] = read_all,
    *,
    before: Callable[[int], None] = lambda seed: None,
) -> Counter[str]:
    """Reads a mutation for each seed; how many ended in what.

    Args:
        models: what is mutated.
        scratch: a folder to work in.
        seeds: every third is damage, the others are edits.
        read: what is done with each.
        before: is told each seed.

    Raises:
        AssertionError: damage gave another model, or something took too long.
        Exception: reading raised what is no InteropError; a note has the seed.
    """
    wanted = {name: read(folder) for name, folder in models.items()}
    ends: Counter[str] = Counter()
    for seed in seeds:
        before(seed)
        rng = random.Random(seed)
        source = models[rng.choice(list(models))]
        folder = copy(source, scratch)
        is_damage = seed % 3 == 0
        what = mutate(rng, folder, models, DAMAGE if is_damage else EDITS)
        try:
            found = outcome(lambda folder=folder: read(folder))
            if isinstance(found, Exception):
                ends["refused"] += 1
                continue
            # A file of another model may fit: then it is the other model.
            same = found in ([*wanted.values()] if what == "swap_file" else [wanted[source.name]])
            assert same or not is_damage, "another model was read, without an error"
            ends["the same" if same else "another"] += 1
        except (Exception, TookTooLongError) as error:
            error.add_note(f"seed {seed}: {what} of {source.name}")
            raise
    return ends


def show(ends: Counter[str]) -> str:
    """Such as `300 refused, 20 the same`."""
    return ", ".join(f"{count} {end}" for end, count in ends.most_common())
