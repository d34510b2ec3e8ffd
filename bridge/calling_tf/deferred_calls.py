"""Calls that are TensorFlow's in what JAX exports, and something else in what JAX runs itself.

Which of the two a program becomes is known when it is lowered, not when it is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from bridge.core._jax import is_for_export
from xla_call_module.errors import StructureError

__all__ = ["HeldCall", "hold"]

Arrays = Sequence[Any]


@dataclass(frozen=True, slots=True, eq=False)
class HeldCall:
    """The forms of one call.

    Attributes:
        name: of the function, for messages.
        exported: what it is in a program that is exported.
        compiled: what it is in one that JAX runs; None where it must be exported.
        now: what computes it of values.
    """

    name: str
    exported: Callable[..., Arrays]
    compiled: Callable[..., Arrays] | None
    now: Callable[..., Arrays]


def hold(call: HeldCall, like: Callable[..., Arrays], operands: Arrays) -> list[Any]:
    """The results of a call in the program that is being traced.

    Args:
        call: its forms.
        like: a function of the operands with the same results and effects.
        operands: what it is called with.
    """
    traced = jax.make_jaxpr(like)(*operands)
    found: list[Any] = _HELD.bind(
        *operands, call=call, results=tuple(traced.out_avals), outside=frozenset(traced.effects)
    )
    return found


def _run(*operands: Any, call: HeldCall, **_: Any) -> Arrays:
    return call.now(*operands)


def _results_of(
    *_: Any, results: tuple[Any, ...], outside: frozenset[Any], **__: Any
) -> tuple[tuple[Any, ...], frozenset[Any]]:
    return results, outside


def _lower(context: Any, *operands: Any, call: HeldCall, **_: Any) -> Any:
    form = call.exported if is_for_export(context) else _compiled(call)
    return mlir.lower_fun(form, multiple_results=True)(context, *operands)


def _compiled(call: HeldCall) -> Callable[..., Arrays]:
    if call.compiled is None:
        raise StructureError(
            f"{call.name} is called with call_tf_graph=True, which keeps it a function of "
            "TensorFlow's, and JAX alone cannot run the program around it. To do: convert the "
            "program with jax2tf.convert, and run it in TensorFlow; or leave call_tf_graph=True "
            "out."
        )
    return call.compiled


def _define() -> Primitive:
    """The primitive, with what JAX asks of one; others are around it for derivatives and maps."""
    primitive = Primitive("held_call_of_tensorflow")
    primitive.multiple_results = True
    primitive.def_impl(_run)
    primitive.def_effectful_abstract_eval(_results_of)
    mlir.register_lowering(primitive, _lower)
    return primitive


_HELD = _define()
