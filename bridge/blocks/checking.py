"""The checker of blocks: values are made before they are taken, and are what operations make.

A rule that is wrong is found here, and not by the numbers of a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bridge.blocks.block import Block, Operation, Value
from bridge.blocks.block_builder import ELEMENTWISE, OF_EACH, Type, aligned
from xla_call_module.errors import StructureError
from xla_call_module.size_polynomials import Shape, broadcast, is_static, product

_BOOL = np.dtype(bool)
_PREDICATES = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
# What is of the type of its first operand.
_ALIKE = frozenset({"cumsum", "dynamic_update_slice", "erf_gelu", "gelu", "rev", "softmax"})


def check_block(block: Block) -> None:
    """Refuse a block in which an operation does not make what it is said to make.

    Raises:
        StructureError: an operation takes what is not there, or its results have another type.

    Example:
        >>> import numpy as np
        >>> from bridge.blocks.block import Block, Operation, Value
        >>> x, y = (Value((n,), np.dtype("float32")) for n in (2, 3))
        >>> check_block(Block((x,), [Operation("neg", (x,), {}, (y,))], (y,)))
        Traceback (most recent call last):
        bridge.StructureError: neg of float32[2] makes float32[2], not float32[3]. ...
    """
    _check(block, set())


def _check(block: Block, around: set[Value]) -> None:
    there = {*around, *block.inputs}
    for operation in block.operations:
        _check_there(operation.operands, there, operation.name)
        for body in operation.bodies:
            _check(body, there)
        rule = _RULES.get(operation.name)
        if rule is not None:
            made = [*rule(operation)]
            said = [(value.shape, value.dtype) for value in operation.results]
            if len(made) != len(said) or not all(map(_may_be, made, said)):
                raise _wrong(operation, f"makes {_named(made)}, not {_named(said)}")
        there.update(operation.results)
    _check_there(block.outputs, there, "a result of the block")


def _check_there(values: Iterable[Value], there: set[Value], taker: str) -> None:
    for value in values:
        if value.array is None and value not in there:
            missing = _named([(value.shape, value.dtype)])
            raise StructureError(
                f"{taker} is given a value of type {missing} that nothing before it makes. To do: "
                "report it, with the function; it is a fault of this package."
            )


def _wrong(operation: Operation, problem: str) -> StructureError:
    taken = _named([(value.shape, value.dtype) for value in operation.operands])
    return StructureError(
        f"{operation.name} of {taken} {problem}. To do: report it, with the function; it is a "
        "fault of this package."
    )


def _may_be(made: Type, said: Type) -> bool:
    """Return whether two types are equal as far as their sizes are numbers."""
    pairs = zip(made[0], said[0], strict=False)
    return (
        made[1] == said[1]
        and len(made[0]) == len(said[0])
        and all(one == other for one, other in pairs if is_static((one, other)))
    )


def _named(types: Sequence[Type]) -> str:
    return ", ".join(f"{dtype.name}[{','.join(map(str, shape))}]" for shape, dtype in types)


def _elementwise(op: Operation) -> Iterable[Type]:
    own = op.operands[-1 if op.name == "select_n" else 0].dtype  # after a condition, before powers
    kind = _BOOL if op.name in _PREDICATES else own
    yield broadcast([value.shape for value in op.operands]), kind


def _of_each(op: Operation) -> Iterable[Type]:
    kind = op.result.dtype if op.name == "convert_element_type" else op.operands[0].dtype
    yield op.operands[0].shape, kind


def _reshape(op: Operation) -> Iterable[Type]:
    shapes = op.operands[0].shape, op.result.shape
    if all(map(is_static, shapes)) and product(shapes[0]) != product(shapes[1]):
        raise _wrong(op, f"has other elements than {_named([(shapes[1], op.result.dtype)])}")
    yield shapes[1], op.operands[0].dtype


def _transpose(op: Operation) -> Iterable[Type]:
    (value,) = op.operands
    yield tuple(value.shape[axis] for axis in op.parameters["permutation"]), value.dtype


def _broadcast(op: Operation) -> Iterable[Type]:
    (value,) = op.operands
    shape = aligned(value, op.parameters["broadcast_dimensions"], op.result.rank)
    yield broadcast([shape, op.result.shape]), value.dtype


def _concatenate(op: Operation) -> Iterable[Type]:
    first, axis = op.operands[0], op.parameters["dimension"]
    total = sum((value.shape[axis] for value in op.operands[1:]), first.shape[axis])
    yield (*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype


def _reduce(op: Operation) -> Iterable[Type]:
    value, axes, keeps = op.operands[0], op.parameters["axes"], op.parameters.get("keepdims")
    kept = (1 if n in axes else dim for n, dim in enumerate(value.shape) if keeps or n not in axes)
    is_place = op.name.startswith("arg")
    yield tuple(kept), op.result.dtype if is_place else value.dtype


def _dot(op: Operation) -> Iterable[Type]:
    (left, right), (summed, batch) = op.operands, op.parameters["dimension_numbers"]
    shapes: list[Shape] = [tuple(left.shape[axis] for axis in batch[0])]
    for value, taken in zip((left, right), zip(summed, batch, strict=True), strict=True):
        shapes.append(tuple(d for n, d in enumerate(value.shape) if n not in sum(taken, ())))
    yield tuple(dim for shape in shapes for dim in shape), op.result.dtype


def _while(op: Operation) -> Iterable[Type]:
    test, body = op.parameters["test"], op.parameters["body"]
    carried = [(value.shape, value.dtype) for value in op.operands]
    for values in (test.inputs, body.inputs, body.outputs):
        _check_alike(op, carried, values)
    _check_alike(op, [((), _BOOL)], test.outputs)
    return carried


def _cond(op: Operation) -> Iterable[Type]:
    types = [(value.shape, value.dtype) for value in op.results]
    for branch in op.parameters["branches"]:
        _check_alike(op, types, branch.outputs)
    return types


def _check_alike(op: Operation, types: Sequence[Type], values: Sequence[Value]) -> None:
    found = [(value.shape, value.dtype) for value in values]
    if len(found) != len(types) or not all(map(_may_be, found, types)):
        raise _wrong(op, f"has a body of {_named(found)}, not {_named(types)}")


_RULES: Mapping[str, Callable[[Operation], Iterable[Type]]] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys((*OF_EACH, *_ALIKE), _of_each),
    **dict.fromkeys(
        (
            "argmax", "argmin", "reduce_and", "reduce_max", "reduce_mean", "reduce_min",
            "reduce_or", "reduce_prod", "reduce_sum",
        ),
        _reduce,
    ),
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "cond": _cond,
    "dot_general": _dot,
    "reshape": _reshape,
    "transpose": _transpose,
    "while": _while,
}  # fmt: skip
