"""Shardy's operations, which become attributes and calls of StableHLO in a module for all readers.

XLA has a pass that reads attributes back. It crashes on a text that is no attribute, so they are
checked. Manual computations are read back here: XLA does so itself, but after shapes were refined,
which takes their calls apart, so that it ends the process.

Source: xla/service/spmd/shardy/sdy_round_trip/import_shardy_attrs.cc and shard_map_import.cc.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xla_call_module._jax import ir, sdy
from xla_call_module.call import read_artifact_version
from xla_call_module.errors import FormatError
from xla_call_module.stablehlo.attributes import callee_of, dictionary
from xla_call_module.stablehlo.modules import (
    custom_call_target,
    first_line,
    functions_of,
    open_module,
    serialize_module,
    walk,
)
from xla_call_module.stablehlo.rewriting import run_passes

# How JAX itself reads such a module (jax/_src/export/_export.py, `_call_exported_lowering`).
_IMPORT = "xla-sdy-round-trip-import-shardy-attrs"
_MANUAL = "xla.sdy.manual_computation_body"
_TO_LOCAL, _TO_GLOBAL = "xla.sdy.GlobalToLocalShape", "xla.sdy.LocalToGlobalShape"
_FRONTEND = "mhlo.frontend_attributes"
_SHARDY = "xla.sdy."
MESHES = "xla.sdy.meshes"
SHARDING = "xla.sdy.sharding"
_SDY_SHARDING = "sdy.sharding"
_MANUAL_AXES = "xla.sdy.manual_axes"


def import_shardings(artifact: bytes) -> bytes:
    """Return the module with its shardings as JAX exports them, and not as StableHLO's attributes.

    JAX finds the mesh of the latter too late, where the `Exported` does not have the names of the
    axes (jax/_src/export/_export.py, `_call_exported_lowering`).
    """
    with open_module(artifact) as module:
        if not _has_texts(module):
            return artifact
        import_shardings_into(module)
        return serialize_module(module, read_artifact_version(artifact), mixed=True)


def import_shardings_into(module: Any) -> None:
    """Make Shardy's operations of the attributes of a parsed module, if it has them."""
    if not _has_texts(module):
        return
    try:
        for operation in walk(module):
            _check_operation(operation)
        # Since JAX 0.11 the meshes are there as operations besides.
        for operation in list(shardy_meshes(module)):
            operation.erase()
        run_passes(module, _IMPORT)
        for computation in _manual_computations(module):
            computation.write()
        for operation in list(walk(module)):
            is_constraint = custom_call_target(operation) == "Sharding"
            if is_constraint and _SDY_SHARDING in operation.attributes:
                _write_constraint(operation)
        module.operation.verify()
    except (ir.MLIRError, KeyError, ValueError) as error:
        raise FormatError(
            f"The shardings in the module are damaged: {first_line(error)}. To do: write the file "
            "again."
        ) from error


def _has_texts(module: Any) -> bool:
    """Return whether a parsed module has its meshes, and so all of Shardy's, as texts."""
    attributes = module.operation.attributes
    return _FRONTEND in attributes and MESHES in dictionary(attributes[_FRONTEND])


def shardy_meshes(module: Any) -> Iterator[Any]:
    """Return the operations of a parsed module that declare a mesh."""
    return (op.operation for op in module.body.operations if op.operation.name == "sdy.mesh")


def _check_operation(operation: Any) -> None:
    attributes = operation.attributes
    written = _parse_texts(attributes)
    if MESHES in written:
        for mesh in dictionary(written[MESHES]).values():
            sdy.MeshAttr(mesh)
    if SHARDING in written:
        count = len(sdy.TensorShardingPerValueAttr(written[SHARDING]).shardings)
        if count != len(operation.results):
            raise ValueError(f"{count} shardings for {len(operation.results)} values.")
    for of_values in ("arg_attrs", "res_attrs"):
        if of_values in attributes:
            for value in map(_parse_texts, map(ir.DictAttr, attributes[of_values])):
                if SHARDING in value:
                    sdy.TensorShardingAttr(value[SHARDING])


