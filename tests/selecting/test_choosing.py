"""The choice of tests by what they notice, and their parts."""

from __future__ import annotations

import pytest

from tests.policy.source import ROOT
from tests.selecting.__main__ import slow
from tests.selecting.affected import affected_by, choose_affected
from tests.selecting.choosing import choose, in_parts, mirrors
from tests.selecting.measured import Measured, Measurements
from tests.selecting.selection import Selection, is_named
from tests.selecting.sentinels import SENTINELS


def _measurements(**tests):
    """Of `name=(seconds, functions, *fixtures)`; each fixture takes ten seconds."""
    fixtures = {fixture: 10.0 for _, _, *more in tests.values() for fixture in more}
    return Measurements(
        {
            f"tests/bridge/test_{name.partition('__')[0]}.py::test_{name}": Measured(
                seconds, frozenset(f"bridge/{f}" for f in functions.split()), tuple(more)
            )
            for name, (seconds, functions, *more) in tests.items()
        },
        fixtures,
    )


def _names(chosen):
    return [name.rpartition("::test_")[2] for name in chosen]


@pytest.mark.parametrize(
    ("test", "path", "expected"),
    [
        ("tests/bridge/test_save.py::test_a", "bridge/save.py", True),
        ("tests/bridge/test_save_gradients.py::test_a", "bridge/save.py", True),
        ("tests/bridge/core/test_jax.py::test_a", "bridge/core/_jax.py", True),
        ("tests/bridge/core/test_core.py::test_a", "bridge/core/keys.py", True),
        ("tests/bridge/test_saved.py::test_a", "bridge/save.py", False),
        ("tests/bridge/other/test_save.py::test_a", "bridge/save.py", False),
    ],
)
def test_the_file_of_tests_of_a_module(test, path, expected):
    assert mirrors(test, path) is expected


def test_each_function_is_noticed_before_one_is_noticed_again():
    measured = _measurements(a=(1, "a.py:f"), a__2=(1, "a.py:f"), b=(1.2, "b.py:g"))
    weights = {"bridge/a.py:f": 1.0, "bridge/b.py:g": 1.0}
    assert {*_names(choose(measured, weights, 2.5))} == {"a", "b"}


def test_what_is_shared_is_paid_once():
    measured = _measurements(a=(1, "x.py:f", "model"), a__2=(1, "x.py:f", "model"))
    weights = {"bridge/x.py:f": 1.0}
    assert choose(measured, weights, 11) == []
    assert len(choose(measured, weights, 13)) == 2
    assert measured.seconds() == dict.fromkeys(measured.tests, 6.0)


def test_a_changed_function():
    measured = _measurements(
        a=(0.1, "a.py:f a.py:g"), a__2=(0.1, "a.py:g"), b=(0.1, "b.py:f"), b__2=(50, "a.py:f")
    )
    texts = {"bridge/a.py": ("def f():\n    return 1\n", "def f():\n    return 2\n")}
    chosen, left_out = choose_affected(affected_by(texts, measured), measured, 10)
    assert _names(chosen) == ["a", "a__2"]
    assert left_out == 1


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("tests/renewed_process.py", {"tests/verbs/test_gradient_matrix.py"}),
        ("tests/golden/digests.json", {"tests/golden"}),
        ("pyproject.toml", {"tests/policy", "tests/quick"}),
    ],
)
def test_other_changed_files(path, tests):
    found = affected_by({path: ("1", "2")}, Measurements({}, {})).tests
    assert tests <= found
    assert len(found) < 5


def test_without_measurements_the_nearest_tests_of_what_imports_a_file_run():
    texts = {"bridge/saving/new_values.py": ("", "def new(): pass")}
    assert "tests/bridge/test_update.py" in affected_by(texts, Measurements({}, {})).tests


def test_a_test_has_its_day_whatever_else_is_measured():
    names = {f"tests/test_{n % 30}.py::test_{n}" for n in range(90)}
    parts = in_parts(names, 7)
    assert sorted(name for part in parts for name in part) == sorted(names)
    files = [{name.partition("::")[0] for name in part} for part in parts]
    assert sum(map(len, files)) == 30
    more = in_parts(names | {f"tests/test_long_{n}.py::test_it" for n in range(60)}, 7)
    assert all({*some} <= {*all_} for some, all_ in zip(parts, more, strict=True))


def test_a_selection_is_read_as_it_was_written(tmp_path, monkeypatch):
    tests = [
        "tests/a.py::test_b[1]",
        "tests/a.py::test_c",
        "tests/b.py::test_b",
        "tests/d.py::test_e",
    ]
    monkeypatch.delenv(Selection.VARIABLE, raising=False)
    assert Selection.take().of(tests) == tests
    only = ("tests/d.py::test_e", "tests/a.py")
    selection = Selection(only, frozenset({"tests/a.py::test_b"}))
    selection.write(tmp_path / "selection.json")
    monkeypatch.setenv(Selection.VARIABLE, str(tmp_path / "selection.json"))
    assert Selection.take() == selection
    assert Selection.take() == Selection()
    assert selection.of(tests) == ["tests/d.py::test_e", "tests/a.py::test_c"]


def test_the_sentinels_are_there():
    functions = {name.partition("[")[0] for name in SENTINELS}
    texts = {name: (ROOT / name.partition("::")[0]).read_text() for name in functions}
    missing = [n for n, text in texts.items() if f"def {n.rpartition('::')[2]}(" not in text]
    assert missing == []


def test_the_sentinels_are_never_left_out():
    assert not any(is_named(name, SENTINELS) for name in slow())
