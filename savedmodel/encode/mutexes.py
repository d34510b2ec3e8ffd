"""Functions that change variables, as XLA compiles them whole or as they hold a mutex.

`state` writes them; here they are changed from the one to the other, in a file of any writer.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from savedmodel.protos.schema import Proto
from xla_call_module.node import is_call

# tensorflow/compiler/jit/defs.cc, which `tf.function(jit_compile=True)` sets, too.
_MUST_COMPILE = "_XlaMustCompile"
# What is to be compiled whole or to hold a mutex again, where nobody locks variables.
_ATOMIC = "_jax_atomic"
_MUTEX, _LOCK, _UNLOCK = "mutex", "mutex_lock", "mutex_unlock"
_READ, _ASSIGN = "ReadVariableOp", "AssignVariableOp"


def mutex_name(modules: Iterable[bytes]) -> str:
    """Return a name that files of one process share only where their modules are the same."""
    checksum = 0
    for module in modules:
        checksum = zlib.crc32(module, checksum)
    return f"jax_tf_bridge_{checksum:08x}"


def compile_whole(function: Proto) -> None:
    """Let XLA compile a function, or what calls one, as a whole."""
    function.attr[_MUST_COMPILE].b = True


def hold_mutex(function: Proto, name: str) -> None:
    """Let a function hold a mutex while it reads and assigns variables.

    What it returns waits until the mutex is given back. Otherwise nothing would need that once the
    function is part of another graph, and TensorFlow would give it back at once.
    """
    nodes = list(function.node_def)
    mutex = function.node_def.add(name=_MUTEX, op="MutexV2")
    mutex.attr["container"].s, mutex.attr["shared_name"].s = b"", name.encode()
    function.node_def.add(name=_LOCK, op="MutexLock", input=[f"{_MUTEX}:resource:0"])
    done = []
    for node in (node for node in nodes if node.op == _READ):
        node.input.append(f"^{_LOCK}")
        done.append(f"^{node.name}")
    reads = tuple(done)
    for node in (node for node in nodes if node.op == _ASSIGN):
        # A variable must not change before another one is read.
        node.input.extend(reads)
        done.append(f"^{node.name}")
    inputs = [f"{_LOCK}:mutex_lock:0", *done]
    function.node_def.add(name=_UNLOCK, op="ConsumeMutexLock", input=inputs)
    returned = {reference.partition(":")[0] for reference in function.ret.values()}
    for node in (node for node in nodes if node.op == "Identity" and node.name in returned):
        node.input.append(f"^{_UNLOCK}")
    function.signature.control_output.append(_UNLOCK)
    function.control_ret[_UNLOCK] = _UNLOCK


def to_mutexes(graph: Proto, name: str) -> None:
    """Let the functions of a GraphDef that XLA compiles for their variables hold a mutex."""
    changed = set()
    for function in graph.library.function:
        is_compiled = _is_compiled(function) and (_has_call(function) or _only_reads(function))
        if is_compiled:
            del function.attr[_MUST_COMPILE]
        if _take_mark(function) or is_compiled:
            hold_mutex(function, name)
            changed.add(str(function.signature.name))
    for node in _callers(graph, changed):
        if _MUST_COMPILE in node.attr:
            del node.attr[_MUST_COMPILE]


def to_compiled(graph: Proto) -> None:
    """Let XLA compile the functions of a GraphDef that hold a mutex."""
    changed = set()
    for function in graph.library.function:
        locks = any(node.op == "MutexLock" and node.name == _LOCK for node in function.node_def)
        if locks:
            _release_mutex(function)
        if _take_mark(function) or locks:
            compile_whole(function)
            changed.add(str(function.signature.name))
    for node in _callers(graph, changed):
        compile_whole(node)


def lock_nothing(function: Proto) -> None:
    """Let a function run without a mutex, and say that it is to have one where it is opaque."""
    for node in function.node_def:
        if node.op in (_READ, _ASSIGN):
            node.attr[_ATOMIC].b = True


def _take_mark(function: Proto) -> bool:
    """Return whether a function is to be atomic and is not; it is not marked as one any more."""
    marked = [node for node in function.node_def if _ATOMIC in node.attr]
    for node in marked:
        del node.attr[_ATOMIC]
    return bool(marked)


def to_open(graph: Proto) -> None:
    """Let nothing be held while the functions of a GraphDef run, and nobody compile them."""
    to_compiled(graph)
    changed = set()
    for function in graph.library.function:
        if _is_compiled(function):
            del function.attr[_MUST_COMPILE]
            lock_nothing(function)
            changed.add(str(function.signature.name))
    for node in _callers(graph, changed):
        if _MUST_COMPILE in node.attr:
            del node.attr[_MUST_COMPILE]


def _release_mutex(function: Proto) -> None:
    """Undo `hold_mutex`."""
    _keep(function.node_def, lambda node: node.name not in (_MUTEX, _LOCK, _UNLOCK))
    reads = {f"^{node.name}" for node in function.node_def if node.op == _READ}
    added = {f"^{_LOCK}", f"^{_UNLOCK}", *reads}
    for node in function.node_def:
        if node.op in (_READ, _ASSIGN, "Identity"):
            _keep(node.input, lambda reference: reference not in added)
    for key in [key for key, node in function.control_ret.items() if node == _UNLOCK]:
        del function.control_ret[key]
        function.signature.control_output.remove(key)


def _is_compiled(function: Proto) -> bool:
    return _MUST_COMPILE in function.attr and bool(function.attr[_MUST_COMPILE].b)


def _has_call(function: Proto) -> bool:
    return any(map(is_call, function.node_def))


def _only_reads(function: Proto) -> bool:
    return {node.op for node in function.node_def} <= {_READ, "Identity", "NoOp"}


def _callers(graph: Proto, names: set[str]) -> Iterator[Proto]:
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            if "f" in node.attr and node.attr["f"].func.name in names:
                yield node


def _keep(values: Any, wanted: Callable[[Any], bool]) -> None:
    """Remove the other elements of a repeated field."""
    for index in reversed(range(len(values))):
        if not wanted(values[index]):
            del values[index]
