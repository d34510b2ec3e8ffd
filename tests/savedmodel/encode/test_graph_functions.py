"""Calls as functions of plain operations, in files that are written, read and saved again."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import bridge
import savedmodel
from savedmodel.decode.graph_functions import _read_node, read_operations
from savedmodel.encode.graph_functions import encode_graph
from savedmodel.read import read_proto
from savedmodel.tensorflow_graph import (
    STRING,
    FunctionName,
    GraphFunction,
    GraphNode,
    GraphTensor,
    TensorFlowGraph,
)
from xla_call_module.allowance import Allowance
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import FormatError
from xla_call_module.node import is_call

F32 = dtype_from_name("float32", where="the test")
BOOL = dtype_from_name("bool", where="the test")
W, X, Y = (GraphTensor(*one) for one in (
    ("w", F32, (3, 2)), ("x", F32, (None, 3)), ("ct", F32, (None, 2)),
))  # fmt: skip
WEIGHTS = {"w": np.arange(6, dtype=np.float32).reshape(3, 2) / 10}


def layer(params, x):
    return jnp.tanh(x @ params["w"])


def _product(name, left, right, **transposed):
    flags = {f"transpose_{side}": side in transposed for side in "ab"}
    return GraphNode("MatMul", name, (left, right), {"T": F32, **flags})


def _forward(x="x", w="w"):
    return [
        _product("mm", x, w),
        GraphNode("Tanh", "t", ("mm:product:0",), {"T": F32}),
    ]


def _result(name, source, shape=(None, 2)):
    return GraphTensor(name, F32, shape, source)


ORDERS = (
    TensorFlowGraph(GraphFunction("layer", (W, X), tuple(_forward()), (_result("y", "t:y:0"),))),
    TensorFlowGraph(
        GraphFunction(
            "layer_vjp",
            (W, X, Y),
            (
                *_forward(),
                GraphNode("TanhGrad", "dt", ("t:y:0", "ct"), {"T": F32}),
                _product("dw", "x", "dt:z:0", a=True),
                _product("dx", "dt:z:0", "w", b=True),
            ),
            (_result("dw_", "dw:product:0", (3, 2)), _result("dx_", "dx:product:0", (None, 3))),
        )
    ),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    bridge.save(layer, folder / "xla", params=WEIGHTS, args="f32[b,3]")
    model = savedmodel.read(folder / "xla")
    (signature,) = model.signatures
    function = dataclasses.replace(signature.function, operations=ORDERS)
    plain = dataclasses.replace(signature, function=function)
    savedmodel.write(dataclasses.replace(model, signatures=(plain,)), folder / "plain")
    return folder


def test_a_call_without_its_function_is_damage(folder):
    meta_graph = read_proto(folder / "plain").meta_graphs[0]
    nodes = [n for f in meta_graph.graph_def.library.function for n in f.node_def if is_call(n)]
    assert {node.op for node in nodes} == {"StatefulPartitionedCall"}
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


def test_an_attribute_that_is_none_is_refused():
    graph = TensorFlowGraph(GraphFunction("main", (), (GraphNode("A", "a", (), {"x": 1j}),), ()))
    with pytest.raises(TypeError, match="complex is not an attribute"):
        encode_graph(graph)
