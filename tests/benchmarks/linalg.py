"""Linear algebra that runs everywhere, against JAX's LAPACK."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.measure import Ratio, compare, seconds

_ORDER = 256
# What is aimed at; the others are reported.
_LIMITS = {"cholesky": 5.0, "qr": 5.0, "lu": 5.0, "solve": 5.0}
_COMPILE_SECONDS = 10.0
# Vectors are unique up to their signs at most, so there only the values are compared.
_VALUES = {"eigh": 0, "svd": 1}


def linalg() -> Iterator[Ratio]:
    """Calls of `tf.function(bridge.convert(f))`, and the seconds that the first of them takes."""
    import jax
    import numpy as np
    import tensorflow as tf

    import bridge

    for name, (function, arguments) in _cases().items():
        expected = jax.jit(function)
        converted = tf.function(bridge.convert(function), autograph=False)
        tensors = [tf.constant(x) for x in arguments]
        arrays = [jax.numpy.asarray(x) for x in arguments]
        started = time.perf_counter()
        results = tf.nest.flatten(converted(*tensors))
        first = time.perf_counter() - started
        _agree(name, results, [np.asarray(x) for x in jax.tree.leaves(expected(*arrays))])
        yield Ratio(
            f"{name}, N = {_ORDER}: seconds of the first call, traced and compiled",
            (first,),
            _COMPILE_SECONDS if name in _LIMITS else None,
            f"{first:.3g} s",
            "",
        )
        yield compare(
            f"{name}, N = {_ORDER}: tf.function of convert / jax.jit with LAPACK",
            _timed(lambda f=converted, x=tensors: f(*x)),
            _timed(lambda f=expected, x=arrays: jax.block_until_ready(f(*x))),
            limit=_LIMITS.get(name),
            unit="ms",
            scale=1e3,
            rounds=9,
        )


def _cases() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    draw = np.random.default_rng(0)
    general = draw.standard_normal((_ORDER, _ORDER)).astype(np.float32)
    right = draw.standard_normal((_ORDER, 1)).astype(np.float32)
    positive = general @ general.T + _ORDER * np.eye(_ORDER, dtype=np.float32)
    return {
        "cholesky": (jnp.linalg.cholesky, (positive,)),
        "qr": (lambda a: tuple(jnp.linalg.qr(a)), (general,)),
        "lu": (lambda a: tuple(lax.linalg.lu(a)), (general,)),
        "solve": (jnp.linalg.solve, (general, right)),
        "inv": (jnp.linalg.inv, (general,)),
        "eigh": (lambda a: tuple(jnp.linalg.eigh(a)), (positive,)),
        "svd": (lambda a: tuple(jnp.linalg.svd(a)), (general,)),
    }


def _timed(action: Callable[[], object]) -> Callable[[], float]:
    return lambda: seconds(action, repeat=5)


def _agree(name: str, results: list[Any], expected: list[Any]) -> None:
    """A comparison of two different computations would mean nothing."""
    import numpy as np

    pairs = list(zip(results, expected, strict=True))
    for result, wanted in [pairs[_VALUES[name]]] if name in _VALUES else pairs:
        atol = 1e-2 * np.abs(wanted).max()
        np.testing.assert_allclose(result, wanted, atol=atol, err_msg=f"{name} differs")
