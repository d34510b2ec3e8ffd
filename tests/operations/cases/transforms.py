"""`jax.numpy.fft`."""

from __future__ import annotations

from tests.operations.case import Lines
from tests.operations.operands import Operand, rows

# How NaN and infinities spread in a row is what each library has of it.
M = rows(8, extreme=False)
ODD = rows(7, extreme=False)
_all = Lines("jax.numpy.fft", ("complex64", "complex128", "float32"), loose=16)
_real = Lines("jax.numpy.fft", ("float32", "float64"), loose=16)
_complex = Lines("jax.numpy.fft", ("complex64", "complex128"), loose=16)
_made = Lines("jax.numpy.fft", ("float32",))

CASES = (
    *_all("fft ifft", M),
    *_all("fft ifft", ODD, note="odd"),
    *_all("fft", M, n=5, norm="ortho"),
    *[
        case
        for length in (1, 2, 67, 120, 2 * 331)
        for row in [Operand((2, length), extreme=False)]
        for case in (
            *_all("fft ifft", row, note=f"of {length}"),
            *_real("rfft", row, note=f"of {length}"),
            *_complex("irfft", row, note=f"of {length}", n=length),
        )
    ],
    *_all("fft2 ifft2 fftn ifftn", Operand((2, 3, 4), extreme=False)),
    *_real("rfft ihfft", M),
    *_real("rfft", ODD, note="odd"),
    *_real("rfft", Operand((1000,), extreme=False), note="of a thousand"),
    *_all("fft", Operand((3, 5, 2), extreme=False), axis=1),
    *_real("rfft2 rfftn", Operand((2, 3, 4), extreme=False)),
    *_complex("irfft hfft", M),
    *_complex("irfft", M, n=7),
    *_complex("irfft2 irfftn", Operand((2, 3, 4), extreme=False)),
    *_real("fftshift ifftshift", Operand((3, 4))),
    *_made("fftfreq rfftfreq", by=lambda f: f(8)),
)
