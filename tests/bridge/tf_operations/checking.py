"""What TensorFlow computes of a function by its own operations, beside what JAX does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import export

from bridge.tf_operations.lowering import lower_call
from savedmodel.tensorflow_graph import GraphNode, TensorFlowGraph
from tests.bridge.tf_operations.running import function_of
from tests.operations.judging import difference
from xla_call_module.call import CallModule
from xla_call_module.exported import from_exported

_NUMBERS = itertools.count()
# What the rounding of sums, products and elementary functions makes of a result, relative to it.
_ROUNDING = {"bfloat16": 1.6e-2, "complex128": 1e-13, "complex64": 4e-6, "float16": 2e-3,
             "float32": 3e-6, "float64": 1e-13}  # fmt: skip


def export_call(function: Callable[..., Any], *args: Any) -> CallModule:
    """Return the call of a function of arrays or of specs."""
    return from_exported(export.export(jax.jit(function))(*args))


def lowered(function: Callable[..., Any], *args: Any) -> TensorFlowGraph:
    """Return the graph of a function of arrays or of specs, without what it asserts."""
    return lower_call(export_call(function, *args), shape_assertions=False)


def nodes_of(graph: TensorFlowGraph) -> list[GraphNode]:
    """Return the nodes of all functions of a graph but for constants."""
    functions = (graph.main, *graph.functions)
    return [node for function in functions for node in function.nodes if node.op != "Const"]


def operations(function: Callable[..., Any], *args: Any) -> list[str]:
    """Return the names of the operations that a function becomes, in their order."""
    return [node.op for node in nodes_of(lowered(function, *args))]


def run_call(call: CallModule, arrays: Sequence[Any]) -> list[Any]:
    """Return what TensorFlow computes of all arguments of a call."""
    graph = lower_call(call, name_prefix=f"case_{next(_NUMBERS)}_")
    return function_of(graph)(*(arrays[index] for index in call.kept))


def check_call(exported: export.Exported, *arrays: Any, **options: Any) -> None:
    """Compare what TensorFlow and JAX compute of an exported function of flat arrays."""
    args, kwargs = jax.tree.unflatten(exported.in_tree, arrays)
    wanted = jax.tree.leaves(exported.call(*args, **kwargs))
    got = run_call(from_exported(exported), [_physical(array) for array in arrays])
    assert_same(got, list(map(_physical, wanted)), **options)


def check(function: Callable[..., Any], *arrays: Any, **options: Any) -> None:
    """Compare what TensorFlow and JAX compute of a function."""
    check_call(export.export(jax.jit(function))(*arrays), *jax.tree.leaves(arrays), **options)


def _physical(array: Any) -> Any:
    """Return an array as it crosses into TensorFlow."""
    if array.dtype == jax.dtypes.float0:
        return np.zeros(array.shape, bool)
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array)


def assert_same(
    got: Sequence[Any],
    wanted: Sequence[Any],
    *,
    rtol: float | None = None,
    of_largest: bool = False,
) -> None:
    """Assert that arrays are the same, up to rounding: of each element, or of the largest one."""
    for one, other in zip(got, wanted, strict=True):
        name = other.dtype.name
        tolerance = _ROUNDING.get(name, 0.0) if rtol is None else rtol
        ulps = tolerance / float(ml_dtypes.finfo(name).eps) if name in _ROUNDING else 0.0
        said = difference(one, other, ulps=ulps, dtype=name, each=not of_largest)
        assert not said, said
