"""Errors of tracing a function, with a sentence in front that says what to do.

The errors stay of the classes that JAX and its frameworks raise, besides being ours. No framework
is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jax import tree_util

from bridge.core._jax import tracing_error_kind
from xla_call_module.errors import (
    ArgumentError,
    InteropError,
    StructureError,
    UnsupportedError,
    shown_as_base,
)
from xla_call_module.tracebacks import is_internal_file, raised_at

_BIND = "bind it, as in functools.partial(f, train=False), or leave it to its default"
_NUMPY = (
    "hands a traced array to NumPy{at}, which computes with numbers alone. To do: compute it with "
    "jax.numpy, as in jnp.tanh(x) for np.tanh(x)"
)
_TENSORFLOW = (
    "hands a traced array to TensorFlow{at}, which computes with tensors alone. To do: compute it "
    "with jax.numpy, or make a JAX function of TensorFlow's with bridge.call_tf"
)
_BRANCH = (
    "takes an argument as a Python value{at}, as `if`, `while`, `and` and `assert` do, and an "
    "exported function gets arrays. To do: compute with jnp.where, jax.lax.cond or "
    f"jax.lax.while_loop; where the argument is a setting, {_BIND}"
)
_NUMBER = (
    "takes an array as a Python number{at}, as float(x), int(x), x.item() and range(x) do, and a "
    "traced array has no value. To do: compute with the array itself, as in x / x.sum(); where an "
    f"argument is a setting, {_BIND}"
)
_SHAPE = (
    "takes the value of an array as a size{at}, and shapes of an export cannot depend on values. "
    f"To do: take the size of a shape, as in x.shape[0]; where it is an argument, {_BIND}"
)
_MASK = (
    "selects by a mask{at}, as in x[x > 0], and the size of the result depends on values. To do: "
    "compute with all elements, as in jnp.where(x > 0, x, 0), or select a fixed number, as in "
    "jnp.nonzero(x > 0, size=8)"
)
_RESULT = (
    "returns a value that is not an array. To do: return arrays, and pytrees of them; the caller "
    "can add others, such as labels as text"
)
_FIXED = (
    "needs a symbolic size as a number{at}. To do: export it with a fixed size, as in "
    "args='f32[8,3]', or with a constraint that decides the comparison, such as "
    "polymorphic_constraints=['mod(b, 8) == 0'] of convert and --constraint of jax-tf-bridge export"
)
_SORTED = (
    "has a dict whose keys have no order, such as 1 and 'a' together, and JAX sorts keys. To do: "
    "take keys of one kind, such as text"
)
_SCOPE = (
    "gets symbolic sizes of several scopes, one of each call of jax.export.symbolic_shape. To do: "
    "pass scope= to the later calls, with the scope of the first; or give all arguments as text, "
    "as in args='f32[b,3], f32[c,3]'"
)
_KEY = (
    "draws random numbers, and has no key. To do: save it in inference mode, with "
    "is_training=False (Haiku) or deterministic=True or train=False (linen); or pass a function "
    "that takes a key and hands it on, as in lambda params, key, x: f.apply(params, key, x)"
)
_STATE = (
    "changes its state, as in training. To do: save it in inference mode, with train=False or "
    "use_running_average=True; or pass a function that calls apply with mutable= and returns the "
    "new state, too"
)
_BY_KIND = {
    "branch": _BRANCH,
    "keys": _SORTED,
    "mask": _MASK,
    "number": _NUMBER,
    "numpy": _NUMPY,
    "result": _RESULT,
    "scope": _SCOPE,
    "shape": _SHAPE,
    "size": _FIXED,
}
_OF_TENSORFLOW = {"keras", "tensorflow", "tf_keras"}
_OF_FRAMEWORKS = {
    ("haiku", "MissingRNGError"): _KEY,
    ("flax", "InvalidRngError"): _KEY,
    ("flax", "ModifyScopeVariableError"): _STATE,
}


def explain_tracing(name: str, error: Exception) -> StructureError | None:
    """Return the error to raise for one of tracing; None where it is the function's own."""
    if isinstance(error, InteropError):
        return None
    framework = type(error).__module__.partition(".")[0]
    what = _BY_KIND.get(tracing_error_kind(error)) or _OF_FRAMEWORKS.get(
        (framework, type(error).__name__)
    )
    if what is None:
        return None
    at, called = raised_at(error)
    if what == _NUMPY and {*called} & _OF_TENSORFLOW:
        what = _TENSORFLOW
    cls: Any = {ValueError: StructureError, TypeError: ArgumentError}.get(type(error))
    if cls is None:
        cls = shown_as_base(type(type(error).__name__, (StructureError, type(error)), {}))
    # The further lines name the function that was traced, and a page of JAX.
    raised = str(error).strip().partition("\n")[0]
    explained: StructureError = cls(f"{name} {what.format(at=at)}. JAX says: {raised}")
    return explained


@contextmanager
def refusing_unsortable_keys(where: str) -> Iterator[None]:
    """Return a context in which JAX's error of dict keys without an order is one of ours."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, InteropError) or tracing_error_kind(error) != "keys":
            raise
        raise StructureError(f"{where} {_SORTED}.") from error


def flatten(tree: Any, *, where: str) -> tuple[list[Any], tree_util.PyTreeDef]:
    """Return the leaves of a pytree and its structure."""
    try:
        return tree_util.tree_flatten(tree)
    except ValueError:
        with refusing_unsortable_keys(where):
            raise


def arguments_of(args: Collection[Any], kwargs: Collection[str]) -> str:
    """Return how many positional arguments a call has, and which ones by name.

    Example:
        >>> arguments_of([1.0], {"mask": 2.0})
        'one argument and mask by name'
    """
    count = {0: "no argument", 1: "one argument"}.get(len(args), f"{len(args)} arguments")
    if not kwargs:
        return count
    named = f"{', '.join(kwargs)} by name"
    return f"{count} and {named}" if args else named


def calls_back(name: str, frames: Sequence[tuple[str, int]]) -> UnsupportedError:
    """Return the error of a function that calls back to Python."""
    equinox = getattr(sys.modules.get("equinox"), "__file__", None)
    own = [
        (file, line)
        for file, line in frames
        if not (
            is_internal_file(file) or (equinox and Path(file).is_relative_to(Path(equinox).parent))
        )
    ]
    at = f" at {own[0][0]}:{own[0][1]}" if own else ""
    if any(Path(file).parts[-2:] == ("equinox", "_errors.py") for file, _ in frames):
        return UnsupportedError(
            f"{name} checks its values with equinox.error_if{at}, which calls back to Python, and "
            "the callback cannot leave this process. To do: set the environment variable "
            "EQX_ON_ERROR=nan before equinox is imported, for NaN instead of an error, or "
            "EQX_ON_ERROR=off; or pass throw=False to the solvers of diffrax, optimistix and "
            "lineax."
        )
    return UnsupportedError(
        f"{name} calls back to Python{at}, and the callback cannot leave this process. To do: "
        "leave pure_callback, io_callback and debug.print out of what is exported; a function of "
        "bridge.call_tf is called back with compiled=False, which graph=True replaces."
    )
