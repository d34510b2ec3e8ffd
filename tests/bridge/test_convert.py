"""`bridge.convert`: what a TensorFlow user passes and gets, in every way to run a function."""

from __future__ import annotations

import collections
import threading
import warnings
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from xla_call_module.errors import DtypeError, InteropError, StructureError

Pair = collections.namedtuple("Pair", ["left", "right"])
X = np.linspace(-1, 1, 6).astype(np.float32).reshape(2, 3)


@pytest.fixture(params=["eager", "graph", "jit", "reloaded"])
def mode(request, tmp_path):
    """How a converted function is run on tensors."""
    if request.param == "eager":
        return lambda f: f
    if request.param in ("graph", "jit"):
        return lambda f: tf.function(f, jit_compile=request.param == "jit")

    def reload(f):
        def run(*args):
            module = tf.Module()
            module.f = tf.function(f)
            module.f.get_concrete_function(*tf.nest.map_structure(_spec, args))
            tf.saved_model.save(module, str(tmp_path / "m"))
            return tf.saved_model.load(str(tmp_path / "m")).f(*args)

        return run

    return reload


def _spec(tensor):
    return (
        tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)
        if tensor.shape.rank
        else (tf.TensorSpec([], tensor.dtype))
    )


FUNCTIONS = {
    "two results": lambda x: (jnp.sin(x), x.sum()),
    "a dict": lambda x: {"y": x * 2, "n": {"shape": x.shape[0] + jnp.zeros((), jnp.int32)}},
    "a composite": lambda x: jax.scipy.special.erf(x) + jnp.sinh(x),
    "a loop": lambda x: jax.lax.fori_loop(0, 5, lambda _, y: jnp.tanh(y) + x, x),
    "a scan": lambda x: jax.lax.scan(lambda c, row: (c + row, c * row), x[0], x)[1],
    "integers": lambda x: (x * 100).astype(jnp.int32) // 3,
    "an argument": lambda x: (x, x),
    "bfloat16": lambda x: x.astype(jnp.bfloat16) @ x.T.astype(jnp.bfloat16),
    "complex": lambda x: jnp.fft.fft(x + 1j),
    "empty": lambda x: x[:0],
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name, mode):
    function = FUNCTIONS[name]
    found = mode(bridge.convert(function, polymorphic_shapes="auto"))(tf.constant(X))
    expected = jax.tree.map(np.asarray, function(jnp.asarray(X)))
    assert jax.tree.structure(_plain(found)) == jax.tree.structure(_plain(expected))
    for ours, theirs in zip(
        jax.tree.leaves(_plain(found)), jax.tree.leaves(_plain(expected)), strict=True
    ):
        assert (ours.dtype.name, ours.shape) == (theirs.dtype.name, theirs.shape)
        # two builds of XLA's CPU compiler; bfloat16 has 8 bits
        rtol = 1e-2 if name == "bfloat16" else 1e-5
        np.testing.assert_allclose(
            ours.numpy().astype(np.complex128), theirs.astype(np.complex128), rtol=rtol, atol=1e-5
        )


