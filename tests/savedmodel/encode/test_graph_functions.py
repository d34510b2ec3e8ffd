"""Calls as functions of plain operations, in files that are written, read and saved again."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

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
VALUE = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
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


def operations_of(path):
    """The operations in the functions of a file."""
    library = read_proto(path).meta_graphs[0].graph_def.library
    return {node.op for function in library.function for node in function.node_def}


def assert_same_calls(path, other):
    """Assert that two files have equal calls, also in their gradients."""
    found, wanted = (savedmodel.read(one).signatures[0].function for one in (path, other))
    assert found.chain == wanted.chain
    assert found.call.exported == wanted.call.exported


def test_calls_are_those_of_the_modules(folder):
    assert "XlaCallModule" in operations_of(folder / "xla")
    assert operations_of(folder / "plain") >= {"MatMul", "Tanh", "TanhGrad"}
    assert "XlaCallModule" not in operations_of(folder / "plain")
    assert_same_calls(folder / "plain", folder / "xla")
    assert savedmodel.read(folder / "xla").signatures[0].function.operations == ()


def test_graphs_are_read_again(folder, tmp_path):
    model = savedmodel.read(folder / "plain")
    graphs = model.signatures[0].function.operations
    for found, wanted in zip(graphs, ORDERS, strict=True):
        assert found.main.nodes == wanted.main.nodes
        assert found.main.arguments == wanted.main.arguments
        assert [(r.name, r.source) for r in found.main.results] == [
            (r.name, r.source) for r in wanted.main.results
        ]
    savedmodel.write(model, tmp_path / "again")
    assert operations_of(tmp_path / "again") == operations_of(folder / "plain")


@pytest.mark.parametrize("times", [0, 1, 2])
def test_tensorflow_runs_and_keeps_them(folder, tmp_path, times):
    path = folder / "plain"
    for number in range(times):
        tf.saved_model.save(tf.saved_model.load(path), tmp_path / str(number))
        path = tmp_path / str(number)
    loaded, x = tf.saved_model.load(path), tf.constant(VALUE)
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = loaded(x=x).values()
    np.testing.assert_allclose(y, layer(WEIGHTS, VALUE), rtol=1e-6)
    gradient = tape.gradient(y, [x, loaded.params["w"]])
    with tf.GradientTape() as tape:
        tape.watch(x)
        w = tf.constant(WEIGHTS["w"])
        tape.watch(w)
        expected = tf.tanh(x @ w)
    for found, wanted in zip(gradient, tape.gradient(expected, [x, w]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert "XlaCallModule" not in operations_of(path)
    assert_same_calls(path, folder / "xla")


def test_jax_reads_them(folder):
    loaded = bridge.load(folder / "plain")
    y = loaded(VALUE)
    np.testing.assert_allclose(y, layer(WEIGHTS, VALUE), rtol=1e-6)


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
