"""Branches of platforms that are lowerings of one operation of JAX, of which one says it all.

For several platforms JAX writes an operation as a `case` over them: linear algebra as a call of
LAPACK, of cuSOLVER, and as a program for TPUs. JAX's own primitive of it is lowered to all of these
again, and has the derivative, which calls and programs have not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bridge.lifting.lifted_operation import LiftedRegion
from xla_call_module.linalg.library_calls import library_routine
from xla_call_module.stablehlo.operation_locations import describe_primitive

# The primitive of JAX for each routine; `geqrf`, `geqp3` and `ormqr` have their own names.
_PRIMITIVES: Mapping[str, str] = {
    "gees": "schur", "geev": "eig", "gehrd": "hessenberg", "gesdd": "svd", "gesvd": "svd",
    "gesvdj": "svd", "gesvdp": "svd", "getrf": "lu", "gtsv": "tridiagonal_solve",
    "gtsv2": "tridiagonal_solve", "gtsv_perturbed": "tridiagonal_solve", "heevd": "eigh",
    "hetrd": "tridiagonal", "orgqr": "householder_product", "potrf": "cholesky", "syevd": "eigh",
    "syevj": "eigh", "syrk": "symmetric_product", "sytrd": "tridiagonal",
    "trsm": "triangular_solve", "ungqr": "householder_product", "unmqr": "ormqr",
}  # fmt: skip
# The platforms whose lowerings are calls, and so say which primitive they are of.
_WITH_LIBRARIES = ("cpu", "cuda", "rocm", "tpu")
# What selects NaN where a library failed, besides the call.
_AROUND_CALLS = frozenset({
    "stablehlo.broadcast_in_dim", "stablehlo.compare", "stablehlo.constant", "stablehlo.return",
    "stablehlo.select",
})  # fmt: skip


def common_branch(raw: Any, branches: Mapping[str, LiftedRegion]) -> LiftedRegion | None:
    """Return the branch that JAX lowers for all platforms to all of them; None if there is none."""
    forms = [_form(region.block, {}) for region in branches.values()]
    if all(form == forms[0] for form in forms):
        return next(iter(branches.values()))
    calls = {name: list(_library_calls(region.block)) for name, region in branches.items()}
    primitive = describe_primitive(raw)
    for name in _WITH_LIBRARIES:
        if name in calls and [_primitive(call) for call in calls[name]] == [primitive]:
            return branches[name]
    if all(map(_is_call_alone, (region.block for region in branches.values()))):
        alone = [one[0] for one in calls.values()]
        if len({(_primitive(call), *call.operands) for call in alone}) == 1:
            return next(branches[name] for name in _WITH_LIBRARIES if name in branches)
    return None


def _primitive(call: Any) -> str:
    target = library_routine(call)
    return "" if target is None else _PRIMITIVES.get(target.routine, target.routine)


def _is_call_alone(block: Any) -> bool:
    """Return whether a branch is one call, and what makes NaN of its failure."""
    operations = [view.operation for view in block]
    calls = [operation for operation in operations if library_routine(operation) is not None]
    others = {operation.name for operation in operations if library_routine(operation) is None}
    return len(calls) == 1 and others <= _AROUND_CALLS


def _library_calls(block: Any) -> Iterator[Any]:
    for view in block:
        operation = view.operation
        if library_routine(operation) is not None:
            yield operation
        for region in operation.regions:
            for inner in region.blocks:
                yield from _library_calls(inner)


def _form(block: Any, local: dict[Any, int]) -> list[Any]:
    """Return what two blocks have in common that compute the same of the same values."""
    for argument in block.arguments:
        local[argument] = len(local)
    form: list[Any] = []
    for view in block:
        raw = view.operation
        names = [getattr(attribute, "name", attribute) for attribute in raw.attributes]
        form.append((
            raw.name,
            [(name, str(raw.attributes[name])) for name in names],
            [local.get(operand, operand) for operand in raw.operands],
            [str(result.type) for result in raw.results],
            [_form(inner, local) for region in raw.regions for inner in region.blocks],
        ))  # fmt: skip
        for result in raw.results:
            local[result] = len(local)
    return form
