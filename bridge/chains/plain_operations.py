"""The orders of a chain in TensorFlow's own operations, which need no XLA."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from bridge.chains.orders import ChainOptions
from savedmodel.tensorflow_graph import GraphTensor, TensorFlowGraph
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import SHAPE_ASSERTIONS
from xla_call_module.errors import ShardingError
from xla_call_module.passes.module_pass import UnparsedCall
from xla_call_module.passes.pipeline import Artifact, Prepared, Target, prepare, prepare_chain


def lower_orders(
    calls: Iterable[CallModule | UnparsedCall],
    prepared: Prepared,
    options: ChainOptions,
    *,
    known: Collection[str] = (),
    first_order: int = 0,
) -> tuple[TensorFlowGraph, ...]:
    """Return for each order what it computes, of TensorFlow's own operations.

    They are made of the modules as they were exported, with calls of LAPACK, for which TensorFlow
    has kernels. Of what differs from platform to platform they are the branch of the CPU.
    """
    (first, *_) = prepared.calls
    _refuse_devices(first)
    target = dataclasses.replace(_one_platform(first), hoist_from=options.hoist_constants)
    values = {*known, *prepared.constants}
    plain = prepare_chain(calls, target, known=values)
    pairs = zip(plain.calls, prepared.calls, strict=True)
    asserts = first_order == 0 and prepared.shape_check is None
    return tuple(
        _lower_as(*pair, asserts=asserts and not n, options=options) for n, pair in enumerate(pairs)
    )


def lower_written(call: CallModule, *, order: int, options: ChainOptions) -> TensorFlowGraph:
    """Return what a call of a file computes, of TensorFlow's own operations."""
    _refuse_devices(call)
    return _lower(_on_one_platform(call), asserts=not order, options=options)


def _refuse_devices(call: CallModule) -> None:
    if call.nr_devices != 1:
        raise ShardingError(
            f"{call.name} is for {call.nr_devices} devices, and TensorFlow's operations are for "
            'one. To do: export it without shardings, or pass operations="xla".'
        )


def _one_platform(call: CallModule) -> Target:
    platform = "cpu" if "cpu" in call.platforms else call.platforms[0]
    return Target(artifact=Artifact.UNCHANGED, platforms=(platform,))


def _on_one_platform(call: CallModule) -> CallModule:
    (one,) = prepare(call, _one_platform(call)).calls
    return one


def _lower(call: CallModule, *, asserts: bool, options: ChainOptions) -> TensorFlowGraph:
    from bridge.tf_operations.lowering import lower_call  # which imports the rules of all of it

    opened = options.for_converters
    is_checked = asserts and not opened and SHAPE_ASSERTIONS not in call.disabled_checks
    return lower_call(call, shape_assertions=is_checked, for_converters=opened, exact=options.exact)


def _lower_as(
    call: CallModule, portable: CallModule, *, asserts: bool, options: ChainOptions
) -> TensorFlowGraph:
    """Return the graph of a call, with the arguments of another one of the same results."""
    given, wanted = _operands(call), _operands(portable)
    same = [(spec.dtype, spec.shape) for spec in call.results] == [
        (spec.dtype, spec.shape) for spec in portable.results
    ]
    if not same or not given.keys() <= wanted.keys():
        one = _on_one_platform(portable)
        return _lower(one, asserts=asserts, options=options)
    graph = _lower(call, asserts=asserts, options=options)
    taken = dict(zip(given, graph.main.arguments, strict=True))
    arguments = tuple(
        taken.get(key) or GraphTensor(f"unused_{number}", spec.dtype, spec.static_shape)
        for number, (key, spec) in enumerate(wanted.items())
    )
    return dataclasses.replace(graph, main=dataclasses.replace(graph.main, arguments=arguments))


def _operands(call: CallModule) -> dict[int | str, TensorSpec]:
    """Return what a module takes: its arguments by their indices, its constants by their keys.

    Linear algebra that is lowered brings constants of its own.
    """
    keys = call.constants
    return {keys.get(index, index): call.args[index] for index in call.kept}
