"""The name, documentation and parameters that a converted function takes over from its source."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax import export

_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def adopt_metadata(
    call: Any, fun: Callable[..., Any] | export.Exported, signature: inspect.Signature | None
) -> None:
    """Give `call` the name and documentation of `fun`, and its signature.

    TensorFlow names the inputs of a function after its parameters. tf.function calls what is behind
    a `__wrapped__`.
    """
    vars(call).pop("__wrapped__", None)
    if isinstance(fun, export.Exported):
        call.__name__ = call.__qualname__ = fun.fun_name
        return
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        if isinstance(value := getattr(fun, name, None), str):
            setattr(call, name, value)
    if signature is not None:
        call.__signature__ = signature.replace(return_annotation=inspect.Signature.empty)


@dataclass(frozen=True, slots=True)
class Defaults:
    """The parameters of a function that may be left out.

    Attributes:
        positional: the names of all parameters that may be passed by position, in order.
        required: the number of those without a default.
        by_name: the names of all parameters that may be passed by name.
    """

    values: Mapping[str, Any]
    positional: Sequence[str]
    required: int
    by_name: frozenset[str]

    def leave_out(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the arguments of a call without those that are the function's own defaults.

        tf.function passes every default, and what the function reads in Python, such as
        `training=False`, would arrive as an array.
        """
        if kwargs:
            kwargs = {name: x for name, x in kwargs.items() if not self._is_default(name, x)}
        if not self.required < len(args) <= len(self.positional):
            return args, kwargs
        names = self.positional[: len(args)]
        are_default = [self._is_default(name, x) for name, x in zip(names, args, strict=True)]
        if True not in are_default:
            return args, kwargs
        first = are_default.index(True)
        given = {
            name: x
            for name, x, is_default in zip(names, args, are_default, strict=True)
            if name in names[first:] and not is_default
        }
        if not given.keys() <= self.by_name:
            return args, kwargs
        return args[:first], {**kwargs, **given}

    def _is_default(self, name: str, value: Any) -> bool:
        return name in self.values and value is self.values[name]


def read_defaults(signature: inspect.Signature | None) -> Defaults | None:
    """Return the defaults of a function with a signature; None where it has none."""
    if signature is None:
        return None
    parameters = signature.parameters.values()
    values = {p.name: p.default for p in parameters if p.default is not p.empty}
    if not values:
        return None
    positional = [p for p in parameters if p.kind in _BY_POSITION]
    return Defaults(
        values=values,
        positional=[p.name for p in positional],
        required=sum(p.default is p.empty for p in positional),
        by_name=frozenset(p.name for p in parameters if p.kind in _BY_NAME),
    )


def signature_of(fun: Any) -> inspect.Signature | None:
    """Return the signature of a function; None where it has none."""
    try:
        return inspect.signature(fun)
    except (TypeError, ValueError):  # a builtin, which tells nothing
        return None
