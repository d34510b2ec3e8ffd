"""The functions that differ, and what they reach."""

from __future__ import annotations

import subprocess

import pytest

from tests.selecting import changes
from tests.selecting.changes import (
    OTHER,
    changed_parts,
    changed_texts,
    earlier_state,
    reached,
    text_before,
)

MODULE = '''"""A module."""
import math
LIMIT = 3
TABLE = {"a": LIMIT}

def inside(x):
    """Return whether it is below the limit."""
    return x < LIMIT  # a comment

class Reader:
    """A reader."""
    size: int = 1

    def read(self):
        """Read."""
        def inner():
            return TABLE["a"]
        return inner()

if math:
    pass
'''


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("x < LIMIT", "x <= LIMIT", {"inside"}),
        ("# a comment", "# another", set()),
        ("whether it is", "if it is", set()),
        ('"""A module."""', '"""Another."""', set()),
        ("LIMIT = 3", "LIMIT = 4", {"LIMIT"}),
        ('{"a": LIMIT}', "{}", {"TABLE"}),
        ("size: int = 1", "size: int = 2", {"Reader"}),
        ("return TABLE", "return not TABLE", {"Reader.read"}),
        ("class Reader:", "class Reader(dict):", {"Reader"}),
        ("import math", "import cmath as math", {"math"}),
        ("if math:", "if not math:", {OTHER}),
        ("def inside", "def outside", {"inside", "outside"}),
        ("\ndef inside", "\n\n\n@property\ndef inside", {"inside"}),
    ],
)
def test_the_parts_that_differ(old, new, differs):
    assert MODULE.count(old) == 1
    assert changed_parts(MODULE, MODULE.replace(old, new)) == differs


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "ROOT", tmp_path / "tree")
    (tmp_path / "tree/bridge").mkdir(parents=True)
    (tmp_path / "tree/.gitignore").touch()
    (tmp_path / "tree/bridge/reading.py").write_text(MODULE)
    (tmp_path / "tree/bridge/other.py").write_text(
        "from bridge.reading import LIMIT\ndef far():\n    return LIMIT\ndef near():\n    pass\n"
    )
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({"inside"}, {"inside"}),
        ({"Reader.read"}, {"Reader.read"}),
        ({"TABLE"}, {"TABLE", "Reader.read"}),
        ({"Reader"}, {"Reader", "Reader.read"}),
    ],
)
def test_what_a_part_reaches(tree, changed, found):
    assert reached("bridge/reading.py", changed) == {f"bridge/reading.py:{n}" for n in found}


def test_a_constant_reaches_tables_and_other_files(tree):
    found = reached("bridge/reading.py", {"LIMIT"})
    assert {"bridge/reading.py:inside", "bridge/reading.py:Reader.read"} <= found
    assert "bridge/other.py:far" in found
    assert "bridge/other.py:near" not in found


def _git(tree, *arguments):
    user = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(tree), *user, *arguments], check=True, capture_output=True)


def test_a_commit(tree):
    (tree / "bytes").write_bytes(b"\xfd0")
    _git(tree, "init", "-b", "main")
    _git(tree, "add", ".")
    _git(tree, "commit", "-m", "first")
    path = tree / "bridge/reading.py"
    path.write_text(MODULE.replace("LIMIT = 3", "LIMIT = 4"))
    (tree / "bridge/new.py").write_text("y = 1\n")
    (tree / "bytes").write_bytes(b"\xfd1")
    expected = {
        "bridge/reading.py": (MODULE, path.read_text()),
        "bridge/new.py": ("", "y = 1\n"),
        "bytes": ("\ufffd0", "\ufffd1"),
    }
    assert changed_texts(earlier_state("")) == expected
    _git(tree, "add", ".")
    # What is committed on the main branch itself is compared with the commit before.
    _git(tree, "commit", "-m", "second")
    assert changed_texts(earlier_state("")) == expected
    # On another branch, everything since it has left the main one.
    _git(tree, "checkout", "-b", "branch")
    (tree / "bridge/new.py").write_text("y = 2\n")
    _git(tree, "commit", "-am", "third")
    path.write_text(MODULE)
    assert text_before("bridge/new.py") == "y = 1\n"
    assert text_before("nowhere") == ""
    assert changed_texts(earlier_state("")).keys() == {"bridge/reading.py", "bridge/new.py"}
