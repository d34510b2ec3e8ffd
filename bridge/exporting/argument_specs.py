"""Descriptions of a function's arguments as the specs that `jax.export` traces it with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tokenize import TokenError
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from bridge.core.keys import KEY_DTYPES, key_dtype
from bridge.core.narrowing import is_narrowed, narrow_dtype
from bridge.exporting.argument_text import ArrayText, parse_arguments
from bridge.exporting.specifications import UnknownDimensions, parse_constraints
from xla_call_module.dtypes import WIDE
from xla_call_module.errors import ArgumentError, DtypeError, StructureError
from xla_call_module.symbolic_shapes import limited_parsing


def to_specs(
    arguments: Any, *, constraints: Sequence[str] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the specs of positional and keyword arguments, all in one symbolic scope.

    Example:
        >>> to_specs("f32[b,3]")
        ((ShapeDtypeStruct(shape=(b, 3), dtype=float32),), {})
    """
    args, kwargs = _read(arguments)
    known = [leaf for leaf in tree_util.tree_leaves((args, kwargs)) if hasattr(leaf, "shape")]
    parsed = parse_constraints(constraints)
    scope = _scope_of(known, parsed)
    flat, tree = tree_util.tree_flatten_with_path((args, kwargs), is_leaf=_is_leaf)
    shapes = [leaf.shape for _, leaf in flat if hasattr(leaf, "shape")]
    symbols = _Symbols(scope, UnknownDimensions([*shapes, *parsed]))
    specs = [_to_spec(leaf, _name(path), symbols) for path, leaf in flat]
    positional, by_name = tree_util.tree_unflatten(tree, specs)
    return tuple(positional), by_name


