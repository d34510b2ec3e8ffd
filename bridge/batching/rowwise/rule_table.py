"""The rule of each operation, and of each target of a custom call."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from bridge.batching.rowwise import elementwise_rules as elementwise
from bridge.batching.rowwise import indexing_rules as indexing
from bridge.batching.rowwise import reducing_rules as reducing
from bridge.batching.rowwise import shaping_rules as shaping
from bridge.batching.rowwise.row_operation import RowOperation, Rule
from bridge.batching.rowwise.row_value import BatchValue
from xla_call_module.linalg.lapack import is_portable

__all__ = ["rule_for"]


def _nothing(op: RowOperation) -> Sequence[BatchValue]:
    """An assertion, which has no results."""
    return [op.value(()) for _ in op.types]


def _permutation(op: RowOperation) -> Sequence[BatchValue]:
    """Return permutations of pivots, of which other operands say the shape."""
    return reducing.along_last(dataclasses.replace(op, operands=op.operands[:1]))


def _random_bits(op: RowOperation) -> list[BatchValue]:
    """A state and bits, of which those of a row depend on how many there are."""
    op.plain(0)
    state = op.value(op.operands[0].shape)
    sizes = op.sizes(1)
    if any(map(op.batch.is_in, sizes)):
        raise op.mixed("draws as many numbers as the batch needs", is_size=True)
    return [state, op.value(sizes, index=1)]


_RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **indexing.RULES,
    **reducing.RULES,
    **shaping.RULES,
}
# For targets of custom calls, as regular expressions that match them in full.
_TARGETS: Sequence[tuple[str, Rule]] = (
    ("shape_assertion", _nothing),
    (r"Sharding|annotate_device_placement|xla\.sdy\.FuncResultSharding", elementwise.same),
    (r"stablehlo\.dynamic_reduce_window", reducing.dynamic_reduce_window),
    (r"stablehlo\.dynamic_rng_bit_generator", _random_bits),
    (r"stablehlo\.dynamic_top_k|mhlo\.topk", reducing.along_last),
    (r"ApproxTopK|stablehlo\.dynamic_approx_top_k", reducing.approx_top_k),
    (
        r"mhlo\.(acos|acosh|asin|asinh|atan|atanh|cosh|erf|erf_inv|sinh|tan)|cu_threefry2x32.*",
        elementwise.several,
    ),
    (r"\w+_lu_pivots_to_permutation", _permutation),
    ("Eigh|LuDecomposition|Qr|ProductOfElementaryHouseholderReflectors", reducing.linear_algebra),
)


def rule_for(op: RowOperation) -> Rule | None:
    """The rule of an operation; None where its effect on rows is not known."""
    if op.name != "stablehlo.custom_call":
        return _RULES.get(op.name)
    target = op.text("call_target_name")
    known = next((rule for name, rule in _TARGETS if re.fullmatch(name, target)), None)
    return reducing.linear_algebra if known is None and is_portable(target) else known
