"""Operations of CHLO, the dialect of composed operations, as those of StableHLO that define them.

A portable artifact has none of them, so that they are in texts and plain bytecode only
(https://openxla.org/stablehlo/generated/chlo).
"""

from __future__ import annotations

from typing import Any

from xla_call_module._jax import ir, register_stablehlo_passes
from xla_call_module.stablehlo.modules import walk
from xla_call_module.stablehlo.rewriting import run_passes

_DEFINE = "func.func(chlo-legalize-to-stablehlo)"
# Takes what is done on a condition out of it, where the condition is known to hold.
_ASSUME = "func.func(canonicalize)"
# Of `shape.shape_of`, which takes the place of dimensions that are symbols.
_DEFINE_SHAPES = "func.func(shape-legalize-to-stablehlo)"
_IS_REVERSE = "is_reverse"


def define_chlo(module: Any) -> None:
    """Replace, in place, CHLO's operations by those of StableHLO that define them."""
    for operation in [op for op in walk(module) if op.name == "chlo.scan"]:
        if _IS_REVERSE in operation.attributes:
            _turn(operation)
    register_stablehlo_passes()
    with module.context:
        run_passes(module, _DEFINE)
        if any(operation.name == "shape.assuming" for operation in walk(module)):
            run_passes(module, _ASSUME)
        run_passes(module, _DEFINE_SHAPES)


def _turn(scan: Any) -> None:
    """Make a scan from the end one from the start, which is all that jaxlib's definition knows."""
    backward = ir.BoolAttr(scan.attributes[_IS_REVERSE]).value
    del scan.attributes[_IS_REVERSE]
    if not backward:
        return
    taken = int(scan.attributes["operandSegmentSizes"][0])
    given = int(scan.attributes["resultSegmentSizes"][0])
    for number in range(taken):
        scan.operands[number] = _reversed(scan, scan.operands[number], ir.InsertionPoint(scan))
    for result in list(scan.results)[:given]:
        uses = [(use.owner, use.operand_number) for use in result.uses]
        turned = _reversed(scan, result, ir.InsertionPoint.after(scan))
        for owner, number in uses:
            owner.operands[number] = turned


def _reversed(scan: Any, value: Any, place: Any) -> Any:
    """Return a value of a scan in the opposite order along its dimension."""
    with scan.context, scan.location:
        axes = ir.DenseI64ArrayAttr.get([ir.IntegerAttr(scan.attributes["dimension"]).value])
        made = ir.Operation.create(
            "stablehlo.reverse",
            results=[value.type],
            operands=[value],
            attributes={"dimensions": axes},
            ip=place,
        )
    return made.results[0]
