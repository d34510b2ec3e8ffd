"""A private name that moves ends in one error of one feature; everything else still works."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys

import jax
import pytest

from tests.policy.renamed_gates import _names, private_names_of_gates
from tests.policy.source import ROOT, read_modules, write_tree
from tests.policy.upstream import GATES, is_private
from tests.xla_flags import UNOPTIMIZED, with_xla_flags

NAMES = private_names_of_gates()
REFUSAL = re.compile(
    r"VersionError: .+ needs a private part of (jax|tensorflow) that [\w.+-]+ does not have "
    r"\(.+\). To do: install another version of \1, or a newer jax-tf-bridge."
)


def unclear(said):
    """Return what of the outcomes is no clear error of one feature."""
    failed = {verb: text for verb, text in said.items() if text}
    wrong = [f"{verb}: {text}" for verb, text in failed.items() if not REFUSAL.fullmatch(text)]
    never = [f"{verb} fails" for verb in ("import", "import jax2tf", "save") if verb in failed]
    several = [] if len(set(failed.values())) < 2 else ["several features fail"]
    return wrong + never + several


@pytest.fixture(scope="module")
def outcomes():
    command = [sys.executable, "-m", "tests.policy.renamed_gates"]
    variables = {**os.environ, "XLA_FLAGS": with_xla_flags(UNOPTIMIZED)}
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return dict(zip(NAMES, lines, strict=True))


@pytest.mark.parametrize("name", NAMES, ids=":".join)
def test_a_name_that_moves_is_said_once(outcomes, name):
    assert unclear(outcomes[name]) == []


def test_some_names_are_needed(outcomes):
    assert any(text for said in outcomes.values() for text in said.values())


@pytest.mark.parametrize("gate", [gate for gate, name in NAMES if name == "_in_named_shardings"])
def test_shardings_that_are_not_where_they_were_are_refused(outcomes, gate):
    """Without the refusal, those of the file would stay, or be lost, without a word."""
    said = outcomes[gate, "_in_named_shardings"]["on a mesh"]
    if gate == "xla_call_module._jax" and jax.__version_info__ >= (0, 12):
        assert said == ""  # a public name tells them
        return
    assert re.match("VersionError: an Exported (with other shardings|for several devices)", said)


@pytest.mark.parametrize(
    "said",
    [
        {"import": "ImportError: cannot import name 'mesh' from 'jax._src'"},
        {"save": "VersionError: saving needs a private part of jax that 1.0 does not have (x). "
         "To do: install another version of jax, or a newer jax-tf-bridge."},
        {"convert": "AttributeError: no _get_vjp"},
    ],
)  # fmt: skip
def test_an_unclear_error_is_found(said):
    assert unclear(said) != []


def test_every_kind_of_name_is_found():
    text = """
from jax._src import mesh
from jaxlib.mlir import ir
def f(exported):
    from tensorflow.python.eager import record
    tf.__internal__.eager_context
    getattr(exported, "_jit_info"), exported._has, replace(exported, _get_vjp=None)
    sys.modules["jax._src.core"]
"""
    assert sorted(_names(ast.parse(text))) == sorted([
        "mesh", "ir", "record", "__internal__", "_jit_info", "_has", "_get_vjp", "jax._src.core",
    ])  # fmt: skip


def _endless(modules):
    """The gates that do not say when they can go, nor whose gate they share."""
    said = re.compile(r"can go|[Tt]he gate is that of")
    return [
        f"{module.at(node)}: {node.name}"
        for module in modules
        if module.path.stem in GATES
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef) and set(_names(node))
        if not node.name.startswith("_")
        if not said.search(" ".join((ast.get_docstring(node) or "").split()))
    ]


def test_each_gate_says_when_it_can_go():
    assert _endless(read_modules()) == []


def test_a_gate_for_ever_is_found(tmp_path):
    text = "def kept():\n    'For ever.'\n    from jax._src import core\n"
    text += "def ends():\n    'It can\\n    go with JAX 1.'\n    from jax._src import core\n"
    (found,) = _endless(write_tree(tmp_path, {"bridge/_jax.py": text}))
    assert found.endswith(": kept")


def test_nothing_private_is_taken_when_a_gate_is_imported():
    """Where it is, in a `try`, there is another way to the same."""
    taken = [
        f"{module.at(node)}: {node.module}"
        for module in read_modules()
        if module.path.stem in GATES
        for node in module.tree.body
        if isinstance(node, ast.ImportFrom) and is_private(node.module or "")
    ]
    assert taken == []
