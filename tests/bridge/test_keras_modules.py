"""Modules of the frameworks that are built on JAX as Keras layers."""

from __future__ import annotations

import jax
import numpy as np
import pytest

keras = pytest.importorskip("keras")

import bridge  # noqa: E402
from bridge.keras import ExportedLayer  # noqa: E402
from xla_call_module.errors import ArgumentError, StructureError  # noqa: E402

X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)


def check(layer, expected, paths, tmp_path):
    """The values, the weights, a step of training, and the same again from a file."""
    model = keras.Sequential([keras.Input((3,)), layer])
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert [weight.path for weight in model.weights] == paths
    model.compile(keras.optimizers.SGD(0.1), keras.losses.MeanSquaredError())
    before = [np.array(keras.ops.convert_to_numpy(w)) for w in model.trainable_weights]
    model.fit(X, np.ones_like(expected), verbose=0)
    for old, new in zip(before, model.trainable_weights, strict=True):
        assert not np.array_equal(old, keras.ops.convert_to_numpy(new))
    model.save(tmp_path / "m.keras")
    read = keras.models.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(read.predict(X, verbose=0), model.predict(X, verbose=0))
    assert [w.path for w in read.trainable_weights] == [w.path for w in model.trainable_weights]


@pytest.fixture(scope="module")
def linen():
    nn = pytest.importorskip("flax.linen")

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x, *, train=False):
            return nn.BatchNorm(use_running_average=not train)(nn.Dense(2)(x))

    module = Network()
    return module, module.init(jax.random.key(0), X)


def test_linen(linen, tmp_path):
    module, variables = linen
    layer = ExportedLayer(module, params=variables, name="n")
    trained = ["BatchNorm_0/bias", "BatchNorm_0/scale", "Dense_0/bias", "Dense_0/kernel"]
    fixed = ["n/batch_stats/BatchNorm_0/mean", "n/batch_stats/BatchNorm_0/var"]
    paths = [*(f"n/params/{name}" for name in trained), *fixed]
    check(layer, module.apply(variables, X), paths, tmp_path)
    assert [weight.path for weight in layer.non_trainable_weights] == fixed


def test_the_method_of_a_linen_module_has_the_same_weights(linen):
    module, variables = linen
    layer = ExportedLayer(module.apply, params=variables, name="n")
    assert [weight.name for weight in layer.non_trainable_weights] == ["mean", "var"]
    np.testing.assert_allclose(layer(X), module.apply(variables, X), rtol=1e-5, atol=1e-6)


def test_nnx(tmp_path):
    nnx = pytest.importorskip("flax.nnx")
    module = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    check(ExportedLayer(module, name="n"), module(X), ["n/bias", "n/kernel"], tmp_path)


def test_haiku(tmp_path):
    haiku = pytest.importorskip("haiku")
    function = haiku.transform(lambda x: haiku.Linear(2)(x))
    params = function.init(jax.random.key(0), X)
    expected = function.apply(params, None, X)
    layer = ExportedLayer(function, params=params, name="n")
    check(layer, expected, ["n/linear/b", "n/linear/w"], tmp_path)


@pytest.mark.parametrize("passed", ["module", "params"])
def test_equinox(tmp_path, passed):
    equinox = pytest.importorskip("equinox")
    module = equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    layer = (
        ExportedLayer(equinox.filter_vmap(module), name="n")
        if passed == "module"
        else ExportedLayer(lambda module, x: jax.vmap(module)(x), params=module, name="n")
    )
    paths = [f"n/layers/{i}/{name}" for i in range(2) for name in ("bias", "weight")]
    check(layer, jax.vmap(module)(X), paths, tmp_path)


def test_what_is_for_functions_is_refused(linen):
    module, variables = linen
    with pytest.raises(StructureError, match="was passed with train and rng, and a layer calls"):
        ExportedLayer(module, params=variables, rng=1, train=module.apply)
    with pytest.raises(StructureError, match=r"To do: pass params=module\.init"):
        ExportedLayer(module)


def test_a_module_that_training_changes_is_refused():
    nn = pytest.importorskip("flax.linen")

    class Dropping(nn.Module):
        @nn.compact
        def __call__(self, x, training=False):
            return nn.Dropout(0.5, deterministic=not training)(nn.Dense(2)(x))

    module = Dropping()
    variables = module.init(jax.random.key(0), X)
    with pytest.raises(StructureError, match="Dropping has a parameter training, and a layer"):
        ExportedLayer(module, params=variables)


def test_a_loaded_model_is_refused(tmp_path):
    params = {"w": np.ones((3, 2), np.float32)}
    bridge.save(lambda p, x: x @ p["w"], tmp_path / "m", params=params, args="f32[b,3]")
    loaded = bridge.load(tmp_path / "m")
    with pytest.raises(ArgumentError, match=r"is a LoadedModel.*To do: pass the path"):
        ExportedLayer(loaded)
