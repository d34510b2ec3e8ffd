"""`jax.scipy.special`."""

from __future__ import annotations

from tests.operations.case import FLOATS, Lines
from tests.operations.cases.arrays import with_numbers
from tests.operations.operands import Operand, fixed, rows

X = Operand((1,))
UNIT = Operand((1,), -0.95, 0.95)
PROBABILITY = Operand((1,), 0.05, 0.95)
POSITIVE = Operand((1,), 0.2, 4.0)
MILD = Operand((1,), 0.3, 2.0, extreme=False)
ORDER = Operand((1,), 1, 4, dtype="int32", extreme=False)
M = rows(4)
Z = Operand((1,), extreme=False)

_maps = Lines("jax.scipy.special", FLOATS, elementwise=True, loose=4)
_series = Lines("jax.scipy.special", ("float32", "float64"), elementwise=True, loose=32)
_mild = Lines("jax.scipy.special", ("float32", "float64"), elementwise=True, loose=64)
_rows = Lines("jax.scipy.special", FLOATS, without=("empty",))

CASES = (
    *_maps("erf erfc expit entr", X),
    *_maps("logit", PROBABILITY),
    *_maps("kl_div rel_entr xlogy xlog1py boxcox boxcox1p", POSITIVE, X),
    *_maps("kl_div rel_entr xlogy xlog1py", X, note="with a number", by=with_numbers),
    *Lines("jax.scipy.special", ("complex64", "complex128"), elementwise=True, loose=4)(
        "xlogy xlog1py", Z, Z, note="complex"
    ),
    *_series("owens_t", X, note="with a number", by=with_numbers),
    *_series("ndtr log_ndtr", X),
    *_series("erfinv", UNIT),
    *_series("erfcinv ndtri", PROBABILITY),
    *_series("erfcx dawsn gammasgn i0 i0e i1 i1e fresnel sici spence", X),
    *_series("exp1 expi", X),
    *_series("digamma gamma gammaln", POSITIVE),
    *_series("loggamma factorial", POSITIVE),
    *_series("beta betaln poch gammainc gammaincc", POSITIVE, POSITIVE),
    *_series("betainc", POSITIVE, POSITIVE, PROBABILITY),
    *_series("zeta", Operand((1,), 1.1, 4.0), POSITIVE),
    *_series("comb", Operand((1,), 2, 6, extreme=False), Operand((1,), 0, 2, extreme=False)),
    *_mild("polygamma expn", ORDER, MILD),
    *_mild("hyp1f1", MILD, MILD, MILD),
    *_mild("hyp2f1", MILD, MILD, MILD, PROBABILITY),
    *_mild("multigammaln", Operand((1,), 2.0, 5.0, extreme=False), d=3),
    *_mild("owens_t", MILD, MILD),
    *_rows("logsumexp", M, axis=1),
    *_rows("softmax log_softmax", M, axis=0),
    *Lines(
        "jax.scipy.special",
        ("float32",),
        loose=64,
        without=("one row", "empty", "symbolic"),
    )("bessel_jn", Operand((5,), 0.5, 6.0, extreme=False), v=3, n_iter=30),
    *Lines("jax.scipy.special", ("float32",))("bernoulli", by=lambda f: f(6)),
    *Lines(
        "jax.scipy.special",
        ("float32",),
        loose=64,
        without=("one row", "empty", "symbolic", "vmap"),
    )(
        "sph_harm_y",
        fixed([2, 1], "int32"),
        fixed([1, 0], "int32"),
        Operand((2,), 0.2, 2.0, extreme=False),
        Operand((2,), 0.1, 3.0, extreme=False),
        n_max=3,
    ),
    *Lines("jax.scipy.special", ("complex64",), loose=64, elementwise=True)(
        "wofz", Operand((1,), 0.2, 2.0, extreme=False)
    ),
)
