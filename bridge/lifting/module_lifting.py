"""A parsed module, walked operation by operation into what JAX traces."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bridge.lifting.compile_time_folding import fold
from bridge.lifting.derivatives.composed_functions import ComposedCall, find_composed, find_named
from bridge.lifting.derivatives.own_lowerings import size_arguments
from bridge.lifting.known_values import (
    TOKEN,
    DeviceNumber,
    LiftedValue,
    PlatformChoice,
    SizeArray,
    StructuredArray,
    Token,
    as_array,
    is_known,
    resolved,
)
from bridge.lifting.lifted_operation import LiftedRegion, LiftingRule
from bridge.lifting.lifting_table import JAX_TABLE, LiftingTable
from bridge.lifting.name_stacks import NameStacks, Tracebacks, call_context, called_name
from bridge.lifting.splits import slices_in, split_of
from bridge.lifting.uncertain_sizes import with_size
from xla_call_module.errors import InteropError, StructureError, quote
from xla_call_module.stablehlo.attributes import Attributes, callee_of, symbol_name
from xla_call_module.stablehlo.constant_evaluation import repeated_element
from xla_call_module.stablehlo.modules import find_main, functions_of, traced_name
from xla_call_module.stablehlo.operation_locations import describe_location
from xla_call_module.stablehlo.walking import (
    check_attributes,
    describe_operation,
    find_rule,
    regions_of,
    walk_block,
)

if TYPE_CHECKING:
    from jax.sharding import AbstractMesh, Mesh


_Values = ChainMap[Any, LiftedValue]

# Operations of a function up to which its calls are written out.
_MAX_INLINED = 16
# The functions by which `scan` reads and writes a row, which `loops.py` looks for.
_ROWS = ("dynamic_index_in_dim", "dynamic_update_index_in_dim")
# Elements of a constant up to which a function is traced for its value.
_MAX_CONSTANT = 1024
# The function that `main` of an export calls after its checks of shapes.
_EXPORT_MAIN = "_wrapped_jax_export_main"


def walk_module(
    module: Any,
    arguments: Sequence[LiftedValue],
    mesh: Mesh | AbstractMesh | None = None,
    *,
    table: LiftingTable = JAX_TABLE,
) -> list[Any]:
    """Trace the public function of a parsed module with JAX's operations."""
    lifting = _Lifting(module, mesh, table)
    return list(map(table.to_array, lifting.call(symbol_name(find_main(module)), arguments)))


