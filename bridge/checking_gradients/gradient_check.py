"""The values and gradients of one function in JAX, and their comparison with TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export, tree_util

from bridge.checking_gradients.modes import PreparedFunction, to_tensor_spec
from bridge.checking_gradients.pullbacks import (
    Function,
    Orders,
    jax_jvp,
    jax_pullbacks,
    tf_jvp,
    tf_pullbacks,
)
from bridge.core._jax import lacks_forward_mode
from bridge.core.keys import to_physical
from bridge.verifying.comparison import Tolerance, describe_difference, largest
from xla_call_module.call import CallModule, TensorSpec, bind_symbols
from xla_call_module.errors import DtypeError, StructureError, UnsupportedError
from xla_call_module.exported import from_exported

__all__ = ["GradientCheck", "GradientProblem", "to_problem"]


@dataclass(frozen=True, slots=True)
class GradientProblem:
    """A function with arguments, cotangents and tangents, to be computed on both sides.

    Attributes:
        call: the function as a call with flat arguments and results.
        leaves: the arguments as JAX takes them.
        inputs: the indices of the arguments that TensorFlow differentiates.
        results: the indices of the results that it differentiates.
        cotangents: for each order the cotangents of the results of the order below.
        tangents: the tangents of the inputs.
        function: the JAX function of the inputs.
        tolerance: the allowed difference.
    """

    call: CallModule
    leaves: tuple[Any, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    cotangents: Orders
    tangents: list[Any]
    function: Function
    tolerance: Tolerance

    @property
    def primals(self) -> list[Any]:
        """The inputs that are differentiated."""
        return [self.leaves[index] for index in self.inputs]

    @property
    def tensors(self) -> list[Any]:
        """The arguments as TensorFlow takes them: typed PRNG keys as their key data."""
        return [np.asarray(to_physical(leaf)) for leaf in self.leaves]

    def solve(self, cotangents: Orders) -> Orders:
        """Return JAX's results, then its gradients of each order."""
        orders = jax.jit(partial(jax_pullbacks, self.function))(self.primals, cotangents)
        return [[np.asarray(to_physical(array)) for array in order] for order in orders]

    def sources(self) -> list[str]:
        """Return the names of the sources of the highest order; a lower one has the first ones."""
        names = [self.call.args[index].path for index in self.inputs]
        targets = [self.call.results[index].path for index in self.results]
        for _ in self.cotangents:
            above = [f"the gradient with respect to {name}" for name in names]
            names += [f"the cotangent of {target}" for target in targets]
            targets = above
        return names


def to_problem(
    exported: export.Exported,
    arguments: Any,
    *,
    reference: Callable[..., Any],
    order: int,
    tolerance: Tolerance,
    seed: int,
) -> GradientProblem:
    """Return the problem of an `Exported` and its arguments, with random cotangents.

    Raises:
        StructureError, DtypeError: the arguments do not fit, or the reference returns another
            structure.
    """
    call = from_exported(exported, allow_flat_trees=True)
    leaves, tree = tree_util.tree_flatten(arguments)
    _check_arguments(exported, call, leaves, tree)
    args, kwargs = arguments
    returned = jax.eval_shape(reference, *args, **kwargs)
    _check_results(exported, call, returned)
    avals = tree_util.tree_leaves(returned)
    inputs = _differentiable(call.args)
    results = _differentiable(call.results)

    def function(primals: list[Any]) -> tuple[list[Any], list[Any]]:
        replaced = dict(zip(inputs, primals, strict=True))
        every = [replaced.get(index, leaf) for index, leaf in enumerate(leaves)]
        args, kwargs = tree_util.tree_unflatten(tree, every)
        outputs = tree_util.tree_leaves(reference(*args, **kwargs))
        return [outputs[index] for index in results], outputs

    random = np.random.default_rng(seed)
    primals = [leaves[index] for index in inputs]
    of_results = [avals[index] for index in results]
    return GradientProblem(
        call=call,
        leaves=tuple(leaves),
        inputs=inputs,
        results=results,
        cotangents=[
            [_draw(random, aval) for aval in level] for level in _levels(primals, of_results, order)
        ],
        tangents=[_draw(random, primal) for primal in primals],
        function=function,
        tolerance=tolerance,
    )


