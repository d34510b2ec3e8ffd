"""Programs for JAX's own converter, run with that one and with ours.

The examples are those of its documentation, in other words. A test of ours alone says what is
different on purpose.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections import OrderedDict, namedtuple
from contextlib import contextmanager
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64, export

import bridge
from bridge import jax2tf as ours
from tests.bridge.converters import BOTH, GRADIENTS, has_custom_calls, import_converter
from tests.jax_versions import INCONCLUSIVE
from xla_call_module._tf import imported_release
from xla_call_module.errors import MissingDependencyError

# What both JAX and TensorFlow speak here.
CONVENTION = min(imported_release().convention, export.maximum_supported_calling_convention_version)
Pair = namedtuple("Pair", "first second")


@pytest.fixture(params=BOTH)
def jax2tf(request):
    return import_converter(request)


@pytest.fixture(params=["eager", "graph"])
def wrap(request):
    """A converted function as it is, and in `tf.function`."""
    if request.param == "eager":
        return lambda function: function
    return lambda function: tf.function(function, autograph=False)


def _sin_cos(x):
    return jnp.sin(jnp.cos(x))


def _reload(module, folder, **options):
    tf.saved_model.save(module, str(folder), **options)
    return tf.saved_model.load(str(folder))


def test_without_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    monkeypatch.delitem(sys.modules, "bridge.jax2tf")
    with pytest.raises(MissingDependencyError, match=r"jax2tf needs TensorFlow.* To do: pip inst"):
        importlib.import_module("bridge.jax2tf")


def test_inputs_of_a_file_have_the_same_names(tmp_path):
    """TensorFlow names them, whichever module has converted the function."""
    spec = tf.TensorSpec([2, 3], tf.float32)
    names = []
    for converter in map(importlib.import_module, BOTH):
        converted = converter.convert(lambda inputs: inputs["ids"] + inputs["mask"])
        for function in (converted, lambda inputs, f=converted: f(inputs)):
            traced = tf.function(function, autograph=False).get_concrete_function(
                {"ids": spec, "mask": spec}
            )
            names.append([tensor.name for tensor in traced.inputs])
    assert names[:2] == names[2:]


@pytest.mark.skipif(
    jax.__version_info__ < (0, 12) or imported_release().name != "2.21",
    reason="the documentation speaks of these releases",
)
def test_symbolic_sizes_fail_with_the_converter_of_jax(tmp_path):
    """As the page on migration says; a file of it can be mended."""
    theirs = importlib.import_module(BOTH[1])
    module = tf.Module()
    module.f = tf.function(
        theirs.convert(jnp.sin, polymorphic_shapes=["b"]),
        input_signature=[tf.TensorSpec([None], tf.float32)],
        autograph=False,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"vhlo\.custom_call_v2"):
        module.f(np.ones(3, np.float32))
    tf.saved_model.save(module, str(tmp_path / "theirs"))
    bridge.retarget(tmp_path / "theirs", to=tmp_path / "mended", tensorflow="2.21")
    mended = tf.saved_model.load(str(tmp_path / "mended"))
    np.testing.assert_allclose(mended.f(np.ones(3, np.float32)), np.sin(np.ones(3)), rtol=1e-6)


class TestBasicFunctions:
    def test_arrays_tensors_and_variables(self, jax2tf, wrap):
        f_tf = wrap(jax2tf.convert(_sin_cos))
        x = np.linspace(0, 1, 5, dtype=np.float32)
        for given in (x, tf.constant(x), tf.Variable(x), jnp.asarray(x)):
            result = f_tf(given)
            assert isinstance(result, tf.Tensor)
            np.testing.assert_allclose(result, _sin_cos(x), rtol=1e-6)

    def test_the_result_is_an_argument(self, jax2tf):
        once = jax2tf.convert(jnp.sin)(1.0)
        np.testing.assert_allclose(jax2tf.convert(jnp.cos)(once), jnp.cos(jnp.sin(1.0)), rtol=1e-6)

    def test_jit(self, jax2tf):
        f = jax.jit(lambda pair: jnp.sin(jax.jit(jnp.cos)(pair[0])) + pair[1])
        np.testing.assert_allclose(jax2tf.convert(f)((0.7, 0.8)), f((0.7, 0.8)), rtol=1e-6)

    def test_no_arguments(self, jax2tf, wrap):
        assert wrap(jax2tf.convert(lambda: jnp.arange(3)))().numpy().tolist() == [0, 1, 2]

    def test_pytrees_and_keywords(self, jax2tf, wrap):
        def f(pair, *, scale):
            return pair[0] * 2, {key: value * scale for key, value in pair[1].items()}

        result = wrap(jax2tf.convert(f))((0.5, {"b": 1.0, "a": 2.0}), scale=np.float32(3))
        assert result[0].numpy() == 1.0
        assert {key: value.numpy() for key, value in result[1].items()} == {"a": 6.0, "b": 3.0}

    def test_ordered_dicts_and_named_tuples(self, jax2tf):
        f = jax2tf.convert(lambda d, pair: (next(iter(d.values())), pair.first - pair.second))
        result = f(OrderedDict(z=1.0, a=2.0), Pair(5.0, 3.0))
        assert [value.numpy() for value in result] == [1.0, 2.0]

    def test_in_the_midst_of_what_is_not_compiled(self, jax2tf):
        def whole(x):
            number = tf.strings.to_number(x)
            inner = tf.function(jax2tf.convert(jnp.square), autograph=False, jit_compile=True)
            return tf.strings.as_string(inner(number))

        assert tf.function(whole, autograph=False)(tf.constant("3")).numpy() == b"9.000000"

    def test_the_graph_names_arguments_and_results(self, jax2tf):
        f = tf.function(jax2tf.convert(lambda xs, y: [x + y for x in xs]), autograph=False)
        names = [op.name for op in f.get_concrete_function([1.0, 2.0], 3.0).graph.get_operations()]
        arguments = [name for name in names if name.startswith("jax2tf_arg")]
        assert arguments == [f"jax2tf_arg_{index}" for index in range(3)]
        results = [name for name in names if name.startswith("jax2tf_out")]
        assert results == ["jax2tf_out", "jax2tf_out_1"]

    def test_a_scope_has_all_of_it(self, jax2tf):
        @tf.function(autograph=False)
        def outer(x):
            with tf.name_scope("outer"):
                return jax2tf.convert(_sin_cos)(x)

        graph = outer.get_concrete_function(tf.TensorSpec([2])).graph
        inside = [op.name for op in graph.get_operations() if op.name not in ("x", "Identity")]
        assert [name for name in inside if not name.startswith("outer/")] in ([], ["NoOp"])


class TestSavedModels:
    def test_one_shape(self, jax2tf, tmp_path):
        model = tf.Module()
        model.f = tf.function(
            jax2tf.convert(_sin_cos), autograph=False, input_signature=[tf.TensorSpec([])]
        )
        signatures = {"serving_default": model.f.get_concrete_function()}
        loaded = _reload(model, tmp_path, options=GRADIENTS, signatures=signatures)
        x = tf.Variable(0.5)
        with tf.GradientTape() as tape:
            result = loaded.f(x)
        np.testing.assert_allclose(result, _sin_cos(0.5), rtol=1e-6)
        np.testing.assert_allclose(tape.gradient(result, x), jax.grad(_sin_cos)(0.5), rtol=1e-6)
        served = loaded.signatures["serving_default"]
        assert list(served.structured_input_signature[1]) == ["args_tf_0"]
        assert list(served.structured_outputs) == ["output_0"]

    def test_shapes_that_were_called(self, jax2tf, tmp_path):
        model = tf.Module()
        model.f = tf.function(jax2tf.convert(_sin_cos), autograph=False)
        model.f(tf.ones([1, 2])), model.f(tf.ones([4, 2]))
        loaded = _reload(model, tmp_path, options=GRADIENTS)
        assert loaded.f(tf.ones([4, 2])).shape == (4, 2)

    def test_parameters_are_variables(self, jax2tf, tmp_path):
        params = (np.float32(2), np.ones((1 << 12,), np.float32))
        variables = tf.nest.map_structure(tf.Variable, params)
        convert = jax2tf.convert(lambda p, x: p[0] + p[1].sum() * x)
        model = tf.Module()
        model._variables = tf.nest.flatten(variables)
        model.f = tf.function(
            lambda x: convert(variables, x),
            autograph=False,
            input_signature=[tf.TensorSpec([])],
        )
        loaded = _reload(model, tmp_path, options=GRADIENTS)
        assert loaded.f(tf.constant(1.0)).numpy() == 2 + (1 << 12)
        assert (tmp_path / "saved_model.pb").stat().st_size < 4 * (1 << 12) * 4

    def test_what_has_no_gradient(self, jax2tf, tmp_path, wrap):
        x = tf.constant(1.0)
        convert = wrap(jax2tf.convert(jnp.tan, with_gradient=False))

        def differentiate():
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = convert(x)
            return tape.gradient(result, x)

        with pytest.raises(LookupError, match="explicitly disabled"):
            differentiate()

    def test_a_loop_without_gradients(self, jax2tf, tmp_path):
        def f(x):
            return jax.lax.while_loop(lambda x: x.sum() < 10, lambda x: x + 2, x)

        model = tf.Module()
        model.f = tf.function(
            jax2tf.convert(f, with_gradient=False),
            autograph=False,
            input_signature=[tf.TensorSpec([2])],
        )
        assert _reload(model, tmp_path, options=GRADIENTS).f(tf.zeros(2)).numpy().tolist() == [6, 6]


class TestGradients:
    def test_of_a_pytree(self, jax2tf, wrap):
        f = wrap(jax2tf.convert(lambda pair: {"one": pair[0] ** 2, "two": pair[0] * pair[1]}))
        x, y = tf.Variable(4.0), tf.Variable(5.0)
        with tf.GradientTape(persistent=True) as tape:
            result = f((x, y))
        found = [[float(tape.gradient(result[key], v)) for v in (x, y)] for key in ("one", "two")]
        assert found == [[8.0, 0.0], [5.0, 4.0]]

    @pytest.mark.parametrize("rule", ["jvp", "vjp"])
    def test_of_the_functions_own_rule(self, jax2tf, wrap, rule):
        f = _with_rule(rule)
        x = tf.Variable(4.0)
        with tf.GradientTape() as tape:
            result = wrap(jax2tf.convert(f))(x)
        assert (result.numpy(), tape.gradient(result, x).numpy()) == (16.0, 12.0)

    def test_relu_at_zero(self, jax2tf):
        x = tf.Variable(0.0)
        with tf.GradientTape() as tape:
            result = jax2tf.convert(jax.nn.relu)(x)
        assert tape.gradient(result, x).numpy() == 0.0

    def test_of_arguments_without_use(self, jax2tf, wrap):
        f = wrap(jax2tf.convert(lambda x0, x1, x2, x3: x0 * 0.0 + x2 * 2.0))
        xs = [tf.Variable(x) for x in (10.0, 11.0, 12.0, 13)]
        with tf.GradientTape(persistent=True) as tape:
            result = f(*xs)
        found = tape.gradient(result, xs)
        assert [None if g is None else g.numpy() for g in found] == [0.0, 0.0, 2.0, None]
        zeros = tape.gradient(result, xs, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        assert [g.numpy() for g in zeros] == [0.0, 0.0, 2.0, 0]
        assert zeros[3].dtype == tf.int32

    def test_that_jax_takes_of_integers(self, jax2tf, wrap):
        f = jax.grad(lambda x: x.astype(np.float32) * 2.0, allow_int=True)
        result = wrap(jax2tf.convert(f))(np.int16(2))
        assert (result.dtype, result.shape, result.numpy()) == (tf.bool, (), False)

    def test_of_integer_arguments_and_results(self, jax2tf, wrap):
        f = wrap(jax2tf.convert(lambda x, n: (x * n.astype(x.dtype), n + 1)))
        x, n = tf.Variable([1.0, 2.0]), tf.Variable([3, 4])
        with tf.GradientTape() as tape:
            result, count = f(x, n)
        assert count.numpy().tolist() == [4, 5]
        by_x, by_n = tape.gradient(result, (x, n))
        assert by_x.numpy().tolist() == [3.0, 4.0]
        assert by_n is None

    def test_of_the_second_order(self, jax2tf, wrap):
        x = tf.Variable(2.0)
        f = wrap(jax2tf.convert(lambda x: x**3))
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                result = f(x)
            first = tape.gradient(result, x)
        assert (first.numpy(), outer.gradient(first, x).numpy()) == (12.0, 12.0)


def _with_rule(rule):
    """The square of x, whose gradient is said to be 3 x."""
    if rule == "jvp":
        f = jax.custom_jvp(lambda x: x * x)
        f.defjvp(lambda primals, tangents: (f(*primals), 3.0 * primals[0] * tangents[0]))
        return f
    f = jax.custom_vjp(lambda x: x * x)
    f.defvjp(lambda x: (f(x), 3.0 * x), lambda residual, cotangent: (residual * cotangent,))
    return f


class TestPolymorphicShapes:
    @has_custom_calls
    @pytest.mark.parametrize("spec", ["(b, 28, 28)", "(b, _, _)", "(b, ...)", "b, ..."])
    def test_a_batch(self, jax2tf, spec):
        f = tf.function(
            jax2tf.convert(lambda x: x.sum((1, 2)) / x.shape[0], polymorphic_shapes=[spec]),
            autograph=False,
        )
        f = f.get_concrete_function(tf.TensorSpec([None, 28, 28]))
        assert f.structured_outputs.shape.as_list() == [None]
        for size in (1, 3):
            np.testing.assert_allclose(f(tf.ones([size, 28, 28])), [784 / size] * size)

    @has_custom_calls
    def test_square_images(self, jax2tf):
        f = tf.function(
            jax2tf.convert(lambda x: jnp.matmul(x, jnp.sin(x)), polymorphic_shapes=["(b, d, d)"]),
            autograph=False,
        ).get_concrete_function(tf.TensorSpec([None, None, None]))
        assert f(tf.ones([2, 3, 3])).shape == (2, 3, 3)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"."):
            f(tf.ones([2, 3, 4]))

    @has_custom_calls
    def test_prefixes_of_pytrees(self, jax2tf):
        f = jax2tf.convert(
            lambda params, x, y: (
                (params["w"].shape, x[0].shape, x[1].shape, y.shape) and x[0].sum()
            ),
            polymorphic_shapes=[None, ("(b, _)", "(b,)"), "(_, b)"],
        )
        args = ({"w": np.ones(2)}, (np.ones((3, 2)), np.ones(3)), np.ones((4, 3)))
        assert f(*args).numpy() == 6

    @has_custom_calls
    def test_one_text_for_all_and_none_for_keywords(self, jax2tf, wrap):
        f = wrap(jax2tf.convert(lambda x, y, *, k: x + y + k, polymorphic_shapes="b"))
        assert f(np.ones(3), np.ones(3), k=np.float32(1)).numpy().tolist() == [3.0] * 3

    @has_custom_calls
    def test_a_symbol_that_is_called_auto(self, jax2tf):
        f = tf.function(jax2tf.convert(jnp.sin, polymorphic_shapes="auto"), autograph=False)
        assert f.get_concrete_function(tf.TensorSpec([None]))(tf.zeros(3)).shape == (3,)

    @has_custom_calls
    def test_the_deprecated_class(self, jax2tf):
        with pytest.warns(DeprecationWarning, match="PolyShape is deprecated"):
            shape = jax2tf.PolyShape("b", ...)
        assert str(shape) == "(b, ...)"
        f = jax2tf.convert(lambda x: x.reshape((-1,)), polymorphic_shapes=(str(shape),))
        assert f(np.ones((2, 3))).shape == (6,)

    @has_custom_calls
    def test_computing_with_dimensions(self, jax2tf):
        flat = jax2tf.convert(
            lambda x: jnp.reshape(x, (x.shape[0] * x.shape[1],)), polymorphic_shapes=["(b, 4)"]
        )
        assert flat(np.ones((3, 4))).shape == (12,)
        mixed = jax2tf.convert(
            lambda x: (x + x.shape[0], 5.0 + x.shape[0], x.shape[0] - np.ones((5,), np.int32)),
            polymorphic_shapes=["b"],
        )
        sums, scalar, integers = mixed(np.ones(3))
        assert (sums.numpy().tolist(), scalar.numpy()) == ([4.0] * 3, 8.0)
        assert integers.numpy().tolist() == [2] * 5
        average = jax2tf.convert(
            lambda x: jnp.sum(x, axis=0) / x.shape[0], polymorphic_shapes=["(v, _)"]
        )
        assert average(np.ones((3, 4))).numpy().tolist() == [1.0] * 4

    @has_custom_calls
    def test_constraints(self, jax2tf):
        f = jax2tf.convert(
            lambda x: x[: x.shape[1], :16],
            polymorphic_shapes="(a, b)",
            polymorphic_constraints=("a >= b", "b >= 16"),
        )
        assert f(np.ones((20, 17), np.float32)).shape == (17, 16)
        sliced = jax2tf.convert(lambda x: x[0:16], polymorphic_shapes="b + 15, ...")
        assert sliced(np.ones((18, 2), np.float32)).shape == (16, 2)
        halves = jax2tf.convert(
            lambda x, y: x + y[: y.shape[0] // 2],
            polymorphic_shapes=("a", "b"),
            polymorphic_constraints=("floordiv(b, 2) == a",),
        )
        assert halves(np.ones(2), np.ones(5)).shape == (2,)

    @has_custom_calls
    def test_multiples(self, jax2tf):
        f = jax2tf.convert(lambda x: jnp.reshape(x, (2, -1)), polymorphic_shapes=["(2*b, ...)"])
        assert f(np.ones((4, 5, 7), np.float32)).shape == (2, 70)

    @has_custom_calls
    def test_gradients(self, jax2tf):
        def both(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = jax2tf.convert(lambda x: x**2, polymorphic_shapes="b, _")(x)
            return tape.gradient(result, x)

        f = tf.function(both, autograph=False).get_concrete_function(tf.TensorSpec([None, 2]))
        assert f(tf.ones([3, 2])).numpy().tolist() == [[2.0, 2.0]] * 3

    def test_evaluated_shapes(self, jax2tf):
        a = jax.ShapeDtypeStruct((20, 30), np.float32)
        x = jax.ShapeDtypeStruct((30, 10), np.float32)
        evaluate = jax2tf.eval_polymorphic_shape(
            lambda a, x: {"y": jnp.sin(jnp.dot(a, x))}, polymorphic_shapes=["a, b", "b, c"]
        )
        spec, shape = evaluate(a, x)
        assert shape == {"y": "(a, c)"}
        assert spec["y"].dtype == np.float32
        _, shape = jax2tf.eval_polymorphic_shape(jnp.transpose, polymorphic_shapes=[shape["y"]])(
            spec["y"]
        )
        assert shape == "(c, a)"


def test_autograph_does_not_go_into_the_conversion(caplog):
    @tf.function
    def function(x):
        if x > 0:
            x = ours.convert(jnp.sin)(x)
        return x

    with caplog.at_level("WARNING", logger="tensorflow"):
        np.testing.assert_allclose(function(tf.constant(1.0)), np.sin(1.0), rtol=1e-6)
    assert "AutoGraph" not in caplog.text


class TestMistakes:
    """Of the same class with both."""

    @pytest.mark.parametrize("wrong", [5.0, "text", staticmethod(jnp.sin)])
    def test_no_function(self, jax2tf, wrong):
        with pytest.raises(TypeError, match=r"."):
            jax2tf.convert(wrong)

    def test_a_generator(self, jax2tf):
        def generate(x):
            yield x

        with pytest.raises(TypeError, match="generator"):
            jax2tf.convert(generate)

    @pytest.mark.parametrize("wrong", [lambda x: x, "text", object()])
    def test_no_array(self, jax2tf, wrong):
        with pytest.raises(TypeError, match=r"."):
            jax2tf.convert(lambda x: x)(wrong)

    def test_a_number_that_is_too_large(self, jax2tf):
        for number in (2**40, 2**70):
            with pytest.raises(OverflowError, match=r"too large"):
                jax2tf.convert(lambda x: x)(number)
        with pytest.raises(OverflowError, match=r"too large"):
            jax2tf.convert(lambda x: x["n"])({"n": -(2**40)})

    def test_no_function_of_tensorflow(self, jax2tf):
        with pytest.raises(TypeError, match="call"):
            jax2tf.call_tf(5.0)(np.float32(1.0))

    def test_a_tensor_of_strings(self, jax2tf):
        with pytest.raises(TypeError, match=r"dtype"):
            jax2tf.convert(lambda x: x)(tf.constant("text"))
        with pytest.raises(TypeError, match=r"dtype"):
            jax2tf.dtype_of_val(tf.constant("text"))

    @pytest.mark.parametrize("argument", ["its own", 1.0])
    def test_inside_a_transformation(self, jax2tf, argument):
        def outer(x):
            return jax2tf.convert(jnp.sin)(x if argument == "its own" else argument)

        for transformed in (jax.jit(outer), jax.grad(outer), jax.vmap(outer)):
            with pytest.raises(ValueError, match="JAX transformation"):
                transformed(jnp.ones(1 if transformed is not jax.grad else ()))
        with pytest.raises(ValueError, match="JAX transformation"):
            jax2tf.convert(outer)(2.0)

    @pytest.mark.parametrize("names", ["cpu", ("cpu", "gpu"), {"cpu"}, ("CPU",)])
    def test_platforms(self, jax2tf, names):
        with pytest.raises(ValueError, match="native_serialization_platforms"):
            jax2tf.convert(jnp.sin, native_serialization_platforms=names)

    def test_another_platform(self, jax2tf):
        f = jax2tf.convert(jnp.sin, native_serialization_platforms=("tpu",))
        with pytest.raises(tf.errors.NotFoundError, match=r"(?i)cpu"):
            f(1.0)
        unchecked = jax2tf.convert(
            jnp.sin,
            native_serialization_platforms=["tpu"],
            native_serialization_disabled_checks=[jax2tf.DisabledSafetyCheck.platform()],
        )
        np.testing.assert_allclose(unchecked(1.0), np.sin(np.float32(1)), rtol=1e-6)

    def test_an_unnamed_dimension(self, jax2tf):
        f = tf.function(jax2tf.convert(jnp.sin), autograph=False)
        for spec in (tf.TensorSpec([None]), tf.TensorSpec(None)):
            with pytest.raises(ValueError, match=r"."):
                f.get_concrete_function(spec)

    @pytest.mark.parametrize(
        "shapes",
        [("b",), ("b", "b", "b"), "b, c", 5, ("b", 5), {"a": "b"}, "b, 5 +", ["b, ...", "4"]],
    )
    def test_shapes_that_do_not_fit(self, jax2tf, shapes):
        f = jax2tf.convert(jnp.add, polymorphic_shapes=shapes)
        with pytest.raises((ValueError, TypeError), match=r"."):
            f(np.ones(3), np.ones(3))

    @pytest.mark.parametrize("shapes", ["a * a", "a + b"])
    def test_symbols_that_do_not_follow(self, jax2tf, shapes):
        with pytest.raises(ValueError, match=r"Cannot solve for values of dimension variables"):
            jax2tf.convert(jnp.sin, polymorphic_shapes=shapes)(np.ones(4, np.float32))

    def test_constraints(self, jax2tf):
        f = jax2tf.convert(jnp.sin, polymorphic_shapes="b", polymorphic_constraints=("b ! 2",))
        with pytest.raises(ValueError, match=r"."):
            f(np.ones(3))

    def test_shapes_that_contradict(self, jax2tf):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"d"):
            jax2tf.convert(jnp.sin, polymorphic_shapes="b, b, 2*d")(np.ones((3, 3, 5)))
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"b"):
            jax2tf.convert(lambda x: 0 if x.shape[0] == 0 else 1, polymorphic_shapes="b")(
                np.ones(0)
            )

    def test_what_jax_itself_refuses(self, jax2tf):
        ones = np.ones((4, 4), np.float32)
        with pytest.raises(TypeError, match="incompatible shapes for broadcasting"):
            jax2tf.convert(jnp.add, polymorphic_shapes=["(v,)", "(4,)"])(ones[0], ones[0])
        with pytest.raises(TypeError, match="contracting dimensions to have the same shape"):
            jax2tf.convert(lambda x: x @ x, polymorphic_shapes=["(v, 4)"])(ones)
        with pytest.raises(INCONCLUSIVE, match="is inconclusive"):
            jax2tf.convert(
                lambda x: 0 if x.shape[0] + 1 >= x.shape[1] else 1, polymorphic_shapes="(a, b)"
            )(ones)
        with pytest.raises(TypeError, match="Shapes must be 1D sequences of concrete values"):
            jax2tf.convert(
                lambda x: jnp.reshape(x, (x.shape[0] * np.array([x.shape[1]]),)),
                polymorphic_shapes=["(b, 4)"],
            )(ones)

    def test_a_callback(self, jax2tf):
        f = jax2tf.convert(lambda x: jax.pure_callback(np.sin, x, x))
        with pytest.raises(NotImplementedError, match="callback"):
            f(np.float32(1))

    def test_a_call_without_a_meaning_elsewhere(self, jax2tf):
        f = jax2tf.convert(lambda x: jax.ffi.ffi_call("made_up", x)(x))
        with pytest.raises(ValueError, match="made_up"):
            f(np.float32(1))

    def test_deprecated_arguments(self, jax2tf):
        for name in ("native_serialization", "enable_xla"):
            with pytest.warns(DeprecationWarning, match=f"{name}.* deprecated"):
                f = jax2tf.convert(jnp.sin, **{name: True})
            assert f(0.0).numpy() == 0.0

    def test_an_unknown_argument(self, jax2tf):
        with pytest.raises(TypeError, match="unexpected keyword argument"):
            jax2tf.convert(jnp.sin, gradient_order=2)


class TestDtypes:
    def test_64_bits_without_x64(self, jax2tf, wrap):
        convert = wrap(jax2tf.convert(jnp.sin))
        for value in (3.14, np.float64(3.14), tf.Variable(3.14, dtype=tf.float64)):
            assert jax2tf.convert(jnp.sin)(value).dtype == tf.float32
            assert jax2tf.dtype_of_val(value) == tf.float32
        assert convert(tf.constant([1], tf.int64)).dtype == tf.float32
        assert jax2tf.dtype_of_val(np.uint64(1)) == tf.uint32
        assert jax2tf.dtype_of_val(True) == tf.bool

    def test_64_bits_with_x64(self, jax2tf):
        with enable_x64(True):
            assert jax2tf.convert(jnp.sin)(3.14).dtype == tf.float64
            assert jax2tf.dtype_of_val(3.14) == tf.float64
            assert jax2tf.convert(jnp.sin)(tf.Variable(3.14)).dtype == tf.float32
            assert jax2tf.convert(lambda x: x + 1)(2**40).numpy() == 2**40 + 1

    def test_a_gradient_has_the_dtype_of_its_variable(self, jax2tf, wrap):
        x = tf.Variable(2.0, dtype=tf.float64)
        with tf.GradientTape() as tape:
            result = wrap(jax2tf.convert(jnp.square))(x)
        gradient = tape.gradient(result, x)
        assert (gradient.dtype, gradient.numpy()) == (tf.float64, 4.0)

    def test_a_python_number_is_not_weak(self, jax2tf):
        f = jax2tf.convert(lambda x, y: x * y)
        assert f(tf.constant(1.5, tf.bfloat16), 2.0).dtype == tf.float32
        assert jax2tf.convert(lambda x: x * 2.0)(tf.constant(1.5, tf.bfloat16)).dtype == tf.bfloat16

    def test_a_key(self, jax2tf):
        f = jax2tf.convert(lambda key: jax.random.uniform(key, (2,)))
        expected = jax.random.uniform(jax.random.key(3), (2,))
        np.testing.assert_array_equal(f(jax.random.PRNGKey(3)), expected)


class CustomPair:
    def __init__(self, a, b):
        self.a, self.b = a, b


jax.tree_util.register_pytree_node(
    CustomPair, lambda pair: ((pair.a, pair.b), None), lambda _, ab: CustomPair(*ab)
)


class TestContainers:
    def test_a_registered_class(self, jax2tf, tmp_path):
        def f(pair):
            return np.float32(2) * pair.a + np.float32(3) * pair.b

        f_tf = jax2tf.convert(f)
        x = CustomPair(np.float32(4), np.float32(5))
        assert f_tf(x).numpy() == 23.0
        assert tf.function(f_tf, autograph=False, jit_compile=True)(x).numpy() == 23.0
        model = tf.Module()
        model.f = tf.function(
            lambda a, b: f_tf(CustomPair(a, b)),
            autograph=False,
            input_signature=[tf.TensorSpec([])] * 2,
        )
        assert _reload(model, tmp_path, options=GRADIENTS).f(4.0, 5.0).numpy() == 23.0

    def test_what_a_module_swaps_in_is_a_pytree(self, jax2tf):
        module = tf.Module()
        module.a, module.b = [tf.Module(), tf.Module()], (tf.Module(), tf.Module())
        module.c = {"x": tf.Module(), "y": tf.Module()}
        for held, plain in ((module.a, list), (module.b, tuple), (module.c, dict)):
            assert type(held) is not plain
            assert len(jax.tree_util.tree_leaves(held)) == 2
            assert isinstance(jax.tree_util.tree_map(lambda x: x, held), plain)

    def test_variables_in_what_a_module_swaps_in(self, jax2tf, wrap, tmp_path):
        class Net(tf.Module):
            def __init__(self):
                self.params = {"w": [tf.Variable(tf.ones([3, 2]))], "b": (tf.Variable([0.0, 1.0]),)}
                self.run = wrap(jax2tf.convert(lambda p, x: x @ p["w"][0] + p["b"][0]))

            def __call__(self, x):
                return self.run(self.params, x)

        net = Net()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(net(tf.ones([1, 3])))
        variables = tape.watched_variables()
        assert len(variables) == 2
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            assert gradient.shape == variable.shape
        before = net(tf.ones([1, 3])).numpy()
        path = tf.train.Checkpoint(net).save(str(tmp_path / "checkpoint"))
        net.params["b"][0].assign([5.0, 5.0])
        assert net(tf.ones([1, 3])).numpy().tolist() == [[8.0, 8.0]]
        tf.train.Checkpoint(net).restore(path).assert_consumed()
        np.testing.assert_array_equal(net(tf.ones([1, 3])), before)

    def test_tensors_in_what_a_module_swaps_in(self, jax2tf):
        module = tf.Module()
        module.held = {"z": [tf.constant(1.0)], "a": (tf.constant(2.0), tf.constant(3.0))}
        f = jax2tf.convert(lambda held: held["z"][0] - held["a"][1])
        assert f(module.held).numpy() == -2.0

    def test_a_named_tuple_in_a_module_stays_one(self):
        module = tf.Module()
        module.held = Pair(tf.Variable(1.0), tf.Variable(2.0))
        assert ours.convert(lambda pair: pair.second)(module.held).numpy() == 2.0


class TestConfiguration:
    @has_custom_calls
    def test_checks(self, jax2tf, wrap):
        f = wrap(jax2tf.convert(lambda x: jnp.sin(x) @ x, polymorphic_shapes="b"))
        x = tf.Variable([1.0, 2.0])
        with _set("jax_enable_checks", True):
            with tf.GradientTape() as tape:
                result = f(x)
            gradient = tape.gradient(result, x)
        np.testing.assert_allclose(gradient, np.sin(x) + np.cos(x) * x, rtol=1e-5)

    @pytest.mark.parametrize("version", range(9, CONVENTION + 1))
    def test_the_calling_convention(self, jax2tf, version):
        def differentiate(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = jax2tf.convert(lambda x: jnp.sin(x) * 2)(x)
            return tape.gradient(result, x)

        function = tf.function(differentiate, autograph=False)
        with _set("jax_export_calling_convention_version", version):
            found = function.get_concrete_function(tf.TensorSpec([])).graph.as_graph_def()
        nodes = [*found.node, *(n for inner in found.library.function for n in inner.node_def)]
        assert {n.attr["version"].i for n in nodes if n.op == "XlaCallModule"} == {version}
        np.testing.assert_allclose(function(tf.constant(1.0)), 2 * np.cos(1.0), rtol=1e-6)

    def test_what_is_set_between_calls_is_seen(self, jax2tf):
        f = jax2tf.convert(lambda x: jnp.add(x, jnp.ones((3,), jnp.int8)))
        x = np.ones(3, np.float32)
        assert f(x).dtype == tf.float32
        with (
            jax.numpy_dtype_promotion("strict"),
            pytest.raises(ValueError, match="no available implicit"),
        ):
            f(x)

    def test_nothing_is_set_during_a_call(self, jax2tf):
        seen = []

        def f(x):
            seen.append(dict(jax.config.values))
            return x

        before = dict(jax.config.values)
        jax2tf.convert(f)(1.0)
        assert seen == [before]
        assert jax.config.values == before


@contextmanager
def _set(name, value):
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        yield
    finally:
        jax.config.update(name, before)


class TestLogicalDevices:
    @pytest.mark.parametrize("parts", [(2, 1), None])
    def test_the_annotation(self, jax2tf, parts):
        @tf.function(autograph=False)
        def f(x):
            return jax2tf.split_to_logical_devices(x, parts)

        graph = f.get_concrete_function(tf.TensorSpec([4, 2])).graph.as_graph_def()
        sharding = [node.attr["sharding"].s for node in graph.node if node.op == "XlaSharding"]
        assert [text == b"" for text in sharding] == [parts is None]


class TestDifferences:
    """What is right here, and refused, lost or wrong with JAX's own converter."""

    @pytest.mark.parametrize("name", ["native_serialization", "enable_xla"])
    def test_a_graph_of_tensorflows_operations_is_refused(self, name):
        with pytest.raises(
            NotImplementedError,
            match=f"{name}=False: this function does not write TensorFlow's own",
        ):
            ours.convert(jnp.sin, **{name: False})

    def test_linear_algebra(self):
        matrix = np.array([[2.0, 1.0], [1.0, 3.0]], np.float32)
        np.testing.assert_allclose(
            ours.convert(jnp.linalg.cholesky)(matrix), np.linalg.cholesky(matrix), rtol=1e-5
        )

    def test_composites(self):
        np.testing.assert_allclose(ours.convert(jnp.sinh)(1.0), np.sinh(1.0), rtol=1e-6)

    def test_complex_gradients(self):
        x = tf.Variable(1 + 2j, dtype=tf.complex64)
        with tf.GradientTape(persistent=True) as tape:
            here, there = ours.convert(lambda x: jnp.sin(x).real)(x), tf.math.real(tf.sin(x))
        np.testing.assert_allclose(tape.gradient(here, x), tape.gradient(there, x), rtol=1e-5)

    def test_the_second_order_in_files(self, tmp_path):
        model = tf.Module()
        model.f = tf.function(
            ours.convert(lambda x: (x**3, jnp.int32(x))),
            autograph=False,
            input_signature=[tf.TensorSpec([])],
        )
        loaded = _reload(model, tmp_path, options=GRADIENTS)
        x = tf.Variable(2.0)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                result, whole = loaded.f(x)
            first = tape.gradient(result, x)
        assert (whole.numpy(), first.numpy(), outer.gradient(first, x).numpy()) == (2, 12.0, 12.0)

    def test_integer_results_in_files(self, tmp_path):
        model = tf.Module()
        model.f = tf.function(
            ours.convert(lambda x: (x * 2.0, jnp.int32(x)), polymorphic_shapes="b"),
            autograph=False,
            input_signature=[tf.TensorSpec([None])],
        )
        loaded = _reload(model, tmp_path, options=GRADIENTS)
        x = tf.Variable([1.0, 2.0, 3.0])
        with tf.GradientTape() as tape:
            result, _ = loaded.f(x)
        assert tape.gradient(result, x).numpy().tolist() == [2.0] * 3

    def test_tensorflow_under_vmap_and_in_order(self):
        x = jnp.arange(3.0)
        mapped = jax.vmap(ours.call_tf(lambda x: tf.square(x) + tf.reduce_sum(x)))
        assert mapped(x).tolist() == [0.0, 2.0, 6.0]
        seen = []
        called = ours.call_tf(lambda x: tf.py_function(seen.append, [x], []), ordered=True)

        @jax.jit
        def run(x):
            called(x), called(x + 1)

        run(x[1])
        jax.effects_barrier()
        assert [value.numpy() for value in seen] == [1.0, 2.0]

    def test_forward_mode(self):
        x = tf.constant(2.0)
        with tf.autodiff.ForwardAccumulator(x, tf.ones([])) as accumulator:
            result = ours.convert(lambda x: x**3)(x)
        assert accumulator.jvp(result).numpy() == 12.0

    def test_four_bits_are_refused(self):
        with pytest.raises(TypeError, match="int4"):
            ours.convert(lambda x: x.astype(jnp.int4))(np.int8(1))

    def test_keys(self):
        drawn = ours.convert(lambda key: jax.random.uniform(key, (2,)))(jax.random.key(3))
        np.testing.assert_array_equal(drawn, jax.random.uniform(jax.random.key(3), (2,)))
        result = ours.convert(lambda seed: jax.random.key(seed))(np.int32(3))
        np.testing.assert_array_equal(result, jax.random.key_data(jax.random.key(3)))


