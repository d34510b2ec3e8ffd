"""A chain of calls of a file -> an `Exported` with its VJPs, and the constants that it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache

from jax import export

from bridge.core._jax import replace_vjp
from savedmodel.model import SavedModel
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import DisabledCheck, unite
from xla_call_module.dtypes import Array
from xla_call_module.errors import StructureError
from xla_call_module.exported import to_exported
from xla_call_module.passes.constants import key_of, restore_constants
from xla_call_module.passes.module_pass import open_pair, run_on_module, run_passes
from xla_call_module.passes.residuals import DROP_RESIDUALS, join_residuals

_Array = Array


def restore(
    chain: Sequence[CallModule],
    constant: Callable[[str], Array],
    disabled_checks: Sequence[DisabledCheck] = (),
) -> export.Exported:
    """Return the `Exported` of a chain; its VJPs are made when they are asked for."""
    restored = restore_constants(constant)

    @lru_cache
    def call(order: int) -> CallModule:
        if not chain[order].residual_args:
            return run_passes(chain[order], [restored, DROP_RESIDUALS])
        with open_pair(*chain[order - 1 : order + 1]) as pair:
            forward, backward = (run_on_module(parsed, [restored]) for parsed in pair)
            return join_residuals(forward, backward).serialized(chain[order - 1])

    @lru_cache
    def exported(order: int) -> export.Exported:
        own = call(order)
        own = dataclasses.replace(own, disabled_checks=unite(own.disabled_checks, disabled_checks))
        made = to_exported(own)
        if order + 1 == len(chain):
            return made
        return replace_vjp(made, lambda: exported(order + 1))

    return exported(0)


def find_constants(
    chain: Sequence[CallModule], known: Mapping[str, Callable[[], _Array]], model: SavedModel
) -> Callable[[str], _Array]:
    """Return a function of a key that returns the value of a chain's constant.

    The call itself takes what is passed to its node. A constant of a gradient alone is captured by
    the gradient function, through the functions around it, and has the name that TensorFlow gave
    it; but its key is the hash of its value, which tells it from everything else in the file.
    """
    specs = {key: call.args[index] for call in chain for index, key in call.constants.items()}

    def find(key: str) -> _Array:
        if key in known:
            return known[key]()
        for value in _values_like(specs[key], model):
            if key_of(value) == key:
                return value
        raise StructureError(
            f"A gradient of {chain[0].name} takes the constant {specs[key]}, which the file lacks. "
            "To do: write the file again."
        )

    return find


def _values_like(spec: TensorSpec, model: SavedModel) -> Iterator[_Array]:
    """Yield the values of the file that have a dtype and a shape."""
    for variable in model.variables:
        if (variable.dtype, variable.shape) == (spec.dtype, spec.shape):
            yield variable.shared()
    yield from (
        value
        for value in model.graph_constants
        if (value.dtype, value.shape) == (spec.dtype.numpy, spec.shape)
    )
