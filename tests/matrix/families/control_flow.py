"""Control flow, and rules of differentiation of one's own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.matrix.case import Case, family, floats

_X = floats(3, 4)


def _scan(x: Any) -> Any:
    return lax.scan(lambda total, row: (jnp.sin(total) + row, total), jnp.zeros(4), x)


def _reverse_scan(x: Any) -> Any:
    return lax.scan(lambda total, row: (total * row, total), jnp.ones(4), x, reverse=True, unroll=2)


def _nested(x: Any) -> Any:
    def outer(total: Any, row: Any) -> Any:
        inner = lax.fori_loop(0, 3, lambda i, value: jnp.cos(value) + i, row)
        return lax.cond(total.sum() > 1, lambda: total - inner, lambda: total + inner), inner[0]

    return lax.scan(outer, jnp.zeros(4), x)


def _batched_while(x: Any) -> Any:
    def grow(value: Any) -> Any:
        return lax.while_loop(lambda v: v < 10, lambda v: v * 1.5 + 1, value)

    return jax.vmap(grow)(x[:, 0])


def _while(x: Any) -> Any:
    return lax.while_loop(
        lambda state: state[1].sum() < 100, lambda state: (state[0] + 1, state[1] * 1.5), (0, x)
    )


def _custom_rule(x: Any) -> Any:
    @jax.custom_vjp
    def clipped(x: Any) -> Any:
        return x * 2

    clipped.defvjp(lambda x: (clipped(x), x), lambda x, ct: (jnp.clip(ct, -0.5, 0.5) + x,))
    return clipped(x)


def _custom_tangent(x: Any) -> Any:
    @jax.custom_jvp
    def floor(x: Any) -> Any:
        return jnp.floor(x)

    floor.defjvps(lambda tangent, _, x: tangent * x)
    return floor(x)


_OF_ROWS = {
    "scan": _scan,
    "reverse_scan": _reverse_scan,
    "nested_loops": _nested,
    "fori": lambda x: lax.fori_loop(0, 5, lambda i, total: total * 0.5 + x * i, x),
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda x: x * 2, lambda x: x - 1, x),
    "custom_rule": _custom_rule,
    "custom_tangent": _custom_tangent,
    "checkpoint": jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) @ x.T)),
    "jacobian_inside": lambda x: jax.jacfwd(lambda x: jnp.tanh(x).sum(1))(x),
}

CASES = (
    *family(_OF_ROWS, _X),
    Case("while", _while, (floats(3, low=1),), gradient=False),
    Case("batched_while", _batched_while, (_X,), gradient=False),
    Case("switch", lambda x, i: lax.switch(i, [jnp.sin, jnp.cos, lambda x: x * x], x),
         (_X, np.int32(1))),
    Case("map", lambda x: lax.map(lambda row: row / row.sum(), x), (floats(3, 4, low=0.5),)),
)  # fmt: skip
