"""Functions of plain operations in files: their attributes, and what is no such function."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from savedmodel.decode.graph_functions import _read_node, read_operations
from savedmodel.encode.graph_functions import encode_graph
from savedmodel.read import read_proto
from savedmodel.tensorflow_graph import (
    STRING,
    FunctionName,
    GraphFunction,
    GraphNode,
    TensorFlowGraph,
)
from xla_call_module.allowance import Allowance
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import FormatError
from xla_call_module.node import is_call

F32 = dtype_from_name("float32", where="the test")
BOOL = dtype_from_name("bool", where="the test")


def test_a_call_without_its_function_is_damage(tmp_path):
    bridge.save(jnp.tanh, tmp_path / "m", args="f32[3]", operations="tensorflow")
    library = read_proto(tmp_path / "m").meta_graphs[0].graph_def.library
    nodes = [node for f in library.function for node in f.node_def if is_call(node)]
    nodes[0].attr["f"].func.name = "layer"
    with pytest.raises(FormatError, match="calls the function layer"):
        read_operations(nodes[:1], {}, Allowance(10, what="steps"))


def test_every_kind_of_attribute_is_written_and_read():
    values = {
        "flag": True, "number": 3, "float": 0.5, "text": "abc", "bytes": b"\xff", "dtype": F32,
        "texts": STRING, "shape": (2, None), "any_shape": None,
        "tensor": np.arange(3), "words": np.array(["a", "bc"], object),
        "function": FunctionName("body"), "none": [], "flags": [True, False], "numbers": [1, 2],
        "floats": [0.5], "names": ["x"], "dtypes": [F32, BOOL], "shapes": [(), (None,), None],
        "functions": [FunctionName("body"), FunctionName("other")],
    }  # fmt: skip
    body = GraphFunction("body", (), (), ())
    node = GraphNode("Any", "node", ("^other",), values)
    main, inner = encode_graph(TensorFlowGraph(GraphFunction("main", (), (node,), ()), (body,)))
    assert (main.signature.name, inner.signature.name) == ("main", "body")
    found = dict(_read_node(main.node_def[0]).attributes)
    for key in ("tensor", "words"):
        np.testing.assert_array_equal(found.pop(key), values.pop(key))
    assert found == values


@pytest.mark.parametrize(("op", "stateful"), [("Assert", True), ("While", True), ("Add", False)])
def test_a_function_with_effects_says_so(op, stateful):
    """TensorFlow leaves out, or computes once for all, what is not stateful."""
    (proto,) = encode_graph(
        TensorFlowGraph(GraphFunction("main", (), (GraphNode(op, "n", (), {}),), ()))
    )
    assert proto.signature.is_stateful is stateful
    assert list(proto.signature.control_output) == (["n"] if op == "Assert" else [])


def test_an_attribute_that_is_none_is_refused():
    graph = TensorFlowGraph(GraphFunction("main", (), (GraphNode("A", "a", (), {"x": 1j}),), ()))
    with pytest.raises(TypeError, match="complex is not an attribute"):
        encode_graph(graph)
