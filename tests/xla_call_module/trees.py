"""Any structures of pytrees."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from xla_call_module.pytrees.tree_nodes import LEAF, TreeNode

paths = st.text(max_size=12)
values = (
    st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.floats(allow_nan=False)
    | st.just(float("inf"))
).map(lambda value: TreeNode("value", value=value))
keys = values | st.lists(values, max_size=2).map(lambda k: TreeNode("tuple", children=tuple(k)))


def _containers(children: Any) -> Any:
    pairs = st.lists(st.tuples(keys, children), max_size=3)

    def named(kind: Any, path: str, found: Any, static: TreeNode | None = None) -> TreeNode:
        names, parts = zip(*found, strict=True) if found else ((), ())
        return TreeNode(kind, path, names, parts, static)

    return (
        st.builds(
            lambda kind, parts: TreeNode(kind, children=tuple(parts)),
            st.sampled_from(["list", "tuple"]),
            st.lists(children, max_size=3),
        )
        | st.builds(named, st.just("dict"), st.just(""), pairs)
        | st.builds(named, st.just("namedtuple"), paths, pairs)
        | st.builds(named, st.just("class"), paths, pairs, st.none() | values)
    )


none = st.just(TreeNode("none"))
functions = st.builds(lambda p, n: TreeNode("function", p, value=n), paths, st.integers(0, 9))
static_nodes = st.recursive(values | none | functions, _containers, max_leaves=6)
tree_nodes = st.recursive(st.just(LEAF) | none, _containers, max_leaves=6)
