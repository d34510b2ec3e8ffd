"""The values of TensorFlow's variables and tensors, as JAX takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from bridge.calling_tf.concrete_functions import TracedFunction
from bridge.core.narrowing import is_narrowed, narrow_array
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import StructureError

# TensorFlow's DLPack does not know them.
_NOT_SHARED = frozenset({"float8_e4m3fn", "float8_e5m2"})


def to_numpy(tensor: tf.Tensor) -> Array:
    """Return a view of an eager tensor on the CPU; a copy from elsewhere."""
    try:
        return np.asarray(tensor)
    except ValueError:  # of one number of a dtype that numpy itself does not have
        return np.asarray(tensor.numpy(), dtype=tensor.dtype.as_numpy_dtype)


def to_array(tensor: tf.Tensor) -> jax.Array:
    """Return the JAX array with the same memory, where the tensor is on the CPU."""
    array: jax.Array = jax.device_put(_physical(to_numpy(tensor)))
    return array


def to_tensor(value: Any) -> tf.Tensor:
    """Return the eager tensor with the same memory, where JAX has it on the CPU.

    TensorFlow takes memory that is not its own for what must not be written to.
    """
    if (
        isinstance(value, jax.Array)
        and value.dtype.name not in _NOT_SHARED
        and [device.platform for device in value.devices()] == ["cpu"]
    ):
        return tf.experimental.dlpack.from_dlpack(value.__dlpack__())
    array = np.asarray(value)  # of a Python number, too, which JAX hands on as it is
    return tf.constant(narrow_array(array, "A value that TensorFlow takes"))


def is_split(captured: Any) -> bool:
    """Return whether JAX, as it is set, has the value as pairs of 32 bits only."""
    dtype = dtype_from_name(captured.dtype.name, where="a captured value").numpy
    return is_narrowed(dtype)


def to_spec(captured: Any, traced: TracedFunction) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype in which a compiled function takes a captured value.

    While `jax_enable_x64` is off, one of 64 bits is taken as its bits: uint32, with a last
    dimension of 2, or of 4 for complex128.
    """
    if captured.dtype == tf.resource:
        raise StructureError(
            f"{traced.name} captures a resource that is not a variable, for "
            f"{_users(captured, traced)}; JAX cannot read it. To do: pass compiled=False, which "
            "runs the function in TensorFlow, through a callback."
        )
    if not captured.shape.is_fully_defined():
        raise StructureError(
            f"{traced.name} reads the variable {captured.name}, whose shape {captured.shape} is "
            "not fixed. To do: give it one, or pass compiled=False."
        )
    dtype = dtype_from_name(captured.dtype.name, where="a captured value").numpy
    shape = tuple(captured.shape)
    if not is_split(captured):
        return jax.ShapeDtypeStruct(shape, dtype)
    return jax.ShapeDtypeStruct((*shape, dtype.itemsize // 4), np.uint32)


def _users(captured: Any, traced: TracedFunction) -> str:
    index = next(i for i, one in enumerate(traced.captures) if one is captured)
    tensor = traced.concrete.inputs[len(traced.arguments) + index]
    users = [f"{operation.type} ({operation.name})" for operation in tensor.consumers()]
    return ", ".join(users) or "an operation"


def read(captures: Sequence[Any]) -> list[Array]:
    """Return the values now, as `to_spec` has them; on the CPU without a copy.

    TensorFlow copies on the next write what somebody still holds, so they stay as they are.
    """
    with tf.init_scope():
        return [_physical(to_numpy(_value(captured))) for captured in captures]


def _value(captured: Any) -> tf.Tensor:
    if not isinstance(captured, tf.Variable):
        return captured
    return tf.raw_ops.ReadVariableOp(resource=captured.handle, dtype=captured.dtype)


def _physical(array: Array) -> Array:
    if not is_narrowed(array.dtype):
        return array
    pairs = array.dtype.itemsize // 4
    return np.ascontiguousarray(array)[..., None].view(np.uint32).reshape(*array.shape, pairs)


def is_trainable(variable: tf.Variable) -> bool:
    """Return whether JAX, as it is set, can differentiate with respect to a variable."""
    dtype = dtype_from_name(variable.dtype.name, where=variable.name)
    return dtype.differentiable and not is_split(variable)


def variables_of(fun_tf: Any) -> tuple[tf.Variable, ...] | None:
    """Return the variables that a module, a layer or a concrete function has; None if unknown."""
    variables = getattr(fun_tf, "variables", None)
    if variables is None or callable(variables):
        # What TensorFlow has loaded: its `__call__`, an attribute, or its signatures read them.
        called = getattr(fun_tf, "__call__", None)  # noqa: B004  # not whether it can be called
        functions = getattr(called, "concrete_functions", None)
        if not functions and isinstance(signatures := getattr(fun_tf, "signatures", None), Mapping):
            functions = [*signatures.values()]
        if not functions:
            return None
        found = (variable for function in functions for variable in function.variables)
        variables = {id(variable): variable for variable in found}.values()
    # A variable of Keras 3 is an object of its own around TensorFlow's.
    return tuple(v if isinstance(v, tf.Variable) else v.value for v in variables)


def path_of(variable: tf.Variable) -> str:
    """Return the name of a variable, as a layer of Keras or a module gave it."""
    return str(variable.name).partition(":")[0]
