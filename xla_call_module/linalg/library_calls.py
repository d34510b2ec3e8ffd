"""The calls of linear algebra libraries in a module: their targets, options and arrays.

A target is a prefix and a routine. JAX writes `lapack_sgetrf_ffi` on the CPU, with a letter for the
dtype, `cusolver_getrf_ffi` and `hipsolver_getrf_ffi` on GPUs, and `LuDecomposition` on TPUs; the
options are attributes. The calls that JAX wrote until 0.4.36, with names without `_ffi` and options
among the operands, are not read.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from xla_call_module.stablehlo.modules import custom_call_target


@dataclass(frozen=True, slots=True)
class LibraryTarget:
    """A target of a custom call, or an operation, that computes linear algebra.

    Attributes:
        library: `lapack`, `solver`, `blas` or `sparse` (of a GPU), `hybrid` (partly on its host),
            `gpu` (kernels of JAX), `tpu`, or `stablehlo` for an operation.
        routine: LAPACK's name of what it computes, without the letter of a dtype.
    """

    library: str
    routine: str


_LAPACK = (
    "gees", "geev", "gehrd", "geqp3", "geqrf", "gesdd", "gesvd", "getrf", "gtsv", "heevd", "hetrd",
    "orgqr", "ormqr", "potrf", "syevd", "sytrd", "trsm", "ungqr", "unmqr",
)  # fmt: skip
_SOLVER = (
    "geev", "geqrf", "gesdd", "gesvd", "gesvdj", "gesvdp", "getrf", "orgqr", "ormqr", "potrf",
    "syevd", "syevj", "syrk", "sytrd",
)  # fmt: skip
_HYBRID = {"geqp3": "geqp3", "eig_real": "geev", "eig_comp": "geev"}
_TPU = {
    "Eigh": "eigh",
    "LuDecomposition": "lu",
    "ProductOfElementaryHouseholderReflectors": "orgqr",
    "Qr": "geqrf",
}


def _targets() -> Iterator[tuple[str, LibraryTarget]]:
    for routine, letter in itertools.product(_LAPACK, "sdcz"):
        yield f"lapack_{letter}{routine}_ffi", LibraryTarget("lapack", routine)
    yield "tridiagonal_solve_perturbed_ffi", LibraryTarget("lapack", "gtsv_perturbed")
    for name, routine in _TPU.items():
        yield name, LibraryTarget("tpu", routine)
    for gpu in ("cu", "hip"):
        yield from _targets_of_gpu(gpu)


def _targets_of_gpu(gpu: str) -> Iterator[tuple[str, LibraryTarget]]:
    for routine in _SOLVER:
        yield f"{gpu}solver_{routine}_ffi", LibraryTarget("solver", routine)
    for routine in ("getrf", "geqrf"):
        yield f"{gpu}blas_{routine}_batched_ffi", LibraryTarget("blas", routine)
    yield f"{gpu}sparse_gtsv2_ffi", LibraryTarget("sparse", "gtsv2")
    for name, routine in _HYBRID.items():
        yield f"{gpu}hybrid_{name}", LibraryTarget("hybrid", routine)
    for name in ("lu_pivots_to_permutation", "cholesky_update_ffi"):
        yield f"{gpu}_{name}", LibraryTarget("gpu", name.removesuffix("_ffi"))
    yield f"{gpu}_tridiagonal_solve_perturbed", LibraryTarget("gpu", "gtsv_perturbed")


# Every target of a custom call that JAX has written for linear algebra.
TARGETS: Mapping[str, LibraryTarget] = dict(_targets())
# The operations of StableHLO that are routines of such libraries.
OPERATIONS: Mapping[str, LibraryTarget] = {
    "stablehlo.cholesky": LibraryTarget("stablehlo", "cholesky"),
    "stablehlo.triangular_solve": LibraryTarget("stablehlo", "triangular_solve"),
}


def library_routine(operation: Any) -> LibraryTarget | None:
    """Return what an operation of a parsed module computes of linear algebra; None for nothing."""
    if operation.name == "stablehlo.custom_call":
        return TARGETS.get(custom_call_target(operation))
    return OPERATIONS.get(operation.name)


def library_options(operation: Any) -> dict[str, int]:
    """Return the options of a library call or an operation: flags, letters and numbers.

    They are those of the call, such as `{uplo = 76 : ui8, lower = true}`, or the operation's own
    attributes, where `transpose_a` is 0, 1, or 2 for the adjoint.
    """
    if operation.name != "stablehlo.custom_call":
        return _operation_options(operation)
    for name in ("mhlo.backend_config", "backend_config"):
        if name in operation.attributes:
            text = str(operation.attributes[name])
            entries = re.findall(r"(\w+) = (true|false|-?\d+)", text)
            flags = {"true": "1", "false": "0"}
            return {key: int(flags.get(value, value)) for key, value in entries}
    return {}


def _operation_options(operation: Any) -> dict[str, int]:
    transposition = {"NO_TRANSPOSE": 0, "TRANSPOSE": 1, "ADJOINT": 2}
    settings = dict.fromkeys(("left_side", "lower", "unit_diagonal"), 0)
    for name in settings:
        if name in operation.attributes:
            settings[name] = int(str(operation.attributes[name]) == "true")
    if "transpose_a" in operation.attributes:
        word = re.sub(r".* |>", "", str(operation.attributes["transpose_a"]))
        settings["transpose_a"] = transposition[word]
    return settings


def array_operands(operation: Any) -> tuple[int, ...]:
    """Return the places of the operands that are no shapes of results, which follow from others."""
    shapes: set[int] = set()
    if "indices_of_shape_operands" in operation.attributes:
        text = str(operation.attributes["indices_of_shape_operands"])
        shapes = set(map(int, re.findall(r"\d+", text.split(":")[0])))
    return tuple(index for index in range(len(operation.operands)) if index not in shapes)
