"""Trials of each signature of a loaded SavedModel, with the results that JAX computes."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import tree_util

from bridge.core.backend import require_own_runtime
from bridge.core.given_arrays import fit_array
from bridge.core.keys import to_logical, to_physical
from bridge.core.probes import GIVEN, RANDOM, choose_sizes, draw, draw_cotangent
from bridge.loading.calling import call_flat
from bridge.loading.exported_on_mesh import to_one_device
from bridge.loading.limited_calls import LimitedCalls, TimeLimitError
from bridge.loading.loaded import LoadedSignature
from bridge.loading.loaded_model import LoadedModel
from bridge.verifying.trial_request import TrialRequest
from bridge.verifying.trials import Trial
from xla_call_module.analyses.dependence import narrowest_floats, operations_behind
from xla_call_module.call import CallModule, TensorSpec, bind_symbols
from xla_call_module.dtypes import Array
from xla_call_module.errors import InteropError, StructureError, quote
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.refining import accepts_sizes
from xla_call_module.tracebacks import warn
from xla_call_module.versions import DEVIATIONS


def make_trials(
    model: LoadedModel,
    *,
    seed: int,
    request: TrialRequest | None = None,
    progress: Callable[[int, int], None] | None = None,
    others: Mapping[str, Collection[str]] | None = None,
) -> list[Trial]:
    """Return trials of every signature, with every gradient order of the file.

    Random inputs have several sizes, inputs at the edges of their dtypes one. Gradients are taken
    with respect to all differentiable inputs, and once to the variables. A signature that assigns
    variables has a trial for each of some steps, with random or given inputs.
    """
    require_own_runtime("what to compare with")
    wanted = request or TrialRequest()
    with jax.enable_x64(True):
        references = [_SignatureReference(s, wanted) for s in model.signatures.values()]
        own = {reference.key: reference.inputs for reference in references}
        wanted.check_inputs({**own, **(others or {})})
        count = sum(reference.count for reference in references)
        trials: list[Trial] = []
        while references:  # the programs that JAX has compiled for one are freed when it is done
            for trial in references.pop(0).trials(seed):
                trials.append(trial)
                if progress is not None:
                    progress(len(trials), count)
        return trials


class _SignatureReference:
    """One signature in JAX, which makes its trials."""

    def __init__(self, signature: LoadedSignature, request: TrialRequest) -> None:
        exported, binding = to_one_device(signature.exported), signature.binding
        self.key = signature.key
        self._call = from_exported(exported, allow_flat_trees=True)
        self._function = call_flat(exported, name=signature.key)
        self._avals = exported.in_avals
        self._specs = self._call.args
        self._orders = _count_orders(exported)
        self.inputs = dict(sorted(binding.inputs.items(), key=lambda item: item[1]))
        self._outputs = dict(sorted(binding.outputs.items(), key=lambda item: item[1]))
        self._params = [to_physical(leaf) for leaf in tree_util.tree_leaves(signature.params)]
        # TensorFlow's signature has no variable that nothing in the file takes.
        self._variables = {
            name: index
            for index, name in enumerate(signature.variable_names)
            if name and index in binding.taken
        }
        # The parameters that a call assigns, by the names under which their values are compared.
        self._assigns = bool(binding.assigned)
        names, leaves = signature.variable_names, {v: i for i, v in enumerate(binding.variables)}
        results = {result: leaves[v] for result, v in sorted(binding.assigned.items())}
        self._updated = {f"variable/{names[i]}": i for i in results.values() if names[i]}
        self._compared = self._outputs | {
            f"variable/{names[i]}": result for result, i in results.items() if names[i]
        }
        # TensorFlow's value of a variable that has no name of its own is not seen.
        self._steps = request.steps if all(names[i] for i in results.values()) else 1
        self._deviations = deviations_of(self._call)
        self._precisions = narrowest_floats(self._call)
        self._keeps_nan, self._exact = signature.is_plain, signature.is_exact
        self._run = LimitedCalls(self._evaluate, self._call, static_argnums=(0, 1))
        self._given = request.inputs_of(self.key, self.inputs)
        kinds = self._kinds(request)
        # Each kind of input with its sizes, by the number that seeds its random numbers.
        # Constraints may leave fewer sizes than asked for.
        self.kinds = {i: kind for i, kind in enumerate(kinds) if kind not in kinds[:i]}

    @property
    def count(self) -> int:
        """The number of trials."""
        return sum(self._steps_of(kind) for kind, _ in self.kinds.values())

    def _steps_of(self, kind: str) -> int:
        # Nothing but infinities and NaN is left of a state after the first step with some.
        return self._steps if self._assigns and kind in (GIVEN, RANDOM) else 1

    def trials(self, seed: int) -> Iterator[Trial]:
        """Yield one trial of every kind, or one for each step of those that take steps."""
        for number, (kind, sizes) in self.kinds.items():
            random = np.random.default_rng([seed, number, zlib.crc32(self.key.encode())])
            with_variables = number == self._with_variables
            params: Sequence[Any] = self._params
            for step in range(1, self._steps_of(kind) + 1):
                try:
                    trial, params = self._trial(
                        kind, sizes, random, params, step, with_variables=with_variables
                    )
                except TimeLimitError as error:
                    if kind in (GIVEN, RANDOM):
                        raise
                    warn(f"{self.key} is not compared where inputs are {kind}: {error}")
                    break
                yield trial

    def _kinds(self, request: TrialRequest) -> list[tuple[str, dict[str, int]]]:
        """Return the kinds of inputs that are tried, each with the sizes that it has."""
        self._with_variables = 0
        kinds = [] if self._given is None else [(GIVEN, self._given_sizes(self._given))]
        if not request.kinds:
            return kinds
        names = self._call.symbols
        wanted = request.sizes if names else (1,)
        accepts = functools.partial(accepts_sizes, self._call)
        sizes = [choose_sizes(names, size, accepts) for size in wanted]
        edge = sizes[len(sizes) // 2]
        if RANDOM in request.kinds or not self.inputs:
            self._with_variables = len(kinds) + sizes.index(edge)
            kinds += [(RANDOM, chosen) for chosen in sizes]
        edges = [kind for kind in request.kinds if kind != RANDOM]
        return kinds + [(kind, edge) for kind in edges if self.inputs]

    def _given_sizes(self, given: Mapping[str, Array]) -> dict[str, int]:
        """Return the dimension variables that the user's arrays have."""
        shapes: list[tuple[int, ...] | None] = [None] * len(self._specs)
        for name, index in self.inputs.items():
            shapes[index] = given[name].shape
        sizes = bind_symbols(self.key, self._specs, shapes)
        if unknown := [name for name in self._call.symbols if name not in sizes]:
            raise StructureError(
                f"The sizes {', '.join(unknown)} of {self.key} do not follow from the shapes of "
                "the arrays that were given. To do: give the inputs that have them."
            )
        if not accepts_sizes(self._call, sizes):
            text = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            raise StructureError(
                f"The arrays that were given for {self.key} have {text}, which it was not exported "
                "for. To do: pass sizes that meet its constraints."
            )
        return sizes

    def _trial(
        self,
        kind: str,
        sizes: Mapping[str, int],
        random: np.random.Generator,
        params: Sequence[Any],
        step: int,
        *,
        with_variables: bool,
    ) -> tuple[Trial, Sequence[Any]]:
        """Return the trial of a step, and the parameters after it."""
        inputs = {
            name: self._input(name, self._specs[index], kind, sizes, random)
            for name, index in self.inputs.items()
        }
        # No result depends on an argument that the signature does not name.
        leaves = [draw(spec, "zeros", sizes, random) for spec in self._specs]
        leaves[: len(params)] = params
        for name, index in self.inputs.items():
            leaves[index] = inputs[name]
        chosen = self._differentiated(self.inputs)
        variables = self._differentiated(self._variables) if with_variables else {}
        if step > 1:  # the gradients are those of the first one, at another point
            chosen, variables = {}, {}
        sources = {f"input/{name}": index for name, index in chosen.items()}
        sources |= {f"variable/{name}": index for name, index in variables.items()}
        cotangents, expected = self._chain(leaves, sources, random)
        new = {leaf: expected[0][key] for key, leaf in self._updated.items()}
        deviations = {name: self._deviations[i] for name, i in self._compared.items()}
        precisions = {name: self._precisions[i] for name, i in self._compared.items()}
        trial = Trial(
            signature=self.key,
            kind=kind,
            sizes=sizes,
            inputs=inputs,
            differentiated=tuple(chosen),
            variables=tuple(variables),
            outputs=tuple(self._outputs),
            cotangents=cotangents,
            expected=expected,
            deviations=deviations,
            precisions=precisions,
            keeps_nan=self._keeps_nan,
            exact=self._exact,
            step=step if self._assigns else 0,
        )
        return trial, [new.get(leaf, value) for leaf, value in enumerate(params)]

    def _input(
        self,
        name: str,
        spec: TensorSpec,
        kind: str,
        sizes: Mapping[str, int],
        random: np.random.Generator,
    ) -> Array:
        if kind == GIVEN and self._given is not None:
            return fit_array(self._given[name], spec.dtype.numpy, f"{name} of {self.key}")
        return draw(spec, kind, sizes, random, has_zeros=self._exact)

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
            positions = tuple(sources.values()) if order else ()
            computed = self._compute(order, positions, tuple(leaves), drawn)
            names = sources if order else self._compared
            results = dict(zip(names, map(np.asarray, computed), strict=True))
            expected.append(results)
            pulled = results if order else {name: results[name] for name in self._outputs}
            inexact = {name: value for name, value in pulled.items() if _is_inexact(value)}
            if order == self._orders or not sources or not inexact:
                return tuple(cotangents), tuple(expected)
            cotangents.append(
                {name: draw_cotangent(value, random) for name, value in inexact.items()}
            )

    def _compute(self, order: int, positions: tuple[int, ...], *arguments: Any) -> list[Any]:
        try:
            computed: list[Any] = self._run(*arguments, static=(order, positions))
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            if isinstance(error, InteropError):
                raise
            raise InteropError(
                f"JAX does not run order {order} of {self.key}, lowered for "
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
        """Return what is compared of an order: of higher ones gradients, as TensorFlow has them."""
        compared = self._outputs if order else self._compared

        def value(order: int, *sources: Any) -> list[Any]:
            if order == 0:
                results = self._results_for(leaves, positions, sources)
                return [to_physical(results[index]) for index in compared.values()]
            below = functools.partial(_inexact, functools.partial(value, order - 1))
            _, pull_back = jax.vjp(below, *sources)
            # TensorFlow's gradient of a complex number is the conjugate of JAX's.
            return [jnp.conj(g) for g in pull_back([jnp.conj(c) for c in cotangents[order - 1]])]

        return value(order, *(leaves[position] for position in positions))

    def _results_for(
        self, leaves: Sequence[Any], positions: Sequence[int], sources: Sequence[Any]
    ) -> Sequence[Any]:
        given = list(leaves)
        for position, source in zip(positions, sources, strict=True):
            given[position] = source
        logical = [to_logical(leaf, aval) for leaf, aval in zip(given, self._avals, strict=True)]
        results: Sequence[Any] = self._function(*logical)
        return results


def deviations_of(call: CallModule) -> list[tuple[str, ...]]:
    """Return for each result the names of the known deviations that may change it."""
    wanted = {name for known in DEVIATIONS for name in known.operations}
    return [
        tuple(known.name for known in DEVIATIONS if known.operations & behind)
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
