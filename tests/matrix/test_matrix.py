"""The matrix tells what is right from what is wrong; without its environments."""

from __future__ import annotations

import ast
import sys
from importlib import metadata
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from packaging.requirements import Requirement

from tests.matrix import consumer
from tests.matrix.cells import CONSUMER, run_files
from tests.matrix.environments import (
    CONSUMERS,
    ROOT,
    USUAL,
    WRITERS,
)
from tests.matrix.files import write_cases
from tests.matrix.functions import CASES, FAMILIES
from tests.matrix.grid import (
    DEVIATIONS,
    REFUSALS,
    Cell,
    Outcome,
    Refusal,
    exit_status,
    problem,
)
from tests.matrix.written import DEFAULT, VALUES, Written, read_written
from xla_call_module.versions import RELEASES

REFUSAL = Refusal("dot", "2.19", r"runs it is 2\.19", jax="0.10")
PASSED = Cell("0.10.2", "2.18", "2.18", "erf", Outcome.PASSED)
REFUSED = Cell("0.10.2", "2.18", "2.18", "dot", Outcome.REFUSED, "What runs it is 2.19.")
ABSENT = Cell("", "", "", "jax-0.12.0", Outcome.ABSENT, "no python3.13")
WRONG = (
    Cell("0.10.2", "2.18", "2.18", "erf", Outcome.FAILED, "off by 1"),
    Cell("0.10.2", "2.18", "2.18", "erf", Outcome.DIED, "SIGSEGV"),
    Cell("0.10.2", "2.18", "2.18", "erf", Outcome.REFUSED, "What runs it is 2.19."),
    Cell("0.10.2", "2.18", "2.18", "dot", Outcome.PASSED),
    Cell("0.10.2", "2.18", "2.18", "dot", Outcome.FAILED, "off by 1"),
    Cell("0.10.2", "2.18", "2.18", "dot", Outcome.REFUSED, "No reason."),
    Cell("0.10.2", "2.19", "2.19", "dot", Outcome.REFUSED, "What runs it is 2.19."),
    Cell("0.9.0", "2.18", "2.18", "dot", Outcome.REFUSED, "What runs it is 2.19."),
)

# Does as it is told by the names of its cells.
SCRIPT = """
import json, os, sys, time
for cell in sys.argv[2:]:
    case = cell.partition("/")[0]
    if case == "no_start":
        sys.exit("cannot import")
    print(json.dumps({"cell": cell}), flush=True)
    if case == "dies":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 11)
    if case == "hangs":
        time.sleep(600)
    outcome = "failed" if case == "fails" else "passed"
    print(json.dumps({"cell": cell, "outcome": outcome, "message": case}), flush=True)
"""


@pytest.mark.parametrize("cell", [PASSED, REFUSED, ABSENT])
def test_what_is_expected_is_no_problem(cell):
    assert problem(cell, [REFUSAL]) == ""
    assert exit_status([PASSED, cell], [REFUSAL]) == 0


@pytest.mark.parametrize("cell", WRONG)
def test_a_cell_that_is_not_as_expected_fails_the_run(cell):
    assert cell.message in problem(cell, [REFUSAL])
    assert problem(cell, [REFUSAL]) != ""
    assert exit_status([PASSED, cell, REFUSED], [REFUSAL]) == 1


@pytest.mark.parametrize("cells", [[], [ABSENT]])
def test_a_run_of_nothing_fails(cells):
    assert exit_status(cells) == 1


def test_exceptions_are_about_cases_and_releases_that_exist():
    names = {case.name for case in CASES}
    assert {known.case for known in (*REFUSALS, *DEVIATIONS)} <= names
    releases = {c.version for c in CONSUMERS}
    assert {refusal.first for refusal in REFUSALS} <= releases
    assert {release for known in DEVIATIONS for release in known.tensorflow} <= releases


def test_every_release_can_be_run():
    assert [environment.version for environment in CONSUMERS] == [r.name for r in RELEASES]
    assert set(USUAL) <= {environment.version for environment in CONSUMERS}


def test_every_family_has_cases():
    assert len(CASES) >= 180
    assert [name for name, cases in FAMILIES.items() if not cases] in ([], ["linear algebra"])


def test_cases_have_names_of_their_own_and_reasons():
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.tolerance.reason for case in CASES)


def _fake_run(folder, names, *, silence=60.0, same=(), passed=None):
    script = folder / "fake.py"
    script.write_text(SCRIPT)
    for name in names:
        (folder / name / DEFAULT).mkdir(parents=True, exist_ok=True)
        content = "same" if name in same else name
        (folder / name / DEFAULT / "saved_model.pb").write_text(content)
    written = [Written(name, DEFAULT, oldest="2.14") for name in names]
    return run_files(
        Path(sys.executable), folder, written, jax="1", tensorflow="2.18", consumer=script,
        silence=silence, passed=passed,
    )  # fmt: skip


