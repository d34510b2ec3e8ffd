"""Sizes that depend on data, as that of what `tf.boolean_mask` returns.

TensorFlow compiles them to types with a bound, `tensor<?xf32, #stablehlo.bounds<5>>`, and XLA pads
the arrays up to it. A few operations are compiled as if the bound were the size, without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from jax.extend.mlir import ir

from bridge.calling_tf.concrete_functions import TracedFunction
from bridge.calling_tf.graph_nodes import scopes_of
from xla_call_module.errors import StructureError
from xla_call_module.passes.retargeting import has_size_of_data
from xla_call_module.stablehlo.modules import walk

# What takes a part of an array, in StableHLO.
_PARTS = frozenset({"stablehlo.dynamic_slice", "stablehlo.slice"})
# The name of a node or argument -> the node, or the attributes.
_Scope = Mapping[str, Any]


def has_data_dependent_sizes(module: Any) -> bool:
    """Return whether a parsed module has sizes that depend on data."""
    return any(map(has_size_of_data, walk(module)))


def refuse_misread_sizes(traced: TracedFunction, module: Any) -> None:
    """Refuse operations that are compiled as if the bound of a size were the size."""
    misread, joined, has_parts = [], [], _takes_parts(module)
    for nodes, arguments in scopes_of(traced.concrete, shapes=True):
        scope = {**arguments, **{node.name: node for node in nodes}}
        misread += [n for n in nodes if n.op in _MISREAD and _MISREAD[n.op](n, scope)]
        joined += [n for n in nodes if n.op == "ConcatV2" and _is_joined(n, scope)]
        # The gradient of joining takes the parts apart.
        has_parts = has_parts or any("_grad/" in node.name for node in nodes)
    for node in [*misread, *(joined if has_parts else ())]:
        raise StructureError(
            f"{traced.name} cannot be compiled for JAX. The size of the input of {node.op} "
            f"({node.name}) depends on data; XLA takes the greatest possible one instead, so the "
            "results would be wrong. To do: count from the front, as in x[tf.shape(x)[0] - 1] for "
            "x[-1]; leave out tf.roll, exclusive sums and products, and slices and gradients of "
            "tf.concat of such arrays; or pass compiled=False, which runs the function in "
            "TensorFlow, through a callback."
        )


def _takes_parts(module: Any) -> bool:
    """Return whether there is a slice of an array of a size that depends on data."""
    slices = (view.operation for view in walk(module) if view.name in _PARTS)
    return any(not ir.RankedTensorType(o.operands[0].type).has_static_shape for o in slices)


def _is_from_the_end(node: Any, scope: _Scope) -> bool:
    """Return whether a slice begins at a distance from the end of an unknown size."""
    is_gradient = node.op == "StridedSliceGrad"
    shape = _shape(node, 0) if is_gradient else _input_shape(node, 0, scope)
    begins = _constant(node, 1, scope) or ()
    ellipsis, new, masked = (
        node.attr[f"{name}_mask"].i for name in ("ellipsis", "new_axis", "begin")
    )
    without_axis = [i for i in range(len(begins)) if (ellipsis | new) >> i & 1]
    for index, begin in enumerate(begins):
        if begin >= 0 or index in without_axis or masked >> index & 1:
            continue
        axis = index - sum(other < index for other in without_axis)
        if ellipsis and index >= ellipsis.bit_length():
            axis = index - len(begins) + sum(other > index for other in without_axis)
        if _is_unknown(shape, axis):
            return True
    return False


def _is_rolled(node: Any, scope: _Scope) -> bool:
    axes = _constant(node, 2, scope)
    return axes is None or any(_is_unknown(_shape(node, 0), axis) for axis in axes)


def _is_exclusive(node: Any, scope: _Scope) -> bool:
    axes = _constant(node, 1, scope)
    if not node.attr["exclusive"].b:
        return False
    return axes is None or _is_unknown(_shape(node, 0), axes[0])


def _is_joined(node: Any, scope: _Scope) -> bool:
    """Return whether something comes after an array of an unknown size along the axis."""
    count = node.attr["N"].i
    axes = _constant(node, count, scope)
    before = [_input_shape(node, index, scope) for index in range(count - 1)]
    return axes is None or any(_is_unknown(shape, axes[0]) for shape in before)


_MISREAD: Mapping[str, Callable[[Any, _Scope], bool]] = {
    "Cumprod": _is_exclusive,
    "Cumsum": _is_exclusive,
    "Roll": _is_rolled,
    "StridedSlice": _is_from_the_end,
    "StridedSliceGrad": _is_from_the_end,
}


def _constant(node: Any, index: int, scope: _Scope) -> Sequence[int] | None:
    """Return the numbers of an input that is a constant."""
    maker = scope[node.input[index].partition(":")[0]]
    if getattr(maker, "op", "") != "Const":
        return None
    numbers: list[int] = tf.make_ndarray(maker.attr["value"].tensor).reshape(-1).tolist()
    return numbers


def _input_shape(node: Any, index: int, scope: _Scope) -> Sequence[int] | None:
    name, *rest = node.input[index].split(":")  # of a function NODE:OUTPUT:NUMBER, else NODE:NUMBER
    if len(rest) > 1 and len(scope[name].attr["_output_shapes"].list.shape) > 1:
        return None  # which of the outputs it is, only the definition of the operation says
    return _shape(scope[name], int(rest[-1]) if rest else 0)


def _shape(node: Any, output: int) -> Sequence[int] | None:
    """Return a shape with -1 for what is unknown; None where the rank is."""
    shapes = node.attr["_output_shapes"].list.shape
    if output >= len(shapes) or shapes[output].unknown_rank:
        return None
    return [dim.size for dim in shapes[output].dim]


def _is_unknown(shape: Sequence[int] | None, axis: int) -> bool:
    return shape is None or shape[axis] < 0
