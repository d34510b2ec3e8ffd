"""Whether two versions have the same program, wherever it stands in the source."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from bridge.diff import module_digest
from savedmodel.files.folder import PROTO_FILE
from savedmodel.protos.schema import Proto
from savedmodel.read import read_proto
from xla_call_module.call import CallModule
from xla_call_module.errors import InteropError
from xla_call_module.node import decode_node, is_call

# The graph with its modules, which have the lines of the source in them, and its hash.
PROGRAM_FILES = frozenset({PROTO_FILE, "fingerprint.pb"})


def have_same_program(first: Path, second: Path) -> bool:
    """Return whether the graphs of two SavedModels differ in source locations alone.

    All of them is compared: nodes, signatures with defaults, objects, and the modules of calls.
    """
    try:
        ours, theirs = read_proto(first), read_proto(second)
        pairs = list(zip(_calls(ours), _calls(theirs), strict=True))
        for one, other in pairs:
            if not _are_alike(decode_node(one), decode_node(other)):
                return False
            other.CopyFrom(_with_module_of(one, other))
    except (InteropError, ValueError):  # damaged, or other numbers of calls
        return False
    return bool(ours == theirs)


def _calls(proto: Proto) -> Iterator[Proto]:
    for graph in proto.meta_graphs:
        nodes = [*graph.graph_def.node]
        for function in graph.graph_def.library.function:
            nodes += function.node_def
        yield from filter(is_call, nodes)


def _with_module_of(one: Proto, other: Proto) -> Proto:
    """Return a node with the texts of another one: the module, and what describes the call."""
    made = type(other)()
    made.CopyFrom(other)
    for key in [key for key in made.attr if key in one.attr and made.attr[key].s]:
        if key == "module" or key.startswith("_jax_"):
            made.attr[key].CopyFrom(one.attr[key])
    return made


def _are_alike(first: CallModule, second: CallModule) -> bool:
    """Return whether calls differ in source locations alone."""
    moved = dataclasses.replace(first, module=second.module, exported=second.exported)
    return (
        moved == second
        and first.stablehlo_version == second.stablehlo_version
        and module_digest(first.module) == module_digest(second.module)
    )
