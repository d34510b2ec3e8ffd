"""Tests lie where the modules lie that they test; `tests/__init__.py` says where, and what else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tests
from tests.__main__ import ROUNDS
from tests.conftest import LONG
from tests.policy.source import PACKAGES, ROOT

OTHER_SUBJECTS = frozenset(re.findall(r"^- `(\w+)/`:", tests.__doc__ or "", re.MULTILINE))


def strays(root: Path) -> list[str]:
    """The files of tests that lead to no module of their room and have no folder of their own."""
    files = (path.relative_to(root / "tests") for path in sorted(root.glob("tests/**/test_*.py")))
    return [
        str(file)
        for file in files
        if file.parts[0] not in OTHER_SUBJECTS and not _leads_to_a_module(root, file)
    ]


def _leads_to_a_module(root: Path, file: Path) -> bool:
    room = root / file.parent
    if file.parts[0] not in PACKAGES or not room.is_dir():
        return False
    modules = [room, *room.glob("*.py"), *(path.parent for path in room.glob("*/__init__.py"))]
    subject = f"{file.stem.removeprefix('test_')}_"
    return any(subject.startswith(f"{path.stem.lstrip('_')}_") for path in modules)


def test_every_file_leads_to_a_module():
    assert strays(ROOT) == []


def test_the_files_that_the_workers_begin_with_are_there():
    assert [name for name in LONG if not (ROOT / "tests" / name).is_file()] == []


def _is_in(file: str, places: tuple[str, ...]) -> bool:
    ignored = [place.partition("=")[2] for place in places if place.startswith("--ignore=")]
    return any(file.startswith(f"{place}/") for place in places) and not any(
        file.startswith(f"{place}/") for place in ignored
    )


def test_every_file_is_in_one_round():
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")]
    rounds = {file: [_is_in(file, places) for places, _ in ROUNDS].count(True) for file in files}
    assert [file for file, count in rounds.items() if count != 1] == []


@pytest.mark.parametrize(
    ("file", "leads"),
    [
        ("bridge/test_save.py", True),
        ("bridge/test_save_gradients.py", True),
        ("bridge/test_saved.py", False),
        ("bridge/test_parameters.py", False),
        ("bridge/saving/test_parameters_names.py", True),
        ("bridge/saving/test_saving_twice.py", True),
        ("bridge/other/test_save.py", False),
        ("savedmodel/test_save.py", False),
        ("test_save.py", False),
        ("policy/test_save.py", True),
    ],
)
def test_a_file_that_leads_nowhere_is_found(file, leads, tmp_path):
    for path in ("bridge/save.py", "bridge/saving/parameters.py", f"tests/{file}"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert strays(tmp_path) == ([] if leads else [file])
