"""Functions of users that are run as the reference, with inputs for which they may not return.

A loop may go on for ever for numbers that it is not made for, and LAPACK's `gesdd` for some
matrices with infinities. What has such a loop or call runs in a process that is ended then.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from bridge.core.limited_process import ProcessDeath, WorkerProcess
from bridge.core.worker_messages import describe_arrays, read_arrays
from bridge.loading.limited_program import compile_strictly
from xla_call_module.call import CallModule
from xla_call_module.dtypes import Array
from xla_call_module.errors import UnsupportedError, shown_as_base
from xla_call_module.linalg.library_calls import library_routine
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import custom_call_targets, open_module, read_counter, walk

# The first call compiles the function; a later one may take as many times the longest so far.
MAX_SECONDS, MIN_SECONDS, MAX_RATIO = 600.0, 30.0, 20.0
# The routines of libraries that iterate until something is small.
_ITERATING = frozenset({
    "gees", "geev", "gesdd", "gesvd", "gesvdj", "gesvdp", "heevd", "syevd", "syevj",
})  # fmt: skip
_START = """
import os, sys
sys.path[:] = sys.argv[1:]
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
from bridge.loading.limited_program import main
main()
"""


@shown_as_base
class TimeLimitError(UnsupportedError):
    """A function did not return within the time that it was given."""


def may_not_return(call: CallModule) -> bool:
    """Return whether a function has a loop or a library call that may not end for some values."""
    if not mentions(call.module, [b"while", b"lapack", b"solver"]):
        return False
    with open_module(call.module) as module:
        return any(_may_not_end(view.operation) for view in walk(module))


def _may_not_end(operation: Any) -> bool:
    if operation.name == "stablehlo.while":
        condition, body = (region.blocks[0] for region in operation.regions)
        return read_counter(condition, body) is None
    target = library_routine(operation)
    return target is not None and target.routine in _ITERATING


class _JaxProcess(WorkerProcess):
    """A process with JAX."""

    def _command(self, folder: Path) -> list[str]:
        del folder
        paths = [os.path.abspath(path) for path in sys.path]
        return [sys.executable, "-c", _START, *paths]


class LimitedCalls:
    """Calls of a function that is compiled, each of which returns or raises within some time.

    What certainly returns is called here, and all else in a process, which ends with this object.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        call: CallModule,
        *,
        static_argnums: tuple[int, ...] = (),
        first_seconds: float | None = None,
    ) -> None:
        """Take a function."""
        self._first_seconds = first_seconds or MAX_SECONDS
        self._function = function
        self._compiled = compile_strictly(function, static_argnums)
        self._process = _JaxProcess(seconds=MAX_SECONDS) if may_not_return(call) else None
        self._name = call.name
        self._programs: list[tuple[Any, export.Exported, Any]] = []
        self._loaded: set[tuple[int, int]] = set()
        self._longest = 0.0
        if self._process is not None:
            weakref.finalize(self, self._process.close)
            with open_module(call.module) as module:
                targets = custom_call_targets(walk(module))
            self._checks = [export.DisabledSafetyCheck.custom_call(target) for target in targets]

    def __call__(self, *arguments: Any, static: tuple[Any, ...] = ()) -> Any:
        """Return the results."""
        if self._process is None:
            return self._compiled(*static, *arguments)
        leaves, tree = tree_util.tree_flatten(arguments)
        arrays = {str(index): np.asarray(leaf) for index, leaf in enumerate(leaves)}
        shapes = [(array.shape, array.dtype) for array in arrays.values()]
        number = self._number((static, tree, shapes), static, tree, leaves)
        _, exported, out_tree = self._programs[number]
        return tree_util.tree_unflatten(
            out_tree, self._run(self._process, number, exported, arrays)
        )

    def _number(
        self, key: Any, static: tuple[Any, ...], tree: tree_util.PyTreeDef, leaves: list[Any]
    ) -> int:
        """Return the number of the program for static arguments, and shapes of the others."""
        keys = [known for known, _, _ in self._programs]
        if key in keys:
            return keys.index(key)
        out_tree = tree

        def flat(*leaves: Any) -> list[Any]:
            nonlocal out_tree
            results = self._function(*static, *tree_util.tree_unflatten(tree, leaves))
            flat_results, out_tree = tree_util.tree_flatten(results)
            return flat_results

        exported = export.export(jax.jit(flat), disabled_checks=self._checks)(*leaves)
        self._programs.append((key, exported, out_tree))
        return len(keys)

    def _run(
        self,
        process: WorkerProcess,
        number: int,
        exported: export.Exported,
        arrays: dict[str, Array],
    ) -> list[Array]:
        process.start()
        is_new = (number, process.starts) not in self._loaded
        seconds = self._first_seconds if is_new else max(MIN_SECONDS, MAX_RATIO * self._longest)
        began = time.monotonic()
        try:
            if is_new:
                process.request("load", [bytes(exported.serialize())], number=number)
            answer, parts = process.request(
                "run",
                [*arrays.values()],
                seconds=seconds,
                number=number,
                arrays=describe_arrays(arrays),
            )
        except ProcessDeath as error:
            raise TimeLimitError(
                f"JAX does not run {self._name} with these inputs: {error}. To do: make it end for "
                "all inputs."
            ) from error
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self._loaded.add((number, process.starts))
        self._longest = max(self._longest, 0.0 if is_new else time.monotonic() - began)
        return [*read_arrays(answer["arrays"], parts).values()]
