"""A function tried in JAX: whether it computes each row of a batch for itself.

It is compared with itself beside other rows, in one program, which must give the same bits, for
values at the edges of their dtypes too; with the function of its rows, for an odd, an even and a
large number of them, which must give the same numbers but for the rounding of another program; and
so are its gradients with those of the rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import open_module, read_counter, walk
from xla_call_module.stablehlo.refining import accepts_sizes

__all__ = ["Candidate", "Difference", "are_close", "choose_others", "try_rows"]

_SEED = 20
# An odd, an even and a large number of rows, or those next to them that a function takes.
_ROWS = (11, 12, 131)
_MAX_ROWS = 160
# Random numbers, some of which are beyond the thresholds that functions have.
_LARGE, _LARGE_FACTOR = "large", 40
# Positive numbers, for which the loops that people write end.
_POSITIVE = "positive"
_LOOP_SECONDS = 60.0
# How far apart two programs of one function may round, relative to the largest number of a result:
# this many units in the last place of its dtype.
_MAX_UNITS = 1 << 12


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function of batches.

    Attributes:
        exported: the function.
        rows: its function of rows; None where its batch has one size.
        symbol: the dimension variable that is the batch, or the text of its one size.
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
        consequence: what it depends on, as a part of a sentence after its name.
        remedy: what to do.
        kind: the inputs for which it shows.
        is_gradient: whether it is the gradient of an argument.
    """

    index: int
    consequence: str
    remedy: str
    kind: str
    is_gradient: bool = False


_OTHER_ROWS = "depends on the other rows of the batch"
_FOR_OTHER_ROWS = (
    "compute each row for itself, such as by jax.vmap of a function of one row; where it "
    "normalizes over the batch, export the function as it is used after training"
)
_NUMBER = "depends on the number of rows in the batch, or on the place of a row among them"
_FOR_NUMBER = (
    "pass what numbers the rows, or the keys of their noise, as an input with a row for each, such "
    "as jax.random.split(key, rows), in the place of jnp.arange or one key for all rows"
)
_GRADIENT = "depends on rows that are added to the batch, and that no loss depends on"
_FOR_GRADIENT = "give it a rule of gradients that computes each row for itself"


def try_rows(candidate: Candidate) -> tuple[Difference | None, str]:
    """Return where a function differs from that of its rows, or why that could not be tried.

    Raises:
        InteropError: the function cannot be called.
    """
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


