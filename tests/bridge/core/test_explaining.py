"""Errors of tracing a function have a sentence in front that says what to do."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.keras import ExportedLayer
from tests.jax_versions import INCONCLUSIVE
from xla_call_module.errors import ArgumentError, InteropError, StructureError, UnsupportedError

X = np.ones((4, 3), np.float32)
UNSORTABLE = {1: X, "a": X}


@pytest.fixture
def save(tmp_path):
    return lambda model, args, **options: bridge.save(model, tmp_path / "m", args=args, **options)


@pytest.mark.parametrize(
    ("function", "args", "error", "match"),
    [
        (
            lambda x, train: x if train else -x,
            "f32[3], bool[]",
            jax.errors.TracerBoolConversionError,
            r"<lambda> takes an argument as a Python value at .*\.py:\d+, as `if`.*partial",
        ),
        (
            lambda x, n: jnp.zeros(n) + x,
            "f32[3], i32[]",
            ArgumentError,
            r"the value of an array as a size at .*\.py:\d+.*bind it",
        ),
        (
            lambda x: np.tanh(x),
            "f32[3]",
            jax.errors.TracerArrayConversionError,
            r"hands a traced array to NumPy at .*\.py:\d+.*jnp\.tanh",
        ),
        (
            lambda x: tf.math.sin(x),
            "f32[3]",
            jax.errors.TracerArrayConversionError,
            r"hands a traced array to TensorFlow at .*explaining\.py:\d+.*bridge\.call_tf",
        ),
        (
            lambda x: x * float(x.sum()),
            "f32[3]",
            jax.errors.ConcretizationTypeError,
            r"an array as a Python number at .*explaining\.py:\d+, as float\(x\).*x / x\.sum",
        ),
        (
            lambda x: sum(x[i] for i in range(x.argmax())),
            "f32[3]",
            jax.errors.TracerIntegerConversionError,
            r"an array as a Python number at .*explaining\.py:\d+",
        ),
        (
            lambda x: x[x > 0],
            "f32[3]",
            jax.errors.NonConcreteBooleanIndexError,
            r"selects by a mask at .*explaining\.py:\d+, as in x\[x > 0\].*size=8",
        ),
        (
            lambda x: {"label": "cat", "x": x},
            "f32[3]",
            ArgumentError,
            r"not an array.*'str'.*label",
        ),
        (
            lambda x: np.zeros(x.shape) + x,
            "f32[b,3]",
            ArgumentError,
            r"with a fixed size.*_DimExpr",
        ),
        (
            lambda x: jnp.linspace(0, 1, x.shape[0]),
            "f32[b,3]",
            INCONCLUSIVE,
            r"export it with a fixed size.*is inconclusive",
        ),
        (
            lambda x, y: x @ y.T,
            tuple(
                jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), "float32")
                for shape in ("b, 3", "c, 3")
            ),
            StructureError,
            r"symbolic sizes of several scopes.*To do: pass scope=",
        ),
        (lambda x: {1: x, "a": x}, "f32[3]", StructureError, "has a dict whose keys have no order"),
    ],
)
def test_what_jax_refuses(save, function, args, error, match):
    with pytest.raises(error, match=f"(?s){match}") as caught:
        save(function, args)
    assert isinstance(caught.value, InteropError)
    assert caught.value.__cause__ is not None


def test_the_line_is_that_of_the_mistake(save):
    def model(x):
        y = x + 1
        return np.tanh(y)  # this line

    with pytest.raises(StructureError) as caught:
        save(model, "f32[3]")
    lines = Path(__file__).read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if text.endswith("# this line"))
    assert re.findall(r"\.py:(\d+)", str(caught.value)) == [str(line)]


def test_errors_of_the_function_are_its_own(save):
    def fail(x):
        raise ValueError("of the function")

    with pytest.raises(ValueError, match=r"^of the function") as caught:
        save(fail, "f32[3]")
    assert not isinstance(caught.value, InteropError)


def test_in_a_tf_function():
    call = tf.function(bridge.convert(lambda x, train: x if train else -x))
    with pytest.raises(StructureError, match="takes an argument as a Python value"):
        call(X, tf.constant(value=True))


def test_haiku_without_a_key(save):
    hk = pytest.importorskip("haiku")
    model = hk.transform(lambda x: hk.dropout(hk.next_rng_key(), 0.5, x))
    with pytest.raises(StructureError, match=r"Haiku function draws random.*is_training=False"):
        save(model, (X,), params={})


def test_linen_in_training(save):
    nn = pytest.importorskip("flax.linen")
    flax_errors = pytest.importorskip("flax.errors")
    norm, dropout = nn.BatchNorm(), nn.Dropout(0.5, deterministic=False)
    variables = norm.init(jax.random.key(0), X, use_running_average=True)
    train = functools.partial(norm.apply, use_running_average=False)
    with pytest.raises(flax_errors.ModifyScopeVariableError, match=r"changes its state.*mutable="):
        save(train, (X,), params=variables)
    with pytest.raises(flax_errors.InvalidRngError, match=r"draws random numbers.*deterministic="):
        save(dropout.apply, (X,), params={"params": {}})


class TestCallbacks:
    def test_the_line(self, save):
        def inner(x):
            return jax.lax.cond(x[0] > 0, lambda: jax.pure_callback(np.sin, x, x), lambda: x)

        with pytest.raises(UnsupportedError, match=r"Python at .*test_explaining\.py:\d+, and"):
            save(lambda x: jax.jit(inner)(x), "f32[3]")

    def test_printing(self, save):
        with pytest.raises(UnsupportedError, match=r"leave .*debug\.print out.*replaces\.\n"):
            save(lambda x: [jax.debug.print("x {}", x), x][1], "f32[3]")

    def test_a_check_of_equinox(self, save):
        eqx = pytest.importorskip("equinox")
        with pytest.raises(UnsupportedError, match=r"error_if at .*ing\.py:\d+.*EQX_ON_ERROR=nan"):
            save(lambda x: eqx.error_if(x, jnp.any(x > 10), "too large"), "f32[3]")


@pytest.mark.parametrize("place", ["argument", "parameters", "of an Exported", "layer", "call"])
def test_keys_without_an_order(save, place):
    exported = jax.export.export(jax.jit(lambda tree: tree["a"]))({"a": X})
    calls = {
        "argument": lambda: bridge.convert(lambda tree: tree[1])(UNSORTABLE),
        "parameters": lambda: save(lambda params, x: x, (X,), params=UNSORTABLE),
        "of an Exported": lambda: save(exported, None, params=UNSORTABLE),
        "layer": lambda: ExportedLayer(lambda params, x: x, params=UNSORTABLE)(X),
        "call": lambda: bridge.call_tf(lambda tree: tree[1])(UNSORTABLE),
    }
    with pytest.raises(StructureError, match="has a dict whose keys have no order"):
        calls[place]()


def test_keys_of_a_result_without_an_order():
    with pytest.raises(StructureError, match="A result has a dict whose keys have no order"):
        bridge.call_tf(lambda x: {1: x, "a": x})(X)


def test_numbers_as_keys_of_a_layer():
    layer = ExportedLayer(lambda tree: {10: tree[9] * 2, 9: tree[10]})
    found = layer({10: X, 9: X + 1})
    np.testing.assert_array_equal(found["10"], (X + 1) * 2)


class TestRandomNumbers:
    """An nnx.RNN draws a key for a carry that is zeros."""

    @pytest.fixture
    def model(self):
        nnx = pytest.importorskip("flax.nnx")

        class Network(nnx.Module):
            def __init__(self):
                rngs = nnx.Rngs(0)
                self.recurrent = nnx.RNN(nnx.LSTMCell(3, 2, rngs=rngs))
                self.dropout = nnx.Dropout(0.5, rngs=rngs)

            def __call__(self, x):
                return self.dropout(self.recurrent(x))

        return Network()

    def test_results_that_do_not_depend_on_them(self, model, tmp_path):
        model.eval()
        bridge.save(model, tmp_path / "m", args="f32[b,4,3]")
        found = bridge.load(tmp_path / "m")(X[None])
        np.testing.assert_allclose(found, model(X[None]), rtol=1e-5, atol=1e-6)

    def test_results_that_do(self, model, save):
        with pytest.raises(StructureError, match=r"on which its results depend.*initial_carry="):
            save(model, "f32[2,4,3]")
