"""The arguments of a function as text, such as `f32[b,28,28], train_ids=i32[b]`, and as values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.core.keys import KEY_DTYPES
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import DtypeError, StructureError

# What JAX abbreviates dtypes to (`jax.ShapeDtypeStruct((), "float32")` is `f32[]` in a jaxpr),
# and their whole names.
_PREFIXES = {"uint": "u", "bfloat": "bf", "int": "i", "float": "f", "complex": "c"}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ARRAY = re.compile(r"([A-Za-z][A-Za-z0-9_]*(?:<\w+>)?)\s*\[")
_KEY = re.compile(r"[^\W\d][\w./~-]*|\d+|'[^']*'|\"[^\"]*\"")
# The sizes of a shape, of which there are several, or one is a number.
_SHAPE = re.compile(r"\w+(\s*,\s*(\w+|\?))+|\d+")
_AROUND_SIGNS = re.compile(r"\s*([,+*^()-])\s*")
_SPACE = re.compile(r"\s*")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_MAX_DEPTH = 50
_GRAMMAR = (
    "write an array as f32[b,28,28] (a dtype as JAX abbreviates it, and sizes: numbers, names of "
    "symbolic ones, None or ? for one without a name), a keyword argument as name=f32[b], and "
    "pytrees as (f32[], i32[b]), [f32[], i32[b]] and {image: f32[b,28], mask: bool[b]}"
)


def _abbreviate(name: str) -> str:
    for whole, short in _PREFIXES.items():
        if name.startswith(whole):
            return short + name.removeprefix(whole)
    return name


DTYPE_NAMES: Mapping[str, str] = {
    **{dtype.name: dtype.name for dtype in DTYPES},
    **{_abbreviate(dtype.name): dtype.name for dtype in DTYPES},
    **{name: name for name in KEY_DTYPES},
}


@dataclass(frozen=True, slots=True)
class ArrayText:
    """An array, such as `f32[b,28,28]`.

    Attributes:
        dtype: its whole name, such as `float32`, or that of a typed PRNG key, such as `key<fry>`.
        shape: the text between the brackets, such as `b,28,28`, as `jax.export.symbolic_shape`
            takes it, without spaces around its signs.
    """

    dtype: str
    shape: str


# A pytree of arrays. None is a tree without leaves, as in JAX.
TextTree = ArrayText | tuple["TextTree", ...] | list["TextTree"] | dict[str, "TextTree"] | None


@dataclass(frozen=True, slots=True)
class ArgumentTexts:
    """The arguments of a call.

    Attributes:
        by_name: the pytrees of the keyword arguments.
    """

    positional: tuple[TextTree, ...]
    by_name: Mapping[str, TextTree]


def parse_arguments(texts: str | Sequence[str]) -> ArgumentTexts:
    """Return the arguments that a text describes.

    Example:
        >>> parse_arguments("f32[b,28,28], mask=bool[b]").by_name
        {'mask': ArrayText(dtype='bool', shape='b')}
    """
    positional: list[TextTree] = []
    by_name: dict[str, TextTree] = {}
    for text in (texts,) if isinstance(texts, str) else texts:
        reader = _Reader(text)
        while not reader.at_end():
            start, name = reader.position, reader.keyword()
            if name is None and by_name:
                raise reader.error("a positional argument follows a keyword argument", start)
            if name in by_name:
                raise reader.error(f"the argument {name!r} is there twice", start)
            tree = reader.tree()
            if name is None:
                positional.append(tree)
            else:
                by_name[name] = tree
            reader.end_or_comma()
    return ArgumentTexts(tuple(positional), by_name)


def to_text(arguments: ArgumentTexts) -> str:
    """Return the text that `parse_arguments` reads the same arguments from.

    >>> to_text(parse_arguments("float32[b, 2]"))
    'f32[b,2]'
    """
    by_name = (f"{name}={_tree_text(tree)}" for name, tree in arguments.by_name.items())
    return ", ".join([*map(_tree_text, arguments.positional), *by_name])


def _tree_text(tree: TextTree) -> str:
    match tree:
        case None:
            return "None"
        case ArrayText(dtype, shape):
            return f"{_abbreviate(dtype)}[{shape}]"
        case dict():
            return f"{{{', '.join(f'{_key_text(k)}: {_tree_text(t)}' for k, t in tree.items())}}}"
        case tuple():
            return f"({', '.join(map(_tree_text, tree))}{',' * (len(tree) == 1)})"
        case list():
            return f"[{', '.join(map(_tree_text, tree))}]"


def _key_text(key: str) -> str:
    if _KEY.fullmatch(key) is not None and key[:1] not in "'\"":
        return key
    return f'"{key}"' if "'" in key else f"'{key}'"


class _Reader:
    """A text and how far it has been read."""

    __slots__ = ("_depth", "position", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self._depth = 0
        if self.at_end():
            raise self.error("there is no argument in it", 0)

    def error(self, what: str, position: int) -> StructureError:
        return StructureError(f"{self._where(position)}: {what}. To do: {_GRAMMAR}.")

    def at_end(self) -> bool:
        self._skip(_SPACE)
        return self.position == len(self.text)

    def keyword(self) -> str | None:
        """Read the name before a `=`, if there is one."""
        self._skip(_SPACE)
        name = _NAME.match(self.text, self.position)
        if name is None or not re.match(r"\s*=", self.text[name.end() :]):
            return None
        self.position = self.text.index("=", name.end()) + 1
        return name[0]

    def end_or_comma(self) -> None:
        if not self.at_end() and not self._take(","):
            raise self.error(f"{self.text[self.position]!r} is not expected here", self.position)

    def tree(self) -> TextTree:
        """Read a pytree; the position is behind it afterwards."""
        self._skip(_SPACE)
        start = self.position
        if (array := _ARRAY.match(self.text, start)) is not None:
            return self._array(array)
        bracket = self.text[start : start + 1]
        if bracket in _BRACKETS and bracket:
            return self._branch(bracket)
        if (name := _NAME.match(self.text, start)) is not None and name[0] == "None":
            self.position = name.end()
            return None
        if name is not None and name[0] in DTYPE_NAMES:
            raise self.error(f"{name[0]} has no shape; a scalar is {name[0]}[]", start)
        if _SHAPE.fullmatch(self.text):
            raise StructureError(
                f"The arguments {self.text!r} are sizes without a dtype. To do: write them as "
                f"'f32[{self.text}]'."
            )
        raise self.error(f"expected an argument, found {self.text[start:] or 'the end'!r}", start)

    def _array(self, opened: re.Match[str]) -> ArrayText:
        if (dtype := DTYPE_NAMES.get(opened[1])) is None:
            known = [_abbreviate(dtype.name) for dtype in DTYPES]
            raise DtypeError(
                f"{self._where(opened.start())}: the dtype {opened[1]!r} is unknown, or none that "
                f"TensorFlow has; expected one of {', '.join(known)}, or a whole name such as "
                "float32, or a typed PRNG key such as key<fry>."
            )
        start = self.position = opened.end()
        while self.position < len(self.text) and self.text[self.position] not in "[]":
            self.position += 1
        if not self._take("]"):
            raise self.error("the ']' of the shape is missing", opened.start())
        shape = _AROUND_SIGNS.sub(r"\1", self.text[start : self.position - 1].strip())
        if not re.fullmatch(r"[\w\s,+*^()?-]*", shape, re.ASCII):
            raise self.error(f"{shape!r} is not a shape", start)
        return ArrayText(dtype, shape)

    def _branch(self, bracket: str) -> TextTree:
        start, closing = self.position, _BRACKETS[bracket]
        self.position += 1
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"it is more than {_MAX_DEPTH} levels deep", start)
        children: list[tuple[str, TextTree]] = []
        comma = True
        while not self._take(closing):
            if not comma or self.at_end():
                raise self.error(f"the {closing!r} of this {bracket!r} is missing", start)
            key = self._key() if bracket == "{" else ""
            if key in dict(children) and bracket == "{":
                raise self.error(f"the key {key!r} is there twice", start)
            children.append((key, self.tree()))
            comma = self._take(",")
        self._depth -= 1
        trees = [tree for _, tree in children]
        if bracket == "{":
            return dict(children)
        # Parentheses around one argument group it, as in Python.
        return trees if bracket == "[" else trees[0] if len(trees) == 1 and not comma else (*trees,)

    def _key(self) -> str:
        self._skip(_SPACE)
        start = self.position
        if (key := _KEY.match(self.text, start)) is None:
            raise self.error("expected a key, such as image in {image: f32[b]}", start)
        self.position = key.end()
        if not self._take(":"):
            raise self.error(f"expected ':' after the key {key[0]}", self.position)
        return key[0].strip("'\"") if key[0][0] in "'\"" else key[0]

    def _take(self, sign: str) -> bool:
        self._skip(_SPACE)
        if not self.text.startswith(sign, self.position):
            return False
        self.position += len(sign)
        return True

    def _skip(self, pattern: re.Pattern[str]) -> None:
        if (match := pattern.match(self.text, self.position)) is not None:
            self.position = match.end()

    def _where(self, position: int) -> str:
        return f"The arguments {self.text!r}, at character {position + 1}"
