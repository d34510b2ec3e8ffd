"""A function tried in JAX: whether it computes each row of a batch for itself.

It is compared with itself beside other rows, in one program, which must give the same bits, for
values at the edges of their dtypes too; with the function of its rows, for an odd, an even and a
large number of them, which must give the same numbers but for the rounding of another program; and
so are its gradients with those of fewer rows. Where it is called itself, and not the function of
its rows, it is compared with itself for other places and another number of rows.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, tree_util

from bridge.core.backend import platform_of, require_own_runtime
from bridge.core.keys import to_logical, to_physical
from bridge.core.narrowing import x64_if_needed
from bridge.core.probes import HUGE, INF, RANDOM, choose_sizes, draw
from bridge.loading.calling import call_flat
from bridge.loading.limited_calls import LimitedCalls, TimeLimitError, may_not_return
from bridge.saving.processes import is_multi_process
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import evaluate, symbols
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import open_module, read_counter, walk
from xla_call_module.stablehlo.refining import accepts_sizes

_SEED = 20
# An odd, an even and a large number of rows, or those next to them that a function takes.
_ROWS = (11, 12, 131)
_MAX_ROWS = 160
# Random numbers, some of which are beyond the thresholds that functions have.
_LARGE, _LARGE_FACTOR = "large", 40
# Positive numbers, for which the loops that people write end.
_POSITIVE, _LARGE_POSITIVE = "positive", "large positive"
_LOOP_SECONDS = 60.0
# How long a loop over a batch may take, beside that of each row: these seconds, or so many times.
_MIN_BATCH_SECONDS, _MAX_BATCH_RATIO = 10.0, 10.0
# How far apart two programs of one function may round, relative to the largest number of a result:
# this many units in the last place of its dtype.
_MAX_UNITS = 1 << 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function of batches.

    Attributes:
        exported: the function.
        rows: its function of rows, which is called instead; None where it is called itself.
        symbol: the size of the batch, such as `b`, `3*b` or `8`.
        batches: the indices of the arguments whose rows are those of the batch.
        params: the first argument of the function, if it has parameters.
        keeps_chain: whether its gradients are tried, too.
    """

    exported: export.Exported
    rows: export.Exported | None
    symbol: str
    batches: tuple[int, ...]
    params: Any = None
    keeps_chain: bool = False


@dataclass(frozen=True, slots=True)
class Difference:
    """A result that is not computed for each row by itself.

    Attributes:
        index: that of the flat result; of a flat argument for its gradient.
        consequence: what is wrong, as a part of a sentence after its name.
        remedy: what to do.
        kind: the inputs for which it shows.
        is_gradient: whether it is the gradient of an argument.
    """

    index: int
    consequence: str
    remedy: str
    kind: str
    is_gradient: bool = False


# The consequence and the remedy of each difference.
_OF_OTHERS = (
    "depends on the other rows of the batch",
    (
        "compute each row for itself, such as by jax.vmap of a function of one row; where it "
        "normalizes over the batch, export the function as it is used after training"
    ),
)
_OF_NUMBER = (
    "depends on the number of rows in the batch, or on the place of a row among them",
    (
        "pass what numbers the rows, or the keys of their noise, as an input with a row for each, "
        "such as jax.random.split(key, rows), in the place of jnp.arange or one key for all rows"
    ),
)
_OF_END = (
    "comes to no end for rows together, each of which does alone",
    "have its loops change no row that alone would be done, as those of jax.vmap do",
)
_OF_GRADIENT = (
    "depends on rows that are added to the batch, and that no loss depends on",
    "give it a rule of gradients that computes each row for itself",
)
_Function = Callable[..., list[Any]]