def _check_arguments(
    exported: export.Exported, call: CallModule, leaves: Sequence[Any], tree: Any
) -> None:
    if tree != exported.in_tree:
        raise StructureError(
            f"{call.name} was called with the structure {tree}; it was exported for "
            f"{exported.in_tree}. To do: pass arguments of that structure."
        )
    physical = [np.asarray(to_physical(leaf)) for leaf in leaves]
    for spec, leaf in zip(call.args, physical, strict=True):
        if leaf.dtype != spec.dtype.numpy:
            raise DtypeError(
                f"{spec.path} is {leaf.dtype}{list(leaf.shape)}; {call.name} was exported for "
                f"{spec}. To do: cast it; compare 64-bit dtypes inside `with jax.enable_x64(True)`."
            )
    bind_symbols(call.name, call.own_args, [leaf.shape for leaf in physical])


def _check_results(exported: export.Exported, call: CallModule, returned: Any) -> None:
    """Check that the reference returns what the function returns."""
    tree: Any = tree_util.tree_structure(returned)
    if tree != exported.out_tree:
        raise StructureError(
            f"The reference returns the structure {tree}; {call.name} returns {exported.out_tree}. "
            "To do: return the same from both."
        )
    for spec, aval in zip(call.results, tree_util.tree_leaves(returned), strict=True):
        if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
            continue  # keys, which the comparison tells apart by their data
        sizes = spec.static_shape or ()
        if (
            aval.dtype != spec.dtype.numpy
            or len(aval.shape) != len(sizes)
            or any(size not in (None, dim) for size, dim in zip(sizes, aval.shape, strict=True))
        ):
            raise StructureError(
                f"The reference returns {aval.dtype}{list(aval.shape)} for {spec.path}; "
                f"{call.name} returns {spec}. To do: return the same from both."
            )


