"""`to_chain`: an `Exported` and its VJPs as the calls of a file."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import export

from bridge.chains.orders import NOT_DIFFERENTIABLE, check_order
from bridge.chains.vjp import vjp_of
from xla_call_module.analyses.several_devices import check_one_device
from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import ShardingError, StructureError, VersionError
from xla_call_module.exported import from_exported
from xla_call_module.passes.constants import check_hoisting
from xla_call_module.passes.pipeline import Target, prepare, prepare_chain
from xla_call_module.versions import parse_release

__all__ = ["ChainOptions", "to_chain"]


@dataclasses.dataclass(frozen=True, slots=True)
class ChainOptions:
    """What `save` is asked to make of each chain; the fields are its arguments."""

    tensorflow: str | None
    gradient_order: int
    residuals: bool
    hoist_constants: int | None
    disabled_checks: tuple[DisabledCheck, ...]
    portable_linalg: bool

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can be made of."""
        check_order(self.gradient_order)
        check_hoisting(self.hoist_constants)


def to_chain(
    exported: export.Exported, options: ChainOptions, constants: dict[str, np.ndarray[Any, Any]]
) -> tuple[CallModule, ...]:
    """The call, its VJP and so on, all as the wanted TensorFlow reads them.

    What is taken out of them is added to `constants`.
    """
    target = Target(
        None if options.tensorflow is None else parse_release(options.tensorflow),
        portable_linalg=options.portable_linalg,
        hoist_from=options.hoist_constants,
    )
    # Making VJPs is what takes the most memory, so that nothing is taken out of modules before.
    whole = _differentiated(exported, options)
    orders = (whole.pop(0) for _ in range(len(whole)))
    try:
        prepared = prepare_chain(orders, target, residuals=options.residuals, known=constants)
    except VersionError:
        # Gradients have no source lines in a file; the message has them.
        with warnings.catch_warnings(action="ignore"):
            for call in _differentiated(exported, options):
                prepare(call, target)
        raise
    constants.update(prepared.constants)
    return prepared.calls


def _differentiated(exported: export.Exported, options: ChainOptions) -> list[CallModule]:
    """The call, its VJP and so on, as JAX makes them."""
    calls = [_to_call(exported, options.disabled_checks)]
    _warn_of_devices(calls[0])
    for order in range(1, options.gradient_order + 1):
        vjp = _differentiate(exported, calls[-1], order)
        if vjp is None:
            break
        exported = vjp
        calls.append(from_exported(vjp, disabled_checks=options.disabled_checks))
    return calls


def _differentiate(
    exported: export.Exported, call: CallModule, order: int
) -> export.Exported | None:
    """The VJP, or None where there is none, with a warning where one could be expected."""
    if not call.is_differentiable:
        return None
    if not exported.has_vjp():
        if order > 1:
            reason = f"it was serialized with vjp_order={order - 1}"
            _warn_of_missing_gradient(call.name, order, reason)
        return None
    try:
        return vjp_of(exported)
    except NOT_DIFFERENTIABLE as error:
        _warn_of_missing_gradient(
            call.name, order, f"JAX cannot differentiate it in reverse mode: {error}"
        )
        return None


def _warn_of_missing_gradient(name: str, order: int, reason: str) -> None:
    what = "without a gradient" if order == 1 else f"with gradients up to order {order - 1}"
    warnings.warn(f"{name} is saved {what}, because {reason}", UserWarning, stacklevel=6)


def _to_call(exported: export.Exported, checks: Sequence[DisabledCheck]) -> CallModule:
    """The call of an `Exported`."""
    if not isinstance(exported, export.Exported):
        raise StructureError(
            f"Expected a jax.export.Exported, got {type(exported).__name__}. To do: call "
            "jax.export.export(jax.jit(f))(*specs) first."
        )
    return from_exported(exported, disabled_checks=checks)


def _warn_of_devices(call: CallModule) -> None:
    """What XLA partitions by itself runs on one device, and needs no word."""
    try:
        check_one_device(call)
    except ShardingError as refusal:
        warnings.warn(
            f"A file that TensorFlow cannot run on one device: {refusal}",
            UserWarning,
            stacklevel=5,
        )
