"""A call is checked before it is traced, and the message is about what the user passed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.cli.main import main
from bridge.keras import ExportedLayer
from xla_call_module.errors import ArgumentError, StructureError

PARAMS = {"w": np.ones((3, 2), np.float32)}
X = np.ones((4, 3), np.float32)


def _predict(params, x):
    return x @ params["w"]


VERBS = {
    "save": lambda f, **options: bridge.save(f, "never", **options),
    "to_onnx": bridge.to_onnx,
    "to_litert": bridge.to_litert,
}
CALLS = {
    "convert": lambda f: bridge.convert(f)(X),
    "convert in a graph": lambda f: tf.function(lambda x: bridge.convert(f)(x))(X),
    "exported_from_stage": lambda f: bridge.exported_from_stage(jax.jit(f), X),
    "layer": lambda f: ExportedLayer(f)(X),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"args": "f32[b,3]"},
            r"_predict takes \(params, x\); args= gives one argument and params= was not passed",
        ),
        ({"args": (), "params": PARAMS}, r"args= gives no argument\. To do: describe x in args="),
        (
            {"args": "f32[3], f32[3]", "params": PARAMS},
            r"gives 2 arguments after params\. To do: leave out",
        ),
        ({"args": {"y": X}, "params": PARAMS}, r"gives y by name\. To do: take the names of"),
        (
            {"args": (None, 3), "params": PARAMS},
            r"has the bare shape \(None, 3\).*args='f32\[\?,3\]'",
        ),
        ({"args": ([None, 3],), "params": PARAMS}, r"has the bare shape \[None, 3\]"),
        ({"args": [("B", 3)], "params": PARAMS}, r"\('B', 3\); expected.*args='f32\[B,3\]'"),
        ({"args": ["B", 3], "params": PARAMS}, r"\['B', 3\]; expected.*args='f32\[B,3\]'"),
        (
            {"args": (X.astype(float),), "params": PARAMS},
            r"args\[0\] is float64, and JAX has 32 bits",
        ),
        ({"args": "f32[3]", "params": {"w": [[1.0], [2.0]]}}, r"params\['w'\] is a list of lists"),
        ({"args": "f32[3]", "params": {**PARAMS, "name": "it"}}, r"params\['name'\] is 'it'"),
    ],
)
def test_a_call_that_does_not_fit(verb, options, match):
    with pytest.raises(bridge.InteropError, match=match):
        verb(_predict, **options)


def test_a_layer_says_which_of_its_options_pass_what_is_missing():
    def draws(params, key, x):
        return x * jax.random.uniform(key)

    match = (
        r"draws takes \(params, key, x\); the layer passes params, one argument\. To do: pass x, "
        r"too \(state= for a state, rng=0 for a PRNG key of the layer\), or bind it"
    )
    with pytest.raises(ArgumentError, match=match):
        ExportedLayer(draws, params=PARAMS)(X)
    assert ExportedLayer(draws, params=PARAMS, rng=0)(X).shape == X.shape


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_plain_call_that_does_not_fit(call):
    with pytest.raises(
        ArgumentError,
        match=r"_predict takes \(params, x\); .* one argument\. To do: pass x, too",
    ):
        call(_predict)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "function",
    [tf.math.sin, tf.function(lambda x: x), functools.partial(tf.math.add, 1.0)],
    ids=["tf.math.sin", "tf.function", "partial"],
)
def test_a_function_of_tensorflow(call, function):
    with pytest.raises(ArgumentError, match=r"a function of TensorFlow.*bridge\.call_tf"):
        call(function)


def test_the_command_shows_no_frames(tmp_path, monkeypatch, capsys):
    (tmp_path / "predicting.py").write_text("def predict(params, x): return x @ params['w']\n")
    monkeypatch.chdir(tmp_path)
    command = ["export", "predicting:predict", "--out", "m", "--args", "f32[b,3]"]
    assert main(command) == 2
    assert main([*command, "--params", "nope.npz"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "predict takes (params, x); args= gives one argument and params= was not" in first
    assert second.endswith("nope.npz'. To do: name a file or folder that is there.")


def test_a_module_of_linen():
    nn = pytest.importorskip("flax.linen")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.Dropout(0.5, deterministic=not train)(nn.Dense(2)(x))

    module = Model()
    variables = module.init(jax.random.key(0), X, train=False)
    with pytest.raises(ArgumentError, match=r"Model takes \(x, train\); args= gives one") as caught:
        bridge.save(module, "never", params=variables, args="f32[b,3]")
    *_, wrapper = str(caught.value).partition("pass a function that does, ")
    function = eval(wrapper.removesuffix("."), {"module": module})
    assert bridge.to_onnx(function, params=variables, args="f32[b,3]").graph.input[0].name == "x"


def test_a_module_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self):
            self.dense = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

        def __call__(self, x, *, train):
            return self.dense(x) * train

    match = r"takes \(x, train\).*lambda module, x: module\(x, train=False\) with params=module"
    with pytest.raises(ArgumentError, match=match):
        bridge.save(Model(), "never", args="f32[b,3]")
    bridge.to_onnx(lambda module, x: module(x, train=True), params=Model(), args="f32[b,3]")


class TestDecorators:
    """What shows the signature of another function may take other arguments."""

    def test_one_that_passes_an_argument(self):
        @functools.wraps(_predict)
        def decorated(x):
            return _predict(PARAMS, x)

        np.testing.assert_allclose(bridge.convert(decorated)(X), X @ PARAMS["w"])
        np.testing.assert_allclose(bridge.convert(jax.jit(decorated))(X), X @ PARAMS["w"])

    @pytest.mark.parametrize("transform", [jax.vmap, jax.checkpoint, jax.jit])
    def test_one_of_jax(self, transform):
        with pytest.raises(ArgumentError, match=r"takes \(params, x\)"):
            bridge.save(transform(_predict), "never", args="f32[4,3]")

    def test_an_error_of_the_function_itself(self):
        def wrong(x):
            return _predict(x)

        with pytest.raises(TypeError, match="missing 1 required") as caught:
            bridge.save(wrong, "never", args="f32[4,3]")
        assert not isinstance(caught.value, StructureError)


def test_what_is_accepted_as_before():
    assert bridge.to_onnx(lambda x, *, n=2: x * n, args=(X,), inputs=["x"]).graph.input[0]
    lists = {"w": [1.0, 2.0], "b": [[jnp.ones(3)], [jnp.ones(3)]]}
    model = bridge.to_onnx(lambda p, x: x * p["w"][1], params=lists, args="f32[3]")
    assert [value.name for value in model.graph.input] == ["x"]
