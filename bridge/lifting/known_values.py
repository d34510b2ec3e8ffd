"""The values of a module as lifting has them: arrays of JAX, and what is known while it traces.

A value is an array of JAX, or one of these, which are known before the program runs:

- a numpy array: a constant, or what was computed of constants alone;
- `SizeArray`: integers that are sizes, some of them expressions of symbolic dimensions;
- `PlatformChoice`: a scalar that differs from platform to platform, such as the platform index;
- `DeviceNumber`: the number of the device that computes, in a manual computation;
- `StructuredArray`: an array of which more is known than its elements;
- `TOKEN`: the order of effects, of which a function of JAX has none.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

from xla_call_module.errors import StructureError, UnsupportedError
from xla_call_module.stablehlo.constant_evaluation import repeated_element

# An integer, or an expression of `jax.export.symbolic_shape`.
Dimension = Any
# An array of JAX, a numpy array, or one of the classes of this file.
LiftedValue = Any


@dataclass(frozen=True, slots=True, eq=False)
class SizeArray:
    """An array of integers that are sizes, not all of which are numbers.

    Attributes:
        elements: a numpy array of Python's integers and of dimension expressions.
        dtype: the dtype in the module.
    """

    elements: np.ndarray[Any, Any]
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        shape: tuple[int, ...] = self.elements.shape
        return shape


@dataclass(frozen=True, slots=True, eq=False)
class PlatformChoice:
    """A scalar of which each platform has its own.

    Attributes:
        values: the scalar of each platform, by JAX's name of the platform.
    """

    values: Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True, eq=False)
class DeviceNumber:
    """The number of the device that computes, of which JAX has the place along each axis.

    Attributes:
        axes: the names of axes that JAX has, which together are one axis of the mesh of the export,
            and its size there; the slowest first.
        dtype: the dtype in the module.
    """

    axes: tuple[tuple[tuple[str, ...], int], ...]
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return ()


class StructuredArray(abc.ABC):
    """An array of which lifting knows more than its elements, which some operations make use of."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[Dimension, ...]:
        """The shape."""

    @abc.abstractmethod
    def array(self) -> Any:
        """Return it as an array, for operations that make no use of what is known."""

    def after(self, raw: Any, operands: Sequence[Any]) -> Any:
        """Return the result of an operation on it that makes use of what is known; None if not."""
        del raw, operands


class Token:
    """The order of effects, which the operations of a lifted function have by their operands."""


TOKEN: Final = Token()


def of_dimensions(elements: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> LiftedValue:
    """Return an array of objects as a numpy array where all are numbers, else as sizes."""
    if any(map(export.is_symbolic_dim, elements.reshape(-1))):
        return SizeArray(elements, dtype)
    return elements.astype(dtype)


def dimensions_of(value: LiftedValue) -> tuple[Dimension, ...] | None:
    """Return the elements of a vector or scalar of sizes; None if they are not known."""
    if isinstance(value, SizeArray):
        return tuple(value.elements.reshape(-1))
    if isinstance(value, np.ndarray):
        return tuple(map(int, value.reshape(-1)))
    return None


def as_array(value: LiftedValue) -> Any:
    """Return a value as JAX's operations take it."""
    if isinstance(value, StructuredArray):
        return value.array()
    if isinstance(value, SizeArray):
        parts = [_scalar(dim, value.dtype) for dim in value.elements.reshape(-1)]
        if value.shape == ():
            return parts[0]
        return lax.reshape(jnp.stack(parts), value.shape)
    if (repeated := repeated_element(value)) is not None:
        return lax.broadcast(repeated, value.shape)
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, DeviceNumber):
        return _device_number(value)
    if isinstance(value, (PlatformChoice, Token)):
        kind = "The platform index" if isinstance(value, PlatformChoice) else "A token"
        raise StructureError(
            f"{kind} of the module is used as an array. To do: export the function again, by "
            "jax.export, which uses it in branches and in the order of effects only."
        )
    return value


def is_known(value: LiftedValue) -> bool:
    """Return whether a value is no array that the program computes."""
    return isinstance(value, (np.ndarray, SizeArray, PlatformChoice, DeviceNumber, Token))


def _device_number(value: DeviceNumber) -> Any:
    names = tuple(name for names, _ in value.axes for name in names)
    try:
        number = lax.axis_index(names) if names else np.zeros((), np.int32)
    except NameError as error:
        raise UnsupportedError(
            f"The module uses the position of a device along {', '.join(names)}, and XLA "
            "partitions these axes by itself here. To do: export it with these axes manual in "
            "jax.shard_map."
        ) from error
    return lax.convert_element_type(number, value.dtype)


def resolved(value: LiftedValue) -> LiftedValue:
    """Return a value as it goes into a function that JAX traces for itself, or out of it."""
    return value.array() if isinstance(value, StructuredArray) else value


def _scalar(dimension: Dimension, dtype: np.dtype[Any]) -> jax.Array:
    if isinstance(dimension, int):
        return jnp.asarray(np.asarray(dimension, dtype))
    return lax.convert_element_type(jnp.asarray(dimension), dtype)
