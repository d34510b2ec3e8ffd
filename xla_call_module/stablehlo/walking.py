"""The walk over a parsed module, which every translation of StableHLO shares.

A translation is a table of rules, one for each operation, and a function that applies them to what
stands for the values of the module: nodes of an ONNX graph, or arrays of JAX.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from xla_call_module.errors import UnsupportedError
from xla_call_module.stablehlo.attributes import symbol_name
from xla_call_module.stablehlo.call_graph import named_by
from xla_call_module.stablehlo.modules import custom_call_target
from xla_call_module.stablehlo.operation_locations import UNKNOWN_PLACE, describe_location

V = TypeVar("V")
R = TypeVar("R")

_PACK = "stablehlo.tuple"
_UNPACK = "stablehlo.get_tuple_element"
RETURNS = ("func.return", "sdy.return", "stablehlo.return")
# Notes of XLA about how arrays lie in memory, in what TensorFlow compiles.
LAYOUT_NOTES = frozenset({"minor_to_major", "result_layout", "xla_shape"})
# What says nothing of the numbers: how arrays lie on devices and in memory.
_IGNORED = LAYOUT_NOTES | {
    "mhlo.frontend_attributes", "mhlo.layout_mode", "mhlo.memory_kind", "mhlo.sharding",
}  # fmt: skip
# What a convolution says, and a reduction of windows.
CONVOLUTION_ATTRIBUTES = (
    "batch_group_count",
    "dimension_numbers",
    "feature_group_count",
    "lhs_dilation",
    "padding",
    "precision_config",
    "rhs_dilation",
    "window_reversal",
    "window_strides",
)
WINDOW_ATTRIBUTES = (
    "base_dilations",
    "padding",
    "window_dilations",
    "window_dimensions",
    "window_strides",
)
# What a custom call may say besides its operands, for rules that need nothing of it or some.
CUSTOM_CALL_ATTRIBUTES = (
    "api_version",
    "backend_config",
    "call_target_name",
    "called_computations",
    "custom_call_schedule",
    "error_message",
    "has_side_effect",
    "indices_of_shape_operands",
    "mhlo.attributes",
    "mhlo.backend_config",
    "mhlo.version",
    "operand_layouts",
    "output_operand_aliases",
    "result_layouts",
)


def walk_block(
    block: Any,
    arguments: Sequence[V],
    outside: ChainMap[Any, V],
    emit: Callable[[Any, list[V], ChainMap[Any, V]], Sequence[V]],
    *,
    target: str,
) -> list[V]:
    """Return what stands for the operands of the last operation of a block."""
    values = outside.new_child(dict(zip(block.arguments, arguments, strict=True)))
    for view in block:
        raw = view.operation
        if raw.name in (_PACK, _UNPACK):
            continue
        operands = [values[_untupled(operand, target)] for operand in raw.operands]
        if raw.name in RETURNS:
            return operands
        values.maps[0].update(zip(raw.results, emit(raw, operands, values), strict=True))
    raise AssertionError("a block ends in a return")


def find_rule(raw: Any, rules: Mapping[str, R], custom_calls: Mapping[str, R], target: str) -> R:
    """Return the rule of an operation, or of the target that it calls."""
    if raw.name == "stablehlo.custom_call":
        name = custom_call_target(raw)
        rule, what = custom_calls.get(name), f"the custom call of {name}"
    else:
        rule, what = rules.get(raw.name), "it"
    if rule is None:
        raise UnsupportedError(
            f"{describe_operation(raw)}: {target} has no operation for {what}, or jax-tf-bridge "
            "does not support it yet. To do: compute this part outside the exported function."
        )
    return rule


def check_attributes(raw: Any, known: Container[str]) -> None:
    """Refuse an operation with an attribute that a rule does not read."""
    for attribute in raw.attributes:
        name = getattr(attribute, "name", attribute)  # older versions of jaxlib have pairs
        if name not in known and name not in _IGNORED:
            raise UnsupportedError(
                f"{describe_operation(raw)}: it has the attribute {name} = "
                f"{raw.attributes[name]}, which is unknown, so its meaning would be lost. To do: "
                "export it with the JAX that this version was made for."
            )


def describe_operation(raw: Any, callers: Mapping[str, str] | None = None) -> str:
    """Return an operation's name, with its place in the source where that is known.

    Args:
        raw: the operation.
        callers: as `describe_location` takes it.
    """
    place = describe_location(raw, callers)
    return raw.name if place == UNKNOWN_PLACE else f"{raw.name} at {place}"


def regions_of(raw: Any) -> Sequence[Any]:
    """Return the regions of an operation, or those of the functions that a custom call names."""
    if raw.name != "stablehlo.custom_call" or "called_computations" not in raw.attributes:
        regions: Sequence[Any] = raw.regions
        return regions
    around = raw
    while around.name != "builtin.module":
        around = around.parent
    functions = {symbol_name(view): view.operation for view in around.regions[0].blocks[0]}
    return [functions[name].regions[0] for name in named_by(raw)]


def _untupled(value: Any, target: str) -> Any:
    """Return the value of MLIR that was packed into a tuple; itself if it is of no tuple."""
    packed = _untuple(value, target)
    if _maker_of(packed) == _PACK:
        _refuse_tuple(packed.owner, target)
    return packed


def _untuple(value: Any, target: str) -> Any:
    while _maker_of(value) == _UNPACK:
        packed = _untuple(value.owner.operands[0], target)
        if _maker_of(packed) != _PACK:
            _refuse_tuple(value.owner, target)
        value = packed.owner.operands[int(value.owner.attributes["index"].value)]
    return value


def _refuse_tuple(raw: Any, target: str) -> NoReturn:
    raise UnsupportedError(
        f"{describe_operation(raw)}: {target} has no tuples, and this one goes from function to "
        "function. To do: pass its elements one by one."
    )


def _maker_of(value: Any) -> str:
    """Return the name of the operation that makes a value; empty for an argument of a block."""
    return str(getattr(value.owner, "name", ""))
