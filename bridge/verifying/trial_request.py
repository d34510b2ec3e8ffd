"""The inputs that `verify` is asked to try: kinds of probes, sizes, or arrays of the user's."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.core.given_arrays import read_arrays
from bridge.core.probes import EDGES, RANDOM, SIZES
from bridge.verifying.comparison import Tolerance
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError

_KINDS = (RANDOM, *EDGES)
_STEPS = 3
_QUICK_SIZE = SIZES[len(SIZES) // 2]


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """The inputs that are tried.

    Attributes:
        kinds: the kinds of probes, each of `random` and `bridge.core.probes.EDGES`.
        sizes: the sizes of dimension variables for random inputs; others have the one in the
            middle.
        inputs: arrays by the name of an input, or by `SIGNATURE/INPUT`; None for none.
        steps: how many calls of a signature that assigns variables follow one another.
    """

    kinds: tuple[str, ...] = _KINDS
    sizes: tuple[int, ...] = SIZES
    inputs: Mapping[str, Array] | None = None
    steps: int = _STEPS

    def inputs_of(self, key: str, names: Collection[str]) -> dict[str, Array] | None:
        """Return the arrays for the inputs of a signature; None unless all of them are there."""
        given = self.inputs or {}
        places = {name: f"{key}/{name}" if f"{key}/{name}" in given else name for name in names}
        if not places or not all(place in given for place in places.values()):
            return None
        return {name: given[place] for name, place in places.items()}

    def check_inputs(self, signatures: Mapping[str, Collection[str]]) -> None:
        """Refuse arrays that no signature takes."""
        if self.inputs is None:
            return
        known = {n for key, names in signatures.items() for name in names for n in _both(key, name)}
        taken = any(self.inputs_of(key, names) for key, names in signatures.items())
        if taken and known >= self.inputs.keys():
            return
        listed = "; ".join(f"{key}: {', '.join(n) or 'none'}" for key, n in signatures.items())
        unknown = sorted(self.inputs.keys() - known)
        found = f"{', '.join(unknown)} of no input" if unknown else "not all inputs of a signature"
        raise StructureError(
            f"The arrays for verify are {found}; the signatures have the inputs {listed}. To do: "
            "name each array as an input, or as SIGNATURE/INPUT."
        )


def _both(key: str, name: str) -> tuple[str, str]:
    return name, f"{key}/{name}"


def request_trials(
    probes: Sequence[str] | None,
    inputs: str | os.PathLike[str] | Mapping[str, Any] | None,
    *,
    quick: bool,
    steps: int | None = None,
) -> TrialRequest:
    """Return the request that the options of `verify` make."""
    kinds: tuple[str, ...] = _KINDS if inputs is None else ()
    if probes is not None:
        kinds = tuple(dict.fromkeys([probes] if isinstance(probes, str) else probes))
    elif quick and inputs is None:
        kinds = (RANDOM,)
    if unknown := [kind for kind in kinds if kind not in _KINDS]:
        raise StructureError(
            f"probes has {unknown[0]!r}; expected some of {', '.join(_KINDS)}. To do: name those."
        )
    if probes is not None and not kinds:
        raise StructureError(f"probes is empty. To do: name some of {', '.join(_KINDS)}.")
    count: Any = _STEPS if steps is None else steps  # users may pass anything
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise StructureError(f"steps is {steps!r}; expected a whole number of at least 1.")
    arrays = None
    if isinstance(inputs, Mapping):
        arrays = {str(name): np.asarray(value) for name, value in inputs.items()}
    elif inputs is not None:
        arrays = read_arrays(inputs)
    return TrialRequest(kinds, (_QUICK_SIZE,) if quick else SIZES, arrays, count)


def conversion_tolerance(tolerance: Any, *, verify: bool) -> Tolerance | None:
    """Return the tolerance of a conversion that may compare its file with JAX; None by default."""
    if tolerance is not None and not verify:
        raise StructureError(
            "tolerance= is for the comparison with JAX, and verify=False leaves that out. To do: "
            "pass verify=True, or no tolerance."
        )
    return None if tolerance is None else to_tolerance(tolerance)


def to_tolerance(tolerance: Tolerance | float | Sequence[float] | None) -> Tolerance:
    """Return the tolerance that a user means: `rtol`, or `rtol` and `atol`, or the usual one.

    >>> to_tolerance((1e-3, 0.0))
    Tolerance(rtol=0.001, atol=0.0)
    """
    if tolerance is None or isinstance(tolerance, Tolerance):
        return tolerance or Tolerance()
    kinds = (int, float, np.integer, np.floating)
    numbers = list(tolerance) if isinstance(tolerance, Sequence) else [tolerance]
    fits = len(numbers) in (1, 2) and all(isinstance(n, kinds) for n in numbers)
    if not fits or not all(math.isfinite(n) and n >= 0 for n in numbers):
        raise StructureError(
            f"tolerance is {tolerance!r}; expected rtol, or rtol and atol, of at least 0. To do: "
            "pass such as 1e-3, or (1e-3, 1e-6)."
        )
    return Tolerance(*map(float, numbers))
