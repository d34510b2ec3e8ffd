"""Functions of arrays that came out otherwise in a runtime than in JAX, and what tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import enable_x64, export

from tests.operations.artifacts import Artifact, Call
from tests.operations.judging import difference

_WIDE = ("int64", "uint64", "float64", "complex128")


@dataclass(frozen=True, slots=True)
class Program:
    """One function, with the arrays that it came out otherwise for.

    Attributes:
        function: of the arrays.
        arrays: numpy arrays.
        sizes: the symbolic shape of each array, or None where they are static.
        ulps: by how many units in the last place results may differ.
        zeros: whether the signs of zeros are compared.
    """

    function: Callable[..., Any]
    arrays: tuple[Any, ...]
    sizes: tuple[str | None, ...] | None = None
    ulps: float = 8.0
    zeros: bool = False

    def artifact(self, _: Path | None = None) -> Artifact:
        """Return what is exported of it, as the targets of `tests/operations` take it."""
        arrays = [np.asarray(array) for array in self.arrays]
        with enable_x64(any(array.dtype.name in _WIDE for array in arrays)):
            flat = lambda *args: jax.tree.leaves(self.function(*args))  # noqa: E731
            expected = [np.asarray(x) for x in jax.jit(flat)(*arrays)]
            specs = export.symbolic_args_specs(tuple(arrays), self.sizes)
            exported = export.export(jax.jit(flat), platforms=["cpu"])(*specs)
            serialized = bytes(exported.serialize())
        call = Call("reported", arrays, expected)
        return Artifact(serialized, [call], [0] * len(expected))

    def compare(self, found: list[Any]) -> list[str]:
        """Return what is said of each result that is not JAX's."""
        (call,) = self.artifact().calls
        said = [
            difference(
                np.asarray(one), wanted, ulps=self.ulps, dtype=wanted.dtype.name, each=True,
                zeros=self.zeros,
            )
            for one, wanted in zip(found, call.expected, strict=True)
        ]  # fmt: skip
        return [text for text in said if text]


def of(function: Callable[..., Any], *arrays: Any, **options: Any) -> Program:
    """A program, in one line of a table."""
    return Program(function, arrays, **options)


def check(target: Any, program: Program) -> None:
    """Have a target run a program, and compare."""
    (found,) = target.run(program, Path())
    assert program.compare(found) == []
