"""Modules of other frameworks become SavedModels in one line."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge
import savedmodel
from bridge.exporting.environment import source_file
from bridge.exporting.framework_modules import to_model_function
from xla_call_module.errors import ArgumentError, DtypeError, StructureError

X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)


def _load(path):
    loaded = tf.saved_model.load(str(path))
    names = {v.name.removesuffix(":0"): v for v in loaded.variables}
    return loaded, names, {v.name.removesuffix(":0") for v in loaded.trainable_variables}


def _check(path, expected, gradient):
    """Values for two batch sizes and the gradient with respect to one variable."""
    loaded, names, _ = _load(path)
    for x in (X, X[:1]):
        np.testing.assert_allclose(loaded(x), expected(x), rtol=1e-5, atol=1e-6)
    ((name, wanted),) = gradient.items()
    with tf.GradientTape() as tape:
        result = tf.reduce_sum(loaded(X) ** 2)
    np.testing.assert_allclose(tape.gradient(result, names[name]), wanted, rtol=1e-4, atol=1e-5)


def _predict(params, x, *, scale=1.0):
    return jnp.tanh(x @ params["w"]) * scale


PARAMS = {"w": np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2)}


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, functools.partial])
def test_a_function(tmp_path, wrap):
    bridge.save(wrap(_predict), tmp_path / "m", params=PARAMS, args="f32[b,3]")

    def expected(x):
        return _predict(PARAMS, x)

    wanted = jax.grad(lambda w: (_predict({"w": w}, X) ** 2).sum())(PARAMS["w"])
    _check(tmp_path / "m", expected, {"w": wanted})
    (signature,) = bridge.inspect(tmp_path / "m").signatures
    assert signature.platforms == ("cpu", "cuda", "tpu")
    assert [tensor.name for tensor in signature.inputs] == ["x"]


def test_a_function_without_parameters(tmp_path):
    bridge.save(jnp.sin, tmp_path / "m", args="f32[b,3]", platforms=["cpu"])
    np.testing.assert_allclose(tf.saved_model.load(str(tmp_path / "m"))(X), np.sin(X), rtol=1e-6)


@pytest.mark.parametrize("stage", ["trace", "lower"])
def test_a_stage(tmp_path, stage):
    made = getattr(jax.jit(_predict), stage)(PARAMS, jax.ShapeDtypeStruct((5, 3), "float32"))
    bridge.save(made, tmp_path / "m", params=PARAMS)
    loaded, names, _ = _load(tmp_path / "m")
    np.testing.assert_allclose(loaded(X), _predict(PARAMS, X), rtol=1e-6)
    assert names.keys() == {"w"}


def test_keyword_arguments_and_specs(tmp_path):
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")

    def with_scale(x, scale):
        return _predict(PARAMS, x, scale=scale)

    bridge.save(with_scale, tmp_path / "m", args={"x": spec, "scale": "f32[]"})
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    found = loaded(x=X, scale=tf.constant(3.0))
    np.testing.assert_allclose(found, _predict(PARAMS, X, scale=3.0), rtol=1e-6)


def test_flax_linen(tmp_path):
    linen = pytest.importorskip("flax.linen")

    class Network(linen.Module):
        @linen.compact
        def __call__(self, image, train=False):
            hidden = linen.Dense(4)(image)
            hidden = linen.BatchNorm(use_running_average=not train)(hidden)
            return linen.Dense(2)(linen.Dropout(0.5, deterministic=not train)(hidden))

    network = Network()
    variables = network.init(jax.random.key(0), X)
    bridge.save(network, tmp_path / "m", params=variables, args="f32[b,3]")

    def loss(kernel):
        params = variables["params"] | {"Dense_1": variables["params"]["Dense_1"] | kernel}
        return (network.apply(variables | {"params": params}, X) ** 2).sum()

    wanted = jax.grad(loss)({"kernel": variables["params"]["Dense_1"]["kernel"]})["kernel"]

    def expected(x):
        return network.apply(variables, x)

    _check(tmp_path / "m", expected, {"params/Dense_1/kernel": wanted})
    _, names, trainable = _load(tmp_path / "m")
    assert names.keys() - trainable == {
        "batch_stats/BatchNorm_0/mean",
        "batch_stats/BatchNorm_0/var",
    }
    (signature,) = bridge.inspect(tmp_path / "m").signatures
    assert (signature.function, signature.inputs[0].name) == ("Network", "image")

    bridge.save(network.bind(variables), tmp_path / "bound", args="f32[b,3]")
    evaluate = functools.partial(network.apply, train=False)
    bridge.save(evaluate, tmp_path / "partial", params=variables, args="f32[b,3]")
    for other in ("bound", "partial"):
        _check(tmp_path / other, expected, {"params/Dense_1/kernel": wanted})
        assert _load(tmp_path / other)[2] == trainable

    only = {"params": {"Dense_1": True, "Dense_0": False, "BatchNorm_0": False}}
    only["batch_stats"] = True
    bridge.save(network, tmp_path / "f", params=variables, args="f32[b,3]", trainable=only)
    assert _load(tmp_path / "f")[2] == {"params/Dense_1/kernel", "params/Dense_1/bias"}

    with pytest.raises(StructureError, match=r"found \['BatchNorm_0', 'Dense_0', 'Dense_1'\]"):
        bridge.save(network, tmp_path / "n", params=variables["params"], args="f32[b,3]")
    with pytest.raises(StructureError, match=r"params=module\.init\(key, x\)"):
        bridge.save(network, tmp_path / "n", args="f32[b,3]")


def test_flax_nnx(tmp_path):
    nnx = pytest.importorskip("flax.nnx")

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.last = nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, image):
            return self.last(self.drop(self.norm(self.first(image))))

    network = Network(nnx.Rngs(0))
    with pytest.raises(StructureError, match=r"nnx module Network changes .*model\.eval\(\)"):
        bridge.save(network, tmp_path / "m", args="f32[b,3]")
    network.eval()
    bridge.save(network, tmp_path / "m", args="f32[b,3]")

    wanted = nnx.grad(lambda network: (network(X) ** 2).sum())(network)["last"]["kernel"]
    _check(tmp_path / "m", network, {"last/kernel": np.asarray(wanted[...])})
    _, names, trainable = _load(tmp_path / "m")
    assert names.keys() - trainable == {"norm/mean", "norm/var"}
    layers = {"first": ("kernel", "bias"), "norm": ("scale", "bias"), "last": ("kernel", "bias")}
    assert trainable == {f"{layer}/{name}" for layer, names in layers.items() for name in names}
    with pytest.raises(StructureError, match="holds its parameters, and params= was passed"):
        bridge.save(network, tmp_path / "n", params=PARAMS, args="f32[b,3]")


def test_a_method_of_an_nnx_module(tmp_path):
    nnx = pytest.importorskip("flax.nnx")

    class Coder(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 2, rngs=rngs)

        def encode(self, x):
            return jnp.tanh(self.linear(x))

    coder = Coder(nnx.Rngs(0))
    bridge.save(coder.encode, tmp_path / "m", args="f32[b,3]")
    loaded, names, _ = _load(tmp_path / "m")
    np.testing.assert_allclose(loaded(X), coder.encode(X), rtol=1e-5)
    assert names.keys() == {"linear/kernel", "linear/bias"}


def test_statistics_that_nnx_updates(tmp_path):
    nnx = pytest.importorskip("flax.nnx")
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    with pytest.raises(StructureError, match="BatchNorm changes its state, such as batch stat"):
        bridge.save(norm, tmp_path / "m", args="f32[b,3]")


def test_haiku(tmp_path):
    haiku = pytest.importorskip("haiku")
    plain = haiku.transform(lambda image: haiku.nets.MLP([4, 2])(image))
    params = plain.init(jax.random.key(0), X)
    wanted = jax.grad(lambda p: (plain.apply(p, None, X) ** 2).sum())(params)
    for number, function in enumerate([plain, haiku.without_apply_rng(plain)]):
        path = tmp_path / str(number)
        bridge.save(function, path, params=params, args="f32[b,3]")

        def expected(x):
            return plain.apply(params, None, x)

        _check(path, expected, {"mlp/_/linear_1/w": wanted["mlp/~/linear_1"]["w"]})
        assert bridge.inspect(path).signatures[0].inputs[0].name == "image"


def test_haiku_with_state(tmp_path):
    haiku = pytest.importorskip("haiku")

    def network(image, training=False):
        hidden = haiku.Linear(4)(image)
        hidden = haiku.BatchNorm(create_scale=True, create_offset=True, decay_rate=0.9)(
            hidden, training
        )
        return haiku.Linear(2)(hidden)

    function = haiku.transform_with_state(network)
    made = function.init(jax.random.key(0), X, True)
    bridge.save(function, tmp_path / "m", params=made, args="f32[b,3]")
    params, state = made

    def expected(x):
        return function.apply(params, state, None, x)[0]

    wanted = jax.grad(lambda p: (function.apply(p, state, None, X)[0] ** 2).sum())(params)
    _check(tmp_path / "m", expected, {"params/linear_1/w": wanted["linear_1"]["w"]})
    _, names, trainable = _load(tmp_path / "m")
    assert all(name.startswith("params/") for name in trainable)
    assert all(name.startswith("state/") for name in names.keys() - trainable)
    assert len(names) == 4 + 2 + 6
    training = haiku.transform_with_state(functools.partial(network, training=True))
    with pytest.raises(StructureError, match="The Haiku function changes its state"):
        bridge.save(training, tmp_path / "n", params=made, args="f32[b,3]")
    with pytest.raises(StructureError, match=r"params=\(params, state\)"):
        bridge.save(function, tmp_path / "n", params=params, args="f32[b,3]")


def test_equinox(tmp_path):
    equinox = pytest.importorskip("equinox")
    network = equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    bridge.save(equinox.filter_vmap(network), tmp_path / "m", args="f32[b,3]")
    gradient = equinox.filter_grad(lambda n: (jax.vmap(n)(X) ** 2).sum())(network)
    _check(tmp_path / "m", jax.vmap(network), {"layers/1/weight": gradient.layers[1].weight})
    _, names, trainable = _load(tmp_path / "m")
    assert names.keys() == trainable
    assert trainable == {f"layers/{i}/{name}" for i in (0, 1) for name in ("weight", "bias")}
    # One example at a time, and a function of the module.
    bridge.save(network, tmp_path / "one", args="f32[3]")
    np.testing.assert_allclose(_load(tmp_path / "one")[0](X[0]), network(X[0]), rtol=1e-5)
    vmapped = equinox.filter_jit(lambda m, x: jax.vmap(m)(x))
    bridge.save(vmapped, tmp_path / "f", params=network, args="f32[b,3]")
    _check(tmp_path / "f", jax.vmap(network), {"layers/1/weight": gradient.layers[1].weight})


def test_equinox_with_state(tmp_path):
    equinox = pytest.importorskip("equinox")

    class Network(equinox.Module):
        norm: equinox.nn.BatchNorm
        last: equinox.nn.Linear

        def __init__(self, key):
            self.norm = equinox.nn.BatchNorm(3, axis_name="batch", mode="ema")
            self.last = equinox.nn.Linear(3, 2, key=key)

        def __call__(self, x, state):
            hidden, state = self.norm(x, state)
            return self.last(hidden), state

    network, state = equinox.nn.make_with_state(Network)(jax.random.key(0))
    batched = functools.partial(jax.vmap, in_axes=(0, None), out_axes=(0, None), axis_name="batch")
    _, state = batched(network)(X, state)
    inference = equinox.nn.inference_mode(network)

    def predict(parts, x):
        network, state = parts
        return batched(network)(x, state)[0]

    bridge.save(predict, tmp_path / "m", params=(inference, state), args="f32[b,3]")
    gradient = equinox.filter_grad(lambda n: (predict((n, state), X) ** 2).sum())(inference)

    def expected(x):
        return predict((inference, state), x)

    _check(tmp_path / "m", expected, {"0/last/weight": gradient.last.weight})
    _, names, trainable = _load(tmp_path / "m")
    assert trainable == {"0/last/weight", "0/last/bias", "0/norm/weight", "0/norm/bias"}
    assert any(name.startswith("1/") for name in names.keys() - trainable)


@pytest.fixture(scope="module")
def on_jax(tmp_path_factory):
    pytest.importorskip("keras")
    folder = tmp_path_factory.mktemp("keras")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.bridge.exporting.keras_on_jax", str(folder)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_a_functional_keras_model(on_jax):
    expected = np.load(on_jax / "expected.npz")
    loaded, names, trainable = _load(on_jax / "functional")
    tokens = tf.constant(np.arange(10, dtype=np.int32).reshape(5, 2) % 4)
    with tf.GradientTape() as tape:
        results = loaded({"x": tf.constant(X), "tokens": tokens})
        loss = tf.reduce_sum(results["y"] ** 2)
    np.testing.assert_allclose(results["y"], expected["y"], rtol=1e-5, atol=1e-6)
    gradient = tape.gradient(loss, names["dense/kernel"])
    np.testing.assert_allclose(gradient, expected["kernel"], rtol=1e-4, atol=1e-5)
    assert trainable == {
        "dense/kernel",
        "dense/bias",
        "norm/beta",
        "norm/gamma",
    }
    assert names.keys() - trainable == {
        "embedding/embeddings",
        "norm/moving_mean",
        "norm/moving_variance",
        "seed_generator/seed_generator_state",
    }
    signature = loaded.signatures["serving_default"]
    # Another batch, and another length of its own.
    results = signature(x=tf.constant(X[:2]), tokens=tf.zeros([2, 7], tf.int32))
    assert results["y"].shape == (2, 2)
    assert results["length"].shape == (2, 7)


def test_a_functional_keras_model_in_onnx(on_jax):
    runtime = pytest.importorskip("onnxruntime")
    expected = np.load(on_jax / "expected.npz")
    session = runtime.InferenceSession(on_jax / "functional.onnx")
    tokens = np.arange(10, dtype=np.int32).reshape(5, 2) % 4
    names = [value.name for value in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"x": X, "tokens": tokens}), strict=True))
    np.testing.assert_allclose(found["y"], expected["y"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["subclassed", "layer"])
def test_other_keras_models(on_jax, name):
    loaded, names, trainable = _load(on_jax / name)
    np.testing.assert_allclose(loaded(X), np.load(on_jax / "expected.npz")[name], rtol=1e-5)
    assert names.keys() == trainable
    assert {path.rpartition("/")[2] for path in names} == {"kernel", "bias"}
    if name == "subclassed":
        (signature,) = bridge.inspect(on_jax / name).signatures
        assert [tensor.name for tensor in signature.inputs] == ["features"]


def test_a_keras_model_on_another_backend(tmp_path):
    """This process has Keras on TensorFlow; `examples/from_keras.py` has it on JAX."""
    keras = pytest.importorskip("keras")
    if keras.backend.backend() == "jax":
        pytest.skip("Keras is on JAX here")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ArgumentError, match=r"backend tensorflow.*KERAS_BACKEND=jax"):
        bridge.save(model, tmp_path / "m")


def test_one_line_needs_no_framework(monkeypatch):
    """None of them is imported to look whether an object is one of theirs."""
    frameworks = ("keras", "equinox", "flax", "flax.linen", "flax.nnx", "haiku")
    for name in frameworks:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert to_model_function(_predict, PARAMS).params is PARAMS
    assert not any(name in sys.modules for name in frameworks)


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (_predict, {"params": PARAMS}, StructureError, r"_predict, a function, is exported for"),
        (3, {"args": ()}, ArgumentError, "Expected a jax.export.Exported, a function, or a mod"),
        ("f.bin", {"args": ()}, StructureError, "args= is for a function"),
        ({"f": "f.bin", "g": lambda: 1.0}, {"args": ()}, FileNotFoundError, "f.bin"),
        ("f.bin", {}, FileNotFoundError, "f.bin"),
        (".", {}, StructureError, r"\. is a folder; expected the file of a serialized Exported"),
        (dict, {"args": ()}, ArgumentError, "of a class, an instance"),
        (_predict, {"params": PARAMS, "args": "f64[3]"}, DtypeError, "jax_enable_x64"),
        (_predict, {"params": PARAMS, "args": "f32[3]", "trainable": 3}, StructureError, "leaf 3"),
        (_predict, {"params": PARAMS, "args": "f32[3]", "trainable": {"v": True}}, StructureError,
         "trainable is not a prefix"),
    ],
)  # fmt: skip
def test_what_cannot_be_saved(tmp_path, model, options, error, message):
    with pytest.raises(error, match=message):
        bridge.save(model, tmp_path / "m", **options)
    assert list(tmp_path.iterdir()) == []


def test_what_is_exported_already_has_arguments(tmp_path):
    exported = export.export(jax.jit(jnp.sin))(1.0)
    for options in ({"args": "f32[]"}, {"platforms": ["cpu"]}):
        with pytest.raises(StructureError, match=f"{next(iter(options))}= is for a function"):
            bridge.save(exported, tmp_path / "m", **options)


class TestSeveralFunctions:
    """A mapping from signature keys to functions that share their parameters."""

    def _params(self):
        return {"w": np.full((3, 2), 0.5, np.float32)}

    def test_with_the_same_arguments(self, tmp_path):
        params, x = self._params(), np.ones((4, 3), np.float32)
        exported = export.export(jax.jit(lambda p, x: x @ p["w"] * 2))(params, x)
        bridge.save(
            {"rows": lambda p, x: x @ p["w"], "bent": lambda p, x: jnp.tanh(x), "fixed": exported},
            tmp_path / "m",
            params=params,
            trainable=False,
            args="f32[b,3]",
        )
        found = tf.saved_model.load(tmp_path / "m").signatures
        results = {key: found[key](x=tf.constant(x))["output_0"].numpy() for key in found}
        np.testing.assert_allclose(results["rows"], np.full((4, 2), 1.5), rtol=1e-6)
        np.testing.assert_allclose(results["bent"], np.tanh(x), rtol=1e-6)
        np.testing.assert_allclose(results["fixed"], np.full((4, 2), 3), rtol=1e-6)
        (variable,) = savedmodel.read(tmp_path / "m").variables
        assert (variable.name, variable.trainable) == ("w", False)

    def test_each_with_its_own_arguments(self, tmp_path):
        args = {"one": "f32[b,3]", "two": "f32[b,3], f32[3]"}
        model = {"one": jnp.sin, "two": lambda x, y: x + y}
        bridge.save(model, tmp_path / "m", args=args, manifest=True)
        names = {k: list(s.inputs) for k, s in bridge.load(tmp_path / "m").signatures.items()}
        assert names == {"one": ["x"], "two": ["x", "y"]}
        assert source_file(model) is not None

    def test_without_the_arguments_of_one(self, tmp_path):
        model = {"one": jnp.sin, "two": jnp.cos}
        with pytest.raises(StructureError, match=r"cos, a .*, is exported for .* args= is missing"):
            bridge.save(model, tmp_path / "m", args={"one": "f32[b,3]"})

    def test_modules_of_different_parameters(self, tmp_path):
        nnx = pytest.importorskip("flax.nnx")
        model = {key: nnx.Linear(3, 2, rngs=nnx.Rngs(0)) for key in ("one", "two")}
        with pytest.raises(StructureError, match="two has other parameters than the function"):
            bridge.save(model, tmp_path / "m", args="f32[b,3]")


def _normalizing(nnx):
    class Network(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            self.layers = nnx.List([nnx.Linear(3, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)])

        def __call__(self, x):
            return self.layers[1](self.layers[0](x))

    network = Network()
    network.eval()
    return network


@pytest.mark.parametrize("trainable", [True, (True, False), {"0": True, "1": False}])
def test_parts_of_an_nnx_module(tmp_path, trainable):
    nnx = pytest.importorskip("flax.nnx")
    definition, *parts = nnx.split(_normalizing(nnx), nnx.Param, ...)

    def predict(parts, x):
        return nnx.merge(definition, *parts)(x)

    wanted = {f"0/layers/{path}/value" for path in ("0/bias", "0/kernel", "1/bias", "1/scale")}
    if not isinstance(trainable, dict):
        bridge.save(predict, tmp_path / "m", params=(*parts,), args="f32[b,3]", trainable=trainable)
        _, names, found = _load(tmp_path / "m")
        assert found == wanted
        assert names.keys() - found == {"1/layers/1/mean/value", "1/layers/1/var/value"}
        model = bridge.load(tmp_path / "m")
        assert isinstance(model.params[0], nnx.State)
        np.testing.assert_allclose(model(X), predict(parts, X), rtol=1e-6)
    # Static data that no file holds: the parameters are dicts.
    held = (*parts, nnx.split(nnx.Dropout(0.5))[0])
    bridge.save(
        lambda held, x: predict(held[:2], x),
        tmp_path / "d",
        params=held,
        args="f32[b,3]",
        trainable=(*trainable, True) if isinstance(trainable, tuple) else trainable,
    )
    assert _load(tmp_path / "d")[2] == wanted


def test_an_exported_of_what_is_not_trained(tmp_path):
    nnx = pytest.importorskip("flax.nnx")
    state = nnx.split(_normalizing(nnx))[1]
    averages = {"params": {"w": X}, "batch_stats": {"w": X}}
    for name, params in (("nnx", state), ("linen", averages)):
        exported = jax.export.export(jax.jit(lambda params, x: (params, x)))(params, X)
        bridge.save(exported, tmp_path / name, params=params)
        _, names, trainable = _load(tmp_path / name)
        untrained = {
            path for path in names if "batch_stats" in path or "/mean" in path or "/var" in path
        }
        assert untrained
        assert names.keys() - trainable == untrained


@pytest.mark.parametrize("way", ["apply", "partial", "method", "twice"])
def test_apply_of_linen_has_the_names_of_its_method(way):
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, image, train=False):
            return nn.Dropout(0.5, deterministic=not train)(nn.Dense(2)(image))

        def encode(self, text, *, scale):
            return self(text) * scale

    model = Model()
    variables = model.init(jax.random.key(0), np.ones((1, 3), np.float32))
    function = {
        "apply": model.apply,
        "partial": functools.partial(model.apply, train=False),
        "method": functools.partial(model.apply, method="encode", scale=2.0),
        "twice": functools.partial(functools.partial(model.apply, method=Model.encode), scale=2.0),
    }[way]
    proto = bridge.to_onnx(function, params=variables, args="f32[b,3]")
    names = {"apply": "image", "partial": "image", "method": "text", "twice": "text"}
    assert [value.name for value in proto.graph.input] == [names[way]]


def test_apply_of_linen_takes_its_own_options():
    nn = pytest.importorskip("flax.linen")
    model = nn.Dropout(0.5, deterministic=False)
    args = {"inputs": "f32[4]", "rngs": {"dropout": "key<fry>[]"}}
    made = to_model_function(model.apply, {"params": {}})
    assert made.call.__name__ == "apply"
    proto = bridge.to_onnx(model.apply, params={"params": {}}, args=args)
    assert [value.name for value in proto.graph.input] == ["inputs", "rngs_dropout"]
