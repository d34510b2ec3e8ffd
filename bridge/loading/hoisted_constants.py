"""The values of the constants that a chain of calls takes, wherever a file has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from savedmodel.model import SavedModel
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.errors import StructureError
from xla_call_module.passes.constants import key_of

__all__ = ["find_constants"]

_Array = np.ndarray[Any, Any]


def find_constants(
    chain: Sequence[CallModule], known: Mapping[str, Callable[[], _Array]], model: SavedModel
) -> Callable[[str], _Array]:
    """The values of a chain's constants by their keys.

    The call itself takes what is passed to its node. A constant of a gradient alone is captured by
    the gradient function, through the functions around it, and has the name that TensorFlow gave
    it; but its key is the hash of its value, which tells it from everything else in the file.

    Args:
        chain: a function, its VJP, the VJP of that, ….
        known: the constants whose place in the file is known, by their keys.
        model: the file.

    Returns:
        A function of a key, which raises StructureError where the file has no such value.
    """
    specs = {key: call.args[index] for call in chain for index, key in call.constants.items()}

    def find(key: str) -> _Array:
        if key in known:
            return known[key]()
        for value in _values_like(specs[key], model):
            if key_of(value) == key:
                return value
        raise StructureError(
            f"A gradient of {chain[0].name} takes the constant {specs[key]}, which the file lacks. "
            "To do: write the file again."
        )

    return find


def _values_like(spec: TensorSpec, model: SavedModel) -> Iterator[_Array]:
    """What the file has of a dtype and a shape."""
    for variable in model.variables:
        if (variable.dtype, variable.shape) == (spec.dtype, spec.shape):
            yield variable.shared()
    yield from (
        value
        for value in model.graph_constants
        if (value.dtype, value.shape) == (spec.dtype.numpy, spec.shape)
    )
