"""LiteRT models as files: signatures, names, options, and what is refused before it appears."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from xla_call_module.errors import InteropError, PlatformError, StructureError

interpreter = pytest.importorskip("ai_edge_litert.interpreter")

PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)}
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)


def predict(params, x):
    return jnp.tanh(x @ params["w"])


def total(params, x):
    return x.sum() + params["w"].sum()


def run(model, key="serving_default", **arrays):
    return _opened(model).get_signature_runner(key)(**arrays)


def _opened(model):
    source = {"model_content": model} if isinstance(model, bytes) else {"model_path": str(model)}
    return interpreter.Interpreter(**source)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("litert") / "model"
    return bridge.save({"predict": predict, "total": total}, path, params=PARAMS, args="f32[2,3]")


def test_signatures_share_weights(tmp_path):
    path = tmp_path / "new" / "model.tflite"
    written = bridge.save_litert(
        {"predict": predict, "total": total}, path, params=PARAMS, args="f32[2,3]"
    )
    assert [one.key for one in written.signatures] == ["predict", "total"]
    assert written.bytes == path.stat().st_size
    assert written.parameter_bytes == PARAMS["w"].nbytes
    np.testing.assert_allclose(run(path, "predict", x=X)["output_0"], predict(PARAMS, X), rtol=1e-5)
    np.testing.assert_allclose(run(path, "total", x=X)["output_0"], total(PARAMS, X), atol=1e-6)


def test_one_signature_of_a_file(saved):
    model = bridge.to_litert(saved.path, signatures="total", verify=False)
    assert [*interpreter.Interpreter(model_content=model).get_signature_list()] == ["total"]
    with pytest.raises(StructureError, match="no signature 'other'; there are 'predict', 'total'"):
        bridge.save_litert(saved.path, "nowhere.tflite", signatures=["other"])


def test_names_and_gradients(tmp_path):
    named = {"inputs": ["points"], "outputs": ["scores"], "params": PARAMS, "args": "f32[2,3]"}
    model = bridge.to_litert(predict, verify=False, **named)
    assert [*run(model, points=X)] == ["scores"]
    path = tmp_path / "gradient.tflite"
    exported = jax.export.export(jax.jit(lambda x: x * x))(X)
    bridge.save_litert(exported, path, gradient_order=1, signatures="vjp", verify=True)
    (gradient,) = run(path, "vjp", **_inputs(path, "vjp", X, np.ones_like(X))).values()
    np.testing.assert_allclose(gradient, 2 * X, rtol=1e-5)
    order = bridge.to_litert(exported, gradient_order=1, verify=False)
    assert len(_inputs(order, "serving_default", X, X)) == 2
    other = tmp_path / "named.tflite"
    bridge.save_litert(predict, other, **named)
    assert [*run(other, points=X)] == ["scores"]


def _inputs(model, key, *arrays):
    return dict(zip(_opened(model).get_signature_list()[key]["inputs"], arrays, strict=True))


def test_what_is_refused_leaves_no_file(tmp_path):
    exported = jax.export.export(jax.jit(jnp.sin), platforms=["tpu"])(X)
    with pytest.raises(PlatformError, match="tpu"):
        bridge.save_litert(exported, tmp_path / "model.tflite", platform="cpu")
    assert bridge.to_litert(exported, platform="tpu", verify=False)[4:8] == b"TFL3"
    with pytest.raises(InteropError, match="geev"):
        bridge.save_litert(jnp.linalg.eig, tmp_path / "model.tflite", args="f32[2,2]")
    assert list(tmp_path.iterdir()) == []


def test_inputs_that_nothing_uses_stay():
    both = {"first": lambda x, y: x + 1, "none": lambda x, y: jnp.ones(3)}
    model = bridge.to_litert(both, args="f32[2,3], f32[3]", inputs=["x", "y"])
    y = np.ones(3, np.float32)
    np.testing.assert_array_equal(run(model, "first", x=X, y=y)["output_0"], X + 1)
    np.testing.assert_array_equal(run(model, "none", x=X, y=y)["output_0"], y)
    gradient = bridge.to_litert(lambda x: x * 2, args="f32[2,3]", gradient_order=1)
    (found,) = run(gradient, **_inputs(gradient, "serving_default", X, X)).values()
    np.testing.assert_array_equal(found, X * 2)


def test_an_input_that_python_cannot_pass_is_refused():
    def doubled(self):
        return self * 2

    with pytest.raises(StructureError, match=r"input 'self'.*'another name'"):
        bridge.to_litert(doubled, args="f32[3]", inputs=["self"])
    model = bridge.to_litert(doubled, args="f32[3]", outputs=["self"])
    np.testing.assert_array_equal(run(model, self_=X[0])["self"], X[0] * 2)
