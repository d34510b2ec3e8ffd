"""An `Exported` as a function of JAX that is traced operation by operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, tree_util
from jax.sharding import AbstractMesh, Mesh

from bridge.core.keys import to_logical, to_physical
from bridge.core.tree_matching import match_trees
from bridge.loading.derivative_primitives import Flat, is_float0
from bridge.loading.needed_devices import needed_devices, require_devices
from xla_call_module.analyses.constraints import constraints_in
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import DisabledCheck
from xla_call_module.dtypes import WIDE
from xla_call_module.errors import DtypeError, StructureError
from xla_call_module.exported import from_exported
from xla_call_module.mlir_files import with_signature
from xla_call_module.stablehlo.modules import custom_call_targets, open_module, walk
from xla_call_module.symbolic_shapes import constraints_of, limited_steps, parse_shape

if TYPE_CHECKING:
    from bridge.lifting.lifting_table import LiftingTable


def lift_exported(exported: export.Exported, mesh: Mesh | None = None) -> Callable[..., Any]:
    """Return an `Exported` as a function of JAX of its pytrees."""
    flat = lift_leaves(exported, mesh, is_outermost=False)

    def lifted(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = tree_util.tree_flatten((args, kwargs))
        match = match_trees(tree, exported.in_tree)
        if match is None:
            raise StructureError(
                f"The arguments of {exported.fun_name} have the structure {tree}; expected "
                f"{exported.in_tree}. To do: pass what it was exported with."
            )
        results = flat(*match.leaves(leaves))
        return tree_util.tree_unflatten(match.results(exported.out_tree), results)

    lifted.__name__ = lifted.__qualname__ = exported.fun_name
    return jax.jit(lifted)


def lift_module(call: CallModule, mesh: Mesh | None = None) -> Callable[..., Any]:
    """Return StableHLO without an `Exported` as a function of JAX, of its flat arguments."""
    from bridge.lifting.lifted_function import lift_call

    call = with_signature(call)
    flat = inspect.unwrap(lift_call(call, mesh))  # a function in one of its name is no scope
    avals = [jax.ShapeDtypeStruct((), spec.dtype.numpy) for spec in call.args]

    def lifted(*arrays: Any, **named: Any) -> Any:
        if named or len(arrays) != len(avals):
            raise StructureError(
                f"{call.name} was called with {len(arrays)} positional and {len(named)} keyword "
                f"arguments; expected {len(avals)} positional ones. To do: pass arrays "
                f"({', '.join(map(str, call.args))})."
            )
        kept = [operand_of(arrays[index], avals[index], call.args[index]) for index in call.kept]
        results = flat(*kept)
        return results[0] if len(results) == 1 else results

    lifted.__name__ = lifted.__qualname__ = call.name
    return jax.jit(lifted)


def lift_leaves(
    exported: export.Exported,
    mesh: Mesh | AbstractMesh | None = None,
    *,
    name: str = "",
    table: LiftingTable | None = None,
    is_outermost: bool = True,
) -> Flat:
    """Return an `Exported` as a function of JAX of the leaves of its arguments.

    It is under `jax.jit` where it is the outermost one of its name.
    """
    from bridge.lifting.lifted_function import lift_call
    from bridge.lifting.lifting_table import JAX_TABLE

    with open_module(exported.mlir_module_serialized) as module:
        # What TensorFlow cannot call JAX may; what JAX cannot is refused where it is traced.
        targets = custom_call_targets(walk(module))
        checks = [DisabledCheck(f"custom_call:{target}") for target in targets]
        call = from_exported(
            exported, disabled_checks=checks, carried=False, module=module, narrow=True
        )
    flat = lift_call(call, mesh, table or JAX_TABLE)
    flat = flat if is_outermost else inspect.unwrap(flat)
    needed = None
    if mesh is None and exported.nr_devices > 1:
        needed = needed_devices(name or exported.fun_name, exported)

    def lifted(*leaves: Any) -> tuple[Any, ...]:
        operands = [operand_of(leaves[n], exported.in_avals[n], call.args[n]) for n in call.kept]
        if needed is not None and not jax.sharding.get_abstract_mesh().axis_names:
            operands = require_devices(operands, needed)
        pairs = zip(flat(*operands), exported.out_avals, strict=True)
        return tuple(_result(value, aval) for value, aval in pairs)

    return lifted


def float0_zeros(value: Any) -> Any:
    """Return the cotangent of what has no tangents; JAX makes it for symbolic sizes, too."""
    return jax.vjp(lambda _: 0.0, value)[1](0.0)[0]


def symbolic_specs(exported: export.Exported, avals: Sequence[Any]) -> list[Any]:
    """Return specs of the shapes of avals, whose sizes have the constraints of the module.

    JAX does not serialize these, so that the sizes of an `Exported` that was read lack them.
    """
    asserted = (str(known) for known in constraints_in(exported.mlir_module_serialized))
    constraints = dict.fromkeys([*constraints_of(exported.in_avals), *asserted])
    if not constraints:
        return [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    with limited_steps("to read the shapes of a call"):
        scope = export.SymbolicScope(list(constraints))
        return [
            jax.ShapeDtypeStruct(
                parse_shape(tuple(map(_text, aval.shape)), scope=scope), aval.dtype
            )
            for aval in avals
        ]


def _text(dim: Any) -> int | str:
    return dim if isinstance(dim, int) else str(dim)


def operand_of(leaf: Any, aval: Any, spec: TensorSpec) -> Any:
    """Return a leaf as its operand: of typed PRNG keys their data, of float0 False."""
    if is_float0(aval):
        return jnp.zeros(np.shape(leaf), bool)
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
        return float0_zeros(value)
    return to_logical(value, aval)
