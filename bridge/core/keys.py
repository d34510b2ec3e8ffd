"""Typed PRNG keys, which are their key data outside of JAX."""

from __future__ import annotations

from typing import Any

import jax

from xla_call_module.errors import DtypeError

__all__ = ["KEY_DTYPES", "key_dtype", "to_logical", "to_physical"]

# https://docs.jax.dev/en/latest/jax.random.html#jax.random.key, by what JAX prints of its dtype.
KEY_DTYPES = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
_IMPLEMENTATIONS = tuple(KEY_DTYPES.values())


def key_dtype(text: str) -> Any:
    """The dtype that JAX prints as one of `KEY_DTYPES`."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=KEY_DTYPES[text])).dtype


def to_logical(value: Any, aval: Any) -> Any:
    """A value as JAX has it: where the aval is a typed PRNG key, of key data.

    Raises:
        DtypeError: it is a key of another implementation than JAX has by itself.
    """
    if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return value
    for name in _IMPLEMENTATIONS:
        if jax.eval_shape(lambda name=name: jax.random.key(0, impl=name)).dtype == aval.dtype:
            return jax.random.wrap_key_data(value, impl=name)
    raise DtypeError(
        f"A typed PRNG key has the dtype {aval.dtype}; known are those of "
        f"{', '.join(_IMPLEMENTATIONS)}. To do: pass its jax.random.key_data instead."
    )


def to_physical(value: Any) -> Any:
    """The key data of a typed PRNG key, anything else as it is."""
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(value)
    return value
