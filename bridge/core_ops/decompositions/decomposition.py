"""A decomposition, as a value, and the calls that are decomposed by some of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.core_ops.decompositions import control_flow, one_device
from bridge.core_ops.decompositions.retracing import Boundary, Locations, retrace
from bridge.core_ops.stablehlo_operation import ModuleContents
from bridge.lifting.lifted_operation import LiftingRule
from bridge.lifting.lifting_table import JAX_TABLE, LiftingTable
from xla_call_module.call import CallModule, TensorSpec, read_artifact_version
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.modules import open_module, serialize_module

# The boundary of a decomposition that leaves arguments and results as they are.
SAME_ARRAYS = Boundary(
    dtype=lambda dtype: dtype,
    shape=lambda shape, _: tuple(shape),
    enter=lambda value, _: value,
    leave=lambda value, _: value,
    store=lambda array: array,
)


def table_with(
    rules: Mapping[str, LiftingRule],
    custom_calls: Mapping[str, LiftingRule] | None = None,
    *,
    target: str,
) -> LiftingTable:
    """Return the table by which every operation stays as it is but for those of some rules."""
    return dataclasses.replace(
        JAX_TABLE,
        rules={**JAX_TABLE.rules, **control_flow.RULES, **one_device.RULES, **rules},
        custom_calls={
            **JAX_TABLE.custom_calls,
            **one_device.CUSTOM_CALLS,
            **(custom_calls or {}),
        },
        has_functions=False,
        target=target,
    )


@dataclass(frozen=True, slots=True)
class Decomposition:
    """Operations or elements of StableHLO that are replaced by other ones.

    Attributes:
        table: the rules, which are those of lifting for all that stays as it is.
        elements: the element types that it replaces, by MLIR's names.
        is_wide: whether the rules compute with dtypes of 64 bits.
    """

    name: str
    table: LiftingTable
    operations: frozenset[str] = frozenset()
    custom_calls: frozenset[str] = frozenset()
    elements: frozenset[str] = frozenset()
    boundary: Boundary = SAME_ARRAYS
    is_wide: bool = False

    def replaces(self, contents: ModuleContents) -> bool:
        """Return whether a module of some contents has what is replaced."""
        return not (
            self.operations.isdisjoint(contents.operations)
            and self.custom_calls.isdisjoint(contents.custom_calls)
            and self.elements.isdisjoint(contents.elements)
        )


@dataclass(frozen=True, slots=True)
class Decomposed:
    """A call without what some decompositions replace.

    Attributes:
        call: the call, with the arguments and results of the first one in their forms.
        parameters: the arrays of arguments that are parameters, in their forms.
        applied: the decompositions that replaced something, the first one first.
    """

    call: CallModule
    parameters: Mapping[int, Array]
    applied: tuple[Decomposition, ...]


def decompose(
    call: CallModule,
    decompositions: Sequence[Decomposition],
    parameters: Mapping[int, Array] | None = None,
) -> Decomposed:
    """Return a call, for one platform, without what some decompositions replace."""
    arrays = dict(parameters or {})
    applied, contents = [], ModuleContents.of(call)
    for decomposition in decompositions:
        if decomposition.replaces(contents):
            call = _apply(call, decomposition, arrays)
            arrays = {n: decomposition.boundary.store(array) for n, array in arrays.items()}
            applied.append(decomposition)
            contents = ModuleContents.of(call)
    return Decomposed(call, arrays, tuple(applied))


def custom_calls_of(decompositions: Sequence[Decomposition]) -> list[str]:
    """Return the targets of custom calls that some decompositions replace."""
    return sorted(set().union(*(one.custom_calls for one in decompositions)))


def _apply(
    call: CallModule, decomposition: Decomposition, parameters: Mapping[int, Array]
) -> CallModule:
    boundary, locations = decomposition.boundary, Locations(decomposition.table.target)
    table = dataclasses.replace(decomposition.table, around=locations.scope)
    # What the module does not take it does not take afterwards either.
    taken = dataclasses.replace(
        call, args=tuple(call.args[n] for n in call.kept), kept=tuple(range(len(call.kept)))
    )
    known = {n: parameters[index] for n, index in enumerate(call.kept) if index in parameters}
    exported = retrace(taken, table, boundary, parameters=known, is_wide=decomposition.is_wide)
    made = from_exported(exported, disabled_checks=call.disabled_checks, carried=False)
    with open_module(made.module) as module:
        locations.restore(module)
        artifact = serialize_module(module, read_artifact_version(made.module), mixed=True)
    return dataclasses.replace(
        call,
        module=artifact,
        version=made.version,
        platforms=made.platforms,
        args=tuple(_stored(spec, boundary) for spec in call.args),
        results=tuple(_stored(spec, boundary) for spec in call.results),
        kept=tuple(call.kept[n] for n in made.kept),
        uses_shardy=made.uses_shardy,
        exported=b"",
        trees=None,
    )


def _stored(spec: TensorSpec, boundary: Boundary) -> TensorSpec:
    """Return the spec of the form of an argument or result."""
    dtype = boundary.dtype(spec.dtype.numpy)
    shape = None if spec.shape is None else boundary.shape(spec.shape, spec.dtype.numpy)
    return dataclasses.replace(
        spec, shape=shape, dtype=dtype_from_name(dtype.name, where=spec.path)
    )


# Operations of older modules, for which JAX has no primitive, as their rules in `bridge.lifting`
# compose them.
COMPOSED_OPERATIONS = Decomposition(
    name="composed operations",
    table=table_with({}, target="operations that JAX has primitives for"),
    operations=frozenset(
        f"stablehlo.batch_norm_{name}" for name in ("grad", "inference", "training")
    ),
)
