"""How many functions are right in TensorFlow, converted by JAX's own converter and by ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tests.benchmarks.measure import Ratio


def migration() -> Iterator[Ratio]:
    """Functions of the matrix of one device, called eagerly: those that are not right, of all."""
    from jax.experimental import jax2tf as theirs

    from bridge import jax2tf as ours
    from tests.matrix.functions import CASES

    cases = [case for case in CASES if _is_plain(case)]
    for name, chosen in (
        ("static sizes", [case for case in cases if case.shapes is None]),
        ("symbolic sizes", [case for case in cases if case.shapes is not None]),
    ):
        wrong, peer = (_wrong(each.convert, chosen) for each in (ours, theirs))
        yield Ratio(
            f"functions that are not right, {name}: jax2tf of bridge / of JAX",
            (len(wrong) / max(len(peer), 1),),
            1.0,
            f"{len(wrong)} of {len(chosen)}",
            f"{len(peer)} of {len(chosen)}",
        )


def _is_plain(case: Any) -> bool:
    """Return whether it is for one device, without variables and keys, in the usual dtypes."""
    import jax

    return case.jit is jax.jit and not case.x64 and not case.keys and case.params is None


def _wrong(convert: Callable[..., Any], cases: Sequence[Any]) -> list[str]:
    """Return the names of the functions that fail, or compute something else than JAX."""
    return [case.name for case in cases if not _is_right(convert, case)]


def _is_right(convert: Callable[..., Any], case: Any) -> bool:
    import jax
    import tensorflow as tf

    expected = jax.tree.leaves(jax.jit(case.function)(*case.args))
    try:
        converted = convert(case.function, polymorphic_shapes=case.shapes)
        found = tf.nest.flatten(converted(*case.args))
        arrays = [np.asarray(value) for value in found]
    except Exception:  # noqa: BLE001 - whatever JAX, TensorFlow or a converter raises
        return False
    pairs = zip(arrays, map(np.asarray, expected), strict=True)
    return all(_is_close(*pair, case.tolerance.relative) for pair in pairs)


def _is_close(found: Any, expected: Any, tolerance: float) -> bool:
    if expected.dtype.kind not in "fcV":
        return bool(np.array_equal(found, expected))
    kind = np.complex128 if expected.dtype.kind == "c" else np.float64
    scale = float(np.max(np.abs(expected.astype(kind)), initial=1.0, where=np.isfinite(expected)))
    return np.allclose(
        found.astype(kind), expected.astype(kind),
        rtol=tolerance, atol=tolerance * scale, equal_nan=True,
    )  # fmt: skip
