"""Several cases as one exported function, with what JAX computes of it: made once for all targets.

An artifact is a file in a folder that all processes of a run share.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
from jax import enable_x64, export

from tests.operations.case import Case
from tests.operations.operands import Array, elements, structured

_WIDE = ("int64", "uint64", "float64", "complex128")
# Arrays of these are float32 outside of the function: ONNX Runtime takes none from Python.
_CARRIED = ("bfloat16",)
_SIZES = (3, 1, 5)
# What is this loose is a series of many steps.
_SERIES = 16


def folder_of_this_table(parent: Path) -> Path:
    """Return the folder of artifacts that this JAX makes of these sources; those of others go.

    Args:
        parent: the folder that keeps it from one run to the next.
    """
    sources = [path.read_text() for path in sorted(Path(__file__).parent.rglob("*.py"))]
    versions = [sys.version, jax.__version__, jaxlib.__version__, np.__version__]
    settings = [os.environ.get("XLA_FLAGS"), *map(str, jax.config.values.items())]
    named, kept = (
        hashlib.sha256("\n".join(map(str, each)).encode()).hexdigest()[:12]
        for each in (sources, versions + settings)
    )
    for other in parent.glob("*"):
        if other.name != named:
            shutil.rmtree(other, ignore_errors=True)
    folder = parent / named / kept
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the function: of what kind its arguments are, they, and JAX's results."""

    kind: str
    arrays: list[Array]
    expected: list[Array]


@dataclass(frozen=True, slots=True)
class Artifact:
    """A function as it was exported, and its calls."""

    serialized: bytes
    calls: list[Call]
    owners: list[int]  # the case of each result


def precision(dtype: str) -> contextlib.AbstractContextManager[Any]:
    """Return JAX's mode for cases of a dtype."""
    return enable_x64(dtype in _WIDE)


@dataclass(frozen=True, slots=True)
class Batch:
    """Some cases of one form and dtype, which are one function."""

    cases: tuple[Case, ...]
    form: str
    dtype: str

    @property
    def name(self) -> str:
        """A name for files, and for the ids of tests."""
        names = "\n".join(case.name for case in self.cases)
        digest = hashlib.sha256(names.encode()).hexdigest()[:8]
        return f"{self.dtype}_{self.form}_{digest}".replace(" ", "_")

    def artifact(self, folder: Path) -> Artifact:
        """Return the artifact in a folder, which is made if it is not there."""
        path = folder / f"{self.name}.artifact"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            made = self._make()
            draft = path.with_suffix(f".{id(made)}")
            draft.write_bytes(pickle.dumps(made))
            draft.replace(path)
        artifact: Artifact = pickle.loads(path.read_bytes())
        return artifact

    def split(self) -> Iterator[Batch]:
        """Yield each case alone."""
        for case in self.cases:
            yield Batch((case,), self.form, self.dtype)

    def function(self) -> Callable[..., list[Any]]:
        """Return the function of the arrays of all cases, before its form."""
        return functools.partial(_run, self.cases, self.dtype)

    def arrays(self) -> list[tuple[str, list[Array]]]:
        """Return the kinds of arguments, and the arguments of all cases."""
        if self.form in ("one row", "empty"):
            count = {"one row": 1, "empty": 0}[self.form]
            return [("plain", self._of_kind("plain", count))]
        if self.form == "symbolic":
            return [(f"{count} rows", self._of_kind("plain", count)) for count in _SIZES]
        kinds: tuple[str, ...] = ("plain", "edges", "special")
        if all(case.elementwise or not case.operands for case in self.cases):
            kinds = ("edges",)
        elif self.form == "second gradient":
            kinds = ("plain",)
        found = [(kind, self._of_kind(kind, None)) for kind in kinds]
        if self.form == "vmap":
            found = [(kind, [np.stack([a, a[::-1] if a.ndim else a]) for a in arrays])
                     for kind, arrays in found]  # fmt: skip
        return found

    def _of_kind(self, kind: str, count: int | None) -> list[Array]:
        found: list[Array] = []
        for case in self.cases:
            if case.elementwise:
                found += elements(case.operands, self.dtype, count, few=case.loose >= _SERIES)
            else:
                found += [
                    structured(operand, self.dtype, kind, count, 5 * place)
                    for place, operand in enumerate(case.operands)
                ]
        return [_carried(array) for array in found]

    def _make(self) -> Artifact:
        with precision(self.dtype):
            function = transformed(self, self.function())
            calls = self.arrays()
            expected = [_results(jax.jit(function), arrays) for _, arrays in calls]
            specs = self._specs(calls[0][1])
            exported = export.export(jax.jit(function), platforms=["cpu"])(*specs)
            serialized = bytes(exported.serialize())
            owners = self._owners(function, specs)
        made = zip(calls, expected, strict=True)
        return Artifact(serialized, [Call(k, a, wanted) for (k, a), wanted in made], owners)

    def _specs(self, arrays: Sequence[Array]) -> list[Any]:
        free = [case.elementwise or operand.rows for case in self.cases
                for operand in case.operands]  # fmt: skip
        scope = export.SymbolicScope()
        symbol = export.symbolic_shape("b", scope=scope)
        return [
            jax.ShapeDtypeStruct(
                (*symbol, *array.shape[1:]) if self.form == "symbolic" and is_free else array.shape,
                array.dtype,
            )
            for array, is_free in zip(arrays, free, strict=True)
        ]

    def _owners(self, function: Callable[..., Any], specs: Sequence[Any]) -> list[int]:
        owners: list[int] = []
        start = 0
        for place, case in enumerate(self.cases):
            alone = Batch((case,), self.form, self.dtype)
            mine = specs[start : start + len(case.operands)]
            start += len(case.operands)
            results = jax.eval_shape(transformed(alone, alone.function()), *mine)
            owners += [place] * len(results)
        return owners


