"""The rules of the house that a syntax tree can show, one function for each.

A rule is a function from one module to the places that break it. Some are advice, of which
`python -m tests.policy.house_rules` prints the places.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatch

from tests.policy.imports import is_within, upstream_names
from tests.policy.source import PACKAGES, ROOT, Function, Module, own_files, read_modules

LONGEST_BODY = 60
LONGEST_FILE = 750
# What users import, and the modules on the pages of the interface.
PUBLIC_MODULES = (
    *PACKAGES,
    *(f"bridge.{name}" for name in ("beam", "jax2tf", "keras", "meshes", "serving", "testing")),
    *(f"bridge.{name}" for name in ("tf_keras", "inspecting.report", "inspecting.graph_report")),
)
ENVIRONMENT_READER = "xla_call_module.flags"

# Files of JAX and TensorFlow are named from their own packages on.
_FILE = re.compile(r"(?<![\w/.:%*-])(?!(?:jax|tensorflow)/)((?:\w+/)*[\w*]+\.py)\b")
_NOUN_CLAUSE = re.compile(r"(How|That|What|When|Where|Whether|Which|Who|Whose|Why)\b")
_VAGUE = re.compile(r"_*(utils?|helpers?|commons?|misc)_*")
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
_ENVIRONMENT = ("os.environ", "os.environb", "os.getenv", "os.getenvb", "os.putenv", "os.unsetenv")
_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9_]*|__\w+__")
_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_BLOCKS = (ast.If, ast.Try, ast.ExceptHandler, ast.With, ast.For)
_STATEFUL = re.compile(
    r"(.*\.)?(list|dict|set|bytearray|defaultdict|Counter|deque|OrderedDict|local|ContextVar"
    r"|WeakKeyDictionary|WeakValueDictionary|WeakSet|count)"
)


def missing_docstrings(module: Module) -> Iterator[str]:
    """A module says what it is."""
    if not ast.get_docstring(module.tree):
        yield f"{module.path}: no docstring"


def noun_clauses(module: Module) -> Iterator[str]:
    """A docstring begins with an imperative or a noun; that of a test may be any sentence."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(module.tree):
        if isinstance(node, documented) and _NOUN_CLAUSE.match(ast.get_docstring(node) or ""):
            name = getattr(node, "name", "the module")
            if not name.startswith(("test_", "Test")):
                yield f"{module.at(node)}: the docstring of {name}"


def missing_files(module: Module) -> Iterator[str]:
    """The page of a module names files of this project that exist, and others by their package."""
    for name in _FILE.findall(ast.get_docstring(module.tree) or ""):
        if not any(fnmatch(path, f"*/{name}") for path in _paths()):
            yield f"{module.path}: {name}"


@functools.cache
def _paths() -> tuple[str, ...]:
    return tuple(f"/{path.relative_to(ROOT)}" for path in own_files() if path.suffix == ".py")


def long_bodies(module: Module) -> Iterator[str]:
    """A function reads as a paragraph."""
    for function in module.functions():
        lines = body_length(function)
        if lines > LONGEST_BODY:
            yield f"{module.at(function)}: {function.name} has {lines} lines"


def body_length(function: Function) -> int:
    """The lines of a function below its signature and its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def missing_return_annotations(module: Module) -> Iterator[str]:
    """A function says what it returns."""
    for function in module.functions():
        if function.returns is None:
            yield f"{module.at(function)}: {function.name} has no return annotation"


def long_files(module: Module) -> Iterator[str]:
    """A file holds one concept."""
    lines = len(module.text.splitlines())
    if lines > LONGEST_FILE:
        yield f"{module.path}: {lines} lines"


def vague_names(module: Module) -> Iterator[str]:
    """A file is named with the noun that a user would search for."""
    if any(_VAGUE.fullmatch(part) for part in module.name.split(".")):
        yield f"{module.path}: vague name"


def unfinished_work(module: Module) -> Iterator[str]:
    """An issue, not a comment, says what is left to do."""
    for number, line in enumerate(module.text.splitlines(), start=1):
        if found := _UNFINISHED.search(line):
            yield f"{module.path}:{number}: {found[0]}"


def environment_reads(module: Module) -> Iterator[str]:
    """The environment is read in one file, and written in none."""
    if module.name == ENVIRONMENT_READER:
        return
    for name, where in upstream_names(module):
        if any(is_within(name, variable) for variable in _ENVIRONMENT):
            yield f"{where}: {name}"


def listed_private_names(module: Module) -> Iterator[str]:
    """`__all__` is for what users import, or what a module passes on."""
    if module.name in PUBLIC_MODULES:
        return
    for statement in module.tree.body:
        targets, value = _assignment(statement)
        if value is None or [ast.unparse(target) for target in targets] != ["__all__"]:
            continue
        if not _imported(module).intersection(ast.literal_eval(value)):
            yield f"{module.at(statement)}: __all__"


def _imported(module: Module) -> set[str]:
    imports = (node for node in ast.walk(module.tree) if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name for node in imports for alias in node.names}


def printed_operations(module: Module) -> Iterator[str]:
    """MLIR prints a whole module, or a copy outside of one.

    Before it prints an operation where that is, it numbers all values around it.
    """
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "get_asm":
            printed = ast.unparse(node.value)
            if not re.search(r"\.clone\(.*\)$|^module\.operation$", printed):
                yield f"{module.at(node)}: {printed}.get_asm"


def mutable_state(module: Module) -> Iterator[str]:
    """A module keeps no state.

    A list, dict or set may be a constant if its name says so and it is not empty: an empty one is
    there to be filled.
    """
    for statement in _module_level(module.tree.body):
        targets, value = _assignment(statement)
        constant = all(_CONSTANT.fullmatch(ast.unparse(target)) for target in targets)
        if targets and _is_mutable(value) and not (constant and _is_filled(value)):
            yield f"{module.at(statement)}: {ast.unparse(statement)[:60]}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Global):
            yield f"{module.at(node)}: {ast.unparse(node)}"


def _module_level(body: list[ast.AST]) -> Iterator[ast.AST]:
    for statement in body:
        yield statement
        if isinstance(statement, _BLOCKS):
            for field in ("body", "handlers", "orelse", "finalbody"):
                yield from _module_level(getattr(statement, field, []))


def _assignment(statement: ast.AST) -> tuple[list[ast.expr], ast.expr | None]:
    match statement:
        case ast.Assign(targets, value):
            return targets, value
        case ast.AnnAssign(target, _, value):
            return [target], value
    return [], None


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return bool(_STATEFUL.fullmatch(ast.unparse(value.func)))
    return isinstance(value, _DISPLAYS)


def _is_filled(value: ast.expr | None) -> bool:
    match value:
        case ast.List(elements) | ast.Set(elements):
            return bool(elements)
        case ast.Dict(keys, _):
            return bool(keys)
        case ast.Call(func, arguments, keywords):
            builtin = ast.unparse(func) in ("list", "dict", "set", "bytearray")
            return builtin and bool(arguments or keywords)
    return True


ADVICE: tuple[Callable[[Module], Iterator[str]], ...] = (long_bodies, long_files, noun_clauses)

if __name__ == "__main__":
    for rule in ADVICE:
        for module in read_modules():
            for place in rule(module):
                print(f"advice: {place} ({rule.__doc__})")
