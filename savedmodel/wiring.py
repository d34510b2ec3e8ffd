"""How a signature is wired: which values its calls take, and which it returns.

What TensorFlow puts around a call is a graph. What is left of it when it is followed is a few kinds
of values, and calls of modules between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from savedmodel.batch_buckets import BatchBuckets
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import DType

__all__ = [
    "Cast",
    "Constant",
    "Gradient",
    "Input",
    "Invocation",
    "Output",
    "Parameter",
    "Reshape",
    "Value",
    "Wiring",
]


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the signature."""

    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable of the file, by its index."""

    variable: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An array in the graph."""

    value: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Cast:
    """A value in another dtype."""

    source: Value
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reshape:
    """A value in another shape, of which one size may be -1, to be found out."""

    source: Value
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A result of a call."""

    invocation: Invocation
    index: int


Value = Input | Parameter | Constant | Cast | Reshape | Output


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a call, as another program's file has it.

    Attributes:
        call: the module.
        operands: what it takes: `("operand", i)` of the call, the cotangent of `("result", i)`, or
            `("zero", i)` for the cotangent of the i-th result that has none.
        results: for each operand of the call which result is its cotangent; None for none.
    """

    call: CallModule
    operands: tuple[tuple[str, int], ...]
    results: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Invocation:
    """A call with what it takes.

    Attributes:
        chain: the call and, if it describes itself, its gradients.
        operands: for each operand of the call where it comes from.
        gradient: its gradient, if it does not describe itself and the file has one.
        batch_buckets: what the batches among its operands are padded to, and the results cut from;
            operands and results are what they are without that.
    """

    chain: tuple[CallModule, ...]
    operands: tuple[Value, ...]
    gradient: Gradient | None = None
    batch_buckets: BatchBuckets | None = None

    @property
    def call(self) -> CallModule:
        """What is called."""
        return self.chain[0]


@dataclass(frozen=True, slots=True, eq=False)
class Wiring:
    """All of a signature.

    Attributes:
        inputs: the name of each input and what TensorFlow says of it.
        outputs: for each output name its value.
    """

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, Value]

    def values(self) -> Iterator[Value]:
        """Every value, before those that are made of it; each as often as it is used."""
        seen: set[int] = set()
        # With each value whether what it is made of was visited; a stack, as chains are long.
        pending = [(value, False) for value in [*self.outputs.values()][::-1]]
        while pending:
            value, visited = pending.pop()
            below: Sequence[Value] = ()
            if isinstance(value, Cast | Reshape):
                below = (value.source,)
            elif isinstance(value, Output) and id(value.invocation) not in seen:
                seen.add(id(value.invocation))
                below = value.invocation.operands
            if visited or not below:
                yield value
            else:
                pending.append((value, True))
                pending.extend((operand, False) for operand in reversed(below))

    def invocations(self) -> tuple[Invocation, ...]:
        """Every call once, before those that take its results."""
        found = (value.invocation for value in self.values() if isinstance(value, Output))
        return tuple({id(invocation): invocation for invocation in found}.values())
