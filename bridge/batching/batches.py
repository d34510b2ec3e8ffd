"""A loaded signature called for many elements at once: stacked, padded, called, taken apart.

JAX compiles a function for each size that it meets, so that batches of any size would be compiled
again and again. Here a batch is padded to one of few sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import tree_util

from bridge.batching.batch_sizes import parse_buckets
from bridge.batching.trial import Candidate, are_close, try_rows
from bridge.core._jax import broken_size_constraint
from bridge.core.keys import to_physical
from bridge.core.trees import with_text_keys
from bridge.loading.loaded import LoadedSignature
from xla_call_module.dimensions import evaluate, symbols
from xla_call_module.errors import StructureError
from xla_call_module.tracebacks import warn

# The message of the shape assertions that `jax.export` makes of constraints.
# Without buckets, a batch has as many elements as a power of two up to this one, or more batches.
_MAX_DOUBLINGS = 16
# By which part of its largest number a result may differ from one run of a program to the next.
_MAX_DIFFERENCE = 1e-4
# How many kinds of batches are remembered as those that the module refuses.
_MAX_REFUSALS = 1024

# For each leaf of an element its shape and dtype, and where it belongs among the arguments.
_Kind = tuple[Any, ...]


class BatchedSignature:
    """A function of one element, called for many of them at once.

    Every row of a batch must be computed for itself, which is tried with random ones before the
    first batch, and with that batch: a batch is filled up with copies of its last element,
    whose results are dropped.
    """

    def __init__(
        self,
        signature: LoadedSignature,
        *,
        buckets: Sequence[int] | None = None,
        largest: int | None = None,
    ) -> None:
        """Take a loaded signature."""
        self._signature = signature
        self._buckets = None if buckets is None else parse_buckets(buckets)
        self._largest = largest
        self._refused: dict[_Kind, str] = {}
        self._is_tried = False
        self._shown: set[frozenset[str]] = set()

    def __call__(
        self, elements: Sequence[Any], shared: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """The result for each element, as a pytree of numpy arrays."""
        shared = dict(shared or {})
        batch = self._batch_dimension(shared)
        sizes = self._candidates(batch)
        if sizes != (1,):
            self._check_rows(batch, frozenset(shared))
        groups: dict[_Kind, list[int]] = {}
        arguments = []
        for index, element in enumerate(elements):
            leaves, tree = self._flatten(element, shared)
            arguments.append(leaves)
            kind = (tree, *((leaf.shape, _dtype_of(leaf)) for leaf in leaves))
            groups.setdefault(kind, []).append(index)
        results: list[Any] = [None] * len(arguments)
        for kind, members in groups.items():
            while members:
                rows = self._run_some([arguments[i] for i in members], kind, sizes, shared)
                for index, row in zip(members, rows, strict=False):
                    results[index] = row
                members = members[len(rows) :]
        return results

    @cached_property
    def _structures(self) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """The positional arguments after the parameters, and the keyword arguments."""
        exported, has_params = self._signature.exported, self._signature.binding.params is not None
        leaves = range(len(exported.in_avals))
        args, kwargs = tree_util.tree_unflatten(exported.in_tree, leaves)
        return tuple(args[int(has_params) :]), kwargs

    def _batch_dimension(self, shared: Mapping[str, Any]) -> Any:
        """The first dimension of all inputs that are not shared, and of all results."""
        key, inputs = self._signature.key, self._signature.inputs
        if unknown := [name for name in shared if name not in inputs]:
            raise StructureError(
                f"{key} has no input {unknown[0]!r}; expected some of {', '.join(inputs) or 'none'}"
                " as arguments that all elements share."
            )
        own = {name: spec.shape for name, spec in inputs.items() if name not in shared}
        if not own:
            raise StructureError(
                f"{key} has no input that differs from element to element. To do: leave one of "
                "them out of the shared inputs."
            )
        batch = next(iter(own.values()))[:1]
        for name, shape in own.items():
            if not shape or shape[:1] != batch:
                raise StructureError(
                    f"The input {name} of {key} has shape {_text(shape)}, and {next(iter(own))} "
                    f"has {_text(next(iter(own.values())))}: the first dimension of all of them "
                    "must be the batch. To do: pass what all elements share as an argument of its "
                    f"own, such as inference_args={{{name!r}: ...}}."
                )
        for name, spec in self._signature.outputs.items():
            if spec.shape[:1] != batch:
                raise StructureError(
                    f"The output {name} of {key} has shape {_text(spec.shape)}, without the batch, "
                    f"{batch[0]}, as its first dimension, so that elements have no result of their "
                    "own. To do: export a function that returns a row for each row."
                )
        return batch[0]

    def _check_rows(self, batch: Any, shared: frozenset[str]) -> None:
        """Refuse a function that does not compute each row for itself; tried once."""
        if shared in self._shown:
            return
        signature, key = self._signature, self._signature.key
        inputs, exported = signature.binding.inputs, signature.exported
        own = tuple(index for name, index in inputs.items() if name not in shared)
        candidate = Candidate(exported, None, str(batch), own, signature.params)
        difference, reason = try_rows(candidate)
        if difference is not None:
            outputs = {index: name for name, index in signature.binding.outputs.items()}
            raise StructureError(
                f"A row of the output {outputs[difference.index]} of {key} "
                f"{difference.consequence}, as JAX computes it of {difference.kind} inputs. So "
                "results would depend on which elements happen to come together. To do: "
                f"{difference.remedy}; or have it called for one element at a time, with "
                "batch_buckets=(1,)."
            )
        if reason:
            warn(
                f"Whether {key} computes each row of a batch for itself was not tried: {reason} "
                "To do: compare its results for single elements with those of batches."
            )
        self._shown.add(shared)

    def _candidates(self, batch: Any) -> tuple[int, ...]:
        """The sizes that batches may have, in order."""
        if self._buckets is not None:
            return self._buckets
        if isinstance(batch, int):
            return (batch,)
        names, powers = symbols(str(batch)), [1 << n for n in range(_MAX_DOUBLINGS + 1)]
        if len(names) == 1:
            (name,) = names
            sizes = {evaluate(str(batch), {name: power}) for power in powers}
            powers = sorted(size for size in sizes if size)
        if self._largest is None:
            return tuple(powers)
        return tuple(sorted({*powers, self._largest}))

    def _run_some(
        self,
        elements: Sequence[list[Any]],
        kind: _Kind,
        sizes: Sequence[int],
        shared: Mapping[str, Any],
    ) -> list[Any]:
        """The results of all elements, or of the first ones where no size holds all of them.

        The smallest size that does is taken, if the module does not refuse it.
        """
        kind = (*kind, *((name, np.shape(value)) for name, value in shared.items()))
        upwards = [size for size in sizes if size >= len(elements)]
        downwards = [size for size in reversed(sizes) if size < len(elements)]
        reason, tree = "", kind[0]
        for size in (*upwards, *downwards):
            if known := self._refused.get((size, kind)):
                reason = reason or known
                continue
            rows = elements[:size]
            try:
                arrays, results = self._run(tree, _filled(rows, rows[-1], size), shared)
            except (StructureError, jax.errors.JaxRuntimeError) as error:
                refusal = _refusal(error)
                self._remember((size, kind), refusal)
                reason = reason or refusal
                continue
            self._try_others(tree, rows, arrays, shared)
            return [
                tree_util.tree_unflatten(results, [array[row] for array in arrays])
                for row in range(len(rows))
            ]
        raise StructureError(
            f"{self._signature.key} takes no batch of the sizes {_shortened(sizes)}: "
            f"{reason.rstrip('.')}. To do: pass elements that it takes, or "
            "batch_buckets= that it takes."
        )

    def _remember(self, case: _Kind, refusal: str) -> None:
        if len(self._refused) >= _MAX_REFUSALS:
            self._refused.clear()
        self._refused[case] = refusal

    def _flatten(self, element: Any, shared: Mapping[str, Any]) -> tuple[list[Any], Any]:
        """An element as the leaves and the structure of the (args, kwargs) of a call."""
        leaves, tree = tree_util.tree_flatten(self._arguments(element, shared))
        return [leaf if _is_key(leaf) else np.asarray(leaf) for leaf in leaves], tree

    def _arguments(
        self, element: Any, shared: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names = [name for name in self._signature.inputs if name not in shared]
        args, kwargs = self._structures
        if not shared and not kwargs and len(args) == 1 and _is_like(element, args[0]):
            return (element,), {}
        if isinstance(element, Mapping) and element.keys() == set(names):
            return (), dict(element)
        if shared and len(names) == 1 and _is_like(element, 0):
            return (), {names[0]: element}
        if not shared and not kwargs and isinstance(element, tuple) and _is_like(element, args):
            return element, {}
        raise StructureError(
            f"An element for {self._signature.key} is {_described(element)}; expected a dict of "
            f"its inputs {', '.join(names)}, each without the batch dimension"
            f"{self._expected_structure(shared)}."
        )

    def _expected_structure(self, shared: Mapping[str, Any]) -> str:
        args, kwargs = self._structures
        if shared or kwargs:
            return ""
        if len(args) == 1:
            structure = tree_util.tree_structure(args[0])
            return f", or its argument, {str(structure).removeprefix('PyTreeDef')}"
        return f", or a tuple of its {len(args)} arguments"

    def _run(
        self, tree: Any, rows: Sequence[list[Any]], shared: Mapping[str, Any]
    ) -> tuple[list[Any], Any]:
        """The leaves of the results, for a whole batch, and their structure."""
        columns = [_stack(column) for column in zip(*rows, strict=True)]
        args, kwargs = tree_util.tree_unflatten(tree, columns)
        leaves, results = tree_util.tree_flatten(self._signature(*args, **kwargs, **shared))
        # Copies, since what JAX gives cannot be written to.
        return [leaf if _is_key(leaf) else np.array(leaf) for leaf in leaves], results

    def _try_others(
        self,
        tree: Any,
        elements: Sequence[list[Any]],
        arrays: Sequence[Any],
        shared: Mapping[str, Any],
    ) -> None:
        """Refuse a function whose results change beside other elements; tried once."""
        size = len(arrays[0]) if arrays else 0
        if self._is_tried or size < 2 or _are_equal(elements[0], elements[-1]):
            return
        # The same program, with the first element wherever there is room, the last row at least.
        kept = min(len(elements), size - 1)
        others, _ = self._run(tree, _filled(elements[:kept], elements[0], size), shared)
        for name, one, other in zip(self._signature.outputs, arrays, others, strict=False):
            pair = [np.asarray(to_physical(rows[:kept])) for rows in (one, other)]
            if not are_close(pair[0], pair[1], _MAX_DIFFERENCE):
                raise StructureError(
                    f"A row of the output {name} of {self._signature.key} changes with the other "
                    "rows of the batch, so that results would depend on which elements happen to "
                    "come together. To do: export a function that computes each row for itself, "
                    "such as a network that does not normalize over the batch."
                )
        self._is_tried = True


def _refusal(error: Exception) -> str:
    """Return the reason of a violated constraint on a size; any other error is raised again."""
    cause: BaseException | None = error
    while cause is not None:
        if constraint := broken_size_constraint(cause):
            return constraint
        cause = cause.__cause__
    if not isinstance(error, StructureError):
        raise error
    return str(error)


def _filled(elements: Sequence[list[Any]], filler: list[Any], size: int) -> list[list[Any]]:
    return [*elements, *[filler] * (size - len(elements))]


def _are_equal(one: Sequence[Any], other: Sequence[Any]) -> bool:
    pairs = zip(map(to_physical, one), map(to_physical, other), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _stack(column: Sequence[Any]) -> Any:
    return jax.numpy.stack(column) if _is_key(column[0]) else np.stack(column)


def _is_key(value: Any) -> bool:
    """Return whether it is an array of typed PRNG keys, which numpy has not."""
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


def _dtype_of(leaf: Any) -> Any:
    """The dtype that JAX takes an array for."""
    return leaf.dtype if _is_key(leaf) else jax.dtypes.canonicalize_dtype(leaf.dtype)


def _is_like(element: Any, expected: Any) -> bool:
    """Return whether a pytree has the structure of another one, whose dict keys may be text."""
    structure = tree_util.tree_structure(element)
    wanted: Any = tree_util.tree_structure(expected)  # the stub of its class lacks `==`
    return bool(wanted in (structure, with_text_keys(structure)))


def _text(shape: Sequence[Any]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _shortened(sizes: Sequence[int]) -> str:
    text = list(map(str, sizes))
    return ", ".join(text if len(text) <= 6 else [*text[:3], "...", text[-1]])


def _described(element: Any) -> str:
    if isinstance(element, Mapping):
        return f"a dict of {', '.join(map(str, element)) or 'nothing'}"
    if isinstance(element, tuple | list):
        return f"a {type(element).__name__} of {len(element)}"
    return f"a {type(element).__name__}"