@dataclass(frozen=True, slots=True)
class _ManualComputation:
    """A manual computation, run on each device alone: a call between two custom calls.

    Attributes:
        function: the function, which is called nowhere else.
        to_local: the custom call whose results are the operands; None where there are none.
        to_global: the custom call whose operands are the results; None where there are none.
    """

    function: Any
    call: Any
    to_local: Any | None
    to_global: Any | None

    def write(self) -> None:
        """Put one operation of Shardy's with the body of the function in the place of the calls."""
        given: tuple[Any, ...] = () if self.to_local is None else tuple(self.to_local.operands)
        made: tuple[Any, ...] = () if self.to_global is None else tuple(self.to_global.results)
        axes: Any = (self.to_local or self.to_global or self.call).attributes
        ends = [(self.to_local, "in"), (self.to_global, "out")]
        with ir.InsertionPoint(self.call), self.call.location:
            operation = ir.Operation.create(
                "sdy.manual_computation",
                results=[value.type for value in made],
                operands=given,
                attributes={
                    "manual_axes": _parse_texts(axes)[_MANUAL_AXES],
                    **{f"{end}_shardings": _shardings_of(call, end) for call, end in ends},
                },
                regions=1,
            )
        (body,) = self.function.regions[0].blocks
        body.append_to(operation.regions[0])
        end = body.operations[len(body.operations) - 1].operation
        with ir.InsertionPoint(end), end.location:
            ir.Operation.create("sdy.return", operands=list(end.operands))
        end.erase()
        for old, new in zip(made, operation.results, strict=True):
            old.replace_all_uses_with(new)
        for call in (self.to_global, self.call, self.to_local, self.function):
            if call is not None:
                call.erase()


def _manual_computations(module: Any) -> list[_ManualComputation]:
    """Return the manual computations of a parsed module."""
    operations = list(walk(module))
    calls = [op for op in operations if op.name == "func.call" and _MANUAL in callee_of(op)]
    if len({callee_of(call) for call in calls}) < len(calls):
        raise ValueError("Two manual computations share a function.")
    functions = functions_of(module)
    made = [
        _ManualComputation(
            functions[callee_of(call)],
            call,
            _tied(call, _TO_LOCAL),
            _tied(call, _TO_GLOBAL),
        )
        for call in calls
    ]
    tied = sum((one.to_local is not None) + (one.to_global is not None) for one in made)
    if tied != sum(custom_call_target(op) in (_TO_LOCAL, _TO_GLOBAL) for op in operations):
        raise ValueError("There is a custom call of a manual computation without its function.")
    return made


def _tied(call: Any, target: str) -> Any | None:
    """Return the custom call that a call has its operands from, or gives its results to."""
    inner = list(call.operands if target == _TO_LOCAL else call.results)
    if not inner:
        return None
    uses = [use for value in inner for use in value.uses]
    first = inner[0].owner if target == _TO_LOCAL else uses[0].owner if uses else None
    if not isinstance(first, ir.Operation | ir.OpView) or custom_call_target(first) != target:
        raise ValueError(f"{callee_of(call)} has no {target} of its own.")
    outer = list(first.results if target == _TO_LOCAL else first.operands)
    if outer != inner or len(uses) != len(inner):
        raise ValueError(f"The {target} of {callee_of(call)} has other neighbours.")
    return first


def _write_constraint(call: Any) -> None:
    """Put a constraint of Shardy's in the place of a custom call, which only GSPMD understands."""
    shardings: Any = sdy.TensorShardingPerValueAttr(call.attributes[_SDY_SHARDING])
    (operand,), (result,), (sharding,) = call.operands, call.results, shardings.shardings
    with ir.InsertionPoint(call), call.location:
        constraint = ir.Operation.create(
            "sdy.sharding_constraint",
            results=[result.type],
            operands=[operand],
            attributes={"sharding": sharding},
        )
    result.replace_all_uses_with(constraint.result)
    call.erase()


def _shardings_of(call: Any | None, end: str) -> Any:
    """Return the shardings that a custom call has as a text; none for no custom call."""
    if call is None:
        return sdy.TensorShardingPerValueAttr.get([])
    return _parse_texts(call.attributes)[f"{_SHARDY}{end}_shardings"]


def _parse_texts(attributes: Any) -> dict[str, Any]:
    texts = shardy_texts(attributes)
    if any("\\" in text or not text.isascii() for text in texts.values()):
        # Quoted twice, they end in other names or in a crash.
        raise ValueError("A name of an axis has letters besides those of ASCII, or quotes.")
    return {name: ir.Attribute.parse(text) for name, text in texts.items()}


def shardy_texts(attributes: Any) -> dict[str, str]:
    """Return the attributes of Shardy's that are written as texts in one of StableHLO's."""
    if _FRONTEND not in attributes:
        return {}
    return {
        name: str(ir.StringAttr(text).value)
        for name, text in dictionary(attributes[_FRONTEND]).items()
        if name.startswith(_SHARDY)
    }
