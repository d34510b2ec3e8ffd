"""Functions of JAX as they come back from their artifacts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

import bridge


def lift(
    function: Callable[..., Any],
    *arguments: Any,
    platforms: Sequence[str] | None = None,
    disabled: Sequence[Any] = (),
) -> Callable[..., Any]:
    """Return a function that is exported and lifted."""
    jitted = jax.jit(lambda *given: function(*given))
    return bridge.to_jax(export.export(jitted, platforms=platforms, disabled_checks=disabled)(
        *arguments
    ))  # fmt: skip


def symbolic(shape: str, dtype: Any = "float32", **options: Any) -> jax.ShapeDtypeStruct:
    """Return what an array of symbolic sizes is exported with."""
    return jax.ShapeDtypeStruct(export.symbolic_shape(shape, **options), dtype)


def assert_same(found: Any, expected: Any, **tolerance: float) -> None:
    """Compare the arrays of two trees: bit for bit, if no difference is allowed."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for one, other in pairs:
        if not tolerance:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        else:
            np.testing.assert_allclose(one, other, **tolerance)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield the equations of a jaxpr, those inside of others among them."""
    pending = [getattr(jaxpr, "jaxpr", jaxpr)]
    while pending:
        for eqn in pending.pop().eqns:
            yield eqn
            for value in eqn.params.values():
                inner = value if isinstance(value, (list, tuple)) else [value]
                parts = (getattr(part, "jaxpr", part) for part in inner)
                pending += [part for part in parts if hasattr(part, "eqns")]


def names(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """Return the names of the primitives that a function traces to."""
    return [eqn.primitive.name for eqn in equations(jax.make_jaxpr(function)(*arguments))]
