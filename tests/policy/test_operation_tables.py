"""StableHLO is understood once: an operation has rules in three kinds of tables at most.

The kinds are its meaning, what it is decomposed into, and what a target makes of it. A table is
counted where a file of a room has a dictionary with names of operations as keys; the tables of one
room are one, and each room is of one kind. So no room may begin a table of its own: a new one is of
a target, and is listed here as such.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.core_ops.decompositions.decomposition import Decomposition
from bridge.core_ops.decompositions.narrow_types import NARROW_TYPES_IN_WIDER
from bridge.litert.lowering.call_lowering import DECOMPOSITIONS as OF_LITERT
from tests.policy.layers import room_of
from tests.policy.source import Module, parse_module, read_modules

# Each room with tables of operations, by their kind. Those of a target are used by it alone, or by
# all targets that are graphs (`bridge.core_ops`); no module goes through those of two targets.
KINDS: Mapping[str, frozenset[str]] = {
    "meaning": frozenset({
        "bridge.lifting",
        "bridge.lifting.derivatives",
        "xla_call_module.stablehlo",  # the values of constants
    }),
    "decomposition": frozenset({"bridge.core_ops.decompositions"}),
    "target": frozenset({
        "bridge.core_ops",
        "bridge.litert.lowering",
        "bridge.onnx",
        "bridge.onnx.rules",
        "bridge.tf_operations",
        "xla_call_module.passes",  # the call as an op of TensorFlow
    }),
}  # fmt: skip
# Operations that a room may name without having a table.
_FEW = 4
_PREFIX = "stablehlo."


def names_in(module: Module) -> set[str]:
    """Return the operations that are keys of dictionaries at the top of a module."""
    return {
        key.value
        for statement in module.tree.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and str(key.value).startswith(_PREFIX)
    }


def tables(modules: Collection[Module]) -> dict[str, set[str]]:
    """Return the operations that each room has a table of."""
    by_name = {module.name: module for module in modules}
    rooms: dict[str, set[str]] = {}
    for module in modules:
        rooms.setdefault(room_of(module.name, by_name), set()).update(names_in(module))
    return {room: names for room, names in rooms.items() if len(names) > _FEW}


def strays(modules: Collection[Module]) -> list[str]:
    """Return the rooms with a table that is of no kind."""
    return sorted(set(tables(modules)).difference(*KINDS.values()))


def test_every_table_is_of_one_of_three_kinds():
    assert strays(read_modules()) == []
    rooms = Counter(room for kind in KINDS.values() for room in kind)
    assert len(KINDS) == 3
    assert set(rooms.values()) == {1}


def module_of(text: str) -> Module:
    return parse_module("bridge.other.rules", Path("bridge/other/rules.py"), text)


def test_a_fourth_table_is_found():
    text = "RULES = {" + ", ".join(f"'stablehlo.{n}': None" for n in range(_FEW + 1)) + "}"
    assert strays([module_of(text)]) == ["bridge.other"]
    few = "RULES = {'stablehlo.add': None}"
    assert strays([module_of(few)]) == []


def replaced(decompositions: Collection[Decomposition]) -> Iterator[str]:
    """Yield what each of some decompositions replaces."""
    for one in decompositions:
        yield from (*one.operations, *one.custom_calls, *one.elements)


def test_what_is_decomposed_is_decomposed_once():
    pytest.importorskip("onnx")
    from bridge.onnx.decomposed_call import DECOMPOSITIONS

    for of_target in (DECOMPOSITIONS, OF_LITERT):
        counts = Counter(replaced(of_target))
        assert [name for name, count in counts.items() if count > 1] == []
        assert COMPLEX_AS_PAIRS in of_target


def test_what_a_target_decomposes_it_has_no_rule_for():
    pytest.importorskip("onnx")
    from bridge.onnx.decomposed_call import DECOMPOSITIONS
    from bridge.onnx.operation_table import TARGET

    assert not set(replaced(DECOMPOSITIONS)) & {*TARGET.rules, *TARGET.custom_calls}
    assert NARROW_TYPES_IN_WIDER in DECOMPOSITIONS
