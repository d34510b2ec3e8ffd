"""TensorFlow called by the program that JAX runs, or kept a function of TensorFlow's in an export.

Which of the two a program becomes is known when it is lowered, not when it is traced: a
`DeferredCall` has a form for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import experimental
from jax.extend.core import Primitive
from jax.interpreters import mlir

from bridge.calling_tf.concrete_functions import TracedFunction
from bridge.calling_tf.variables import path_of, read, to_array, to_numpy, to_tensor
from bridge.core._jax import is_for_export, is_staging
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError, UnsupportedError

Arrays = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Callback:
    """A call of TensorFlow from the program that JAX runs.

    Attributes:
        ordered: whether the calls keep their order, and happen even if no result is used.
        keeps_arguments: whether the function may hold on to an argument, as an assignment to a
            variable does.
    """

    ordered: bool
    keeps_arguments: bool

    def run(
        self,
        traced: TracedFunction,
        results: Sequence[jax.ShapeDtypeStruct],
        arguments: Sequence[Any],
    ) -> list[Any]:
        """Return the results of a call now, or in the program that is being traced."""
        if runs_now(arguments):
            return call_now(traced, results, arguments)

        def called_back(*values: Any) -> list[Array]:
            # XLA takes the memory back when the call is over.
            given = [
                tf.constant(np.array(x)) if self.keeps_arguments else to_tensor(x) for x in values
            ]
            return [to_numpy(tensor) for tensor in _call(traced, results, given)]

        if self.ordered:
            staged = experimental.io_callback(called_back, list(results), *arguments, ordered=True)
        else:
            staged = jax.pure_callback(
                called_back, list(results), *arguments, vmap_method="sequential"
            )
        return list(staged)


def runs_now(arguments: Sequence[Any]) -> bool:
    """Return whether arguments are values, and not tracers."""
    return not is_staging() and not any(isinstance(x, jax.core.Tracer) for x in arguments)


def call_now(
    traced: TracedFunction, results: Sequence[jax.ShapeDtypeStruct], arguments: Sequence[Any]
) -> list[Any]:
    """Return the results of TensorFlow as JAX arrays; on the CPU nothing is copied."""
    tensors = _call(traced, results, [to_tensor(x) for x in arguments])
    return [to_array(tensor) for tensor in tensors]


def _call(
    traced: TracedFunction, results: Sequence[jax.ShapeDtypeStruct], tensors: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    with tf.init_scope():
        returned: list[tf.Tensor] = list(traced.concrete(*tensors))
    for index, (tensor, spec) in enumerate(zip(returned, results, strict=True)):
        if tuple(tensor.shape) != spec.shape:
            raise StructureError(
                f"Result {index} of {traced.name} has the shape {tuple(tensor.shape)}; declared "
                f"was {spec.shape}. To do: pass the right one as shapes=."
            )
    return returned


def read_at_run_time(
    captures: Sequence[Any], specs: Sequence[jax.ShapeDtypeStruct], *, name: str
) -> Sequence[jax.Array]:
    """Return the values of variables at the time when the program that is being traced runs."""
    if not captures:
        return ()

    def call_back() -> Sequence[Any]:
        values: Sequence[jax.Array] = jax.pure_callback(lambda: read(captures), list(specs))
        return [jnp.asarray(value) for value in values]

    def refuse() -> Sequence[Any]:
        raise UnsupportedError(
            f"{name} reads {', '.join(map(path_of, captures))} whenever the program runs, which "
            "calls back to Python, and the callback cannot leave this process. To do: pass "
            "variables='constant' to bridge.call_tf, which keeps their present values, or "
            "variables='argument', which makes them parameters."
        )

    def now() -> Sequence[Any]:
        return [jnp.asarray(value) for value in read(captures)]

    return defer(DeferredCall(name, exported=refuse, compiled=call_back, now=now), call_back, ())


@dataclass(frozen=True, slots=True, eq=False)
class DeferredCall:
    """A call that is one thing in an export, and another one in a program that JAX runs.

    Attributes:
        exported: the function in a program that is exported.
        compiled: the function in a program that JAX runs; None where it must be exported.
        now: the function of values.
    """

    name: str
    exported: Callable[..., Arrays]
    compiled: Callable[..., Arrays] | None
    now: Callable[..., Arrays]


def defer(call: DeferredCall, like: Callable[..., Arrays], operands: Arrays) -> list[Any]:
    """Return the results of a deferred call in the program that is being traced."""
    traced = jax.make_jaxpr(like)(*operands)
    results: list[Any] = _DEFERRED.bind(
        *operands, call=call, results=tuple(traced.out_avals), outside=frozenset(traced.effects)
    )
    return results


def _run_now(*operands: Any, call: DeferredCall, **_: Any) -> Arrays:
    return call.now(*operands)


def _results_of(
    *_: Any, results: tuple[Any, ...], outside: frozenset[Any], **__: Any
) -> tuple[tuple[Any, ...], frozenset[Any]]:
    return results, outside


def _lower(context: Any, *operands: Any, call: DeferredCall, **_: Any) -> Any:
    form = call.exported if is_for_export(context) else _compiled(call)
    return mlir.lower_fun(form, multiple_results=True)(context, *operands)


def _compiled(call: DeferredCall) -> Callable[..., Arrays]:
    if call.compiled is None:
        raise StructureError(
            f"{call.name} is called with call_tf_graph=True, which keeps it a TensorFlow function, "
            "and JAX alone cannot run the program around it. To do: convert the program with "
            "jax2tf.convert, and run it in TensorFlow; or leave call_tf_graph=True out."
        )
    return call.compiled


def _define() -> Primitive:
    """Return the primitive; `custom_jvp` and `custom_vmap` are around it."""
    primitive = Primitive("deferred_call_of_tensorflow")
    primitive.multiple_results = True
    primitive.def_impl(_run_now)
    primitive.def_effectful_abstract_eval(_results_of)
    mlir.register_lowering(primitive, _lower)
    return primitive


_DEFERRED = _define()
