"""Whole models, forward and backward: JAX, ONNX Runtime and ONNX's evaluator agree."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import export

import bridge
from tests.bridge import networks
from tests.bridge.onnx.checking import check_whole, evaluate, run
from tests.operations.optimizers import differences

_MODELS = {
    "mlp": networks.mlp,
    "resnet": lambda: networks.resnet((1, 1), width=4, size=16),
    "mobilenet": networks.mobilenet,
    "unet": networks.unet,
    "vit": networks.vit,
    "gpt": networks.gpt,
    "lstm": networks.lstm,
    "bigru": networks.bigru,
    "solver": networks.solver,
    "kalman": networks.kalman,
}
_BATCHES = (1, 3)


@pytest.fixture(scope="module", params=_MODELS)
def case(request):
    model = _MODELS[request.param]()
    return model, _exported(model)


def _exported(model):
    scope = export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), array.dtype)
        for text, array in zip(model.shapes, model.inputs(1), strict=True)
    ]
    return export.export(jax.jit(model.function))(model.params, *specs)


def _assert_near(found, expected, tolerance):
    """Numbers may differ by the tolerance times the greatest of them."""
    expected = [np.asarray(array) for array in jax.tree.leaves(expected)]
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        scale = np.abs(other).max(initial=0.0)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * float(scale))


def test_a_model_computes_what_jax_does(case):
    model, exported = case
    proto = bridge.to_onnx(exported, params=model.params)
    check_whole(proto)
    assert differences(proto, model.inputs(2)) == []
    for batch in _BATCHES:
        inputs = model.inputs(batch)
        expected = jax.jit(model.function)(model.params, *inputs)
        _assert_near(run(proto, inputs), expected, 1e-5)
        _assert_near(evaluate(proto, inputs), expected, 1e-5)


def test_the_gradients_of_a_model(case):
    model, exported = case
    proto = bridge.to_onnx(exported.vjp())
    check_whole(proto)
    assert differences(proto, _pulled_back(model, 2)[0]) == []
    for batch in _BATCHES:
        given, expected = _pulled_back(model, batch)
        _assert_near(run(proto, given), expected, 1e-4)
        _assert_near(evaluate(proto, given), expected, 1e-4)


def _pulled_back(model, batch):
    """Arguments and cotangents, and what JAX makes of them."""
    arguments = (model.params, *model.inputs(batch))

    @jax.jit
    def pull(arguments, cotangents):
        return jax.vjp(model.function, *arguments)[1](cotangents)

    draw = networks.Draw()
    results = jax.eval_shape(model.function, *arguments)
    cotangents = jax.tree.map(lambda result: draw.numbers(*result.shape), results)
    expected = jax.tree.leaves(pull(arguments, cotangents))
    return jax.tree.leaves((arguments, cotangents)), [_without_float0(x) for x in expected]


def _without_float0(array):
    """JAX's gradients of integers are of a dtype that ONNX has as bool."""
    return np.zeros(array.shape, bool) if array.dtype == jax.dtypes.float0 else array
