"""The look of a case's file from TensorFlow, told without the code under test."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from savedmodel.protos.schema import SavedModel
from savedmodel.write import METADATA_COLLECTION
from tests.bridge.models import Case, Layer


def physical(leaf: Any) -> Any:
    """An array as TensorFlow has it: typed PRNG keys as their key data."""
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def structured(tree: Any, leaf: Callable[[Any], Any] = physical) -> Any:
    """A pytree with TensorFlow's containers: registered classes are dicts, keys are text."""

    def convert(node: Any) -> Any:
        match node:
            case Layer(weight=weight, bias=bias):
                return {"weight": convert(weight), "bias": convert(bias)}
            case Mapping():
                return {str(key): convert(child) for key, child in node.items()}
            case tuple() if hasattr(node, "_fields"):
                return type(node)(*map(convert, node))
            case list() | tuple():
                return type(node)(map(convert, node))
            case None:
                return None
        return leaf(node)

    return convert(tree)


def tensors(tree: Any) -> Any:
    """The same with tensors."""
    return structured(tree, lambda leaf: tf.constant(physical(leaf)))


def by_path(root: str, tree: Any) -> dict[str, Any]:
    """The leaves of a pytree, with names such as `args[0]['w']` for the root `args`."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {root + jax.tree_util.keystr(path): leaf for path, leaf in leaves}


def tensors_by_path(root: str, tree: Any, found: Any) -> dict[str, Any]:
    """The leaves of what TensorFlow returned for `tree`, with the same names."""
    names = jax.tree_util.tree_map_with_path(
        lambda path, _: root + jax.tree_util.keystr(path), tree
    )
    expected = structured(names, str)
    tf.nest.assert_same_structure(expected, found)
    pairs = zip(tf.nest.flatten(expected), tf.nest.flatten(found), strict=True)
    return {name: tensor for name, tensor in pairs if name is not None}


def read_meta_graph(folder: Path) -> Any:
    """The only one in a file."""
    proto = SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    (meta_graph,) = proto.meta_graphs
    return meta_graph


def read_paths(folder: Path, key: str) -> tuple[dict[str, str], dict[str, str]]:
    """Names of inputs and outputs -> pytree paths, as the file records them."""
    (text,) = read_meta_graph(folder).collection_def[METADATA_COLLECTION].bytes_list.value
    signature = json.loads(text)["signatures"][key]
    return signature["inputs"], signature["outputs"]


def arguments_by_path(case: Case) -> dict[str, Any]:
    """The arguments of a case, by the paths that a file records."""
    args = (*[None] * len(case.leading()), *case.args)
    return by_path("args", args) | by_path("kwargs", dict(case.kwargs))


def named_inputs(case: Case, folder: Path, key: str) -> dict[str, Any]:
    """Input name -> array."""
    values = arguments_by_path(case)
    return {name: physical(values[path]) for name, path in read_paths(folder, key)[0].items()}


def named_results(case: Case, folder: Path, key: str) -> dict[str, Any]:
    """Output name -> array, as JAX computes it."""
    values = by_path("result", case.results(key))
    return {name: physical(values[path]) for name, path in read_paths(folder, key)[1].items()}
