"""Functions that have the derivative of another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero


def with_derivative(known: Callable[..., Any], compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes what another one does, with the derivative of a known one."""
    function: Any = jax.custom_jvp(compute)

    def derivative(primals: Any, tangents: Any) -> Any:
        # `polygamma` and its like have derivatives with respect to some of their arguments only.
        places = [n for n, t in enumerate(tangents) if not isinstance(t, SymbolicZero)]

        def of_these(*changing: Any) -> Any:
            arguments = list(primals)
            for place, value in zip(places, changing, strict=True):
                arguments[place] = value
            return known(*arguments)

        moved = [primals[place] for place in places]
        _, tangent = jax.jvp(of_these, moved, [tangents[place] for place in places])
        return function(*primals), tangent

    function.defjvp(derivative, symbolic_zeros=True)
    result: Callable[..., Any] = function
    return result
