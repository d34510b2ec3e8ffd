"""A call of StableHLO as a graph of TensorFlow's own operations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bridge.core_ops.decompositions.decomposition import decompose
from bridge.core_ops.graph_walk import walk_main
from bridge.graphs.values import Value
from bridge.tf_operations.function_writer import FunctionWriter
from bridge.tf_operations.linear_algebra import QR_CALLS, PackedRead
from bridge.tf_operations.narrow_sizes import narrow_sizes
from bridge.tf_operations.operation_graph import Graph
from bridge.tf_operations.operation_table import ASSERTIONS, DECOMPOSITIONS, TARGET
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import linear_form, parse_size
from xla_call_module.errors import StructureError
from xla_call_module.passes.asserting import to_assertions, to_shape_check
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import open_call, run_on_module, run_passes
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.size_polynomials import Measured, Shape, of_atom
from xla_call_module.stablehlo.mhlo import compose_custom_calls
from xla_call_module.stablehlo.modules import walk

_CPU = "cpu"


def lower_call(
    call: CallModule,
    *,
    shape_assertions: bool = True,
    name_prefix: str = "",
    for_converters: bool = False,
    exact: bool = True,
) -> TensorFlowGraph:
    """Return the computation of a call in TensorFlow's own operations."""
    platform = _CPU if _CPU in call.platforms else call.platforms[0]
    plain = run_passes(dataclasses.replace(call, exported=b""), [select_platforms([platform])])
    plain = decompose(plain, DECOMPOSITIONS).call
    native = frozenset(TARGET.custom_calls)
    options: Any = {
        "asserts_shapes": shape_assertions,
        "prefix": name_prefix,
        "for_converters": for_converters,
        "exact": exact,
    }
    try:
        return _lower(call, plain, native, **options)
    except PackedRead:
        return _lower(call, plain, native - QR_CALLS, **options)


def _lower(
    call: CallModule,
    plain: CallModule,
    native: frozenset[str],
    *,
    asserts_shapes: bool,
    prefix: str,
    for_converters: bool,
    exact: bool,
) -> TensorFlowGraph:
    """Return the graph of a call, whose calls of LAPACK are replaced by loops but for some."""
    outermost = Graph(for_converters=for_converters, exact=exact)
    values = {index: _argument(outermost, call.args[index]) for index in call.kept}
    arguments = [values[index] for index in plain.kept]
    graph = Graph(outer=outermost)
    if asserts_shapes:
        _assert_shapes(graph, plain, values)
    with open_call(plain) as parsed:
        module = run_on_module(parsed, [lower_linalg(native=native)]).module
        compose_custom_calls(module)
        is_wide = for_converters and _has_wide_integers(module)
        results = walk_main(graph, module, arguments, TARGET)
    for value in results:
        graph.add_result(value)
    writer = FunctionWriter(f"{prefix}{call.name}", for_converters=for_converters)
    main = writer.main(graph)
    written = TensorFlowGraph(
        main, tuple(writer.functions), for_converters=for_converters, exact=exact
    )
    return narrow_sizes(written, is_wide=is_wide) if for_converters else written


def _has_wide_integers(module: Any) -> bool:
    """Return whether a module computes integers of 64 bits."""
    results = (result.type for operation in walk(module) for result in operation.results)
    return any(str(kind).endswith(("xi64>", "<i64>")) for kind in results)


def _assert_shapes(graph: Graph, call: CallModule, arguments: Mapping[int, Value]) -> None:
    """Add the assertions of a call about the sizes of its arguments, as they are measured."""
    check = to_shape_check(call)
    if check is None and _assert_elements(graph, call, arguments):
        return
    asserted = to_assertions(call)
    if asserted is None:
        return
    assertions, taken = asserted
    values = []
    for index in taken:
        value = arguments[index]
        sizes = tuple(of_atom(Measured(value.name, axis)) for axis in range(value.rank))
        values.append(Value(value.dtype, sizes, sizes, value.name))
    with open_call(assertions) as parsed:
        walk_main(graph, parsed.module, values, ASSERTIONS)


def _assert_elements(graph: Graph, call: CallModule, arguments: Mapping[int, Value]) -> bool:
    """Assert of arguments that they have elements; return whether that is all that is asserted.

    So it is where each dimension variable is a size, or a factor of one: it is at least 1 then.
    """
    variables: dict[int, list[str]] = {}
    missing = set(call.symbols)
    for index, value in arguments.items():
        forms = [linear_form(dim) for dim in call.args[index].shape or () if isinstance(dim, str)]
        names = [form[0] for form in forms if form is not None and not form[2]]
        if missing.intersection(names) and 0 not in value.shape and len(names) == len(forms):
            variables[index] = names
            missing.difference_update(names)
    if missing:
        return False
    for index, names in variables.items():
        spec, value = call.args[index], arguments[index]
        bounds = " and ".join(f"{name} >= 1" for name in dict.fromkeys(names))
        text = (
            f"Input shapes do not match the polymorphic shapes specification: {spec.path} has the "
            f"shape ({', '.join(map(str, spec.shape or ()))}) with {bounds}, and has no elements. "
            "How many it has:"
        )
        size = graph.node("Size", [value], shape=(), dtype=np.dtype(np.int64))
        condition = graph.cast(size, np.dtype(bool))
        made = graph.node("Assert", [condition, size], shape=(), message=text)
        graph.assertions.append(made.name)
    return True


def _argument(graph: Graph, spec: TensorSpec) -> Value:
    """Return the value of an argument, from whose shape dimension variables follow."""
    name = graph.unique(spec.path)
    value = graph.add_input(name, spec.dtype.numpy, _shape_of(spec))
    for axis, dim in enumerate(spec.shape or ()):
        if isinstance(dim, str) and (form := linear_form(dim)) is not None:
            graph.define(form[0], value, axis, form[1], form[2])
    return value


def _shape_of(spec: TensorSpec) -> Shape:
    if spec.shape is None:
        raise StructureError(
            f"{spec.path} has no known rank, which a graph of operations needs. To do: export it "
            "for a shape with names for its sizes."
        )
    return tuple(map(parse_size, spec.shape))
