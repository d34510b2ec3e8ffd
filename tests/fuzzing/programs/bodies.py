"""Expressions for the bodies of branches, loops and nested functions."""

from __future__ import annotations

import random

_FLOATS = (
    "jnp.sin({x})", "jnp.tanh({x})", "{x} * 0.5", "{x} + 1", "{x} * {x}", "jax.nn.sigmoid({x})",
    "jnp.maximum({x}, 0)", "jnp.where({x} > 0, {x}, {x} * 0.1)", "jnp.abs({x})",
    "jnp.exp(-{x} * {x})", "{x} / (1 + jnp.abs({x}))", "jnp.log1p(jnp.abs({x}))", "jnp.flip({x})",
    "{x} - jnp.mean({x})", "jnp.square({x}) * 0.1", "-{x}", "jnp.sqrt(1 + {x} * {x})",
    "jnp.floor({x}) + {x}", "jax.jit(jnp.cos)({x})", "jax.nn.relu({x})", "jnp.minimum({x}, 1)",
    "jnp.zeros_like({x})", "{x}", "jnp.sort({x}.ravel()).reshape({x}.shape)",
)  # fmt: skip
_COMPLEX = ("{x} * 0.5", "{x} * {x}", "{x}.conj()", "{x} / (1 + jnp.abs({x}))", "{x} * 1j", "-{x}")
_INTEGERS = ("{x} + 1", "{x} * 2", "{x} // 2", "{x} % 3", "jnp.flip({x})", "jnp.minimum({x}, 4)",
             "jnp.sort({x}.ravel()).reshape({x}.shape)")  # fmt: skip


def expression(rng: random.Random, name: str, kind: str) -> str:
    """An expression of one or two steps that keeps shape and dtype."""
    texts = {"f": _FLOATS, "c": _COMPLEX}.get(kind, _INTEGERS)
    text = name
    for _ in range(rng.choice([1, 1, 2])):
        inner = f"({text})" if text != name else text
        text = rng.choice(texts).replace("{x}", inner)
    return text