def try_rows(candidate: Candidate) -> tuple[Difference | None, str]:
    """Return where a function differs from that of its rows, or why that could not be tried."""
    exported = candidate.exported
    call = from_exported(exported, allow_flat_trees=True)
    if is_multi_process(candidate.params):
        return None, "its parameters are spread over several processes."
    if call.nr_devices > 1:
        return None, f"it was exported for {call.nr_devices} devices."
    if (platform := platform_of(jax.devices()[0])) not in call.platforms:
        return None, f"it was exported for {', '.join(call.platforms)}, and this is {platform}."
    with x64_if_needed(spec.dtype.name for spec in (*call.args, *call.results)):
        try:
            return _Trial(candidate, call).run(), ""
        except TimeLimitError as error:
            return None, str(error)
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            if isinstance(error, InteropError):
                raise
            return None, f"JAX does not run it here: {error}"


def choose_others(
    call: CallModule, names: Sequence[str], batch: Mapping[str, int]
) -> dict[str, int] | None:
    """Return sizes of the other dimension variables with which a batch is taken, or None."""

    def accepts(sizes: Mapping[str, int]) -> bool:
        return accepts_sizes(call, {**sizes, **batch})

    if not names:
        return {} if accepts({}) else None
    try:
        return choose_sizes(names, 2, accepts)
    except StructureError:
        return None


class _EndlessError(Exception):
    """A loop over a batch goes on, whose rows alone have ended."""


