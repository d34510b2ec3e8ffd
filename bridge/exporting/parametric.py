"""Functions whose first argument is their parameters."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jax import tree_util

from bridge.core.trees import key_names
from bridge.exporting.plain_parameters import PlainParameters, is_plain
from bridge.exporting.trained import trained_leaves

__all__ = [
    "LINEN_TRAINED",
    "Parametric",
    "in_collection",
    "named",
    "of_function",
    "unwrapped",
]

# What a framework calls the collections that are trained.
LINEN_TRAINED = "params"


@dataclass(frozen=True, slots=True)
class Parametric:
    """A function whose first argument is its parameters.

    Attributes:
        call: the function, of the parameters and its own arguments; of the latter alone where
            there are no parameters.
        name: for messages.
        params: a pytree of arrays; None where there are none.
        trainable: for each leaf of `params`, in JAX's order, whether it is trained.
        inputs: specs of the arguments where the object knows them.
        input_names: names of these where it knows them, too.
        given: the parameters as the user passed them, where `params` are dicts of their arrays.
        arranged: what made these.
    """

    call: Callable[..., Any]
    name: str
    params: Any = None
    trainable: tuple[bool, ...] = ()
    inputs: tuple[Any, ...] | None = None
    input_names: tuple[str, ...] | None = None
    given: Any = None
    arranged: PlainParameters | None = None


def of_function(function: Callable[..., Any], params: Any) -> Parametric:
    """Any callable, with the parameters as its first argument."""
    name = _name_of(function)
    if params is None:
        return Parametric(function, name)
    trained = _trained_collections(function, params)
    if is_plain(params):
        return Parametric(function, name, params, trained)
    plain = PlainParameters.of(params)
    call = named(lambda p, *args, **kw: function(plain.rebuild(p), *args, **kw), function, skip=1)
    flags = plain.select(trained)
    return Parametric(call, name, plain.params, flags, given=params, arranged=plain)


def _trained_collections(function: Any, params: Any) -> tuple[bool, ...]:
    """For each leaf of `params` whether it is trained."""
    linen = sys.modules.get("flax.linen")
    is_linen = linen is not None and isinstance(_owner(function), linen.Module)
    if is_linen and isinstance(params, Mapping):
        return in_collection(params, LINEN_TRAINED)
    return trained_leaves(params)


def _owner(function: Any) -> Any:
    """Whose method it is, behind `functools.partial` and `jax.jit`."""
    while not hasattr(function, "__self__"):
        inner = getattr(function, "__wrapped__", getattr(function, "func", None))
        if inner is None:
            return None
        function = inner
    return function.__self__


def in_collection(variables: Mapping[str, Any], trained: str) -> tuple[bool, ...]:
    """For each leaf of Flax's variables whether it is in one collection."""
    paths = key_names(tree_util.tree_structure(variables))
    return tuple(path[0] == trained for path in paths)


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def named(
    call: Callable[..., Any], like: Any, *, name: str = "", skip: int | None = None
) -> Callable[..., Any]:
    """The same function with the parameters of another one behind `params`.

    JAX names what it exports by the signature.

    Args:
        call: a function of the parameters and the arguments.
        like: what has names for the arguments.
        name: of the function; by default the other's.
        skip: how many of its own come before them; by default its `self`, if it has one.
    """

    def renamed(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    renamed.__name__ = name or _name_of(unwrapped(like))
    try:
        parameters = list(inspect.signature(like).parameters.values())
    except (TypeError, ValueError):  # a builtin, which tells nothing
        return renamed
    if skip is None:
        skip = int(bool(parameters) and parameters[0].name == "self")
    own = parameters[skip:]
    leading = "params"
    while any(parameter.name == leading for parameter in own):
        leading += "_"
    first = inspect.Parameter(leading, inspect.Parameter.POSITIONAL_ONLY)
    with_signature: Any = renamed
    with_signature.__signature__ = inspect.Signature([first, *own])
    return renamed


def unwrapped(model: Any) -> Any:
    """Return the function inside of `equinox.filter_vmap` and the like."""
    while (inner := getattr(model, "__wrapped__", None)) is not None:
        model = inner
    return model
