"""A chain of calls as one differentiable TensorFlow function.

Order 0 of the chain is the function, order k+1 the VJP of order k. The gradient of each order is
the next one, so tapes can be nested. Where the orders come from is not known here, so that a chain
that was written to a file runs without JAX.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import tensorflow as tf

from bridge.chains.orders import NOT_DIFFERENTIABLE, ChainOptions, Order, check_order
from bridge.chains.plain_operations import lower_orders
from savedmodel.encode.graph_functions import serialize_graph
from xla_call_module._autograph import exempt_from_autograph
from xla_call_module._tf import flags_in_force, imported_release, recording_query, stop_recording
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import SHAPE_ASSERTIONS, DisabledCheck, unite
from xla_call_module.dimensions import evaluate_shape, solve
from xla_call_module.dtypes import Array
from xla_call_module.errors import MissingDependencyError
from xla_call_module.passes.module_pass import UnparsedCall
from xla_call_module.passes.pipeline import Artifact, prepare, prepare_chain
from xla_call_module.runtime.function_op import FunctionOp
from xla_call_module.runtime.op import Op, static_shape
from xla_call_module.runtime.shape_guard import read_check
from xla_call_module.runtime.tensorflow_errors import ShapeMismatchError
from xla_call_module.shape_checks import ShapeCheck
from xla_call_module.tracebacks import api_boundary, warn

Tensors = list[tf.Tensor]
Gradients = list[tf.Tensor | None]


@dataclass(frozen=True, slots=True)
class GradientOptions:
    """The options of the gradients of a chain.

    Attributes:
        order_in_file: how many orders `tf.saved_model.save` writes.
        unconnected_zeros: whether the gradient of an argument that no result depends on is zeros,
            as in JAX, and not None, as in TensorFlow.
        keeps_convention: whether calls keep the calling convention of the export where the imported
            TensorFlow has it; otherwise they have the oldest that says the same.
        no_gradient: what the error says where a gradient is asked for and there is none; by default
            that the function was converted so.
        no_jaxlib: what the error says where the imported TensorFlow needs another form of the
            modules, and jaxlib, which makes it, is not installed.
    """

    passes: ChainOptions = field(default_factory=ChainOptions)
    with_gradient: bool = True
    order_in_file: int = 1
    unconnected_zeros: bool = False
    keeps_convention: bool = False
    no_gradient: str = ""
    no_jaxlib: str = ""

    def __post_init__(self) -> None:
        """Refuse a file without gradients, which is asked for in another way."""
        cure = "for a function without gradients pass with_gradient=False"
        check_order(self.order_in_file, least=1, cure=cure)


@dataclass(frozen=True, slots=True)
class _PreparedOp:
    """An op, and the constants that it takes after its arguments.

    Attributes:
        constants: the values of the constants that were taken out of the module.
        assert_shapes: whether a graph asserts what it does not know of shapes. For a VJP it need
            not: the function has run with the same shapes.
    """

    op: Op
    constants: tuple[tf.Tensor, ...]
    assert_shapes: bool

    def __call__(self, tensors: Sequence[tf.Tensor | None]) -> Tensors:
        """Return the results, eagerly or in a graph."""
        operands = self.operands(tensors)
        if tf.executing_eagerly():
            return self.op.run(operands)
        taken = [*tensors, *self.constants]
        shapes = _result_shapes(self.op.call, taken, self.op.disabled_checks)
        return self.op.add_to_graph(operands, shapes, assert_shapes=self.assert_shapes)

    def with_constants_of(self, other: _PreparedOp) -> _PreparedOp:
        """Return the op for the graph of a file: constants that `other` lacks are written into it.

        `tf.saved_model.save` knows the constants of functions, and no others of their gradients.
        """
        known = {id(constant) for constant in other.constants}
        constants = (c if id(c) in known else tf.constant(c.numpy()) for c in self.constants)
        return replace(self, constants=tuple(constants))

    def operands(self, tensors: Sequence[tf.Tensor | None]) -> Tensors:
        """Return the operands of the op, of the arguments and the constants."""
        taken = [*tensors, *self.constants]
        return [taken[index] for index in self.op.call.kept]


@dataclass(frozen=True, slots=True)
class _Residuals:
    """The residuals of a forward pass, and the backward pass that takes them.

    Attributes:
        backward: the VJP, which takes the residuals after its own arguments.
    """

    backward: _PreparedOp
    values: Sequence[tf.Tensor]


class DifferentiableCall:
    """One order of the chain, on flat tensors."""

    def __init__(
        self,
        order: Order,
        options: GradientOptions,
        *,
        below: DifferentiableCall | None = None,
        at_once: bool = False,
    ) -> None:
        """Take the call; its VJP waits for need."""
        self._source = order
        self._options = options
        self._order: int = 0 if below is None else below._order + 1
        self._constants: dict[str, tf.Tensor] = {} if below is None else below._constants
        if below is None and order.constants:
            with tf.init_scope():
                self._constants.update(
                    (key, tf.constant(value)) for key, value in order.constants.items()
                )
        self._prepared: _PreparedOp | None = self._prepare([self])[0] if at_once else None
        self.call = order.call
        self._name: str = self.call.name if below is None else below._name
        self.disabled_checks = unite(self.call.disabled_checks, flags_in_force().disabled_checks)
        self._vjp: DifferentiableCall | None = None
        self._passes: list[_PreparedOp] = []
        self._function: Any = None
        self._lock = threading.RLock()
        self._may_record = recording_query()

    @property
    def _run(self) -> _PreparedOp:
        """The call as the imported TensorFlow runs it, which is made when it is needed."""
        if self._prepared is None:
            with self._lock:
                (self._prepared,) = self._prepare([self])
        return self._prepared

    def runner(self) -> Callable[[Sequence[Array]], Tensors] | None:
        """Return what runs the call in JAX where nothing is recorded; None where it cannot be."""
        exported = self._source.exported
        if exported is None or self._options.passes.plain_operations:
            return None
        from bridge.converting.eager import to_runner  # imports JAX

        # LAPACK, which JAX has here, gives factors other signs than the operations of the op do.
        passes = replace(self._options.passes, hoist_constants=None)
        (call,) = prepare(self.call, passes.target(None, Artifact.UNCHANGED)).calls
        return to_runner(exported, call)

    def __call__(
        self, tensors: Sequence[tf.Tensor | None], residuals: _Residuals | None = None
    ) -> Tensors:
        """Return the flat results."""
        if tf.executing_eagerly() and not self._may_record():
            return self._apply(tensors, residuals)
        if not tensors:
            return self._apply(tensors)
        if not self._options.with_gradient:
            return self._apply_without_gradient(tensors)
        if tf.executing_eagerly():
            return self._record(tensors, residuals)
        if self._may_record():
            return self._apply_as_function(tensors)
        return self._attach_gradient(tensors, residuals)

    def _apply_without_gradient(self, tensors: Sequence[tf.Tensor | None]) -> Tensors:
        """Return the results, of which TensorFlow refuses the gradient."""
        results = self._apply(tensors)
        if not tf.executing_eagerly() or self._options.passes.plain_operations:
            # A tape does not hear of the call, and would find nothing on its way back.
            given = [tensor for tensor in tensors if tensor is not None]
            results = list(tf.identity_n([*results, *given]))[: len(results)]
        message = self._options.no_gradient or (
            f"{self._name} was converted with with_gradient=False: it has no gradient."
        )
        return [_prevent_gradient(result, message) for result in results]

    def _record(self, tensors: Sequence[tf.Tensor], residuals: _Residuals | None) -> Tensors:
        """Return the results in eager mode, with their gradient on the tapes.

        A tape makes zeros for what it has no cotangent of, which TensorFlow cannot for float8, so
        it hears only of results that have a gradient.
        """
        results: Tensors = []
        recorded = [i for i, spec in enumerate(self.call.results) if spec.dtype.differentiable]

        def differentiable(*tensors: tf.Tensor) -> tuple[Tensors, Any]:
            with stop_recording():
                outputs, own_residuals = self._apply_forward(tensors, residuals)
            results.extend(outputs)

            def gradient(*cotangents: tf.Tensor | None) -> Gradients:
                upstream: Gradients = [None] * len(outputs)
                for index, cotangent in zip(recorded, cotangents, strict=True):
                    upstream[index] = cotangent
                return self._pull_back(tensors, outputs, upstream, own_residuals)

            return [outputs[index] for index in recorded], gradient

        if not recorded:
            with stop_recording():
                return self._apply(tensors, residuals)
        watched = tf.custom_gradient(differentiable)(*tensors)
        for index, result in zip(recorded, watched, strict=True):
            results[index] = result
        return results

    def _attach_gradient(
        self, tensors: Sequence[tf.Tensor | None], residuals: _Residuals | None = None
    ) -> Tensors:
        """Return the results in a graph, where an IdentityN leads from them to their gradients.

        This is what `tf.custom_gradient` does in a graph, too; only this way can the gradient tell
        that `tf.saved_model.save` traces it, which passes None for the operation
        (tensorflow/python/saved_model/save.py, `_trace_gradient_functions`). TensorFlow may have
        copied the operation into another graph, so all that the gradient takes are its inputs.
        """
        results, own_residuals = self._apply_forward(tensors, residuals)
        values = () if own_residuals is None else own_residuals.values
        given = [index for index, tensor in enumerate(tensors) if tensor is not None]
        inputs = [*results, *(tensors[index] for index in given), *values]
        first, last = len(results), len(results) + len(given)

        def gradient(operation: tf.Operation | None, *cotangents: tf.Tensor | None) -> Gradients:
            sources = inputs if operation is None else list(operation.inputs)
            pull_back = self._pull_back_for_file if operation is None else self._pull_back
            taken: Gradients = [None] * len(tensors)
            for index, source in zip(given, sources[first:last], strict=True):
                taken[index] = source
            known = None if own_residuals is None else replace(own_residuals, values=sources[last:])
            pulled = pull_back(taken, sources[:first], cotangents[:first], known)
            return [None] * first + [pulled[index] for index in given] + [None] * len(values)

        op_type = f"{self.call.name}-{uuid.uuid4().hex}"
        tf.RegisterGradient(op_type)(exempt_from_autograph(gradient))
        graph = tf.compat.v1.get_default_graph()
        with graph.gradient_override_map({"IdentityN": op_type}):
            outputs = tf.identity_n(inputs)
        if self._order == 0:
            for level in self._levels_in_file():
                level._as_function().add_to_graph(graph)
                for constant in level._run.constants:
                    tf.identity(constant)  # so that this function has it, too
        return list(outputs[:first])

    def _apply_as_function(self, tensors: Sequence[tf.Tensor | None]) -> Tensors:
        """Return the results of a function that makes the call, whose only inputs are `tensors`.

        A forward accumulator inside a graph sees nothing of a gradient that is attached there, and
        takes the tangents for zero; a function's gradient it transposes. And of what is in the
        gradients that it writes, `tf.saved_model.save` knows only functions that it knew before.
        """
        # Inside the function all static sizes are known.
        run = self._run
        static = run.assert_shapes and run.op.size_assertions(run.operands(tensors))
        needed = [tensors[index] for index in self._needed()]
        with tf.control_dependencies(static or []):
            results = list(self._as_function()(*needed))
        # Constants know no sizes that the arguments do not.
        taken = [*tensors, *(None for _ in self.call.hoisted)]
        shapes = _result_shapes(self.call, taken, self.disabled_checks)
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)
        return results

    def _as_function(self) -> Any:
        """Return the concrete function of the needed arguments.

        It is traced once, outside of whatever runs it.
        """
        with self._lock:
            if self._function is None:
                needed = self._needed()
                signature = [
                    tf.TensorSpec(spec.static_shape, tf.as_dtype(spec.dtype.enum), f"arg_{index}")
                    for index in needed
                    for spec in [self.call.args[index]]
                ]

                def call(*given: tf.Tensor) -> Tensors:
                    tensors: Gradients = [None] * len(self.call.own_args)
                    for index, tensor in zip(needed, given, strict=True):
                        tensors[index] = tensor
                    return self._attach_gradient(tensors)

                with tf.init_scope(), tf.device(None):
                    function = tf.function(call, input_signature=signature, autograph=False)
                    self._function = function.get_concrete_function()
            return self._function

    def _needed(self) -> tuple[int, ...]:
        """Return the arguments of the call and of its gradient, and those that have one.

        Of any other the gradient is None, which TensorFlow takes for zeros where it goes through
        a function.
        """
        every = range(len(self.call.own_args))
        if self._options.unconnected_zeros:
            return tuple(every)
        needed = set(self.call.kept)
        if self.call.is_differentiable:
            try:
                vjp = self._order_above().call
            except NOT_DIFFERENTIABLE:
                return tuple(every)
            needed.update(vjp.kept)
            needed.update(i for i in every if self._has_gradient(i, vjp))
        return tuple(sorted(needed & set(every)))

    def _apply_forward(
        self, tensors: Sequence[tf.Tensor | None], residuals: _Residuals | None
    ) -> tuple[Tensors, _Residuals | None]:
        """Return the results, and the residuals for the gradient."""
        passes = self._forward_and_backward() if residuals is None else []
        if not passes:
            return self._apply(tensors, residuals), None
        forward, backward = passes
        outputs = forward(tensors)
        count = len(self.call.results)
        results, values = outputs[:count], outputs[count:]
        if not tf.executing_eagerly():
            # Their gradient is in the next order already.
            values = [tf.stop_gradient(value) for value in values]
        return results, _Residuals(backward, values)

    def _apply(
        self, tensors: Sequence[tf.Tensor | None], residuals: _Residuals | None = None
    ) -> Tensors:
        if residuals is None:
            return self._run(tensors)
        return residuals.backward([*tensors, *residuals.values])

    def _prepare(
        self,
        orders: Sequence[DifferentiableCall],
        calls: Sequence[CallModule | UnparsedCall] | None = None,
    ) -> list[_PreparedOp]:
        """Return the calls of some orders as the imported TensorFlow runs them.

        Constants are shared by all orders.
        """
        sources = [order._source for order in orders]
        if calls is None:
            calls = [source.whole() for source in sources]
        passes, release = self._options.passes, imported_release()
        runs = all(source.runs_on(release) for source in sources)
        with tf.init_scope():
            if not tf.executing_eagerly():
                # In a session's graph a constant would be one of that graph alone.
                passes = replace(passes, hoist_constants=None)
            as_is = runs or passes.plain_operations
            target = passes.target(release, Artifact.UNCHANGED if as_is else Artifact.IF_NEEDED)
            with self._explaining_jaxlib():
                prepared = prepare_chain(calls, target, known=self._constants)
                graphs = (
                    lower_orders(
                        calls,
                        prepared,
                        passes,
                        known=self._constants,
                        first_order=orders[0]._order,
                    )
                    if passes.plain_operations
                    else (None,) * len(calls)
                )
            values = prepared.constants.items()
            self._constants.update((key, tf.constant(value)) for key, value in values)
        ops = []
        for order, call, graph in zip(orders, prepared.calls, graphs, strict=True):
            convention = order._source.call.version
            if self._options.keeps_convention and convention <= release.convention:
                call = replace(call, version=convention)
            constants = tuple(self._constants[key] for key in call.hoisted)
            check = partial(order._read_check, is_recorded=runs)
            op = (
                Op(call, read_check=check)
                if graph is None
                else FunctionOp(
                    call,
                    serialize_graph(graph),
                    assert_shapes=order._order == 0,
                    read_check=check,
                )
            )
            ops.append(_PreparedOp(op, constants, assert_shapes=order._order == 0))
        return ops

    def _read_check(self, call: CallModule, *, is_recorded: bool) -> ShapeCheck | None:
        """Return what the prepared call asserts of sizes."""
        with self._explaining_jaxlib():
            return self._source.shape_check if is_recorded else read_check(call)

    @contextmanager
    def _explaining_jaxlib(self) -> Iterator[None]:
        """Say what jaxlib would be for where it is not installed."""
        try:
            yield
        except MissingDependencyError as error:
            if not self._options.no_jaxlib:
                raise
            raise MissingDependencyError(self._options.no_jaxlib) from error

    @api_boundary
    def _pull_back(
        self,
        tensors: Sequence[tf.Tensor | None],
        results: Sequence[tf.Tensor],
        cotangents: Sequence[tf.Tensor | None],
        residuals: _Residuals | None,
    ) -> Gradients:
        vjp = self._order_above(at_once=residuals is None)
        taken = self._to_jax(results, cotangents)
        try:
            return self._to_tensorflow(vjp([*tensors, *taken], residuals))
        except (tf.errors.InvalidArgumentError, ValueError) as error:
            for index, (cotangent, result) in enumerate(zip(cotangents, results, strict=True)):
                if cotangent is not None:
                    self._check_cotangent(index, cotangent, result, error)
            raise

    @api_boundary
    def _pull_back_for_file(
        self,
        tensors: Sequence[tf.Tensor | None],
        results: Sequence[tf.Tensor],
        cotangents: Sequence[tf.Tensor | None],
        residuals: _Residuals | None,
    ) -> Gradients:
        """Return the gradients as a file holds them, which ends with the last order."""
        try:
            vjp = self._order_above()
        except NOT_DIFFERENTIABLE as error:
            return self._refuse_in_file(tensors, error)
        arguments = [*tensors, *self._to_jax(results, cotangents)]
        if vjp._order < self._options.order_in_file:
            return self._to_tensorflow(vjp._apply_as_function(arguments))
        message = (
            f"{self._name} was saved with gradients up to order {vjp._order}. To do: convert it "
            f"with gradient_order={vjp._order + 1} or more (forward mode needs one more than "
            "reverse mode)."
        )
        values = () if residuals is None else residuals.values
        backward = vjp._run if residuals is None else residuals.backward
        pulled = backward.with_constants_of(self._run)([*arguments, *values])
        return self._to_tensorflow([_prevent_gradient(gradient, message) for gradient in pulled])

    def _refuse_in_file(self, tensors: Sequence[tf.Tensor | None], error: Exception) -> Gradients:
        """Return gradients that fail when they run, as what is loaded cannot fail earlier."""
        message = f"{self._name} is saved without a gradient of order {self._order + 1}: {error}"
        warn(message)
        with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
            return [
                tf.fill(tf.shape(tensor), tf.cast(float("nan"), tensor.dtype))
                if spec.dtype.differentiable and tensor is not None
                else None
                for spec, tensor in zip(self.call.own_args, tensors, strict=True)
            ]

    def _to_jax(
        self, results: Sequence[tf.Tensor], cotangents: Sequence[tf.Tensor | None]
    ) -> Tensors:
        """Return the cotangents that the VJP takes."""
        specs = self._order_above().call.own_args[len(self.call.own_args) :]
        return [
            _cotangent(spec, cotangent, result)
            for spec, cotangent, result in zip(specs, cotangents, results, strict=True)
        ]

    def _to_tensorflow(self, gradients: Sequence[tf.Tensor]) -> Gradients:
        """Return TensorFlow's gradients: conjugates, and None where no result depends on it."""
        vjp = self._order_above().call
        return [
            _conjugate(spec, gradient) if self._has_gradient(index, vjp) else None
            for index, (spec, gradient) in enumerate(
                zip(self.call.own_args, gradients, strict=True)
            )
        ]

    def _has_gradient(self, index: int, vjp: CallModule) -> bool:
        """Return whether the gradient of an argument is a tensor and not None."""
        is_none = vjp.results[index].is_zero and not self._options.unconnected_zeros
        return self.call.own_args[index].dtype.differentiable and not is_none

    def _check_cotangent(
        self, index: int, cotangent: tf.Tensor, result: tf.Tensor, error: Exception
    ) -> None:
        """Refuse a cotangent that is not of its result's dtype and shape, where these are known."""
        is_like = cotangent.dtype == result.dtype or result.dtype.is_integer
        if not is_like or not result.shape.is_compatible_with(cotangent.shape):
            arrived, wanted = (f"{x.dtype.name} of shape {x.shape}" for x in (cotangent, result))
            raise ShapeMismatchError(
                None,
                None,
                f"The upstream gradient of {self.call.results[index].path} of {self._name} is "
                f"{arrived}; expected {wanted}, as the result itself. To do: pass output_gradients "
                "(or grad_ys) of that shape and dtype.",
            ) from error

    def _levels_in_file(self) -> Iterator[DifferentiableCall]:
        """Yield the orders that have a gradient in a file, but for this one."""
        level = self
        while level._order + 1 < self._options.order_in_file and level.call.is_differentiable:
            try:
                level = level._order_above()
            except NOT_DIFFERENTIABLE:
                return  # the gradient warns of it when it is saved
            yield level

    def _forward_and_backward(self) -> list[_PreparedOp]:
        """Return the two passes where there are residuals: between a function and its VJP."""
        asked = self._options.passes.residuals and self._order == 0
        if not asked or not self.call.is_differentiable:
            return []
        with self._lock:
            if not self._passes:
                try:
                    vjp = self._order_above()
                except NOT_DIFFERENTIABLE:
                    return []  # there is no VJP, which is said where a gradient is taken
                self._passes = self._prepare([self, vjp], self._split(vjp))
            return self._passes

    def _split(self, vjp: DifferentiableCall) -> tuple[CallModule, CallModule]:
        # These import JAX.
        from bridge.chains.exported_order import carried_by
        from bridge.chains.forward_and_backward import export_both, split_at_residuals

        exported: Any = self._source.exported
        above: Any = export_both(exported) or vjp._source.exported
        return split_at_residuals(exported, above, self._options.passes, describe=carried_by)

    def _order_above(self, *, at_once: bool = False) -> DifferentiableCall:
        with self._lock:
            if self._vjp is None:
                self._vjp = DifferentiableCall(
                    self._source.vjp(), self._options, below=self, at_once=at_once
                )
            return self._vjp