def _plain(tree):
    """A saved function returns lists for tuples."""
    if isinstance(tree, dict):
        return {key: _plain(value) for key, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def test_the_first_gradient(mode):
    function = lambda x: jnp.tanh(x) ** 2  # noqa: E731
    converted = bridge.convert(function, polymorphic_shapes="b, _")

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        return tape.gradient(y, x)

    expected = jax.grad(lambda x: function(x).sum())(X)
    np.testing.assert_allclose(mode(gradient)(tf.constant(X)), expected, rtol=1e-5, atol=1e-6)


def test_gradient_through_a_reloaded_function(tmp_path):
    module = tf.Module()
    module.w = tf.Variable([2.0, 3.0])
    converted = bridge.convert(lambda w, x: jnp.tanh(w * x))
    module.f = tf.function(
        lambda x: converted(module.w, x), input_signature=[tf.TensorSpec([2], tf.float32)]
    )
    tf.saved_model.save(module, str(tmp_path / "m"))
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    x = tf.constant([0.1, 0.2])
    with tf.GradientTape() as tape:
        y = loaded.f(x)
    expected = jax.grad(lambda w: jnp.tanh(w * x.numpy()).sum())(np.array([2.0, 3.0], np.float32))
    np.testing.assert_allclose(tape.gradient(y, loaded.w), expected, rtol=1e-5)


class TestArguments:
    @pytest.mark.parametrize(
        "value",
        [
            np.float32(2),
            np.array(2.0, np.float32),
            jnp.float32(2),
            tf.constant(2.0),
            tf.Variable(2.0),
            2.0,
            2,
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_whatever_a_user_passes(self, value):
        converted = bridge.convert(lambda x, y: x * y)
        assert converted(tf.constant([1.0, 2.0]), value).numpy().tolist() == [2.0, 4.0]

    def test_python_numbers_are_weak(self):
        converted = bridge.convert(lambda x, y: x * y)
        assert converted(tf.constant([1.5], tf.bfloat16), 2.0).dtype == tf.bfloat16
        assert converted(tf.constant([1], tf.int8), 2).dtype == tf.int8
        assert converted(tf.constant([1], tf.int8), 2.5).dtype == tf.float32

    def test_pytrees_and_keywords(self):
        def function(pair, rest, *, scale, nothing):
            assert nothing is None
            return Pair(pair.left * scale, [rest[0] + rest[1]["deep"]])

        result = bridge.convert(function)(
            Pair(tf.constant(1.0), tf.constant(2.0)),
            (tf.constant(3.0), {"deep": np.float32(4)}),
            scale=5.0,
            nothing=None,
        )
        assert isinstance(result, Pair)
        assert float(result.left) == 5
        assert float(result.right[0]) == 7

    def test_containers_that_a_module_swaps_in(self):
        module = tf.Module()
        module.params = {
            "layers": [tf.Variable(1.0), tf.Variable(2.0)],
            "pair": (tf.Variable(3.0),),
        }
        assert type(module.params) is not dict
        converted = bridge.convert(lambda p: p["layers"][1] * p["pair"][0])
        assert float(converted(module.params)) == 6
        with tf.GradientTape() as tape:
            y = converted(module.params)
        assert float(tape.gradient(y, module.params["layers"][1])) == 3

    def test_typed_keys(self):
        key = jax.random.key(3)
        expected = jax.random.normal(key, (2,))
        converted = bridge.convert(lambda key: (jax.random.normal(key, (2,)), key))
        values, same = converted(key)
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_array_equal(same, jax.random.key_data(key))
        exported = jax.export.export(jax.jit(lambda key: jax.random.normal(key, (2,))))(key)
        data = tf.constant(np.asarray(jax.random.key_data(key)))
        np.testing.assert_array_equal(bridge.convert(exported)(data), expected)

    def test_no_arguments_and_no_results(self):
        assert bridge.convert(lambda: jnp.arange(3))().numpy().tolist() == [0, 1, 2]
        assert bridge.convert(lambda x: {})(1.0) == {}

    @pytest.mark.parametrize("value", [object(), [object()].append])
    def test_no_tensor(self, value):
        with pytest.raises(StructureError, match=r"args\[0\]\['a'\]\[1\] is .*expected a tensor"):
            bridge.convert(lambda x: x)({"a": [1.0, value]})

    def test_a_dtype_that_jax_lacks(self):
        with pytest.raises(InteropError, match=r"args\[1\].*string"):
            bridge.convert(lambda x, y: x)(1.0, tf.constant("text"))


class TestTraces:
    def test_once_for_equal_specs(self):
        traces = []

        def function(x):
            traces.append(x.shape)
            return x + 1

        converted = bridge.convert(function)
        for _ in range(3):
            converted(tf.zeros([2]))
            converted(np.zeros(2, np.float32))
        assert len(traces) == 1
        converted(tf.zeros([3]))
        converted(tf.zeros([3], tf.int32))
        assert len(traces) == 3

    def test_one_for_all_sizes_of_a_symbol(self):
        traces = []

        def function(x):
            traces.append(x.shape)
            return x.sum(0)

        converted = bridge.convert(function, polymorphic_shapes="b, _")
        for size in (1, 2, 5):
            assert converted(tf.ones([size, 3])).numpy().tolist() == [size] * 3
        assert len(traces) == 1

    def test_the_gradient_does_not_trace_again(self):
        traces = []

        def function(x):
            traces.append(x.shape)
            return x**2

        converted = bridge.convert(function)
        for _ in range(2):
            x = tf.constant([3.0])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = converted(x)
            assert tape.gradient(y, x).numpy().tolist() == [6.0]
        assert len(traces) == 1

    def test_threads(self):
        traces, results = [], []

        def function(x):
            traces.append(x.shape)
            return x * 2

        converted = bridge.convert(function)
        threads = [
            threading.Thread(target=lambda: results.append(converted(tf.constant([1.0]))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result.numpy().tolist() for result in results] == [[2.0]] * 8
        assert len(traces) == 1


class TestShapes:
    def _outputs(self, converted, *shapes):
        specs = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
        outputs = tf.function(converted).get_concrete_function(*specs).structured_outputs
        return tf.nest.map_structure(lambda t: t.shape.as_list(), outputs)

    def test_auto(self):
        converted = bridge.convert(
            lambda x, y: (x @ y.T, jnp.concatenate([x, x])), polymorphic_shapes="auto"
        )
        assert self._outputs(converted, [None, 3], [None, 3]) == ([None, None], [None, 3])

    def test_auto_shares_dimension_0_and_no_other(self):
        converted = bridge.convert(lambda x, y: x + y, polymorphic_shapes="auto")
        assert self._outputs(converted, [None, 3], [None, 3]) == [None, 3]
        with pytest.raises(TypeError, match="incompatible shapes"):
            self._outputs(converted, [2, None], [2, None])

    def test_results_are_as_static_as_the_arguments(self):
        converted = bridge.convert(
            lambda x: (x, jnp.concatenate([x, x]), x.reshape(-1)), polymorphic_shapes="b, n"
        )
        assert self._outputs(converted, [4, 3]) == ([4, 3], [8, 3], [12])
        assert self._outputs(converted, [None, 3]) == ([None, 3], [None, 3], [None])

    def test_a_prefix_of_the_arguments(self):
        converted = bridge.convert(
            lambda d, y: d["a"] + d["b"] + y,
            polymorphic_shapes=[{"a": "b, _", "b": "b, ..."}, None],
        )
        specs = (
            {"a": tf.TensorSpec([None, 3]), "b": tf.TensorSpec([None, 3])},
            tf.TensorSpec([3]),
        )
        outputs = tf.function(converted).get_concrete_function(*specs).structured_outputs
        assert outputs.shape.as_list() == [None, 3]

    def test_constraints(self):
        function = lambda x: x[: x.shape[0] - 2]  # noqa: E731
        converted = bridge.convert(
            function, polymorphic_shapes="b", polymorphic_constraints=("b >= 3",)
        )
        assert converted(tf.range(5.0)).numpy().tolist() == [0, 1, 2]

    def test_neither_static_nor_named(self):
        wanted = r"args\[0\] arrived as float32\[\?,3\].*polymorphic_shapes='auto'.*'b, _'"
        with pytest.raises(StructureError, match=wanted):
            self._outputs(bridge.convert(lambda x: x), [None, 3])

    def test_unknown_rank(self):
        converted = bridge.convert(lambda x: x, polymorphic_shapes="auto")
        with pytest.raises(StructureError, match=r"args\[0\] has unknown rank.*tf.ensure_shape"):
            tf.function(converted).get_concrete_function(tf.TensorSpec(None, tf.float32))

    @pytest.mark.parametrize("text", ["b", "b, _, _", "b,, _", "b, 4"])
    def test_a_specification_that_does_not_fit(self, text):
        converted = bridge.convert(lambda x: x, polymorphic_shapes=text)
        with pytest.raises(StructureError, match=r"args\[0\]|expected float32"):
            converted(tf.zeros([2, 3]))

    def test_sizes_that_contradict_each_other(self):
        converted = bridge.convert(lambda x, y: x.sum() + y.sum(), polymorphic_shapes=["b", "2*b"])
        assert float(converted(tf.ones([2]), tf.ones([4]))) == 6
        wanted = r"args\[1\].*shape \(5,\); expected float32\[2\*b\].*dimension 0 is 4 with b = 2"
        with pytest.raises(StructureError, match=wanted):
            converted(tf.ones([2]), tf.ones([5]))

    def test_an_empty_batch(self):
        converted = bridge.convert(lambda x: x, polymorphic_shapes="b")
        with pytest.raises(StructureError, match=r"variable b would be 0.*at least 1"):
            converted(tf.zeros([0]))


class TestDtypes:
    def test_a_wide_tensor_is_narrowed_with_one_warning(self):
        converted = bridge.convert(lambda x: x * 2)
        wide = tf.constant([1.0], tf.float64)
        with pytest.warns(UserWarning, match=r"args\[0\] is a float64.*float32.*jax_enable_x64"):
            assert converted(wide).dtype == tf.float32
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            converted(wide)
            converted(tf.constant([1.0, 2.0], tf.float64))

    def test_arrays_narrow_as_in_jax(self):
        converted = bridge.convert(lambda x: x * 2)
        assert converted(np.array([1.0])).dtype == tf.float32
        assert converted(np.array([1])).dtype == tf.int32

    def test_the_gradient_of_a_narrowed_tensor_is_wide(self):
        converted = bridge.convert(lambda x: x**2)
        wide = tf.constant(3.0, tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(wide)
            with pytest.warns(UserWarning, match="float64"):
                y = converted(wide)
        assert tape.gradient(y, wide).dtype == tf.float64

    def test_x64(self):
        converted = bridge.convert(lambda x: x * 2)
        jax.config.update("jax_enable_x64", True)
        try:
            assert converted(tf.constant([1.0], tf.float64)).dtype == tf.float64
            assert converted(3).dtype == tf.int64
        finally:
            jax.config.update("jax_enable_x64", False)

    def test_int4_is_refused(self):
        with pytest.raises(DtypeError, match=r"result\['a'\] has dtype int4.*int8"):
            bridge.convert(lambda x: {"a": x.astype(jnp.int4)})(1.0)


class TestExported:
    @pytest.fixture
    def converted(self):
        spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), np.float32)
        exported = jax.export.export(jax.jit(lambda x, *, n: x * n))(
            spec, n=jax.ShapeDtypeStruct((), np.int32)
        )
        return bridge.convert(exported)

    def test_call(self, converted):
        assert converted(tf.ones([2, 3]), n=3).numpy().tolist() == [[3.0] * 3] * 2

    def test_wrong_structure(self, converted):
        with pytest.raises(
            StructureError, match=r"called with 2 positional arguments .*exported for 1 and \['n'\]"
        ):
            converted(tf.ones([2, 3]), 3)

    def test_wrong_dtype(self, converted):
        with pytest.raises(DtypeError, match=r"args\[0\] has dtype int32.*float32.*tf.cast"):
            converted(tf.ones([2, 3], tf.int32), n=3)
        with pytest.raises(DtypeError, match=r"kwargs\['n'\] has dtype float32.*int32"):
            converted(tf.ones([2, 3]), n=3.5)

    def test_wrong_shape(self, converted):
        with pytest.raises(StructureError, match=r"args\[0\].*shape \(2, 4\).*dimension 1 is 3"):
            converted(tf.ones([2, 4]), n=3)
        with pytest.raises(StructureError, match=r"args\[0\].*of rank 1"):
            converted(tf.ones([3]), n=3)

    def test_options_come_too_late(self):
        exported = jax.export.export(jax.jit(jnp.sin))(1.0)
        with pytest.raises(StructureError, match="sin is already exported"):
            bridge.convert(exported, platforms=["cpu"])


class TestOptions:
    def test_without_gradient(self):
        converted = bridge.convert(lambda x: x * 2, with_gradient=False)
        x = tf.constant(1.0)
        assert float(converted(x)) == 2
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        with pytest.raises(LookupError, match="with_gradient=False"):
            tape.gradient(y, x)

    @pytest.mark.parametrize("platforms", [("cpu",), ("tpu", "cpu"), ("cuda", "tpu", "cpu")])
    def test_the_branch_of_this_platform(self, platforms, mode):
        def function(x):
            return jax.lax.platform_dependent(
                x, cpu=lambda x: x + 1, cuda=lambda x: x + 2, tpu=lambda x: x + 3
            )

        found = mode(bridge.convert(function, platforms=platforms))(tf.constant(1.0))
        assert float(found) == 2

    def test_another_platform(self):
        converted = bridge.convert(lambda x: x * 2, platforms=["tpu"])
        with pytest.raises(tf.errors.NotFoundError, match="not among the platforms required"):
            converted(tf.constant(1.0))
        allowed = bridge.convert(lambda x: x * 2, platforms=["tpu"], disabled_checks=["platform"])
        assert float(allowed(tf.constant(1.0))) == 2

    def test_wrong_options(self):
        with pytest.raises(InteropError, match="'metal' is unknown"):
            bridge.convert(jnp.sin, platforms=["metal"])
        with pytest.raises(InteropError, match="'all' is unknown"):
            bridge.convert(jnp.sin, disabled_checks=["all"])


class TestRefused:
    def test_callbacks(self):
        def pure(x):
            return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), np.float32), x)

        def ordered(x):
            jax.debug.print("{}", x, ordered=True)
            return x

        for function in (pure, ordered):
            with pytest.raises(InteropError, match=r"callback|ordered effects"):
                bridge.convert(function)(1.0)

    def test_linear_algebra(self):
        with pytest.raises(InteropError, match=r"lapack_spotrf_ffi at .*TensorFlow does not"):
            bridge.convert(jnp.linalg.cholesky)(np.eye(2, dtype=np.float32))


class TestComplexGradients:
    """TensorFlow's convention, compared with its own operations."""

    PAIRS: ClassVar = {
        "exp": (jnp.exp, tf.exp),
        "abs": (jnp.abs, tf.abs),
        "conj": (jnp.conj, tf.math.conj),
        "square": (lambda z: z * z, lambda z: z * z),
        "mixed": (lambda z: z * jnp.conj(z) * z, lambda z: z * tf.math.conj(z) * z),
        "fft": (jnp.fft.fft, tf.signal.fft),
    }

    @pytest.mark.parametrize("name", PAIRS)
    def test_as_native(self, name, mode):
        ours, native = self.PAIRS[name]
        converted = bridge.convert(ours, polymorphic_shapes="auto")
        z = tf.constant([[1 + 2j, -0.5 + 0.1j, 0.3 - 1j]], tf.complex64)

        def gradient(function):
            def run(z):
                with tf.GradientTape() as tape:
                    tape.watch(z)
                    y = function(z)
                    loss = tf.reduce_sum(y * tf.cast([1, 2, 3], y.dtype))
                return tape.gradient(loss, z)

            return run

        np.testing.assert_allclose(
            mode(gradient(converted))(z), gradient(native)(z), rtol=1e-5, atol=1e-5
        )


def test_autograph_leaves_it_alone():
    converted = bridge.convert(lambda x: x * 2, polymorphic_shapes="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(tf.function(converted)(tf.constant(1.0))) == 2


def test_arguments_are_named_after_the_function(tmp_path):
    def predict(image, scale):
        """Doubles."""
        return image * scale

    converted = bridge.convert(predict)
    assert (converted.__name__, converted.__doc__) == ("predict", "Doubles.")
    module = tf.Module()
    module.f = tf.function(converted, input_signature=[tf.TensorSpec([2]), tf.TensorSpec([])])
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.f)
    signature = tf.saved_model.load(str(tmp_path / "m")).signatures["serving_default"]
    assert signature.structured_input_signature[1].keys() == {"image", "scale"}


def test_shapes_reach_keras():
    import keras

    converted = bridge.convert(lambda x: jnp.tanh(x[:, :2]), polymorphic_shapes="b, _")
    inputs = keras.Input([3])
    outputs = keras.layers.Lambda(converted)(inputs)
    assert outputs.shape == (None, 2)
    model = keras.Model(inputs, outputs)
    np.testing.assert_allclose(model.predict(X, verbose=0), np.tanh(X[:, :2]), rtol=1e-5)
