"""The matrix tells what is right from what is wrong; without its environments."""

from __future__ import annotations

import ast
import io
import sys
from importlib import metadata
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from packaging.requirements import Requirement
from rich.console import Console

from tests.matrix import consumer, environments
from tests.matrix.__main__ import main
from tests.matrix.case import EXACT, Case
from tests.matrix.cells import CONSUMER, consume, run_files, unreadable
from tests.matrix.environments import (
    CONSUMERS,
    ROOT,
    RUNNING,
    USUAL,
    USUAL_JAX,
    WRITERS,
    Environment,
    Python,
    constraints,
    find_python,
    prepare,
)
from tests.matrix.files import write_case, write_cases
from tests.matrix.functions import CASES, FAMILIES
from tests.matrix.grid import (
    DEVIATIONS,
    REFUSALS,
    Cell,
    Outcome,
    Refusal,
    exit_status,
    problem,
    show,
)
from tests.matrix.report import BEGIN, END, table, write_table
from tests.matrix.runs import with_each_jax
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


def test_the_grid_shows_counts_and_what_fails():
    shown = io.StringIO()
    show([PASSED, WRONG[0], PASSED, ABSENT], Console(file=shown, width=20))
    lines = shown.getvalue().splitlines()
    assert lines[0] == "JAX 0.10.2 for 2.18, in TensorFlow 2.18  .F.  . 2 passed, F 1 failed"
    assert (
        lines[lines.index("JAX 0.10.2 for 2.18, in TensorFlow 2.18, erf") + 1] == "FAILED: off by 1"
    )
    assert "jax-0.12.0: left out, no python3.13" in lines
    assert lines[-1] == "3 passed, 1 failed"


def test_what_is_written_for_the_oldest_is_refused_in_each():
    for tensorflow in ("2.14", "2.18", "2.21"):
        cell = Cell("0.10.2", "2.14", tensorflow, "dot", Outcome.REFUSED, "What runs it is 2.19.")
        assert problem(cell, [REFUSAL]) == ""


@pytest.mark.parametrize(
    ("target", "written_for", "expected"),
    [(DEFAULT, "2.18", True), (DEFAULT, "2.21", False), ("2.16", "2.18", False)],
)
def test_by_default_a_file_may_be_for_2_18(target, written_for, expected):
    message = f"written for {written_for}"
    cell = Cell("0.10.2", target, "2.16", "erf", Outcome.REFUSED, message)
    assert (problem(cell) == "") == expected


def test_a_known_deviation_is_expected_where_it_is_known():
    known = DEVIATIONS[0]
    for tensorflow, message, expected in [
        (known.tensorflow[0], f"signature: {known.match}", True),
        (known.tensorflow[0], "another", False),
        ("2.21", known.match, False),
    ]:
        cell = Cell("0.10.2", tensorflow, tensorflow, known.case, Outcome.FAILED, message)
        assert (problem(cell) == "") == expected


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


@pytest.mark.parametrize(
    ("entry", "answer"),
    [
        (Written("f", "2.18", oldest="2.18"), None),
        (Written("f", DEFAULT, oldest="2.14"), None),
        (Written("f", DEFAULT, oldest="2.21"), (Outcome.REFUSED, "written for 2.21")),
        (Written("f", "2.18", oldest="2.21"), (Outcome.FAILED, "written for 2.21")),
        (Written("f", "2.18", error="VersionError: no"), (Outcome.REFUSED, "VersionError: no")),
        (Written("f", "2.18", error="TypeError: x"), (Outcome.FAILED, "at save: TypeError: x")),
    ],
)
def test_what_cannot_be_run(entry, answer):
    assert unreadable(entry, "2.18") == answer


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


def test_files_of_the_same_bytes_are_run_once(tmp_path):
    cells = _fake_run(tmp_path, ["a", "b", "fails", "c"], same=["a", "c"])
    # the script answers with the name of what it ran
    assert [cell.message for cell in cells] == ["a", "b", "fails", "a"]


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


def test_a_process_that_dies_of_its_last_cell_ends(tmp_path):
    assert [cell.outcome for cell in _fake_run(tmp_path, ["dies"])] == [Outcome.DIED]


def test_a_process_that_hangs_is_ended(tmp_path):
    cells = _fake_run(tmp_path, ["a", "hangs", "b"], silence=2.0)
    assert [cell.outcome for cell in cells] == [Outcome.PASSED, Outcome.DIED, Outcome.PASSED]
    assert cells[1].message.startswith("SIGKILL")


