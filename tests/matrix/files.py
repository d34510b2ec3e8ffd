"""`python -m tests.matrix.files FOLDER TARGET ... [--cases NAME ...]`: the cases as SavedModels.

It runs with the JAX under test, in processes that never see TensorFlow. `FOLDER/CASE/values.npz`
holds what each case is called with and what must come out, `FOLDER/CASE/TARGET` is the file for one
TensorFlow, and `FOLDER/written.json` says what became of each.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import bridge
from bridge.core._jax import replace_vjp
from tests.matrix.case import Case
from tests.matrix.functions import CASES, PLAIN_CASES
from tests.matrix.written import DEFAULT, VALUES, Written, write_written


def write_case(case: Case, folder: Path, targets: Sequence[str]) -> list[Written]:
    """One case for each target."""
    folder.mkdir()
    try:
        with case_settings(case):
            exported = _export(case)
            # Otherwise the gradient would be traced anew for each target.
            exported = replace_vjp(exported, functools.cache(exported.vjp))
            np.savez(folder / VALUES, **_values(case))
    except Exception as error:  # noqa: BLE001 - a case that fails is a cell of the grid
        return [Written(case.name, target, error=_describe(error)) for target in targets]
    return [_write_target(case, exported, folder / target) for target in targets]


def _write_target(case: Case, exported: export.Exported, path: Path) -> Written:
    wanted = None if path.name == DEFAULT else path.name
    try:
        with case_settings(case), expected_warnings(case):
            bridge.save(
                exported,
                path,
                params=case.params,
                inputs=[f"x{i}" for i in range(len(case.args))],
                outputs=[f"y{i}" for i in range(len(exported.out_avals))],
                tensorflow=wanted,
                operations=case.operations,
            )
        return Written(case.name, path.name, oldest=bridge.inspect(path).tensorflow)
    except Exception as error:  # noqa: BLE001 - a file that fails is a cell of the grid
        return Written(case.name, path.name, error=_describe(error))


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def case_settings(case: Case) -> Iterator[None]:
    wanted = {"jax_enable_x64": case.x64, "jax_use_shardy_partitioner": case.shardy}
    # A JAX that has no other partitioner than Shardy has no such setting.
    before = {name: getattr(jax.config, name) for name in wanted if hasattr(jax.config, name)}
    try:
        for name in before:
            jax.config.update(name, wanted[name])
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


@contextlib.contextmanager
def expected_warnings(case: Case) -> Iterator[None]:
    with warnings.catch_warnings():
        if not case.gradient:
            warnings.filterwarnings("ignore", ".* is saved without a gradient", UserWarning)
        yield


def _export(case: Case) -> export.Exported:
    # An array lies on a device, and a function may be for several.
    args = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in logical_arguments(case, case.args))
    if case.shapes is not None:
        args = export.symbolic_args_specs(args, tuple(case.shapes))
    params = () if case.params is None else (case.params,)
    return export.export(case.jit(case.function), platforms=case.platforms)(*params, *args)


def logical_arguments(case: Case, args: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        jax.random.wrap_key_data(arg) if index in case.keys else jnp.asarray(arg)
        for index, arg in enumerate(args)
    )


def physical_array(value: Any) -> np.ndarray[Any, Any]:
    is_key = jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def _values(case: Case) -> dict[str, Any]:
    """Entries of the npz: `CALL/KIND/INDEX/DTYPE`.

    A dtype that npz files lack is stored as unsigned integers of its width.
    """
    values: dict[str, Any] = {"tolerance": np.float64(case.tolerance.relative)}
    for call, args in enumerate((case.args, *case.more)):
        for kind, arrays in _call(case, logical_arguments(case, args)).items():
            for index, array in arrays.items():
                key = f"{call}/{kind}/{index}/{array.dtype.name}"
                values[key] = array if array.dtype.isbuiltin == 1 else _bits(array)
    return values


def _bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.view(f"u{array.dtype.itemsize}")


def _call(case: Case, args: tuple[Any, ...]) -> dict[str, dict[int, np.ndarray[Any, Any]]]:
    params = () if case.params is None else (case.params,)

    def flat(*args: Any) -> list[Any]:
        return jax.tree.leaves(jax.jit(case.function)(*params, *args))

    outputs = dict(enumerate(flat(*args)))
    call = {"input": dict(enumerate(args)), "output": outputs}
    first = next((index for index, arg in enumerate(args) if is_inexact(arg)), None)
    if case.gradient and first is not None:
        call |= _pull_back(flat, args, first, outputs)
    return {
        kind: {i: physical_array(value) for i, value in found.items()}
        for kind, found in call.items()
    }


def is_inexact(value: Any) -> bool:
    # TensorFlow propagates no gradients through float8.
    return jnp.issubdtype(value.dtype, jnp.inexact) and value.dtype.itemsize > 1


def _pull_back(
    flat: Any, args: tuple[Any, ...], index: int, outputs: dict[int, Any]
) -> dict[str, dict[int, Any]]:
    """Cotangents of the inexact results, and the gradient of one argument, as TensorFlow has it.

    TensorFlow's gradient of a complex function is the conjugate of JAX's.
    """
    wanted = [i for i, output in outputs.items() if is_inexact(output)]
    if not wanted:
        return {}

    def inexact(arg: Any) -> list[Any]:
        results = flat(*args[:index], arg, *args[index + 1 :])
        return [results[i] for i in wanted]

    cotangents = [cotangent_of(outputs[i]) for i in wanted]
    _, pull_back = jax.vjp(inexact, args[index])
    (gradient,) = pull_back([jnp.conj(cotangent) for cotangent in cotangents])
    return {"cotangent": dict(zip(wanted, cotangents, strict=True)),
            "gradient": {index: jnp.conj(gradient)}}  # fmt: skip


def cotangent_of(output: Any) -> Any:
    steps = np.arange(output.size).reshape(output.shape)
    return jnp.asarray(np.cos(steps) + (0.5j if jnp.iscomplexobj(output) else 0), output.dtype)


def write_cases(folder: Path, targets: Sequence[str], names: Sequence[str] = ()) -> None:
    """All cases, or some, for every target, by as many processes as there are cores."""
    chosen = [case.name for case in (*CASES, *PLAIN_CASES) if not names or case.name in names]
    write = functools.partial(_write_named, folder=folder, targets=targets)
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        written = [entry for entries in processes.map(write, chosen) for entry in entries]
    write_written(folder, written)


def _write_named(name: str, *, folder: Path, targets: Sequence[str]) -> list[Written]:
    warnings.simplefilter("error")
    (case,) = (case for case in (*CASES, *PLAIN_CASES) if case.name == name)
    written = write_case(case, folder / name, targets)
    assert "tensorflow" not in sys.modules, "the files are written without TensorFlow"
    return written


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.files")
    parser.add_argument("folder", type=Path)
    parser.add_argument("targets", nargs="+")
    parser.add_argument("--cases", nargs="*", default=())
    arguments = parser.parse_args()
    write_cases(arguments.folder, arguments.targets, arguments.cases)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
