"""Functions that call functions: random graphs of calls, and those that never end."""

from __future__ import annotations

import dataclasses
import time

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

import bridge
from bridge.loading.exported_from_call import exported_from_call
from xla_call_module import from_exported
from xla_call_module._jax import ir, make_ir_context
from xla_call_module.analyses.dependence import dependencies
from xla_call_module.errors import StructureError
from xla_call_module.exported import to_exported
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.stablehlo.call_graph import MAX_DEPTH
from xla_call_module.stablehlo.inlining import inline_calls
from xla_call_module.stablehlo.modules import open_module, serialize_module, walk

_TYPE = "tensor<f32>"
_LIMIT = 10.0  # seconds


@st.composite
def _graphs(draw):
    """For each function the numbers of those that it calls; 0 is `main`."""
    count = draw(st.integers(1, 6))
    numbers = st.lists(st.integers(0, count - 1), max_size=3)
    return draw(st.lists(numbers, min_size=count, max_size=count))


def _artifact(graph):
    """A module in which each function adds 1 and then does what those do that it calls."""
    functions = []
    for number, callees in enumerate(graph):
        lines = ["%c = stablehlo.constant dense<1.0> : tensor<f32>",
                 "%0 = stablehlo.add %a, %c : tensor<f32>"]  # fmt: skip
        lines += [
            f"%{place + 1} = func.call @{_name(other)}(%{place}) : ({_TYPE}) -> {_TYPE}"
            for place, other in enumerate(callees)
        ]
        functions.append(
            f"func.func {'private' if number else 'public'} @{_name(number)}(%a: {_TYPE}) -> "
            f"{_TYPE} {{ {chr(10).join(lines)}\n return %{len(callees)} : {_TYPE} }}"
        )
    with make_ir_context():
        return serialize_module(ir.Module.parse("\n".join(functions)), (1, 10, 0))


def _name(number):
    return f"f{number}" if number else "main"


def _exported(artifact):
    made = export.export(jax.jit(lambda x: (x,)))(np.float32(0))
    return dataclasses.replace(made, mlir_module_serialized=artifact)


def _sums(graph, number, path=()):
    """Return how often 1 is added, or None where a function calls itself."""
    if number in path:
        return None
    counts = [_sums(graph, other, (*path, number)) for other in graph[number]]
    return None if None in counts else 1 + sum(counts)


@settings(max_examples=60, deadline=None)
@given(graph=_graphs())
def test_random_calls_are_written_out_or_refused(graph):
    sums = [_sums(graph, number) for number in range(len(graph))]
    exported = _exported(_artifact(graph))
    if None in sums:
        for use in _USES.values():
            with pytest.raises(StructureError, match=r"calls itself: \w+ calls .*To do: "):
                use(exported)
        return
    call = from_exported(exported)
    assert dependencies(call) == (frozenset({0}),)
    with open_module(call.module) as module:
        inline_calls(module)
        names = [operation.name for operation in walk(module)]
    assert names.count("stablehlo.add") == sums[0]
    assert "func.call" not in names
    model = bridge.to_onnx(exported)
    assert [node.op_type for node in model.graph.node].count("Add") <= sums[0]
    assert float(to_exported(call).call(np.float32(2))[0]) == 2 + sums[0]


def _inline(exported):
    with open_module(exported.mlir_module_serialized) as module:
        inline_calls(module)


def _carried(exported):
    """A call that has been read from a file, as it were."""
    good = from_exported(_exported(_artifact([[]])))
    return dataclasses.replace(good, module=exported.mlir_module_serialized)


_USES = {
    "from_exported": from_exported,
    "inline_calls": _inline,
    "to_onnx": bridge.to_onnx,
    "exported_from_call": lambda exported: exported_from_call(
        dataclasses.replace(_carried(exported), exported=b"")
    ),
    "to_exported": lambda exported: to_exported(_carried(exported)),
    "dependencies": lambda exported: dependencies(_carried(exported)),
    "retarget": lambda exported: bridge.retarget(exported, tensorflow="2.18"),
}


@pytest.mark.parametrize("use", _USES.values(), ids=_USES.keys())
@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([[1], [1]], "f1 calls f1"),
        ([[1], [2], [3], [1]], "f1 calls f2 calls f3 calls f1"),
        ([[n + 1] * 2 for n in range(40)] + [[]], "expected at most"),
        ([[n + 1] for n in range(3 * MAX_DEPTH)] + [[]], f"more than {MAX_DEPTH} deep"),
    ],
    ids=["itself", "circle", "doubling", "deep"],
)
def test_what_never_ends_is_refused_at_once(use, graph, message):
    exported = _exported(_artifact(graph))
    begin = time.monotonic()
    with pytest.raises(StructureError, match=message):
        use(exported)
    assert time.monotonic() - begin < _LIMIT


def test_many_calls_of_one_function():
    """So a network of a thousand equal layers may look."""
    exported = _exported(_artifact([[1] * 1000, [2] * 3, []]))
    assert float(to_exported(from_exported(exported)).call(np.float32(0))[0]) == 4001


def test_numbers_that_follow_from_numbers():
    """Each case takes the one before twice, on the way to the index of the platform."""
    lines = ["%c0 = stablehlo.constant dense<0> : tensor<i32>",
             "%n0 = stablehlo.add %i, %c0 : tensor<i32>"]  # fmt: skip
    lines[1] = '%n0 = "stablehlo.case"(%i) ({ stablehlo.return %i : tensor<i32> }, '
    lines[1] += "{ stablehlo.return %c0 : tensor<i32> }) : (tensor<i32>) -> tensor<i32>"
    for n in range(60):
        branch = f"{{ stablehlo.return %n{n} : tensor<i32> }}"
        lines.append(
            f'%n{n + 1} = "stablehlo.case"(%n{n}) ({branch}, {branch}) : '
            "(tensor<i32>) -> tensor<i32>"
        )
    lines.append("%r = stablehlo.convert %n60 : (tensor<i32>) -> tensor<f32>")
    text = (
        "func.func public @main(%i: tensor<i32> {jax.global_constant = \"_platform_index\"}, "
        f"%a: {_TYPE}) -> {_TYPE} {{ {chr(10).join(lines)}\n return %r : {_TYPE} }}"
    )  # fmt: skip
    with make_ir_context():
        artifact = serialize_module(ir.Module.parse(text), (1, 10, 0))
    made = export.export(jax.jit(lambda x: (x,)), platforms=["cpu", "tpu"])(np.float32(0))
    call = from_exported(dataclasses.replace(made, mlir_module_serialized=artifact))
    begin = time.monotonic()
    assert run_passes(call, [select_platforms(["cpu"])]).platforms == ("cpu",)
    assert time.monotonic() - begin < _LIMIT
