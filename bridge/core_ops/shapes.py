"""Other shapes of the same elements, and the sizes of shapes."""

from __future__ import annotations

from functools import partial

from bridge.core_ops.stablehlo_operation import Operation, Rule
from bridge.graphs import nodes
from bridge.graphs.tensor_graph import TensorGraph
from bridge.graphs.values import Value, constant_array, contents_of, of_array, of_sizes
from xla_call_module.size_polynomials import Dim, floordiv, is_static, product
from xla_call_module.stablehlo.elements import read_elements, read_splat


def _get_dimension_size(graph: TensorGraph, op: Operation) -> Value:
    del graph
    return of_sizes((op.operands[0].shape[op.integer("dimension")],), op.result.dtype, ())


def _set_dimension_size(graph: TensorGraph, op: Operation) -> Value:
    """The array as it is, where it is that large already."""
    del graph
    value, size = op.operands
    if contents_of(size) != (value.shape[op.integer("dimension")],):
        op.refuse(
            "it makes a dimension shorter without changing its type, for which there are no arrays "
            f"in {op.target.name}",
            "take a slice of the array",
        )
    return value


def _reshape(graph: TensorGraph, op: Operation) -> Value:
    (value,) = op.operands
    known = [dim for dim in op.result.shape if dim is not None]
    if len(known) == len(op.result.shape):
        return nodes.reshape(graph, value, known)
    rest = product(known)  # a size of no more than some number follows from the others
    if len(known) < len(op.result.shape) - 1 or rest == 0:
        op.refuse("several sizes of its result are unknown", "state them in its result type")
    size = floordiv(product(value.shape), rest)
    return nodes.reshape(graph, value, [size if d is None else d for d in op.result.shape])


def _dynamic_reshape(graph: TensorGraph, op: Operation) -> Value:
    shape = [dim for dim in op.shape_like(op.sizes(graph, 1)) if dim is not None]
    return nodes.reshape(graph, op.operands[0], shape)


def _transpose(graph: TensorGraph, op: Operation) -> Value:
    return nodes.transpose(graph, op.operands[0], op.integers("permutation"))


def _concatenate(graph: TensorGraph, op: Operation) -> Value:
    axis = op.integer("dimension")
    if axis == 0 and any(value.sizes is not None for value in op.operands):
        contents = [_row_by_row(graph, value) for value in op.operands]
        dims = [dim for sizes in contents for dim in sizes or ()]
        shape = tuple(dim for dim in op.result.shape if dim is not None)
        if None not in contents and product(shape) == len(dims):
            return of_sizes(tuple(dims), op.result.dtype, shape)
    return nodes.concat(graph, op.operands, axis)


def _row_by_row(graph: TensorGraph, value: Value) -> tuple[Dim, ...] | None:
    """The sizes that integers of any shape are made of; None where they are not known."""
    if not is_static(value.shape) or (value.sizes is None and value.array is None):
        return None
    return contents_of(nodes.reshape(graph, value, (product(value.shape),)))


def _broadcast_in_dim(graph: TensorGraph, op: Operation) -> Value:
    value, axes = op.operands[0], op.integers("broadcast_dimensions")
    # A size of no more than some number is the operand's, if that does not grow.
    kept = {axis: dim for axis, dim in zip(axes, value.shape, strict=True) if dim != 1}
    known = [kept.get(axis) if dim is None else dim for axis, dim in enumerate(op.result.shape)]
    dims = [dim for dim in known if dim is not None]
    if len(dims) < len(known):
        op.refuse("a size of its result is unknown", "state it in its result type")
    return nodes.broadcast_in_dim(graph, value, axes, dims)


def _dynamic_broadcast_in_dim(graph: TensorGraph, op: Operation) -> Value:
    value, axes = op.operands[0], op.integers("broadcast_dimensions")
    shape = op.shape_like(op.sizes(graph, 1))
    return nodes.broadcast_in_dim(graph, value, axes, [dim for dim in shape if dim is not None])


def _broadcast(graph: TensorGraph, op: Operation) -> Value:
    """Return the array with new dimensions in front."""
    (value,) = op.operands
    new = op.integers("broadcast_sizes")
    axes = range(len(new), len(new) + value.rank)
    return nodes.broadcast_in_dim(graph, value, axes, (*new, *value.shape))


def _constant(graph: TensorGraph, op: Operation) -> Value:
    del graph
    dtype, shape = op.result.dtype, tuple(dim or 0 for dim in op.result.shape)
    repeated = read_splat(op.raw)
    if repeated is not None:
        return constant_array(repeated.astype(dtype)).broadcast_to(shape)
    return of_array(read_elements(op.raw).astype(dtype))


def _iota(graph: TensorGraph, op: Operation) -> Value:
    """Return 0, 1, 2, … along one dimension, to be broadcast along the others."""
    axis, dtype = op.integer("iota_dimension"), op.result.dtype
    dynamic_shapes = [op.sizes(graph, 0)] if op.operands else []
    shape = [dim or 0 for dim in op.shape_like(*dynamic_shapes)]
    numbers = nodes.count_up(graph, shape[axis])
    if numbers.array is None:
        line = graph.cast(numbers, dtype)
    else:
        line = of_array(numbers.array.astype(dtype))
    return nodes.broadcast_in_dim(graph, line, [axis], shape)


_moving = partial(Rule, expand=False)
_EXPANDING = (
    "broadcast_dimensions",
    "known_expanding_dimensions",
    "known_non_expanding_dimensions",
    "known_nonexpanding_dimensions",
)
RULES = {
    "stablehlo.broadcast": _moving(_broadcast, ("broadcast_sizes",)),
    "stablehlo.broadcast_in_dim": _moving(_broadcast_in_dim, ("broadcast_dimensions",)),
    "stablehlo.concatenate": _moving(_concatenate, ("dimension",)),
    "stablehlo.constant": Rule(_constant, ("value",)),
    "stablehlo.dynamic_broadcast_in_dim": _moving(_dynamic_broadcast_in_dim, _EXPANDING),
    "stablehlo.dynamic_iota": Rule(_iota, ("iota_dimension",)),
    "stablehlo.dynamic_reshape": _moving(_dynamic_reshape),
    "stablehlo.get_dimension_size": Rule(_get_dimension_size, ("dimension",), expand=False),
    "stablehlo.iota": Rule(_iota, ("iota_dimension",)),
    "stablehlo.reshape": _moving(_reshape),
    "stablehlo.set_dimension_size": _moving(_set_dimension_size, ("dimension",)),
    "stablehlo.transpose": _moving(_transpose, ("permutation",)),
}
