"""A random program as a value, which is printed as the source text that runs."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np

Shape = tuple[int | str, ...]
# A pytree of names: a leaf is the name of a value.
Node = "str | None | Container"

PREAMBLE = """\
import collections
import dataclasses
import functools
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
"""

_CLASSES = {
    "dataclass": """\
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Point:
    first: object
    second: object
""",
    "namedtuple": """\
Pair = collections.namedtuple("Pair", ["first", "second"])
""",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Container:
    """A dict, tuple, list, dataclass or named tuple of nodes.

    Attributes:
        kind: one of these.
        children: with their keys, which are unused in tuples and lists.
    """

    kind: str
    children: tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """A leaf of the arguments.

    Attributes:
        name: in the program.
        shape: a dimension may be the name of a dimension variable.
        dtype: its name.
        domain: of its values: `normal`, `positive`, `unit`, `wide`, `special` or `index`.
        weak: whether it is a Python number.
    """

    name: str
    shape: Shape
    dtype: str
    domain: str = "normal"
    weak: bool = False

    def draw(self, sizes: Mapping[str, int], seed: int) -> Any:
        """Its value, the same for the same sizes and seed."""
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.shape)
        rng = np.random.default_rng([seed, zlib.crc32(self.name.encode()), *shape])
        dtype = numpy_dtype(self.dtype)
        if dtype == np.bool_:
            return rng.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu" or dtype.name in ("int4", "uint4"):
            low, high = (0, 4) if self.domain == "index" else (-9, 10)
            return rng.integers(0 if "uint" in dtype.name else low, high, shape).astype(dtype)
        values = _reals(rng, shape, self.domain)
        if dtype.kind == "c":
            values = values + 1j * _reals(rng, shape, self.domain)
        with np.errstate(over="ignore"):
            return np.asarray(values).astype(dtype)


def _reals(rng: np.random.Generator, shape: tuple[int, ...], domain: str) -> Any:
    match domain:
        case "positive":
            return rng.uniform(0.1, 3, shape)
        case "unit":
            return rng.uniform(-1, 1, shape)
        case "wide":  # zeros, ties, and numbers of many magnitudes
            exact = rng.choice([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 10.0, 1e-3, 30.0], shape)
            return np.where(rng.random(shape) < 0.7, exact, rng.normal(size=shape))
        case "special":
            return np.where(
                rng.random(shape) < 0.3, rng.choice(_SPECIAL, shape), rng.normal(size=shape)
            )
    return rng.normal(size=shape)


# What is no usual number: of float32 denormal and the largest, too.
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 3e38, -3e38, 1.2e-38, 6e4, 1e10)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the function: its name, the pytree of leaves, whether it is keyword-only."""

    name: str
    node: Any
    keyword: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Statement:
    """A line `target = text`.

    Attributes:
        target: the name that it gives.
        text: with `{0}`, `{1}`, … for the operands.
        operands: their names.
        aval: dtype and shape of the result, as a text.
        template: the name of the template.
        preamble: definitions that the line needs.
    """

    target: str
    text: str
    operands: tuple[str, ...]
    aval: str
    template: str
    preamble: tuple[str, ...] = ()

    def line(self) -> str:
        """The line."""
        return f"{self.target} = {fill(self.text, self.operands)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """A function with its arguments, and how it is to be tried.

    Attributes:
        seed: that it came of.
        x64: whether JAX has 64-bit types.
        arguments: the leaves.
        parameters: of the function.
        statements: of its body.
        returns: the pytree of the names of its results.
        checks: the names of the checks.
        options: of these, by name; an option that is left out has its default.
        preamble: the imports.
    """

    seed: int
    x64: bool
    arguments: tuple[Argument, ...]
    parameters: tuple[Parameter, ...]
    statements: tuple[Statement, ...]
    returns: Any
    checks: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    preamble: str = PREAMBLE

    def option(self, name: str, default: Any = None) -> Any:
        """The value of an option."""
        return dict(self.options).get(name, default)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dimension variables, in order."""
        dims = [dim for argument in self.arguments for dim in argument.shape]
        return tuple(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))

    def source(self) -> str:
        """The text of the function `f`."""
        parts = [self.preamble]
        kinds = set(_kinds(self.returns)).union(*(_kinds(p.node) for p in self.parameters))
        parts += [text for kind, text in _CLASSES.items() if kind in kinds]
        parts += dict.fromkeys(text for s in self.statements for text in s.preamble)
        positional = [p.name for p in self.parameters if not p.keyword]
        keyword = [p.name for p in self.parameters if p.keyword]
        names = ", ".join([*positional, *(["*", *keyword] if keyword else [])])
        lines = [f"def f({names}):"]
        for parameter in self.parameters:
            lines += [
                f"    {name} = {path}"
                for name, path in _paths(parameter.node, parameter.name)
                if name != path
            ]
        lines += [f"    {statement.line()}" for statement in self.statements]
        lines.append(f"    return {node_text(self.returns)}")
        return "\n\n".join([*parts, "\n".join(lines) + "\n"])

    def namespace(self) -> dict[str, Any]:
        """Return what the source defines; the function is `f`."""
        found: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(self.source(), f"<program {self.seed}>", "exec"), found)
        return found

    def values(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The arrays of the arguments by name, of certain sizes."""
        return {argument.name: argument.draw(sizes, self.seed) for argument in self.arguments}

    def describe(self) -> str:
        """The source and, as comments, the arguments, the checks and the options."""
        lines = [f"# seed {self.seed}, x64 {self.x64}, checks {', '.join(self.checks)}"]
        lines += [f"# {name}={value!r}" for name, value in self.options]
        for a in self.arguments:
            dims = ",".join(map(str, a.shape))
            lines.append(f"# {a.name}: {a.dtype}[{dims}] {a.domain}{' weak' if a.weak else ''}")
        return "\n".join([*lines, self.source()])


def fill(text: str, operands: tuple[str, ...]) -> str:
    """A text with the operands in the place of `{0}`, `{1}`, …; other braces stay."""
    for index, name in enumerate(operands):
        text = text.replace(f"{{{index}}}", name)
    return text


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The dtype of a name, also of those that numpy does not have."""
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def leaf_names(node: Any) -> Iterator[str]:
    """The names in a pytree, in JAX's order of its leaves."""
    if isinstance(node, str):
        yield node
    elif node is not None:
        children = node.children
        if node.kind == "dict":
            children = sorted(children)
        for _, child in children:
            yield from leaf_names(child)


def build(node: Any, leaf: Callable[[str], Any], namespace: Mapping[str, Any]) -> Any:
    """The pytree of a node, with `leaf(name)` for each name."""
    if node is None or isinstance(node, str):
        return None if node is None else leaf(node)
    children = {key: build(child, leaf, namespace) for key, child in node.children}
    match node.kind:
        case "dict":
            return children
        case "tuple":
            return tuple(children.values())
        case "list":
            return list(children.values())
        case "dataclass":
            return namespace["Point"](**children)
        case "namedtuple":
            return namespace["Pair"](**children)
    raise AssertionError(node.kind)


def node_text(node: Any) -> str:
    """The expression of a pytree."""
    if node is None or isinstance(node, str):
        return str(node)
    items = [(key, node_text(child)) for key, child in node.children]
    match node.kind:
        case "dict":
            return "{" + ", ".join(f'"{key}": {text}' for key, text in items) + "}"
        case "tuple":
            return "(" + "".join(f"{text}, " for _, text in items).rstrip() + ")"
        case "list":
            return "[" + ", ".join(text for _, text in items) + "]"
    name = {"dataclass": "Point", "namedtuple": "Pair"}[node.kind]
    return f"{name}({', '.join(f'{key}={text}' for key, text in items)})"


def _paths(node: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield node, path
    elif node is not None:
        for position, (key, child) in enumerate(node.children):
            step = {"dict": f'["{key}"]', "tuple": f"[{position}]", "list": f"[{position}]"}
            yield from _paths(child, path + step.get(node.kind, f".{key}"))


def _kinds(node: Any) -> Iterator[str]:
    if isinstance(node, Container):
        yield node.kind
        for _, child in node.children:
            yield from _kinds(child)


def without_leaf(node: Any, name: str) -> Any:
    """A pytree with None in the place of a name."""
    if isinstance(node, Container):
        children = tuple((key, without_leaf(child, name)) for key, child in node.children)
        return dataclasses.replace(node, children=children)
    return None if node == name else node


def size_of(shape: Shape, sizes: Mapping[str, int]) -> int:
    """The number of elements."""
    return math.prod(sizes[dim] if isinstance(dim, str) else dim for dim in shape)