class _Trial:
    """A function and that of its rows, with random inputs."""

    def __init__(self, candidate: Candidate, call: CallModule) -> None:
        self._candidate, self._call = candidate, call
        self._params = [to_physical(leaf) for leaf in tree_util.tree_leaves(candidate.params)]
        require_own_runtime("whether each row of a batch is computed for itself")
        self._random = np.random.default_rng(_SEED)
        self._is_loop = _may_not_end(call)
        self._whole = self._function(candidate.exported)
        self._rows = None if candidate.rows is None else self._function(candidate.rows)

    def _function(self, exported: export.Exported) -> Callable[..., list[Any]]:
        """Return a function of physical leaves that runs for a limited time."""

        def flat(*leaves: Any) -> list[Any]:
            pairs = zip(leaves, exported.in_avals, strict=True)
            logical = [to_logical(leaf, aval) for leaf, aval in pairs]
            results = call_flat(exported)(*logical)
            return [None if result is None else to_physical(result) for result in results]

        seconds = _LOOP_SECONDS if self._is_loop else None
        calls = LimitedCalls(flat, self._call, first_seconds=seconds)
        return lambda *leaves: [None if x is None else np.asarray(x) for x in calls(*leaves)]

    def run(self) -> Difference | None:
        """Compare the results, and return the first that differs."""
        trials = self._sizes()
        if not trials:
            return None
        edges = (_POSITIVE,) if self._is_loop else (RANDOM, _LARGE, "zeros", HUGE, "nan", INF)
        for kind in edges:
            if (found := self._beside_others(self._draw(kind, trials[-1]), kind)) is not None:
                return found
        for sizes in trials if self._rows is not None else ():
            kinds = (_POSITIVE if self._is_loop else RANDOM,)
            if sizes is trials[0] and not self._is_loop:
                kinds = (RANDOM, _LARGE, "zeros")
            for kind in kinds:
                if (found := self._by_rows(self._draw(kind, sizes), kind)) is not None:
                    return found
        if self._candidate.keeps_chain and not self._is_loop and len(trials) > 1:
            return self._gradients(trials[:2])
        return None

    def _sizes(self) -> list[dict[str, int]]:
        """Return sizes of all dimension variables, with different numbers of rows."""
        call, symbol = self._call, self._candidate.symbol
        others = [name for name in call.symbols if name != symbol]
        if symbol not in call.symbols:
            sizes = choose_others(call, call.symbols, {})
            return [] if sizes is None else [sizes]
        found: dict[int, dict[str, int]] = {}
        for wanted in _ROWS:
            for rows in sorted(range(1, _MAX_ROWS), key=lambda rows: abs(rows - wanted)):
                chosen = choose_others(call, others, {symbol: rows})
                if chosen is not None:
                    found[rows] = {**chosen, symbol: rows}
                    break
        return [found[rows] for rows in sorted(found)]

    def _draw(self, kind: str, sizes: Mapping[str, int]) -> list[Any]:
        return [*self._params, *self._drawn(self._call.args[len(self._params) :], kind, sizes)]

    def _drawn(
        self, specs: Sequence[TensorSpec], kind: str, sizes: Mapping[str, int]
    ) -> list[np.ndarray[Any, Any]]:
        known = kind if kind not in (_LARGE, _POSITIVE) else RANDOM
        leaves = [np.asarray(draw(spec, known, sizes, self._random)) for spec in specs]
        numbers = [jnp.issubdtype(x.dtype, jnp.inexact) for x in leaves]
        if kind == _LARGE:
            pairs = zip(leaves, numbers, strict=True)
            return [(x * _LARGE_FACTOR).astype(x.dtype) if wide else x for x, wide in pairs]
        if kind == _POSITIVE:
            return [
                x if x.dtype == bool or spec.element.startswith("key<")
                else (abs(x) if wide else np.maximum(x, 1)).astype(x.dtype)
                for x, wide, spec in zip(leaves, numbers, specs, strict=True)
            ]  # fmt: skip
        return leaves

    def _beside_others(self, leaves: list[Any], kind: str) -> Difference | None:
        """Return the result of the last rows that the first ones change, in the same program."""
        first = self._candidate.batches[0]
        count = len(leaves[first])
        if count < 2:
            return None
        kept = min(count // 2 + 1, count - 1)  # the NaN of a draw is among those that change
        others = list(leaves)
        for index in self._candidate.batches:
            batch = leaves[index]
            others[index] = np.concatenate([np.repeat(batch[-1:], kept, 0), batch[kept:]])
        one, other = self._whole(*leaves), self._whole(*others)
        for index, (ours, theirs) in enumerate(zip(one, other, strict=True)):
            if self._leads(index):
                ours, theirs = ours[kept:], theirs[kept:]
            if not are_close(ours, theirs, 0):
                return Difference(index, _OTHER_ROWS, _FOR_OTHER_ROWS, kind)
        return None

    def _by_rows(self, leaves: list[Any], kind: str) -> Difference | None:
        """Return the result that differs from that of the function of rows."""
        assert self._rows is not None
        pairs = zip(self._whole(*leaves), self._rows(*leaves), strict=True)
        for index, (ours, theirs) in enumerate(pairs):
            if not are_close(ours, theirs, _rounding(ours.dtype)):
                return Difference(index, _NUMBER, _FOR_NUMBER, kind)
        return None

    def _gradients(self, trials: Sequence[Mapping[str, int]]) -> Difference | None:
        """Return the gradient that rows change which are added, and no loss depends on."""
        exported, symbol = self._candidate.exported.vjp(), self._candidate.symbol
        vjp = from_exported(exported, allow_flat_trees=True)
        call, count = self._function(exported), len(self._call.args)
        fewer, more = (sizes[symbol] for sizes in trials)
        arguments = self._draw(RANDOM, trials[0])
        cotangents = self._drawn(vjp.args[count:], RANDOM, trials[0])
        leading = [
            spec.shape[:1] == (symbol,) for spec in vjp.args[count:] if spec.shape is not None
        ]
        padded = [
            np.concatenate([x, np.repeat(x[-1:], more - fewer, 0)])
            if index in self._candidate.batches
            else x
            for index, x in enumerate(arguments)
        ]
        zeros = [
            np.concatenate([x, np.zeros((more - fewer, *x.shape[1:]), x.dtype)]) if leads else x
            for x, leads in zip(cotangents, leading, strict=True)
        ]
        pairs = zip(call(*arguments, *cotangents), call(*padded, *zeros), strict=True)
        for index, (alone, ours) in enumerate(pairs):
            if alone is None:
                continue
            beside = ours[:fewer] if index in self._candidate.batches else ours
            if not are_close(beside, alone, _rounding(alone.dtype)):
                return Difference(index, _GRADIENT, _FOR_GRADIENT, RANDOM, is_gradient=True)
        return None

    def _leads(self, result: int) -> bool:
        shape = self._call.results[result].shape
        return bool(shape) and str(shape[0]) == self._candidate.symbol


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
    """Return whether results are the same, NaN included, but for how floats are rounded.

    Args:
        ours: an array of results.
        theirs: another one, of the same shape and dtype.
        rounding: the part of the largest number by which floats may differ.
    """
    if not jnp.issubdtype(ours.dtype, jnp.inexact):
        return bool(np.array_equal(ours, theirs))
    wide = np.complex128 if np.iscomplexobj(ours) else np.float64
    left, right = ours.astype(wide), theirs.astype(wide)
    bound = rounding * np.abs(right[np.isfinite(right)]).max(initial=0)
    return bool(np.allclose(left, right, rtol=0, atol=bound, equal_nan=True))
