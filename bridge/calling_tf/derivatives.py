"""A traced TensorFlow function as a JAX function, with derivatives and under `vmap`.

Each derivative is TensorFlow's: a function of its own, which a tape writes and which is compiled
into JAX's program like the first one. So it can be differentiated, too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax import custom_batching, export, lax
from jax.custom_derivatives import SymbolicZero

from bridge.calling_tf.callbacks import (
    Callback,
    DeferredCall,
    call_now,
    defer,
    read_at_run_time,
    runs_now,
)
from bridge.calling_tf.concrete_functions import FlatFunction, TracedFunction, trace
from bridge.calling_tf.differentiability import (
    lost_gradients,
    operations_without_gradient,
    refuse_effects,
    without_derivative,
)
from bridge.calling_tf.embedding import Embedding
from bridge.calling_tf.graph_inlining import is_differentiated_inline
from bridge.calling_tf.linear_calls import LinearMap, apply_linear, transposable
from bridge.calling_tf.results import result_specs
from bridge.calling_tf.tape_gradients import TapeGradients, is_trainable_spec
from bridge.calling_tf.variables import is_trainable, read, to_spec
from bridge.calling_tf.xla_lowering import compile_function, compiled_results, lower
from bridge.core._jax import is_staging, vary_together
from bridge.lifting.lifted_function import lift_call
from bridge.lifting.lifting_table import TENSORFLOW_TABLE
from xla_call_module.analyses.dependence import dependencies
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.exported import from_exported

Arrays = Sequence[Any]


class CompiledFunction:
    """A JAX function of a traced function's arguments, then of its variables' values."""

    def __init__(
        self,
        traced: TracedFunction,
        variables: Sequence[tf.Variable],
        derivative_of: CompiledFunction | None = None,
        results: tuple[jax.ShapeDtypeStruct, ...] | None = None,
        runner: Callback | Embedding | None = None,
    ) -> None:
        """Take a function; it is compiled when it is first needed."""
        self._declared = results
        self._runner = runner
        self._derivative_of = derivative_of
        self._traced = traced
        self._variables = tuple(variables)
        self._derived: dict[Hashable, Any] = {}
        self._lifted: tuple[Sequence[int], Callable[..., Any]] | None = None
        self._lock = threading.RLock()

    def __call__(self, *inputs: Any) -> list[Any]:
        """Return the results."""
        config: Any = jax.config  # its values are attributes that JAX adds when it is imported
        # With its checks JAX refuses effects inside of `jax.custom_jvp`.
        plain = config.jax_enable_checks and is_staging() and _has_effects(self._runner)
        function = self._mapped if plain else self._differentiable
        results: list[Any] = function(*vary_together(inputs))
        return results

    @cached_property
    def _differentiable(self) -> Callable[..., list[Any]]:
        function = jax.custom_jvp(self._mapped)
        function.defjvp(self._push_forward, symbolic_zeros=True)
        return function

    @cached_property
    def _results(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        if self._declared is not None:
            return self._declared
        if self._runner is None and not all(
            r.shape.is_fully_defined() for r in self._traced.results
        ):
            return compiled_results(self._traced, self._module)
        return result_specs(self._traced)

    @cached_property
    def _module(self) -> bytes:
        if self._runner is None:
            return compile_function(self._traced)
        function, name = self._traced.function.python_function, self._traced.name
        return compile_function(trace(function, self._traced.arguments, name=name))

    @cached_property
    def _mapped(self) -> Callable[..., list[Any]]:
        if isinstance(self._runner, Callback):
            return self._run  # callbacks have a rule of their own
        function = custom_batching.custom_vmap(self._run)
        function.def_vmap(self._map)
        if self._runner is None:
            return transposable(function, self._transpose)
        # `custom_vmap` would trace it, and what is traced JAX alone does not run.
        return lambda *inputs: (self._run if runs_now(inputs) else function)(*inputs)

    @cached_property
    def _compiled(self) -> tuple[export.Exported, list[Any]]:
        """The `Exported`, and what it takes besides arguments.

        For each of these an index into the variables, a variable that is none of them (what a
        custom gradient reads), or a constant.
        """
        exported = lower(self._traced, self._module, self._results)
        places = {id(variable): index for index, variable in enumerate(self._variables)}
        captures: list[Any] = []
        for captured in self._traced.captures:
            if id(captured) in places:
                captures.append(places[id(captured)])
            elif isinstance(captured, tf.Variable):
                captures.append(captured)
            else:
                captures.append(read([captured])[0])
        return exported, captures

    def _run(self, *inputs: Any) -> list[Any]:
        return vary_together(self._call(*inputs), inputs)

    def _call(self, *inputs: Any) -> list[Any]:
        if isinstance(self._runner, Callback):
            return self._runner.run(self._traced, self._results, inputs)
        if self._runner is None:
            return self._call_compiled(*inputs)
        return self._call_now(*inputs) if runs_now(inputs) else self._defer(self._runner, inputs)

    def _call_now(self, *inputs: Any) -> list[Any]:
        if self._variables:  # which TensorFlow would not take the values of
            return self._call_compiled(*inputs)
        return call_now(self._traced, self._results, inputs)

    def _call_compiled(self, *inputs: Any) -> list[Any]:
        exported, values = self._with_captures(inputs)
        return list(exported.call(*values))

    def _call_lifted(self, *inputs: Any) -> list[Any]:
        """Return the results by the operations of the module, which JAX differentiates."""
        exported, values = self._with_captures(inputs)
        if self._lifted is None:
            call = from_exported(exported, allow_flat_trees=True, carried=False)
            self._lifted = call.kept, lift_call(call, table=TENSORFLOW_TABLE)
        kept, lifted = self._lifted
        return list(lifted(*(values[index] for index in kept)))

    def _with_captures(self, inputs: Sequence[Any]) -> tuple[export.Exported, list[Any]]:
        """Return the `Exported`, and what it is called with."""
        with self._lock:
            exported, captures = self._compiled
        count = len(self._traced.arguments)

        def value(captured: Any) -> Any:
            if isinstance(captured, int):
                return inputs[count + captured]
            if isinstance(captured, tf.Variable):
                specs = [to_spec(captured, self._traced)]
                return read_at_run_time([captured], specs, name=self._traced.name)[0]
            return captured

        return exported, [*inputs[:count], *map(value, captures)]

    def _defer(self, runner: Embedding, inputs: Sequence[Any]) -> list[Any]:
        """Call a function that stays TensorFlow's in an export, and is compiled elsewhere."""
        count = len(self._traced.arguments)

        def embed(*inputs: Any) -> list[Any]:
            values = dict(zip(map(id, self._variables), inputs[count:], strict=True))
            return runner.run(self._traced, self._results, inputs[:count], values)

        call = DeferredCall(
            name=self._traced.name,
            exported=embed,
            compiled=None if runner.only_exported else self._call_compiled,
            now=self._call_now,
        )
        return defer(call, lambda *inputs: runner.like(self._results, inputs), inputs)

    def _push_forward(self, primals: Arrays, tangents: Arrays) -> tuple[list[Any], list[Any]]:
        """The rule of `jax.custom_jvp`."""
        active = tuple(
            index
            for index, tangent in enumerate(tangents)
            if not isinstance(tangent, SymbolicZero) and self._is_trainable(index)
        )
        moving = self._gradients.targets
        if active and moving:
            refuse_effects(self._traced)
        results = self(*primals)
        pushed = {}
        if active and moving:
            linear = LinearMap(
                forward=lambda fixed, given: self._push(active, fixed, given),
                transpose=lambda fixed, given: self._pullback_of(active)(*self._join(fixed, given)),
                results=tuple(jax.typeof(results[index]) for index in moving),
            )
            linear_results = apply_linear(linear, primals, [tangents[index] for index in active])
            pushed = dict(zip(moving, linear_results, strict=True))
        return results, [pushed.get(i, _zero_tangent(r)) for i, r in enumerate(results)]

    def _push(self, active: tuple[int, ...], inputs: Arrays, tangents: Arrays) -> Arrays:
        """Return the tangents of the differentiable results, for those of the active inputs.

        Where TensorFlow has a gradient and no gradient of it, the gradient is transposed, operation
        by operation: so what an author says of it holds in forward mode, too.
        """
        try:
            return self._tangent_of(active)(*self._join(inputs, tangents))
        except StructureError as error:
            if self._runner is not None:
                raise
            pushed = self._transposed_gradient(active, inputs, tangents)
            if pushed is None:
                raise error from None
            return pushed

    def _transposed_gradient(
        self, active: tuple[int, ...], inputs: Arrays, tangents: Arrays
    ) -> Arrays | None:
        """Return what the transpose of the gradient makes of tangents; None if JAX has none."""

        def gradient(*cotangents: Any) -> list[Any]:
            return self._pullback_of(active)._call_lifted(*self._join(inputs, cotangents))

        try:
            zeros = [jnp.zeros(spec.shape, spec.dtype) for spec in self._gradients.target_specs]
            # That of what is linear is the same everywhere.
            pushed: Arrays = jax.vjp(gradient, *zeros)[1](list(tangents))
        except (InteropError, NotImplementedError, TypeError, ValueError):
            return None
        return pushed

    def _transpose(self, inputs: Arrays, active: tuple[int, ...], cotangents: Arrays) -> Arrays:
        """The rule of `jax.linear_transpose`: the gradient, where it is the same everywhere."""
        if not all(map(self._is_trainable, active)) or not self._is_linear_in(active):
            raise StructureError(
                f"{self._traced.name} cannot be transposed: its gradient in TensorFlow depends on "
                "the arguments, so it is not linear in them. To do: transpose a linear function, "
                "or take jax.vjp, which transposes the derivative at a point."
            )
        given = [cotangents[index] for index in self._gradients.targets]
        return self._pullback_of(active)(*self._join(inputs, given))

    def _is_linear_in(self, active: tuple[int, ...]) -> bool:
        """Return whether the gradient depends on none of these inputs."""
        pullback = self._pullback_of(active)
        exported, captures = pullback._compiled
        given, count = len(pullback._traced.arguments), len(self._traced.arguments)
        places = [i for i in active if i < count]
        places += [
            given + n for n, c in enumerate(captures) if isinstance(c, int) and count + c in active
        ]
        arguments_of_results = dependencies(from_exported(exported, allow_flat_trees=True))
        return not any(one & set(places) for one in arguments_of_results)

    def _join(self, inputs: Arrays, given: Arrays) -> list[Any]:
        """Return the inputs of a derivative: arguments, tangents or cotangents, variables."""
        count = len(self._traced.arguments)
        return [*inputs[:count], *given, *inputs[count:]]

    def _is_trainable(self, index: int) -> bool:
        count = len(self._traced.arguments)
        if index < count:
            return is_trainable_spec(self._traced.arguments[index])
        return is_trainable(self._variables[index - count])

    @cached_property
    def _gradients(self) -> TapeGradients:
        return TapeGradients(
            self._traced,
            self._variables,
            self._results,
            inline_loops=self._runner is None and is_differentiated_inline(self._traced.concrete),
        )

    def _tangent_of(self, active: tuple[int, ...]) -> CompiledFunction:
        """Return the function of arguments and of tangents of the active inputs."""
        of = self._gradients
        given, results = of.input_specs(active), of.target_specs
        return self._derive("tangent", active, of.tangents(active), given, results)

    def _pullback_of(self, active: tuple[int, ...]) -> CompiledFunction:
        """Return the function of arguments and of cotangents of the differentiable results."""
        of = self._gradients
        given, results = of.target_specs, of.input_specs(active)
        return self._derive("pullback", active, of.cotangents(active), given, results)

    def _derive(
        self,
        kind: str,
        active: tuple[int, ...],
        flat: FlatFunction,
        specs: Sequence[jax.ShapeDtypeStruct],
        results: Sequence[jax.ShapeDtypeStruct],
    ) -> CompiledFunction:
        with self._lock:
            if (kind, active) not in self._derived:
                given = [*self._traced.arguments, *specs]
                compiled = self._runner is None
                self._refuse_lost_gradients(kind, active)
                try:
                    traced = trace(flat, given, name=self._traced.name, compiled=compiled)
                except (LookupError, NotImplementedError) as error:
                    raise without_derivative(self._traced.name, kind, error) from error
                self._derived[kind, active] = CompiledFunction(
                    traced,
                    self._variables,
                    derivative_of=self,
                    results=tuple(results),
                    runner=_without_effects(self._runner),
                )
            derived: CompiledFunction = self._derived[kind, active]
            return derived

    def _refuse_lost_gradients(self, kind: str, active: tuple[int, ...]) -> None:
        """Refuse a derivative that TensorFlow would compute as zero without a word."""
        lost: tuple[str, ...] = ()
        if kind == "tangent":  # which is the gradient of the pullback
            count, pullback = len(self._traced.arguments), self._pullback_of(active)
            cotangents = range(count, len(pullback._traced.arguments))
            lost = operations_without_gradient(pullback._traced.concrete, linear=cotangents)
        elif self._derivative_of is not None:
            first = len(self._derivative_of._traced.arguments)
            last = len(self._traced.arguments)
            lost = operations_without_gradient(
                self._traced.concrete,
                linear=[index for index in active if first <= index < last],
                others=[index for index in active if index < first],
            )
        if lost:
            raise lost_gradients(self._traced.name, kind, lost)

    def _map(
        self, axis_size: int, in_batched: Sequence[bool], *inputs: Any
    ) -> tuple[list[Any], list[bool]]:
        """The rule of `custom_vmap`: the module's operations, each of which JAX has a rule for.

        Where JAX has none for one of them, the elements are computed one after another.
        """
        if self._runner is None:
            axes = [0 if batched else None for batched in in_batched]
            with contextlib.suppress(InteropError, NotImplementedError):
                lifted: list[Any] = jax.vmap(self._call_lifted, axes, axis_size=axis_size)(*inputs)
                return lifted, [True] * len(lifted)

        def one(elements: list[Any]) -> list[Any]:
            rest = iter(elements)
            pairs = zip(inputs, in_batched, strict=True)
            return self(*(next(rest) if batched else value for value, batched in pairs))

        mapped = [value for value, batched in zip(inputs, in_batched, strict=True) if batched]
        one_by_one: list[Any] = lax.map(one, mapped)
        return one_by_one, [True] * len(one_by_one)


def _zero_tangent(result: Any) -> Any:
    if jnp.issubdtype(result.dtype, jnp.inexact):
        return jnp.zeros_like(result)
    return SymbolicZero(jax.typeof(result).to_tangent_aval())  # numpy has no symbolic shapes


def _has_effects(runner: Callback | Embedding | None) -> bool:
    if isinstance(runner, Callback):
        return runner.ordered
    return runner is not None and runner.has_side_effect


def _without_effects(runner: Callback | Embedding | None) -> Callback | Embedding | None:
    """Return the runner of the derivative of a function whose effects do not matter."""
    if isinstance(runner, Callback):
        return replace(runner, ordered=False)
    return runner and replace(runner, has_side_effect=False)