def test_what_passed_is_not_run_again(tmp_path):
    passed = tmp_path / "passed"
    _fake_run(tmp_path, ["a", "fails", "dies"], passed=passed)
    assert len(passed.read_text().split()) == 1
    cells = _fake_run(tmp_path, ["a", "fails", "b"], passed=passed)
    assert [cell.message for cell in cells] == ["", "fails", "b"]
    assert [cell.outcome for cell in cells] == [Outcome.PASSED, Outcome.FAILED, Outcome.PASSED]
    (tmp_path / "a" / VALUES).write_text("other values")
    assert [cell.message for cell in _fake_run(tmp_path, ["a"], passed=passed)] == ["a"]


def test_a_process_that_dies_loses_only_its_cell(tmp_path):
    cells = _fake_run(tmp_path, ["a", "dies", "b", "fails", "dies2", "c"])
    outcomes = {cell.case: cell.outcome for cell in cells}
    passed = dict.fromkeys(["a", "b", "dies2", "c"], Outcome.PASSED)
    assert outcomes == {"dies": Outcome.DIED, "fails": Outcome.FAILED} | passed
    assert [cell.message for cell in cells if cell.case == "dies"] == ["SIGSEGV last words"]


@pytest.mark.parametrize(
    ("found", "expected", "tolerance", "match"),
    [
        (np.float32([1, 2.001]), np.float32([1, 2]), 1e-4, "off by 0.001"),
        (np.float32([1]), np.float32([1, 1]), 1.0, "expected"),
        (np.float32([1]), np.float64([1]), 1.0, "expected float64"),
        (np.float32([1]), np.float32([np.nan]), 1.0, "expected"),
        (np.float32([np.nan]), np.float32([1]), 1.0, "off by nan"),
        (np.float32([np.inf]), np.float32([1]), 1.0, "off by inf"),
        (np.float32([np.inf]), np.float32([-np.inf]), 1.0, "expected"),
        (np.int32([1]), np.int32([2]), 1.0, "expected"),
        (np.complex64([1 + 2j]), np.complex64([1 - 2j]), 0.1, "off by 4"),
        (jnp.bfloat16([1, 2]), jnp.bfloat16([1, 3]), 0.1, "off by 1"),
    ],
)
def test_different_arrays(found, expected, tolerance, match):
    found = tf.constant(np.asarray(found))
    assert match in consumer.difference(found, np.asarray(expected), tolerance)


def test_the_consumer_stands_alone():
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(CONSUMER.read_text()))
        for name in _imported(node)
    }
    assert imported - sys.stdlib_module_names == {"numpy", "tensorflow"}


def _imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) else []


def test_a_wrong_value_is_a_failed_cell(tmp_path):
    """The whole way, with the TensorFlow that is installed here."""
    names = ["bfloat16", "keys", "two_symbols", "slices"]
    write_cases(tmp_path, [DEFAULT], names)
    _tamper(tmp_path / "slices" / "values.npz", "0/gradient/0/float32")
    _tamper(tmp_path / "two_symbols" / "values.npz", "1/output/1/float32")
    cells = run_files(
        Path(sys.executable), tmp_path, read_written(tmp_path), jax="1", tensorflow="2.21"
    )
    messages = {cell.case: cell.message for cell in cells}
    assert messages["bfloat16"] == messages["keys"] == ""
    assert messages["slices"].startswith("gradient, call 0, 0: off by 1 ")
    assert messages["two_symbols"].startswith("signature, call 1, 1: off by 1 ")
    assert "; root, call 1, 1: off by 1 " in messages["two_symbols"]


def _tamper(path, key):
    with np.load(path) as entries:
        values = dict(entries)
    values[key] = values[key] + 1
    np.savez(path, **values)


_X, _Y = np.float32([[1.5]]), np.int8(3)


@pytest.mark.parametrize("writer", WRITERS, ids=lambda writer: writer.name)
def test_what_is_installed_with_another_jax_takes_it(writer):
    """pip refuses an environment of versions that do not go together."""
    pinned = (line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    names = {pin[0] for pin in pinned if len(pin) == 2} - writer.pins.keys()
    wants = [
        (name, wanted)
        for name in sorted(names & {found.name for found in metadata.distributions()})
        for wanted in map(Requirement, metadata.requires(name) or ())
        if wanted.name in ("jax", "jaxlib") and wanted.marker is None
    ]
    assert wants
    refused = [f"{name} asks for {wanted}" for name, wanted in wants if not _takes(wanted, writer)]
    assert refused == []


def _takes(wanted, writer):
    return wanted.specifier.contains(writer.pins[wanted.name])