class TestTensorFlowFromJax:
    def test_eager_jit_and_gradient(self, jax2tf):
        f = lambda x: jnp.sin(jax2tf.call_tf(tf.math.cos)(x))  # noqa: E731
        for run in (f, jax.jit(f)):
            np.testing.assert_allclose(run(np.float32(1)), np.sin(np.cos(1)), rtol=1e-6)
        gradient = jax.grad(f)(np.float32(1))
        np.testing.assert_allclose(gradient, -np.sin(1) * np.cos(np.cos(1)), rtol=1e-6)

    def test_pytrees_and_dtypes(self, jax2tf):
        f = jax2tf.call_tf(lambda pair: {"a": pair[0] * 2, "b": [pair[1]]})
        for run in (f, jax.jit(f)):
            result = run((np.float64(2), 3))
            assert (result["a"].dtype, result["b"][0].dtype) == (np.float32, np.int32)
            assert isinstance(result["a"], jax.Array)

    def test_what_cannot_be_compiled_runs_eagerly(self, jax2tf):
        text = jax2tf.call_tf(lambda x: tf.strings.length(tf.strings.format("Hello {}!", [x])))
        assert text(np.float32(42)) == 9
        dynamic = jax2tf.call_tf(lambda x: x[x[0] : 5])
        assert dynamic(np.array([1, 2], np.int32)).tolist() == [2]
        with pytest.raises(ValueError, match=r"shape"):
            jax.jit(dynamic)(np.array([1, 2], np.int32))

    def test_an_eager_gradient_of_what_cannot_be_compiled(self, jax2tf):
        def power(x):
            small = lambda y, _: y < 100.0  # noqa: E731
            return tf.while_loop(small, lambda y, i: (y * x, i + 1), (x, 0))[0]

        text = lambda x: x * tf.cast(tf.strings.length(tf.strings.as_string(x > 0.0)), "float32")  # noqa: E731
        assert jax.grad(jax2tf.call_tf(power))(5.0) == 75.0
        assert jax.value_and_grad(jax2tf.call_tf(text))(1.0) == (4.0, 4.0)

    def test_an_eager_gradient_of_what_has_no_fixed_shape(self, jax2tf):
        positive = jax2tf.call_tf(lambda x, i: (tf.boolean_mask(x, x > 0) ** 2, i + 1))
        x, i = np.array([-1.0, 2.0, 3.0], np.float32), np.int32(3)
        found = jax.grad(lambda x, i: positive(x, i)[0].sum())(x, i)
        assert found.tolist() == [0.0, 4.0, 6.0]
        assert positive(x, i)[0].tolist() == [4.0, 9.0]

    def test_a_result_of_strings(self, jax2tf):
        text = jax2tf.call_tf(tf.strings.as_string)
        for call in (text, jax.jit(text)):
            with pytest.raises(ValueError, match=r"string|not convertible"):
                call(np.float32(1.0))

    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit])
    def test_declared_results(self, jax2tf, wrap):
        pair = jax.ShapeDtypeStruct((2,), np.float32)
        x = np.ones(2, np.float32)
        assert wrap(jax2tf.call_tf(tf.sin, output_shape_dtype=pair))(x).shape == (2,)
        nothing = jax2tf.call_tf(tf.function(lambda x: None), output_shape_dtype=None)
        assert wrap(nothing)(x) is None
        for function, declared in [(tf.sin, None), (tf.sin, (pair,)), (lambda x: None, pair)]:
            called = wrap(jax2tf.call_tf(function, output_shape_dtype=declared))
            with pytest.raises(ValueError, match=r"structure|pytree"):
                called(x)
        with pytest.raises(ValueError, match="declared"):
            wrap(jax2tf.call_tf(tf.reduce_sum, output_shape_dtype=pair))(x)

    def test_what_does_not_fit_a_signature(self, jax2tf):
        signature = [tf.TensorSpec([None], tf.float32)]
        called = jax2tf.call_tf(tf.function(tf.sin, input_signature=signature))
        for call in (called, jax.jit(called)):
            with pytest.raises(TypeError, match=r"Binding inputs"):
                call(np.arange(3))

    def test_assignments_run_eagerly(self, jax2tf):
        variable = tf.Variable(1.0)

        def assign(x):
            variable.assign(11.0)
            return x + variable

        assert jax2tf.call_tf(assign)(np.float32(2)) == 13
        assert variable.numpy() == 11

    def test_there_and_back(self, jax2tf, tmp_path):
        back = jax2tf.call_tf(jax2tf.convert(_sin_cos))
        x = np.float32(0.5)
        for run in (back, jax.jit(back)):
            np.testing.assert_allclose(run(x), _sin_cos(x), rtol=1e-6)
        np.testing.assert_allclose(jax.grad(back)(x), jax.grad(_sin_cos)(x), rtol=1e-6)
        model = tf.Module()
        model.f = tf.function(
            jax2tf.convert(_sin_cos), autograph=False, input_signature=[tf.TensorSpec([])]
        )
        restored = jax2tf.call_tf(_reload(model, tmp_path, options=GRADIENTS).f)
        np.testing.assert_allclose(jax.jit(restored)(x), _sin_cos(x), rtol=1e-6)
        np.testing.assert_allclose(jax.grad(restored)(x), jax.grad(_sin_cos)(x), rtol=1e-6)

    def test_declared_shapes(self, jax2tf):
        x = np.ones((3, 2), np.float32)

        def doubled(x):
            spec = jax.ShapeDtypeStruct((x.shape[0] * 2, *x.shape[1:]), x.dtype)
            called = jax2tf.call_tf(lambda x: tf.concat([x, x], 0), output_shape_dtype=spec)
            return called(x) + 1

        same = lambda x: jax2tf.call_tf(tf.math.sin, output_shape_dtype=x)(x)  # noqa: E731
        assert jax2tf.convert(doubled)(x).shape == (6, 2)
        assert jax.jit(same)(x).shape == (3, 2)
        for wrong in (
            jax.ShapeDtypeStruct((4, 2), np.float32),
            jax.ShapeDtypeStruct((3, 2), np.int32),
            [jax.ShapeDtypeStruct((3, 2), np.float32)],
        ):
            with pytest.raises(ValueError, match=r"."):
                jax.jit(jax2tf.call_tf(tf.math.sin, output_shape_dtype=wrong))(x)
        polymorphic = jax2tf.convert(same, polymorphic_shapes="b, ...")
        why = r"for numbers only.*call_tf_graph=True" if jax2tf is ours else "static output shapes"
        with pytest.raises(ValueError, match=why):
            polymorphic(x)

    @has_custom_calls
    def test_a_function_that_stays_tensorflows(self, jax2tf):
        called = jax2tf.call_tf(tf.math.sin, call_tf_graph=True, has_side_effects=False)
        f = tf.function(jax2tf.convert(lambda x: called(x) + 1), autograph=False)
        x = tf.constant([0.5, 1.0])
        np.testing.assert_allclose(f(x), np.sin(x) + 1, rtol=1e-6)
        graph = f.get_concrete_function(x).graph.as_graph_def()
        nodes = [node for node in graph.node if node.op == "XlaCallModule"]
        assert len(nodes[0].attr["function_list"].list.func) == 1

    def test_variables_are_in_what_is_converted(self, jax2tf, wrap):
        variable = tf.Variable([2.0, 3.0])
        f = wrap(jax2tf.convert(lambda x: jax2tf.call_tf(lambda x: x * variable)(x) + 1))
        assert f(tf.constant([1.0, 2.0])).numpy().tolist() == [3.0, 7.0]


