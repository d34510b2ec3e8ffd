"""`bridge.keras.ExportedLayer` on the backend of this process.

`test_keras_on_jax.py` runs this file once more in a process whose Keras has its JAX backend.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

keras = pytest.importorskip("keras")

import bridge  # noqa: E402
from bridge.keras import ExportedLayer  # noqa: E402
from xla_call_module.errors import (  # noqa: E402
    ArgumentError,
    DtypeError,
    FormatError,
    InteropError,
    StructureError,
)

# Keras reads its own variables in this way, on its JAX backend too.
pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"
)

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


def make_params():
    rng = np.random.default_rng(1)
    kernel = rng.normal(size=(4, 3)).astype("float32")
    return {"dense": {"kernel": kernel, "bias": np.zeros(3, "float32")}, "scale": np.float32(2)}


def network(params, x):
    return jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"]) * params["scale"]


def normalize(params, state, rng, x):
    """A function for training: batch statistics and dropout."""
    y = x @ params["w"]
    mean = y.mean(0)
    kept = jax.random.bernoulli(rng, 0.5, y.shape)
    new_state = {"mean": 0.5 * state["mean"] + 0.5 * mean, "steps": state["steps"] + 1}
    return jnp.where(kept, y - mean, 0.0), new_state


def normalize_by_state(params, state, x):
    """The function for inference that belongs to it."""
    return x @ params["w"] - state["mean"]


NORMALIZING = {"w": np.eye(4, 3, dtype="float32")}
STATE = {"mean": np.zeros(3, "float32"), "steps": np.zeros((), "int32")}


def make_normalizing(**options):
    return ExportedLayer(
        normalize_by_state, params=NORMALIZING, state=STATE, train=normalize, **options
    )


@pytest.fixture(scope="module")
def exported():
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 4"), "float32")
    return jax.export.export(jax.jit(network))(make_params(), x)


def array(value):
    return keras.ops.convert_to_numpy(value)


def compiled(layers, **options):
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    optimizer = options.pop("optimizer", None) or keras.optimizers.SGD(0.01)
    model.compile(optimizer, keras.losses.MeanSquaredError(), **options)
    return model


def test_weights_are_named_by_their_paths(exported):
    layer = ExportedLayer(exported, params=make_params(), name="net")
    paths = ["net/dense/bias", "net/dense/kernel", "net/scale"]
    assert [weight.path for weight in layer.weights] == paths
    assert [weight.name for weight in layer.trainable_weights] == ["bias", "kernel", "scale"]
    np.testing.assert_array_equal(
        array(layer.params["dense"]["kernel"]), make_params()["dense"]["kernel"]
    )


def test_outputs_and_specs(exported):
    layer = ExportedLayer(exported, params=make_params())
    expected = network(make_params(), X)
    np.testing.assert_allclose(array(layer(X)), expected, rtol=1e-5)
    spec = layer(keras.Input((4,)))
    assert (spec.shape, spec.dtype) == ((None, 3), "float32")
    assert layer.compute_output_shape((None, 4)) == (None, 3)
    assert layer.compute_output_shape((5, 4)) == (5, 3)


def test_specs_are_made_without_running(exported, monkeypatch):
    layer = ExportedLayer(exported, params=make_params())
    monkeypatch.setattr(layer, "call", None)
    assert layer.compute_output_spec(keras.KerasTensor((7, 4))).shape == (7, 3)


def test_fit_evaluate_predict():
    model = compiled([ExportedLayer(network, params=make_params())])
    before = model.evaluate(X, Y, verbose=0)
    seen = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    model.fit(X, Y, epochs=3, batch_size=3, verbose=0, callbacks=[callback])
    assert seen == [0, 1, 2]
    assert model.evaluate(X, Y, verbose=0) < before
    params = jax.tree.map(array, model.layers[0].params)
    dense = model.layers[1]
    expected = network(params, X) @ array(dense.kernel) + array(dense.bias)
    np.testing.assert_allclose(model.predict(X, verbose=0), expected, rtol=1e-5, atol=1e-5)


def test_a_step_is_that_of_jax():
    optimizer = keras.optimizers.SGD(0.1, clipnorm=0.5)
    layer = ExportedLayer(network, params=make_params())
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile(optimizer, keras.losses.MeanSquaredError())
    model.fit(X, np.zeros((8, 3), "float32"), batch_size=8, verbose=0)

    gradients = jax.grad(lambda p: jnp.mean(network(p, X) ** 2))(make_params())
    clipped = jax.tree.map(lambda g: g / jnp.maximum(1.0, jnp.linalg.norm(g) / 0.5), gradients)
    expected = jax.tree.map(lambda p, g: p - 0.1 * g, make_params(), clipped)
    for found, wanted in zip(layer.weights, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(array(found), wanted, rtol=1e-4, atol=1e-6)


def test_trainable_is_a_prefix(exported):
    layer = ExportedLayer(exported, params=make_params(), trainable={"dense": False, "scale": True})
    assert [weight.name for weight in layer.trainable_weights] == ["scale"]
    layer.trainable = False
    assert layer.trainable_weights == []
    layer.trainable = True
    assert [weight.name for weight in layer.trainable_weights] == ["scale"]


def test_a_layer_is_frozen_and_thawed():
    layer = ExportedLayer(network, params=make_params(), trainable=False)
    model = compiled([layer])
    model.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(array(layer.weights[1]), make_params()["dense"]["kernel"])
    layer.trainable = True
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError())
    model.fit(X, Y, verbose=0)
    assert np.abs(array(layer.weights[1]) - make_params()["dense"]["kernel"]).max() > 0


def test_integers_are_not_trained():
    params = {"table": np.ones((5, 2), "float32"), "offset": np.int32(1)}
    layer = ExportedLayer(lambda p, i: p["table"][i + p["offset"]], params=params)
    assert [weight.name for weight in layer.trainable_weights] == ["table"]
    assert layer(keras.Input((3,), dtype="int32")).shape == (None, 3, 2)


def test_state_and_keys():
    layer = make_normalizing(rng=7)
    model = compiled([layer])
    model.fit(X, Y, batch_size=4, epochs=1, verbose=0, shuffle=False)
    state = jax.tree.map(array, layer.state)
    first, second = X[:4].mean(0)[:3], X[4:].mean(0)[:3]
    assert state["steps"] == 2
    assert np.abs(state["mean"]).max() > 0
    np.testing.assert_allclose(state["mean"], 0.25 * first + 0.5 * second, atol=0.05)
    model.evaluate(X, Y, verbose=0)
    assert array(layer.state["steps"]) == 2
    assert [weight.name for weight in layer.non_trainable_weights] == ["mean", "steps"]


def test_training_picks_the_function():
    layer = make_normalizing(rng=7)
    expected = X @ NORMALIZING["w"]
    np.testing.assert_allclose(array(layer(X, training=False)), expected, rtol=1e-5)
    np.testing.assert_allclose(array(layer(X)), expected, rtol=1e-5)
    first = array(layer(X, training=True))
    second = array(layer(X, training=True))
    dropped = (first == 0).mean()
    assert 0.2 < dropped < 0.8
    assert ((first == 0) != (second == 0)).any(), "each call has other keys"


def test_equal_seeds_draw_equal_keys():
    first, second, other = (
        array(make_normalizing(rng=rng)(X, training=True))
        for rng in (7, jax.random.key(7), jax.random.PRNGKey(8))
    )
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


def test_a_generator_of_seeds_is_taken():
    generator = keras.random.SeedGenerator(7)
    np.testing.assert_array_equal(
        array(make_normalizing(rng=generator)(X, training=True)),
        array(make_normalizing(rng=7)(X, training=True)),
    )
    assert array(generator.state)[1] == 1


def test_several_keys():
    def noise(rng, x):
        return x + jax.random.normal(rng["a"]) - jax.random.normal(rng["b"])

    layer = ExportedLayer(noise, rng={"a": 1, "b": 1})
    assert np.abs(array(layer(X)) - X).max() > 1e-3


def test_a_function_with_a_training_parameter():
    def function(params, x, *, training):
        return x * params if training else x

    layer = ExportedLayer(function, params=np.float32(3))
    np.testing.assert_array_equal(array(layer(X)), X)
    np.testing.assert_array_equal(array(layer(X, training=True)), 3 * X)
    assert [weight.name for weight in layer.weights] == ["params"]


def test_nested_inputs_and_outputs():
    def function(params, pair, scale):
        return {"sum": pair["a"] + pair["b"][0] * scale, "rest": [params["w"] * pair["b"][1]]}

    layer = ExportedLayer(function, params={"w": np.full(4, 2.0, "float32")})
    inputs = {"a": keras.Input((4,)), "b": (keras.Input((4,)), keras.Input((4,)))}
    scale = keras.Input((1,))
    outputs = layer(inputs, scale)
    assert outputs["sum"].shape == outputs["rest"][0].shape == (None, 4)
    model = keras.Model([inputs, scale], outputs)
    ones = np.ones((8, 1), "float32")
    found = model.predict([{"a": X, "b": (X, X)}, 3 * ones], verbose=0)
    np.testing.assert_allclose(found["sum"], 4 * X, rtol=1e-5)
    np.testing.assert_allclose(found["rest"][0], 2 * X, rtol=1e-5)


def test_several_inputs_may_come_in_a_list():
    layer = ExportedLayer(lambda x, y: x - y)
    np.testing.assert_allclose(array(layer([2 * X, X])), X, rtol=1e-5)
    np.testing.assert_allclose(array(layer(2 * X, X)), X, rtol=1e-5)


def test_keyword_inputs():
    layer = ExportedLayer(lambda x, *, scale: x * scale)
    np.testing.assert_allclose(array(layer(X, scale=2 * X)), 2 * X * X, rtol=1e-5)


class Subclassed(keras.Model):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.head = keras.layers.Dense(1)

    def call(self, x, training=None):
        return self.head(self.layer(x, training=training))


def test_a_subclassed_model():
    layer = make_normalizing(rng=7)
    model = Subclassed(layer)
    model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError())
    model.fit(X, Y, batch_size=4, verbose=0)
    assert array(layer.state["steps"]) == 2
    assert model.predict(X, verbose=0).shape == (8, 1)


def test_a_layer_that_is_called_twice_has_its_weights_once():
    layer = ExportedLayer(lambda params, x: jnp.tanh(x @ params), params=np.eye(4, dtype="float32"))
    model = compiled([layer, layer])
    assert len(model.weights) == 3
    model.fit(X, Y, verbose=0)
    kernel = array(layer.params)
    expected = np.tanh(np.tanh(X @ kernel) @ kernel)
    np.testing.assert_allclose(array(layer(layer(X))), expected, rtol=1e-5, atol=1e-6)


def test_layers_share_the_variables_of_one():
    first = ExportedLayer(lambda params, x: x @ params["w"], params={"w": np.eye(4, dtype="f4")})
    second = ExportedLayer(lambda params, x: x @ params["w"].T, params=first.params)
    assert second.params["w"] is first.params["w"]
    model = compiled([first, second])
    assert len(model.trainable_weights) == 3
    model.fit(X, Y, verbose=0)
    assert np.abs(array(second.params["w"]) - np.eye(4)).max() > 0
    apart = ExportedLayer(lambda params, x: x @ params["w"], params={"w": array(first.params["w"])})
    assert apart.params["w"] is not first.params["w"]


def test_a_path_of_a_saved_model(exported, tmp_path):
    path = tmp_path / "model"
    trainable = {"dense": {"kernel": True, "bias": False}, "scale": True}
    bridge.save(exported, path, params=make_params(), trainable=trainable)
    layer = ExportedLayer(path)
    np.testing.assert_allclose(array(layer(X)), network(make_params(), X), rtol=1e-5)
    assert [weight.name for weight in layer.trainable_weights] == ["kernel", "scale"]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "float16"])
def test_a_function_is_exported_for_the_policy(policy):
    layer = ExportedLayer(network, params=make_params(), dtype=policy)
    output = layer(keras.Input((4,)))
    assert output.dtype == keras.dtype_policies.DTypePolicy(policy).compute_dtype
    assert {weight.dtype for weight in layer.weights} == {layer.variable_dtype}
    if policy == "mixed_bfloat16":
        model = keras.Sequential([layer, keras.layers.Dense(1, dtype="float32")])
        model.compile(keras.optimizers.SGD(0.01), keras.losses.MeanSquaredError())
        model.fit(X, Y, verbose=0)
        assert np.abs(array(layer.weights[1]) - make_params()["dense"]["kernel"]).max() > 0


def test_what_is_exported_for_other_dtypes_is_refused(exported):
    with pytest.raises(DtypeError, match="computes in bfloat16, and network was exported for"):
        ExportedLayer(exported, params=make_params(), dtype="mixed_bfloat16")


def test_masks_are_handed_on():
    tokens = keras.Input((5,), dtype="int32")
    embedded = keras.layers.Embedding(7, 4, mask_zero=True)(tokens)
    layer = ExportedLayer(lambda x: {"same": x * 2.0, "pooled": x.sum(1)})
    outputs = layer(embedded)
    assert outputs["same"]._keras_mask is not None
    assert getattr(outputs["pooled"], "_keras_mask", None) is None
    pooled = keras.layers.GlobalAveragePooling1D()(outputs["same"])
    model = keras.Model(tokens, [pooled, keras.layers.GlobalAveragePooling1D()(embedded)])
    found, plain = model.predict(np.array([[1, 2, 0, 0, 0]], "int32"), verbose=0)
    np.testing.assert_allclose(found, 2 * plain, rtol=1e-5)


def test_a_function_gets_the_mask_that_is_passed():
    def masked(x, mask=None):
        return x if mask is None else x * mask[..., None]

    tokens = keras.Input((5,), dtype="int32")
    embedding = keras.layers.Embedding(7, 4, mask_zero=True)
    passed = ExportedLayer(masked)(embedding(tokens), mask=embedding.compute_mask(tokens))
    model = keras.Model(tokens, [passed, embedding(tokens)])
    found, plain = model.predict(np.array([[1, 2, 0, 0, 0]], "int32"), verbose=0)
    np.testing.assert_array_equal(found[:, :2], plain[:, :2])
    assert not found[:, 2:].any()
    with pytest.raises(StructureError, match=r"has a mask, and masked takes one.*To do: pass it"):
        ExportedLayer(masked)(embedding(tokens))


def test_a_mask_that_a_function_needs_is_passed():
    def masked(x, mask):
        return x * mask[..., None]

    tokens = keras.Input((5,), dtype="int32")
    embedding = keras.layers.Embedding(7, 4, mask_zero=True)
    with pytest.raises(StructureError, match=r"takes \(x, mask\).*To do: pass it"):
        ExportedLayer(masked)(embedding(tokens))
    passed = ExportedLayer(masked)(embedding(tokens), mask=embedding.compute_mask(tokens))
    found = keras.Model(tokens, passed).predict(np.array([[1, 2, 0, 0, 0]], "int32"), verbose=0)
    assert found[:, :2].any()
    assert not found[:, 2:].any()


def test_dtypes_without_a_name_in_hdf5(tmp_path):
    layer = ExportedLayer(
        lambda p, x: x * p["narrow"].astype("float32") + p["half"].astype("float32"),
        params={"narrow": np.full(4, 1.5, "float8_e4m3fn"), "half": np.full(4, 2.5, "bfloat16")},
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(X, verbose=0), X * 1.5 + 2.5)


@pytest.mark.parametrize("seed", ["a", 1.5, {"a": 1, "b": "c"}])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(ArgumentError, match="expected an integer as a seed, a PRNG key"):
        ExportedLayer(lambda key, x: x, rng=seed)


def test_a_clone_begins_again():
    layer = ExportedLayer(network, params=make_params())
    model = compiled([layer])
    model.fit(X, Y, verbose=0)
    clone = keras.models.clone_model(model)
    kernel = clone.layers[0].params["dense"]["kernel"]
    np.testing.assert_array_equal(array(kernel), make_params()["dense"]["kernel"])
    clone.set_weights(model.get_weights())
    np.testing.assert_allclose(clone.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)


MISUSES = {
    "no function": (lambda: ExportedLayer(3), ArgumentError, "is a int; expected"),
    "other params": (
        lambda: ExportedLayer(network, params={"w": np.ones(3)})(X), KeyError, "dense",
    ),
    "a wrong prefix": (
        lambda: ExportedLayer(network, params=make_params(), trainable={"dence": True}),
        StructureError, "trainable is not a prefix",
    ),
    "no pair": (
        lambda: ExportedLayer(lambda s, x: x, state=STATE)(X), StructureError,
        "returns .*; expected a function of state and the inputs that returns",
    ),
    "no key": (
        lambda: ExportedLayer(jax.export.export(jax.jit(jnp.sin))(X), rng=1), StructureError,
        "takes no PRNG key after rng",
    ),
    "integers": (
        lambda: ExportedLayer(jax.export.export(jax.jit(jnp.sin))(X))(X.astype("int32")),
        DtypeError, "arrived as int32, and the function was exported for float32",
    ),
    "another structure": (
        lambda: ExportedLayer(jax.export.export(jax.jit(jnp.sin))(X))({"a": X}),
        StructureError, r"is a dict with the keys \['a'\]",
    ),
    "another shape": (
        lambda: ExportedLayer(jax.export.export(jax.jit(jnp.sin))(X))(X[:3]),
        StructureError, r"has shape \(3, 4\)",
    ),
    "not called": (
        lambda: ExportedLayer(network, params=make_params()).get_config(), StructureError,
        "exported when the layer is first called",
    ),
    "one exported": (
        lambda: ExportedLayer(jnp.sin, train=jax.export.export(jax.jit(jnp.sin))(X)),
        ArgumentError, "export both, or neither",
    ),
    "quantized": (
        lambda: ExportedLayer(jnp.sin, dtype="int8_from_float32"), DtypeError,
        "quantizes weights to int8",
    ),
    "64 bits": (
        lambda: ExportedLayer(jnp.sin, dtype="float64"), DtypeError,
        "asks for float64, which JAX makes float32 of",
    ),
    "a class": (lambda: ExportedLayer(dict), ArgumentError, "is the class dict. To do: pass an"),
    "an order": (
        lambda: ExportedLayer(jnp.sin, gradient_order=-1), StructureError,
        "gradient_order is -1; expected a whole number from 0 on",
    ),
    "no file": (lambda: ExportedLayer("nothing/there"), FormatError, "has no saved_model.pb"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name):
    misuse, error, message = MISUSES[name]
    with pytest.raises(error, match=message) as caught:
        misuse()
    assert isinstance(caught.value, InteropError) or error is KeyError


def test_a_fixed_batch_size_is_said_where_none_is_possible():
    with pytest.raises(StructureError, match="cannot be exported for every batch size"):
        ExportedLayer(lambda x: x if x.shape[0] > 2 else 2 * x)(keras.Input((4,)))


def test_another_length_of_a_sequence_says_how_to_have_any():
    def total(params, x):
        return (x @ params).sum(1)

    params = np.ones((3, 2), "float32")
    x, longer = np.ones((4, 5, 3), "float32"), np.ones((2, 7, 3), "float32")
    layer = ExportedLayer(total, params=params)
    layer(x)
    message = r"\(2, 7, 3\).*To do: .*keras\.Input\(\(None,\)\).*Exported with symbolic sizes"
    with pytest.raises(StructureError, match=f"(?s){message}"):
        layer(longer)
    begun = keras.Sequential([keras.Input((None, 3)), ExportedLayer(total, params=params)])
    rows, length = jax.export.symbolic_shape("b, t")
    exported = jax.export.export(jax.jit(total))(
        params, jax.ShapeDtypeStruct((rows, length, 3), "float32")
    )
    for cured in (begun, ExportedLayer(exported, params=params)):
        for array in (x, longer):
            np.testing.assert_allclose(cured(array), total(params, array), rtol=1e-6)
