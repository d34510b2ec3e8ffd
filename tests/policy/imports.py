"""The imports of a module and the upstream names that it reaches, from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
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
    for_types_only: bool


def imports_of(module: Module) -> tuple[Import, ...]:
    """Everything that a module imports, at its top or inside a function."""
    types_only = {
        child
        for node in ast.walk(module.tree)
        if isinstance(node, ast.If) and _is_type_checking(node.test)
        for statement in node.body
        for child in ast.walk(statement)
    }
    aliases = _aliases(module)
    return tuple(
        Import(name, module.at(node), node in types_only)
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


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test).rpartition(".")[2] == "TYPE_CHECKING"


def import_graph(modules: Collection[Module]) -> dict[str, frozenset[str]]:
    """Return which modules of a tree each one names in an import, those for types only left out.

    A parent package that Python runs on the way is not counted: every package names its modules,
    and `own_root_imports` sees to it that they do not name it.
    """
    known = {module.name for module in modules}
    return {module.name: frozenset(_edges(module, known)) - {module.name} for module in modules}


def _edges(module: Module, known: Collection[str]) -> Iterator[str]:
    for found in imports_of(module):
        if found.for_types_only:
            continue
        if found.name in known:
            yield found.name
        elif found.name.rpartition(".")[0] in known:
            yield found.name.rpartition(".")[0]
    if _imports_by_computed_name(module):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Constant) and node.value in known:
                yield node.value


def _imports_by_computed_name(module: Module) -> bool:
    aliases = _aliases(module)
    return any(
        isinstance(node, ast.Call)
        and _calls_import(node, aliases)
        and not (node.args and isinstance(node.args[0], ast.Constant))
        for node in ast.walk(module.tree)
    )


def find_cycle(graph: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The modules of one cycle, in the order of import, or nothing."""
    done: set[str] = set()
    for start in sorted(graph):
        if cycle := _cycle_from(start, graph, (), done):
            return cycle
    return ()


def _cycle_from(
    name: str, graph: Mapping[str, Collection[str]], path: tuple[str, ...], done: set[str]
) -> tuple[str, ...]:
    if name in path:
        return (*path[path.index(name) :], name)
    if name in done:
        return ()
    for target in sorted(graph[name]):
        if cycle := _cycle_from(target, graph, (*path, name), done):
            return cycle
    done.add(name)
    return ()


def own_root_imports(modules: Collection[Module]) -> list[str]:
    """Return where a module imports a name from the root of its own package."""
    known = {module.name for module in modules}
    return [
        f"{found.where}: {found.name}"
        for module in modules
        if not module.is_package
        for found in imports_of(module)
        if found.name == module.package
        or (found.name.rpartition(".")[0] == module.package and found.name not in known)
    ]


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
