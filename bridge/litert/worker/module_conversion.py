"""Portable artifacts of StableHLO converted to a flatbuffer by litert_converter.

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from litert_converter import converter_api_ext
from litert_converter.mlir import ir, passmanager
from litert_converter.mlir.dialects import stablehlo

from bridge.litert.worker.conversion_corrections import prevent_misreadings, restore_scatter_regions
from bridge.litert.worker.dynamic_sizes import lower_dynamic_sizes
from bridge.litert.worker.implicit_broadcasts import leave_out_broadcasts
from bridge.litert.worker.loop_outlining import name_arguments, nested_operations, outline_loops
from bridge.litert.worker.model_execution import describe_model, missing_kernel, with_resource_types
from bridge.litert.worker.shared_buffers import keep_what_is_read
from bridge.litert.worker.state_variables import ENTRY, EXPORTED_NAMES, has_first_values, keep_state
from bridge.litert.worker.tensor_copies import separate_results

_PREFIX = "jax_tf_bridge."
# The attributes of each, as text of MLIR.
_KERNELS: Mapping[str, Mapping[str, str]] = {
    "tfl.softmax": {"beta": "1.0 : f32"},
}


def put_kernels(module: Any) -> None:
    """Put the operation of LiteRT in the place of each such composite.

    The context of the module is to be the current one.
    """
    for operation in [*nested_operations(module.operation)]:
        if operation.name != "stablehlo.composite":
            continue
        name = ir.StringAttr(operation.attributes["name"]).value
        kernel = name.replace(_PREFIX, "tfl.", 1)
        if not name.startswith(_PREFIX) or kernel not in _KERNELS:
            continue
        attributes = {key: ir.Attribute.parse(text) for key, text in _KERNELS[kernel].items()}
        with operation.location, ir.InsertionPoint(operation):
            # The sizes come before the array.
            array = operation.operands[len(operation.operands) - 1]
            made = ir.Operation.create(kernel, [operation.results[0].type], [array], attributes)
        operation.results[0].replace_all_uses_with(made.results[0])
        operation.erase()


_MAX_LOCATION = 20_000  # characters
_MAX_REFUSED = 5  # operations that are named
# The dialects of what the exporter writes, and of what holds it.
_WRITTEN = ("arith.", "builtin.", "func.", "tfl.")
_ERROR = re.compile(r"^(?:.+?:\d+:\d+: )?error: (.*)$", re.MULTILINE)
_FRAME = re.compile(r"^(?:Failed to [\w ]+: )?(.+?):(\d+):(\d+): (?:error|note): ", re.MULTILINE)
_QUOTED_OPERATION = re.compile(r"'([a-z_]+\.\w+)'")
_DETAIL = re.compile(r"^\t([a-z_]+\.\w+)\(.*$", re.MULTILINE)

# The name of an operation, and its location as MLIR writes it.
Place = tuple[str, str]


class Refusal(Exception):  # noqa: N818 - the converter made the error
    """The converter does not take some operations; with what it says of them.

    Attributes:
        places: the operations and where they are.
    """

    def __init__(self, message: str, places: Iterable[Place] = ()) -> None:
        """Keep what is known."""
        super().__init__(message)
        self.places = [*places][:_MAX_REFUSED]


def convert_modules(artifacts: list[bytes], names: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a flatbuffer with a signature for each module."""
    context = ir.Context()
    converter_api_ext.prepare_mlir_context(context)
    with context, ir.Location.unknown():
        try:
            modules = [_converted(artifacts.pop(0), given) for given in names]
            one = modules[0] if len(modules) == 1 else converter_api_ext.merge_modules(modules)
            keep_state(one, names)
            _prepare_for_export(one)
        except (ir.MLIRError, RuntimeError, ValueError) as error:
            raise Refusal("; ".join(_errors(str(error)))) from error
        try:
            model = bytes(converter_api_ext.export_flatbuffer_to_bytes(one.operation))
        except ValueError as error:
            raise _unwritten(one, str(error)) from error
        if any(any(given["assigns"]) for given in names):
            model = with_resource_types(model)
        if missing := missing_kernel(model):
            name = missing.removeprefix("STABLEHLO_").lower()
            raise Refusal("the runtime has no kernel for it", _places_named(one, [name]))
    _check_signatures(model, names)
    return model


def _converted(artifact: bytes, names: Mapping[str, Any]) -> Any:
    """Return a module in the operations of LiteRT."""
    module = stablehlo.deserialize_portable_artifact(ir.Context.current, artifact)
    main = ir.SymbolTable(module.operation)["main"].operation
    converter_api_ext.set_signature(main, names["signature"], names["inputs"], names["outputs"])
    main.attributes[ENTRY] = _tensor_names(names)
    put_kernels(module)
    chain_branches(module)
    lower_dynamic_sizes(module)
    prevent_misreadings(module)
    leave_out_broadcasts(module)
    config = converter_api_ext.ConvertToTFLConfig()
    config.enable_x64 = True
    config.canonicalizing_inf_as_min_max_float = False
    passes = passmanager.PassManager("builtin.module")
    try:
        converter_api_ext.run_convert_to_tfl_passes(module, passes, config)
    except ValueError as error:
        raise _reported(module, str(error)) from error
    return module


