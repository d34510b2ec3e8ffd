"""`jax-tf-bridge explain` prints what the page on errors says of a class."""

from __future__ import annotations

import shlex

import pytest

import bridge
from bridge.cli.main import main


@pytest.mark.parametrize("name", [name for name in bridge.__all__ if name.endswith("Error")])
def test_what_an_error_says_is_a_command_that_explains_it(name, capsys):
    with pytest.raises(bridge.StructureError, match="args= is missing") as caught:
        bridge.save(abs, "never")
    (note,) = caught.value.__notes__
    command = shlex.split(note.removeprefix("More: ").partition(" (")[0])
    assert command == ["jax-tf-bridge", "explain", "StructureError"]
    assert main(["explain", name.lower()]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}\n\n")
    assert "| Part of the message | What helps |" in printed or name == "MissingDependencyError"
    assert not [sign for sign in ("<!--", "](", "\n## ") if sign in printed]


def test_all_classes_are_explained_where_none_is_named(capsys):
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line in bridge.__all__] == [
        "InteropError", "StructureError", "ArgumentError", "DtypeError", "UnsupportedError",
        "PlatformError", "LoweringError", "VersionError", "ShardingError", "FormatError",
        "MissingDependencyError",
    ]  # fmt: skip


def test_another_class_is_refused(capsys):
    assert main(["explain", "KeyError"]) == 2
    assert "expected one of InteropError, StructureError, " in capsys.readouterr().err
