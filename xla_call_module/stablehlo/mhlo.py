"""Custom calls of XLA's own dialect, MHLO, and what stands for them in StableHLO.

JAX before 0.9.1 writes so what StableHLO has no operation for. A TensorFlow whose MHLO lacks the
operation, or has another form of it, reads the call and refuses it when it runs. CHLO, the dialect
of composed operations that comes with StableHLO, has each of them too, and knows its definition
(https://openxla.org/stablehlo/generated/chlo).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xla_call_module._jax import func, ir
from xla_call_module.stablehlo.chlo import define_chlo
from xla_call_module.stablehlo.composites import COMPOSITE
from xla_call_module.stablehlo.modules import custom_call_target, walk
from xla_call_module.versions import RELEASES

__all__ = [
    "NO_RELEASE",
    "compose_custom_calls",
    "expand_custom_calls",
    "first_release_with",
    "to_custom_calls",
]

# Older than each TensorFlow, so that it runs none of them.
NO_RELEASE = (0, 0)
_PREFIX = "mhlo."
# Found by running each in each release.
_FIRST = {
    "mhlo.acos": (2, 21),
    "mhlo.acosh": (2, 21),
    "mhlo.asin": (2, 21),
    "mhlo.asinh": (2, 21),
    "mhlo.atanh": (2, 21),
    "mhlo.cosh": (2, 21),
    "mhlo.erf": (2, 16),
    "mhlo.sinh": (2, 21),
    "mhlo.topk": (2, 16),
}
_UNARY = frozenset(_FIRST) - {"mhlo.topk"}


def first_release_with(operation: Any) -> tuple[int, int] | None:
    """The oldest TensorFlow that runs a custom call of MHLO; None for any other operation."""
    if operation.name != "stablehlo.custom_call":
        return None
    target = custom_call_target(operation)
    if not target.startswith(_PREFIX):
        return None
    return _FIRST.get(target, RELEASES[-1].tensorflow)


def to_custom_calls(module: Any) -> None:
    """Replace, in place, operations of MHLO's own by custom calls, as a file has them."""
    for operation in [found.operation for found in walk(module)]:
        if operation.name not in _UNARY:
            continue
        with operation.context, operation.location, ir.InsertionPoint(operation):
            call = ir.Operation.create(
                "stablehlo.custom_call",
                results=[result.type for result in operation.results],
                operands=list(operation.operands),
                attributes={"call_target_name": ir.StringAttr.get(operation.name)},
            )
        _replace(operation, call)


def expand_custom_calls(module: Any, tensorflow: tuple[int, int]) -> None:
    """Replace, in place, each call that `tensorflow` does not run by StableHLO's operations."""
    calls = [
        operation
        for operation in walk(module)
        if (first := first_release_with(operation)) is not None
        and first > tensorflow
        and _is_known(operation)
    ]
    for call in calls:
        with call.context, call.location, ir.InsertionPoint(call):
            made = _to_chlo(call, call.operands)
        _replace(call, made)
    _define(module, calls)


def compose_custom_calls(module: Any) -> None:
    """Replace, in place, each call by the composite that newer versions of JAX write for it."""
    calls = [
        operation
        for operation in walk(module)
        if first_release_with(operation) is not None and _is_known(operation)
    ]
    for number, call in enumerate(calls):
        with call.context, call.location:
            made = _to_composite(module, call, f"mhlo.{number}")
        _replace(call, made)
    _define(module, calls)


def _define(module: Any, calls: Sequence[Any]) -> None:
    """Replace CHLO's operations by those that define them, if calls have become such."""
    if calls:
        define_chlo(module)


def _is_known(call: Any) -> bool:
    target = custom_call_target(call)
    if "mhlo.attributes" not in call.attributes:
        return target in _FIRST
    smallest = "largest = false" in str(call.attributes["mhlo.attributes"])
    return target in _FIRST and not smallest


def _to_composite(module: Any, call: Any, symbol: str) -> Any:
    """A composite before a call, and its definition, a function of that name."""
    name, attributes = _named(call)
    takes = [operand.type for operand in call.operands]
    gives = [result.type for result in call.results]
    new: Any = func.FuncOp  # its stub is that of the class that it extends
    start = ir.InsertionPoint.at_block_begin(module.body)
    kind = ir.FunctionType.get(takes, gives)
    definition = new(symbol, kind, visibility="private", ip=start)
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
    """What computes the same as a call, where operations are put now."""
    name, attributes = _named(call)
    return ir.Operation.create(
        name,
        results=[result.type for result in call.results],
        operands=list(operands),
        attributes=attributes,
    )


def _named(call: Any) -> tuple[str, dict[str, Any]]:
    """The operation of CHLO that stands for a call, and its attributes."""
    name = custom_call_target(call).removeprefix(_PREFIX)
    if name == "topk":
        return "chlo.top_k", {"k": ir.DictAttr(call.attributes["mhlo.attributes"])["k"]}
    return f"chlo.{name}", {}


def _replace(call: Any, made: Any) -> None:
    for old, new in zip(call.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    call.erase()
