"""`build_chain`: an `Exported` and its VJPs as the calls of a file."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jax import export

from bridge.chains.exported_order import ExportedOrder
from bridge.chains.orders import NOT_DIFFERENTIABLE, ChainOptions, check_order
from xla_call_module.analyses.several_devices import check_one_device
from xla_call_module.call import CallModule
from xla_call_module.errors import ShardingError, VersionError
from xla_call_module.passes.pipeline import Artifact, prepare, prepare_chain
from xla_call_module.versions import parse_release

__all__ = ["build_chain"]


def build_chain(
    exported: export.Exported,
    options: ChainOptions,
    constants: dict[str, np.ndarray[Any, Any]],
    *,
    gradient_order: int,
    tensorflow: str | None = None,
) -> tuple[CallModule, ...]:
    """Return the call, its VJP and so on, all as the wanted TensorFlow reads them.

    Args:
        exported: the function.
        options: those of the passes.
        constants: the values of what is taken out of the calls are added to these.
        gradient_order: how many VJPs there are at most.
        tensorflow: the oldest TensorFlow that must read the calls; None for as old as they allow.

    Raises:
        InteropError: the function cannot cross; for a VJP there is a warning, and no further order.
        VersionError: an order has an operation that the wanted TensorFlow does not have.
    """
    check_order(gradient_order)
    release = None if tensorflow is None else parse_release(tensorflow)
    target = options.target(release, Artifact.FOR_RELEASE)
    # Making VJPs is what takes the most memory, so that nothing is taken out of modules before.
    whole = _differentiated(exported, options, gradient_order)
    orders = (whole.pop(0) for _ in range(len(whole)))
    try:
        prepared = prepare_chain(orders, target, residuals=options.residuals, known=constants)
    except VersionError:
        # Gradients have no source lines in a file; the message has them.
        with warnings.catch_warnings(action="ignore"):
            for call in _differentiated(exported, options, gradient_order):
                prepare(call, target)
        raise
    constants.update(prepared.constants)
    return prepared.calls


def _differentiated(
    exported: export.Exported, options: ChainOptions, gradient_order: int
) -> list[CallModule]:
    """Return the call, its VJP and so on, as JAX makes them."""
    order: ExportedOrder | None = ExportedOrder(exported, options, for_file=True)
    calls: list[CallModule] = []
    while order is not None:
        calls.append(order.call)
        if len(calls) == 1:
            _warn_of_devices(calls[0])
        order = _next_order(order, len(calls)) if len(calls) <= gradient_order else None
    return calls


def _next_order(order: ExportedOrder, number: int) -> ExportedOrder | None:
    """Return the VJP, or None where there is none, with a warning where one could be expected."""
    name = order.call.name
    if not order.call.is_differentiable:
        return None
    if not order.exported.has_vjp():
        if number > 1:
            reason = f"it was serialized with vjp_order={number - 1}"
            _warn_of_missing_gradient(name, number, reason)
        return None
    try:
        return order.vjp()
    except NOT_DIFFERENTIABLE as error:
        reason = f"JAX cannot differentiate it in reverse mode: {error}"
        _warn_of_missing_gradient(name, number, reason)
        return None


def _warn_of_missing_gradient(name: str, number: int, reason: str) -> None:
    what = "without a gradient" if number == 1 else f"with gradients up to order {number - 1}"
    warnings.warn(f"{name} is saved {what}, because {reason}", UserWarning, stacklevel=6)


def _warn_of_devices(call: CallModule) -> None:
    """Warn of a call for several devices, unless XLA partitions it and TensorFlow can run it."""
    try:
        check_one_device(call)
    except ShardingError as refusal:
        warnings.warn(
            f"A file that TensorFlow cannot run on one device: {refusal}",
            UserWarning,
            stacklevel=5,
        )
