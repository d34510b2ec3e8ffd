"""One operation of a StableHLO module, as the rules of lifting see it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np
from jax import lax
from jax.extend import core

from bridge.lifting.known_values import (
    Dimension,
    LiftedValue,
    as_array,
    dimensions_of,
)
from xla_call_module.errors import UnsupportedError
from xla_call_module.stablehlo.attributes import Attributes
from xla_call_module.stablehlo.combiners import block_dtypes
from xla_call_module.stablehlo.constant_evaluation import repeated_element
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import TensorType, tensor_type
from xla_call_module.stablehlo.walking import describe_operation

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh


@dataclass(frozen=True, slots=True)
class LiftedRegion:
    """A region of an operation, which is a function of its block's arguments.

    Attributes:
        block: the only block of the region, as MLIR has it.
        apply: the function: it takes and returns values, and sees those around the operation.
        to_array: makes an array of a value.
    """

    block: Any
    apply: Callable[..., list[LiftedValue]]
    to_array: Callable[[LiftedValue], Any] = as_array

    def __call__(self, *arguments: Any) -> list[Any]:
        """Return the results for some arguments, as arrays."""
        return [self.to_array(value) for value in self.apply(*arguments)]

    def of_elements(self, *arrays: Any) -> list[Any]:
        """Return the results for each element of arrays of one shape, of a region of scalars."""
        shape = np.shape(arrays[0])
        flat = [lax.reshape(array, (math.prod(shape),)) for array in arrays]
        mapped = jax.vmap(lambda *elements: tuple(self(*elements)))(*flat)
        return [lax.reshape(result, shape) for result in mapped]

    def traced(self, dtypes: Sequence[np.dtype[Any]]) -> LiftedRegion:
        """Return the same region of scalars, which can be applied when the module is gone."""
        scalars = [jax.ShapeDtypeStruct((), dtype) for dtype in dtypes]
        function = core.jaxpr_as_fun(jax.make_jaxpr(lambda *values: self(*values))(*scalars))
        return LiftedRegion(self.block, lambda *arguments: list(function(*arguments)))


@dataclass(frozen=True, slots=True)
class LiftedOperation(Attributes):
    """An operation whose operands have been lifted.

    Attributes:
        operands: the operands.
        regions: the regions.
        mesh: the mesh that the function is lifted for; None for none.
        around: the values that the operation sees, by MLIR's.
        may_compose: whether the rule may make composites.
    """

    operands: tuple[LiftedValue, ...]
    regions: tuple[LiftedRegion, ...]
    mesh: Mesh | AbstractMesh | None = None
    around: Mapping[Any, LiftedValue] = field(default_factory=dict)
    may_compose: bool = True

    @property
    def arrays(self) -> list[Any]:
        """The operands as arrays."""
        return [as_array(operand) for operand in self.operands]

    def array(self, index: int) -> Any:
        """Return one operand as an array."""
        return as_array(self.operands[index])

    @property
    def scalars_and_arrays(self) -> list[Any]:
        """The operands, of which constants with one repeated element are scalars.

        Functions of `jax.lax` of each element take these as well, if one operand has the shape.
        """
        scalars = [repeated_element(operand) for operand in self.operands]
        if all(scalar is not None for scalar in scalars):
            return self.arrays
        pairs = zip(scalars, self.operands, strict=True)
        return [as_array(operand if scalar is None else scalar) for scalar, operand in pairs]

    @property
    def types(self) -> list[TensorType]:
        """The types of the results, with None for a dynamic size."""
        return [tensor_type(str(result.type)) for result in self.raw.results]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the first result."""
        return self.dtype_of(0)

    def dtype_of(self, index: int) -> np.dtype[Any]:
        """Return the dtype of one result."""
        return element_dtype(self.types[index].element)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result, which has no dynamic sizes."""
        shape = self.types[0].shape
        if None in shape:
            self.refuse("its result has an unknown size")
        return tuple(dim for dim in shape if dim is not None)

    @property
    def region_dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The dtypes of the arguments of the first region."""
        return tuple(block_dtypes(self.regions[0].block))

    def dimensions(self, index: int) -> tuple[Dimension, ...]:
        """Return an operand that says sizes, one for each element."""
        known = dimensions_of(self.operands[index])
        if known is None:
            self.refuse(
                f"its operand {index}, which says sizes, depends on the values of arrays",
                "export the function with shapes that follow from those of its arguments",
            )
        return known

    def constant(self, index: int) -> np.ndarray[Any, Any]:
        """Return an operand that must be known."""
        value = self.operands[index]
        if not isinstance(value, np.ndarray):
            self.refuse(f"its operand {index} is computed, and JAX takes a constant here")
        return value

    def refuse(self, reason: str, cure: str = "") -> NoReturn:
        """Refuse the operation, since JAX cannot express it."""
        remedy = cure or "call the artifact as it is, by bridge.load or Exported.call"
        raise UnsupportedError(f"{describe_operation(self.raw)}: {reason}. To do: {remedy}.")


# Computes the results of an operation: one value, or all of them if they are several; None where
# the decomposition of a composite is to be taken.
# It takes a `LiftedOperation`, or the subclass of it that a table of rules is for.
Lift = Callable[[Any], LiftedValue | Sequence[LiftedValue] | None]


@dataclass(frozen=True, slots=True)
class LiftingRule:
    """The rule by which one operation of StableHLO becomes operations of JAX.

    Attributes:
        lift: the function that computes the results.
        attributes: the names of the attributes that `lift` reads, or that do not matter to it. An
            operation with any other is refused.
    """

    lift: Lift
    attributes: tuple[str, ...] = ()


def single(function: Callable[..., Any]) -> Lift:
    """Return a rule's function for an operation that a function of JAX computes of its operands."""

    def lift(op: LiftedOperation) -> Any:
        return function(*op.arrays)

    return lift
