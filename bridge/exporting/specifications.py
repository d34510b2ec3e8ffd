"""Arguments as they arrive -> the specs that `jax.export` traces with."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from tokenize import TokenError
from typing import Any

import jax
from jax import export, tree_util

from bridge.core._jax import polymorphic_shape_class
from xla_call_module.errors import StructureError, quote
from xla_call_module.symbolic_shapes import limited_parsing

_AUTO = "auto"
# How others write a dimension of which nothing is known; `-1` is a size that was computed wrongly.
_UNKNOWN = ("None", "?")
_POLY_SHAPE = polymorphic_shape_class()


@dataclass(frozen=True, slots=True)
class ArgumentSpec:
    """One flat argument as it is known before the export.

    Attributes:
        path: the pytree path, such as `args[0]['w']`.
        shape: the shape, with None for each unknown dimension; None where the rank is unknown.
        dtype: the numpy dtype, or JAX's own for a typed PRNG key.
        origin: the class of an array or a Python scalar; None where a tensor or variable arrived.
    """

    path: str
    shape: tuple[int | None, ...] | None
    dtype: Any
    origin: type | None

    @property
    def is_weak(self) -> bool:
        """True for a Python scalar, which takes the dtype of what it meets."""
        return self.origin in (bool, int, float, complex)

    @property
    def is_tensor(self) -> bool:
        """True for a tensor, whose dtype TensorFlow has chosen."""
        return self.origin is None

    @property
    def is_static(self) -> bool:
        """True where every dimension is known."""
        return self.shape is not None and None not in self.shape

    def __str__(self) -> str:
        """Return the aval, with `?` for what is unknown."""
        if self.shape is None:
            return f"{self.dtype}[...]"
        return (
            f"{self.dtype}[{','.join('?' if size is None else str(size) for size in self.shape)}]"
        )


# Makes specs for `jax.export` of the leaves of `(args, kwargs)`, as they are known, and their tree.
Specifier = Callable[[Sequence[ArgumentSpec], tree_util.PyTreeDef], list[jax.ShapeDtypeStruct]]


class UnknownDimensions:
    """Symbols for dimensions without a name: for each of them one of its own."""

    def __init__(self, texts: Iterable[Any]) -> None:
        """Begin with the first that no text has."""
        taken = {name for text in texts for name in re.findall(r"[^\W\d]\w*", str(text))}
        self._names = (name for n in itertools.count() if (name := f"d{n}") not in taken)

    def symbol(self) -> str:
        """Return the next symbol."""
        return next(self._names)

    def name(self, text: str) -> str:
        """Return a shape with a symbol for each dimension that is `None` or `?`.

        >>> UnknownDimensions([]).name("(None, 3, ?)")
        '(d0, 3, d1)'
        """
        whole = int(text.strip().startswith("("))  # how deep dimensions are in parentheses
        parts, depth = [], 0
        for part in re.split(r"([,()])", text):
            depth += (part == "(") - (part == ")")
            is_unknown = depth == whole and part.strip() in _UNKNOWN
            parts.append(part.replace(part.strip(), self.symbol()) if is_unknown else part)
        named = "".join(parts)
        if re.search(r"\bNone\b|\?", named):
            raise StructureError(
                f"The shape {text!r} computes with a dimension that has no name. To do: give it "
                "one, such as b."
            )
        return named


def parse_constraints(constraints: Sequence[str]) -> tuple[str, ...]:
    """Return constraints between symbols, as `jax.export.SymbolicScope` takes them."""
    parsed = (constraints,) if isinstance(constraints, str) else tuple(constraints)
    try:
        with limited_parsing(parsed):
            export.SymbolicScope(parsed)
    except (ValueError, TypeError, IndexError, TokenError) as error:
        raise StructureError(
            f"polymorphic_constraints={list(parsed)!r}: {quote(error)}. To do: write each one as "
            "in 'b >= 2' or 'mod(b, 2) == 0'."
        ) from error
    return parsed


def specify(
    arguments: Sequence[ArgumentSpec],
    tree: tree_util.PyTreeDef,
    *,
    polymorphic_shapes: Any,
    constraints: Sequence[str],
) -> list[jax.ShapeDtypeStruct]:
    """Return flat specs for `jax.export`, all in one symbolic scope."""
    scope = export.SymbolicScope(tuple(constraints))
    if polymorphic_shapes == _AUTO:
        texts = _automatic(arguments)
    else:
        texts = _named(_broadcast(polymorphic_shapes, tree), arguments, constraints)
    return [
        jax.ShapeDtypeStruct(
            _symbolic(argument, text, scope), argument.dtype, weak_type=argument.is_weak
        )
        for argument, text in zip(arguments, texts, strict=True)
    ]


def specify_as_jax2tf(
    arguments: Sequence[ArgumentSpec],
    tree: tree_util.PyTreeDef,
    *,
    polymorphic_shapes: Any,
    constraints: Sequence[str],
) -> list[jax.ShapeDtypeStruct]:
    """Return flat specs as `jax.experimental.jax2tf.convert` makes them.

    The shapes are those of positional arguments alone, `"auto"` is a symbol like any other, and
    Python numbers have the dtype that they would have alone.
    """
    scope = export.SymbolicScope(parse_constraints(constraints))
    args, _ = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    by_position: Any = tree_util.tree_structure((args, {}))
    texts = _named(_broadcast(polymorphic_shapes, by_position), arguments, constraints)
    texts += [None] * (tree.num_leaves - by_position.num_leaves)
    return [
        jax.ShapeDtypeStruct(_symbolic(argument, text, scope, cure=""), argument.dtype)
        for argument, text in zip(arguments, texts, strict=True)
    ]


def _symbolic(
    argument: ArgumentSpec,
    text: Any,
    scope: Any,
    *,
    cure: str = "pass polymorphic_shapes='auto', or ",
) -> tuple[Any, ...]:
    if text is None:
        if argument.shape is None:
            raise StructureError(
                f"{argument.path} arrived as {argument}, and a JAX function needs the rank. "
                f"To do: give the tensor one with tf.ensure_shape, and then {cure}name each "
                "unknown dimension; or name all of its dimensions, as in polymorphic_shapes='b, 3'."
            )
        if None in argument.shape:
            raise StructureError(
                f"{argument.path} arrived as {argument}, and a JAX function needs a name for each "
                "unknown dimension. To do: pass polymorphic_shapes='auto', or name them, as in "
                f"polymorphic_shapes={_suggestion(argument)!r}; or give the tensor a static shape."
            )
        return tuple(size for size in argument.shape if size is not None)
    try:
        with limited_parsing(text):
            shape = tuple(export.symbolic_shape(text, like=argument.shape, scope=scope))
    except (ValueError, TypeError, IndexError, TokenError) as error:
        raise StructureError(
            f"{argument.path} arrived as {argument}, and the polymorphic shape {text!r} does not "
            f"describe it: {quote(error)}. To do: write a number or a name for each dimension, "
            "as in 'b, 3'."
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
    """Return texts of shapes: one symbol for all unknown dimensions 0, others each their own."""
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


def _broadcast(prefix: Any, tree: tree_util.PyTreeDef) -> list[Any]:
    """Return a text, `PolyShape` or None for each leaf of `(args, kwargs)`."""
    if _is_shape(prefix):
        return [prefix] * tree.num_leaves
    args, _ = tree_util.tree_unflatten(tree, range(tree.num_leaves))
    texts: list[Any] = [None] * tree.num_leaves
    if isinstance(prefix, list):
        prefix = tuple(prefix)

    def assign(text: Any, part: Any) -> None:
        for index in tree_util.tree_leaves(part):
            texts[index] = text

    try:
        tree_util.tree_map(assign, prefix, args, is_leaf=_is_shape)
    except (ValueError, TypeError) as error:
        raise StructureError(
            f"polymorphic_shapes={prefix!r} is not a prefix of the positional arguments, whose "
            f"structure is {tree_util.tree_structure(args)}: {quote(error)}. To do: pass one text "
            "for all arguments, or a tuple with one for each."
        ) from error
    if unfit := [text for text in texts if not _is_shape(text)]:
        raise StructureError(
            f"polymorphic_shapes has {unfit[0]!r} for a shape; expected a string or None."
        )
    return texts


def _named(
    texts: Sequence[Any], arguments: Sequence[ArgumentSpec], constraints: Sequence[str]
) -> list[Any]:
    """Return the shapes with a symbol for each dimension that a text leaves unknown."""
    unknown = UnknownDimensions([*texts, *constraints])
    named: list[Any] = []
    for text, argument in zip(texts, arguments, strict=False):
        try:
            named.append(unknown.name(text) if isinstance(text, str) else text)
        except StructureError as error:
            raise StructureError(f"{argument.path}: {error}") from error
    return named


def _is_shape(value: Any) -> bool:
    return value is None or isinstance(value, (str, _POLY_SHAPE))
