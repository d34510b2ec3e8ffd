"""The state of a model as variables, which an interpreter keeps between calls.

A converted signature takes its state as arguments and returns the new values. Here it reads
variables instead, when it begins, and assigns them before it ends. The first values are assigned by
a function without arguments, which the first signature to run calls once; it is made of a module
that returns them. A `CompiledModel` has the same variables.

The exporter has no type for the handle of a variable, and takes an integer for one, as the kernels
do; XNNPACK does not. So the type is written into the flatbuffer afterwards (`with_resource_types`).

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litert_converter.mlir import ir

ENTRY = "tf.entry_function"
EXPORTED_NAMES = "tf_saved_model.exported_names"
_KINDS = ("reads", "assigns")


def keep_state(module: Any, names: Sequence[Mapping[str, Any]]) -> None:
    """Let the functions of a converted module read and assign the variables of their signatures.

    The context of the module, and a location, are to be the current ones.
    """
    by_signature = {given["signature"]: given for given in names}
    firsts = [key for key, given in by_signature.items() if has_first_values(given)]
    if not firsts:
        return
    functions = {
        str(ir.ArrayAttr(function.attributes[EXPORTED_NAMES])[0]).strip('"'): function.operation
        for function in module.body
        if EXPORTED_NAMES in function.attributes
    }
    first = functions.pop(firsts[0])
    for key, function in functions.items():
        given = by_signature[key]
        if any(given["reads"]) or any(given["assigns"]):
            _use_variables(function, given, first=first.attributes["sym_name"])
    _use_variables(first, by_signature[firsts[0]], first=None)
    for name in (EXPORTED_NAMES, ENTRY):
        del first.attributes[name]
    first.attributes["sym_visibility"] = ir.StringAttr.get("private")


def has_first_values(given: Mapping[str, Any]) -> bool:
    """Return whether a module has first values of variables alone; a signature has an output."""
    return bool(given["assigns"]) and all(given["assigns"])


def _use_variables(function: Any, given: Mapping[str, Any], *, first: Any) -> None:
    """Let a function read and assign variables."""
    block = function.regions[0].blocks[0]
    last = block.operations[len(block.operations) - 1].operation
    taken, returned = ([n for n, name in enumerate(given[k]) if not name] for k in _KINDS)
    types = [last.operands[n].type for n in returned]
    with ir.InsertionPoint.at_block_begin(block):
        if first is not None:
            ir.Operation.create("tfl.call_once", [], [], {"session_init_function": first})
        handles = _read_variables(block, given)
    with ir.InsertionPoint(last):
        for value, name in zip(last.operands, given["assigns"], strict=True):
            if name:
                ir.Operation.create("tfl.assign_variable", [], [handles[name], value])
        ir.Operation.create("func.return", [], [last.operands[n] for n in returned])
    last.erase()
    for number in reversed(range(len(block.arguments))):
        if number not in taken:
            block.erase_argument(number)
    kind = ir.FunctionType.get([argument.type for argument in block.arguments], types)
    function.attributes["function_type"] = ir.TypeAttr.get(kind)
    _keep_descriptions(function, taken, returned)


def _read_variables(block: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Put variables in the place of arguments, and return the handles of all that are needed."""
    read = {
        argument: name
        for argument, name in zip(block.arguments, given["reads"], strict=True)
        if name and any(True for _ in argument.uses)
    }
    names = filter(None, (*read.values(), *given["assigns"]))
    handles = {name: _handle(name) for name in dict.fromkeys(names)}
    for argument, name in read.items():
        value = ir.Operation.create("tfl.read_variable", [argument.type], [handles[name]]).result
        argument.replace_all_uses_with(value)
    return handles


def _handle(name: str) -> Any:
    kind = ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))
    attributes = {"container": ir.StringAttr.get(""), "shared_name": ir.StringAttr.get(name)}
    return ir.Operation.create("tfl.var_handle", [kind], [], attributes).result


def _keep_descriptions(function: Any, taken: Sequence[int], returned: Sequence[int]) -> None:
    """Let a function have the attributes and the names of some arguments and results only."""
    for name, kept in (("arg_attrs", taken), ("res_attrs", returned)):
        if name in function.attributes:
            described = ir.ArrayAttr(function.attributes[name])
            function.attributes[name] = ir.ArrayAttr.get([described[n] for n in kept])
    entry = ir.DictAttr(function.attributes[ENTRY])
    names = {}
    for key, kept in (("inputs", taken), ("outputs", returned)):
        listed = ir.StringAttr(entry[key]).value.split(",")
        names[key] = ir.StringAttr.get(",".join(listed[n] for n in kept))
    function.attributes[ENTRY] = ir.DictAttr.get(names)
