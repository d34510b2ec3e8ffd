"""A function tried in JAX: whether padding its batches leaves the results as they are.

That no row depends on others, or on their number, is decided from the operations of the module
(`rowwise`); here is a second look at what comes out. Two things are compared: one program with
different rows added, which must give the same bits, for values at the edges of their dtypes too;
and the rows alone, an odd and an even number of them, which must give the same numbers but for the
rounding of another program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, tree_util

from bridge.batching.rowwise.loop_rules import read_loop
from bridge.core.backend import platform_of, require_own_runtime
from bridge.core.keys import to_logical, to_physical
from bridge.core.narrowing import x64_if_needed
from bridge.core.probes import HUGE, RANDOM, choose_sizes, draw
from bridge.loading.calling import call_flat
from bridge.loading.limited_calls import LimitedCalls, TimeLimitError
from bridge.saving.processes import is_multi_process
from savedmodel.model import BatchBuckets, Signature
from xla_call_module.call import CallModule
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import open_module, walk
from xla_call_module.stablehlo.refining import accepts_sizes

__all__ = ["are_close", "try_padding"]

_SEED = 20
# A bucket of fewer rows shows less of what an added row does.
_MIN_ROWS = 3
# Up to how many rows one is looked for that the constraints allow.
_MAX_ROWS = 65
# How far apart two programs of one function may round, relative to the largest number of a result:
# this many units in the last place of its dtype.
_MAX_UNITS = 1 << 12


def try_padding(
    signature: Signature,
    exported: export.Exported,
    call: CallModule,
    buckets: BatchBuckets,
    params: Any,
) -> str:
    """Return the reason why padding could not be tried; empty if the results are the same.

    Args:
        signature: the signature whose batches are to be padded.
        exported: the function.
        call: the call of the function.
        buckets: the sizes to which its batches are to be padded.
        params: the first argument of the function, if it has parameters.

    Raises:
        StructureError: the function does not take a size; a result is another.
    """
    others = [name for name in call.symbols if name != buckets.symbol]
    _check_sizes(signature.key, call, others, buckets)
    if is_multi_process(params):
        return "its parameters are spread over several processes."
    if call.nr_devices > 1:
        return f"it was exported for {call.nr_devices} devices."
    if (platform := platform_of(jax.devices()[0])) not in call.platforms:
        return f"it was exported for {', '.join(call.platforms)}, and this is {platform}."
    size = next((s for s in buckets.sizes if s >= _MIN_ROWS), buckets.sizes[-1])
    if size == 1 or _may_not_end(call):
        return ""
    with x64_if_needed(spec.dtype.name for spec in (*call.args, *call.results)):
        trial = _Trial(signature, exported, call, buckets, params)
        try:
            batch = {buckets.symbol: size}
            trial.run({**(_choose_others(call, others, batch) or {}), **batch})
        except TimeLimitError as error:
            return str(error)
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            if isinstance(error, InteropError):
                raise
            return f"JAX does not run it here: {error}"
    return ""


def _check_sizes(key: str, call: CallModule, others: Sequence[str], buckets: BatchBuckets) -> None:
    """Refuse a bucket that the function does not take.

    Raises:
        StructureError: it has one.
    """
    for size in buckets.sizes:
        if _choose_others(call, others, {buckets.symbol: size}) is None:
            raise StructureError(
                f"The function of {key} takes no batch of {size}: the constraints on its dimension "
                f"variables exclude {buckets.symbol} = {size}. To do: leave {size} out of "
                "batch_buckets, or export it with other constraints."
            )


def _choose_others(
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


def _may_not_end(call: CallModule) -> bool:
    """Return whether there is a loop that may not end for values that it is not made for."""
    if not mentions(call.module, [b"while"]):
        return False
    with open_module(call.module) as module:
        loops = (op for op in walk(module) if op.name == "stablehlo.while")
        return any(read_loop(loop, "").counter is None for loop in loops)


class _Trial:
    """A function with random inputs."""

    def __init__(
        self,
        signature: Signature,
        exported: export.Exported,
        call: CallModule,
        buckets: BatchBuckets,
        params: Any,
    ) -> None:
        self._signature, self._call, self._buckets = signature, call, buckets
        self._exported = exported
        self._params = tree_util.tree_leaves(params)
        self._avals = exported.in_avals
        require_own_runtime("whether batch_buckets may pad the function")
        self._function = LimitedCalls(self._run_flat, call)
        self._batches = [i for i, spec in enumerate(call.args) if buckets.lead(spec)]

    def run(self, sizes: Mapping[str, int]) -> None:
        """Compare the results.

        Raises:
            StructureError: they are not the same.
        """
        random = np.random.default_rng(_SEED)
        rows = self._fewer(sizes)
        for kind in (RANDOM, HUGE, "nan"):
            leaves = [draw(spec, kind, sizes, random) for spec in self._call.args]
            padded = self._results(self._repeated(leaves, rows[0]))
            self._compare(padded, self._results(leaves), rows[0], exact=True)
            if kind != RANDOM:
                continue
            for count in rows:
                if accepts_sizes(self._call, {**sizes, self._buckets.symbol: count}):
                    some = [x[:count] if i in self._batches else x for i, x in enumerate(leaves)]
                    whole = self._results(self._repeated(leaves, count))
                    self._compare(whole, self._results(some), count, exact=False)

    def _repeated(self, leaves: Sequence[Any], rows: int) -> list[Any]:
        """The inputs with the last of some rows in place of all that come after it."""
        repeated = list(leaves)
        for index in self._batches:
            batch = leaves[index]
            last = np.repeat(batch[rows - 1 : rows], len(batch) - rows, axis=0)
            repeated[index] = np.concatenate([batch[:rows], last])
        return repeated

    def _fewer(self, sizes: Mapping[str, int]) -> list[int]:
        """Return an odd and an even number of rows, of about half of the bucket.

        They are some that the function takes, if there are any.
        """
        size = sizes[self._buckets.symbol]
        near = sorted(range(1, min(size, _MAX_ROWS)), key=lambda rows: abs(rows - (size + 1) // 2))
        taken = [n for n in near if accepts_sizes(self._call, {**sizes, self._buckets.symbol: n})]
        first = [next((n for n in taken if n % 2 == odd), None) for odd in (1, 0)]
        return [n for n in first if n is not None] or near[:1]

    def _results(self, leaves: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        params = map(to_physical, self._params)
        return [
            np.asarray(result) for result in self._function(*params, *leaves[len(self._params) :])
        ]

    def _run_flat(self, *leaves: Any) -> list[Any]:
        logical = [to_logical(leaf, aval) for leaf, aval in zip(leaves, self._avals, strict=True)]
        return [to_physical(result) for result in call_flat(self._exported)(*logical)]

    def _compare(
        self,
        padded: Sequence[np.ndarray[Any, Any]],
        other: Sequence[np.ndarray[Any, Any]],
        rows: int,
        *,
        exact: bool,
    ) -> None:
        for name, index in self._signature.outputs.items():
            ours, theirs = padded[index], other[index]
            if self._buckets.lead(self._call.results[index]):
                ours, theirs = ours[:rows], theirs[:rows]
            if not are_close(ours, theirs, 0 if exact else _rounding(ours.dtype)):
                raise self._mixed(name, rows, exact=exact)

    def _mixed(self, name: str, rows: int, *, exact: bool) -> StructureError:
        on = "the other rows of the batch" if exact else "the number of rows in the batch"
        return StructureError(
            f"The output {name} of {self._signature.key} depends on {on}: its first {rows} rows "
            "change when rows are added, in JAX with random inputs. So padded batches would have "
            "wrong results. To do: leave batch_buckets out; or, where it normalizes over the "
            "batch, export the function as it is used after training."
        )


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
