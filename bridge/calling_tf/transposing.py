"""Functions that JAX can transpose where they are linear, which it cannot do with a mapped one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

__all__ = ["Transpose", "transposable"]

# The operands, with ones for those that it is linear in; the indices of these; one cotangent for
# each result -> one for each of these operands.
Transpose = Callable[[Sequence[Any], tuple[int, ...], Sequence[Any]], Sequence[Any]]


def transposable(
    function: Callable[..., Sequence[Any]], transpose: Transpose
) -> Callable[..., list[Any]]:
    """The same function, for `jax.linear_transpose` too.

    Args:
        function: of arrays, which JAX can map; what differentiates it is around the result.
        transpose: called where JAX asks for it.
    """

    def call(*operands: Any) -> list[Any]:
        avals = jax.make_jaxpr(function)(*operands).out_avals
        found: list[Any] = _CALL.bind(
            *operands, function=function, transpose=transpose, results=tuple(avals)
        )
        return found

    return call


def _run(
    *operands: Any,
    function: Callable[..., Sequence[Any]],
    transpose: Transpose,
    results: tuple[Any, ...],
) -> Sequence[Any]:
    del transpose, results
    return function(*operands)


def _results_of(*_: Any, results: tuple[Any, ...], **__: Any) -> tuple[Any, ...]:
    return results


def _transpose(
    cotangents: Sequence[Any], *operands: Any, transpose: Transpose, **_: Any
) -> list[Any]:
    unknown = [ad.is_undefined_primal(operand) for operand in operands]
    active = tuple(index for index, missing in enumerate(unknown) if missing)
    given = [
        jnp.ones(operand.aval.shape, operand.aval.dtype) if missing else operand
        for operand, missing in zip(operands, unknown, strict=True)
    ]
    found = iter(transpose(given, active, [ad.instantiate_zeros(ct) for ct in cotangents]))
    return [next(found) if missing else None for missing in unknown]


def _batch(
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    function: Callable[..., Sequence[Any]],
    **_: Any,
) -> tuple[Sequence[Any], Sequence[int]]:
    found = jax.vmap(function, in_axes=tuple(axes))(*operands)
    return found, [0] * len(found)


def _define() -> Primitive:
    """The primitive, with what JAX asks of one."""
    primitive = Primitive("call_of_tensorflow")
    primitive.multiple_results = True
    primitive.def_impl(_run)
    primitive.def_abstract_eval(_results_of)
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = _batch
    mlir.register_lowering(primitive, mlir.lower_fun(_run, multiple_results=True))
    return primitive


_CALL = _define()
