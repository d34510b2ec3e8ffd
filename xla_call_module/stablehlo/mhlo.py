"""Custom calls of XLA's own dialect, MHLO, and what stands for them in StableHLO.

JAX before 0.9.1 writes so what StableHLO has no operation for. A TensorFlow whose MHLO lacks the
operation, or has another form of it, reads the call and refuses it when it runs. CHLO, the dialect
of composed operations that comes with StableHLO, has each of them too, and knows its definition
(https://openxla.org/stablehlo/generated/chlo).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from xla_call_module._jax import func, ir
from xla_call_module.stablehlo.attributes import dictionary
from xla_call_module.stablehlo.call_graph import COMPOSITE
from xla_call_module.stablehlo.chlo import define_chlo
from xla_call_module.stablehlo.modules import custom_call_target, walk
from xla_call_module.stablehlo.rewriting import new_function, replace_operation
from xla_call_module.versions import Feature

_PREFIX = "mhlo."
ALL_CALLS = frozenset(feature for feature in Feature if feature.name.startswith("MHLO_"))
_FEATURES = {feature.value: feature for feature in ALL_CALLS - {Feature.MHLO_OTHER}}
_UNARY = frozenset(_FEATURES) - {Feature.MHLO_TOPK.value}


def feature_of_call(operation: Any) -> Feature | None:
    """Return what a release runs or not of a custom call of MHLO; None for other operations."""
    target = custom_call_target(operation)
    if not target.startswith(_PREFIX):
        return None
    return _FEATURES.get(target, Feature.MHLO_OTHER)


def to_custom_calls(module: Any) -> None:
    """Replace, in place, operations of MHLO's own by custom calls, as a file has them."""
    for operation in [op for op in walk(module) if op.name in _UNARY]:
        with operation.context, operation.location, ir.InsertionPoint(operation):
            call = ir.Operation.create(
                "stablehlo.custom_call",
                results=[result.type for result in operation.results],
                operands=list(operation.operands),
                attributes={"call_target_name": ir.StringAttr.get(operation.name)},
            )
        replace_operation(operation, call.results)


def is_expandable(operation: Any, features: Container[Feature]) -> bool:
    """Return whether an operation is a call of one of some features that StableHLO can express."""
    return feature_of_call(operation) in features and _is_known(operation)


def expand_custom_calls(module: Any, features: Container[Feature]) -> None:
    """Replace, in place, the calls of some features by StableHLO's operations."""
    calls = [operation for operation in walk(module) if is_expandable(operation, features)]
    for call in calls:
        with call.context, call.location, ir.InsertionPoint(call):
            made = _to_chlo(call, call.operands)
        replace_operation(call, made.results)
    _define(module, calls)


def compose_custom_calls(module: Any) -> None:
    """Replace, in place, each call by the composite that newer versions of JAX write for it."""
    calls = [
        operation
        for operation in walk(module)
        if feature_of_call(operation) is not None and _is_known(operation)
    ]
    for number, call in enumerate(calls):
        with call.context, call.location:
            made = _to_composite(module, call, f"mhlo.{number}")
        replace_operation(call, made.results)
    _define(module, calls)


def _define(module: Any, calls: Sequence[Any]) -> None:
    """Replace CHLO's operations by those that define them, if calls have become such."""
    if calls:
        define_chlo(module)


def _is_known(call: Any) -> bool:
    """Return whether a call has an equivalent in CHLO, whose `top_k` takes the largest ones."""
    options = {}
    if "mhlo.attributes" in call.attributes:
        options = dictionary(call.attributes["mhlo.attributes"])
    largest = ir.BoolAttr(options["largest"]).value if "largest" in options else True
    return custom_call_target(call) in _FEATURES and largest


def _to_composite(module: Any, call: Any, symbol: str) -> Any:
    """Put a composite before a call, and its definition, a new function, into the module."""
    name, attributes = _equivalent(call)
    takes = [operand.type for operand in call.operands]
    gives = [result.type for result in call.results]
    definition = new_function(module, symbol, takes, gives, visibility="private")
    with ir.InsertionPoint(definition.add_entry_block()):
        func.ReturnOp(list(_to_chlo(call, definition.arguments).results))
    said = {
        "name": ir.StringAttr.get(name),
        "composite_attributes": ir.DictAttr.get(attributes),
        "decomposition": ir.FlatSymbolRefAttr.get(symbol),
        "version": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 1),
    }
    operands = list(call.operands)
    with ir.InsertionPoint(call):
        return ir.Operation.create(COMPOSITE, results=gives, operands=operands, attributes=said)


def _to_chlo(call: Any, operands: Sequence[Any]) -> Any:
    """Return the equivalent of a call, put where operations are inserted."""
    name, attributes = _equivalent(call)
    return ir.Operation.create(
        name,
        results=[result.type for result in call.results],
        operands=list(operands),
        attributes=attributes,
    )


def _equivalent(call: Any) -> tuple[str, dict[str, Any]]:
    """Return the operation of CHLO that stands for a call, and its attributes."""
    name = custom_call_target(call).removeprefix(_PREFIX)
    if name == "topk":
        return "chlo.top_k", {"k": ir.DictAttr(call.attributes["mhlo.attributes"])["k"]}
    return f"chlo.{name}", {}
