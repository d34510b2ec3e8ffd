"""Classes of pytree nodes that nobody registered for serialization, of every kind there is."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import flax.struct
import jax
import jax.numpy as jnp


class Pair(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any


@jax.tree_util.register_pytree_node_class
class Attributes:
    """A class whose children have no names but those of its attributes."""

    def __init__(self, weight: Any, bias: Any, kind: str = "relu") -> None:
        self.weight, self.bias, self.kind = weight, bias, kind

    def tree_flatten(self) -> Any:
        """In another order than that of the alphabet."""
        return (self.weight, self.bias), (self.kind, 3)

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> Attributes:
        """The inverse."""
        return cls(*children, static[0])


@jax.tree_util.register_pytree_with_keys_class
class Keyed:
    """A class with names for its children, which takes nothing but arrays for them."""

    def __init__(self, parts: dict[str, Any]) -> None:
        self.parts = parts

    def tree_flatten_with_keys(self) -> Any:
        """By the keys of a dict."""
        key = jax.tree_util.DictKey
        return [(key(name), part) for name, part in self.parts.items()], tuple(self.parts)

    @classmethod
    def tree_unflatten(cls, static: Any, children: Any) -> Keyed:
        """The inverse."""
        return cls(dict(zip(static, children, strict=True)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Data:
    """A dataclass with static data."""

    b: Any
    a: Any
    power: int = dataclasses.field(default=2, metadata={"static": True})
    dtypes: Any = dataclasses.field(
        default=(jnp.float32, jnp.dtype("bfloat16"), float("inf"), None, [True, {1: "x"}]),
        metadata={"static": True},
    )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Config:
    """An argument that has no arrays."""

    scale: int


@jax.tree_util.register_static
class Label(str):
    """The same, of a text."""

    __slots__ = ()


@flax.struct.dataclass
class Struct:
    """One of Flax."""

    a: Any
    apply: Any = flax.struct.field(pytree_node=False, default=None)


class Weight(eqx.Module):
    """One of Equinox."""

    w: Any
    padding: Any = eqx.field(static=True, default=((1, 1), "SAME"))
