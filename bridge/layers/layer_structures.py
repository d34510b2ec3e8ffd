"""Nested inputs and outputs of a layer <-> the flat arguments and results of its function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from savedmodel.protos.structures import Branch, Leaf, Structure
from xla_call_module.errors import StructureError

_MASK = "mask"
_Children = tuple[tuple[str, Structure], ...]


def match_inputs(
    name: str, inputs: Structure, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the leaves of a layer's arguments, in the order of the function's own.

    The inputs of a function of several may come as one list or tuple, as Keras passes what several
    layers return.
    """
    positional, keyword = _pair(inputs)
    separate = _separate_inputs(args, len(positional))
    if len(separate) != len(positional):
        wanted = ", ".join(describe(child) for _, child in positional) or "none"
        raise StructureError(
            f"{name} was called with {len(args)} positional input(s); expected "
            f"{len(positional)}: {wanted}. To do: pass each input by itself, or all in one list."
        )
    leaves: dict[int, Any] = {}
    for position, (value, (_, child)) in enumerate(zip(separate, positional, strict=True)):
        leaves.update(_match(name, child, value, f"inputs[{position}]", _is_leaf))
    wanted_keys = {key for key, _ in keyword}
    # A mask is handed on beside the function, unless it takes one itself.
    kwargs = {key: value for key, value in kwargs.items() if key in wanted_keys or key != _MASK}
    if kwargs.keys() != wanted_keys:
        raise StructureError(
            f"{name} was called with the keyword inputs {sorted(kwargs)}; expected "
            f"{sorted(wanted_keys)}."
        )
    for key, child in keyword:
        leaves.update(_match(name, child, kwargs[key], key, _is_leaf))
    return [leaves[index] for index in sorted(leaves)]


def match_shapes(name: str, inputs: Structure, shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the shapes of the inputs, of shapes as `compute_output_shape` takes them."""
    positional, _ = _pair(inputs)
    if len(shapes) == 1 and len(positional) > 1 and not _is_shape(shapes[0]):
        shapes = _separate_inputs(shapes, len(positional))
    if len(shapes) != len(positional):
        raise StructureError(
            f"{name} has {len(positional)} inputs; {len(shapes)} shapes were passed. To do: "
            "pass one for each."
        )
    leaves: dict[int, Any] = {}
    for position, (shape, (_, child)) in enumerate(zip(shapes, positional, strict=True)):
        leaves.update(_match(name, child, shape, f"input_shape[{position}]", _is_shape))
    return [tuple(leaves[index]) for index in sorted(leaves)]


def match_first(name: str, inputs: Structure, value: Any) -> list[tuple[int, Any]]:
    """Return the leaves of the first argument, which may be a list of all, with their indices."""
    positional, _ = _pair(inputs)
    values = _separate_inputs((value,), len(positional))
    leaves: list[tuple[int, Any]] = []
    for one, (_, child) in zip(values, positional, strict=False):
        leaves += _match(name, child, one, "inputs", _is_leaf)
    return sorted(leaves, key=lambda pair: pair[0])


def fill(structure: Structure, leaf: Callable[[int], Any]) -> Any:
    """Return the structure with a value for the index of each leaf, which `leaf` makes.

    Named tuples are tuples, as their classes may not be there.
    """
    if isinstance(structure, Leaf):
        return leaf(structure.index)
    children = {key: fill(child, leaf) for key, child in structure.children}
    if structure.kind == "none":
        return None
    if structure.kind == "dict":
        return children
    return list(children.values()) if structure.kind == "list" else tuple(children.values())


def describe(structure: Structure) -> str:
    """Return a structure in one line, with `*` for each leaf."""
    return str(fill(structure, lambda _: _STAR))


class _Star:
    def __repr__(self) -> str:
        return "*"


_STAR = _Star()


def _pair(inputs: Structure) -> tuple[_Children, _Children]:
    assert isinstance(inputs, Branch)
    args, kwargs = (child for _, child in inputs.children)
    assert isinstance(args, Branch)
    assert isinstance(kwargs, Branch)
    return args.children, kwargs.children


def _separate_inputs(args: Sequence[Any], count: int) -> Sequence[Any]:
    one_list = len(args) == 1 and count > 1 and isinstance(args[0], (list, tuple))
    return args[0] if one_list else args


def _match(
    name: str, structure: Structure, value: Any, where: str, is_leaf: Callable[[Any], bool]
) -> Iterator[tuple[int, Any]]:
    if isinstance(structure, Leaf):
        if not is_leaf(value):
            raise _wrong_structure(name, structure, value, where)
        yield structure.index, value
        return
    if structure.kind == "none":
        if value is not None:
            raise _wrong_structure(name, structure, value, where)
        return
    children = dict(structure.children)
    if isinstance(value, Mapping):
        items = {str(key): part for key, part in value.items()}  # structures have text for keys
        if structure.kind not in ("dict", "namedtuple") or items.keys() != children.keys():
            raise _wrong_structure(name, structure, value, where)
    elif (
        structure.kind != "dict"
        and isinstance(value, (list, tuple))
        and len(value) == len(children)
    ):
        items = dict(zip(children, value, strict=True))
    else:
        raise _wrong_structure(name, structure, value, where)
    for key, child in children.items():
        yield from _match(name, child, items[key], f"{where}[{key!r}]", is_leaf)


def _is_leaf(value: Any) -> bool:
    return value is not None and not isinstance(value, (Mapping, list, tuple))


def _is_shape(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        size is None or isinstance(size, int) for size in value
    )


def _wrong_structure(name: str, structure: Structure, value: Any, where: str) -> StructureError:
    kind: Any = type(value).__name__
    if isinstance(value, Mapping):
        kind = f"a dict with the keys {sorted(map(str, value))}"
    elif isinstance(value, (list, tuple)):
        kind = f"a {kind} of {len(value)}"
    return StructureError(
        f"{where} of {name} is {kind}; the function was exported for {describe(structure)} "
        "there. To do: pass that."
    )
