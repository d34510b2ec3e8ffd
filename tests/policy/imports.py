"""The imports of a module and the upstream names that it reaches, from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.policy.source import Module

_IMPORTING_CALLS = ("importlib.import_module", "__import__")


@dataclass(frozen=True, slots=True)
class Import:
    """One name that an import statement, or a call that imports, brings in.

    `name` is as long as the statement allows: `from jax import export` is `jax.export`.
    """

    name: str
    where: str


def imports_of(module: Module) -> tuple[Import, ...]:
    """Everything that a module imports, at its top or inside a function."""
    aliases = _aliases(module)
    return tuple(
        Import(name, module.at(node))
        for node in ast.walk(module.tree)
        for name in _names_imported(module, node, aliases)
    )


def _names_imported(module: Module, node: ast.AST, aliases: Mapping[str, str]) -> Iterator[str]:
    match node:
        case ast.Import(names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(_, names, _):
            base = _base_of(module, node)
            yield from (base if a.name == "*" else f"{base}.{a.name}" for a in names)
        case ast.Call(_, [ast.Constant(str(name)), *_]) if _calls_import(node, aliases):
            yield name


def _base_of(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    here = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
    parents = here[: len(here) - (node.level - 1)]
    return ".".join([*parents, *([node.module] if node.module else [])])


def _calls_import(node: ast.Call, aliases: Mapping[str, str]) -> bool:
    return _resolved(node.func, aliases) in _IMPORTING_CALLS


def upstream_names(module: Module) -> Iterator[tuple[str, str]]:
    """Every dotted name that a module imports or spells out, with its place.

    `import tensorflow as tf` and then `tf.python.eager` gives `tensorflow.python.eager`.
    """
    for found in imports_of(module):
        yield found.name, found.where
    aliases = _aliases(module)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and _dotted(node).partition(".")[0] in aliases:
            yield _resolved(node, aliases), module.at(node)


def _aliases(module: Module) -> dict[str, str]:
    aliases = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                aliases[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            base = _base_of(module, node)
            aliases |= {alias.asname or alias.name: f"{base}.{alias.name}" for alias in node.names}
    return aliases


def _resolved(node: ast.expr, aliases: Mapping[str, str]) -> str:
    """The dotted name that an expression spells, its first part as it was imported."""
    root, _, rest = _dotted(node).partition(".")
    return ".".join(filter(None, (aliases.get(root, root), rest)))


def _dotted(node: ast.expr) -> str:
    match node:
        case ast.Name(name):
            return name
        case ast.Attribute(value, attribute):
            base = _dotted(value)
            return f"{base}.{attribute}" if base else ""
    return ""


def is_within(name: str, prefix: str) -> bool:
    """Return whether a dotted name is a module or something inside it."""
    return name == prefix or name.startswith(f"{prefix}.")
