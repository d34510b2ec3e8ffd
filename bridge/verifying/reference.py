"""Trials of each signature of a loaded SavedModel, with the results that JAX computes."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from bridge.core._jax import enable_x64
from bridge.core.backend import require_own_runtime
from bridge.core.keys import to_logical, to_physical
from bridge.core.probes import EDGES, RANDOM, SIZES, choose_sizes, draw, draw_cotangent
from bridge.loading.calling import call_flat
from bridge.loading.exported_on_mesh import to_one_device
from bridge.loading.loaded import LoadedModel, LoadedSignature
from bridge.verifying.trials import Trial
from xla_call_module.analyses.dependence import operations_behind
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import evaluate_shape
from xla_call_module.dtypes import Array
from xla_call_module.errors import InteropError, StructureError, quote
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.refining import refine_results
from xla_call_module.versions import DEVIATIONS

__all__ = ["make_trials"]

# The index of the sizes for edge inputs, and for the gradients of variables.
_EDGE = 1


def make_trials(
    model: LoadedModel, *, seed: int, progress: Callable[[int, int], None] | None = None
) -> list[Trial]:
    """Return trials of every signature, with every gradient order of the file.

    Random inputs have several sizes, inputs at the edges of their dtypes one. Gradients are taken
    with respect to all differentiable inputs, and once to the variables.

    Raises:
        InteropError: JAX cannot run a signature here, or no sizes meet its constraints.
    """
    require_own_runtime("what to compare with")
    with enable_x64():
        references = [_SignatureReference(signature) for signature in model.signatures.values()]
        count = sum(len(reference.kinds) for reference in references)
        trials: list[Trial] = []
        while references:  # the programs that JAX has compiled for one are freed when it is done
            for trial in references.pop(0).trials(seed):
                trials.append(trial)
                if progress is not None:
                    progress(len(trials), count)
        return trials


class _SignatureReference:
    """One signature in JAX, which makes its trials."""

    def __init__(self, signature: LoadedSignature) -> None:
        exported, binding = to_one_device(signature.exported), signature.binding
        self._key = signature.key
        self._call = from_exported(exported, allow_flat_trees=True)
        self._function = call_flat(exported, name=signature.key)
        self._avals = exported.in_avals
        self._specs = self._call.args
        self._orders = _count_orders(exported)
        self._inputs = dict(sorted(binding.inputs.items(), key=lambda item: item[1]))
        self._outputs = dict(sorted(binding.outputs.items(), key=lambda item: item[1]))
        self._params = [to_physical(leaf) for leaf in tree_util.tree_leaves(signature.params)]
        # TensorFlow's signature has no variable that nothing in the file takes.
        self._variables = {
            name: index
            for index, name in enumerate(signature.variable_names)
            if name and index in binding.taken
        }
        self._deviations = _deviations_of(self._call)
        self._run = jax.jit(self._evaluate, static_argnums=(0, 1))
        names = self._call.symbols
        sizes = [choose_sizes(names, size, self._accepts) for size in (SIZES if names else (1,))]
        self._edge = sizes[_EDGE if names else 0]
        kinds = [(RANDOM, chosen) for chosen in sizes]
        kinds += [(kind, self._edge) for kind in EDGES if self._inputs]
        # Each kind of input with its sizes, by the number that seeds its random numbers.
        # Constraints may leave fewer sizes than asked for.
        self.kinds = {i: kind for i, kind in enumerate(kinds) if kind not in kinds[:i]}

    def trials(self, seed: int) -> Iterator[Trial]:
        """Yield one trial of every kind."""
        for number, (kind, sizes) in self.kinds.items():
            random = np.random.default_rng([seed, number, zlib.crc32(self._key.encode())])
            with_variables = (kind, sizes) == (RANDOM, self._edge)
            yield self._trial(kind, sizes, random, with_variables=with_variables)

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
        # No result depends on an argument that the signature does not name.
        leaves = [draw(spec, "zeros", sizes, random) for spec in self._specs]
        leaves[: len(self._params)] = self._params
        for name, index in self._inputs.items():
            leaves[index] = inputs[name]
        chosen = self._differentiated(self._inputs)
        variables = self._differentiated(self._variables) if with_variables else {}
        sources = {f"input/{name}": index for name, index in chosen.items()}
        sources |= {f"variable/{name}": index for name, index in variables.items()}
        cotangents, expected = self._chain(leaves, sources, random)
        return Trial(
            signature=self._key,
            kind=kind,
            sizes=sizes,
            inputs=inputs,
            differentiated=tuple(chosen),
            variables=tuple(variables),
            outputs=tuple(self._outputs),
            cotangents=cotangents,
            expected=expected,
            deviations={name: self._deviations[i] for name, i in self._outputs.items()},
        )

    def _differentiated(self, named: Mapping[str, int]) -> dict[str, int]:
        """Return the leaves that have gradients."""
        return {name: index for name, index in named.items() if _has_gradient(self._specs[index])}

    def _chain(
        self, leaves: Sequence[Any], sources: Mapping[str, int], random: np.random.Generator
    ) -> tuple[tuple[dict[str, Array], ...], tuple[dict[str, Array], ...]]:
        """Return the cotangents of each order, and the results of each, from the call on."""
        cotangents: list[dict[str, Array]] = []
        expected: list[dict[str, Array]] = []
        while True:
            order = len(cotangents)
            drawn = [list(by_name.values()) for by_name in cotangents]
            computed = self._compute(order, tuple(sources.values()), tuple(leaves), drawn)
            names = sources if order else self._outputs
            results = dict(zip(names, map(np.asarray, computed), strict=True))
            expected.append(results)
            inexact = {name: value for name, value in results.items() if _is_inexact(value)}
            if order == self._orders or not sources or not inexact:
                return tuple(cotangents), tuple(expected)
            cotangents.append(
                {name: draw_cotangent(value, random) for name, value in inexact.items()}
            )

    def _compute(self, order: int, *arguments: Any) -> list[Any]:
        try:
            computed: list[Any] = self._run(order, *arguments)
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            if isinstance(error, InteropError):
                raise
            raise InteropError(
                f"JAX does not run order {order} of {self._key}, lowered for "
                f"{', '.join(self._call.platforms)} and {self._call.nr_devices} device(s), on "
                f"{jax.default_backend()}: {quote(error)}. To do: verify it where it runs, with "
                "--record, and compare with --against here."
            ) from error
        return computed

    def _evaluate(
        self,
        order: int,
        positions: tuple[int, ...],
        leaves: Sequence[Any],
        cotangents: Sequence[Sequence[Any]],
    ) -> list[Any]:
        """Return the outputs, or the gradients of a higher order, in TensorFlow's convention."""

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


def _deviations_of(call: CallModule) -> list[tuple[str, ...]]:
    """Return for each result the names of the known deviations that may change it."""
    wanted = {name for known in DEVIATIONS for name in known.operations}
    return [
        tuple(known.name for known in DEVIATIONS if known.special and known.operations & behind)
        for behind in operations_behind(call, wanted)
    ]


def _inexact(function: Any, *sources: Any) -> list[Any]:
    """Return the results of a function that have cotangents."""
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
