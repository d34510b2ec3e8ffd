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
from tests.fuzzing.mutations import damage_bytes, mutate_foreign
from tests.fuzzing.reading import TookTooLongError, outcome, read_all, time_limit
from tests.fuzzing.run import copy, run, show
from tests.policy.source import ROOT
from xla_call_module.errors import FormatError, InteropError

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


def test_a_reader_that_hangs_is_stopped():
    with pytest.raises(TookTooLongError, match=r"over 0\.05 s"), time_limit(0.05):
        time.sleep(10)


def test_other_errors_go_through():
    def refuse():
        raise FormatError("it is damaged")

    assert isinstance(outcome(refuse), FormatError)
    with pytest.raises(ZeroDivisionError, match="division"):
        outcome(lambda: 1 // 0)


def test_copies_are_fresh(models, tmp_path):
    folder = copy(models["params"], tmp_path)
    (folder / "saved_model.pb").unlink()
    os.mkfifo(folder / "saved_model.pb")
    assert read_all(copy(models["params"], tmp_path)) == read_all(models["params"])


def test_mutations_are_the_same_each_time():
    data = bytes(range(256))
    first, second = ([damage_bytes(random.Random(n), data) for n in range(50)] for _ in range(2))
    assert first == second
    assert len({*first}) > 30
