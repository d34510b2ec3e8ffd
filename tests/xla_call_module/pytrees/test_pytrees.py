"""Structures of pytrees as values, as JSON and as JAX's treedefs."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict

import jax
import jax.numpy as jnp
import jax.tree_util
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.xla_call_module.trees import tree_nodes
from xla_call_module.errors import FormatError, InteropError
from xla_call_module.pytrees.node_classes import find_class, public_path
from xla_call_module.pytrees.tree_description import StaticData, describe_tree, leaf_paths, outline
from xla_call_module.pytrees.tree_nodes import TreeNode
from xla_call_module.pytrees.tree_restoring import restore_tree


@settings(deadline=None)
@given(tree_nodes)
def test_json_round_trips(node):
    text = json.dumps(node.to_json())
    assert TreeNode.from_json(json.loads(text), where="here") == node


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), -0.0, 1e300])
def test_static_numbers_are_those_of_json(number):
    """Which has no infinity and no NaN; another reader of the file would refuse them."""
    node = TreeNode("class", "m:C", static=TreeNode("value", value=number))
    text = json.dumps(node.to_json(), allow_nan=False)
    read = TreeNode.from_json(json.loads(text), where="here")
    assert repr(read) == repr(node)


@settings(deadline=None)
@given(tree_nodes)
def test_a_structure_is_restored_or_refused(node):
    """Classes that are nowhere have stand-ins, which are written as what they stand for."""
    try:
        tree = restore_tree(node)
    except InteropError:  # two keys are equal, or have no order
        return
    assert tree.num_leaves == node.num_leaves
    described = describe_tree(tree, StaticData())
    assert restore_tree(described) == tree


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4) | st.sampled_from(["*", "class", "m:C"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "class",
                        "fields",
                        "static",
                        "tuple",
                        "dict",
                        "namedtuple",
                        "object",
                        "function",
                    ]
                ),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_damaged_json_is_refused(found):
    try:
        node = TreeNode.from_json(found, where="here")
        restore_tree(node)
    except InteropError:
        return
    assert isinstance(node, TreeNode)


@pytest.mark.parametrize(
    "path",
    ["os:stat_result", "subprocess:Popen", "builtins:exec", "jax.numpy:sin", "os:", "", ":", "a.b"],
)
@pytest.mark.parametrize("kind", ["class", "namedtuple"])
def test_what_is_no_pytree_class_is_not_touched(path, kind):
    name = TreeNode("value", value="x")
    node = TreeNode(kind, path, (name,), (TreeNode("leaf"),), TreeNode("value", value="touch"))
    tree = restore_tree(node)
    assert (tree.num_leaves, outline(tree).names) == (1, (name,))


def test_static_data_of_another_length():
    """`PyTreeDef.from_node_data_and_children` makes one of it that ends the process."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Data:
        x: jax.Array

    node = describe_tree(jax.tree.structure(Data(1.0)), StaticData())
    wrong = TreeNode("class", node.path, (), (), node.static)
    assert "UnknownNode" in str(restore_tree(wrong))
    assert restore_tree(node) == jax.tree.structure(Data(1.0))


def test_types_that_are_known():
    with pytest.raises(FormatError, match=r"type 'os:system' in a pytree of the file is unknown"):
        restore_tree(
            TreeNode("class", "m:C", (), (), TreeNode("type", "os:system"))
        ) and restore_tree(TreeNode("tuple", children=(TreeNode("type", "os:system"),)))


def test_names_of_classes():
    result = type(jnp.linalg.qr(jnp.eye(2)))
    assert find_class(public_path(result)) is result
    assert public_path(OrderedDict) == "collections:OrderedDict"
    optax = pytest.importorskip("optax")
    assert public_path(optax.ScaleByAdamState) == "optax:ScaleByAdamState"
    assert find_class("optax.somewhere.else:ScaleByAdamState") is optax.ScaleByAdamState
    assert find_class("optax:nothing") is None


def test_a_class_that_takes_arrays_only():
    """Its children have numbers, since nobody can look at one."""

    class Strict:
        def __init__(self, x):
            self.x = x + 1.5

    jax.tree_util.register_pytree_node(Strict, lambda s: ((s.x,), None), lambda _, p: Strict(*p))
    node = describe_tree(jax.tree.structure([Strict(1.0)]), StaticData())
    assert node.children[0].names in (
        (TreeNode("value", value=0),),
        (TreeNode("value", value="x"),),
    )


def test_classes_without_end():
    nodes = tuple(TreeNode("class", f"m:C{number}") for number in range(1001))
    with pytest.raises(FormatError, match="has 1001 classes; expected at most 1000"):
        restore_tree(TreeNode("list", children=nodes))


def test_a_class_that_looks_at_its_values():
    """Its children are those of its attributes that are arrays."""

    class Picky:
        def __init__(self, x):
            self.x = x

    def flatten(picky):
        is_array = hasattr(picky.x, "dtype")
        return ((picky.x,), None) if is_array else ((), picky.x)

    jax.tree_util.register_pytree_node(Picky, flatten, lambda static, x: Picky(*(x or (static,))))
    tree = jax.tree.structure({"p": Picky(jnp.ones(2))})
    assert leaf_paths(tree) == ["['p'][<flat index 0>]"]
    assert restore_tree(describe_tree(tree, StaticData())) == tree
