"""The StableHLO that computes what a call of a linear algebra library computes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
from jax import export

from xla_call_module.dtypes import DTYPES
from xla_call_module.linalg.lapack import Routine, parse_target
from xla_call_module.stablehlo.modules import TensorType


@dataclass(frozen=True, slots=True)
class LibraryForm:
    """All of a library call on which its replacement depends.

    Attributes:
        target: the target of the custom call, or the name of the operation.
        attributes: the options of the library, as sorted pairs, and the sizes of the results:
            `rows_0`, `columns_0`, `rows_1` and so on.
        operands: the types of the arrays, batch dimensions first.
    """

    target: str
    attributes: tuple[tuple[str, int], ...]
    operands: tuple[TensorType, ...]

    @property
    def is_static(self) -> bool:
        """Return whether every dimension is known."""
        return all(None not in operand.shape for operand in self.operands)


@functools.lru_cache(maxsize=256)
def replacement(form: LibraryForm) -> bytes:
    """Return a portable artifact whose `main` has the operands and results of the library call.

    JAX lowers it for a TPU, for which it knows no library.
    """
    routine = parse_target(form.target)
    assert routine is not None
    with _plain_settings():
        scope = export.SymbolicScope()
        specs = [_to_spec(operand, scope) for operand in form.operands]
        function = _batched(routine, dict(form.attributes))
        # Of matrices without elements it may need none, and the call passes all of them.
        jitted = jax.jit(function, keep_unused=True)
        exported = export.export(jitted, platforms=("tpu",))(*specs)
    return bytes(exported.mlir_module_serialized)


@contextmanager
def _plain_settings() -> Iterator[None]:
    """Set JAX's configuration as the replacements need it, whatever the user's is."""
    with (
        jax.enable_x64(True),
        jax.default_matmul_precision("highest"),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def _to_spec(type_: TensorType, scope: export.SymbolicScope) -> jax.ShapeDtypeStruct:
    """Return an aval; batch dimensions of all operands agree, so a name is a position."""
    dtype = next(dtype.name for dtype in DTYPES if dtype.mlir == type_.element)
    text = ",".join(f"b{axis}" if dim is None else str(dim) for axis, dim in enumerate(type_.shape))
    return jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), dtype)


def _batched(routine: Routine, attributes: dict[str, int]) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the routine on all matrices of a batch of any rank."""
    one = functools.partial(routine.compute, attributes)
    axes = [0 if rank else None for rank in routine.ranks]

    def compute(*operands: jax.Array) -> tuple[jax.Array, ...]:
        batch = operands[0].shape[: operands[0].ndim - routine.ranks[0]]
        if not batch:
            return one(*operands)
        size: Any = math.prod(batch)
        flat = [
            operand.reshape(size, *operand.shape[operand.ndim - rank :]) if rank else operand
            for rank, operand in zip(routine.ranks, operands, strict=True)
        ]
        results = _of_each(one, axes, flat)
        return tuple(result.reshape(*batch, *result.shape[1:]) for result in results)

    return compute


def _of_each(
    one: Callable[..., tuple[jax.Array, ...]],
    axes: Sequence[int | None],
    operands: Sequence[jax.Array],
) -> tuple[jax.Array, ...]:
    if export.is_symbolic_dim(operands[0].shape[0]) or operands[0].shape[0] != 1:
        return jax.vmap(one, in_axes=axes)(*operands)
    # A loop is faster without the dimension.
    pairs = zip(axes, operands, strict=True)
    results = one(*(array if axis is None else array[0] for axis, array in pairs))
    return tuple(result[None] for result in results)
