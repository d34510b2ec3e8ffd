"""One function of the matrix, as a file for every platform, and what JAX computes on a CPU."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bridge
from tests.matrix.case import Case
from tests.matrix.files import (
    case_settings,
    cotangent_of,
    expected_warnings,
    is_inexact,
    logical_arguments,
    physical_array,
)
from tests.matrix.functions import FAMILIES

BATCHES = (1, 3, 17)
ORDER = 2
BY_NAME = {
    case.name: case for family, cases in FAMILIES.items() if family != "shardings" for case in cases
}
# What one platform has no lowering for is written for the others.
_PLATFORMS = (("cpu", "cuda", "tpu"), ("cpu", "cuda"), ("cpu",))


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call, without typed keys, and the results and gradients on a CPU.

    Attributes:
        arguments: of the function, after its parameters.
        results: the leaves of what it returns.
        gradients: for each order from 1 on the derivative of a weighted sum of the former order's
            with respect to the first inexact argument, in the convention of TensorFlow.
    """

    arguments: list[Any]
    results: list[Any] = field(default_factory=list)
    gradients: list[Any] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Written:
    """What a process wrote for one case.

    Attributes:
        path: of the SavedModel.
        platforms: what it is for.
        calls: with what JAX computed in that process.
    """

    path: Path
    platforms: tuple[str, ...]
    calls: list[Call]


class Derivatives:
    """The orders of one function of leaves, each a function of the leaf that is differentiated.

    A function of order k + 1 is the gradient of the sum of order k's results, each times a fixed
    cotangent; of complex numbers it is the conjugate of JAX's, as in TensorFlow.
    """

    def __init__(self, function: Callable[..., Sequence[Any]], arguments: Sequence[Any]) -> None:
        self._function, self._arguments = function, tuple(arguments)
        inexact = (index for index, arg in enumerate(arguments) if is_inexact(arg))
        self.index = next(inexact, None)

    def values(self, order: int) -> list[Any]:
        """Return the results, and then each gradient until that order, compiled as one program."""
        if self.index is None:
            order = 0
        return jax.jit(lambda *args: self._orders(order, args))(*self._arguments)

    def _orders(self, order: int, arguments: Sequence[Any]) -> list[Any]:
        results = list(self._function(*arguments))
        if not order or not any(map(is_inexact, results)):
            return [results]

        def inexact(arg: Any) -> list[Any]:
            changed = [*arguments[: self.index], arg, *arguments[self.index + 1 :]]  # type: ignore[index]
            return [result for result in self._function(*changed) if is_inexact(result)]

        def gradient(arg: Any, of: Callable[[Any], list[Any]] = inexact) -> Any:
            leaves, pull_back = jax.vjp(of, arg)
            (found,) = pull_back([jnp.conj(cotangent_of(leaf)) for leaf in leaves])
            return jnp.conj(found)

        arg = arguments[self.index]  # type: ignore[index]
        orders = [gradient(arg)]
        if order > 1:
            orders.append(gradient(arg, of=lambda arg: [gradient(arg)]))
        return [results, *orders]


@contextlib.contextmanager
def settings_of(case: Case) -> Iterator[None]:
    """JAX's settings of a case, and the warnings that it gives."""
    with case_settings(case), expected_warnings(case):
        yield


def written_calls(case: Case) -> list[Call]:
    """The arguments of the calls of a case: where it has symbolic sizes, of three batches."""
    if case.shapes is None:
        return [Call(list(args)) for args in (case.args, *case.more)]
    return [Call(_resized(case, batch)) for batch in BATCHES]


def _resized(case: Case, size: int) -> list[Any]:
    """The arguments with each symbolic size as that number, their numbers repeated or cut."""
    assert case.shapes is not None
    scope = jax.export.SymbolicScope()
    resized = []
    for arg, text in zip(case.args, case.shapes, strict=True):
        shape = jax.export.symbolic_shape(text, scope=scope, like=arg.shape)
        numbers = [eval(str(dim), {"__builtins__": {}}, _Sizes(size)) for dim in shape]
        resized.append(np.resize(arg, numbers))
    return resized


class _Sizes(dict[str, int]):
    """The same number for each name."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __missing__(self, name: str) -> int:
        return self._size


def write(name: str, folder: Path) -> Written:
    """Write a case into a new folder, by a process that sees a CPU alone."""
    assert jax.default_backend() == "cpu"
    assert "tensorflow" not in sys.modules
    warnings.simplefilter("error")
    # JAX differentiates all arguments for a file, and here the first one.
    warnings.filterwarnings("ignore", ".* is saved with gradients up to order", UserWarning)
    case = BY_NAME[name]
    calls = written_calls(case)
    params = () if case.params is None else (case.params,)
    function = lambda *args: jax.tree.leaves(case.function(*params, *args))  # noqa: E731
    with settings_of(case):
        order = ORDER if case.gradient else 0
        for call in calls:
            arguments = logical_arguments(case, call.arguments)
            order, (results, *gradients) = _differentiated(function, arguments, order)
            call.results.extend(map(physical_array, results))
            call.gradients.extend(map(physical_array, gradients))
        platforms = _save(case, folder / "model", order, len(calls[0].results))
        orders = len(bridge.inspect(folder / "model").signatures[0].orders)
    for call in calls:
        del call.gradients[orders - 1 :]
    return Written(folder / "model", platforms, calls)


def _differentiated(
    function: Callable[..., Any], arguments: Sequence[Any], order: int
) -> tuple[int, list[Any]]:
    """The results and gradients of that order, or of the highest that JAX can differentiate."""
    derivatives = Derivatives(function, arguments)
    while True:
        try:
            return order, derivatives.values(order)
        except (NotImplementedError, TypeError, ValueError):
            if not order:
                raise
            order -= 1


def _save(case: Case, path: Path, order: int, results: int) -> tuple[str, ...]:
    args = tuple(
        jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in logical_arguments(case, case.args)
    )
    if case.shapes is not None:
        args = jax.export.symbolic_args_specs(args, tuple(case.shapes))
    choices = _PLATFORMS if case.platforms == ("cpu",) else (case.platforms,)
    for platforms in choices:
        try:
            bridge.save(
                case.function,
                path,
                params=case.params,
                args=args,
                inputs=[f"x{index}" for index in range(len(args))],
                outputs=[f"y{index}" for index in range(results)],
                platforms=platforms,
                gradient_order=order,
            )
        except bridge.PlatformError:
            if platforms == choices[-1]:
                raise
        else:
            break
    return platforms
