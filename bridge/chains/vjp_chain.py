"""`build_chain`: an `Exported` and its VJPs as the calls of a file."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from jax import export

from bridge.chains.exported_order import vjp_of
from bridge.chains.orders import NOT_DIFFERENTIABLE, ChainOptions, check_order
from bridge.chains.plain_operations import lower_orders
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module.analyses.several_devices import check_one_device
from xla_call_module.call import MADE_OF_OPERATIONS, CallModule
from xla_call_module.errors import ShardingError, VersionError
from xla_call_module.exported import (
    argument_specs,
    from_exported,
    result_specs,
    strip_exported,
    with_flat_trees,
)
from xla_call_module.passes.module_pass import UnparsedCall
from xla_call_module.passes.pipeline import Artifact, Prepared, prepare, prepare_chain
from xla_call_module.tracebacks import warn
from xla_call_module.versions import parse_release


def build_chain(
    exported: export.Exported,
    options: ChainOptions,
    *,
    gradient_order: int,
    tensorflow: str | None = None,
    known: Collection[str] = (),
    keeps_trees: bool = True,
) -> tuple[Prepared, tuple[TensorFlowGraph, ...]]:
    """Return the call, its VJP and so on, as the wanted TensorFlow reads them, and their graphs.

    These are of TensorFlow's own operations, and there are none unless the options ask for them.
    """
    check_order(gradient_order)
    release = None if tensorflow is None else parse_release(tensorflow)
    if options.plain_operations:
        release = None  # whichever reads the module, it does not run it
    target = dataclasses.replace(options.target(release, Artifact.FOR_RELEASE), for_file=True)
    # Making VJPs is what takes the most memory, so that no module is parsed before.
    orders, missing = _differentiated(exported, gradient_order, residuals=options.residuals)
    describe = partial(_described, keeps_trees=keeps_trees)
    to_call = partial(_to_unparsed, options=options, describe=describe)
    # What follows an order without a VJP of its own is made of its operations.
    own = next((n for n, order in enumerate(orders) if not order.has_vjp()), len(orders))
    changes = [MADE_OF_OPERATIONS if n > own else "" for n in range(len(orders))]
    passes: tuple[CallModule, ...] = ()
    if options.residuals and len(orders) > 1:
        from bridge.chains.forward_and_backward import split_at_residuals

        primal, vjp = orders[:2]
        forward, backward = split_at_residuals(primal, vjp, options, describe=describe)
        made = (*filter(None, changes[1:2]), *backward.changes)
        passes = forward, dataclasses.replace(backward, changes=made)
        del orders[:2]
    rest = (to_call(orders.pop(0), change) for change in changes[len(passes) :])
    calls: Iterable[CallModule | UnparsedCall] = itertools.chain(passes, rest)
    if options.plain_operations:
        calls = tuple(calls)
    try:
        prepared = prepare_chain(calls, target, known=known)
    except VersionError:
        # Gradients have no source lines in a file; the message has them.
        for order in _differentiated(exported, gradient_order)[0]:
            prepare(to_call(order), target)
        raise
    for reason in (missing, _several_devices(prepared.calls[0])):
        if reason:
            warn(reason)
    if not options.plain_operations:
        return prepared, ()
    return prepared, lower_orders(calls, prepared, options, known=known)


def _differentiated(
    exported: export.Exported, gradient_order: int, *, residuals: bool = False
) -> tuple[list[export.Exported], str]:
    """Return the function, its VJP and so on, and why there are fewer than were asked for.

    The reason is empty where nobody could expect more. With residuals the VJP returns the results,
    too, where this process has traced the function.
    """
    orders = [exported]
    while len(orders) <= gradient_order and _is_differentiable(last := orders[-1]):
        number = len(orders)
        try:
            orders.append(_first_vjp(last) if residuals and number == 1 else vjp_of(last))
            continue
        except NOT_DIFFERENTIABLE as error:
            reason = f"JAX cannot differentiate it in reverse mode: {error}"
            if not last.has_vjp():
                if number == 1:
                    break
                reason = f"it was serialized with vjp_order={number - 1}, and {reason}"
        missing = f"with gradients up to order {number - 1}" if number > 1 else "without a gradient"
        return orders, f"{last.fun_name} is saved {missing}, because {reason}"
    return orders, ""


def _first_vjp(exported: export.Exported) -> export.Exported:
    from bridge.chains.forward_and_backward import export_both  # imports what most do without

    return export_both(exported) or vjp_of(exported)


def _is_differentiable(exported: export.Exported) -> bool:
    return all(
        any(spec.dtype.differentiable for spec in specs)
        for specs in (argument_specs(exported), result_specs(exported))
    )


def _to_unparsed(
    exported: export.Exported,
    change: str = "",
    *,
    options: ChainOptions,
    describe: Callable[[export.Exported], bytes],
) -> UnparsedCall:
    def make(module: Any) -> CallModule:
        checks = options.disabled_checks
        call = from_exported(exported, disabled_checks=checks, carried=False, module=module)
        changes = (*call.changes, change) if change else call.changes
        return dataclasses.replace(call, exported=describe(exported), changes=changes)

    return UnparsedCall(exported.mlir_module_serialized, make)


def _described(exported: export.Exported, *, keeps_trees: bool) -> bytes:
    """Return what a call carries of the `Exported` that it is made of."""
    if keeps_trees:
        return strip_exported(exported, allow_flat_trees=False)
    return strip_exported(with_flat_trees(exported), allow_flat_trees=True)


def _several_devices(call: CallModule) -> str:
    """Return why one device cannot run a call; empty where XLA partitions it, or it can."""
    try:
        check_one_device(call)
    except ShardingError as refusal:
        return f"A file that TensorFlow cannot run on one device: {refusal}"
    return ""
