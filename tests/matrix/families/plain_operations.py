"""Files of TensorFlow's own operations, which its optimizer must not change.

Each program is one that Grappler of TensorFlow 2.21 computes otherwise where it sees it. A loop
that depends on constants alone TensorFlow would run on the stack before the first call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.matrix.case import ROUNDING, Case
from tests.matrix.families import networks


def _row(*numbers: Any, dtype: Any = np.float32) -> Any:
    return np.array(numbers, dtype)


_WEIGHTS = [np.random.default_rng(n).normal(size=s) for n, s in enumerate([(8, 16), (16, 4)])]
_WEIGHTS = [weights.astype(np.float32) for weights in _WEIGHTS]
_IMAGES = np.random.default_rng(3).normal(size=(1, 6, 6, 3)).astype(np.float32)
_KERNEL = np.random.default_rng(4).normal(size=(3, 3, 3, 4)).astype(np.float32)


def _dense(x: Any) -> Any:
    return jax.nn.relu(x @ _WEIGHTS[0] + 1.0) @ _WEIGHTS[1] + 2.0


def _convolved(x: Any) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    made = lax.conv_general_dilated(x, _KERNEL, (1, 1), "SAME", dimension_numbers=numbers)
    return jax.nn.relu(made + np.float32(0.5))


_WITH_NAN = np.ones((2, 8), np.float32)
_WITH_NAN[1, 3] = np.nan
_HOLED = np.where(_IMAGES.max() == _IMAGES, np.nan, _IMAGES)
_BIG = np.float32(12582912)
# Functions of one argument, and the argument.
PROGRAMS: Mapping[str, tuple[Callable[[Any], Any], Any]] = {
    "maximum with a multiple": (lambda x: jnp.maximum(x, 2.0 * x), _row(-1, 0.5, 3)),
    "minimum with a multiple": (lambda x: jnp.minimum(0.5 * x, x), _row(-1, 0.5, 3)),
    "constants that cancel": (lambda x: (x + _BIG) - _BIG, _row(0.4, 1.6, 3.2)),
    "constants before": (lambda x: (_BIG + x) - _BIG, _row(0.4, 1.6, 3.2)),
    "factors that overflow": (lambda x: x * 256 * 256, _row(0, 0.001, dtype=np.float16)),
    "divisors that overflow": (lambda x: x / 1e30 / 1e30 * 1e30, _row(1e30, 3)),
    "maximum of logarithms": (lambda x: jnp.max(jnp.log(x), 1), _row([-2, 0.5, 0.25])),
    "maximum of roots": (lambda x: jnp.max(jnp.sqrt(x), 1), _row([-2, 0.5, 0.25])),
    "minimum of reciprocal roots": (lambda x: jnp.min(lax.rsqrt(x), 1), _row([-2, 0.5, 0.25])),
    "sums regrouped": (lambda x: _row(1, 1) + (_row(-1e10, -1e10) + x), _row([1e10, 1e10])),
    "sums of one shape": (lambda x: (x[0] + x[1]) + (x[2] + x[3]), _row(1, 1e10, -1e10, 1)),
    "squared difference of uint8": (lambda x: (x - x[::-1]) ** 2, _row(3, 5, dtype=np.uint8)),
    "squared difference of int16": (lambda x: (x - x[::-1]) ** 2, _row(-3, 5, dtype=np.int16)),
    "dense layers of NaN": (_dense, _WITH_NAN),
    "convolution of NaN": (_convolved, _HOLED),
    "complement of an order": (lambda x: ~(x < 1), _row(np.nan, 0, 2)),
    "product with zero": (lambda x: x * 0.0, _row(np.inf, np.nan, -3)),
    "difference from itself": (lambda x: x - x, _row(np.inf, np.nan, -3)),
    "quotient by itself": (lambda x: x / x, _row(0, np.inf, np.nan, -3)),
    "difference from zero": (lambda x: 0.0 - x, _row(0, -0.0)),
    "zero less unsigned": (lambda x: jnp.uint8(0) - x, _row(0, 3, dtype=np.uint8)),
    "root by a power": (lambda x: x**0.5, _row(-np.inf, -0.0, 4)),
    "power of zero": (lambda x: x**0.0, _row(np.nan, np.inf, 0)),
    "common factor": (lambda x: x * 3e38 - x * 2.9e38, _row(1, 0.5)),
    "abs of a square root": (lambda x: jnp.abs(jnp.sqrt(x)), _row(-1, 4)),
    "conjugate of a transpose": (lambda x: jnp.conj(x.T), _row([1 + 2j, 3j], dtype=np.complex64)),
}


def _sums(count: int) -> Any:
    return lax.scan(lambda c, i: (jnp.sin(c) + i, None), 0.0, jnp.arange(float(count)))[0]


LOOPS: Mapping[str, Callable[[Any], Any]] = {
    "loop": lambda x: x + _sums(20000),
    "loop of loops": lambda x: x + lax.fori_loop(0, 50, lambda i, c: c + _sums(400), 0.0),
    "loop in a branch": lambda x: lax.cond(x[0] > 0, lambda: x + _sums(20000), lambda: x),
    "loop that ends by a test": lambda x: (
        x
        + lax.while_loop(lambda c: c[0] < 20000, lambda c: (c[0] + 1, jnp.sin(c[1]) + 1), (0, 0.0))[
            1
        ]
    ),
}


def _programs(*arguments: Any) -> Any:
    return [run(x) for (run, _), x in zip(PROGRAMS.values(), arguments, strict=True)]


def _loops(x: Any) -> Any:
    return [run(x) for run in LOOPS.values()]


_IN_PLAIN: Mapping[str, Any] = {"operations": "tensorflow", "tolerance": ROUNDING}
CASES = (
    Case(
        "plain_rewritten_programs", _programs, tuple(x for _, x in PROGRAMS.values()),
        gradient=False, **_IN_PLAIN,
    ),
    Case("plain_loops_of_constants", _loops, (_row(1, 2),), gradient=False, **_IN_PLAIN),
    *(
        dataclasses.replace(case, name=f"plain_{case.name}", operations="tensorflow")
        for case in networks.CASES
        if case.params is not None
    ),
)  # fmt: skip
