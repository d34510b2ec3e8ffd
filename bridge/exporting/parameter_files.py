"""Readers of parameters: .npz and .safetensors files, and checkpoint folders of orbax.

None of them can run code when it is read; pickles can, and are refused.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bridge.core.trees import nest_by_path
from bridge.exporting.stored_arrays import (
    StoredArray,
    open_npz_arrays,
    open_orbax_arrays,
    open_safetensors_arrays,
)
from xla_call_module.errors import FormatError, StructureError

# What orbax writes into the folder of one pytree, and CheckpointManager into that of one step.
_ORBAX_TREE = ("_METADATA", "checkpoint")
_ORBAX_STEP = "_CHECKPOINT_METADATA"
_MAX_DEPTH = 100
# How the files of one pytree end.
_OPEN = {".npz": open_npz_arrays, ".safetensors": open_safetensors_arrays}


def to_memory(params: Any) -> Any:
    """Return a pytree with each `StoredArray` read."""
    return jax.tree.map(
        lambda leaf: np.asarray(leaf) if isinstance(leaf, StoredArray) else leaf, params
    )


@contextmanager
def open_parameters(path: str | os.PathLike[str], *, separator: str | None = None) -> Iterator[Any]:
    """Return a context with the pytree of parameters in a file, or in a folder of orbax.

    Its arrays are `StoredArray`s. The keys of a .npz or .safetensors file are split into the keys
    of dicts within dicts at `/`, or, if none has that, at `.`; a level whose keys are 0, 1, 2 … is
    a list. A checkpoint has its own structure, in which tuples are lists.
    """
    path = Path(path)
    if path.is_dir():
        with open_orbax_arrays(path, _orbax_tree(path)) as tree:
            yield tree
        return
    path.stat()
    if path.suffix not in _OPEN:
        raise FormatError(
            f"{path} is a {path.suffix or 'nameless'} file; expected .npz, .safetensors or a "
            "checkpoint folder of orbax. To do: save the parameters as one of these, such as with "
            "numpy.savez('params.npz', **{'dense/w': w}). A pickle would run code when it is read."
        )
    with _OPEN[path.suffix](path) as arrays:
        yield nest(arrays, separator=separator)


def nest(arrays: Mapping[str, Any], *, separator: str | None = None) -> Any:
    """Return dicts within dicts, and lists, of arrays whose keys are paths.

    Example:
        >>> nest({"layers.0.w": 1, "layers.1.w": 2})
        {'layers': [{'w': 1}, {'w': 2}]}
    """
    if separator is None:
        separator = "/" if any("/" in path for path in arrays) else "."
    paths = [path.split(separator) if separator else [path] for path in arrays]
    if max(map(len, paths), default=0) > _MAX_DEPTH:
        raise StructureError(
            f"A key, split at {separator!r}, is over {_MAX_DEPTH} levels deep. To do: split at "
            "something else (--params-separator)."
        )
    try:
        return _with_lists(nest_by_path(zip(paths, arrays.values(), strict=True)))
    except StructureError as error:
        raise StructureError(
            f"{error} Or split the keys at another text than {separator!r} (--params-separator)."
        ) from error


def select(params: Any, path: str) -> Any:
    """Return the part of a pytree at a path such as `model/params`."""
    part = params
    for key in path.split("/"):
        known = dict(enumerate(part)) if isinstance(part, list) else part
        by_text = {str(k): v for k, v in known.items()} if isinstance(known, Mapping) else {}
        if key not in by_text:
            raise StructureError(
                f"The parameters have no {path!r}: there is no {key!r} among {sorted(by_text)}. "
                "To do: name one of these."
            )
        part = by_text[key]
    return part


def _with_lists(nested: Any) -> Any:
    if not isinstance(nested, dict):
        return nested
    children = {key: _with_lists(child) for key, child in nested.items()}
    numbers = [str(number) for number in range(len(children))]
    if children and children.keys() == set(numbers):
        return [children[number] for number in numbers]
    return children


def _orbax_tree(path: Path) -> Path:
    """Return the folder of the one pytree in a folder."""
    if any((path / name).is_file() for name in _ORBAX_TREE):
        return path
    folders = sorted(entry for entry in path.iterdir() if entry.is_dir())
    trees = [f for f in folders if any((f / name).is_file() for name in _ORBAX_TREE)]
    if len(trees) == 1 and (path / _ORBAX_STEP).is_file():
        return trees[0]
    steps = [f for f in folders if (f / _ORBAX_STEP).is_file()]
    if checkpoints := trees or steps:
        names = ", ".join(map(str, checkpoints[:5]))
        raise StructureError(
            f"{path} has {len(checkpoints)} checkpoint folders. To do: name one of them: {names}."
        )
    raise FormatError(
        f"{path} is not a checkpoint folder of orbax: it has no {_ORBAX_TREE[0]}. To do: pass the "
        "folder that orbax.checkpoint has written, or a .npz or .safetensors file."
    )
