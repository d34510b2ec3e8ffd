"""Operations whose sizes are attributes in StableHLO, as calls that take the sizes as operands.

The passes that refine shapes turn such calls into the operations, or into the calls without these
operands (stablehlo/dialect/ExperimentalOps.h, stablehlo/transforms/StablehloRefineShapes.cpp).
JAX writes the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func

from xla_call_module._jax import dense_elements
from xla_call_module.stablehlo.elements import read_elements
from xla_call_module.stablehlo.modules import functions_of, walk
from xla_call_module.stablehlo.walking import LAYOUT_NOTES

__all__ = [
    "WINDOW",
    "attributes_of",
    "reducer_of",
    "split_tuples",
    "write_custom_call",
    "write_random_bits",
    "write_window",
]

# The attributes of a `reduce_window` with one number for each dimension, in the order of the call.
WINDOW = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")


def write_window(
    results: Sequence[Any], operands: Sequence[Any], lists: Sequence[Any], reducer: str
) -> list[Any]:
    """Return the results of a `reduce_window`.

    Args:
        results: their types.
        operands: arrays, then the initial values.
        lists: tensors of dimensions, strides, dilations of both kinds, and the padding.
        reducer: the name of the function of two values for each array.
    """
    names = ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(reducer)])
    return _call(
        "stablehlo.dynamic_reduce_window",
        results,
        [*operands, *lists],
        {"called_computations": names},
    )


def write_random_bits(results: Sequence[Any], state: Any, shape: Any, algorithm: Any) -> list[Any]:
    """Return the results of an `rng_bit_generator`: the next state and the bits."""
    return _call(
        "stablehlo.dynamic_rng_bit_generator",
        results,
        [state, shape],
        {"rng_algorithm": algorithm},
    )


def write_custom_call(
    results: Sequence[Any],
    operands: Sequence[Any],
    shapes: Sequence[Any],
    attributes: Mapping[str, Any],
) -> list[Any]:
    """Return the results of a custom call that takes the shapes of its results as operands, too."""
    places = np.arange(len(operands), len(operands) + len(shapes), dtype=np.int64)
    indices = dense_elements(places, ir.IntegerType.get_signless(64))
    target = ir.StringAttr(attributes["call_target_name"]).value
    kept = {name: value for name, value in attributes.items() if name != "call_target_name"}
    return _call(
        target,
        results,
        [*operands, *shapes],
        {**kept, "indices_of_shape_operands": indices},
    )


def _call(
    target: str, results: Sequence[Any], operands: Sequence[Any], attributes: Mapping[str, Any]
) -> list[Any]:
    call = ir.Operation.create(
        "stablehlo.custom_call",
        results=list(results),
        operands=list(operands),
        attributes={
            "api_version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 2),
            **attributes,
            "call_target_name": ir.StringAttr.get(target),
        },
    )
    return list(call.results)


def split_tuples(module: Any) -> None:
    """Give custom calls in place several results where they have one tuple."""
    calls = [view.operation for view in walk(module) if view.name == "stablehlo.custom_call"]
    for operation in calls:
        if len(operation.results) != 1:
            continue
        if not isinstance(operation.results[0].type, ir.TupleType):
            continue
        tuple_type = ir.TupleType(operation.results[0].type)
        taken = [use.owner.operation for use in operation.results[0].uses]
        if any(user.name != "stablehlo.get_tuple_element" for user in taken):
            continue
        with operation.location, ir.InsertionPoint(operation):
            call = ir.Operation.create(
                operation.name,
                results=[tuple_type.get_type(i) for i in range(tuple_type.num_types)],
                operands=list(operation.operands),
                attributes=attributes_of(operation),
            )
        for user in taken:
            index = ir.IntegerAttr(user.attributes["index"]).value
            user.results[0].replace_all_uses_with(call.results[index])
            user.erase()
        operation.erase()


def attributes_of(operation: Any) -> dict[str, Any]:
    """Return the attributes by their names, but for what XLA notes beside the operation."""
    attributes = {}
    for item in list(operation.attributes):
        name = item if isinstance(item, str) else item.name  # as in JAX 0.9 and older
        if name not in LAYOUT_NOTES:
            attributes[name] = _attribute_of(operation, name)
    return attributes


def _attribute_of(operation: Any, name: str) -> Any:
    """Return an attribute.

    jaxlib has no class for the elements of a complex constant: asked for them, it raises a
    TypeError or, in JAX 0.8 and older, ends the process.
    """
    if (operation.name, name) == ("stablehlo.constant", "value"):
        element = ir.RankedTensorType(operation.results[0].type).element_type
        if isinstance(element, ir.ComplexType):
            return dense_elements(read_elements(operation), element)
    return operation.attributes[name]


def reducer_of(operation: Any, module: Any) -> str | None:
    """Return the name of a new function in the module that does what an operation's region does.

    None where the region calls functions, or takes values from around it.
    """
    block = operation.regions[0].blocks[0]
    inside = [inner.operation for inner in block.operations]
    if any(inner.name == "func.call" or len(inner.regions) for inner in inside):
        return None
    known = set(_values_of(block))
    if any(operand not in known for inner in inside for operand in inner.operands):
        return None
    taken = functions_of(module)
    name = next(n for n in (f"reducer_{i}" for i in itertools.count()) if n not in taken)
    types = [argument.type for argument in block.arguments]
    results = [operand.type for operand in inside[-1].operands]
    with ir.InsertionPoint(module.body), operation.location:
        make: Any = func.FuncOp  # its stub is that of the class that it extends
        new = make(name, ir.FunctionType.get(types, results), visibility="private")
        _copy_into(new.add_entry_block(), block, inside)
    return name


def _values_of(block: Any) -> Iterator[Any]:
    yield from block.arguments
    for inner in block.operations:
        yield from inner.operation.results


def _copy_into(new: Any, block: Any, inside: Sequence[Any]) -> None:
    values = dict(zip(block.arguments, new.arguments, strict=True))
    with ir.InsertionPoint(new):
        for operation in inside:
            operands = [values[operand] for operand in operation.operands]
            if operation is inside[-1]:
                func.ReturnOp(operands)
                return
            copy = operation.clone()
            for index, operand in enumerate(operands):
                copy.operands[index] = operand
            values.update(zip(operation.results, copy.results, strict=True))