def test_a_process_that_does_not_start_is_not_tried_for_each_cell(tmp_path):
    script = tmp_path / "fake.py"
    script.write_text(SCRIPT + "# starts once")
    command = [sys.executable, str(script), str(tmp_path)]
    answers = list(consume(command, ["no_start", "a", "b"], silence=60.0))
    assert {answer[1:] for answer in answers} == {(Outcome.DIED, "exit status 1. cannot import")}
    assert [answer[0] for answer in answers] == ["no_start", "a", "b"]


@pytest.mark.parametrize(
    ("found", "expected", "tolerance"),
    [
        (np.float32([1, 2]), np.float32([1, 2]), 0.0),
        (np.float32([1, 2.0001]), np.float32([1, 2]), 1e-4),
        (np.float32([np.nan, -np.inf]), np.float32([np.nan, -np.inf]), 0.0),
        (jnp.bfloat16([1, 2]), jnp.bfloat16([1, 2]), 0.0),
        (np.complex64([1 + 2j]), np.complex64([1 + 2j]), 0.0),
        (np.int32([]), np.int32([]), 0.0),
        (np.float32([]), np.float32([]), 0.0),
    ],
)
def test_equal_arrays(found, expected, tolerance):
    assert (
        consumer.difference(tf.constant(np.asarray(found)), np.asarray(expected), tolerance) == ""
    )


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


def test_a_missing_gradient_and_missing_results_are_found():
    one = np.float32([1])
    assert consumer.compare("gradient", {0: None}, {0: one}, 1.0) == ["gradient, 0: None"]
    assert consumer.compare("root", {}, {0: one}, 1.0) == ["root: 0 results, expected 1"]


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


def test_a_function_that_cannot_be_exported_is_a_failed_cell(tmp_path):
    case = Case("bad", lambda x: x @ x, (np.zeros((2, 3), np.float32),))
    (entry,) = write_case(case, tmp_path / "bad", ["2.18"])
    assert entry.error.startswith("TypeError: ")
    assert unreadable(entry, "2.18")[0] is Outcome.FAILED


def test_a_refusal_is_recorded(tmp_path):
    (case,) = (case for case in CASES if case.name == "dot_algorithm")
    refused, written = write_case(case, tmp_path / case.name, ["2.18", DEFAULT])
    assert problem(Cell("", "2.18", "2.18", case.name, *unreadable(refused, "2.18"))) == ""
    assert problem(Cell("", DEFAULT, "2.18", case.name, *unreadable(written, "2.18"))) == ""
    assert unreadable(written, "2.19") is None


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


def test_values_survive_the_file(tmp_path):
    case = Case(
        "f", lambda x, y: (x, y), (jnp.bfloat16([1, 2]), np.bool_(True)), more=[(_X, _Y)],
        tolerance=EXACT,
    )  # fmt: skip
    write_case(case, tmp_path / "f", [])
    tolerance, calls = consumer.read_values(tmp_path / "f" / "values.npz")
    assert tolerance == 0.0
    assert [str(calls[0]["input"][i].dtype) for i in range(2)] == ["bfloat16", "bool"]
    assert calls[1]["output"][0].tolist() == _X.tolist()
    assert calls[1]["cotangent"].keys() == {0}


_X, _Y = np.float32([[1.5]]), np.int8(3)


def test_pins_replace_those_of_the_file():
    text = "# made so\n\njax==1\nml_dtypes==2\nnumpy==3\n"
    assert constraints(text, {"jax": "4", "ml-dtypes": "5"}) == "numpy==3\njax==4\nml-dtypes==5\n"


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


