"""Functions and modules become ONNX models in one line, by the export of `bridge.save`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

import bridge
from tests.bridge.onnx.checking import assert_same, check_whole, run
from xla_call_module.errors import (
    ArgumentError,
    PlatformError,
    StructureError,
    UnsupportedError,
)

X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)
PARAMS = {"w": np.linspace(0, 1, 6, dtype=np.float32).reshape(3, 2)}


def _predict(params, rows):
    return jnp.tanh(rows @ params["w"])


def _linen():
    linen = pytest.importorskip("flax.linen")
    network = linen.Dense(2)
    variables = network.init(jax.random.key(0), X)
    names = ["params/bias", "params/kernel"]
    return network, variables, functools.partial(network.apply, variables), names


def _nnx():
    nnx = pytest.importorskip("flax.nnx")
    network = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    return network, None, network, ["bias", "kernel"]


def _haiku():
    haiku = pytest.importorskip("haiku")
    network = haiku.transform(lambda image: haiku.Linear(2)(image))
    params = network.init(jax.random.key(0), X)
    return network, params, lambda x: network.apply(params, None, x), ["linear/b", "linear/w"]


def _equinox():
    equinox = pytest.importorskip("equinox")
    network = equinox.nn.Linear(3, 2, key=jax.random.key(0))
    return equinox.filter_vmap(network), None, jax.vmap(network), ["bias", "weight"]


def _of(wrap):
    return lambda: (wrap(_predict), PARAMS, functools.partial(_predict, PARAMS), ["w"])


MODELS = {
    "function": _of(lambda f: f),
    "jitted": _of(jax.jit),
    "without parameters": lambda: (jnp.sin, None, np.sin, []),
    "linen": _linen,
    "nnx": _nnx,
    "haiku": _haiku,
    "equinox": _equinox,
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model(kind, tmp_path):
    model, params, expected, names = MODELS[kind]()
    bridge.save_onnx(model, tmp_path / "m.onnx", params=params, args="f32[b,3]")
    proto = onnx.load(tmp_path / "m.onnx")
    check_whole(proto)
    for x in (X, X[:1]):
        assert_same(run(proto, [x]), [np.asarray(expected(x))], rtol=1e-5, atol=1e-6)
    # A file of the same call has the same names.
    bridge.save(model, tmp_path / "m", params=params, args="f32[b,3]", platforms=["cpu"])
    (signature,) = bridge.inspect(tmp_path / "m").signatures
    assert [value.name for value in proto.graph.input] == [t.name for t in signature.inputs]
    assert sorted(tensor.name for tensor in proto.graph.initializer) == names
    assert bridge.to_onnx(model, params=params, args="f32[b,3]") == proto


def test_the_gradient_of_a_function(tmp_path):
    options = {"params": PARAMS, "args": "f32[b,3]", "gradient_order": 1}
    bridge.save_onnx(_predict, tmp_path / "m.onnx", **options)
    proto = onnx.load(tmp_path / "m.onnx")
    assert [value.name for value in proto.graph.input] == ["rows", "output_0_cotangent"]
    wanted = jax.vjp(_predict, PARAMS, X)[1](np.ones((5, 2), np.float32))
    found = run(proto, [X, np.ones((5, 2), np.float32)])
    assert_same(found, [np.asarray(a) for a in jax.tree.leaves(wanted)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("stage", ["traced", "lowered"])
def test_a_stage(stage):
    traced = jax.jit(_predict).trace(PARAMS, X)
    model = traced if stage == "traced" else traced.lower(lowering_platforms=("cpu",))
    proto = bridge.to_onnx(model, params=PARAMS)
    assert_same(run(proto, [X]), [np.asarray(_predict(PARAMS, X))], rtol=1e-5, atol=1e-6)


def test_an_operation_that_tensorflow_lacks():
    """What only TensorFlow refuses is no reason to refuse a function here."""
    proto = bridge.to_onnx(lambda x: jax.lax.top_k(x, 2)[0], args="f32[5,3]")
    assert_same(run(proto, [X]), [np.asarray(jax.lax.top_k(X, 2)[0])], rtol=0, atol=0)


@pytest.mark.parametrize("verb", [bridge.to_onnx, bridge.to_litert])
def test_a_library_that_the_format_lacks(verb):
    def target(x):
        return jax.ffi.ffi_call("my_target", x)(x)

    exported = jax.export.export(
        jax.jit(jnp.linalg.eig),
        platforms=["cpu"],
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call("lapack_sgeev_ffi")],
    )(X[:3])
    for model, name in (
        (jnp.linalg.eig, "lapack_sgeev"),
        (exported, "lapack_sgeev"),
        (target, "my_target"),
    ):
        options = {} if model is exported else {"args": "f32[3,3]"}
        match = rf"calls .*{name}.* at .*\.py:\d+, .*model has no operation for it\. To do: compute"
        with pytest.raises(UnsupportedError, match=match) as caught:
            verb(model, **options)
        assert "TensorFlow" not in str(caught.value)
        assert "disabled_checks" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (jnp.sin, {}, StructureError, r"args= is missing\. To do: pass args="),
        (
            {"f": jnp.sin},
            {"args": "f32[3]"},
            StructureError,
            "holds one function, and the mapping has 1",
        ),
        (3, {"args": "f32[3]"}, ArgumentError, "Expected a jax.export.Exported, a function, or"),
        (jnp.sin, {"args": "f32[3]", "platform": 3}, PlatformError, "expected the name of one"),
        (jnp.sin, {"args": "f32[3]", "platform": "abacus"}, PlatformError, "abacus"),
        (
            _predict,
            {"args": "f32[3]"},
            TypeError,
            "args= gives one argument and params= was not passed",
        ),
        ("my_model", {"args": "f32[3]"}, StructureError, "is exported already. To do: leave it"),
    ],
)
def test_what_cannot_be_converted(model, options, error, message):
    with pytest.raises(error, match=message):
        bridge.to_onnx(model, **options)
