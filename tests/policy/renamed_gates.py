"""The gates as if JAX or TensorFlow had renamed one of the private names that they take.

Run as a program, it tries every name in turn and prints, as JSON, what each verb then says.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.machinery
import importlib.util
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tests.policy.source import PACKAGES, read_modules
from tests.policy.upstream import GATES, is_private

_PRIVATE_TEXT = re.compile(r"_[a-z]\w*")


def private_names_of_gates() -> list[tuple[str, str]]:
    """Return each gate module with each private name that it takes."""
    return [
        (module.name, name)
        for module in read_modules()
        if module.path.stem in GATES
        for name in sorted(set(_names(module.tree)))
    ]


def _names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(str(base), aliases, _):
                names = [alias.name for alias in aliases]
                yield from (name for name in names if is_private(f"{base}.{name}"))
            case ast.Attribute(ast.Name("self"), _):
                continue
            case ast.Attribute(_, name) if _is_hidden(name):
                yield name
            case ast.keyword(str(name)) if _is_hidden(name):
                yield name
            case ast.Constant(str(text)) if _PRIVATE_TEXT.fullmatch(text) or is_private(text):
                yield text


def _is_hidden(name: str) -> bool:
    return name == "__internal__" or (name.startswith("_") and not name.endswith("__"))


class _Renamer(ast.NodeTransformer):
    """Puts a name that upstream does not have into the place of one that it has."""

    def __init__(self, name: str) -> None:
        self._name, self._other = name, f"{name}_moved"

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        for alias in node.names:
            if alias.name == self._name and is_private(f"{node.module}.{alias.name}"):
                alias.name, alias.asname = self._other, alias.asname or alias.name
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        own = isinstance(node.value, ast.Name) and node.value.id == "self"
        if node.attr == self._name and _is_hidden(node.attr) and not own:
            node.attr = self._other
        return node

    def visit_keyword(self, node: ast.keyword) -> ast.keyword:
        self.generic_visit(node)
        if node.arg == self._name:
            node.arg = self._other
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if node.value == self._name:
            node.value = self._other
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a gate with one name replaced."""

    renamed = ""

    def get_code(self, fullname: str) -> CodeType:
        tree = _Renamer(self.renamed).visit(ast.parse(Path(self.path).read_text()))
        return compile(ast.fix_missing_locations(tree), self.path, "exec")


class _Finder(MetaPathFinder):
    def __init__(self, gate: str, name: str) -> None:
        self._gate, self._name = gate, name

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> Any:
        if fullname != self._gate:
            return None
        file = f"{path[0]}/{fullname.rpartition('.')[2]}.py"
        loader = _Loader(fullname, file)
        loader.renamed = self._name
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


@contextlib.contextmanager
def _renamed(gate: str, name: str) -> Iterator[None]:
    """Import all packages anew inside, with one name of one gate replaced."""
    for module in [m for m in sys.modules if m.partition(".")[0] in PACKAGES]:
        del sys.modules[module]
    finder = _Finder(gate, name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def _verbs(folder: Path) -> dict[str, Callable[[], object]]:
    """Return what is tried, by what it is called; the first one imports the verbs."""
    import jax
    import jax.numpy as jnp
    import tensorflow as tf

    bridge: Any = importlib.import_module("bridge")
    x, array = tf.constant([0.5, 1.0]), jnp.ones(2)
    saved, sharded = folder / "saved", folder / "sharded"

    def differentiated(function: Callable[[Any], Any]) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    def in_graph(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return tf.function(function, autograph=False)

    def on_a_mesh() -> object:
        abstract = jax.sharding.AbstractMesh((2,), ("data",))
        rows = jax.sharding.NamedSharding(abstract, jax.sharding.PartitionSpec("data"))
        split = jax.jit(lambda x: x + 2, in_shardings=rows, out_shardings=rows)
        spec = jax.ShapeDtypeStruct((2,), "float32")
        bridge.save(jax.export.export(split, platforms=["cpu"])(spec), sharded, overwrite=True)
        return bridge.load(sharded, mesh=jax.make_mesh((1,), ("data",)))(array)

    return {
        "import": lambda: [getattr(bridge, name) for name in bridge.__all__],
        "import jax2tf": lambda: importlib.import_module("bridge.jax2tf"),
        "save": lambda: bridge.save(lambda x: jnp.sin(x) * 2, saved, args="f32[2]", overwrite=True),
        "convert": lambda: bridge.convert(lambda x: jnp.sin(x) * 2)(x),
        "gradient": lambda: differentiated(bridge.convert(lambda x: jnp.sin(x) * 3)),
        "graph": lambda: in_graph(bridge.convert(lambda x: jnp.sin(x) * 4))(x),
        "gradient in a graph": lambda: in_graph(
            lambda x: differentiated(bridge.convert(lambda x: jnp.sin(x) * 5))
        )(x),
        "load": lambda: bridge.load(saved)(array),
        "call_tf": lambda: jax.jit(bridge.call_tf(tf.math.sin))(array),
        "on a mesh": on_a_mesh,
        "traced": lambda: bridge.convert(
            jax.export.export(jax.jit(lambda x: x + 1), platforms=["cpu"])(array)
        )(x),
    }


def _outcome(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - what it is, is for the test to say
        return f"{type(error).__name__}: {error}"
    return ""


def outcomes(names: Sequence[tuple[str, str]]) -> Iterator[dict[str, str]]:
    """Yield for each name what each verb says when it is gone; an empty text where it works."""
    for gate, name in names:
        with tempfile.TemporaryDirectory() as folder, _renamed(gate, name):
            try:
                verbs = _verbs(Path(folder))
            except Exception as error:  # noqa: BLE001 - as above
                yield {"import": f"{type(error).__name__}: {error}"}
                continue
            yield {verb: _outcome(action) for verb, action in verbs.items()}


if __name__ == "__main__":
    for said in outcomes(private_names_of_gates()):
        print(json.dumps(said), flush=True)
