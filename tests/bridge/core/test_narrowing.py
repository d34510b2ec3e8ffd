"""Numbers of 64 bits while JAX has none: as JAX narrows them where that keeps them, or refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64

import bridge
from bridge.batching.batches import BatchedSignature
from bridge.core.narrowing import check_narrowing, narrow_array
from bridge.keras import ExportedLayer
from xla_call_module.errors import DtypeError

LARGE = np.array([2**40, 1, 2])
# Some that 32 bits do not hold, the dtype that JAX has for them, and what is said of them.
BEYOND = {
    "int64": (LARGE, "int64 with the value 1099511627776, which int32 does not hold"),
    "least": (np.array([-(2**31) - 1]), "int64 with the value -2147483649"),
    "uint64": (np.array([2**32], np.uint64), "uint64 with the value 4294967296, which uint32"),
    "float64": (np.array([[0.5], [-1e300]]), r"float64 with the value -1e\+300, which float32"),
    "complex128": (np.array([1, 1e300j]), "complex128 with the value .*which complex64"),
}
WITHIN = {
    "int64": np.array([2**31 - 1, -(2**31)]),
    "uint64": np.array([2**32 - 1], np.uint64),
    "float64": np.array([0.1, np.inf, np.nan, 3e38, 1e-300]),
    "complex128": np.array([0.1 + 2j, complex(np.inf, 0)]),
    "nothing": np.zeros((0, 3), np.int64),
}


@pytest.mark.parametrize("name", WITHIN)
def test_what_is_held_is_what_jax_has(name):
    with np.errstate(over="ignore", under="ignore"):
        got, want = narrow_array(WITHIN[name], "x"), np.asarray(jnp.asarray(WITHIN[name]))
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "verb",
    [
        lambda params, path: bridge.save(_scale, path, params=params, args="f32[3]"),
        lambda params, path: bridge.to_onnx(_scale, params=params, args="f32[3]"),
        lambda params, path: bridge.to_litert(_scale, params=params, args="f32[3]"),
        lambda params, path: ExportedLayer(_scale, params=params),
    ],
)
def test_parameters_that_are_rounded_have_a_warning(verb, tmp_path):
    rounded = {"a": np.float64(2), "w": np.array([0.1, 0.5]), "z": np.array([1j / 3])}
    match = r"params\['w'\] and 1 more of 64 bits become numbers of 32 bits.*To do: cast them"
    with pytest.warns(UserWarning, match=match):
        verb(rounded, tmp_path / "rounded")
    exact = {"a": 0.1, "w": np.array([0.5, np.nan, np.inf]), "z": np.arange(3)}
    verb(exact, tmp_path / "exact")


def test_parameters_that_jax_has_have_no_warning(tmp_path):
    with enable_x64():
        params = {"a": 1.0, "w": np.array([0.1]), "z": 1.0}
        bridge.save(_scale, tmp_path / "wide", params=params, args="f64[3]")


def _scale(params, x):
    return params["a"] * x * params["w"][0] * jnp.real(params["z"])


@pytest.mark.parametrize("name", BEYOND)
def test_what_is_not_held(name):
    array, message = BEYOND[name]
    for strided in (array, np.stack([array, array])[:, ::-1], np.asfortranarray(array)):
        with pytest.raises(DtypeError, match=f"^x is {message}"):
            narrow_array(strided, "x")
    with enable_x64():
        check_narrowing(array, "x")


def _add(params, x):
    return x + params["n"].sum().real.astype(jnp.float32)


X = np.ones(3, np.float32)


class TestParameters:
    @pytest.mark.parametrize("name", BEYOND)
    def test_of_a_file(self, tmp_path, name):
        array, message = BEYOND[name]
        with pytest.raises(DtypeError, match=f"The parameter n is {message}"):
            bridge.save(_add, tmp_path / "m", params={"n": array}, args=(X,))
        assert list(tmp_path.iterdir()) == []

    def test_of_an_exported(self, tmp_path):
        exported = jax.export.export(jax.jit(_add))({"n": np.zeros(3, np.int32)}, X)
        with pytest.raises(DtypeError, match="The parameter n is int64 with the value"):
            bridge.save(exported, tmp_path / "m", params={"n": LARGE})
        with pytest.raises(DtypeError, match="The parameter n is int64 with the value"):
            bridge.to_onnx(exported, params={"n": LARGE})

    def test_of_the_command(self, tmp_path, monkeypatch, capsys):
        from bridge.cli.main import main

        (tmp_path / "of_a_file.py").write_text("def add(p, x):\n    return x + p['n'].sum()\n")
        monkeypatch.syspath_prepend(tmp_path)
        np.savez(tmp_path / "p.npz", n=LARGE)
        words = ["export", "of_a_file:add", "--out", str(tmp_path / "m"), "--args", "f32[3]"]
        assert main([*words, "--params", str(tmp_path / "p.npz")]) != 0
        assert "The parameter n is int64 with the value" in capsys.readouterr().err

    def test_of_a_layer(self):
        from bridge.tf_keras import ExportedLayer

        with pytest.raises(DtypeError, match="n is int64 with the value"):
            ExportedLayer(_add, params={"n": LARGE})(X)

    def test_that_are_held(self, tmp_path):
        bridge.save(_add, tmp_path / "m", params={"n": np.array([1, 2])}, args=(X,))
        np.testing.assert_array_equal(bridge.load(tmp_path / "m")(X), X + 3)


class TestArguments:
    @pytest.mark.parametrize("name", BEYOND)
    @pytest.mark.parametrize("in_graph", [False, True])
    def test_of_what_is_converted(self, name, in_graph):
        array, message = BEYOND[name]
        converted = bridge.convert(lambda x: x * 2)
        call = tf.function(lambda: converted(array)) if in_graph else lambda: converted(array)
        with pytest.raises(DtypeError, match=f"args\\[0\\] is {message}"):
            call()

    def test_tensors_of_what_is_converted(self):
        converted = bridge.convert(lambda x: x * 2)
        with pytest.warns(UserWarning, match="is a int64 tensor"):
            np.testing.assert_array_equal(converted(tf.constant([1, 2], tf.int64)), [2, 4])
        with pytest.raises(DtypeError, match=r"args\[0\] is int64 with the value 1099511627776"):
            converted(tf.constant(LARGE[:2]))

    @pytest.mark.parametrize("number", [1e300, -1e300j])
    def test_python_numbers(self, number):
        with pytest.raises(DtypeError, match=r"args\[0\] is (float64|complex128) with the value"):
            bridge.convert(lambda x: x * 2)(number)

    @pytest.fixture
    def loaded(self, tmp_path):
        place = tmp_path / "m"
        bridge.save({"f": lambda x: x * 2, "i": lambda x: x + 1}, place, args={
            "f": "f32[b]", "i": "i32[b]"})  # fmt: skip
        return bridge.load(place).signatures

    @pytest.mark.parametrize(("key", "name"), [("f", "float64"), ("i", "int64")])
    def test_of_what_is_loaded(self, loaded, key, name):
        array, message = BEYOND[name]
        for call in (lambda: loaded[key](array.reshape(-1)), lambda: loaded[key](x=array.ravel())):
            with pytest.raises(DtypeError, match=f"x of {key} is {message}"):
                call()
        np.testing.assert_array_equal(loaded["i"](np.array([1, 2])), [2, 3])

    def test_of_batches(self, loaded):
        with pytest.raises(DtypeError, match="x of i is int64 with the value 1099511627776"):
            BatchedSignature(loaded["i"])([1, 2**40])
        assert BatchedSignature(loaded["i"])([1, 2]) == [2, 3]

    def test_of_a_tensorflow_function(self):
        call = bridge.call_tf(tf.function(lambda x: x + 1))
        with pytest.raises(DtypeError, match=r"args\[0\] is int64 with the value"):
            call(LARGE)

    def test_of_a_test(self):
        from bridge.testing import assert_gradients_match

        with pytest.raises(DtypeError, match=r"args\[0\] is float64 with the value"):
            assert_gradients_match(lambda x: x * 2, np.array([1e300]))
