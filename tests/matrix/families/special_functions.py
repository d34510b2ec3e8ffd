"""`jax.scipy`: the special functions, densities and signals."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from jax import lax
from jax.scipy import ndimage, signal, special, stats

from tests.matrix.case import EXACT, SERIES, Case, family, floats

_X = floats(3, 4)
_POSITIVE = floats(6, low=0.3, high=5)
_UNIT = floats(6, low=0.1, high=0.9)

_OF_POSITIVE = {
    "expi": special.expi,
    "exp1": special.exp1,
    "spence": special.spence,
    "multigammaln": lambda x: special.multigammaln(x + 2, 3),
    "poch": lambda x: special.poch(x, 1.5),
    "gammaincc": lambda x: special.gammaincc(2.5, x),
}
_WITHOUT_GRADIENT = {
    "expn": lambda x: special.expn(3, x),
    "polygamma": functools.partial(special.polygamma, 2),
    "hyp1f1": lambda x: special.hyp1f1(1.5, 2.5, x),
    "bessel_jn": lambda x: special.bessel_jn(x, v=2),
}
_OF_ANY = {"i1": special.i1, "i1e": special.i1e, "expit": special.expit}
_OF_PROBABILITIES = {
    "rel_entr": lambda x: special.rel_entr(x, 1 - x),
    "beta_logpdf": lambda x: stats.beta.logpdf(x, 1.5, 2.5),
}
_DENSITIES = {
    "norm_logpdf": stats.norm.logpdf,
    "gamma_logpdf": lambda x: stats.gamma.logpdf(x**2 + 0.1, 2.5),
    "fresnel": special.fresnel,
}
_SIGNALS = {
    "convolve2d": lambda x: signal.convolve2d(x, x[:2, :2], mode="same"),
    "map_coordinates": lambda x: ndimage.map_coordinates(
        x, [np.float32([0.5, 1.2]), np.float32([2.1, 0.3])], order=1, mode="nearest"
    ),
}


def _gammas(x: Any) -> Any:
    return special.gammaln(x), special.digamma(x), special.gammainc(x, x + 0.5)


def _betas(x: Any) -> Any:
    return special.betainc(1.5, 2.5, x / 4), special.betaln(x, x + 1)


def _errors(x: Any) -> Any:
    return special.erfc(x), special.erfinv(x / 3), special.ndtri(x / 8 + 0.5), special.i0e(x)


def _logarithms(x: Any) -> Any:
    return special.logsumexp(x, axis=1), special.xlogy(x, x), special.entr(x), special.logit(x / 4)


CASES = (
    *family(_OF_POSITIVE, _POSITIVE, tolerance=SERIES),
    *family(_WITHOUT_GRADIENT, _POSITIVE, tolerance=SERIES, gradient=False),
    *family(_OF_ANY, _X, tolerance=SERIES),
    *family(_OF_PROBABILITIES, _UNIT, tolerance=SERIES),
    *family(_DENSITIES, _X, tolerance=SERIES),
    *family(_SIGNALS, _X),
    Case("gammas", _gammas, (_POSITIVE,), tolerance=SERIES, gradient=False),
    Case("betas", _betas, (floats(6, low=0.3, high=3),), tolerance=SERIES),
    Case("errors", _errors, (floats(8),), tolerance=SERIES),
    Case("logarithms", _logarithms, (floats(3, 4, low=0.1, high=3.5),)),
    Case("zeta", special.zeta, (floats(4, low=1.5, high=6), floats(4, low=0.5)), tolerance=SERIES,
         gradient=False),
    Case("erf", lax.erf, (_X,)),
    Case("ndtr", special.ndtr, (_X,)),
    Case("log_ndtr", special.log_ndtr, (_X * 4,), tolerance=SERIES),
    Case("rank", lambda x: stats.rankdata(x, axis=1), (_X,), tolerance=EXACT, gradient=False),
)  # fmt: skip
