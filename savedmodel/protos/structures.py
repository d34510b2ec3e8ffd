"""Nested structures of tensors, as TensorFlow's nest and its StructuredValue proto know them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from savedmodel.protos.schema import Proto, StructuredValue
from savedmodel.protos.wire_format import MAX_MESSAGE_DEPTH
from xla_call_module.call import TensorSpec
from xla_call_module.errors import StructureError

Kind = Literal["dict", "list", "tuple", "namedtuple", "none"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor: its index in a flat list that is kept elsewhere."""

    index: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A container.

    Attributes:
        children: key and content, in JAX's order; the keys of sequences are `0`, `1`, ….
        name: the class of a named tuple.
    """

    kind: Kind
    children: tuple[tuple[str, Structure], ...] = ()
    name: str = ""


# The messages in one another that a structure may be, below the graph, its objects and a function.
_MAX_DEPTH = MAX_MESSAGE_DEPTH - 4
# The messages that a container puts around its children; those of a dict are entries of a map.
_MESSAGES = {"dict": 3, "namedtuple": 3, "list": 2, "tuple": 2, "none": 2}
# A value, its tensor spec, the shape and a dimension.
_LEAF_MESSAGES = 4

Structure = Leaf | Branch
NONE = Branch("none")


def as_tuple(items: Sequence[Structure]) -> Branch:
    """Return a tuple of structures."""
    return Branch("tuple", tuple((str(index), item) for index, item in enumerate(items)))


def as_list(items: Sequence[Structure]) -> Branch:
    """Return a list of structures."""
    return Branch("list", tuple((str(index), item) for index, item in enumerate(items)))


def as_dict(items: dict[str, Structure]) -> Branch:
    """Return a dict of structures."""
    return Branch("dict", tuple(items.items()))


def leaves(structure: Structure) -> Iterator[int]:
    """Yield the indices of the leaves in TensorFlow's order: tf.nest sorts the keys of a dict."""
    if isinstance(structure, Leaf):
        yield structure.index
        return
    children = structure.children
    for _, child in sorted(children) if structure.kind == "dict" else children:
        yield from leaves(child)


def encode_structure(structure: Structure, leaf: Callable[[int], Proto]) -> Proto:
    """Return the StructuredValue of a structure."""
    if (depth := _message_depth(structure)) > _MAX_DEPTH:
        raise StructureError(
            "A pytree of arguments or results is nested too deep for saved_model.pb: it takes "
            f"{depth} nested messages, {_MESSAGES['dict']} for a dict and {_MESSAGES['list']} for "
            f"a list; expected at most {_MAX_DEPTH}. To do: nest it less deep, or stack arrays "
            "that are alike into one."
        )
    return _encode(structure, leaf)


def _message_depth(structure: Structure) -> int:
    if isinstance(structure, Leaf):
        return _LEAF_MESSAGES
    below = (_message_depth(child) for _, child in structure.children)
    return _MESSAGES[structure.kind] + max(below, default=0)


def _encode(structure: Structure, leaf: Callable[[int], Proto]) -> Proto:
    if isinstance(structure, Leaf):
        return leaf(structure.index)
    value = StructuredValue()
    children = [(key, _encode(child, leaf)) for key, child in structure.children]
    match structure.kind:
        case "none":
            value.none_value.SetInParent()
        case "dict":
            value.dict_value.SetInParent()
            for key, child in children:
                value.dict_value.fields[key].CopyFrom(child)
        case "namedtuple":
            value.named_tuple_value.name = structure.name
            for key, child in children:
                value.named_tuple_value.values.add(key=key, value=child)
        case "list":
            value.list_value.values.extend(child for _, child in children)
            value.list_value.SetInParent()
        case "tuple":
            value.tuple_value.values.extend(child for _, child in children)
            value.tuple_value.SetInParent()
    return value


def encode_tensor_spec(name: str, spec: TensorSpec) -> Proto:
    """Return the StructuredValue of a `tf.TensorSpec`."""
    value = StructuredValue()
    value.tensor_spec_value.name = name
    value.tensor_spec_value.dtype = spec.dtype.enum
    fill_shape(value.tensor_spec_value.shape, spec.static_shape)
    return value


def fill_shape(proto: Proto, shape: Sequence[int | None] | None) -> Proto:
    """Write a shape into a TensorShapeProto; None is an unknown dimension, or an unknown rank."""
    proto.unknown_rank = shape is None
    for size in shape or ():
        proto.dim.add(size=-1 if size is None else size)
    return proto