def _command(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_an_interpreter_is_found_where_one_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = Environment("jax-1", "1", (), pythons=("python3.98", "python3.99"))
    assert find_python(wanted) is None
    _command(tmp_path, "python3.98", "exit 127")
    assert find_python(wanted) is None
    found = _command(tmp_path, "python3.99", "echo python3.99")
    assert find_python(wanted) == Python(found, "python3.99")
    either = Environment("jax-1", "1", (), pythons=("python3.98", RUNNING.version))
    assert find_python(either) == RUNNING
    assert find_python(Environment("tf-1", "1", ())) == RUNNING


def test_an_interpreter_is_taken_where_it_suits(tmp_path):
    other = _command(tmp_path, "python", "echo python3.99")
    suits = [Environment("jax-1", "1", (), pythons=pythons) for pythons in ((), ("python3.99",))]
    assert [find_python(e, wanted=other) for e in suits] == [Python(other, "python3.99")] * 2
    older = Environment("jax-1", "1", (), pythons=(RUNNING.version,))
    assert find_python(older, wanted=other) == RUNNING
    assert find_python(older, wanted=str(tmp_path / "absent")) == RUNNING


def test_an_environment_is_made_once(tmp_path, monkeypatch):
    commands = []

    def run(command, constrained=None):
        commands.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(exist_ok=True)

    monkeypatch.setattr(environments, "run_command", run)
    wanted = Environment("tf-1", "1", ("numpy",), pins={"numpy": "2.0"})
    prepare(wanted, RUNNING, folder=tmp_path)
    assert len(commands) == 2
    ready = prepare(wanted, RUNNING, folder=tmp_path)
    assert len(commands) == 2
    assert ready.python == tmp_path / "tf-1" / "bin" / "python"
    prepare(Environment("tf-1", "1", ("numpy",)), RUNNING, folder=tmp_path)
    assert len(commands) == 4
    ready = prepare(wanted, Python("other", "python3.99"), folder=tmp_path)
    assert commands[4] == ["other", "-m", "venv", str(tmp_path / "tf-1-python3.99")]
    assert ready.python.parents[1] == tmp_path / "tf-1-python3.99"


def test_what_is_beside_brings_nothing_along(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(
        environments, "run_command", lambda command, *rest: commands.append(command)
    )
    (tmp_path / "tf-1").mkdir()
    prepare(Environment("tf-1", "1", ("jax",), beside=("keras",)), RUNNING, folder=tmp_path)
    first, second = commands[1:]
    assert first[-1] == "jax"
    assert "--no-deps" not in first
    assert second[-2:] == ["--no-deps", "keras"]


def test_no_environment_is_made_when_no_time_is_left(monkeypatch):
    monkeypatch.setattr("tests.matrix.runs.prepare", None)  # a call of it would fail
    cells = with_each_jax(only=USUAL_JAX, step=None, until=0)
    assert [cell.case for cell in cells] == ["tests with jax-0.9.0", "tests with jax-0.10.2"]
    assert {(cell.outcome, cell.message) for cell in cells} == {
        (Outcome.ABSENT, "no time was left")
    }


def test_an_environment_that_cannot_be_made_fails_the_run(monkeypatch, capsys):
    broken = Environment("no-such", "2.18", (), pins={})
    monkeypatch.setattr("tests.matrix.runs.CONSUMERS", (broken,))
    monkeypatch.setattr("tests.matrix.runs.sys.executable", "false")
    monkeypatch.setattr(environments, "RUNNING", Python("false", RUNNING.version))
    assert main(["--only", "2.18"]) == 1
    assert "An environment cannot be made: false -m venv" in capsys.readouterr().out


def test_an_unknown_version_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--only", "1.15"])
    assert "--only takes one of 2.14, 2.15, 2.16" in capsys.readouterr().err


FAMILY = {"numbers": ["erf", "dot"], "rows": ["sum"], "none": []}
TABLE = """\
| Functions | | 2.16 | 2.18 |
| --- | --: | --: | --: |
| numbers | 2 | 1, 1 refused | 1, 1 failed |
| rows | 1 | 1 | 1 |
| one file, for 2.16 | 3 | 2, 1 refused | 3 |
| one file, by default | 1 | 1 | 1 |

- failed for 2.18: `dot`
- refused for 2.16: `dot`"""


def _cells():
    outcome = {("2.16", "dot", "2.16"): Outcome.REFUSED, ("2.18", "dot", "2.18"): Outcome.FAILED}
    for tensorflow in ("2.18", "2.16"):
        for case in ("erf", "dot", "sum"):
            for target in {tensorflow, "2.16"}:
                found = outcome.get((target, case, tensorflow), Outcome.PASSED)
                yield Cell("1", target, tensorflow, case, found)
        yield Cell("1", DEFAULT, tensorflow, "erf", Outcome.PASSED)


def test_the_table_of_a_page():
    assert table([*_cells(), ABSENT], FAMILY).replace("|  |", "| |") == TABLE


def test_the_table_is_put_between_the_markers(tmp_path):
    page = tmp_path / "versions.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_table(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(ValueError, match="has no <!-- matrix -->"):
        write_table(page, "new")
