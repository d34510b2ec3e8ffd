"""Arguments as they arrive -> the specs that `jax.export` traces with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from tokenize import TokenError
from typing import Any

import jax
from jax import export, tree_util

from xla_call_module.errors import StructureError

__all__ = ["ArgumentSpec", "parse_constraints", "specify"]

_AUTO = "auto"


@dataclass(frozen=True, slots=True)
class ArgumentSpec:
    """What is known of one flat argument before the export.

    Attributes:
        path: its pytree path, such as `args[0]['w']`.
        shape: with None for each unknown dimension; None where not even the rank is known.
        dtype: a numpy dtype, or JAX's own for a typed PRNG key.
        origin: the class of an array or a Python scalar; None where a tensor or variable arrived.
    """

    path: str
    shape: tuple[int | None, ...] | None
    dtype: Any
    origin: type | None

    @property
    def is_weak(self) -> bool:
        """Whether it is a Python scalar, which takes the dtype of what it meets."""
        return self.origin in (bool, int, float, complex)

    @property
    def is_tensor(self) -> bool:
        """Whether TensorFlow has chosen its dtype."""
        return self.origin is None

    @property
    def is_static(self) -> bool:
        """Whether every dimension is known."""
        return self.shape is not None and None not in self.shape

    def __str__(self) -> str:
        """The aval, with `?` for what is unknown."""
        if self.shape is None:
            return f"{self.dtype}[...]"
        return (
            f"{self.dtype}[{','.join('?' if size is None else str(size) for size in self.shape)}]"
        )


def parse_constraints(constraints: Sequence[str]) -> tuple[str, ...]:
    """Constraints between symbols, as `jax.export.SymbolicScope` takes them.

    Raises:
        StructureError: one of them is not of its language.
    """
    parsed = (constraints,) if isinstance(constraints, str) else tuple(constraints)
    try:
        export.SymbolicScope(parsed)
    except (ValueError, TypeError, IndexError, TokenError) as error:
        raise StructureError(
            f"polymorphic_constraints={list(parsed)!r}: {error}. To do: write each one as in "
            "'b >= 2' or 'mod(b, 2) == 0'."
        ) from error
    return parsed


def specify(
    arguments: Sequence[ArgumentSpec],
    tree: tree_util.PyTreeDef,
    *,
    polymorphic_shapes: Any,
    constraints: Sequence[str],
) -> list[jax.ShapeDtypeStruct]:
    """Flat specs for `jax.export`, all in one symbolic scope.

    Args:
        arguments: the leaves of `(args, kwargs)`.
        tree: their structure.
        polymorphic_shapes: as for `bridge.convert`.
        constraints: between the symbols.

    Raises:
        StructureError: a dimension stays unknown, or a specification does not fit its argument.
    """
    scope = export.SymbolicScope(tuple(constraints))
    if polymorphic_shapes == _AUTO:
        texts = _automatic(arguments)
    else:
        texts = _broadcast(polymorphic_shapes, tree)
    return [
        jax.ShapeDtypeStruct(
            _symbolic(argument, text, scope), argument.dtype, weak_type=argument.is_weak
        )
        for argument, text in zip(arguments, texts, strict=True)
    ]


def _symbolic(argument: ArgumentSpec, text: str | None, scope: Any) -> tuple[Any, ...]:
    if text is None:
        if argument.shape is None:
            raise StructureError(
                f"{argument.path} arrived as {argument}, and a JAX function needs the rank. "
                "To do: give the tensor one with tf.ensure_shape, and then either "
                "polymorphic_shapes='auto' or a name for each unknown dimension; or name all of "
                "its dimensions, as in polymorphic_shapes='b, 3'."
            )
        if None in argument.shape:
            raise StructureError(
                f"{argument.path} arrived as {argument}, and a JAX function needs a name for each "
                "unknown dimension. To do: pass polymorphic_shapes='auto', or name them, as in "
                f"polymorphic_shapes={_suggestion(argument)!r}; or give the tensor a static shape."
            )
        return tuple(size for size in argument.shape if size is not None)
    try:
        shape: tuple[Any, ...] = tuple(
            export.symbolic_shape(text, like=argument.shape, scope=scope)
        )
    except (ValueError, TypeError, IndexError, TokenError) as error:
        raise StructureError(
            f"{argument.path} arrived as {argument}, and the polymorphic shape {text!r} does not "
            f"describe it: {error}"
        ) from error
    if argument.shape is not None and len(shape) != len(argument.shape):
        raise StructureError(
            f"{argument.path} arrived as {argument}, of rank {len(argument.shape)}; the "
            f"polymorphic shape {text!r} has rank {len(shape)}. To do: give each argument its own, "
            "with None for those of static shape, as in polymorphic_shapes=('b, _', None)."
        )
    return shape


def _suggestion(argument: ArgumentSpec) -> str:
    names = iter("bcdefghijklmnopqrstuvwxyz")
    sizes = argument.shape or ()
    return ", ".join("_" if size is not None else next(names, "b") for size in sizes)


def _automatic(arguments: Sequence[ArgumentSpec]) -> list[str | None]:
    """Dimension 0 shared by all that lack it, every other unknown dimension its own symbol."""
    texts: list[str | None] = []
    for index, argument in enumerate(arguments):
        if argument.shape is None:
            raise StructureError(
                f"{argument.path} has unknown rank, so polymorphic_shapes='auto' cannot name its "
                "dimensions. To do: give it a rank with tf.ensure_shape, or name the dimensions."
            )
        if argument.is_static:
            texts.append(None)
            continue
        names = (f"b{index}_{axis}" if axis else "b" for axis in range(len(argument.shape)))
        dims = [
            name if size is None else str(size)
            for name, size in zip(names, argument.shape, strict=True)
        ]
        texts.append(f"({', '.join(dims)},)")
    return texts


def _broadcast(prefix: Any, tree: tree_util.PyTreeDef) -> list[str | None]:
    """One text or None for each leaf of `(args, kwargs)`."""
    if prefix is None or isinstance(prefix, str):
        return [prefix] * tree.num_leaves
    args, _ = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    texts: list[Any] = [None] * tree.num_leaves
    if isinstance(prefix, list):
        prefix = tuple(prefix)

    def assign(text: str | None, part: Any) -> None:
        for index in tree_util.tree_leaves(part):
            texts[index] = text

    try:
        tree_util.tree_map(assign, prefix, args, is_leaf=lambda x: x is None or isinstance(x, str))
    except (ValueError, TypeError) as error:
        raise StructureError(
            f"polymorphic_shapes={prefix!r} is no prefix of the positional arguments, whose "
            f"structure is {tree_util.tree_structure(args)}: {error}"
        ) from error
    if unfit := [text for text in texts if not (text is None or isinstance(text, str))]:
        raise StructureError(
            f"polymorphic_shapes has {unfit[0]!r} for a shape; expected a string or None."
        )
    return texts
