"""`python -m tests.bridge.litert.harnesses`: JAX's own examples of its primitives, in LiteRT.

Each harness of `jax._src.internal_test_util.test_harnesses` with arguments and results of float32,
int32 and booleans is converted and run, and compared with JAX; with `--gradients` the VJPs of the
functions of `tests.verbs.gradient_functions`, in float32. Printed is how many are right, and what
each refusal and each fault says.

    python -m tests.bridge.litert.harnesses [--gradients] [--part 0/8] [--only TEXT]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import bridge
from bridge.litert.lowering.storage_dtypes import at_boundary
from bridge.litert.runtime import Runtime
from bridge.litert.worker_process import LiteRTProcess
from bridge.loading.limited_program import compile_strictly
from tests.bridge.lifting.harnesses import Outcome, harnesses
from tests.matrix.case import FLOAT16, HALF
from tests.verbs.gradient_functions import CASES
from xla_call_module.errors import InteropError

DTYPES = frozenset({"bool", "float32", "int32"})
# Of the largest magnitude: kernels have their own polynomials and orders of sums.
_RELATIVE = 2e-5
_RELATIVE_OF = {"bfloat16": HALF.relative, "float16": FLOAT16.relative}


def examples(
    chosen: Iterable[Any] | None = None,
) -> Iterator[tuple[Any, Callable[..., Any], list[Any]]]:
    """Yield each harness of these dtypes, of all or of some, with its function and its arrays."""
    for harness in harnesses(x64=False) if chosen is None else chosen:
        try:
            arrays = [
                jnp.asarray(value) for value in harness.dyn_args_maker(np.random.RandomState(0))
            ]
            results = jax.tree.leaves(jax.eval_shape(harness.dyn_fun, *arrays))
        except Exception:  # noqa: BLE001 - what JAX itself does not run here
            continue
        if {str(value.dtype) for value in (*arrays, *results)} <= DTYPES:
            yield harness, harness.dyn_fun, arrays


def gradients() -> Iterator[tuple[Any, Callable[..., Any], list[Any]]]:
    """Yield the VJP of each function of the gradient matrix, and arguments of it in float32."""
    random = np.random.default_rng(0)
    for case in CASES:
        args, tree = jax.tree.flatten((case.args, dict(case.kwargs)))
        if any(jax.dtypes.issubdtype(jnp.result_type(a), jax.dtypes.prng_key) for a in args):
            continue
        leaves = [_narrowed(leaf) for leaf in args]

        def function(*leaves: Any, case: Any = case, tree: Any = tree) -> list[Any]:
            given, named = jax.tree.unflatten(tree, leaves)
            return jax.tree.leaves(case.function(*given, **named))

        try:
            exported = export.export(jax.jit(function), platforms=["cpu"])(*leaves)
            pulled = exported.vjp()
        except Exception:  # noqa: BLE001 - what JAX does not differentiate here
            continue
        cotangents = [
            np.asarray(random.standard_normal(aval.shape)).astype(aval.dtype)
            for aval in pulled.in_avals[len(leaves) :]
        ]
        yield _Named(case.name), pulled.call, [*leaves, *cotangents]


@dataclass(frozen=True)
class _Named:
    """The stand-in for a harness where there is none."""

    fullname: str
    group_name: str = "vjp"


def _plain(leaf: Any) -> Any:
    """Return an array of numpy as a model has it at its boundary; of float0 False."""
    array = np.asarray(leaf)
    if array.dtype == jax.dtypes.float0:
        return np.zeros(array.shape, bool)
    return at_boundary(array)


def _narrowed(leaf: Any) -> Any:
    array = np.asarray(leaf)
    narrow = {"float64": np.float32, "int64": np.int32, "complex128": np.complex64}
    return jnp.asarray(array.astype(narrow.get(array.dtype.name, array.dtype)))


def judge(
    harness: Any, function: Callable[..., Any], arrays: list[Any], process: LiteRTProcess
) -> Outcome:
    """Return what becomes of one harness."""

    def outcome(verdict: str, reason: str = "") -> Outcome:
        return Outcome(harness.fullname, harness.group_name, "call", verdict, reason)

    try:
        exported = export.export(jax.jit(function), platforms=["cpu"])(*arrays)
        results = compile_strictly(exported.call)(*arrays)
        expected = [_plain(leaf) for leaf in jax.tree.leaves(results)]
    except Exception as error:  # noqa: BLE001 - what JAX itself does not run here
        return outcome("absent", str(error))
    try:
        names = [f"x{number}" for number in range(len(arrays))]
        model = bridge.to_litert(exported, verify=False, inputs=names)
        with Runtime(model, process=process) as runtime:
            given = {name: _plain(a) for name, a in zip(names, arrays, strict=True)}
            found = list(runtime.run(given).values())
    except InteropError as error:
        return outcome("refused", f"{type(error).__name__}: {error}")
    except Exception as error:  # noqa: BLE001 - a row of the table
        return outcome("raised", f"{type(error).__name__}: {error}")
    dtypes = {np.dtype(a.dtype).name for a in (*exported.in_avals, *exported.out_avals)}
    relative = max(_RELATIVE_OF.get(dtype, _RELATIVE) for dtype in dtypes)
    wrong = [
        text
        for got, wanted in zip(found, expected, strict=True)
        if (text := _difference(got, wanted, relative))
    ]
    if wrong and _is_as_good(harness, found, expected):
        return outcome("right", "another valid answer")
    return outcome("wrong", "; ".join(wrong)) if wrong else outcome("right")


def _is_as_good(harness: Any, found: list[Any], expected: list[Any]) -> bool:
    """Return whether results are others that mean the same.

    Signs of singular vectors and eigenvectors are not determined, nor is the order of equal keys in
    a sort that is not stable.
    """
    if harness.group_name == "sort" and not harness.params["is_stable"]:
        keys = harness.params["num_keys"]
        rows = [
            sorted(zip(*(one.tolist() for one in every), strict=True))
            for every in (found, expected)
        ]
        same = all(map(np.array_equal, found[:keys], expected[:keys]))
        return same and found[0].ndim == 1 and rows[0] == rows[1]
    if harness.group_name not in ("eigh", "svd") or len(found) == 1:
        return False
    matrices = [one for one in found if one.ndim == max(every.ndim for every in found)]
    products = [_product_of(harness.group_name, every) for every in (found, expected)]
    return (
        all(map(_is_orthonormal, matrices))
        and not _difference(products[0], products[1], _RELATIVE)
        and not _difference(_values_of(found), _values_of(expected), _RELATIVE)
    )


def _values_of(results: list[Any]) -> Any:
    return min(results, key=lambda one: one.ndim)


def _product_of(name: str, results: list[Any]) -> Any:
    """Return the matrices of which something are the factors."""
    values = _values_of(results)
    first, *rest = [one for one in results if one is not values]
    last = rest[0] if name == "svd" else np.swapaxes(first, -1, -2)
    count = values.shape[-1]
    scaled = first[..., :count].astype(np.float64) * values[..., None, :]
    return (scaled @ last[..., :count, :]).astype(np.float32)


def _is_orthonormal(matrix: Any) -> bool:
    """Return whether rows or columns, whichever are fewer, are orthonormal."""
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else np.swapaxes(matrix, -1, -2)
    product = np.swapaxes(tall, -1, -2).astype(np.float64) @ tall
    return bool(np.allclose(product, np.eye(tall.shape[-1]), atol=_RELATIVE))


def _difference(got: Any, wanted: Any, relative: float) -> str:
    """Return what differs; empty for nothing."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return f"{got.dtype}{got.shape} for {wanted.dtype}{wanted.shape}"
    if wanted.dtype.kind != "f":
        return "" if np.array_equal(got, wanted) else f"{got.ravel()[:4]} for {wanted.ravel()[:4]}"
    is_same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.where(is_same, 0.0, np.abs(got.astype(np.float64) - wanted))
    finite = np.abs(wanted[np.isfinite(wanted)]).astype(np.float64)
    allowed = relative * float(finite.max(initial=0)) + 1e-37
    wrong = ~(error <= allowed)
    if not wrong.any():
        return ""
    first = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
    return f"{got[first]} for {wanted[first]} at {tuple(map(int, first))}, {int(wrong.sum())} wrong"


def main() -> None:
    """Judge the harnesses that the command line asks for, and print what is not right."""
    parser = argparse.ArgumentParser(prog="python -m tests.bridge.litert.harnesses")
    parser.add_argument("--gradients", action="store_true", help="of the gradient matrix")
    parser.add_argument("--part", default="0/1", metavar="N/COUNT", help="every COUNT-th, from N")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose names have it")
    options = parser.parse_args()
    number, count = map(int, options.part.split("/"))
    counts: Counter[str] = Counter()
    with LiteRTProcess() as process:
        every = gradients() if options.gradients else examples()
        chosen = (one for one in every if options.only in one[0].fullname)
        for index, (harness, function, arrays) in enumerate(chosen):
            if index % count != number:
                continue
            found = judge(harness, function, arrays, process)
            counts[found.verdict] += 1
            if found.verdict not in ("right", "absent"):
                text = " ".join(found.reason.split())[:240]
                print(f"{found.verdict:8} {found.name}: {text}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
