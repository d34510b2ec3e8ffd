"""A function in JAX, in ONNX Runtime and in ONNX's reference evaluator."""

from __future__ import annotations

import contextlib

import jax
import numpy as np
import onnx
import onnxruntime
from jax import enable_x64, export, tree_util
from onnx.reference import ReferenceEvaluator

import bridge
from bridge.core.narrow_types import storage_dtype_of

_WIDE = ("int64", "uint64", "float64")


def check(function, *arrays, shapes=None, rtol=1e-5, atol=0.0, **options):
    """Assert that the function's results are the same everywhere, and return its model.

    Args:
        function: of the arrays, none of which is a parameter.
        arrays: what it is called with.
        shapes: for each of them the symbolic shape as a text, or None.
        rtol, atol: how far float results may differ; NaNs, infinities and integers may not.
        options: of `bridge.to_onnx`.
    """
    arrays = [np.asarray(array) for array in arrays]
    wide = any(array.dtype.name in _WIDE for array in arrays)
    with enable_x64() if wide else contextlib.nullcontext():
        exported = export.export(jax.jit(function))(*_specs(arrays, shapes))
        expected = [np.asarray(x) for x in tree_util.tree_leaves(jax.jit(function)(*arrays))]
    model = bridge.to_onnx(exported, **options)
    for how in (run, evaluate):
        assert_same(how(model, arrays), expected, rtol=rtol, atol=atol)
    return model


def to_storage(array):
    """An array as a model takes and returns it: integers of few bits and small floats in wider."""
    return array.astype(storage_dtype_of(array.dtype) or array.dtype)


def check_narrow(function, arrays, expected, **options):
    """Assert what a function of arrays that no model takes has to return, and return its model."""
    model = bridge.to_onnx(export.export(jax.jit(function))(*arrays), **options)
    given, results = list(map(to_storage, arrays)), list(map(to_storage, expected))
    for how in (run, evaluate):
        assert_same(how(model, given), results, rtol=0, atol=0.0)
    return model


def _specs(arrays, shapes):
    scope = export.SymbolicScope()
    specs = []
    for array, text in zip(arrays, shapes or [None] * len(arrays), strict=True):
        shape = array.shape if text is None else export.symbolic_shape(text, scope=scope)
        specs.append(jax.ShapeDtypeStruct(shape, array.dtype))
    return specs


def run(model, arrays, *, level="ALL", disabled=()):
    """Return what ONNX Runtime computes on one thread, with the optimizers of a level."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, f"ORT_{'DISABLE' if level == 'NONE' else 'ENABLE'}_"
        f"{'ALL' if level == 'NONE' else level}"
    )  # fmt: skip
    session = onnxruntime.InferenceSession(
        model.SerializeToString(),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=list(disabled),
    )
    return session.run(None, feed(model, arrays))


def evaluate(model, arrays):
    """Return what ONNX's reference evaluator computes."""
    with np.errstate(all="ignore"):
        return ReferenceEvaluator(model).run(None, feed(model, arrays))


def feed(model, arrays):
    """The arrays by the names of the model's inputs."""
    names = [value.name for value in model.graph.input]
    return dict(zip(names, arrays, strict=True))


def assert_same(found, expected, *, rtol, atol):
    """Compare results: dtypes and shapes too, NaN with NaN, and integers exactly."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        one = np.asarray(one)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if other.dtype.kind == "f":
            tiny = atol or np.finfo(other.dtype).tiny
            np.testing.assert_allclose(one, other, rtol=rtol, atol=tiny)
        else:
            np.testing.assert_array_equal(one, other)


def operations(model):
    """The operations of a model, in their order."""
    return [node.op_type for node in model.graph.node]


def check_whole(model):
    """The checks of the onnx package, as strict as they are, and that nothing is in vain."""
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    used = {output.name for output in model.graph.output} | set(_taken(model.graph))
    assert all(used.intersection(node.output) for node in model.graph.node)
    assert {tensor.name for tensor in model.graph.initializer} <= used


def _taken(graph):
    """The names that the nodes of a graph take, and those of the graphs in them."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            yield from _taken(attribute.g)
            yield from (output.name for output in attribute.g.output)