def _cotangent(spec: TensorSpec, cotangent: tf.Tensor | None, result: tf.Tensor) -> tf.Tensor:
    """Return the cotangent of one result for the VJP: `false` for a float0, else the conjugate."""
    if spec.element == "float0":
        # That of a typed PRNG key lacks the dimension for the numbers that make it in TensorFlow.
        rank = None if spec.static_shape is None else len(spec.static_shape)
        return tf.zeros(tf.shape(result)[:rank], tf.bool)
    if cotangent is None:
        # ZerosLike has no kernel for float8.
        return tf.cast(tf.zeros(tf.shape(result)), result.dtype)
    return _conjugate(spec, tf.convert_to_tensor(cotangent))


def _conjugate(spec: TensorSpec, tensor: tf.Tensor) -> tf.Tensor:
    """Return TensorFlow's gradient of a value: for a complex one the conjugate of JAX's cotangent.

    JAX: https://docs.jax.dev/en/latest/notebooks/autodiff_cookbook.html#complex-numbers-and-differentiation
    TensorFlow: the gradients in tensorflow/python/ops/math_grad.py conjugate their inputs.
    """
    return tf.math.conj(tensor) if spec.dtype.is_complex else tensor


def _result_shapes(
    call: CallModule, tensors: Sequence[tf.Tensor | None], disabled_checks: Sequence[DisabledCheck]
) -> list[Any]:
    """Return the results' shapes, as far as those of the arguments tell.

    Without the check of shapes TensorFlow takes some that contradict one another, and what follows
    from them is known when they are there.
    """
    sizes = [None if tensor is None else static_shape(tensor) for tensor in tensors]
    unchecked = SHAPE_ASSERTIONS in disabled_checks
    symbols = {} if unchecked else solve([spec.shape or () for spec in call.args], sizes)
    return [evaluate_shape(spec.shape or (), symbols) for spec in call.results]


def _prevent_gradient(tensor: tf.Tensor, message: str) -> tf.Tensor:
    """Return the tensor, whose gradient TensorFlow refuses with a LookupError that says why."""
    if not tensor.dtype.is_floating and not tensor.dtype.is_complex:
        return tensor
    return tf.raw_ops.PreventGradient(input=tensor, message=message)
