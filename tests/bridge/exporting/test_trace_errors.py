"""What JAX refuses while it traces a function is one of our errors, with what it was traced for."""

from __future__ import annotations

import collections
import re

import equinox
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.keras import ExportedLayer
from xla_call_module.errors import ArgumentError, InteropError, StructureError

PARAMS = {"b": np.zeros(2, np.float32), "w": np.ones((3, 2), np.float32)}
WRONG = np.ones((5, 4), np.float32)
Pair = collections.namedtuple("Pair", ["a", "b"])
TRACED = (
    r"predict cannot be traced at .*test_trace_errors\.py:\d+ for args='f32\[batch,4\]', with "
    r"params\['w'\] float32\[3,2\]\. JAX says: dot_general requires .* got \(4,\) and \(3,\)\. To "
    r"do: pass arguments of shapes that fit those of params, or change the function\."
)


def predict(params, x):
    return x @ params["w"] + params["b"]


@pytest.mark.parametrize(
    "verb",
    [
        lambda **options: bridge.save(predict, "m", **options),
        lambda **options: bridge.serving.publish(predict, "m", **options),
        lambda **options: bridge.to_onnx(predict, **options),
        lambda **options: bridge.to_litert(predict, **options),
    ],
)
def test_the_arguments_and_the_parameters_with_these_sizes_are_named(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=TRACED) as caught:
        verb(params=PARAMS, args="f32[batch,4]")
    assert isinstance(caught.value.__cause__, TypeError)
    assert not [*tmp_path.rglob("*.pb")]
    assert jax.config.jax_traceback_filtering == "auto"


@pytest.mark.parametrize("call", [lambda f: f, tf.function])
def test_calls_name_what_they_were_called_with(call):
    converted = call(bridge.convert(predict))
    match = r"for args='\{b: f32\[2\], w: f32\[3,2\]\}, f32\[5,4\]'\. JAX says: dot_general"
    with pytest.raises(ArgumentError, match=match):
        converted(PARAMS, WRONG)
    with pytest.raises(ArgumentError, match=match):
        bridge.testing.assert_gradients_match(predict, PARAMS, WRONG)


def test_layers_name_what_they_hold():
    with pytest.raises(ArgumentError, match=r"f32\[b,4\]', with params\['w'\] float32\[3,2\]"):
        ExportedLayer(predict, params=PARAMS)(WRONG)


def test_a_module_of_equinox_takes_one_example(tmp_path):
    module = equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    match = r"for args='f32\[b,3\]', with params\['layers'\]\['0'\].*equinox\.filter_vmap\(module\)"
    with pytest.raises(ArgumentError, match=match):
        bridge.save(module, tmp_path / "m", args="f32[b,3]")
    with pytest.raises(ArgumentError, match=match):
        ExportedLayer(module)(np.ones((8, 3), np.float32))
    written = bridge.save(equinox.filter_vmap(module), tmp_path / "m", args="f32[b,3]")
    loaded = tf.saved_model.load(written.path)
    x = np.ones((8, 3), np.float32)
    np.testing.assert_allclose(loaded(x), jax.vmap(module)(x), rtol=1e-5)


def test_errors_of_flax_are_those_of_flax_too(tmp_path):
    module = nn.Dense(2)
    params = module.init(jax.random.key(0), jnp.ones((1, 3)))
    match = r"Flax says: For parameter \"kernel\".* shapes that fit those of params"
    with pytest.raises(nn.module.errors.ScopeParamShapeError, match=match) as caught:
        bridge.save(module, tmp_path / "m", params=params, args="f32[b,4]")
    assert isinstance(caught.value, StructureError)


@pytest.mark.parametrize(
    ("function", "args", "kind", "match"),
    [
        (lambda x, y: x + y, "f32[a], f32[b]", TypeError, r"args='f32\[a\], f32\[b\]'.*each other"),
        (lambda x: x[0, 0], "f32[3]", IndexError, "Too many indices.*each other"),
        (lambda x: x.reshape(5), "x=[f32[3]]", AttributeError, "^'list' object"),
        (lambda *, x: x.reshape(5), "x=f32[3]", TypeError, r"for args='x=f32\[3\]'"),
        (jax.grad(lambda x: x), "f32[3]", TypeError, "scalar-output.*To do: pass arguments"),
        (lambda x: jnp.exp(x.astype(bool)) << 1, "f32[3]", TypeError, "To do: change the function"),
    ],
)
def test_every_kind_of_refusal(function, args, kind, match, tmp_path):
    with pytest.raises(kind, match=match) as caught:
        bridge.save(function, tmp_path / "m", args=args)
    assert isinstance(caught.value, InteropError) == (not match.startswith("^"))


def test_pytrees_of_any_class_are_shown(tmp_path):
    arguments = (Pair("f32[2]", None), {"k": ["f32[3]"]})
    match = re.escape("for args='(f32[2], None), {k: [f32[3]]}'")
    with pytest.raises(TypeError, match=match):
        bridge.save(lambda p, d: p.a + d["k"][0], tmp_path / "m", args=arguments)


def test_the_errors_of_a_function_stay_its_own(tmp_path):
    def refuse(x):
        raise ValueError(f"not for shapes such as {x.shape}")

    def add(x):
        return "1" + x.shape

    for function, kind in ((refuse, ValueError), (add, TypeError)):
        with pytest.raises(kind, match=r"shapes such as|can only concat") as caught:
            bridge.save(function, tmp_path / "m", args="f32[3]")
        assert not isinstance(caught.value, InteropError)
