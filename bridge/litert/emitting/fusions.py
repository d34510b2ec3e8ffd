"""Operations that together are one operator, found as a block is made."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

import jax
import numpy as np

from bridge.blocks.block import Block, Operation, Value
from bridge.blocks.block_builder import BlockBuilder, BlockTarget, build_block, number_of
from bridge.litert.emitting.element_operators import broadcasts
from xla_call_module.size_polynomials import is_static

_F = np.dtype(np.float32)


def fuse(builder: BlockBuilder, op: Operation) -> Value | None:
    """Return the result of an operation that is one operator with those before it."""
    rule = _RULES.get(op.name)
    return None if rule is None else rule(builder, op)


def _mean(builder: BlockBuilder, op: Operation) -> Value | None:
    """Return a mean of a sum that is divided by how many were added, or by multiplication."""
    if op.result.dtype != _F:
        return None
    is_quotient = op.name == "div"
    for value, other in (op.operands, op.operands[::-1])[: 1 if is_quotient else 2]:
        total, number = _sum_of(builder, value), number_of(other)
        if total is None or number is None or other.rank:
            continue
        sizes = [total.operands[0].shape[axis] for axis in total.parameters["axes"]]
        if not is_static(sizes):
            continue
        count = np.float32(math.prod(map(int, sizes)))
        if number == (count if is_quotient else np.float32(1) / count):
            types = [(total.result.shape, _F)]
            (mean,) = builder.add(
                "reduce_mean", total.operands, total.parameters, types, total.place
            )
            return builder.add("reshape", [mean], {}, [(op.result.shape, _F)], op.place)[0]
    return None


def _sum_of(builder: BlockBuilder, value: Value) -> Operation | None:
    """Return the sum that a value is, or is but for dimensions of size 1."""
    reshaped = builder.maker(value, "reshape")
    return builder.maker(value if reshaped is None else reshaped.operands[0], "reduce_sum")


def _times(builder: BlockBuilder, op: Operation) -> Value | None:
    return _mean(builder, op) or _gelu(builder, op)


def _gelu(builder: BlockBuilder, op: Operation) -> Value | None:
    """Return what `jax.nn.gelu` makes by the hyperbolic tangent."""
    if op.result.dtype != _F or op.result.rank == 0:
        return None
    pattern, makers = _gelu_pattern()
    found: dict[Value, Value] = {}
    last = makers[pattern.outputs[0]]
    pairs = [*zip(last.operands, op.operands, strict=True)]
    if not all(_matches(builder, makers, one, given, found) for one, given in pairs):
        return None
    operands = [found[value] for value in pattern.inputs]
    return builder.add("gelu", operands, {}, [(op.result.shape, _F)], op.place)[0]


@functools.cache
def _gelu_pattern() -> tuple[Block, Mapping[Value, Operation]]:
    """Return the block of the function, and what makes each of its values."""
    given = jax.ShapeDtypeStruct((2, 3), np.float32)
    closed = jax.make_jaxpr(lambda x: jax.nn.gelu(x, approximate=True))(given)
    block = build_block(closed, BlockTarget(broadcasts=broadcasts))
    return block, {value: one for one in block.operations for value in one.results}


def _matches(
    builder: BlockBuilder,
    makers: Mapping[Value, Operation],
    wanted: Value,
    given: Value,
    found: dict[Value, Value],
) -> bool:
    """Return whether a value is made as one of a pattern is, and find what its inputs are."""
    if wanted.array is not None:
        return given.array is not None and number_of(wanted) == number_of(given)
    if wanted not in makers:
        return found.setdefault(wanted, given) is given
    one, other = makers[wanted], builder.maker(given, makers[wanted].name)
    return other is not None and all(
        _matches(builder, makers, *pair, found)
        for pair in zip(one.operands, other.operands, strict=True)
    )


def _reshaped(builder: BlockBuilder, op: Operation) -> Value | None:
    return _kept_dimensions(builder, op) or _product_of_rows(builder, op)


def _kept_dimensions(builder: BlockBuilder, op: Operation) -> Value | None:
    """Return a reduction that keeps its dimensions, as ones."""
    made = builder.any_maker(op.operands[0])
    if made is None or not made.name.startswith("reduce_") or "axes" not in made.parameters:
        return None
    (value,), axes = made.operands, made.parameters["axes"]
    if not axes or made.parameters.get("keepdims"):
        return None
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(value.shape))
    if kept != op.result.shape:
        return None
    parameters = {**made.parameters, "keepdims": True}
    types = [(kept, op.result.dtype)]
    return builder.add(made.name, made.operands, parameters, types, made.place)[0]


def _product_of_rows(builder: BlockBuilder, op: Operation) -> Value | None:
    """Return a product with weights of an array of more dimensions, without two reshapes."""
    dot = builder.maker(op.operands[0], "dot_general")
    if dot is None or dot.operands[1].array is None or dot.operands[1].rank != 2:
        return None
    rows = builder.maker(dot.operands[0], "reshape")
    if rows is None:
        return None
    (value,), shape = rows.operands, op.result.shape
    inner, outer = dot.operands[1].shape
    if value.shape != (*shape[:-1], inner) or shape[-1] != outer:
        return None
    return builder.add("dense", (value, dot.operands[1]), {}, [(shape, _F)], dot.place)[0]


_RULES: Mapping[str, Callable[[BlockBuilder, Operation], Value | None]] = {
    "div": _mean,
    "mul": _times,
    "reshape": _reshaped,
}
