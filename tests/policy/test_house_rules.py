"""Each rule of `house_rules`, on the packages and on a module that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.policy import house_rules
from tests.policy.house_rules import ADVICE, LONGEST_BODY, LONGEST_FILE, body_length
from tests.policy.source import PACKAGES, parse_module, read_modules

RULES = (
    house_rules.environment_reads,
    house_rules.listed_private_names,
    house_rules.long_bodies,
    house_rules.long_files,
    house_rules.missing_docstrings,
    house_rules.missing_files,
    house_rules.missing_return_annotations,
    house_rules.mutable_state,
    house_rules.noun_clauses,
    house_rules.printed_operations,
    house_rules.unfinished_work,
    house_rules.vague_names,
)


def _module(text, name="bridge.save"):
    return parse_module(name, Path(*name.split(".")).with_suffix(".py"), text)


def _function(*, lines):
    return "def f() -> None:\n" + "    x = 1\n" * lines


@pytest.mark.parametrize(
    "rule", sorted({*RULES} - {*ADVICE}, key=RULES.index), ids=lambda rule: rule.__name__
)
def test_the_packages_keep_the_rule(rule):
    assert [place for module in read_modules() for place in rule(module)] == []


def test_the_rules_see_every_package():
    assert {module.package for module in read_modules()} == set(PACKAGES)


BROKEN = [
    (house_rules.missing_docstrings, "x = 1\n"),
    (house_rules.listed_private_names, "import a\n__all__ = ['f']\ndef f() -> None:\n    pass\n"),
    (house_rules.missing_files, '"""See `elsewhere.py`."""\n'),
    (house_rules.missing_files, '"""See `onnx/save.py`."""\n'),
    (house_rules.noun_clauses, '"""What a model is."""\n'),
    (house_rules.noun_clauses, 'class C:\n    def f(self) -> None:\n        """Whether so."""\n'),
    (house_rules.long_bodies, _function(lines=LONGEST_BODY + 1)),
    (house_rules.long_bodies, "class C:\n    async def f(self):\n" + "        x = 1\n" * 61),
    (house_rules.missing_return_annotations, "def f():\n    pass\n"),
    (house_rules.missing_return_annotations, "class C:\n    def f(self):\n        pass\n"),
    (house_rules.missing_return_annotations, "def f() -> None:\n    def g():\n        pass\n"),
    (house_rules.long_files, "x = 1\n" * (LONGEST_FILE + 1)),
    (house_rules.unfinished_work, "x = 1  # TO" + "DO: more\n"),
    (house_rules.unfinished_work, "# FIX" + "ME\n"),
    (house_rules.environment_reads, "import os\nx = os.environ['A']\n"),
    (house_rules.environment_reads, "import os as o\ndef f():\n    return o.getenv('A')\n"),
    (house_rules.environment_reads, "from os import environ\n"),
    (house_rules.printed_operations, "text = operation.get_asm(use_local_scope=True)\n"),
    (house_rules.mutable_state, "cache = {}\n"),
    (house_rules.mutable_state, "_CACHE = {}\n"),
    (house_rules.mutable_state, "_CACHE: dict[str, int] = dict()\n"),
    (house_rules.mutable_state, "names = ['a']\n"),
    (house_rules.mutable_state, "names = sorted_names = {n for n in 'ab'}\n"),
    (house_rules.mutable_state, "try:\n    names = [1]\nexcept ValueError:\n    pass\n"),
    (house_rules.mutable_state, "if True:\n    pass\nelse:\n    names = [1]\n"),
    (house_rules.mutable_state, "import threading\n_LOCAL = threading.local()\n"),
    (house_rules.mutable_state, "from collections import defaultdict\n_A = defaultdict(list)\n"),
    (house_rules.mutable_state, "_count = 0\ndef f() -> None:\n    global _count\n"),
]


@pytest.mark.parametrize(("rule", "text"), BROKEN)
def test_a_broken_rule_is_found(rule, text):
    assert list(rule(_module(text))) != []


@pytest.mark.parametrize("name", ["bridge.utils", "bridge._util", "bridge.helpers.keras"])
def test_a_vague_name_is_found(name):
    assert list(house_rules.vague_names(_module("", name))) != []


def test_every_rule_can_fail():
    assert {rule for rule, _ in BROKEN} | {house_rules.vague_names} == set(RULES)


@pytest.mark.parametrize(
    "text",
    [
        "_TABLE = {'a': 1}\n",
        "__all__ = ['a']\n",
        "NAMES = list('ab')\n",
        "names = ('a', 'b')\n",
        "def f() -> None:\n    names = []\n",
        "class C:\n    x: int = 1\n",
    ],
)
def test_a_constant_is_no_state(text):
    assert list(house_rules.mutable_state(_module(text))) == []


def test_the_environment_may_be_read_in_one_file():
    text = "import os\nx = os.environ['A']\n"
    assert list(house_rules.environment_reads(_module(text, "xla_call_module.flags"))) == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (_function(lines=LONGEST_BODY), LONGEST_BODY),
        ('def f() -> None:\n    """One.\n\n    Three.\n    """\n    return\n', 1),
        ('def f() -> None:\n    """Only this."""\n', 0),
        ("def f(\n    a: int,\n) -> int:\n    return (\n        a\n    )\n", 3),
    ],
)
def test_a_body_is_counted_without_its_docstring(text, lines):
    function = next(_module(text).functions())
    assert body_length(function) == lines
