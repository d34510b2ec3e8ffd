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
from bridge.core.probes import draw_cotangent
from bridge.verifying.comparison import Tolerance, describe_difference, largest
from xla_call_module.analyses.dependence import narrowest_floats
from xla_call_module.call import CallModule, TensorSpec, bind_symbols
from xla_call_module.errors import DtypeError, StructureError, UnsupportedError
from xla_call_module.exported import from_exported


@dataclass(frozen=True, slots=True)
class GradientProblem:
    """A function with arguments, cotangents and tangents, to be computed on both sides.

    Attributes:
        leaves: the arguments as JAX takes them.
        inputs: the indices of the arguments that TensorFlow differentiates.
        results: the indices of the results that it differentiates.
        cotangents: for each order the cotangents of the results of the order below.
        precisions: for each result the least precise dtype of floats that it is computed with.
    """

    call: CallModule
    leaves: tuple[Any, ...]
    inputs: tuple[int, ...]
    results: tuple[int, ...]
    cotangents: Orders
    tangents: list[Any]
    function: Function
    tolerance: Tolerance
    precisions: tuple[str, ...]

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

    @property
    def input_specs(self) -> list[tf.TensorSpec]:
        """The specs of the inputs that are differentiated."""
        return [to_tensor_spec(self.call.args[index]) for index in self.inputs]

    @property
    def result_specs(self) -> list[tf.TensorSpec]:
        """The specs of the results that are differentiated."""
        return [to_tensor_spec(self.call.results[index]) for index in self.results]

    def difference(self, order: int, index: int, actual: Any, expected: list[Any]) -> str | None:
        """Return the text about a result of an order; None where it is that of JAX."""
        is_unused = index < len(self.inputs) and self.inputs[index] not in self.call.kept
        if order and is_unused:
            text = "is not None, and the function does not use that."
            return None if actual is None else text
        precisions = self.precisions if order else self.precisions[index : index + 1]
        return self.compare(actual, expected[index], expected, precisions)

    def compare(
        self, actual: Any, wanted: Any, order: list[Any], precisions: tuple[str, ...]
    ) -> str | None:
        """Return the text about differences; a gradient that is None stands for zeros."""
        zeros = np.zeros_like(wanted) if actual is None else actual
        text = describe_difference(
            zeros, wanted, self.tolerance, scale=largest(order), precisions=filter(None, precisions)
        )
        is_none = text is not None and actual is None
        return f"is None; with zeros for it, it {text}" if is_none else text

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
    """Return the problem of an `Exported` and its arguments, with random cotangents."""
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
            [draw_cotangent(aval, random) for aval in level]
            for level in _levels(primals, of_results, order)
        ],
        tangents=[draw_cotangent(primal, random) for primal in primals],
        function=function,
        tolerance=tolerance,
        precisions=tuple(narrowest_floats(call)),
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


@dataclass(frozen=True, slots=True)
class GradientCheck:
    """One problem in one mode of TensorFlow.

    Attributes:
        prepared: the function in the mode.
        where: the beginning of messages, such as `f in the mode 'eager'`.
    """

    problem: GradientProblem
    prepared: PreparedFunction
    where: str

    def orders(self, expected: Orders) -> None:
        """Compare the results, then the gradients of each order."""
        problem = self.problem
        cotangents = problem.cotangents[: len(expected) - 1]
        levels = _levels(problem.input_specs, problem.result_specs, len(cotangents))
        run = self._enter(tf_pullbacks, levels)
        sources = problem.sources()
        for order, actual in enumerate(run(cotangents)):
            for index, value in enumerate(actual):
                text = problem.difference(order, index, value, expected[order])
                if text is None:
                    continue
                if order == 0:
                    raise AssertionError(f"{self.where}: {problem.call.results[index].path} {text}")
                result = self._result_at_fault(run, order, index)
                raise AssertionError(
                    f"{self.where}: the gradient of order {order}{result and f' of {result}'} with "
                    f"respect to {sources[index]} {text}"
                )

    def forward_mode(self) -> None:
        """Compare the tangents of the results."""
        problem = self.problem
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
        actual = self._enter(tf_jvp, problem.input_specs)(problem.tangents)
        for index, tangent, wanted in zip(problem.results, actual, expected, strict=True):
            if text := problem.compare(tangent, wanted, expected, problem.precisions):
                path = problem.call.results[index].path
                raise AssertionError(f"{self.where}: the tangent of {path} {text}")

    def _result_at_fault(self, run: Callable[[Orders], Orders], order: int, index: int) -> str:
        """Return the first result whose own gradient differs; empty where no single one does."""
        problem = self.problem
        if index >= len(problem.inputs):
            return ""  # a derivative by a cotangent, which names its result
        first, *others = problem.cotangents[:order]
        for position, result in enumerate(problem.results):
            alone = [c if n == position else np.zeros_like(c) for n, c in enumerate(first)]
            actual, expected = run([alone, *others]), problem.solve([alone, *others])
            if problem.difference(order, index, actual[order][index], expected[order]):
                return problem.call.results[result].path
        return ""

    def _enter(self, differentiate: Callable[..., Any], directions: Any) -> Callable[[Any], Any]:
        """Return a derivative as the mode runs it: a function of cotangents or tangents."""
        problem, prepared = self.problem, self.prepared
        count = len(prepared.variables)
        given = [tf.constant(tensor) for tensor in problem.tensors[count:]]

        def run(free: list[Any], directions: Any) -> Any:
            leaves = [*prepared.variables, *free]

            def function(inputs: list[Any]) -> tuple[list[Any], list[Any]]:
                replaced = dict(zip(problem.inputs, inputs, strict=True))
                outputs = prepared.call([replaced.get(i, leaf) for i, leaf in enumerate(leaves)])
                return [outputs[index] for index in problem.results], outputs

            return differentiate(function, [leaves[i] for i in problem.inputs], directions)

        specs = [to_tensor_spec(spec) for spec in problem.call.args[count:]]
        entered = prepared.enter(run, [specs, directions])

        def call(directions: Any) -> Any:
            tensors = tf.nest.map_structure(tf.constant, directions)
            return tf.nest.map_structure(_to_numpy, entered(given, tensors))

        return call


def _to_numpy(tensor: Any) -> Any:
    return None if tensor is None else np.asarray(tensor)
