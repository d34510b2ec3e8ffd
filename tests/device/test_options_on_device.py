"""Options, state, checks and files that are made on the device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from tests.device.precision import on_accelerator

KEY = "serving_default"
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(4, 3)
PARAMS = {"w": np.linspace(-1, 1, 9, dtype=np.float32).reshape(3, 3)}
TABLE = np.linspace(0, 1, 3000, dtype=np.float32)

# float32 with eps 1.2e-7: products of three factors in full precision, and library functions.
close = lambda found, expected: np.testing.assert_allclose(  # noqa: E731
    np.asarray(found), expected, rtol=1e-5, atol=1e-6
)


def predict(params, x):
    hidden = jnp.dot(x, params["w"], precision="highest")
    return jnp.tanh(hidden) + jnp.take(TABLE, jnp.arange(3))


def factorize(params, x):
    spd = params["w"].T @ params["w"] + 3 * jnp.eye(3)
    return jnp.linalg.solve(jnp.linalg.cholesky(spd), x.T).T


EXPECTED = np.tanh(X @ PARAMS["w"]) + TABLE[:3]


def _values(path, arguments):
    """The results of a file in JAX, on whatever that process has."""
    found = bridge.load(path).signatures[KEY](*arguments)
    return jax.device_get(found), str(jax.default_backend())


def _in_tensorflow(path, x):
    """The results of a file in TensorFlow, and the gradient of their sum."""
    tf = pytest.importorskip("tensorflow")
    loaded = tf.saved_model.load(str(path))
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        (found,) = loaded.signatures[KEY](x=x).values()
    return found.numpy(), tape.gradient(found, x).numpy()


def _gradient(function):
    return jax.jit(jax.grad(lambda x: function(x).sum()))(X)


OPTIONS = {
    "residuals": {"residuals": True},
    "kept_constants": {"hoist_constants": None},
    "hoisted_constants": {"hoist_constants": 1},
    "buckets": {"batch_buckets": (1, 8)},
    "oldest": {"tensorflow": "2.18"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options(options, tmp_path):
    """A file that this machine writes, of all platforms, read here."""
    bridge.save(predict, tmp_path / "m", params=PARAMS, args="f32[b,3]", **options)
    model = bridge.load(tmp_path / "m")
    close(model(X), EXPECTED)
    gradient = np.asarray(jax.grad(lambda x: predict(PARAMS, x).sum())(X))
    close(_gradient(model), gradient)
    for values, expected in zip(
        _in_tensorflow(tmp_path / "m", X), (EXPECTED, gradient), strict=True
    ):
        close(values, expected)


@pytest.mark.parametrize("platforms", [None, ["cuda"]], ids=["all", "cuda"])
def test_files_that_the_device_makes(platforms, on_cpu, tmp_path):
    """A CPU reads what is for all platforms, and refuses what is for another one alone."""
    if platforms and jax.default_backend() != "gpu":
        platforms = ["cpu"]
    options = {"platforms": platforms, "params": PARAMS, "args": "f32[4,3]"}
    bridge.save(factorize, tmp_path / "m", **options)
    expected = np.asarray(factorize(PARAMS, X))
    np.testing.assert_allclose(bridge.load(tmp_path / "m")(X), expected, rtol=1e-2, atol=1e-2)
    if platforms == ["cuda"]:
        with pytest.raises(bridge.PlatformError, match="platform"):
            on_cpu(_values, tmp_path / "m", (X,))
        return
    found, backend = on_cpu(_values, tmp_path / "m", (X,))
    assert backend == "cpu"
    np.testing.assert_allclose(found, expected, rtol=1e-2, atol=1e-2)


def test_lapack(tmp_path):
    """The solver of the device itself, in a file for the platform of the device alone."""
    platform = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
    options = {"platforms": [platform], "params": PARAMS, "args": "f32[4,3]", "linalg": "lapack"}
    bridge.save(factorize, tmp_path / "m", **options)
    expected = np.asarray(factorize(PARAMS, X))
    np.testing.assert_allclose(bridge.load(tmp_path / "m")(X), expected, rtol=1e-2, atol=1e-2)


def test_state(tmp_path):
    """A signature that assigns, in both frameworks."""
    step = lambda params, x: ({"total": params["total"] + x.sum(0)}, params["total"])  # noqa: E731
    params = {"total": np.zeros(3, np.float32)}
    bridge.save(step, tmp_path / "m", params=params, args="f32[b,3]", updates=0)
    tf = pytest.importorskip("tensorflow")
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    for count in (0, 1, 2):
        (before,) = loaded.signatures[KEY](x=tf.constant(X)).values()
        close(before, count * X.sum(0))
    model = bridge.load(tmp_path / "m")
    close(jax.tree.leaves(model(X))[0], X.sum(0))


def _to_cpu(path):
    bridge.save(lambda x: x * 2, path, args="f32[3]", platforms=["cpu"], disabled_checks=())


def _to_cpu_unchecked(path):
    bridge.save(
        lambda x: x * 2, path, args="f32[3]", platforms=["cpu"], disabled_checks=["platform"]
    )


def test_a_file_for_cpus_alone(on_cpu, tmp_path):
    """It is refused on an accelerator, unless the file says that platforms are not checked."""
    x = np.ones(3, np.float32)
    on_cpu(_to_cpu, tmp_path / "checked")
    on_cpu(_to_cpu_unchecked, tmp_path / "unchecked")
    tf = pytest.importorskip("tensorflow")
    checked = tf.saved_model.load(str(tmp_path / "checked"))
    if not on_accelerator():
        close(bridge.load(tmp_path / "checked")(x), 2 * x)
        close(checked(tf.constant(x)), 2 * x)
    else:
        with pytest.raises(bridge.PlatformError, match="cpu"):
            bridge.load(tmp_path / "checked")(x)
        with pytest.raises(tf.errors.NotFoundError, match="not among the platforms"):
            checked(tf.constant(x))
    close(bridge.load(tmp_path / "unchecked")(x), 2 * x)
    close(tf.saved_model.load(str(tmp_path / "unchecked"))(tf.constant(x)), 2 * x)


def test_every_device_of_the_process(written):
    """Parameters and arguments on each of the devices, where there are several."""
    file = written("batch")
    model = bridge.load(file.path)
    for device in jax.devices():
        with jax.default_device(device):
            leaves = jax.tree.leaves(model(*file.calls[0].arguments))
        assert {leaf.device for leaf in leaves} == {device}


@pytest.mark.parametrize("mode", ["eager", "jit", "grad"])
def test_call_tf(mode):
    """TensorFlow on the device, called by JAX on the device."""
    tf = pytest.importorskip("tensorflow")
    f = bridge.call_tf(lambda x: tf.tanh(x) * 2.0)
    calls = {"eager": f, "jit": jax.jit(f), "grad": jax.jit(jax.grad(lambda x: f(x).sum()))}
    expected = 2 / np.cosh(X) ** 2 if mode == "grad" else 2 * np.tanh(X)
    found = calls[mode](jnp.asarray(X))
    assert found.device == jax.devices()[0]
    close(found, expected)


@pytest.mark.parametrize("mode", ["eager", "graph", "compiled"])
def test_convert(mode):
    tf = pytest.importorskip("tensorflow")
    run = bridge.convert(predict)
    if mode != "eager":
        run = tf.function(run, jit_compile=mode == "compiled", autograph=False)
    close(run(PARAMS, tf.constant(X)), EXPECTED)
