"""The assertions of a call, apart from it: the module and the scalars agree with each other."""

from __future__ import annotations

import dataclasses
import itertools
import operator
import re

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from xla_call_module.checks import SHAPE_ASSERTIONS
from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.passes.asserting import to_shape_check
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.pipeline import retarget
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.shape_checks import OperandSize, ScalarConstant
from xla_call_module.stablehlo.modules import open_module
from xla_call_module.stablehlo.refining import refine_results


def _truncating(function):
    return lambda x, y: int(function(abs(x), abs(y)) * (1 if (x < 0) == (y < 0) else -1))


PYTHON = {
    "AddV2": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Neg": operator.neg,
    "Equal": operator.eq, "NotEqual": operator.ne, "Less": operator.lt, "LessEqual": operator.le,
    "Greater": operator.gt, "GreaterEqual": operator.ge, "Maximum": max, "Minimum": min,
    "LogicalAnd": lambda x, y: x and y, "LogicalOr": lambda x, y: x or y,
    "LogicalNot": operator.not_, "Cast": lambda x: x,
    "SelectV2": lambda condition, x, y: x if condition else y,
    "Sign": lambda x: (x > 0) - (x < 0), "TruncateDiv": _truncating(operator.floordiv),
    "TruncateMod": lambda x, y: x - y * _truncating(operator.floordiv)(x, y),
}  # fmt: skip


def _holds(check, shapes):
    values = []
    for step in check.steps:
        if isinstance(step, OperandSize):
            values.append(shapes[step.operand][step.axis])
        elif isinstance(step, ScalarConstant):
            values.append(step.value)
        else:
            values.append(PYTHON[step.op](*(values[i] for i in step.inputs)))
    return bool(values[-1])


def _passes(call, shapes):
    try:
        refine_results(call, shapes, check_assertions=True)
    except StructureError:
        return False
    return True


def _call(function, *shapes, constraints=(), **options):
    scope = export.SymbolicScope(constraints)
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), "float32")
        for shape in shapes
    ]
    return from_exported(export.export(jax.jit(function), **options)(*specs))


CASES = {
    "equal": (["b", "b"], []),
    "linear": (["b", "2*b + 1"], []),
    "a product": (["a", "b", "a*b"], []),
    "a quotient": (["b", "floordiv(b + 1, 3)"], []),
    "a remainder": (["b", "mod(b, 3) + 1"], []),
    "the larger": (["b", "max(b, 3)"], []),
    "a bound": (["b"], ["b >= 3", "b <= 5"]),
    "a multiple": (["b"], ["mod(b, 2) == 0"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_scalars_say_what_the_module_asserts(case):
    specs, constraints = CASES[case]
    # Not for zero: the module is made of something that sizes of zero make impossible.
    call = _call(lambda *xs: [x[1:] for x in xs], *specs, constraints=constraints)
    check = to_shape_check(call)
    verdicts = {}
    for sizes in itertools.product(range(7), repeat=len(specs)):
        shapes = [(size,) for size in sizes]
        verdicts[sizes] = _holds(check, shapes)
        if len(specs) < 3 or sum(sizes) % 5 == 0:
            assert verdicts[sizes] == _passes(check.call, shapes), sizes
    assert set(verdicts.values()) == {True, False}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (12 // x.shape[0], x),
        lambda x: (jnp.arange(3) % (x.shape[0] - 8), x),
    ],
    ids=["by b", "by b - 8"],
)
def test_what_divides_by_a_size_is_not_tried_at_zero(function):
    # The process would end there: the compiler folds the quotient.
    check = to_shape_check(_call(function, "b"))
    assert [step.op for step in check.steps[2:]] == ["GreaterEqual"]


def test_what_divides_by_a_number_takes_zero():
    call = _call(lambda x: (x.shape[0] // 3, x.astype("int32") % 5), "b")
    assert to_shape_check(call) is None


@pytest.mark.parametrize("platforms", [["cpu"], ["tpu", "cpu"]])
def test_it_is_a_call_like_others(platforms):
    call = _call(jnp.add, "b, 3", "b, 3", platforms=platforms)
    check = to_shape_check(retarget(call, "2.14"), {0: "image", 1: "mask"})
    assert (check.kept, check.call.results, check.call.platforms) == ((0, 1), (), tuple(platforms))
    assert to_shape_check(run_passes(call, [select_platforms(["cpu"])])).call.platforms == ("cpu",)
    assert check.call.stablehlo_version <= (0, 14, 8)
    assert len(check.call.module) < len(call.module) + 200
    with pytest.raises(StructureError, match=r"By name: args\[0\] is image, args\[1\] is mask\."):
        refine_results(check.call, [(2, 3), (4, 3)], check_assertions=True)


def test_there_is_none_where_the_module_says_it():
    assert to_shape_check(_call(jnp.sin, "b, 3")) is None
    assert to_shape_check(_call(lambda x: x[1:], "b")) is not None
    assert to_shape_check(_call(jnp.sin, "2, 3")) is None
    off = [export.DisabledSafetyCheck.custom_call("x")]
    assert to_shape_check(_call(jnp.add, "b", "b", disabled_checks=off)) is not None
    both = _call(jnp.add, "b", "b")
    assert to_shape_check(both) is not None
    assert to_shape_check(dataclasses.replace(both, disabled_checks=(SHAPE_ASSERTIONS,))) is None


@pytest.mark.parametrize("tensorflow", [None, "2.16"])
def test_shardings_are_left_out(tensorflow):
    """Where nothing is computed, nothing is split; one device runs it."""
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    (size,) = export.symbolic_shape("8*b")
    spec = jax.ShapeDtypeStruct((size,), "float32")
    split = jax.jit(jnp.add, in_shardings=(rows, rows), out_shardings=rows)
    call = from_exported(export.export(split, platforms=["cpu", "tpu"])(spec, spec))
    check = to_shape_check(retarget(call, tensorflow) if tensorflow else call)
    with open_module(check.call.module) as module:
        text = str(module)
    assert not re.search("sharding|sdy", text)
    assert "mhlo.num_partitions = 1 " in text
    assert (check.call.nr_devices, check.call.uses_shardy) == (1, False)
    assert _passes(check.call, [(8,), (8,)])
    assert not _passes(check.call, [(8,), (16,)])
