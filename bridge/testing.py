"""Assertions for tests that cross frameworks. TensorFlow is imported when one is called."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, tree_util

from bridge.core.backend import require_own_runtime, require_tensorflow
from bridge.core.narrowing import check_narrowing
from bridge.exporting.lowering import export_for
from bridge.verifying.comparison import Tolerance
from xla_call_module._jax import survive_forks
from xla_call_module.errors import StructureError, remedy_for
from xla_call_module.exported import argument_paths
from xla_call_module.tracebacks import api_boundary

__all__ = ["assert_gradients_match"]


def __dir__() -> list[str]:
    return __all__


_MODES = ("eager", "graph", "jit", "saved", "tf_saved", "resaved")


@api_boundary
def assert_gradients_match(
    fun: Callable[..., Any] | export.Exported,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    order: int = 2,
    modes: Sequence[str] = _MODES,
    reference: Callable[..., Any] | None = None,
    variables: bool = False,
    forward: bool = False,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
) -> None:
    """Assert that TensorFlow computes the same values and gradients of a function as JAX.

    Gradients are compared by random cotangents: order 1 pulls one for each result back to the
    arguments, and each higher order pulls one for each gradient of the order below back to the
    arguments and to the cotangents that it had. Dtypes that TensorFlow does not
    differentiate, such as integers and float8, are compared in the values only. TensorFlow may have
    None where JAX has zeros, and must have it for arguments that the function does not use.

    Args:
        fun: a Python function of JAX arrays, a `jax.jit`-ed one, or a `jax.export.Exported`.
        args: pytrees of arrays and Python numbers, as `fun` takes them.
        kwargs: the keyword arguments.
        order: the highest order of gradients to compare; 0 compares values only.
        modes: the ways in which TensorFlow runs it, some of

            - `eager`, `graph` (in `tf.function`) and `jit` (there with `jit_compile=True`);
            - `saved`: written by `bridge.save` and loaded by TensorFlow;
            - `resaved`: the same, saved again by TensorFlow and loaded;
            - `tf_saved`: `bridge.convert`-ed in a `tf.Module` that TensorFlow saved and loaded.
        reference: the JAX function to compare with; by default `fun` itself.
        variables: whether the first argument is held in `tf.Variable`s, as parameters are.
        forward: whether `tf.autodiff.ForwardAccumulator` is compared with `jax.jvp`, too.
        rtol: the relative tolerance. The default depends on the least precise dtype of floats that
            a result is computed with: 1e-10 for float64, 1e-4 for float32, 0.008 for float16, 0.06
            for bfloat16. Integers and booleans must be equal.
        atol: the absolute tolerance. By default `rtol` times the largest number of its
            array, and a little for rounding in larger ones beside it.
        seed: the seed of the random cotangents and tangents.

    Raises:
        AssertionError: they differ. The message names the first difference: mode, order, the paths
            of result and argument, the index of the worst element, both numbers, the tolerance.
        InteropError: options or arguments that make no sense, or a function that cannot cross.

    Example:
        >>> import bridge.testing, jax.numpy as jnp
        >>> def network(params, x):
        ...     return jnp.tanh(x @ params["w"])
        >>> params, x = {"w": jnp.ones((3, 2))}, jnp.ones((4, 3))
        >>> bridge.testing.assert_gradients_match(network, params, x, modes=["eager", "saved"])
        >>> bridge.testing.assert_gradients_match(network, params, x, reference=lambda params, x:
        ...     x @ params["w"], modes=["eager"])
        Traceback (most recent call last):
        AssertionError: network in the mode 'eager': result at index (0, 0) is 0.99505...
    """
    _check_options(order, modes)
    require_tensorflow("bridge.testing")
    survive_forks()
    require_own_runtime("gradients to compare with")
    from bridge.checking_gradients.gradient_check import GradientCheck, to_problem
    from bridge.checking_gradients.modes import TensorFlowModes

    arguments = _to_arrays((args, dict(kwargs or {})))
    if variables and not args:
        raise StructureError(
            "variables=True makes variables of the first argument, and there is none. To do: pass "
            "one."
        )
    exported = fun if isinstance(fun, export.Exported) else _export(fun, arguments)
    problem = to_problem(
        exported,
        arguments,
        reference=reference or (fun.call if isinstance(fun, export.Exported) else fun),
        order=order,
        tolerance=Tolerance(rtol, atol),
        seed=seed,
    )
    expected = problem.solve(problem.cotangents)
    first = tree_util.tree_leaves(args[0]) if variables else []
    with tempfile.TemporaryDirectory() as folder:
        tensorflow_modes = TensorFlowModes(
            exported,
            problem.call.args,
            variables=problem.tensors[: len(first)],
            params=arguments[0][0] if variables else None,
            # Forward mode is the gradient of the gradient with respect to its cotangent.
            order=max(order, 2) if forward else order,
            folder=Path(folder),
        )
        for mode in modes:
            with _note(f"in the mode {mode!r} of assert_gradients_match"):
                check = GradientCheck(
                    problem,
                    tensorflow_modes.prepare(mode),
                    f"{exported.fun_name} in the mode {mode!r}",
                )
                check.orders(expected)
                if forward:
                    check.forward_mode()


def _to_arrays(arguments: Any) -> Any:
    leaves, tree = tree_util.tree_flatten(arguments)
    arrays = []
    for path, leaf in zip(argument_paths(tree), leaves, strict=True):
        if isinstance(leaf, np.ndarray | np.generic):
            check_narrowing(np.asarray(leaf), path)
        try:
            arrays.append(jnp.asarray(leaf))
        except (TypeError, ValueError) as error:
            raise StructureError(
                f"{path} is a {type(leaf).__name__}; expected an array or a Python number. "
                f"JAX says: {error}"
            ) from error
    return tree_util.tree_unflatten(tree, arrays)


def _export(fun: Callable[..., Any], arguments: Any) -> export.Exported:
    if not callable(fun):
        raise StructureError(
            f"Expected a Python function or a jax.export.Exported, got {type(fun).__name__}. "
            f"{remedy_for(fun, otherwise='pass one of these')}"
        )
    args, kwargs = arguments
    jitted = fun if isinstance(fun, jax.stages.Wrapped) else jax.jit(fun)
    return export_for(
        jitted,
        args,
        kwargs,
        name=str(getattr(fun, "__name__", type(fun).__name__)),
        platforms=(export.default_export_platform(),),
        disabled_checks=(),
    )


@contextmanager
def _note(text: str) -> Iterator[None]:
    """Add a note to errors of JAX or TensorFlow."""
    try:
        yield
    except AssertionError:
        raise
    except Exception as error:
        error.add_note(text)
        raise


def _check_options(order: int, modes: Sequence[str]) -> None:
    given: Any = order  # users may pass anything
    if not isinstance(given, int) or given < 0:
        raise StructureError(f"order is {order!r}; expected a whole number, 0 or more.")
    names = () if isinstance(modes, str) else tuple(modes)
    if not names or not set(names) <= set(_MODES):
        raise StructureError(
            f"modes is {modes!r}; expected a sequence of some of {_MODES}. To do: pass these."
        )
