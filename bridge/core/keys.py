"""Typed PRNG keys, which are their key data outside of JAX."""

from __future__ import annotations

from typing import Any

import jax

from xla_call_module.errors import DtypeError

# https://docs.jax.dev/en/latest/jax.random.html#jax.random.key, by what JAX prints of its dtype.
KEY_DTYPES = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}
_IMPLEMENTATIONS = tuple(KEY_DTYPES.values())


def is_key(value: Any) -> bool:
    """Return whether a JAX array, a tracer, an aval or a spec is of typed PRNG keys."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def key_data_aval(aval: Any) -> Any:
    """Return shape and dtype of the key data of what is typed PRNG keys; anything else as it is."""
    return jax.eval_shape(jax.random.key_data, aval) if is_key(aval) else aval


def key_dtype(text: str) -> Any:
    """Return the dtype that JAX prints as one of `KEY_DTYPES`."""
    return jax.eval_shape(lambda: jax.random.key(0, impl=KEY_DTYPES[text])).dtype


def to_logical(value: Any, aval: Any) -> Any:
    """Return a value as JAX has it: where the aval is a typed PRNG key, made of its key data."""
    if not is_key(aval):
        return value
    for name in _IMPLEMENTATIONS:
        if jax.eval_shape(lambda name=name: jax.random.key(0, impl=name)).dtype == aval.dtype:
            return jax.random.wrap_key_data(value, impl=name)
    raise DtypeError(
        f"A typed PRNG key has the dtype {aval.dtype}; known are those of "
        f"{', '.join(_IMPLEMENTATIONS)}. To do: pass its jax.random.key_data instead."
    )


def to_physical(value: Any) -> Any:
    """Return the key data of typed PRNG keys, traced ones too; anything else as it is."""
    return jax.random.key_data(value) if isinstance(value, jax.Array) and is_key(value) else value
