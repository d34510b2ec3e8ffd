"""The pass that cuts images off before a convolution which both cuts and pads them.

XLA's CPU compiler of TensorFlow 2.21 reads memory that is not the image's where the padding along a
dimension is negative in front and positive behind, as in gradients of causal convolutions; JAX
0.12's does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.attributes import Attributes
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.dimension_numbers import read_convolution_dimensions
from xla_call_module.stablehlo.elements import element_dtype
from xla_call_module.stablehlo.modules import walk

_CONVOLUTION = "stablehlo.convolution"


def _violation(parsed: ParsedCall) -> str:
    return "a convolution cuts an image off and pads it" if any(_cutting(parsed.module)) else ""


def _cutting(module: Any) -> Iterator[tuple[Any, list[int]]]:
    """Yield the convolutions, and what is cut off in front of each dimension of their images."""
    for operation in walk(module):
        if operation.name != _CONVOLUTION:
            continue
        attributes = Attributes(operation)
        rank = ir.RankedTensorType(operation.operands[0].type).rank - 2
        dilations = attributes.integers("lhs_dilation", (1,) * rank)
        pairs = zip(*attributes.padding(rank), dilations, strict=True)
        if any(cut := [low if low < 0 < high and step == 1 else 0 for low, high, step in pairs]):
            yield operation, cut


def _cut(parsed: ParsedCall) -> ParsedCall:
    for operation, cut in list(_cutting(parsed.module)):
        attributes = Attributes(operation)
        names, _, _ = read_convolution_dimensions(attributes)
        axes = [names.index(str(number)) for number in range(len(cut))]
        low, high = attributes.padding(len(cut))
        with operation.context, operation.location, ir.InsertionPoint(operation):
            operation.operands[0] = _without(
                operation.operands[0], dict(zip(axes, cut, strict=True))
            )
            rows = [
                [before - less, after] for before, less, after in zip(low, cut, high, strict=True)
            ]
            element = ir.IntegerType.get_signless(64)
            kind = ir.RankedTensorType.get([len(rows), 2], element)
            numbers = [ir.IntegerAttr.get(element, number) for row in rows for number in row]
            operation.attributes["padding"] = ir.DenseElementsAttr.get(numbers, kind)
    return parsed.rewritten("images cut off before their convolutions")


def _without(image: Any, cut: dict[int, int]) -> Any:
    """Return an image without its first elements along some dimensions."""
    kind = ir.RankedTensorType(image.type)
    dynamic = ir.ShapedType.get_dynamic_size()
    shape = [dim if dim == dynamic else dim + cut.get(n, 0) for n, dim in enumerate(kind.shape)]
    zero = ir.RankedTensorType.get([], kind.element_type)
    size = element_dtype(str(kind.element_type)).itemsize
    filling = ir.Operation.parse(f'stablehlo.constant dense<"0x{"00" * size}"> : {zero}')
    ir.InsertionPoint.current.insert(filling)
    padding = {
        "edge_padding_low": [cut.get(axis, 0) for axis in range(kind.rank)],
        "edge_padding_high": [0] * kind.rank,
        "interior_padding": [0] * kind.rank,
    }
    return ir.Operation.create(
        "stablehlo.pad",
        results=[ir.RankedTensorType.get(shape, kind.element_type)],
        operands=[image, filling.result],
        attributes={name: ir.DenseI64ArrayAttr.get(row) for name, row in padding.items()},
    ).result


CUT_BEFORE_CONVOLUTIONS = ModulePass(
    name="cut_convolutions",
    ensures="no convolution has padding that is negative in front and positive behind",
    violation=_violation,
    rewrite=_cut,
    requires=("platforms", "linear_algebra"),
    may_apply=lambda call: mentions(call.module, [b"convolution"]),
)
