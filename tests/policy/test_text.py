"""No file names a package registry or a place on a machine, or has two sides of a merge."""

from __future__ import annotations

import re

import pytest

from tests.policy.source import ROOT, own_files

# Bytes, not text: a golden file can carry the paths of the process that made it.
MACHINE_PATH = re.compile(rb"(?<![\w.$})>\]/-])/(?:work|root|tmp)(?=/|[\"'`\s)])")
REGISTRY = re.compile(rb"\b(?:[\w-]+\.)*(?:pypi|pythonhosted|npmjs)\.\w+")
CONFLICT = re.compile(rb"^(?:<{7}|>{7}) ", re.MULTILINE)


def _offences(root):
    return [
        f"{path.relative_to(root)}: {found[0].decode(errors='replace')}"
        for path in own_files(root)
        for pattern in (MACHINE_PATH, REGISTRY, CONFLICT)
        if (found := pattern.search(path.read_bytes()))
    ]


def test_no_file_names_a_machine_or_a_registry():
    assert _offences(ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "cd /" + "work/main",
        "path = '/" + "tmp'",
        '"/' + 'root/.venv/bin/python"',
        "see https://py" + "pi.org/project/jax",
        "https://files.python" + "hosted.org/packages",
        "\n" + "<" * 7 + " HEAD",
    ],
)
def test_an_offence_is_found(tmp_path, text):
    (tmp_path / ".gitignore").write_text("*.egg-info/\n.venv/\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "install.md").write_bytes(b"\x00\xff " + text.encode() + b"\n")
    assert len(_offences(tmp_path)) == 1


@pytest.mark.parametrize(
    "text",
    ["a/tmp/b", "https://example.com/tmp/x", "{folder}/root/x", "$HOME/work/x", "/tmpfs/x"],
)
def test_other_text_passes(tmp_path, text):
    (tmp_path / ".gitignore").touch()
    (tmp_path / "README.md").write_text(text)
    assert _offences(tmp_path) == []


@pytest.mark.parametrize("folder", [".venv", "jax.egg-info", ".git"])
def test_ignored_folders_are_left_out(tmp_path, folder):
    (tmp_path / ".gitignore").write_text("*.egg-info/\n.venv/\n")
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "file").write_text("/" + "tmp/x")
    assert list(own_files(tmp_path)) == [tmp_path / ".gitignore"]
