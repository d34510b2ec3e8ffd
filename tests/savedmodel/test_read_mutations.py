"""Five thousand mutations: each reads as it was written, or is refused; nothing else happens."""

from __future__ import annotations

import os
import random
import resource
import shutil
import subprocess
import sys
import time

import pytest

from tests.fuzzing.models import make
from tests.fuzzing.mutations import mutate_foreign
from tests.fuzzing.reading import outcome, read_all
from tests.fuzzing.run import run, show
from tests.policy.source import ROOT
from xla_call_module.errors import InteropError

COUNT = 5000
LOADED = 300
FOREIGN = 400
GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def models(folder):
    return make(folder)


def test_mutations_are_read_right_or_refused(models, tmp_path):
    read_all(models["params"])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    ends = run(models, tmp_path, range(COUNT))
    print(show(ends), f"{time.process_time() - start:.0f} s")
    assert ends["refused"] > COUNT / 2
    assert ends["the same"] > 0
    assert ends["another"] > 0  # of the edits
    assert time.process_time() - start < 180
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_mutations_are_loaded_right_or_refused(folder, models):
    """In a process of its own, which damage must not end."""
    command = [sys.executable, "-m", "tests.fuzzing.loads", str(folder), "0", str(LOADED)]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment, timeout=170
    )
    assert done.returncode == 0, (done.stdout.split()[-1], done.stderr[-3000:])
    assert "refused" in done.stdout
    assert "the same" in done.stdout


@pytest.mark.parametrize("name", sorted(path.parent.name for path in GOLDEN.glob("[a-z]*/model")))
def test_files_of_other_writers_are_read_or_refused(name, tmp_path):
    """Nothing tells their damage from an edit, so another model may come of it; no other error."""
    shutil.copytree(GOLDEN / name / "model", tmp_path / "m")
    path = tmp_path / "m" / "saved_model.pb"
    data = path.read_bytes()
    refused = 0
    for seed in range(FOREIGN):
        path.write_bytes(mutate_foreign(random.Random(seed), data))
        refused += isinstance(outcome(lambda: read_all(tmp_path / "m")), InteropError)
    assert 0 < refused < FOREIGN


def test_the_mutator_is_seen_by_the_test(models, tmp_path):
    """A reader that takes anything is caught."""
    with pytest.raises(AssertionError, match="another model was read") as caught:
        run(models, tmp_path, range(0, 30, 3), lambda path: (path / "saved_model.pb").read_bytes())
    assert caught.value.__notes__[0].startswith("seed ")