def _differentiable(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    return tuple(index for index, spec in enumerate(specs) if spec.dtype.differentiable)


def _levels(inputs: Sequence[Any], results: Sequence[Any], order: int) -> list[list[Any]]:
    """Return for each order the values that have a cotangent: the results of the order below."""
    levels, sources, targets = [], [*inputs], [*results]
    for _ in range(order):
        levels.append(targets)
        sources, targets = [*sources, *targets], sources
    return levels


def _draw(random: np.random.Generator, aval: Any) -> Any:
    values = random.normal(size=aval.shape)
    if jax.numpy.issubdtype(aval.dtype, np.complexfloating):
        values = values + 1j * random.normal(size=aval.shape)
    return np.asarray(values).astype(aval.dtype)


class GradientCheck:
    """One problem in one mode of TensorFlow.

    Args:
        problem: the problem.
        prepared: the function in the mode.
        where: the beginning of messages, such as `f in the mode 'eager'`.
    """

    def __init__(self, problem: GradientProblem, prepared: PreparedFunction, where: str) -> None:
        self._problem = problem
        self._prepared = prepared
        self._where = where
        count = len(prepared.variables)
        self._free = [tf.constant(tensor) for tensor in problem.tensors[count:]]
        self._specs = [to_tensor_spec(spec) for spec in problem.call.args[count:]]

    def orders(self, expected: Orders) -> None:
        """Compare the results, then the gradients of each order.

        Raises:
            AssertionError: the first difference.
        """
        problem = self._problem
        cotangents = problem.cotangents[: len(expected) - 1]
        of_inputs, of_results = self._differentiated()
        run = self._enter(tf_pullbacks, _levels(of_inputs, of_results, len(cotangents)))
        actual = run(cotangents)
        self._compare_results(actual[0], expected[0])
        sources = problem.sources()
        for order in range(1, len(expected)):
            for index, gradient in enumerate(actual[order]):
                text = self._difference(order, index, gradient, expected)
                if text is not None:
                    result = self._result_at_fault(run, cotangents, order, index)
                    of = f" of {result}" if result else ""
                    raise AssertionError(
                        f"{self._where}: the gradient of order {order}{of} with respect to "
                        f"{sources[index]} {text}"
                    )

    def forward_mode(self) -> None:
        """Compare the tangents of the results.

        Raises:
            AssertionError: the first difference.
            UnsupportedError: JAX itself has no forward mode for the function.
        """
        problem = self._problem
        push = jax.jit(partial(jax_jvp, problem.function))
        try:
            expected = [np.asarray(array) for array in push(problem.primals, problem.tangents)]
        except TypeError as error:
            if not lacks_forward_mode(error):
                raise
            raise UnsupportedError(
                f"{problem.call.name} has a jax.custom_vjp, for which JAX has no forward mode. To "
                "do: leave out forward=True."
            ) from error
        of_inputs, _ = self._differentiated()
        actual = self._enter(tf_jvp, of_inputs)(problem.tangents)
        scale = largest(expected)
        for index, tangent, wanted in zip(problem.results, actual, expected, strict=True):
            text = _compare(tangent, wanted, problem.tolerance, scale=scale)
            if text is not None:
                path = problem.call.results[index].path
                raise AssertionError(f"{self._where}: the tangent of {path} {text}")

    def _compare_results(self, actual: Sequence[Any], expected: Sequence[Any]) -> None:
        scale = largest(expected)
        for spec, value, wanted in zip(self._problem.call.results, actual, expected, strict=True):
            text = describe_difference(value, wanted, self._problem.tolerance, scale=scale)
            if text is not None:
                raise AssertionError(f"{self._where}: {spec.path} {text}")

    def _difference(self, order: int, index: int, actual: Any, expected: Orders) -> str | None:
        problem = self._problem
        if index < len(problem.inputs) and problem.inputs[index] not in problem.call.kept:
            if actual is None:
                return None
            return "is not None, although the function does not use it."
        scale = largest(expected[order])
        return _compare(actual, expected[order][index], problem.tolerance, scale=scale)

    def _result_at_fault(
        self, run: Callable[[Orders], Orders], cotangents: Orders, order: int, index: int
    ) -> str | None:
        """Return the first result whose own gradient differs; None where no single one does."""
        problem = self._problem
        paths = [problem.call.results[result].path for result in problem.results]
        if index >= len(problem.inputs):
            return None  # a derivative by a cotangent, which names its result
        for position, path in enumerate(paths):
            alone = [
                cotangent if other == position else np.zeros_like(cotangent)
                for other, cotangent in enumerate(cotangents[0])
            ]
            changed = [alone, *cotangents[1:]]
            actual, expected = run(changed), problem.solve(changed)
            if self._difference(order, index, actual[order][index], expected) is not None:
                return path
        return None

    def _differentiated(self) -> tuple[list[tf.TensorSpec], list[tf.TensorSpec]]:
        """Return the specs of the inputs and of the results."""
        problem = self._problem
        return (
            [to_tensor_spec(problem.call.args[index]) for index in problem.inputs],
            [to_tensor_spec(problem.call.results[index]) for index in problem.results],
        )

    def _enter(self, differentiate: Callable[..., Any], directions: Any) -> Callable[[Any], Any]:
        """Return a derivative as the mode runs it: a function of cotangents or tangents."""
        problem, prepared = self._problem, self._prepared

        def run(free: list[Any], directions: Any) -> Any:
            leaves = [*prepared.variables, *free]

            def function(inputs: list[Any]) -> tuple[list[Any], list[Any]]:
                replaced = dict(zip(problem.inputs, inputs, strict=True))
                outputs = prepared.call([replaced.get(i, leaf) for i, leaf in enumerate(leaves)])
                return [outputs[index] for index in problem.results], outputs

            return differentiate(function, [leaves[i] for i in problem.inputs], directions)

        entered = prepared.enter(run, [self._specs, directions])

        def call(directions: Any) -> Any:
            tensors = tf.nest.map_structure(tf.constant, directions)
            return tf.nest.map_structure(_to_numpy, entered(self._free, tensors))

        return call


def _compare(actual: Any, expected: Any, tolerance: Tolerance, *, scale: float) -> str | None:
    """Return the text about differences; a gradient that is None stands for zeros."""
    zeros = np.zeros_like(expected) if actual is None else actual
    text = describe_difference(zeros, expected, tolerance, scale=scale)
    return text if text is None or actual is not None else f"is None; with zeros for it, it {text}"


def _to_numpy(tensor: Any) -> Any:
    return None if tensor is None else np.asarray(tensor)
