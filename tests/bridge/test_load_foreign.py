"""`bridge.load` of files that other programs wrote, each in a process of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from tests.foreign.files import read_foreign
from xla_call_module.errors import FormatError, StructureError

TESTS = Path(__file__).parents[1]
# For each program whether its files have gradients.
WRITERS = {"jax2tf": True, "keras": True, "bare_graph": False, "session_graph": False}
GOLDEN = {"orbax": True}


@pytest.fixture(scope="module", params=[*WRITERS, *GOLDEN])
def written(request, foreign):
    """The file of a program, and its name."""
    if request.param not in GOLDEN:
        return foreign(request.param), request.param
    return read_foreign(TESTS / "golden" / request.param), request.param


@pytest.fixture(scope="module")
def model(written):
    return bridge.load(written[0].folder)


@pytest.fixture(scope="module")
def values(written):
    """`values(key, kind)`: name -> array."""
    return lambda key, kind: written[0].values.get(key, {}).get(kind, {})


def test_results(model, values):
    tried = 0
    for key, signature in model.signatures.items():
        if not (expected := values(key, "output")):
            continue
        inputs = values(key, "input")
        result = signature(**inputs)
        named = dict(zip(signature.outputs, jax.tree.leaves(result), strict=True))
        for name, array in expected.items():
            np.testing.assert_allclose(named[name], array, rtol=1e-5, atol=1e-6)
        by_position = signature(*(inputs[name] for name in signature.inputs))
        jax.tree.map(np.testing.assert_array_equal, by_position, result)
        tried += 1
    assert tried > 0


def test_gradients(model, values, written):
    has_gradient = (WRITERS | GOLDEN)[written[1]]
    for key, signature in model.signatures.items():
        assert signature.exported.has_vjp() == has_gradient
        if not (cotangents := values(key, "cotangent")):
            continue
        inputs = [values(key, "input")[name] for name in signature.inputs]
        result, pull_back = jax.vjp(signature.exported.call, signature.params, *inputs)
        structure = jax.tree.structure(result)
        of_params, *of_inputs = pull_back(
            structure.unflatten([cotangents[name] for name in signature.outputs])
        )
        for name, found in zip(signature.inputs, of_inputs, strict=True):
            expected = values(key, "gradient")[name]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        for path, expected in values(key, "parameter").items():
            (found,) = (found for name, found in of_params.items() if name.endswith(path))
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_symbolic_dimensions(model, values):
    """A batch of another size, and a new export with a symbolic one."""
    symbolic = 0
    for key, signature in model.signatures.items():
        if not values(key, "input") or not jax.export.is_symbolic_dim(
            next(iter(signature.inputs.values())).shape[0]
        ):
            continue
        symbolic += 1
        inputs = values(key, "input")
        doubled = {
            name: np.concatenate([array, array])
            if jax.export.is_symbolic_dim(signature.inputs[name].shape[:1][0] if array.ndim else 1)
            else array
            for name, array in inputs.items()
        }
        if key == "serving_default" and len(inputs) == 1:
            once, twice = (jax.tree.leaves(signature(**given))[0] for given in (inputs, doubled))
            np.testing.assert_allclose(twice, np.concatenate([once, once]), rtol=1e-5, atol=1e-6)
    assert symbolic or "x" in model.signatures["serving_default"].inputs


def test_it_becomes_a_file_of_ours(model, values, tmp_path):
    signature = model.signatures["serving_default"]
    bridge.save(signature.exported, tmp_path / "model", params=signature.params)
    again = bridge.load(tmp_path / "model")
    inputs = values("serving_default", "input")
    ours = again(*(inputs[name] for name in signature.inputs))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(signature(**inputs)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_integers_and_complex_numbers_of_jax2tf(tmp_path, preloaded_python):
    script = TESTS / "foreign" / "write_jax2tf_kinds.py"
    done = subprocess.run(
        [preloaded_python, script, tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = dict(np.load(tmp_path / "out" / "values.npz"))
    signature = bridge.load(tmp_path / "out" / "model").signatures["serving_default"]
    ids, z = np.array([1, 2, 1], np.int32), np.array([1 + 2j, 3], np.complex64)
    call = signature.exported.call
    results = signature(ids, z)
    for name in ("y", "k", "c"):
        np.testing.assert_allclose(results[name], expected[name], rtol=1e-6)
    of_params = jax.grad(lambda p: call(p, ids, z)["y"].sum(), allow_int=True)(signature.params)
    assert {path: leaf.dtype == jax.dtypes.float0 for path, leaf in of_params.items()} == {
        "params/e": False,
        "params/n": True,
    }
    np.testing.assert_allclose(of_params["params/e"], expected["e"], rtol=1e-6)
    # Where TensorFlow gets this one wrong, what is in the file is right.
    of_z = jax.grad(lambda z: jnp.real(call(signature.params, ids, z)["c"].sum()))(z)
    np.testing.assert_allclose(of_z, expected["z"], rtol=1e-6)


def test_slices_of_jax2tf(tmp_path, preloaded_python):
    script = TESTS / "foreign" / "write_jax2tf_slices.py"
    done = subprocess.run(
        [preloaded_python, script, tmp_path / "out"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = dict(np.load(tmp_path / "out" / "values.npz"))
    signature = bridge.load(tmp_path / "out" / "model").signatures["serving_default"]
    shapes = {str(spec.shape) for spec in signature.outputs.values()}
    assert shapes == {"(min(b, 10), 3)", "(floordiv(b, 2), 3)"}
    report = bridge.inspect(tmp_path / "out" / "model").signatures[0]
    assert {output.shape for output in report.outputs} == {
        ("min(b, 10)", 3),
        ("floordiv(b, 2)", 3),
    }
    call = jax.jit(signature.exported.call)
    for batch in (1, 4, 11, 30):
        x = np.linspace(-1, 1, batch * 3, dtype=np.float32).reshape(batch, 3)
        for name, value in signature(x).items():
            np.testing.assert_allclose(value, expected[f"{name}/{batch}"], rtol=1e-6)
        gradient = jax.grad(lambda x: sum((y**2).sum() for y in call(x).values()))(x)
        np.testing.assert_allclose(gradient, expected[f"x/{batch}"], rtol=1e-6)


class TestPlumbing:
    """What TensorFlow puts around a call is followed."""

    def save(self, function, folder, *specs, **attributes):
        module = tf.Module()
        for name, value in attributes.items():
            setattr(module, name, value)
        module.f = tf.function(function, input_signature=specs, autograph=False)
        tf.saved_model.save(module, folder, signatures={"serving_default": module.f})
        return module

    def test_casts_reshapes_and_constants(self, tmp_path):
        call = bridge.convert(lambda x, y, n: (jnp.sin(x) @ y, n * 2))
        y = np.arange(6, dtype=np.float32).reshape(3, 2)

        def function(x):
            result, n = call(tf.reshape(tf.cast(x, tf.float32), [2, 3]), tf.constant(y), x[0] * 0)
            return {"y": tf.cast(tf.identity(result), tf.float64), "n": n}

        def plain(x):
            result, _ = call(
                tf.reshape(tf.cast(x, tf.float32), [2, 3]), tf.constant(y), tf.constant(3)
            )
            return {"y": tf.reshape(tf.identity(result), [-1])}

        self.save(plain, tmp_path / "model", tf.TensorSpec([6], tf.int32, name="x"))
        x = np.arange(6, dtype=np.int32)
        found = bridge.load(tmp_path / "model")(x)
        expected = np.sin(x.astype(np.float32)).reshape(2, 3) @ y
        np.testing.assert_allclose(found["y"], expected.ravel(), rtol=1e-5)
        self.save(function, tmp_path / "other", tf.TensorSpec([6], tf.int32, name="x"))
        with pytest.raises(StructureError, match=r"Mul \(mul\), StridedSlice.*bridge\.call_tf"):
            bridge.load(tmp_path / "other")

    def test_calls_of_calls(self, tmp_path):
        sine, double = bridge.convert(jnp.sin), bridge.convert(lambda x: x * 2)
        self.save(
            lambda x: double(sine(double(x))), tmp_path / "model", tf.TensorSpec([3], name="x")
        )
        model = bridge.load(tmp_path / "model")
        x = np.linspace(0, 1, 3, dtype=np.float32)
        np.testing.assert_allclose(model(x), 2 * np.sin(2 * x), rtol=1e-5)
        gradient = jax.grad(lambda x: model(x).sum())(x)
        np.testing.assert_allclose(gradient, 4 * np.cos(2 * x), rtol=1e-5)

    def test_variables_of_a_module(self, tmp_path):
        call = bridge.convert(lambda x, w, n: (x @ w + n, n + 1), polymorphic_shapes="auto")
        w, n = tf.Variable(np.eye(3, dtype=np.float32) * 2), tf.Variable(5)
        self.save(
            lambda x: call(x, w, n), tmp_path / "model", tf.TensorSpec([None, 3], name="x"),
            weight=w, count=n,
        )  # fmt: skip
        signature = bridge.load(tmp_path / "model").signatures["serving_default"]
        assert sorted(signature.params) == ["count", "weight"]
        x = np.ones((2, 3), np.float32)
        result, count = signature(x)
        np.testing.assert_array_equal(result, np.full((2, 3), 7, np.float32))
        assert count == 6
        gradients = jax.grad(lambda p: signature.exported.call(p, x)[0].sum(), allow_int=True)(
            signature.params
        )
        np.testing.assert_array_equal(gradients["weight"], np.full((3, 3), 2, np.float32))
        assert gradients["count"].dtype == jax.dtypes.float0

    def test_a_wrapper_that_swaps(self, tmp_path):
        """What is around a call of ours decides, not the names that it was saved with."""
        exported = jax.export.export(jax.jit(lambda *, x, y: {"a": x - y, "b": x + 1}))
        spec = jax.ShapeDtypeStruct((3,), np.float32)
        bridge.save(exported(x=spec, y=spec), tmp_path / "inner")
        inner = tf.saved_model.load(tmp_path / "inner")

        def swapped(x, y):
            results = inner.signatures["serving_default"](x=y, y=x)
            return {"a": results["b"], "b": results["a"]}

        specs = [tf.TensorSpec([3], name=name) for name in "xy"]
        self.save(swapped, tmp_path / "model", *specs, inner=inner)
        x, y = np.arange(3, dtype=np.float32), np.full(3, 10, np.float32)
        found = bridge.load(tmp_path / "model")(x=x, y=y)
        np.testing.assert_array_equal(found["a"], y + 1)
        np.testing.assert_array_equal(found["b"], y - x)

    def test_one_input_for_two_arguments(self, tmp_path):
        call = bridge.convert(lambda x, y: x - 2 * y)
        self.save(lambda x: call(x, x), tmp_path / "model", tf.TensorSpec([3], name="x"))
        x = np.arange(3, dtype=np.float32)
        np.testing.assert_array_equal(bridge.load(tmp_path / "model")(x), -x)

    def test_casts_to_wide_dtypes(self, tmp_path):
        call = bridge.convert(lambda n: n * 1)

        def function(n):
            return {"y": tf.cast(tf.cast(call(n), tf.float64), tf.int32)}

        self.save(function, tmp_path / "model", tf.TensorSpec([1], tf.int32, name="n"))
        n = np.array([2**24 + 1], np.int32)
        np.testing.assert_array_equal(bridge.load(tmp_path / "model")(n)["y"], n)

    def test_constants_in_fields_of_their_own(self, tmp_path):
        call = bridge.convert(lambda x, *rest: (x, *rest))

        def function(x):
            constants = [tf.constant(1.5, tf.half), tf.constant(1 + 2j, tf.complex64)]
            return dict(zip("abc", call(x, *constants), strict=True))

        self.save(function, tmp_path / "model", tf.TensorSpec([1], name="x"))
        found = bridge.load(tmp_path / "model")(np.ones(1, np.float32))
        assert (found["b"].dtype, found["b"]) == (np.float16, 1.5)
        assert (found["c"].dtype, found["c"]) == (np.complex64, 1 + 2j)

    def test_symbols_of_two_calls(self, tmp_path):
        call = bridge.convert(lambda x: x * 2, polymorphic_shapes="auto")
        self.save(
            lambda x, y: {"p": call(x), "q": call(y)},
            tmp_path / "model",
            tf.TensorSpec([None], name="x"),
            tf.TensorSpec([None], name="y"),
        )
        found = bridge.load(tmp_path / "model")(np.ones(2, np.float32), np.ones(5, np.float32))
        assert (found["p"].shape, found["q"].shape) == ((2,), (5,))

    def test_sizes_that_do_not_follow(self, tmp_path):
        call = bridge.convert(lambda x, y: x + y, polymorphic_shapes=["b", "b"])
        self.save(
            lambda x: call(x, tf.ones([5])), tmp_path / "model", tf.TensorSpec([None], name="x")
        )
        signature = bridge.load(tmp_path / "model").signatures["serving_default"]
        with pytest.raises(StructureError, match=r"not a JAX function of symbolic shapes.*call_tf"):
            _ = signature.exported

    def test_functions_without_signatures(self, tmp_path):
        module = tf.Module()
        module.double = tf.function(
            bridge.convert(lambda x, y: (x * 2, y + 1)),
            input_signature=[tf.TensorSpec([2]), tf.TensorSpec([2])],
            autograph=False,
        )
        tf.saved_model.save(module, tmp_path / "model", signatures={})
        model = bridge.load(tmp_path / "model")
        assert list(model.signatures) == ["double"]
        x = np.ones(2, np.float32)
        np.testing.assert_array_equal(model(x, x)[0], [2, 2])

    def test_no_call_at_all(self, tmp_path):
        self.save(lambda x: {"y": tf.identity(x)}, tmp_path / "model", tf.TensorSpec([3], name="x"))
        with pytest.raises(FormatError, match="calls no StableHLO module"):
            bridge.load(tmp_path / "model")
