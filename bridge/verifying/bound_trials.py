"""Trials of bound calls: inputs of every kind, and what JAX computes of them.

They are of order 0: a bound call of a gradient has the cotangents among its inputs.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.core.probes import EDGES, GIVEN, RANDOM, SIZES, choose_sizes, draw
from bridge.loading.calling import call_flat
from bridge.loading.exported_from_call import exported_from_call
from bridge.loading.limited_calls import LimitedCalls, TimeLimitError
from bridge.sources.bound_call import BoundCall
from bridge.verifying.trials import Trial
from xla_call_module.analyses.dependence import narrowest_floats
from xla_call_module.call import CallModule
from xla_call_module.dtypes import Array
from xla_call_module.stablehlo.refining import accepts_sizes
from xla_call_module.tracebacks import warn

_Reference = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[dict[str, Any], dict[str, Any]]]


def make_trials(
    bound: Mapping[str, BoundCall], *, seed: int = 0, exact: bool = True
) -> Iterator[Trial]:
    """Yield the trials of each signature: random inputs, and those at the edges of their dtypes.

    Where a signature assigns variables, all of them are called by turns first, one step after the
    other; each trial after these has the first values of the variables.
    """
    for trial in _trials(bound, seed, exact=exact):
        yield dataclasses.replace(trial, exact=exact)


def _trials(bound: Mapping[str, BoundCall], seed: int, *, exact: bool) -> Iterator[Trial]:
    references = {key: _reference(one) for key, one in bound.items()}
    if any(one.assigned for one in bound.values()):
        yield from _steps(bound, references, seed, exact=exact)
    for key, one in bound.items():
        call, precisions = one.original, _precisions(one)
        kinds = [(RANDOM, sizes) for sizes in _sizes_of(call)]
        kinds += [(edge, kinds[len(kinds) // 2][1]) for edge in EDGES if one.inputs]
        for number, (kind, sizes) in enumerate(kinds):
            random = np.random.default_rng([seed, number, zlib.crc32(key.encode())])
            inputs = _drawn(one, kind, sizes, random, exact=exact)
            try:
                expected, _ = references[key](inputs, {})
            except TimeLimitError as error:
                if kind == RANDOM:
                    raise
                warn(f"{key} is not compared where inputs are {kind}: {error}")
                continue
            step = int(bool(one.assigned))
            yield _trial(key, kind, sizes, inputs, expected, step=step, precisions=precisions)


def _steps(
    bound: Mapping[str, BoundCall], references: Mapping[str, _Reference], seed: int, *, exact: bool
) -> Iterator[Trial]:
    """Yield trials that follow one another, of all signatures by turns."""
    state: Mapping[str, Any] = {}
    keys = [*bound]
    # What a step returns may follow from what another signature has assigned.
    precisions = {
        f"{key}/{name}": dtype
        for key, one in bound.items()
        for name, dtype in _precisions(one).items()
    }
    for number, key in enumerate([*keys, *reversed(keys), *keys]):
        one = bound[key]
        sizes = _sizes_of(one.original)
        chosen = sizes[number // len(bound) % len(sizes)]
        random = np.random.default_rng([seed, number, zlib.crc32(f"step of {key}".encode())])
        inputs = _drawn(one, RANDOM, chosen, random, exact=exact)
        expected, new = references[key](inputs, state)
        state = {**state, **new}
        of_step = precisions | _precisions(one)
        yield _trial(key, RANDOM, chosen, inputs, expected, step=number + 1, precisions=of_step)


def _drawn(
    bound: BoundCall,
    kind: str,
    sizes: Mapping[str, int],
    random: np.random.Generator,
    *,
    exact: bool,
) -> dict[str, Array]:
    args = bound.original.args
    return {
        name: draw(args[index], kind, sizes, random, has_zeros=exact)
        for index, name in bound.inputs.items()
    }


def given_trials(
    bound: Mapping[str, BoundCall], samples: Mapping[str, Sequence[Mapping[str, Array]]]
) -> Iterator[Trial]:
    """Yield the trials of calls with given inputs, each with the first values of variables."""
    for key, calls in samples.items():
        run, precisions = _reference(bound[key]), _precisions(bound[key])
        step = int(bool(bound[key].assigned))
        for inputs in calls:
            expected, _ = run(inputs, {})
            yield _trial(key, GIVEN, {}, inputs, expected, step=step, precisions=precisions)


def _precisions(bound: BoundCall) -> dict[str, str]:
    """Return the least precise dtype of floats that each output was computed with."""
    of_results = narrowest_floats(bound.original)
    return dict(zip(bound.outputs, (of_results[i] for i in bound.returned), strict=True))


def _trial(
    key: str,
    kind: str,
    sizes: Mapping[str, int],
    inputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    *,
    step: int,
    precisions: Mapping[str, str],
) -> Trial:
    return Trial(
        signature=key,
        kind=kind,
        sizes=sizes,
        inputs=inputs,
        differentiated=(),
        variables=(),
        outputs=tuple(expected),
        cotangents=(),
        expected=(expected,),
        precisions=precisions,
        step=step,
    )


def _reference(bound: BoundCall) -> _Reference:
    """Return the function of JAX.

    Of inputs by name, and values of variables that are not the first ones, it returns the outputs,
    and the new values of what it assigns. A call for another platform runs on the CPU, with the
    branches and without the libraries of that platform.
    """
    call = bound.original
    if "cpu" not in bound.call.platforms:
        call = dataclasses.replace(bound.call, platforms=("cpu",), exported=b"")
    function = LimitedCalls(call_flat(exported_from_call(call), name=call.name), call)
    parameters = {index: array for index, (_, array) in bound.parameters.items()}

    def run(
        inputs: Mapping[str, Any], state: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        leaves = dict(parameters) | {index: inputs[name] for index, name in bound.inputs.items()}
        leaves |= {i: state.get(name, array) for i, (name, array) in bound.state.items()}
        results = function(*(leaves[index] for index in call.kept))
        arrays = [np.asarray(result) for result in results]
        returned = (arrays[index] for index in bound.returned)
        new = {name: arrays[index] for index, name in bound.assigned.items()}
        return dict(zip(bound.outputs, returned, strict=True)), new

    return run


def _sizes_of(call: CallModule) -> list[dict[str, int]]:
    """Return the sizes of dimension variables for which a function is tried."""
    if not call.symbols:
        return [{}]
    choices = [
        choose_sizes(call.symbols, wanted, functools.partial(accepts_sizes, call))
        for wanted in SIZES
    ]
    return [sizes for n, sizes in enumerate(choices) if sizes not in choices[:n]]
