"""The containers that TensorFlow puts in the place of Python's, as pytrees.

A list, tuple or dict that becomes an attribute of a `tf.Module` is wrapped, so that checkpoints
know what is inside. To JAX a wrapper is a leaf until it is registered.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from jax import tree_util

from bridge.core._jax import allow_registration_of


def register_containers() -> None:
    """Make TensorFlow's containers pytrees, for all of the process, as JAX's own converter does.

    They stay what they are where something else has registered them before.
    """
    kinds = _kinds()
    allow_registration_of(kinds)
    for wrapper, plain in kinds.items():
        try:
            if plain is dict:
                _register_mapping(wrapper)
            else:
                _register_sequence(wrapper, plain)
        except ValueError:
            continue


def _register_sequence(wrapper: type, plain: type) -> None:
    def rebuild(of_fields: Any, children: Any) -> Any:
        return plain(children) if of_fields is None else of_fields(*children)

    tree_util.register_pytree_with_keys(
        wrapper,
        lambda items: (
            [(tree_util.SequenceKey(i), x) for i, x in enumerate(items)],
            _named_tuple(items),
        ),
        rebuild,
        lambda items: (tuple(items), _named_tuple(items)),
    )


def _named_tuple(wrapper: Any) -> Any:
    """Return the class of the named tuple that is wrapped; None for another sequence."""
    inner = getattr(wrapper, "__wrapped__", None)
    return type(inner) if hasattr(inner, "_fields") else None


def _register_mapping(wrapper: Any) -> None:
    tree_util.register_pytree_with_keys(
        wrapper,
        lambda items: ([(tree_util.DictKey(k), x) for k, x in items.items()], tuple(items)),
        lambda keys, children: wrapper(dict(zip(keys, children, strict=True))),
        lambda items: (tuple(items.values()), tuple(items)),
    )


def without_containers(tree: Any) -> Any:
    """Return the pytree with Python's containers where TensorFlow has put its own."""
    return tree_util.tree_map(_unwrap, tree, is_leaf=lambda node: type(node) in _kinds())


def _unwrap(leaf: Any) -> Any:
    if isinstance(leaf, (Mapping, list, tuple)):
        inner = getattr(leaf, "__wrapped__", None)  # those of dicts and tuples are proxies
        if inner is None:
            inner = dict(leaf) if isinstance(leaf, Mapping) else list(leaf)
        return without_containers(inner)
    return leaf


@functools.cache
def _kinds() -> dict[type, type]:
    """Return the classes of the containers, each with the one that it stands for."""
    holder: Any = tf.Module()
    holder.list, holder.tuple, holder.dict = [tf.Module()], (tf.Module(),), {"": tf.Module()}
    return {type(holder.list): list, type(holder.tuple): tuple, type(holder.dict): dict}