def _read(arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return pytrees whose leaves are `ArrayText`s, or the leaves that were passed."""
    is_texts = isinstance(arguments, (list, tuple)) and arguments
    if isinstance(arguments, str) or (is_texts and all(isinstance(a, str) for a in arguments)):
        read = parse_arguments(arguments)
        return read.positional, dict(read.by_name)
    if isinstance(arguments, Mapping):
        return (), {name: _read_leaves(tree) for name, tree in arguments.items()}
    if isinstance(arguments, (list, tuple)):
        for shape in filter(_is_shape, (arguments, *arguments)):
            raise StructureError(
                f"args= has the bare shape {shape!r}; expected a shape and a dtype. To do: write "
                f"them as text, as in args={_as_text(shape)!r}."
            )
        return tuple(map(_read_leaves, arguments)), {}
    return (_read_leaves(arguments),), {}


def _is_shape(value: Any) -> bool:
    """Return whether it is a shape: numbers, with None or names for the sizes without one."""
    sizes = value if isinstance(value, (list, tuple)) else ()
    named = [size is None or (isinstance(size, str) and size.isidentifier()) for size in sizes]
    numbers = [type(size) is int for size in sizes]
    return any(named) and any(numbers) and sum(named) + sum(numbers) == len(sizes)


def _as_text(shape: Sequence[int | str | None]) -> str:
    return f"f32[{','.join('?' if size is None else str(size) for size in shape)}]"


def _read_leaves(tree: Any) -> Any:
    return tree_util.tree_map(_read_leaf, tree)


def _read_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, str):
        return leaf
    read = parse_arguments(leaf)
    if len(read.positional) != 1 or read.by_name:
        raise StructureError(
            f"{leaf!r} is not the text of one argument. To do: inside of a tuple, list or dict "
            "write one pytree in each text, as in args=('f32[b,3]', {'mask': 'bool[b]'})."
        )
    return read.positional[0]


def _is_leaf(value: Any) -> bool:
    return isinstance(value, ArrayText) or hasattr(value, "dtype")


def _scope_of(known: Sequence[Any], constraints: tuple[str, ...]) -> export.SymbolicScope:
    """Return the scope of the symbolic dimensions that are there already, or a new one."""
    dims = [dim for spec in known for dim in spec.shape or () if export.is_symbolic_dim(dim)]
    if dims and not constraints:
        scope: export.SymbolicScope = dims[0].scope
        return scope
    return export.SymbolicScope(constraints)


@dataclass(frozen=True, slots=True)
class _Symbols:
    """The source of the symbols of all arguments.

    Attributes:
        unknown: the source of symbols for dimensions without a name.
    """

    scope: export.SymbolicScope
    unknown: UnknownDimensions

    def shape(self, text: str) -> tuple[Any, ...]:
        """Return the shape of a text."""
        with limited_parsing(text):
            return tuple(export.symbolic_shape(self.unknown.name(text), scope=self.scope))


def _to_spec(leaf: Any, name: str, symbols: _Symbols) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, ArrayText):
        try:
            shape: tuple[Any, ...] = symbols.shape(leaf.shape)
        except StructureError as error:
            raise StructureError(f"{name}: {error}") from error
        except (ValueError, TypeError, IndexError, TokenError) as error:
            raise StructureError(
                f"{name} has the shape {leaf.shape!r}: {error} To do: write numbers, names such as "
                "b, and what is computed of them, such as 2*b, b+1, mod(b, 2)."
            ) from error
        if negative := [dim for dim in shape if isinstance(dim, int) and dim < 0]:
            raise StructureError(
                f"{name} has the shape {leaf.shape!r}, with a size of {negative[0]}. To do: give "
                "an unknown size a name, such as b, or write ? for one without."
            )
        if leaf.dtype in KEY_DTYPES:
            return jax.ShapeDtypeStruct(shape, key_dtype(leaf.dtype))
        _check_width(leaf.dtype, name)
        return jax.ShapeDtypeStruct(shape, np.dtype(jax.numpy.dtype(leaf.dtype)))
    if _is_number(leaf):
        return jax.ShapeDtypeStruct((), jax.numpy.result_type(leaf), weak_type=True)
    if not hasattr(leaf, "dtype"):
        raise ArgumentError(
            f"{name} is {leaf!r}; expected the spec of an array, such as 'f32[b,3]', a "
            "jax.ShapeDtypeStruct, an array or a number. To do: bind what is not an array to the "
            "function, as in functools.partial(f, train=False)."
        )
    return _like(leaf, name, symbols)


def _is_number(leaf: Any) -> bool:
    """Return whether it is a Python number, as the step of a new `TrainState` is.

    A bool is none: as in `train=False` it is to be known while the function is traced.
    """
    return isinstance(leaf, (int, float, complex)) and not isinstance(leaf, (bool, np.generic))


def _like(leaf: Any, name: str, symbols: _Symbols) -> jax.ShapeDtypeStruct:
    """Return the spec of an array, or of a description of one, as TensorFlow and Keras have.

    A dimension that is None in a description is unknown, and has a symbol of its own.
    """
    if leaf.shape is None:
        raise StructureError(
            f"{name} is {leaf!r}, and a JAX function needs the rank. To do: write it as text, such "
            "as 'f32[b,3]'."
        )
    shape = tuple(
        symbols.shape(f"({symbols.unknown.symbol()},)")[0] if dim is None else dim
        for dim in leaf.shape
    )
    if str(leaf.dtype) in KEY_DTYPES:
        return jax.ShapeDtypeStruct(shape, leaf.dtype)
    if isinstance(leaf, np.generic):
        return jax.ShapeDtypeStruct(shape, narrow_dtype(leaf.dtype))
    if isinstance(leaf, jax.ShapeDtypeStruct):
        _check_width(str(leaf.dtype), name)
        return leaf if None not in leaf.shape else jax.ShapeDtypeStruct(shape, leaf.dtype)
    dtype = str(getattr(leaf.dtype, "name", leaf.dtype))
    _check_width(dtype, name)
    return jax.ShapeDtypeStruct(shape, np.dtype(jax.numpy.dtype(dtype)))


def _check_width(dtype: str, name: str) -> None:
    if dtype in WIDE and is_narrowed(dtype):
        raise DtypeError(
            f"{name} is {dtype}, and JAX has 32 bits only while jax_enable_x64 is off. To do: "
            "jax.config.update('jax_enable_x64', True) before anything else (--x64 of the command "
            "jax-tf-bridge), or write the narrower dtype."
        )


def _name(path: Sequence[Any]) -> str:
    """Return the path as JAX names arguments: `args[0]['x']`."""
    root = "args" if path[0].idx == 0 else "kwargs"
    return root + tree_util.keystr(tuple(path[1:]))
