"""What `jax.export.Exported.serialize` returned, and the calls in it."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax import export

from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck, parse_checks
from xla_call_module.errors import FormatError, InteropError, StructureError
from xla_call_module.exported import deserialize_exported, from_exported
from xla_call_module.pytrees.tree_restoring import missing_classes
from xla_call_module.stablehlo.modules import custom_call_targets, open_module, walk
from xla_call_module.tracebacks import warn


def parse_exported(content: bytes, where: str, *, stand_ins: bool = False) -> export.Exported:
    """Return the `Exported` that is in a file."""
    try:
        made = deserialize_exported(content, stand_ins=stand_ins)
    except StructureError as error:
        raise type(error)(f"{where}: {error} On the command line, --import does that.") from error
    except Exception as error:
        if isinstance(error, InteropError) and not isinstance(error, FormatError):
            raise
        # Where JAX reads it itself, flatbuffers has no error of its own for what is no message.
        said = str(error).partition(" To do:")[0] if isinstance(error, InteropError) else ""
        reason = said.removesuffix(".")
        raise FormatError(
            f"{where} is not a serialized Exported, or is "
            f"damaged{f' ({reason})' if reason else ''}. To do: write it with "
            "Exported.serialize(), or name a function as module:function where one is exported."
        ) from error
    both: Any = (made.in_tree, made.out_tree)
    if missing := {name for tree in both for name in missing_classes(tree)}:
        warn(
            f"{where} has pytree classes that this process has not registered: "
            f"{', '.join(sorted(missing))}. Stand-ins have their children by number. To do: import "
            "the modules that register them, on the command line by --import."
        )
    return made


def call_of_exported(exported: export.Exported, *, carried: bool = False) -> CallModule:
    """Return the call of an `Exported`, whatever it calls that TensorFlow does not have."""
    with open_module(exported.mlir_module_serialized) as module:
        targets = sorted(set(custom_call_targets(walk(module))))
        checks = [DisabledCheck(f"custom_call:{target}") for target in targets]
        call = from_exported(
            exported, allow_flat_trees=True, carried=carried, disabled_checks=checks, module=module
        )
    own = parse_checks(exported.disabled_safety_checks)
    return dataclasses.replace(call, disabled_checks=own)
