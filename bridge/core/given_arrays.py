"""Arrays that a user gives in a file or as text, with the dtypes that a function takes."""

from __future__ import annotations

import json
import os
from typing import Any

import jax.numpy as jnp
import numpy as np

from bridge.core.npz_file import NPZ_ERRORS, open_npz
from savedmodel.files.model_folder import locate, read_file
from xla_call_module.dtypes import Array
from xla_call_module.errors import DtypeError, FormatError, InteropError, quote

_MAX_JSON_BYTES = 1 << 28


def read_arrays(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Return the arrays of an .npz file by name."""
    try:
        with open_npz(path) as entries:
            return {str(name): entries[name] for name in entries.files}
    except (OSError, InteropError):
        raise
    except NPZ_ERRORS as error:
        raise FormatError(
            f"{path} is not a .npz file, or is damaged: {type(error).__name__}: {quote(error)}. To "
            "do: write it with numpy.savez(file, name=array)."
        ) from error


def read_array(path: str | os.PathLike[str]) -> Array:
    """Return the array of a .npy file, or of a .json file with numbers in nested lists."""
    folder, name = locate(path)
    if name.endswith(".json"):
        return parse_json_array(
            read_file(path, limit=_MAX_JSON_BYTES).decode("utf-8", "replace"), where=str(path)
        )
    try:
        with folder.open(name) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, InteropError):
        raise
    except NPZ_ERRORS as error:
        raise FormatError(
            f"{path} is not a .npy file, or is damaged: {type(error).__name__}: {quote(error)}. To "
            "do: write it with numpy.save(file, array)."
        ) from error


def parse_json_array(text: str, *, where: str) -> Array:
    """Return the array that JSON has as a number, or as numbers in nested lists.

    Texts stand for the numbers that JSON lacks.

    >>> parse_json_array('[[1, 2.5], ["NaN", "-Infinity"]]', where="x")
    array([[ 1. ,  2.5],
           [ nan, -inf]])
    >>> parse_json_array('"1+2j"', where="x")
    array(1.+2.j)
    """
    try:
        array = np.asarray(json.loads(text))
    except (ValueError, OverflowError, RecursionError) as error:
        raise FormatError(
            f"{where} is not JSON of numbers in nested lists: {quote(error)}. To do: write it as "
            "[[1, 2], [3, 4]]."
        ) from error
    if array.dtype.kind == "U":
        try:
            array = array.astype(np.complex128)
        except ValueError as error:
            raise DtypeError(
                f"{where} has a text that is not a number: {quote(error)}. To do: write numbers; "
                '"NaN", "Infinity" and "1+2j" are the texts that stand for one.'
            ) from error
        array = array if array.imag.any() else array.real
    if array.dtype.kind not in "biufc":
        raise DtypeError(
            f"{where} is {text.strip():.80}, which is not an array of numbers. To do: write "
            "numbers in nested lists, such as [[1, 2], [3, 4]]."
        )
    return array


def fit_array(array: Array, dtype: np.dtype[Any], where: str) -> Array:
    """Return an array with the dtype that a function takes; floats are rounded to it."""
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "V" and array.dtype.itemsize == dtype.itemsize:
        return array.view(dtype)
    is_number = array.dtype.kind in "biuf" or jnp.issubdtype(array.dtype, jnp.inexact)
    if is_number and _keeps_kind(array.dtype, dtype):
        with np.errstate(all="ignore"):
            made = array.astype(dtype)
        if jnp.issubdtype(dtype, jnp.inexact):
            changed = np.isfinite(_wide(array)) & ~np.isfinite(_wide(made))
        else:
            changed = np.asarray(made.astype(array.dtype) != array)
        if not changed.any():
            return made
        reason = f" with the value {array[changed][0]}, which {dtype.name} does not hold"
    else:
        reason = ""
    raise DtypeError(
        f"{where} is {array.dtype.name}{reason}; expected {dtype.name}. To do: cast it."
    )


def _keeps_kind(source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Return whether numbers of a dtype can be meant for another one: no complex for real ones."""
    if target == np.bool_ or source == np.bool_:
        return bool(source == target)
    return jnp.issubdtype(target, jnp.complexfloating) or not jnp.issubdtype(
        source, jnp.complexfloating
    )


def _wide(array: Array) -> Array:
    return np.asarray(array, np.complex128)