def _tensor_names(names: Mapping[str, Any]) -> Any:
    """Return the names of the tensors of a signature: commas separate them, and none is twice."""
    taken: set[str] = set()
    listed: dict[str, Any] = {}
    for key in ("inputs", "outputs"):
        own = [re.sub(r"\W", "_", f"{names['signature']}_{name}") for name in names[key]]
        for number in range(len(own)):
            while own[number] in taken:
                own[number] += "_"
            taken.add(own[number])
        listed[key] = ir.StringAttr.get(",".join(own))
    return ir.DictAttr.get(listed)


def _prepare_for_export(module: Any) -> None:
    outline_loops(module)
    restore_scatter_regions(module)
    for number, function in enumerate(module.body):
        if EXPORTED_NAMES in function.attributes:
            separate_results(function.operation)
        keep_what_is_read(function.operation)
        if ENTRY not in function.attributes:
            name_arguments(function.operation, number)


def _check_signatures(model: bytes, names: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a model whose signatures are not those that were asked for."""
    tensors = {
        one["name"]: [[name for name, *_ in one[key]] for key in ("inputs", "outputs")]
        for one in describe_model(model)["signatures"]
    }
    for given in names:
        if has_first_values(given):
            continue
        wanted = [
            sorted(name for name, other in zip(given[key], given[state], strict=True) if not other)
            for key, state in (("inputs", "reads"), ("outputs", "assigns"))
        ]
        has = tensors.get(given["signature"])
        if has is None or [*map(sorted, has)] != wanted:
            raise Refusal(f"signature {given['signature']!r} takes and returns {has}, not {wanted}")


def _errors(message: str) -> list[str]:
    """Return the errors in a message of MLIR, which shows lines and callers, too."""
    return [match[1] for match in _ERROR.finditer(message)] or [message.strip()]


def _reported(module: Any, message: str) -> Refusal:
    """Return the refusal of the operations that an error of MLIR names."""
    errors = _errors(message)
    named = {_public(name) for text in errors for name in _QUOTED_OPERATION.findall(text)}
    frames = {f'"{file}":{line}:{column}' for file, line, column in _FRAME.findall(message)}
    places = _places_named(module, named)
    here = [place for place in places if all(frame in place[1] for frame in frames)]
    others = [(name, "") for name in sorted(named)]
    return Refusal("; ".join(errors), here or places or others)


def _unwritten(module: Any, message: str) -> Refusal:
    """Return the refusal of operations that the exporter does not write."""
    if _ERROR.search(message):
        return _reported(module, message)
    details = {match[1]: match[0].strip() for match in _DETAIL.finditer(message)}
    if details:
        return Refusal("; ".join(details.values()), _places_named(module, details))
    left = (one for one in nested_operations(module.operation) if not one.name.startswith(_WRITTEN))
    return Refusal("LiteRT has no such operation", _places(left))


def _places_named(module: Any, names: Iterable[str]) -> list[Place]:
    """Return the operations of a module that have one of some names, with or without dialect."""
    wanted = {*names}
    operations = nested_operations(module.operation)
    both = ((one, _public(one.name)) for one in operations)
    return _places(one for one, name in both if {name, name.partition(".")[2]} & wanted)


def _places(operations: Iterable[Any]) -> list[Place]:
    """Return the names and locations of operations, each pair once."""
    named = ((_public(one.name), str(one.location)[:_MAX_LOCATION]) for one in operations)
    return [*dict.fromkeys(named)]


def _public(name: str) -> str:
    """Return the name of an operation in StableHLO, if it has one there."""
    return re.sub(r"^(?:mhlo\.(\w+)|vhlo\.(\w+?)_v\d+)$", r"stablehlo.\1\2", name)


def chain_branches(module: Any) -> None:
    """Let every `stablehlo.case` of a module be `stablehlo.if`.

    The context of the module is to be the current one.
    """
    cases = [one for one in nested_operations(module.operation) if one.name == "stablehlo.case"]
    for case in cases:
        blocks = [region.blocks[0] for region in case.regions]
        if len(blocks) == 1:
            results = _moved(blocks[0], case)
        else:
            with case.location, ir.InsertionPoint(case):
                results = _chosen(case.operands[0], blocks, 0, [one.type for one in case.results])
        for old, new in zip(case.results, results, strict=True):
            old.replace_all_uses_with(new)
        case.erase()


def _moved(block: Any, case: Any) -> list[Any]:
    """Return what a block ends with, after its operations were moved before the one it is in."""
    *operations, last = (one.operation for one in block)
    for operation in operations:
        operation.move_before(case)
    return [*last.operands]


def _chosen(index: Any, blocks: Sequence[Any], number: int, types: Sequence[Any]) -> list[Any]:
    """Return the results of the branches from some number on, at the current insertion point.

    The last branch is that of an index that is out of bounds, too.
    """
    constant = stablehlo.constant(ir.DenseElementsAttr.get(np.array(number, np.int32)))
    is_this = stablehlo.compare(index, constant, stablehlo.ComparisonDirectionAttr.get("EQ"))
    choice = ir.Operation.create("stablehlo.if", types, [is_this], regions=2)
    this, others = choice.regions
    blocks[number].append_to(this)
    if number + 2 == len(blocks):
        blocks[-1].append_to(others)
        return list(choice.results)
    with ir.InsertionPoint(others.blocks.append()):
        chosen = _chosen(index, blocks, number + 1, types)
        ir.Operation.create("stablehlo.return", [], [*chosen])
    return list(choice.results)