class _Lifting:
    """Lifts the functions of one module; like calls of one function are one `jit`."""

    def __init__(
        self,
        module: Any,
        mesh: Mesh | AbstractMesh | None,
        table: LiftingTable,
    ) -> None:
        self._functions = functions_of(module)
        # The functions that have other names than what they were traced from.
        self._traced_names = dict.fromkeys(("main", _EXPORT_MAIN), traced_name(module))
        self._mesh = mesh
        self._table = table
        self._jits: dict[Any, _NamedCall] = {}
        self._sizes: dict[str, int] = {}
        self._tracebacks: Tracebacks = {}

    def walk(
        self, outside: _Values, function: Any, arguments: Sequence[LiftedValue]
    ) -> list[LiftedValue]:
        """Return the results of a function."""
        return self._walk_block(outside, function.regions[0].blocks[0], arguments)

    def _walk_block(
        self, outside: _Values, block: Any, arguments: Sequence[LiftedValue]
    ) -> list[LiftedValue]:
        composed, slices = dict[Any, ComposedCall](), set[Any]()
        if self._table.has_functions:
            composed = find_composed(block, self._functions)
            slices = slices_in(block)
        parts = dict[Any, LiftedValue]()
        stacks = self._stacks_in(block)

        def emit(raw: Any, operands: list[LiftedValue], values: _Values) -> Sequence[LiftedValue]:
            if (call := composed.get(raw)) is not None:
                if raw != call.operations[-1]:  # which nothing else uses
                    return [None] * len(raw.results)
                return [call.function(*(as_array(values[operand]) for operand in call.inputs))]
            if raw in slices:
                if raw not in parts:
                    parts.update(split_of(raw, operands[0], values, slices))
                if parts[raw] is not None:
                    check_attributes(raw, self._table.rules[raw.name].attributes)
                    return [parts[raw]]
            return self._emit(raw, operands, values)

        def emit_in_context(
            raw: Any, operands: list[LiftedValue], values: _Values
        ) -> Sequence[LiftedValue]:
            with nullcontext() if stacks is None else stacks.of(raw):
                return emit(raw, operands, values)

        return walk_block(block, arguments, outside, emit_in_context, target=self._table.target)

    def _stacks_in(self, block: Any) -> NameStacks | None:
        """Return the name stacks of the operations of a block, if the table has no other ones."""
        if self._table.around is not None:
            return None
        owner = block.owner.operation
        is_traced = owner.name == "func.func" and symbol_name(owner) in self._traced_names
        return NameStacks(block, self._tracebacks, is_traced=is_traced)

    def _emit(
        self, raw: Any, operands: list[LiftedValue], values: _Values
    ) -> Sequence[LiftedValue]:
        if raw.name == "func.call":
            return self.call(callee_of(raw), operands, call=raw)
        known = fold(raw, operands)
        if known is None:
            known = _of_structure(raw, operands)
        if known is not None:
            return [known]
        if raw.name == "stablehlo.composite":
            return self._composite(raw, operands, values)
        rule = find_rule(raw, self._table.rules, self._table.custom_calls, self._table.target)
        check_attributes(raw, rule.attributes)
        results = self._apply(rule, raw, operands, values)
        assert results is not None
        if len(results) == 1 and (sized := with_size(raw, operands, results[0])) is not None:
            return [sized]
        return results

    def _composite(
        self, raw: Any, operands: list[LiftedValue], values: _Values
    ) -> Sequence[LiftedValue]:
        rule = self._table.composites.get(Attributes(raw).text("name"))
        if rule is not None:
            results = self._apply(rule, raw, operands, values)
            if results is not None:
                return results
        reference = Attributes(raw).text("decomposition").lstrip("@").strip('"')
        return self.call(reference, operands, call=raw)

    def _apply(
        self, rule: LiftingRule, raw: Any, operands: list[LiftedValue], values: _Values
    ) -> Sequence[LiftedValue] | None:
        op = self._table.operation(
            raw=raw,
            operands=tuple(operands),
            regions=tuple(
                LiftedRegion(
                    region.blocks[0], self._region(region.blocks[0], values), self._table.to_array
                )
                for region in regions_of(raw)
                if len(region.blocks)
            ),
            mesh=self._mesh,
            around=values,
            may_compose=self._table.may_compose,
        )
        try:
            with (self._table.around or nullcontext)(raw):
                lifted = rule.lift(op)
        except (InteropError, TypeError, ValueError) as error:
            placed = _in_place(error, raw)
            if placed is error:
                raise
            raise placed from error
        if lifted is None or isinstance(lifted, (list, tuple)):
            return lifted
        return [lifted]

    def _region(self, block: Any, values: _Values) -> Callable[..., list[LiftedValue]]:
        return lambda *arguments: self._walk_block(values, block, arguments)

    def call(
        self, name: str, operands: Sequence[LiftedValue], call: Any = None
    ) -> list[LiftedValue]:
        """Return the results of a function, which stays a function of its name if it is large."""
        function = self._functions[name]

        def walk(*values: LiftedValue) -> list[LiftedValue]:
            return self.walk(ChainMap(), function, values)

        named = None
        if self._table.has_functions:
            named = find_named(self._traced_names.get(name, name), function, self._functions)
        if named is not None:
            sizes = size_arguments(function)
            arrays = [operand for n, operand in enumerate(operands) if n not in sizes]
            return list(jax.tree.leaves(named(*map(as_array, arrays))))
        is_small = name in self._traced_names or self._size(name) <= _MAX_INLINED
        is_small = is_small or name.startswith(_ROWS)
        if is_small or not self._table.has_functions:
            if call is None or self._table.around is not None:
                return walk(*operands)
            with call_context(call):
                return walk(*operands)
        operands = [_passed(resolved(operand)) for operand in operands]
        known = tuple(_key_of(operand) for operand in operands)
        if (name, known) not in self._jits:
            called = name if call is None else called_name(call, name)
            self._jits[name, known] = _NamedCall(called, walk, operands)
        return self._jits[name, known](operands)

    def _size(self, name: str) -> int:
        """Return the number of operations of a function, those in regions included."""
        if name not in self._sizes:
            block = self._functions[name].regions[0].blocks[0]
            self._sizes[name] = sum(1 + 16 * len(view.operation.regions) for view in block)
        return self._sizes[name]


