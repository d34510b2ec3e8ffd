"""What JAX computes of a loaded SavedModel: trials of each signature, with expected results."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from bridge._jax import enable_x64
from bridge.calling import call_flat
from bridge.keys import to_logical, to_physical
from bridge.load import LoadedModel, LoadedSignature
from bridge.probes import EDGES, RANDOM, SIZES, choose_sizes, draw, draw_cotangent
from bridge.trials import Array, Trial
from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import evaluate_shape, symbols
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.exported import from_exported
from xla_call_module.refining import refine_results

__all__ = ["make_trials"]

# The size that inputs at the edges have, and the gradients of variables are taken at.
_EDGE_SIZE = SIZES[1]


def make_trials(model: LoadedModel, *, seed: int) -> list[Trial]:
    """Trials of every signature, to every order that the file has.

    Random inputs come in several sizes, those at the edges of their dtypes in one. Gradients are
    taken of all inputs that have one, and once of the variables.

    Args:
        model: what was loaded.
        seed: the same one gives the same trials.

    Raises:
        InteropError: JAX cannot run it here, or no sizes meet its constraints.
    """
    with enable_x64():
        return [
            trial
            for signature in model.signatures.values()
            for trial in _Reference(signature).trials(seed)
        ]


class _Reference:
    """One signature, with what each of its trials needs."""

    def __init__(self, signature: LoadedSignature) -> None:
        exported, binding = signature.exported, signature.binding
        self._key = signature.key
        self._call = from_exported(exported, allow_flat_trees=True)
        self._function = call_flat(exported, name=signature.key)
        self._avals = exported.in_avals
        self._specs = self._call.args
        self._orders = _count_orders(exported)
        self._inputs = dict(sorted(binding.inputs.items(), key=lambda item: item[1]))
        self._outputs = dict(sorted(binding.outputs.items(), key=lambda item: item[1]))
        self._params = [to_physical(leaf) for leaf in tree_util.tree_leaves(signature.params)]
        self._variables = {name: i for i, name in enumerate(signature.variable_names) if name}
        self._run = jax.jit(self._evaluate, static_argnums=(0, 1))

    def trials(self, seed: int) -> list[Trial]:
        """Every kind of input."""
        names = sorted(
            {name for spec in self._specs for d in spec.shape or () for name in symbols(d)}
        )
        wanted = SIZES if names else (_EDGE_SIZE,)
        sizes = [(size, choose_sizes(names, size, self._accepts)) for size in wanted]
        kinds = [(RANDOM, size, found) for size, found in sizes]
        if self._inputs:
            edge = next(found for size, found in sizes if size == _EDGE_SIZE)
            kinds += [(kind, 0, edge) for kind in EDGES]
        seen: set[tuple[str, tuple[int, ...]]] = set()
        trials = []
        for number, (kind, size, found) in enumerate(kinds):
            # Constraints may leave fewer sizes than are wanted.
            if (same := (kind, tuple(found.values()))) not in seen:
                seen.add(same)
                random = np.random.default_rng([seed, number, zlib.crc32(self._key.encode())])
                trials.append(self._trial(kind, found, random, with_variables=size == _EDGE_SIZE))
        return trials

    def _accepts(self, sizes: Mapping[str, int]) -> bool:
        shapes = [evaluate_shape(self._call.args[i].shape or (), sizes) for i in self._call.kept]
        known = [tuple(dim for dim in shape if dim is not None) for shape in shapes]
        try:
            refine_results(self._call, known, check_assertions=True)
        except StructureError:
            return False
        return True

    def _trial(
        self,
        kind: str,
        sizes: Mapping[str, int],
        random: np.random.Generator,
        *,
        with_variables: bool,
    ) -> Trial:
        inputs = {
            name: draw(self._specs[index], kind, sizes, random)
            for name, index in self._inputs.items()
        }
        differentiated = tuple(n for n, i in self._inputs.items() if _has_gradient(self._specs[i]))
        variables = tuple(
            name
            for name, index in self._variables.items()
            if with_variables and _has_gradient(self._specs[index])
        )
        orders = self._orders if differentiated or variables else 0
        sources = [f"input/{name}" for name in differentiated]
        sources += [f"variable/{name}" for name in variables]
        positions = (*(self._inputs[n] for n in differentiated),
                     *(self._variables[n] for n in variables))  # fmt: skip
        # What the signature does not name is nothing that anything depends on.
        leaves = [draw(spec, "zeros", sizes, random) for spec in self._specs]
        leaves[: len(self._params)] = self._params
        for name, index in self._inputs.items():
            leaves[index] = inputs[name]
        cotangents: list[dict[str, Array]] = []
        expected: list[dict[str, Array]] = []
        for order in range(orders + 1):
            drawn = [list(by_name.values()) for by_name in cotangents]
            found = self._compute(order, positions, tuple(leaves), drawn)
            names = sources if order else list(self._outputs)
            results = dict(zip(names, map(np.asarray, found), strict=True))
            expected.append(results)
            if order < orders:
                cotangents.append({
                    name: draw_cotangent(value, random)
                    for name, value in results.items()
                    if _is_inexact(value)
                })  # fmt: skip
            if order == 0 and cotangents == [{}]:
                cotangents.clear()
                break
        return Trial(
            self._key, kind, sizes, inputs, differentiated, variables, tuple(self._outputs),
            tuple(cotangents), tuple(expected),
        )  # fmt: skip

    def _compute(self, order: int, *arguments: Any) -> list[Any]:
        try:
            found: list[Any] = self._run(order, *arguments)
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            if isinstance(error, InteropError):
                raise
            raise InteropError(
                f"JAX does not run order {order} of {self._key}, lowered for "
                f"{', '.join(self._call.platforms)} and {self._call.nr_devices} device(s), on "
                f"{jax.default_backend()}: {error}. To do: verify it where it runs, with --record, "
                "and compare with --against here."
            ) from error
        return found

    def _evaluate(
        self,
        order: int,
        positions: tuple[int, ...],
        leaves: Sequence[Any],
        cotangents: Sequence[Sequence[Any]],
    ) -> list[Any]:
        """The outputs, or for a higher order the gradients, as TensorFlow has them."""

        def value(order: int, *sources: Any) -> list[Any]:
            if order == 0:
                return self._outputs_for(leaves, positions, sources)
            below = functools.partial(_inexact, functools.partial(value, order - 1))
            _, pull_back = jax.vjp(below, *sources)
            # TensorFlow's gradient of a complex number is the conjugate of JAX's.
            return [jnp.conj(g) for g in pull_back([jnp.conj(c) for c in cotangents[order - 1]])]

        return value(order, *(leaves[position] for position in positions))

    def _outputs_for(
        self, leaves: Sequence[Any], positions: Sequence[int], sources: Sequence[Any]
    ) -> list[Any]:
        given = list(leaves)
        for position, source in zip(positions, sources, strict=True):
            given[position] = source
        logical = [to_logical(leaf, aval) for leaf, aval in zip(given, self._avals, strict=True)]
        results = self._function(*logical)
        return [to_physical(results[index]) for index in self._outputs.values()]


def _inexact(function: Any, *sources: Any) -> list[Any]:
    """Those results of a function that have cotangents."""
    return [result for result in function(*sources) if _is_inexact(result)]


def _is_inexact(value: Any) -> bool:
    # TensorFlow propagates no gradients through 8-bit numbers.
    return jnp.issubdtype(value.dtype, jnp.inexact) and value.dtype.itemsize > 1


def _has_gradient(spec: TensorSpec) -> bool:
    return spec.dtype.differentiable and not spec.element


def _count_orders(exported: Any) -> int:
    count = 0
    while exported.has_vjp():
        exported, count = exported.vjp(), count + 1
    return count