@pytest.mark.parametrize("order", [BOTH, BOTH[::-1]])
def test_both_in_one_process(order, preloaded_python):
    code = f"""
import importlib, jax, tensorflow as tf
first, second = [importlib.import_module(name) for name in {order!r}]
module = tf.Module()
module.a, module.b, module.c = [tf.Module()], (tf.Module(),), {{"x": tf.Module()}}
print([len(jax.tree_util.tree_leaves(held)) for held in (module.a, module.b, module.c)])
print(first.convert(lambda x: x + 1)(1).numpy(), second.convert(lambda x: x + 1)(2).numpy())
"""
    done = subprocess.run(
        [preloaded_python, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split("\n")[:2] == ["[1, 1, 1]", "2 3"]


def test_the_names_are_all_there():
    theirs = importlib.import_module("jax.experimental.jax2tf")
    public = {
        name
        for name, value in vars(theirs).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public <= set(ours.__all__)


def test_what_an_eager_call_takes_is_what_a_compiled_one_takes():
    called, key = ours.call_tf(tf.identity), jax.random.key(3)
    for run in (called, jax.jit(called)):
        np.testing.assert_array_equal(run(key), jax.random.key_data(key))
    assert called(np.zeros(2, jax.dtypes.float0)).dtype == bool
    for wrong in ("text", tf.constant("text"), object()):
        with pytest.raises(TypeError, match=r"args\[0\] is .*expected a JAX or numpy array"):
            called(wrong)
