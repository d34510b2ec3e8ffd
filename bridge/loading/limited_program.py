"""The program that runs functions in JAX for `limited_calls`, on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import export

from bridge.core.worker_messages import Answer, answer_requests, describe_arrays, read_arrays


def compile_strictly(
    function: Callable[..., Any], static_argnums: Sequence[int] = ()
) -> Callable[..., Any]:
    """Return the function compiled by XLA, with the rounding to each dtype that it asks for.

    By default XLA computes what is of bfloat16 or float16 in float32 and leaves roundings out, here
    and there as it fuses operations; so no two programs of one function have the same numbers.
    """
    return jax.jit(
        function,
        static_argnums=tuple(static_argnums),
        compiler_options={"xla_allow_excess_precision": False},
    )


class _Functions:
    """The functions by their numbers."""

    def __init__(self) -> None:
        self._functions: dict[int, Any] = {}

    def load(self, parts: Sequence[bytes], number: int) -> Answer:
        """Take a serialized `Exported`."""
        function = export.deserialize(bytearray(parts[0])).call
        self._functions[number] = compile_strictly(function)
        return {}, []

    def run(self, parts: Sequence[bytes], number: int, arrays: Sequence[Any]) -> Answer:
        """Return the results for the leaves of the arguments."""
        leaves = read_arrays(arrays, parts).values()
        results = jax.tree.leaves(self._functions[number](*leaves))
        named = {str(index): np.asarray(result) for index, result in enumerate(results)}
        return {"arrays": describe_arrays(named)}, [*named.values()]


def main() -> None:
    """Answer requests until there are no more."""
    jax.config.update("jax_enable_x64", True)  # the functions have dtypes of their own
    answer_requests(_Functions())
