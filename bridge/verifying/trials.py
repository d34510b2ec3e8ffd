"""Trials of a SavedModel: inputs, cotangents and expected results, as values and as a file.

A file of trials is an npz without pickles: JSON in the array `header`, and the arrays
`TRIAL/input/NAME`, `TRIAL/cotangent/ORDER/NAME` and `TRIAL/result/ORDER/NAME`. Arrays of a dtype
that numpy does not have are stored as unsigned integers of its width; `dtypes` in the header says
which. So any program with numpy reads it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bridge.core.npz_file import NPZ_ERRORS, open_npz
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import FormatError, InteropError, StructureError, quote

_FORMAT = 1
_MAX_COMPRESSED = 1 << 29


@dataclass(frozen=True, slots=True)
class Trial:
    """One call of a signature, with its gradients.

    Order 0 is the call, with the values that it assigns to variables as `variable/NAME`. Order k is
    the gradient of order k-1, pulled back from `cotangents[k-1]`, in TensorFlow's convention, where
    that of a complex number is the conjugate of JAX's.

    Attributes:
        signature: the key of the signature.
        kind: the kind of the inputs, such as `zeros`.
        sizes: the sizes of the dimension variables.
        inputs: the inputs by name.
        differentiated: the names of the inputs that gradients are taken with respect to.
        variables: the names of the variables that gradients are taken with respect to.
        outputs: the names of the outputs.
        cotangents: the cotangents of each order from the first on; those of order 1 by the names of
            outputs, of higher orders by `input/NAME` and `variable/NAME`.
        expected: the results of JAX for each order, by the same names.
        deviations: for each output the names of those of `xla_call_module.versions.DEVIATIONS`
            that may change it.
        precisions: for each output the least precise dtype of floats that it was computed with;
            empty for none.
        keeps_nan: whether TensorFlow runs its own operations, which keep NaN that XLA may lose.
        exact: whether NaN, signs of zeros and integers divided by 0 are to be as in JAX.
        step: the number of the call among those that follow one another, from 1 on, where the
            signature assigns variables; the first one has their values in the file. 0 where it
            only reads.
    """

    signature: str
    kind: str
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array]
    differentiated: tuple[str, ...]
    variables: tuple[str, ...]
    outputs: tuple[str, ...]
    cotangents: tuple[Mapping[str, Array], ...]
    expected: tuple[Mapping[str, Array], ...]
    deviations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)
    keeps_nan: bool = False
    exact: bool = True
    step: int = 0

    @property
    def title(self) -> str:
        """The kind, the sizes and the step, such as `random, b=3, step 2`."""
        sizes = [f"{name}={size}" for name, size in self.sizes.items()]
        return ", ".join([self.kind, *sizes, *([f"step {self.step}"] if self.step else [])])

    def precisions_of(self, order: int, name: str) -> tuple[str, ...]:
        """Return the dtypes of floats that a result was computed with, the least precise ones.

        A gradient may have those of any output, and so may what follows another step.
        """
        of_any = order > 0 or self.step > 1
        names = self.precisions.values() if of_any else [self.precisions.get(name, "")]
        return tuple(filter(None, names))


def as_exact(trials: Sequence[Trial], *, exact: bool) -> list[Trial]:
    """Return trials for a file, which need be as exact as it is."""
    return [replace(trial, exact=trial.exact and exact) for trial in trials]


def write_trials(path: str | os.PathLike[str], trials: Sequence[Trial]) -> None:
    """Write a file of trials."""
    arrays = {
        f"{number}/{key}": array
        for number, trial in enumerate(trials)
        for key, array in _arrays(trial).items()
    }
    header = {
        "format": _FORMAT,
        "trials": [_describe(trial) for trial in trials],
        "dtypes": {key: array.dtype.name for key, array in arrays.items()},
    }
    plain = {
        key: array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")
        for key, array in arrays.items()
    }
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    # What is compressed is read only up to a size (`open_npz`).
    large = sum(array.nbytes for array in plain.values()) > _MAX_COMPRESSED
    write = np.savez if large else np.savez_compressed
    # Given a file, numpy does not add a suffix to its name.
    with Path(path).open("wb") as file:
        write(file, header=text, **plain)  # type: ignore[arg-type]  # no options


def read_trials(path: str | os.PathLike[str]) -> tuple[Trial, ...]:
    """Return the trials of a file that `write_trials` wrote."""
    if os.path.isdir(path):
        raise StructureError(
            f"against is {path}, a folder; expected a file of recorded trials. To do: record one "
            f"of it by bridge.verify({os.fspath(path)!r}, record='trials.npz')."
        )
    header, arrays = _read(path)
    try:
        if header["format"] != _FORMAT:
            raise FormatError(
                f"{path} has format {header['format']}; expected {_FORMAT}. To do: read it "
                "with the version of this package that wrote it."
            )
        return tuple(
            _to_trial(fields, number, arrays) for number, fields in enumerate(header["trials"])
        )
    except InteropError:
        raise
    except NPZ_ERRORS as error:
        raise _damaged(path, error) from error


def read_results(path: str | os.PathLike[str]) -> dict[tuple[int, int, str], Array]:
    """Return the arrays that `tensorflow_run.py` wrote, by trial, order and name."""
    _, arrays = _read(path)
    results = {}
    for key, array in arrays.items():
        trial, _, order, name = key.split("/", 3)
        results[int(trial), int(order), name] = array
    return results


def _arrays(trial: Trial) -> dict[str, Array]:
    arrays = {f"input/{name}": array for name, array in trial.inputs.items()}
    for order, by_name in enumerate(trial.cotangents, start=1):
        arrays |= {f"cotangent/{order}/{name}": array for name, array in by_name.items()}
    for order, by_name in enumerate(trial.expected):
        arrays |= {f"result/{order}/{name}": array for name, array in by_name.items()}
    return {key: np.asarray(array, order="C") for key, array in arrays.items()}


def _describe(trial: Trial) -> dict[str, Any]:
    return {
        "signature": trial.signature,
        "kind": trial.kind,
        "sizes": dict(trial.sizes),
        "inputs": list(trial.inputs),
        "differentiated": list(trial.differentiated),
        "variables": list(trial.variables),
        "outputs": list(trial.outputs),
        "orders": len(trial.cotangents),
        "cotangents": [list(by_name) for by_name in trial.cotangents],
        "expected": [list(by_name) for by_name in trial.expected],
        "deviations": {name: list(several) for name, several in trial.deviations.items()},
        "precisions": dict(trial.precisions),
        "keeps_nan": trial.keeps_nan,
        "exact": trial.exact,
        "step": trial.step,
    }


def _to_trial(fields: Mapping[str, Any], number: int, arrays: Mapping[str, Array]) -> Trial:
    def by_name(prefix: str, names: Sequence[str]) -> dict[str, Array]:
        return {name: arrays[f"{number}/{prefix}/{name}"] for name in names}

    return Trial(
        signature=str(fields["signature"]),
        kind=str(fields["kind"]),
        sizes={str(name): int(size) for name, size in fields["sizes"].items()},
        inputs=by_name("input", fields["inputs"]),
        differentiated=tuple(map(str, fields["differentiated"])),
        variables=tuple(map(str, fields["variables"])),
        outputs=tuple(map(str, fields["outputs"])),
        cotangents=tuple(
            by_name(f"cotangent/{order}", names)
            for order, names in enumerate(fields["cotangents"], start=1)
        ),
        expected=tuple(
            by_name(f"result/{order}", names) for order, names in enumerate(fields["expected"])
        ),
        deviations={
            str(name): tuple(map(str, several))
            for name, several in fields.get("deviations", {}).items()
        },
        precisions={str(k): str(v) for k, v in fields.get("precisions", {}).items()},
        keeps_nan=bool(fields.get("keeps_nan", False)),
        exact=bool(fields.get("exact", True)),
        step=int(fields.get("step", 0)),
    )


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        with open_npz(path) as entries:
            header = json.loads(entries["header"].tobytes())
            arrays = {
                str(key): entries[key].view(dtype_from_name(name, where=str(path)).numpy)
                for key, name in header["dtypes"].items()
            }
    except (OSError, InteropError):
        raise
    except NPZ_ERRORS as error:
        raise _damaged(path, error) from error
    return header, arrays


def _damaged(path: str | os.PathLike[str], error: Exception) -> FormatError:
    return FormatError(
        f"{path} is not a file of trials, or is damaged: {type(error).__name__}: {quote(error)}. "
        "To do: record it again with `jax-tf-bridge verify --record`."
    )