class _Trial:
    """A function and that of its rows, with random inputs."""

    def __init__(self, candidate: Candidate, call: CallModule) -> None:
        self._candidate, self._call = candidate, call
        self._params = [to_physical(leaf) for leaf in tree_util.tree_leaves(candidate.params)]
        require_own_runtime("whether each row of a batch is computed for itself")
        self._random = np.random.default_rng(_SEED)
        self._names = symbols(candidate.symbol)
        self._is_loop = _may_not_end(call)
        self._whole, self._pair = self._functions(candidate.exported, candidate.rows)

    def _functions(
        self, exported: export.Exported, rows: export.Exported | None
    ) -> tuple[_Function, Callable[..., tuple[list[Any], list[Any]]] | None]:
        """Return the function, and one of its results and those of its rows, if they are there."""
        seconds, count = _LOOP_SECONDS if self._is_loop else None, len(self._call.results)
        if rows is None:
            return self._function(exported, seconds=seconds), None
        if self._is_loop:
            alone = self._function(rows, seconds=seconds)
            whole = self._after_rows(alone)
            return whole, lambda *leaves: (whole(*leaves), alone(*leaves))
        # XLA compiles both of them together in less time than one after another.
        both = self._function(exported, rows)

        def pair(*leaves: Any) -> tuple[list[Any], list[Any]]:
            results = both(*leaves)
            return results[:count], results[count:]

        return lambda *leaves: pair(*leaves)[0], pair

    def _function(self, *exporteds: export.Exported, seconds: float | None = None) -> _Function:
        """Return a function of physical leaves to all results, which runs for a limited time."""

        def flat(*leaves: Any) -> list[Any]:
            pairs = zip(leaves, exporteds[0].in_avals, strict=True)
            logical = [to_logical(leaf, aval) for leaf, aval in pairs]
            results = [result for one in exporteds for result in call_flat(one)(*logical)]
            return [None if result is None else to_physical(result) for result in results]

        calls = LimitedCalls(flat, self._call, first_seconds=seconds)
        return lambda *leaves: [None if x is None else np.asarray(x) for x in calls(*leaves)]

    def _after_rows(self, rows: _Function) -> _Function:
        """Return the function, each call of which begins once its rows alone have ended."""
        whole: _Function | None = None

        def call(*leaves: Any) -> list[Any]:
            nonlocal whole
            began = time.monotonic()
            rows(*leaves)
            seconds = max(_MIN_BATCH_SECONDS, _MAX_BATCH_RATIO * (time.monotonic() - began))
            whole = whole or self._function(self._candidate.exported, seconds=seconds)
            try:
                return whole(*leaves)
            except TimeLimitError as error:
                raise _EndlessError from error

        return call

    def run(self) -> Difference | None:
        """Compare the results, and return the first that differs."""
        try:
            return next(self._differences(), None)
        except _EndlessError:
            led = (index for index in range(len(self._call.results)) if self._leads(index))
            return Difference(next(led, 0), *_OF_END, _POSITIVE)

    def _differences(self) -> Iterator[Difference]:
        trials = self._sizes()
        some = (_POSITIVE, _LARGE_POSITIVE) if self._is_loop else (RANDOM, _LARGE)
        edges = () if self._is_loop else ("zeros", HUGE, "nan", INF)
        for kind in (*some, *edges) if trials else ():
            yield from self._beside_others(self._draw(kind, trials[-1]), kind)
        for sizes in trials:
            special = ("zeros", "nan", INF) if edges and sizes is trials[0] else ()
            for kind in (*some, *special):
                yield from self._in_other_ways(self._draw(kind, sizes), kind, trials, sizes)
        if self._candidate.keeps_chain and edges and len(trials) > 1:
            yield from self._gradients(trials[:2], some)

    def _sizes(self) -> list[dict[str, int]]:
        """Return sizes of all dimension variables, with different numbers of rows."""
        call = self._call
        if len(self._names) != 1:
            sizes = choose_others(call, call.symbols, {})
            return [] if sizes is None else [sizes]
        (name,) = self._names
        others = [other for other in call.symbols if other != name]
        rows = {
            size: evaluate(self._candidate.symbol, {name: size}) or 0
            for size in range(1, _MAX_ROWS)
        }
        found: dict[int, dict[str, int]] = {}
        # Where it is called itself, so it is for single rows.
        for wanted in _ROWS if self._pair is not None else (1, *_ROWS):
            for size in sorted(rows, key=lambda size: abs(rows[size] - wanted)):
                if (chosen := choose_others(call, others, {name: size})) is not None:
                    found[size] = {**chosen, name: size}
                    break
        return [sizes for _, sizes in sorted(found.items())]

    def _draw(self, kind: str, sizes: Mapping[str, int]) -> list[Any]:
        return [*self._params, *self._drawn(self._call.args[len(self._params) :], kind, sizes)]

    def _drawn(
        self, specs: Sequence[TensorSpec], kind: str, sizes: Mapping[str, int]
    ) -> list[np.ndarray[Any, Any]]:
        is_large = kind in (_LARGE, _LARGE_POSITIVE)
        is_positive = kind in (_POSITIVE, _LARGE_POSITIVE)
        known = RANDOM if is_large or is_positive else kind
        leaves = []
        for spec in specs:
            leaf = np.asarray(draw(spec, known, sizes, self._random))
            is_inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
            if is_large and is_inexact:
                leaf = (leaf * _LARGE_FACTOR).astype(leaf.dtype)
            if is_positive and leaf.dtype != bool and not spec.element.startswith("key<"):
                leaf = (abs(leaf) if is_inexact else np.maximum(leaf, 1)).astype(leaf.dtype)
            leaves.append(leaf)
        return leaves

    def _beside_others(self, leaves: list[Any], kind: str) -> Iterator[Difference]:
        """Yield the results of the last rows that the first ones change, in the same program."""
        count = len(leaves[self._candidate.batches[0]])
        kept = min(count // 2 + 1, count - 1)  # the NaN of a draw is among those that change
        if kept < 1:
            return
        others = self._of_batches(
            leaves, lambda x: np.concatenate([np.repeat(x[-1:], kept, 0), x[kept:]])
        )
        pair = self._whole(*leaves), self._whole(*others)
        ours, theirs = (self._of_rows(results, lambda x: x[kept:]) for results in pair)
        yield from self._compare(ours, theirs, kind, _OF_OTHERS, is_exact=True)

    def _in_other_ways(
        self,
        leaves: list[Any],
        kind: str,
        trials: Sequence[Mapping[str, int]],
        sizes: Mapping[str, int],
    ) -> Iterator[Difference]:
        """Yield the results that the function of rows has not, or that places or sizes change."""
        if self._pair is not None:
            yield from self._compare(*self._pair(*leaves), kind, _OF_NUMBER)
            return
        results = self._whole(*leaves)
        turned = self._whole(*self._of_batches(leaves, lambda x: np.roll(x, 1, 0)))
        there = self._of_rows(results, lambda x: np.roll(x, 1, 0))
        yield from self._compare(turned, there, kind, _OF_NUMBER)
        for fewer in trials[: trials.index(sizes)]:
            if all(fewer[name] == sizes[name] for name in sizes.keys() - self._names):
                rows = slice(evaluate(self._candidate.symbol, fewer))
                alone = self._whole(*self._of_batches(leaves, operator.itemgetter(rows)))
                beside = self._of_rows(results, operator.itemgetter(rows))
                yield from self._compare(beside, alone, kind, _OF_NUMBER)

    def _compare(
        self,
        ours: Sequence[Any],
        theirs: Sequence[Any],
        kind: str,
        what: tuple[str, str],
        *,
        is_exact: bool = False,
        is_gradient: bool = False,
    ) -> Iterator[Difference]:
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            rounding = 0 if is_exact or other is None else _rounding(other.dtype)
            if other is not None and not are_close(one, other, rounding):
                yield Difference(index, *what, kind, is_gradient)

    def _gradients(
        self, trials: Sequence[Mapping[str, int]], kinds: Sequence[str]
    ) -> Iterator[Difference]:
        """Yield the gradients that rows change which are added, and no loss depends on."""
        exported, symbol = self._candidate.exported.vjp(), self._candidate.symbol
        vjp = from_exported(exported, allow_flat_trees=True)
        call, specs = self._function(exported), vjp.args[len(self._call.args) :]
        fewer, more = (sizes[symbol] for sizes in trials)
        for kind in kinds:
            arguments = self._draw(kind, trials[0])
            cotangents = self._drawn(specs, RANDOM, trials[0])
            padded = self._of_batches(
                arguments, lambda x: np.concatenate([x, np.repeat(x[-1:], more - fewer, 0)])
            )
            zeros = [
                np.concatenate([x, np.zeros((more - fewer, *x.shape[1:]), x.dtype)])
                if spec.shape is not None and spec.shape[:1] == (symbol,)
                else x
                for x, spec in zip(cotangents, specs, strict=True)
            ]
            alone, beside = call(*arguments, *cotangents), call(*padded, *zeros)
            cut = self._of_batches(beside, lambda x: None if x is None else x[:fewer])
            yield from self._compare(cut, alone, kind, _OF_GRADIENT, is_gradient=True)

    def _of_batches(self, leaves: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
        """Return arguments, or their gradients, of which those with rows are changed."""
        batches = self._candidate.batches
        return [change(x) if index in batches else x for index, x in enumerate(leaves)]

    def _of_rows(self, results: Sequence[Any], change: Callable[[Any], Any]) -> list[Any]:
        """Return results of which those with rows are changed."""
        return [change(x) if self._leads(index) else x for index, x in enumerate(results)]

    def _leads(self, result: int) -> bool:
        shape = self._call.results[result].shape or ()
        return [str(size) for size in shape[:1]] == [self._candidate.symbol]


def _may_not_end(call: CallModule) -> bool:
    """Return whether there is a loop that may not end for values that it is not made for."""
    if not may_not_return(call) or not mentions(call.module, [b"while"]):
        return False
    with open_module(call.module) as module:
        loops = [op for op in walk(module) if op.name == "stablehlo.while"]
        regions = [[region.blocks[0] for region in loop.operation.regions] for loop in loops]
        return any(read_counter(condition, body) is None for condition, body in regions)


def _rounding(dtype: Any) -> float:
    """Return the part of the largest number by which two programs of one function may differ."""
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0
    limits: Any = jnp.finfo(dtype)  # type: ignore[no-untyped-call]
    return min(_MAX_UNITS * float(limits.eps), 0.1)


def are_close(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any], rounding: float) -> bool:
    """Return whether results are the same, NaN included, but for how floats are rounded."""
    if not jnp.issubdtype(ours.dtype, jnp.inexact):
        return bool(np.array_equal(ours, theirs))
    wide = np.complex128 if np.iscomplexobj(ours) else np.float64
    left, right = ours.astype(wide), theirs.astype(wide)
    bound = rounding * np.abs(right[np.isfinite(right)]).max(initial=0)
    return bool(np.allclose(left, right, rtol=0, atol=bound, equal_nan=True))
