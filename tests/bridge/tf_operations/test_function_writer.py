"""The functions of a graph: names, and what they capture."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from savedmodel.tensorflow_graph import FunctionName
from tests.bridge.tf_operations.checking import lowered, nodes_of

_X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def test_names_are_unique_and_inputs_are_there():
    graph = lowered(lambda x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x) + x, _X)
    functions = (graph.main, *graph.functions)
    assert len({function.name for function in functions}) == len(functions) == 3
    for function in functions:
        known = {argument.name for argument in function.arguments}
        assert len({node.name for node in function.nodes}) == len(function.nodes)
        for node in function.nodes:
            assert {name.split(":")[0] for name in node.inputs} <= known
            known.add(node.name)
        assert {result.source.split(":")[0] for result in function.results} <= known


def test_a_loop_takes_what_it_captures_as_arguments():
    weights = np.ones((5, 5), np.float32)
    graph = lowered(
        lambda x: lax.fori_loop(0, 9, lambda _, y: jnp.tanh(y @ weights), x),
        _X[0, :, :1] + np.ones((3, 5)),
    )
    (node,) = [node for node in nodes_of(graph) if node.op == "While"]
    body = next(f for f in graph.functions if f.name == node.attributes["body"].name)
    assert isinstance(node.attributes["cond"], FunctionName)
    assert [len(part) for part in (body.arguments, body.results, node.inputs)] == [3, 3, 3]
    assert body.arguments[2].name == body.results[2].source
