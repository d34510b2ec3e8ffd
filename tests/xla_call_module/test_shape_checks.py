"""The shape checks of a graph: fixed sizes that are dynamic where the arguments come from."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax import export

from xla_call_module.dimensions import linear_form
from xla_call_module.exported import from_exported
from xla_call_module.shape_checks import SizeAssertion, open_assertions


def _call(*shapes):
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), "float32")
        for shape in shapes
    ]
    return from_exported(export.export(jax.jit(lambda *xs: sum(map(jnp.sum, xs))))(*specs))


@pytest.mark.parametrize(
    ("dim", "form"),
    [
        ("b", ("b", 1, 0)),
        ("2*b", ("b", 2, 0)),
        ("b + 3", ("b", 1, 3)),
        ("3 - 2*b", ("b", -2, 3)),
        ("floordiv(b, 2)", None),
        ("b*b", None),
        ("a + b", None),
        ("4", None),
    ],
)
def test_linear_forms(dim, form):
    assert linear_form(dim) == form


@pytest.mark.parametrize(
    ("shapes", "sizes", "assertions"),
    [
        (["b, 3"], [(None, 3)], []),
        (["b, 3"], [(2, None)], [SizeAssertion(0, 1, 3)]),
        (["2, 3"], [(None, None)], [SizeAssertion(0, 0, 2), SizeAssertion(0, 1, 3)]),
        (["b, 3"], [None], [SizeAssertion(0, None, 2)]),
        (["b", "3"], [None, (None,)], [SizeAssertion(0, None, 1), SizeAssertion(1, 0, 3)]),
        (["b, 0"], [(None, None)], [SizeAssertion(0, 1, 0)]),
        (["b, 2*b"], [(None, None)], []),
        (["b", "b"], [(None,), (2,)], []),
    ],
)
def test_what_is_open(shapes, sizes, assertions):
    assert open_assertions(_call(*shapes), sizes) == assertions


def test_a_node_of_another_program():
    call = _call("b", "3")
    foreign = tuple(dataclasses.replace(spec, shape=None) for spec in call.args)
    assert open_assertions(dataclasses.replace(call, args=foreign), [None, (None,)]) == []
