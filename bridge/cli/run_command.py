"""The command `jax-tf-bridge run`: one call of what is in a file, and its results."""

from __future__ import annotations

import argparse
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.text import Text

from bridge.core.given_arrays import fit_array, parse_json_array, read_array, read_arrays
from bridge.core.probes import EDGES, RANDOM, choose_sizes, draw
from bridge.formats.file_format import RuntimeCall
from bridge.formats.format_registry import format_of
from bridge.formats.runnable import Runnable
from bridge.formats.runtime_calls import JAX, RuntimeProcess
from bridge.inspecting.cost import parse_sizes
from bridge.inspecting.wording import counted, printable, size
from savedmodel.files.folder import hidden_folder
from xla_call_module.call import TensorSpec, bind_symbols
from xla_call_module.dimensions import aval_text
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError

_KINDS = (RANDOM, *EDGES)
_MAX_SHOWN = 1000  # elements of an array; of larger ones the corners are shown


@dataclass(frozen=True, slots=True)
class _GivenInputs:
    """The inputs as the user gives them.

    Attributes:
        arrays: by names of inputs or paths of arguments.
        kinds: for others the kind of probe that is drawn.
        rest: the kind of all that are left; empty for none.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    rest: str = ""


def run_run_command(options: argparse.Namespace) -> int:
    """Call the function, print or write its results, and return the exit status."""
    given = _read_inputs(options.input)
    # Files have the dtypes that they were exported with, whatever JAX is set to.
    with jax.enable_x64(True):
        runnable = format_of(options.path).open(options.path, options.signature)
        arrays, sizes = _arrays(runnable, given, parse_sizes(options.size), seed=options.seed)
        is_drawn = bool(given.rest or given.kinds)
        results = _call_drawn(options, runnable, arrays) if is_drawn else runnable.call(arrays)
    if options.output is not None:
        _write(options.output, results)
    if options.json:
        print(json.dumps(_to_json(options.path, runnable, arrays, sizes, results), indent=2))
    elif options.output is not None:
        written = size(os.path.getsize(options.output))
        print(f"{options.output}: {counted(len(results), 'array')}, {written}")
    else:
        _print(runnable, sizes, results)
    return 0


def _call_drawn(
    options: argparse.Namespace, runnable: Runnable, arrays: dict[str, Array]
) -> dict[str, Array]:
    """Return the outputs for inputs that no user chose, for which a loop may never end."""
    call = RuntimeCall(options.path, options.signature, arrays, runnable.outputs)
    with RuntimeProcess(options.imports) as process:
        _, results = process.call(JAX, call)
    return dict(zip(runnable.outputs, results, strict=True))


def _read_inputs(texts: Sequence[str]) -> _GivenInputs:
    """Return the inputs that the user names."""
    arrays: dict[str, Array] = {}
    kinds: dict[str, str] = {}
    rest = ""
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals and text in _KINDS:
            rest = text
            continue
        new = read_arrays(os.path.expanduser(text)) if not equals else {}
        if equals and value in _KINDS:
            kinds[name] = value
        elif equals:
            new = {name: _read_value(name, value)}
        if twice := sorted(new.keys() & arrays.keys() | kinds.keys() & {*arrays, *new}):
            raise StructureError(f"--input gives {twice[0]} twice. To do: leave one out.")
        arrays |= new
    return _GivenInputs(arrays, kinds, rest)


def _read_value(name: str, value: str) -> Array:
    path = os.path.expanduser(value)
    if value.endswith((".npy", ".json")):
        return read_array(path)
    if value.endswith(".npz"):
        arrays = read_arrays(path)
        if name in arrays or len(arrays) == 1:
            return arrays.get(name, next(iter(arrays.values())))
        raise StructureError(
            f"{value} has the arrays {', '.join(arrays) or 'none'}, and none is {name}. To do: "
            f"pass the whole file, as --input {value}."
        )
    if not (value[:1].isdigit() or value[:1] in {"[", '"', "-"} or value in {"true", "false"}):
        raise StructureError(
            f"--input {name}={value} is not an input. To do: write the path of a .npy, .npz or "
            f".json file, JSON such as [[1, 2]], or one of {', '.join(_KINDS)}."
        )
    return parse_json_array(value, where=f"--input {name}")


def _arrays(
    runnable: Runnable, given: _GivenInputs, wanted: Mapping[str, int], *, seed: int
) -> tuple[dict[str, Array], dict[str, int]]:
    """Return all inputs, and the sizes of the dimension variables."""
    arrays = {_input_name(runnable, name): array for name, array in given.arrays.items()}
    kinds = {_input_name(runnable, name): kind for name, kind in given.kinds.items()}
    open_names = [name for name in runnable.inputs if name not in {*arrays, *kinds}]
    if given.rest:
        kinds |= dict.fromkeys(open_names, given.rest)
    elif missing := [name for name in open_names if name not in runnable.defaults]:
        raise StructureError(
            f"{runnable.name} takes {_describe(runnable)}; there is no {', '.join(missing)}. To "
            f"do: pass --input {missing[0]}=FILE.npy, =[[1, 2]] or =random; or --input FILE.npz, "
            "or --input random, for all."
        )
    sizes = _sizes(runnable, arrays, kinds, wanted)
    random = np.random.default_rng(seed)
    made = {}
    for name, spec in runnable.inputs.items():
        if name in arrays:
            made[name] = fit_array(arrays[name], spec.dtype.numpy, f"The input {name}")
        elif name in kinds:
            made[name] = draw(spec, kinds[name], sizes, random)
    return made, sizes


def _input_name(runnable: Runnable, name: str) -> str:
    """Return the input of a name, or of the path of an argument."""
    if name in runnable.inputs:
        return name
    for known, spec in runnable.inputs.items():
        if name.replace('"', "'") == spec.path:
            return known
    raise StructureError(
        f"{runnable.name} has no input {name!r}; it takes {_describe(runnable)}. To do: take one "
        "of these names, or the path of its argument."
    )


def _describe(runnable: Runnable) -> str:
    pairs = runnable.inputs.items()
    texts = [
        f"{name}: {aval_text(spec.dtype.name, spec.shape)} ({spec.path})" for name, spec in pairs
    ]
    return ", ".join(texts) or "nothing"


def _sizes(
    runnable: Runnable,
    arrays: Mapping[str, Array],
    kinds: Mapping[str, str],
    wanted: Mapping[str, int],
) -> dict[str, int]:
    """Return the dimension variables: those of the arrays, those asked for, or the least."""
    if unknown := sorted(wanted.keys() - set(runnable.symbols)):
        raise StructureError(
            f"{unknown[0]} is not a dimension variable of {runnable.name}; it has "
            f"{', '.join(runnable.symbols) or 'none'}. To do: name some of these."
        )
    specs: list[TensorSpec] = [*runnable.inputs.values()]
    shapes = [arrays[name].shape if name in arrays else None for name in runnable.inputs]
    known = bind_symbols(runnable.name, specs, shapes)
    for name, value in wanted.items():
        if known.setdefault(name, value) != value:
            raise StructureError(
                f"--size {name}={value} differs from the size in the arrays, {known[name]}. To do: "
                "leave it out."
            )
    free = [name for name in runnable.symbols if name not in known]
    if free and any(kind for kind in kinds.values()):
        known |= choose_sizes(free, 1, lambda chosen: runnable.accepts({**known, **chosen}))
    return {name: known[name] for name in runnable.symbols if name in known}


def _write(path: str, results: Mapping[str, Array]) -> None:
    """Write an .npz file, whole or not at all; dtypes that numpy lacks are their bytes."""
    target = Path(os.path.abspath(path))
    with hidden_folder(target.parent, target.name) as folder:
        with zipfile.ZipFile(folder / target.name, "w") as archive:
            for name, array in results.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
        (folder / target.name).replace(target)


def _print(runnable: Runnable, sizes: Mapping[str, int], results: Mapping[str, Array]) -> None:
    console = Console(highlight=False)
    title = ", ".join([runnable.name, *(f"{name}={value}" for name, value in sizes.items())])
    console.print(Text(printable(title), style="bold"), soft_wrap=True)
    for name, array in results.items():
        console.print(Text(printable(f"{name}: {aval_text(array.dtype, array.shape)}")))
        text = np.array2string(array, threshold=_MAX_SHOWN, max_line_width=console.width)
        console.print(Text(text), soft_wrap=True)


def _to_json(
    path: str,
    runnable: Runnable,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int],
    results: Mapping[str, Array],
) -> dict[str, Any]:
    def aval(array: Array) -> dict[str, Any]:
        return {"dtype": array.dtype.name, "shape": list(array.shape)}

    return {
        "path": path,
        "function": runnable.name,
        "sizes": dict(sizes),
        "inputs": {name: aval(array) for name, array in arrays.items()},
        "outputs": {
            name: aval(array) | {"value": _values(array)} for name, array in results.items()
        },
    }


def _values(array: Array) -> Any:
    """Return numbers in nested lists; texts for those that JSON lacks, as --input takes them.

    >>> _values(np.array([1.5, np.nan, -np.inf]))
    [1.5, 'NaN', '-Infinity']
    """
    if array.dtype.kind in "biu" or "int" in array.dtype.name:
        whole = array if array.dtype.kind in "biu" else array.astype(np.int64)
        return whole.tolist()
    if array.dtype.kind == "c":
        return np.vectorize(lambda number: str(number).strip("()"), otypes=[object])(array).tolist()
    # float32 becomes the shortest text that is it, and not all digits of its float64.
    number = np.vectorize(_number, otypes=[object])
    return number(array).tolist() if array.size else array.astype(np.float64).tolist()


def _number(value: Any) -> float | str:
    if np.isfinite(np.float64(value)):
        return float(str(value))
    return "NaN" if np.isnan(np.float64(value)) else "Infinity" if value > 0 else "-Infinity"
