"""The suite of JAX programs: a program is generated, sent on its ways, and compared."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from tests.fuzzing.programs import accuracy
from tests.fuzzing.programs.case import Case
from tests.fuzzing.programs.checks import RUNNERS, Found
from tests.fuzzing.programs.generating import generate
from tests.fuzzing.programs.outcomes import Outcome, of_exception
from tests.fuzzing.programs.program import Program
from xla_call_module.errors import InteropError

__all__ = ["clear", "generate", "run"]


def clear() -> None:
    """Forget what was compiled."""
    jax.clear_caches()
    tf.keras.backend.clear_session()


def run(program: Program) -> list[Outcome]:
    """Return what comes of each check of a program."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = Case(program, Path(folder))
        reason = _prepare(case)
        if reason:
            return [Outcome("export", "inapplicable", reason)]
        return [_check(case, name) for name in program.checks]


def _prepare(case: Case) -> str:
    """Return why JAX has nothing to compare with, if so; a lower order where it has no gradient."""
    try:
        case.exported.mlir_module_serialized  # noqa: B018 - JAX exports it
        for sizes in case.batches:
            if sizes:
                _shapes_agree(case, sizes)
    except Exception as error:  # noqa: BLE001 - whatever JAX raises
        return _in_short(error)
    if not case.inputs or not case.results:
        case.order = 0
    while True:
        try:
            case.reference(case.batches[0], case.order)
        except Exception as error:  # noqa: BLE001 - whatever JAX raises
            if not case.order:
                return _in_short(error)
            case.order -= 1
        else:
            return ""


def _fails_in_jax(case: Case) -> str:
    """Return why JAX itself cannot run the export, or export the gradients that were asked for."""
    exported = case.exported
    try:
        for sizes in case.batches:
            args, kwargs = case.arguments(sizes)
            jax.block_until_ready(exported.call(*args, **kwargs))
        for _ in range(case.order):
            exported = exported.vjp()
    except Exception as error:  # noqa: BLE001 - whatever JAX raises
        return _in_short(error)
    return ""


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _shapes_agree(case: Case, sizes: Any) -> None:
    """The export must fit the sizes, in JAX's own eyes."""
    args, kwargs = case.arguments(sizes)
    found = jax.eval_shape(case.exported.call, *args, **kwargs)
    shapes = [
        [(leaf.shape, leaf.dtype) for leaf in jax.tree_util.tree_leaves(tree)]
        for tree in (found, case.result_avals(sizes))
    ]
    if shapes[0] != shapes[1]:
        raise ValueError(f"JAX exports {shapes[0]} for {shapes[1]}")


def _check(case: Case, name: str) -> Outcome:
    compared = skipped = comparisons = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ways = RUNNERS[name](case)
        while True:
            try:
                found = next(ways, None)
            except Exception as error:  # noqa: BLE001 - sorted into refusals and crashes
                refused = isinstance(error, InteropError)
                if not refused and (reason := _fails_in_jax(case)):
                    return Outcome(name, "inapplicable", f"fails in JAX as well: {reason}")
                counts = {"compared": compared, "skipped": skipped, "comparisons": comparisons}
                return of_exception(name, error, **counts)
            if found is None:
                break
            difference = compare(case, found)
            compared += difference.size
            skipped += difference.skipped
            comparisons += sum(map(len, found.orders))
            if difference.text:
                return Outcome(name, "wrong", difference.text, compared, skipped, (), comparisons)
    warned = tuple(dict.fromkeys(str(w.message)[:100] for w in caught if _is_ours(w)))
    return Outcome(name, "right", "", compared, skipped, warned, comparisons)


def _is_ours(warning: warnings.WarningMessage) -> bool:
    return "bridge" in warning.filename or issubclass(warning.category, UserWarning)


def compare(case: Case, found: Found) -> accuracy.Difference:
    """The first difference; a tolerance is computed only where numbers differ at all."""
    order = len(found.orders) - 1
    expected = case.reference(found.sizes, order)
    spreads: Any = None
    size = skipped = 0
    for level, (values, wanted) in enumerate(zip(found.orders, expected, strict=True)):
        if len(values) != len(wanted):
            text = f"{found.label}: {len(values)} results for {len(wanted)}"
            return accuracy.Difference(text, 0, 0)
        for index, (one, other) in enumerate(zip(values, wanted, strict=True)):
            value = np.zeros_like(other) if one is None and level else one
            difference = accuracy.difference(value, other)
            if difference.text:
                spreads = spreads or case.spreads(found.sizes, order)
                difference = accuracy.difference(value, other, spreads[level][index])
            size += difference.size
            skipped += difference.skipped
            if difference.text:
                where = f"{found.label} {dict(found.sizes)} order {level} index {index}"
                none = " (None)" if one is None else ""
                text = f"{where}{none}: {difference.text}"
                return accuracy.Difference(text, skipped, size)
    return accuracy.Difference("", skipped, size)


def simpler(program: Program) -> Iterator[Program]:
    """No more than what the reducer knows by itself."""
    yield from ()
