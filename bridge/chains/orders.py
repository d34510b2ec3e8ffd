"""`Order`: one order of a differentiable function, and where the next one comes from.

The option `gradient_order` says how many of them there are after the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from xla_call_module.call import CallModule, Carried
from xla_call_module.errors import ArgumentError, InteropError, StructureError

__all__ = ["NOT_DIFFERENTIABLE", "Order", "Runner", "WrittenOrder", "check_order"]

# What is raised where a function has no derivative: by JAX, by its rules, and by this package.
NOT_DIFFERENTIABLE = (InteropError, ValueError, NotImplementedError, TypeError, LookupError)

# Runs a call on views of its arguments, and returns TensorFlow's tensors.
Runner = Callable[[Sequence[np.ndarray[Any, Any]]], list[Any]]


def check_order(order: object, *, least: int = 0, cure: str = "") -> None:
    """Refuse a `gradient_order` that is no number of orders.

    Args:
        order: what was passed.
        least: the smallest that there is.
        cure: what to do for less than that.

    Raises:
        ArgumentError: it is no integer.
        StructureError: it is less than `least`.
    """
    said = f"gradient_order is {order!r}; expected a whole number from {least} on."
    if not isinstance(order, int) or isinstance(order, bool):
        raise ArgumentError(said)
    if order < least:
        raise StructureError(f"{said} To do: {cure}." if cure else said)


class Order(Protocol):
    """The function itself, or the VJP of the order below.

    Attributes:
        call: what is called; its arguments are those of the order below and its cotangents.
        constants: the values of what the calls of all orders have hoisted, by their keys.
    """

    @property
    def call(self) -> CallModule:
        """See above."""

    @property
    def constants(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """See above."""

    def carried(self) -> Carried:
        """What the node of the call says of itself; the call may not have it yet."""

    def vjp(self) -> Order:
        """The next order.

        Raises:
            StructureError: there is none.
            Exception: what JAX raises where it cannot differentiate.
        """

    def runner(self) -> Runner | None:
        """What runs the call in JAX, where nothing is recorded; None where only TensorFlow can."""


class WrittenOrder:
    """One order of a chain that is there as a whole, as a file has it. It needs no JAX."""

    __slots__ = ("_chain", "_order", "constants")

    constants: Mapping[str, np.ndarray[Any, Any]]

    def __init__(
        self,
        chain: Sequence[CallModule],
        constants: Mapping[str, np.ndarray[Any, Any]],
        *,
        order: int = 0,
    ) -> None:
        """Take over a chain.

        Args:
            chain: a function, its VJP, the VJP of that, …; without residuals.
            constants: the values of what their modules have hoisted.
            order: which of them this is.
        """
        self._chain = chain
        self._order = order
        self.constants = constants

    @property
    def call(self) -> CallModule:
        """The call of this order."""
        return self._chain[self._order]

    def carried(self) -> Carried:
        """What the file says of it."""
        return Carried(self.call.exported, self.call.trees)

    def vjp(self) -> WrittenOrder:
        """The next order.

        Raises:
            StructureError: the chain ends here.
        """
        if self._order + 1 == len(self._chain):
            raise StructureError(
                f"{self._chain[0].name} was written with gradients up to order {self._order}. To "
                f"do: make it with gradient_order={self._order + 1} or more (forward mode needs "
                "one more than reverse mode)."
            )
        return WrittenOrder(self._chain, self.constants, order=self._order + 1)

    def runner(self) -> None:
        """None: it is TensorFlow that runs it."""
        return
