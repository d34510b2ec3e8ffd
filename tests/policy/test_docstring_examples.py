"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
from types import ModuleType

import pytest

from tests.policy.source import read_modules

WITH_EXAMPLES = [module.name for module in read_modules() if ">>> " in module.text]


def _failures(module):
    return doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _failures(importlib.import_module(name)) == 0


@pytest.mark.parametrize(("example", "failures"), [("1 + 1\n2", 0), ("1 + 1\n3", 1)])
def test_a_wrong_example_is_found(example, failures):
    assert _failures(ModuleType("made_up", f"Adds.\n\n>>> {example}\n")) == failures
