"""The functions of the packages, and the files, that differ from an earlier state of the tree."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.policy.source import PACKAGES, ROOT, own_files

# What is at the top of a module and has no name.
OTHER = ""
_MAIN = ("main", "origin/main", "origin/HEAD")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def earlier_state(since: str) -> str:
    """Return what a tree is compared with: a folder, or a commit that git knows.

    By default it is where this branch has left the main one, and the commit before the last one
    where nothing differs from there.
    """
    if since:
        return since
    for main in _MAIN:
        base = _git("merge-base", "HEAD", main).strip()
        if base:
            return base if _differing_from(base) else "HEAD~1"
    return "HEAD" if _differing_from("HEAD") else "HEAD~1"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout


def _differing_from(commit: str) -> list[str]:
    changed = _git("diff", "--name-only", "-z", "--no-renames", commit)
    added = _git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted({*changed.split("\0"), *added.split("\0")} - {""})


def changed_texts(earlier: str) -> dict[str, tuple[str, str]]:
    """Return the text of each file that differs, as it was and as it is; empty where there is none.

    Args:
        earlier: a folder with the earlier tree, or a commit.
    """
    folder = Path(earlier)
    if folder.is_dir():
        trees = [{str(p.relative_to(r)) for p in own_files(r)} for r in (folder.resolve(), ROOT)]
        names = sorted(set().union(*trees))
        pairs = {name: (_text(folder / name), _text(ROOT / name)) for name in names}
    else:
        if not _git("rev-parse", "--verify", "--quiet", f"{earlier}^{{commit}}"):
            raise SystemExit(f"{earlier!r} is no folder, and no commit that git knows here.")
        names = _differing_from(earlier)
        pairs = {name: (_git("show", f"{earlier}:{name}"), _text(ROOT / name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def text_before(path: str) -> str:
    """Return the text of a file in the earlier state; empty where git does not know one."""
    return _git("show", f"{earlier_state('')}:{path}")


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.is_file() else ""


def parts(text: str) -> dict[str, str]:
    """Return each function, method, class and name of a module, without comments and docstrings.

    What a class has besides its methods is under its name.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {OTHER: text}
    for name, node in _named(tree.body, ""):
        found[name].append(ast.dump(node))
    return {name: "\n".join(texts) for name, texts in found.items()}


def _named(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        match node:
            case ast.Expr(ast.Constant(str())):
                continue
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for inner in ast.walk(node):
                    if isinstance(inner, _Function | ast.ClassDef):
                        inner.body = _without_docstring(inner.body)
                yield prefix + node.name, node
            case ast.ClassDef():
                methods = [n for n in node.body if isinstance(n, _Function | ast.ClassDef)]
                yield from _named(methods, f"{prefix}{node.name}.")
                node.body = [n for n in _without_docstring(node.body) if n not in methods]
                yield prefix + node.name, node
            case ast.Assign(targets=targets):
                yield from ((ast.unparse(target), node) for target in targets)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
                yield ast.unparse(target), node
            case ast.Import(names) | ast.ImportFrom(names=names):
                module = getattr(node, "module", None)
                for alias in names:
                    name = alias.asname or alias.name.partition(".")[0]
                    yield name, ast.Constant(f"{module}.{alias.name}")
            case _:
                yield OTHER, node


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    return body[1:] if documented else body


def changed_parts(before: str, after: str) -> set[str]:
    """Return the names of the parts of a module that differ."""
    old, new = parts(before), parts(after)
    return {name for name in {*old, *new} if old.get(name) != new.get(name)}


def reached(path: str, changed: set[str]) -> set[str]:
    """Return the functions, as `path:name`, in which a change of parts of a file can be seen.

    A function is seen where it is executed. A class or another name of the module is seen in what
    mentions it, in this file and in those that mention the file, by other such names, too.
    """
    texts = {str(p.relative_to(ROOT)): p.read_text() for p in source_paths()}
    module = Path(path).parent.name if Path(path).stem == "__init__" else Path(path).stem
    near = [file for file, text in texts.items() if file == path or module in text]
    mentions = {file: _mentions(texts[file]) for file in near if file in texts}
    found = {f"{path}:{name}" for name in changed}
    if OTHER in changed:
        found |= {f"{path}:{name}" for name in mentions.get(path, {})}
    todo = [(path, name) for name in changed if not mentions.get(path, {}).get(name, (True,))[0]]
    seen = set(todo)
    while todo:
        _, name = todo.pop()
        for file, parts_of_file in mentions.items():
            for part, (is_function, names) in parts_of_file.items():
                if name in names or part.startswith(f"{name}."):
                    found.add(f"{file}:{part}")
                    if not is_function and (file, part) not in seen:
                        seen.add((file, part))
                        todo.append((file, part))
    return found


def source_paths() -> Iterator[Path]:
    """Yield the files of the packages."""
    return (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


def _mentions(text: str) -> dict[str, tuple[bool, frozenset[str]]]:
    """Return for each part of a module whether it is a function, and the names in it."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return {}
    found: dict[str, tuple[bool, frozenset[str]]] = {}
    for name, node in _named(tree.body, ""):
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
        is_function, before = found.get(name, (False, frozenset()))
        found[name] = (is_function or isinstance(node, _Function), before | names)
    return found
