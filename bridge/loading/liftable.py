"""What `bridge.to_jax` takes, as functions of JAX."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export, tree_util
from jax.sharding import Mesh

from bridge.core.exported_file import parse_exported
from bridge.core.keys import to_logical, to_physical
from bridge.core.tree_matching import match_trees
from bridge.lifting.lifted_function import lift_call
from bridge.loading.calling import is_float0
from bridge.loading.loaded import LoadedModel, LoadedSignature
from savedmodel.read import read
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import WIDE
from xla_call_module.errors import DtypeError, StructureError
from xla_call_module.exported import from_exported

__all__ = ["lift_exported", "lift_source"]


def lift_source(model: Any, mesh: Mesh | None) -> Callable[..., Any]:
    """Return what was exported as a function of JAX; see `bridge.to_jax`."""
    if isinstance(model, bytes):
        model = parse_exported(model, "the bytes")
    if isinstance(model, str | os.PathLike):
        path = Path(model)
        if path.is_file():
            model = parse_exported(path.read_bytes(), os.fspath(path))
        else:
            model = LoadedModel(read(path))
    if isinstance(model, LoadedModel):
        model = model.default
    if isinstance(model, LoadedSignature):
        model = model.exported
    if isinstance(model, export.Exported):
        return lift_exported(model, mesh)
    if isinstance(model, CallModule):
        return _lift_flat(model, mesh)
    raise StructureError(
        f"Expected something that was exported, got a {type(model).__name__}. To do: pass a "
        "jax.export.Exported, the path of a file, or what bridge.load returned."
    )


def lift_exported(exported: export.Exported, mesh: Mesh | None = None) -> Callable[..., Any]:
    """Return an `Exported` as a function of JAX of its pytrees."""
    call = from_exported(exported, allow_flat_trees=True)
    flat = lift_call(call, mesh)

    def lifted(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_util.tree_flatten((args, kwargs))
        match = match_trees(tree, exported.in_tree)
        if match is None:
            raise StructureError(
                f"The arguments of {exported.fun_name} have the structure {tree}; expected "
                f"{exported.in_tree}. To do: pass what it was exported with."
            )
        leaves = match.leaves(leaves)
        operands = [_operand(leaves[n], exported.in_avals[n], call.args[n]) for n in call.kept]
        pairs = zip(flat(*operands), exported.out_avals, strict=True)
        results = [_result(value, aval) for value, aval in pairs]
        return tree_util.tree_unflatten(match.results(exported.out_tree), results)

    lifted.__name__ = lifted.__qualname__ = exported.fun_name
    return jax.jit(lifted)


def _operand(leaf: Any, aval: Any, spec: TensorSpec) -> Any:
    """Return a leaf as its operand: of typed PRNG keys their data, of float0 False."""
    if is_float0(aval):
        return np.zeros(np.shape(leaf), bool)
    if isinstance(leaf, (bool, int, float, complex)):
        leaf = np.asarray(leaf, aval.dtype)
    dtype = getattr(leaf, "dtype", None)
    if dtype != aval.dtype:
        wide = " with jax_enable_x64 set" if aval.dtype.name in WIDE else ""
        raise DtypeError(
            f"{spec.path} is {dtype or type(leaf).__name__}; expected {aval.dtype}. To do: pass an "
            f"array of this dtype{wide}."
        )
    return to_physical(leaf)


def _result(value: Any, aval: Any) -> Any:
    if is_float0(aval):
        return np.zeros(np.shape(value), aval.dtype)
    return to_logical(value, aval)


def _lift_flat(call: CallModule, mesh: Mesh | None) -> Callable[..., Any]:
    flat = lift_call(call, mesh)

    def lifted(*arrays: Any) -> Any:
        results = flat(*(arrays[index] for index in call.kept))
        return results[0] if len(results) == 1 else results

    lifted.__name__ = lifted.__qualname__ = call.name
    return jax.jit(lifted)