def _results(function: Callable[..., Any], arrays: Sequence[Array]) -> list[Array]:
    return [np.asarray(each) for each in function(*arrays)]


def _carried(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name in _CARRIED else array


def _run(cases: Sequence[Case], dtype: str, *arrays: Any) -> list[Any]:
    results: list[Any] = []
    rest = list(arrays)
    for case in cases:
        taken, rest = rest[: len(case.operands)], rest[len(case.operands) :]
        given = [
            array.astype(operand.of(dtype))
            for array, operand in zip(taken, case.operands, strict=True)
        ]
        for leaf in jax.tree.leaves(case.function(*given)):
            value = jnp.asarray(leaf)
            if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            results.append(value.astype(jnp.float32) if value.dtype.name in _CARRIED else value)
    return results


def transformed(batch: Batch, function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
    """Return what a form makes of a function of all cases of a batch.

    Args:
        batch: the cases.
        function: theirs, or what a target made of it.
    """
    if batch.form == "vmap":
        return jax.vmap(function)
    if batch.form == "gradient":
        return functools.partial(_gradient, function)
    if batch.form == "second gradient":
        return functools.partial(_gradient, functools.partial(_gradient, function))
    return function


def _gradient(function: Callable[..., list[Any]], *arrays: Any) -> list[Any]:
    """Return the gradients of weighted sums of all results, for each inexact argument."""
    places = [n for n, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.inexact)]

    def weighted(*chosen: Any) -> Any:
        given = list(arrays)
        for place, array in zip(places, chosen, strict=True):
            given[place] = array
        total: Any = jnp.zeros((), jnp.float32)
        for result in function(*given):
            if jnp.issubdtype(result.dtype, jnp.inexact):
                weights = np.cos(np.arange(result.size)).reshape(result.shape)
                total = total + (result * weights.astype(result.dtype)).sum().real
        return total

    return list(jax.grad(weighted, tuple(range(len(places))))(*(arrays[n] for n in places)))
