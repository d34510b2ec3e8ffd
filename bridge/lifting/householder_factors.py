"""QR factorizations: Householder vectors that become `lax.linalg.qr` again.

JAX lowers `qr` to LAPACK's `geqrf`, which packs R and Householder vectors into one matrix, a mask
that takes R out of it, and `orgqr`, which makes Q of the vectors. None of the two has a derivative.
So the result of `geqrf` is known here as the factors of a matrix: through slices and padding, until
R is taken out of it, or Q is made of it, which are results of one `qr`. What anything else does
with it gets the packed matrix itself, which JAX has no derivative of.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge.lifting.known_values import StructuredArray
from xla_call_module.errors import UnsupportedError
from xla_call_module.stablehlo.attributes import Attributes
from xla_call_module.stablehlo.constant_evaluation import ConstantValues, evaluate

Array = np.ndarray[Any, Any]

# Elements of a mask up to which it is computed to see which triangle it is of.
_MAX_MASK = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class MatrixFactors:
    """A matrix, and the Q and R of it, which JAX has derivatives of.

    Attributes:
        matrix: the matrix, or a batch of matrices.
        full: whether Q is square.
        q: Q, orthonormal columns.
        r: R, upper triangular, with as many rows as Q has columns.
        order: the order of the columns, from 0, where they are pivoted; None where they are not.
    """

    matrix: Any
    full: bool
    q: Any
    r: Any
    order: Any = None

    def packed(self) -> tuple[Any, Any]:
        """Return R and the Householder vectors in one matrix, and the scales of the vectors."""
        if self.order is not None:
            raise UnsupportedError(
                "The Householder vectors of a pivoted QR are used by themselves, and JAX has no "
                "public function for that. To do: export a function that uses Q and R."
            )
        transposed, scales = jnp.linalg.qr(self.matrix, mode="raw")
        return transposed.mT, scales

    def q_of(self, columns: int) -> Any:
        """Return Q with some number of columns, that of rows or the lesser dimension."""
        if self.q.shape[-1] == columns:
            return self.q
        return factorize(self.matrix, full=not self.full, pivoting=self.order is not None).q


def factorize(matrix: Any, *, full: bool, pivoting: bool) -> MatrixFactors:
    """Return the factors of a matrix by `lax.linalg.qr`."""
    if pivoting:
        return MatrixFactors(
            matrix, full, *lax.linalg.qr(matrix, full_matrices=full, pivoting=True)
        )
    return MatrixFactors(matrix, full, *lax.linalg.qr(matrix, full_matrices=full))


@dataclass(frozen=True, slots=True, eq=False)
class HouseholderScales(StructuredArray):
    """The scales of Householder vectors, LAPACK's `tau`.

    Attributes:
        factors: the factors whose Q they are part of.
    """

    factors: MatrixFactors

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        shape = self.factors.matrix.shape
        return (*shape[:-2], min(shape[-2:]))

    def array(self) -> Any:
        """Return the scales alone."""
        return self.factors.packed()[1]


@dataclass(frozen=True, slots=True, eq=False)
class HouseholderFactors(StructuredArray):
    """R in the upper triangle of a matrix, and Householder vectors below it.

    Attributes:
        factors: the factors.
        rows: how many rows are left of it by slices.
        columns: how many columns are left, or how many there are with padding.
    """

    factors: MatrixFactors
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return (*self.factors.matrix.shape[:-2], self.rows, self.columns)

    def array(self) -> Any:
        """Return the packed matrix."""
        return self._cut(self.factors.packed()[0])

    def after(self, raw: Any, operands: Sequence[Any]) -> Any:
        """Return what is left after a slice, with padding, or R where it is taken out."""
        rule = _RULES.get(raw.name)
        return None if rule is None else rule(self, raw, operands)

    def upper(self) -> Any:
        """Return R in the shape of this, with zeros below its diagonal."""
        return self._cut(self.factors.r)

    def _cut(self, matrix: Any) -> Any:
        zero = np.zeros((), matrix.dtype)
        more = [size - have for size, have in zip(self.shape, matrix.shape, strict=True)]
        return lax.pad(matrix, zero, [(0, size, 0) for size in more]) if any(more) else matrix


def _slice(value: HouseholderFactors, raw: Any, operands: Sequence[Any]) -> Any:
    del operands
    op = Attributes(raw)
    limits, shape = op.integers("limit_indices"), value.shape
    if any(op.integers("start_indices")) or set(op.integers("strides")) - {1}:
        return None
    if limits[:-2] != shape[:-2]:
        return None
    return replace(value, rows=limits[-2], columns=limits[-1])


def _pad(value: HouseholderFactors, raw: Any, operands: Sequence[Any]) -> Any:
    """Return a whole matrix with columns of zeros behind it, as `orgqr` takes it for a square Q."""
    op, shape = Attributes(raw), value.shape
    before, behind, between = (
        op.integers(name) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    is_zero = isinstance(operands[1], np.ndarray) and not operands[1].any()
    if operands[0] is not value or not is_zero or any((*before, *between, *behind[:-1])):
        return None
    if behind[-1] < 0 or value.shape[-2:] != value.factors.matrix.shape[-2:]:
        return None
    return replace(value, columns=shape[-1] + behind[-1])


def _select(value: HouseholderFactors, raw: Any, operands: Sequence[Any]) -> Any:
    """Return R where a mask leaves nothing else; None where it leaves Householder vectors."""
    which, chosen, other = operands
    if which is value or (chosen is value) == (other is value):
        return None
    mask = _known_mask(raw.operands[0])
    if mask is None or np.shape(mask) != value.shape:
        return None
    taken = mask if chosen is value else ~mask
    below = np.tri(value.rows, value.columns, k=-1, dtype=bool)
    if (taken & below).any():
        return None
    upper = value.upper()
    branches = (upper, other) if chosen is value else (chosen, upper)
    return lax.select(which, *branches)


def _known_mask(value: Any) -> Array | None:
    """Return a mask of a module that is computed of constants and indices; None for another."""
    mask: Array | None = ConstantValues({}, evaluate=_evaluate, fits=_is_small).of(value)
    return mask


def _evaluate(value: Any, operands: Sequence[Array]) -> Array | None:
    return evaluate(value.owner, operands, most=sys.maxsize)  # batches are repeated, not stored


def _is_small(shape: Sequence[int | None]) -> bool:
    return None not in shape and math.prod(shape[-2:]) <= _MAX_MASK  # type: ignore[arg-type]  # none is None


_RULES: Mapping[str, Callable[..., Any]] = {
    "stablehlo.pad": _pad,
    "stablehlo.select": _select,
    "stablehlo.slice": _slice,
}
