"""TensorFlow functions that a module calls, as what JAX exports and as what the op takes.

A `stablehlo.custom_call` of `tf.call_tf_function` names a function by its index in the attribute
`function_list` of the node (tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc). An
`Exported` has no such list, so there the call holds the functions themselves.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from xla_call_module._jax import ir
from xla_call_module.call import CallModule
from xla_call_module.errors import THROUGH_TENSORFLOW, FormatError, StructureError
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import custom_call_target, serialize_module, walk

TARGET = "tf.call_tf_function"
_CONFIG = "tf.backend_config"
_MARK = '{"tensorflow_function": '


def pack_functions(name: str, definitions: Sequence[bytes]) -> str:
    """Return the configuration of a custom call that holds what it calls."""
    packed = [base64.b64encode(definition).decode() for definition in definitions]
    return json.dumps({"tensorflow_function": name, "definitions": packed})


def take_functions(call: CallModule, module: Any) -> CallModule:
    """Return the call with the functions out of its module, in `function_list` and `functions`."""
    if not mentions(call.module, [TARGET.encode()]):
        return call
    names: list[str] = list(call.function_list)
    definitions = dict.fromkeys(call.functions)
    configs = ((operation, _read(call.name, operation)) for operation in _calls(module))
    packed = [(operation, config) for operation, config in configs if config is not None]
    if not packed:
        return call
    for operation, (name, needed) in packed:
        definitions |= dict.fromkeys(needed)
        if name not in names:
            names.append(name)
        _write_index(operation, names.index(name))
    artifact = serialize_module(module, call.stablehlo_version)
    return dataclasses.replace(
        call, module=artifact, function_list=tuple(names), functions=tuple(definitions)
    )


def return_functions(call: CallModule, module: Any) -> None:
    """Put the functions of a call into its parsed module again, in place, as JAX exports them."""
    for operation in _calls(module):
        config = ir.DictAttr(operation.attributes[_CONFIG])
        name = call.function_list[ir.IntegerAttr(config["called_index"]).value]
        with operation.context:
            packed = pack_functions(name, call.functions)
            operation.attributes["backend_config"] = ir.StringAttr.get(packed)
        del operation.attributes[_CONFIG]


def refuse_functions(where: str, module: Any) -> None:
    """Refuse a parsed module that calls functions of TensorFlow, which JAX alone does not run."""
    if next(_calls(module), None) is not None:
        raise StructureError(
            f"{where} calls TensorFlow functions that the file holds, and JAX alone cannot run "
            f"them. To do: {THROUGH_TENSORFLOW}; or "
            "write it from bridge.call_tf without graph=True, which compiles them."
        )


def _calls(module: Any) -> Any:
    return (operation for operation in walk(module) if custom_call_target(operation) == TARGET)


def _read(where: str, operation: Any) -> tuple[str, list[bytes]] | None:
    attributes = operation.attributes
    text = ""
    if "backend_config" in attributes:
        text = ir.StringAttr(attributes["backend_config"]).value
    if not text.startswith(_MARK):
        return None
    try:
        packed = json.loads(text)
        definitions = [base64.b64decode(part, validate=True) for part in packed["definitions"]]
        return str(packed["tensorflow_function"]), definitions
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{where} holds a TensorFlow function that cannot be read ({error}). To do: export it "
            "again."
        ) from error


def _write_index(operation: Any, index: int) -> None:
    config = f"{{called_index = {index} : i64, has_token_input_output = false}}"
    with operation.context:
        operation.attributes[_CONFIG] = ir.Attribute.parse(config)
        operation.attributes["backend_config"] = ir.StringAttr.get("")