class _NamedCall:
    """The calls of one function of a module with the same known arguments, as one `jax.jit`."""

    def __init__(
        self,
        name: str,
        walk: Callable[..., list[LiftedValue]],
        operands: Sequence[LiftedValue],
    ) -> None:
        self._known = [operand if is_known(operand) else None for operand in operands]
        self._walk = walk
        # What the function returns that is known, with None for arrays, by the arguments' types.
        self._results: dict[Any, list[LiftedValue]] = {}

        def run(*arrays: Any) -> list[Any]:
            given = iter(arrays)
            values = self._walk(*(next(given) if k is None else k for k in self._known))
            results = list(map(resolved, values))
            self._results[_types(arrays)] = [r if is_known(r) else None for r in results]
            return [result for result in results if not is_known(result)]

        run.__name__ = run.__qualname__ = name
        self._run: Any = jax.jit(run)

    def __call__(self, operands: Sequence[LiftedValue]) -> list[LiftedValue]:
        arrays = [o for o, known in zip(operands, self._known, strict=True) if known is None]
        made = iter(self._run(*arrays))
        template = self._results[_types(arrays)]
        return [next(made) if known is None else known for known in template]


def _of_structure(raw: Any, operands: Sequence[LiftedValue]) -> LiftedValue | None:
    """Return the result of an operation that makes use of what is known of an operand."""
    structured = (operand for operand in operands if isinstance(operand, StructuredArray))
    results = (operand.after(raw, operands) for operand in structured)
    return next((result for result in results if result is not None), None)


def _types(arrays: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(map(jax.typeof, arrays))


def _passed(operand: LiftedValue) -> LiftedValue:
    """Return an argument of a function; a constant of many elements is one that is not known."""
    is_large = isinstance(operand, np.ndarray) and operand.size > _MAX_CONSTANT
    is_array = is_large and repeated_element(operand) is None
    return jnp.asarray(as_array(operand)) if is_array else operand


def _key_of(operand: LiftedValue) -> Any:
    """Return what tells known arguments apart; None for an array."""
    if (repeated := repeated_element(operand)) is not None:
        return (operand.shape, str(operand.dtype), repeated.tobytes())
    match operand:
        case np.ndarray():
            return (operand.shape, str(operand.dtype), operand.tobytes())
        case SizeArray():
            return (operand.shape, str(operand.dtype), tuple(operand.elements.reshape(-1)))
        case PlatformChoice():
            return tuple((name, _key_of(value)) for name, value in operand.values.items())
        case DeviceNumber():
            return (operand.axes, str(operand.dtype))
        case Token():
            return TOKEN
    return None


def _in_place(error: Exception, raw: Any) -> Exception:
    """Return an error that says which operation it is about."""
    what = describe_operation(raw)
    if not isinstance(error, InteropError):
        return StructureError(
            f"{what}: JAX does not take it: {quote(error)}. To do: call it with arguments of the "
            "shapes and dtypes that it was exported for."
        )
    if describe_location(raw) in str(error) or str(error).startswith(what):
        return error
    return type(error)(f"{what}: {error}")
