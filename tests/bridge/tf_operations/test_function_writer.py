"""The functions of a graph: names, what they capture, and what is written as several nodes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from savedmodel.tensorflow_graph import FunctionName
from tests.bridge.tf_operations.checking import check, lowered, nodes_of

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


def test_slices_pads_and_shapes():
    check(
        lambda x: [
            x[:, 1:, ::2], x[::-1, :, 1:3], x[..., -2:], jnp.pad(x, ((1, 0), (0, 2), (1, 1))),
            lax.pad(x, 7.0, ((-1, 0, 1), (0, 0, 2), (1, -1, 0))), x[None, :, None], x.reshape(4, 6),
            jnp.squeeze(x[:1]), jnp.concatenate([x, x], 1), jnp.broadcast_to(x[0], (5, 3, 4)),
            jnp.flip(x, (0, 2)), lax.dynamic_slice(x, (1, 0, 9), (1, 3, 2)),
        ],
        _X,
    )  # fmt: skip


def test_sizes_are_computed_from_shapes():
    def function(x):
        rows = x.reshape(-1, 4)
        padded = jnp.pad(rows, ((0, x.shape[0]), (0, 0)))
        return rows, padded, jnp.arange(x.shape[0]) * 2, jnp.zeros(rows.shape[0]), x.shape[0] * 3

    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3, 4"), "float32")
    names = [node.op for node in nodes_of(lowered(function, spec))]
    assert names.count("Shape") == 1
    check(function, _X)
