"""Golden files for several devices, from each JAX that was ever supported."""

from __future__ import annotations

import pytest

from tests.golden.reading import check_in_jax, folders_of
from tests.golden.write_kinds import KINDS

FOLDERS = folders_of(several_devices=True)


def test_there_are_some():
    assert len(FOLDERS) >= 18


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: "-".join(path.parts[-3:]))
def test_loaded_by_jax(folder):
    check_in_jax(folder, KINDS[folder.name])
