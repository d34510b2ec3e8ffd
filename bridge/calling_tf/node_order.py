"""The nodes of a function in TensorFlow's protos, which may be in any order."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable
from typing import Any

__all__ = ["in_order"]


def in_order(nodes: Iterable[Any]) -> list[Any]:
    """The nodes, each after those whose outputs it takes."""
    known = {node.name: node for node in nodes}
    inputs = {
        name: {source for text in node.input if (source := text.partition(":")[0]) in known}
        for name, node in known.items()
    }
    return [known[name] for name in graphlib.TopologicalSorter(inputs).static_order()]
