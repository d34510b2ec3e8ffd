"""The pass that takes source locations out of a module.

The VJP of an `Exported` is traced when it is asked for, so its locations tell where that happened:
the caller's files and lines, which are nothing of the function's and would make the bytes of a
file depend on who writes it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from xla_call_module._jax import PassManager
from xla_call_module.call import CallModule
from xla_call_module.stablehlo.modules import open_module, serialize_module

__all__ = ["drop_locations", "strip_locations"]


def strip_locations(call: CallModule) -> CallModule:
    """The same call at the same StableHLO version, without locations.

    Raises:
        FormatError: the module is damaged.
    """
    with open_module(call.module) as module:
        drop_locations(module)
        return dataclasses.replace(call, module=serialize_module(module, call.stablehlo_version))


def drop_locations(module: Any) -> None:
    """Take the locations out of a parsed module, in place."""
    PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
