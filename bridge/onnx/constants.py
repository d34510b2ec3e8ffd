"""Constants: what a module stores, and what counts up."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from bridge.onnx import nodes
from bridge.onnx.graph import Graph
from bridge.onnx.operation import Operation
from bridge.onnx.rules import Rule
from bridge.onnx.sizes import Dim
from bridge.onnx.values import Array, Value, of_array
from xla_call_module.stablehlo import splat

__all__ = ["RULES"]


def _constant(graph: Graph, op: Operation) -> Value:
    del graph
    dtype, shape = op.result.dtype, tuple(dim or 0 for dim in op.result.shape)
    text = splat(op.raw)
    if text is not None and text:
        return Value(dtype, shape, (), array=_parse(text, dtype))
    return of_array(_elements(op.raw, dtype).reshape(shape))


def _elements(raw: Any, dtype: np.dtype[Any]) -> Array:
    """The elements as jaxlib gives them, or as MLIR prints them where jaxlib has no class."""
    if dtype.isbuiltin == 1:  # those of ml_dtypes are no classes of jaxlib
        return np.asarray(raw.attributes["value"]).astype(dtype, copy=True)
    text = raw.get_asm()
    digits = re.search(r'dense<"0x([0-9A-Fa-f]*)">', text)
    if digits is not None:
        return np.frombuffer(bytes.fromhex(digits[1]), dtype)
    body = text[text.index("dense<") + len("dense<") : text.rindex(">")]
    elements = re.findall(r"[^\s\[\],]+", body.split("> :")[0])
    return np.array([_parse(element, dtype)[()] for element in elements], dtype)


def _parse(text: str, dtype: np.dtype[Any]) -> Array:
    """One element as MLIR prints it: a number, `true`, or the bits of a float."""
    if dtype == np.bool_:
        return np.array(text == "true")
    if text.startswith("0x"):
        bits = np.array(int(text, 16), f"uint{8 * dtype.itemsize}")
        return bits.view(dtype)
    if dtype.kind in "iu":
        return np.array(int(text)).astype(dtype)
    return np.array(float(text)).astype(dtype)


def _iota(graph: Graph, op: Operation) -> Value:
    return _counting(graph, op, tuple(dim or 0 for dim in op.result.shape))


def _dynamic_iota(graph: Graph, op: Operation) -> Value:
    shape = op.shape_like(op.sizes(graph, 0))
    return _counting(graph, op, tuple(dim for dim in shape if dim is not None))


def _counting(graph: Graph, op: Operation, shape: tuple[Dim, ...]) -> Value:
    """0, 1, 2, … along one dimension, to be broadcast along the others."""
    axis, dtype = op.integer("iota_dimension"), op.result.dtype
    size = shape[axis]
    if isinstance(size, int):
        line = of_array(np.arange(size).astype(dtype))
    else:
        limit = graph.node("Squeeze", [graph.size(size)], shape=())
        ends = [nodes.constant(0, "int64"), limit, nodes.constant(1, "int64")]
        line = graph.cast(graph.node("Range", ends, shape=(size,)), dtype)
    return nodes.place(graph, line, [axis], shape)


RULES = {
    "stablehlo.constant": Rule(_constant, ("value",)),
    "stablehlo.dynamic_iota": Rule(_dynamic_iota, ("iota_dimension",)),
    "stablehlo.iota": Rule(_iota, ("iota_dimension",)),
}
