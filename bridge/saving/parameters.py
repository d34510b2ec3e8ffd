"""A pytree of parameters -> the variables of a SavedModel, whose values are streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from bridge.core.backend import require_own_runtime
from bridge.core.keys import is_key, to_physical
from bridge.core.narrowing import check_narrowing, narrow_dtype
from bridge.core.trees import check_flags, key_names, unique_names
from bridge.exporting.model_function import trained_leaves
from bridge.exporting.stored_arrays import StoredArray
from bridge.saving.array_parts import ArrayPart, is_in_host_memory, join_parts, parts_of
from savedmodel.model import Variable, VariablePart
from savedmodel.variables.extents import boxes_of, slices_of, strides_of
from savedmodel.variables.tensor_slices import is_readable_in_slices
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import Array, DType, dtype_from_name
from xla_call_module.errors import DtypeError, StructureError


def to_variables(params: Any, trainable: Any, specs: Sequence[TensorSpec]) -> tuple[Variable, ...]:
    """Return a variable for each leaf, named by its pytree path."""
    leaves, tree = tree_util.tree_flatten(params)
    asked = check_flags(trainable, params)
    flags = [flag and own for flag, own in zip(asked, trained_leaves(params), strict=True)]
    names = unique_names("/".join(path) or "params" for path in key_names(tree))
    variables = []
    for name, leaf, flag, spec in zip(names, leaves, flags, specs, strict=True):
        array = _to_array(leaf, name)
        dtype = dtype_from_name(_dtype_name(array, spec), where=f"The parameter {name}")
        if not isinstance(array, jax.Array) and dtype.numpy.itemsize < array.dtype.itemsize:
            check_narrowing(np.asarray(array), f"The parameter {name}")
        parts = _to_stored(parts_of(array), dtype, name)
        variables.append(
            Variable(
                name=name,
                dtype=dtype,
                shape=tuple(array.shape),
                trainable=flag and dtype.differentiable,
                chunks=_chunks(array, dtype, parts),
                shards=tuple(_to_part(part, dtype) for part in parts) if len(parts) > 1 else (),
                holder=parts[0].holder if len(parts) == 1 else 0,
            )
        )
    return tuple(variables)


def _to_stored(parts: Sequence[ArrayPart], dtype: DType, name: str) -> Sequence[ArrayPart]:
    """Return the parts, or the whole as one where TensorFlow reads no slices of the dtype."""
    if len(parts) < 2 or is_readable_in_slices(dtype):
        return parts
    if (whole := join_parts(parts)) is None:
        raise DtypeError(
            f"The parameter {name} is {dtype.name} and spread over several processes, and "
            f"TensorFlow reads no slices of {dtype.name}. To do: replicate it "
            "(jax.sharding.PartitionSpec()), or keep it in another dtype, such as bfloat16 or "
            "int32, and cast it in the function."
        )
    return (whole,)


def _to_part(part: ArrayPart, dtype: DType) -> VariablePart:
    return VariablePart(part.extent, _streamer_of_part(part, dtype), part.holder)


def _streamer_of_part(part: ArrayPart, dtype: DType) -> Callable[[], Iterator[Any]] | None:
    if len(part.shards) > 1:
        return part.chunks
    return _streamer(part.shards[0][1], dtype) if part.shards else None


def _chunks(
    array: Any, dtype: DType, parts: Sequence[ArrayPart]
) -> Callable[[], Iterator[Any]] | None:
    """Return the streamer of the whole array, if all of its parts are here."""
    if len(parts) == 1:
        return _streamer_of_part(parts[0], dtype)
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return None
    return _streamer(array, dtype)


def to_constants(constants: Mapping[str, Array]) -> tuple[Variable, ...]:
    """Return a variable for each constant that was taken out of a module, named by its key."""
    return tuple(
        Variable(
            name=f"constants/{key}",
            dtype=(dtype := dtype_from_name(str(value.dtype), where=f"The constant {key}")),
            shape=value.shape,
            trainable=False,
            constant=True,
            chunks=_streamer(value, dtype),
        )
        for key, value in constants.items()
    )


def check_params_tree(exported: export.Exported, tree: tree_util.PyTreeDef) -> None:
    """Refuse a pytree of parameters that is not the first positional argument."""
    in_tree: Any = exported.in_tree  # the stub of its class lacks `children`
    first = in_tree.children()[0].children()[:1]
    if first != [tree]:
        raise StructureError(
            f"params has the structure {tree}; the first positional argument of "
            f"{exported.fun_name} has {first[0] if first else 'none'}. To do: export a function "
            "whose first argument is the parameters, or leave params out."
        )


def check_parameters(
    function: str, specs: Sequence[TensorSpec], variables: Sequence[Variable]
) -> None:
    """Refuse parameters that an exported function was not made for."""
    for spec, variable in zip(specs, variables, strict=True):
        if spec.dtype != variable.dtype:
            raise DtypeError(
                f"The parameter {variable.name} is {variable.dtype.name}{list(variable.shape)}; "
                f"{function} was exported for {spec} at {spec.path}. To do: cast the parameter, or "
                "export the function with it."
            )
        if spec.shape != variable.shape:
            raise StructureError(
                f"The parameter {variable.name} has shape {variable.shape}; {function} was "
                f"exported for {spec} at {spec.path}. To do: export it with these parameters."
            )


def _to_array(leaf: Any, name: str) -> Any:
    """Return a leaf as a JAX, numpy or stored array; typed PRNG keys as their key data."""
    if isinstance(leaf, StoredArray):
        return leaf
    if isinstance(leaf, jax.Array):
        if leaf.is_deleted():
            raise StructureError(
                f"The parameter {name} has been deleted, as jax.jit does with donated arguments. "
                "To do: save what the function returned, or leave out donate_argnums."
            )
        if is_key(leaf):
            require_own_runtime(f"the key data of the parameter {name}")
        return to_physical(leaf)
    if isinstance(leaf, (np.ndarray, np.generic, bool, int, float, complex)):
        return np.asarray(leaf)
    raise StructureError(
        f"The parameter {name} is a {type(leaf).__name__}; expected a JAX or numpy array, or a "
        "number."
    )


def _dtype_name(array: Any, spec: TensorSpec) -> str:
    """Return the array's own dtype, or the narrower one that JAX gives it while x64 is off."""
    native = array.dtype if isinstance(array, jax.Array) else array.dtype.newbyteorder("=")
    narrow = str(narrow_dtype(native))
    return narrow if narrow == spec.dtype.name else str(native)


def _streamer(array: Any, dtype: DType) -> Callable[[], Iterator[Any]]:
    return partial(_stream, array, dtype.numpy)


def _stream(array: Any, dtype: np.dtype[Any]) -> Iterator[Any]:
    """Yield the array in C order, little-endian, in contiguous parts."""
    if isinstance(array, jax.Array) and not is_in_host_memory(array):
        for part in _boxes(array):
            yield np.ascontiguousarray(part)
        return
    array = np.asarray(array)
    if array.flags.c_contiguous and array.dtype == dtype:
        yield array
        return
    for part in _boxes(array):
        yield np.ascontiguousarray(part, dtype)


def _boxes(array: Any) -> Iterator[Any]:
    """Yield parts of a few megabytes in C order."""
    if not array.size:
        return
    whole = tuple((0, size) for size in array.shape)
    for box in boxes_of(whole, strides_of(array.shape, array.dtype.itemsize)):
        yield array[slices_of(box)]
