"""The errors that JAX raises while it traces a function, with what it was traced for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax import tree_util

from bridge.core._jax import unfiltered_tracebacks
from bridge.exporting.argument_text import ArgumentTexts, ArrayText, to_text
from xla_call_module.errors import ArgumentError, InteropError, StructureError, shown_as_base
from xla_call_module.tracebacks import raised_at

_FRAMEWORKS = {"equinox": "Equinox", "flax": "Flax", "haiku": "Haiku", "jax": "JAX"}
_OF_SHAPES = re.compile(r"\b(shape|ndim|dim|size|rank|broadcast|ind[ie]|ax[ie]s)", re.IGNORECASE)
_NUMBERS = re.compile(r"\b\d+\b")
_MAX_LEAVES = 3
_MAX_TEXT = 200  # characters
_MAX_SAID = 400


def explain_refusal(
    name: str,
    trace: Callable[[], Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    parameters: Sequence[str] = (),
) -> StructureError | None:
    """Return the error for a function that JAX or its frameworks refuse while it is traced."""
    with unfiltered_tracebacks():
        try:
            trace()
        except Exception as raised:  # noqa: BLE001  # of whatever class the function has
            error = raised
        else:
            return None
    at, called = raised_at(error)
    raiser = called[-1] if called else ""
    if isinstance(error, InteropError) or raiser not in _FRAMEWORKS:
        return None
    cls: Any = {ValueError: StructureError, TypeError: ArgumentError}.get(type(error))
    if cls is None:
        cls = shown_as_base(type(type(error).__name__, (StructureError, type(error)), {}))
    said = " ".join(str(error).split())
    own = type(error).__module__.partition(".")[0]
    leaves = _leaves_in(said, parameters, args)
    text = _text(args[len(parameters) :], kwargs)
    refused: StructureError = cls(
        f"{name} cannot be traced{at} for args={text!r}{leaves}. {_FRAMEWORKS.get(own, 'JAX')} "
        f"says: {said[:_MAX_SAID].removesuffix('.')}. To do: {_cure(said, parameters, called)}."
    )
    return refused


def _cure(said: str, parameters: Sequence[str], called: Sequence[str]) -> str:
    if not _OF_SHAPES.search(said):
        return "change the function, or what it is traced for"
    fitting = f"those of {', '.join(parameters)}" if parameters else "each other"
    cure = f"pass arguments of shapes that fit {fitting}, or change the function"
    if "equinox" not in called:
        return cure
    return (
        f"{cure}; a layer of Equinox takes one example, and equinox.filter_vmap(module) a batch "
        "of them"
    )


def _leaves_in(said: str, parameters: Sequence[str], args: Sequence[Any]) -> str:
    """Return the parameters with a size that an error names, or the first ones."""
    found = {}
    for name, tree in zip(parameters, args, strict=False):
        for path, leaf in tree_util.tree_flatten_with_path(tree)[0]:
            found[f"{name}{tree_util.keystr(path)}"] = leaf
    sizes = {int(number) for number in _NUMBERS.findall(said)}
    named = {path: leaf for path, leaf in found.items() if sizes & {*leaf.shape}}
    shown = [
        f"{path} {leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for path, leaf in (named or found).items()
    ]
    more = len(shown) - _MAX_LEAVES
    rest = f" and {more} more" if more > 0 else ""
    return f", with {', '.join(shown[:_MAX_LEAVES])}{rest}" if shown else ""


def _text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments as `args=` takes them."""
    by_name = {name: _to_text(tree) for name, tree in kwargs.items()}
    text = to_text(ArgumentTexts(tuple(map(_to_text, args)), by_name))
    return text if len(text) <= _MAX_TEXT else f"{text[: _MAX_TEXT - 1]}…"


def _to_text(tree: Any) -> Any:
    if hasattr(tree, "dtype"):
        return ArrayText(str(tree.dtype), ",".join(map(str, tree.shape)))
    if isinstance(tree, Mapping):
        return {str(key): _to_text(value) for key, value in tree.items()}
    if type(tree) is list:
        return [_to_text(value) for value in tree]
    if tree is None:
        return None
    leaves = tree if isinstance(tree, tuple) else tree_util.tree_leaves(tree)
    return tuple(map(_to_text, leaves))
