"""The arguments of a TensorFlow user as flat tensors, and the kind of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import tree_util

from bridge.core.containers import without_containers
from bridge.core.explaining import flatten
from bridge.core.keys import is_key, key_data_aval, to_physical
from bridge.core.narrowing import check_narrowing, narrow_dtype
from bridge.exporting.specifications import ArgumentSpec
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import ArgumentError, InteropError, quote, shown_as_base
from xla_call_module.exported import argument_paths
from xla_call_module.runtime.op import static_shape

# What is to JAX like a Python scalar, by the kind of its dtype.
_WEAK = {"b": bool, "i": int, "f": float, "c": complex}
_WIDE = (tf.int64, tf.uint64, tf.float64, tf.complex128)


@shown_as_base
class TooLargeError(ArgumentError, OverflowError):
    """A Python integer does not fit into the dtype that it gets; JAX raises an OverflowError."""


def describe(
    tensors: Sequence[tf.Tensor], tree: tree_util.PyTreeDef, origins: tuple[Any, ...]
) -> list[ArgumentSpec]:
    """Return the specs of the arguments as JAX sees them."""
    specs = []
    kinds = origins or (None,) * len(tensors)
    for path, tensor, origin in zip(argument_paths(tree), tensors, kinds, strict=True):
        shape = static_shape(tensor)
        if origin is None or isinstance(origin, type):
            dtype = dtype_from_name(tensor.dtype.name, where=path).numpy
            specs.append(ArgumentSpec(path, shape, dtype, origin))
        else:
            trailing = key_data_aval(jax.ShapeDtypeStruct((), origin)).ndim
            logical = None if shape is None else shape[: len(shape) - trailing]
            specs.append(ArgumentSpec(path, logical, origin, jax.Array))
    return specs


def read_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], *, wide: bool = False
) -> tuple[list[tf.Tensor], tuple[Any, ...]]:
    """Return the flat arguments of a call as tensors, and the key of the module that they need.

    Every call comes through here, after the last run of the op has cooled the processor's caches.
    """
    leaves, tree = flatten((args, kwargs), where="An argument")
    origins: tuple[Any, ...] = ()
    for leaf in leaves:
        if not isinstance(leaf, tf.Tensor):
            leaves, tree, origins = _convert((args, kwargs), wide=wide)
            break
    key: list[Any] = [tree, origins]
    for index, tensor in enumerate(leaves):
        shape = tensor.shape
        if tensor.dtype in _WIDE and not wide and hasattr(tensor, "numpy"):
            check_narrowing(tensor.numpy(), argument_paths(tree)[index])
        # There is one object of each dtype, and DType and TensorShape hash and compare in Python.
        key += id(tensor.dtype), None if shape.rank is None else tuple(shape.as_list())
    return leaves, tuple(key)


def plain_structure(
    tree: tree_util.PyTreeDef,
) -> tuple[tree_util.PyTreeDef, tuple[int, ...] | None]:
    """Return the structure with Python's containers alone, and the order of its leaves there."""
    filled = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    order, plain = tree_util.tree_flatten(without_containers(filled))
    return plain, None if plain == tree else tuple(order)


def _convert(
    arguments: Any, *, wide: bool
) -> tuple[list[tf.Tensor], tree_util.PyTreeDef, tuple[Any, ...]]:
    """Return tensors, their structure and their origins."""
    leaves, tree = tree_util.tree_flatten(without_containers(arguments))
    tensors, origins = [], []
    for index, leaf in enumerate(leaves):
        if not wide and (numbers := _numbers_of(leaf)) is not None:
            check_narrowing(numbers, argument_paths(tree)[index])
        try:
            tensor, origin = _to_tensor(leaf, wide=wide)
        except OverflowError as error:
            fits = isinstance(leaf, int) and -(1 << 63) <= leaf < 1 << 63
            wider = "call jax.config.update('jax_enable_x64', True) first, or " if fits else ""
            raise TooLargeError(
                f"{argument_paths(tree)[index]} is {_shorten(leaf)}, too large for JAX as it is "
                f"set: {quote(error)}. To do: {wider}pass a float."
            ) from error
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            if isinstance(error, InteropError):
                raise
            raise ArgumentError(
                f"{argument_paths(tree)[index]} is {_shorten(leaf)}; expected a tensor, a "
                f"variable, a numpy or JAX array, or a Python number. TensorFlow says: {error}"
            ) from error
        tensors.append(tensor)
        origins.append(origin)
    return tensors, tree, tuple(origins)


def _numbers_of(leaf: Any) -> Array | None:
    """Return a Python number or an array of 64 bits as an array; None for anything else."""
    is_array = isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.itemsize > 4
    return np.asarray(leaf) if is_array or type(leaf) in (float, complex) else None


def _to_tensor(leaf: Any, *, wide: bool) -> tuple[tf.Tensor, Any]:
    if isinstance(leaf, tf.Tensor):
        return leaf, None
    if type(leaf) in (bool, int, float, complex):
        dtype = np.dtype(type(leaf))
        narrow = dtype if wide else narrow_dtype(dtype)
        return tf.constant(np.asarray(leaf, narrow)), type(leaf)
    if isinstance(leaf, jax.Array):
        if is_key(leaf):
            return tf.constant(np.asarray(to_physical(leaf))), leaf.dtype
        scalar = _WEAK.get(leaf.dtype.kind) if jax.typeof(leaf).weak_type else None
        return tf.constant(np.asarray(leaf)), scalar or jax.Array
    if isinstance(leaf, (np.ndarray, np.generic)):
        if leaf.dtype == jax.dtypes.float0:
            return tf.zeros(leaf.shape, tf.bool), np.ndarray
        return tf.convert_to_tensor(leaf), np.ndarray
    # Variables are read here, under the caller's tape; their gradients are TensorFlow's business.
    return tf.convert_to_tensor(leaf), None


def _shorten(leaf: Any) -> str:
    text = repr(leaf)
    return f"{text[:80]}{'…' if len(text) > 80 else ''} ({type(leaf).__name__})"
