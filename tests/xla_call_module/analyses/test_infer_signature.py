"""Shapes, names and paths of a call whose node does not say them."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from xla_call_module import from_exported
from xla_call_module.analyses.infer_signature import argument_shapes, infer_signature
from xla_call_module.errors import FormatError, StructureError
from xla_call_module.stablehlo.modules import open_module, serialize_module
from xla_call_module.stablehlo.refining import guard_divisions, refine, refine_results


def undescribed(call):
    """The call as a foreign node has it."""
    strip = lambda specs, what: tuple(  # noqa: E731
        dataclasses.replace(spec, shape=None, name="", path=f"{what}[{index}]", is_zero=False)
        for index, spec in enumerate(specs)
    )
    operands, results = strip(call.operands, "args"), strip(call.results, "result")
    return dataclasses.replace(
        call, name="node", args=operands, results=results, exported=b"",
        kept=tuple(range(len(operands))),
    )  # fmt: skip


def export(function, *shapes, platforms=("cpu",)):
    scope = jax.export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(s, scope=scope), np.float32) for s in shapes
    ]
    return from_exported(jax.export.export(jax.jit(function), platforms=platforms)(*specs))


def export_vjp(function, shape):
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.float32)
    return from_exported(jax.export.export(jax.jit(function))(spec).vjp())


FUNCTIONS = {
    "static": (lambda x: x * 2, ("3, 2",)),
    "batch": (lambda x: (x.sum(axis=1), x.sum()), ("b, 3",)),
    "related": (lambda x, y: jnp.concatenate([x, y]), ("b", "2*b + 1")),
    "product": (lambda x: x.reshape(-1), ("b, t, 3",)),
    "several": (
        lambda x, y: (jnp.zeros((2 * x.shape[0] * y.shape[0] + 3 * x.shape[0] + 7,)), y[1:]),
        ("b, 2", "n"),
    ),
    "three": (lambda x: x.reshape((x.shape[0] * x.shape[1], -1)), ("a, b, c",)),
    "constant": (lambda x: jnp.ones((4,)), ("b, 3",)),
    "composite": (lambda x: jax.lax.erf(x), ("b",)),
}


@pytest.mark.parametrize("platforms", [("cpu",), ("cuda", "cpu")])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_the_exported_says(name, platforms):
    function, shapes = FUNCTIONS[name]
    call = export(function, *shapes, platforms=platforms)
    found = infer_signature(undescribed(call))
    assert [str(spec) for spec in found.args] == [str(spec) for spec in call.operands]
    assert [str(spec) for spec in found.results] == [str(spec) for spec in call.results]
    assert [spec.name for spec in found.args] == [spec.name for spec in call.operands]
    assert [spec.is_zero for spec in found.results] == [spec.is_zero for spec in call.results]
    assert call.results[0].is_zero == (name == "several")
    assert found.name == "_lambda"


def test_paths_of_results():
    call = export(lambda x: {"y": [x, x + 1]}, "b")
    assert [spec.path for spec in infer_signature(undescribed(call)).results] == [
        "result['y'][0]",
        "result['y'][1]",
    ]


def test_without_assertions_each_dimension_is_its_own():
    call = export(lambda x, y: (x[:, 0], y), "b, 3", "b, 2")
    bare = undescribed(call)
    refined = dataclasses.replace(bare, module=_without_assertions(bare))
    assert [str(spec) for spec in infer_signature(refined).args] == [
        "float32[d0_0,3]",
        "float32[d1_0,2]",
    ]
    assert [str(s) for s in infer_signature(refined).results] == [
        "float32[d0_0]",
        "float32[d1_0,2]",
    ]


def _without_assertions(call):
    from xla_call_module.stablehlo.modules import open_module, serialize_module, walk

    with open_module(call.module) as module:
        for operation in list(walk(module)):
            attributes = operation.attributes
            if "call_target_name" in attributes and "shape_assertion" in str(
                attributes["call_target_name"]
            ):
                operation.erase()
        return serialize_module(module, call.stablehlo_version)


def test_a_shape_that_is_no_polynomial():
    call = export(lambda x: x.reshape((-1, 2)).sum(axis=1), "2*b")
    assert str(infer_signature(undescribed(call)).results[0]) == "float32[b]"
    call = export(lambda x: jnp.zeros(x.shape[0] // 5), "b")
    with pytest.raises(StructureError, match=r"at b = 1 is not a polynomial.*through TensorFlow"):
        infer_signature(undescribed(call))


@pytest.mark.parametrize(
    "function", [lambda x: x[:10], lambda x: jnp.zeros((x.shape[0] % 2,)), lambda x: x[::2]]
)
def test_slices_are_no_polynomials(function):
    with pytest.raises(StructureError, match="is not a polynomial"):
        infer_signature(undescribed(export(function, "b")))


ODD = {
    "first": (lambda x: x[:10], "min(b, 10)"),
    "parity": (lambda x: jnp.zeros((x.shape[0] % 2,)) + x[0], "mod(b, 2)"),
    "every second": (lambda x: x[::2], "floordiv(b + 1, 2)"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_the_gradient_says_of_a_result(name):
    function, dim = ODD[name]
    call = undescribed(export(function, "b"))
    vjp = undescribed(export_vjp(function, "b"))
    _, cotangent = argument_shapes(vjp)
    assert cotangent == (dim,)
    (result,) = infer_signature(call, {0: cotangent}).results
    assert result.shape == (dim,)


@pytest.mark.parametrize("told", ["min(b, 11)", "floordiv(b, 2)", "c", "b b", "min(b", ""])
def test_what_is_told_must_be_what_the_module_says(told):
    call = undescribed(export(lambda x: x[:10], "b"))
    with pytest.raises(
        StructureError, match=r"is not a polynomial.* no gradient in the file has it"
    ):
        infer_signature(call, {0: (told,)})
    with pytest.raises(StructureError, match="is not a polynomial"):
        infer_signature(call, {0: ("min(b, 10)", 1)})


def test_a_polynomial_is_what_it_is_whatever_is_told():
    call = undescribed(export(lambda x: x * 2, "b"))
    assert infer_signature(call, {0: ("min(b, 10)",)}).results[0].shape == ("b",)


def test_what_is_told_says_more_than_the_sizes_that_are_tried():
    call = undescribed(export(lambda x: x[:4000], "b"))
    assert infer_signature(call, {0: ("min(b, 4000)",)}).results[0].shape == ("min(b, 4000)",)


def test_a_node_of_another_module():
    call = undescribed(export(lambda x: x, "3"))
    wrong = dataclasses.replace(call, args=call.args * 2, kept=(0, 1))
    for function in (infer_signature, argument_shapes):
        with pytest.raises(FormatError, match="has 2 inputs and 1 results; its module takes 1"):
            function(wrong)


def test_refining():
    call = export(lambda x, y: (jnp.sin(x), y.sum()), "b, 3", "2*b", platforms=("cpu", "cuda"))
    static = refine(call, [(2, 3), (5,)])
    assert [str(spec) for spec in (*static.args, *static.results)] == [
        "float32[2,3]", "float32[5]", "float32[2,3]", "float32[]",
    ]  # fmt: skip
    assert [found.shape for found in refine_results(call, [(2, 3), (4,)])] == [(2, 3), ()]
    with pytest.raises(
        StructureError, match=r"cannot be called with the shapes \[\(2, 3\), \(5,\)"
    ):
        refine_results(call, [(2, 3), (5,)], check_assertions=True)


DIVIDING = {
    "quotient": lambda x: (x, jnp.int32(7) // jnp.int32(x.shape[0] - 24)),
    "remainder": lambda x: (x, jax.lax.rem(jnp.int32(7), jnp.int32(x.shape[0] - 72))),
    "vector": lambda x: (x, jax.lax.div(jnp.arange(3), jnp.full(3, x.shape[0] - 1))),
}


@pytest.mark.parametrize("name", DIVIDING)
def test_a_size_that_makes_a_divisor_zero_is_tried(name):
    """Which would end the process, where the folding of constants divides."""
    call = undescribed(export(DIVIDING[name], "b"))
    assert str(infer_signature(call).results[0]) == "float32[b]"


def test_guarded_divisions_are_those_of_xla():
    def function(n, d):
        return (jax.lax.div(n, d), jax.lax.rem(n, d)), jax.lax.div(
            *(v.astype("uint8") for v in (n, d))
        )

    n, d = np.array([7, -7, 5, -(2**31)], np.int32), np.array([0, 0, 2, -1], np.int32)
    exported = jax.export.export(jax.jit(function))(n, d)
    call = from_exported(exported)
    with open_module(call.module) as module:
        guard_divisions(module)
        artifact = serialize_module(module, call.stablehlo_version)
    guarded = dataclasses.replace(exported, mlir_module_serialized=artifact)
    assert guarded.mlir_module().count("stablehlo.select") == 6
    jax.tree.map(np.testing.assert_array_equal, guarded.call(n, d), jax.jit(function)(n, d))
    assert guarded.call(n, d)[0][0].tolist()[:2] == [-1, -1]
