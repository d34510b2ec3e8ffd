"""Arguments of a converted function: every dtype, every container, every kind of number."""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
import sys
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64, export

import bridge
from bridge.converting import converted_function
from tests.bridge.models import bit_patterns
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import (
    ArgumentError,
    DtypeError,
    InteropError,
    MissingDependencyError,
    StructureError,
    installing,
)


class Point(NamedTuple):
    y: Any
    x: Any


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["kind"])
@dataclasses.dataclass
class Layer:
    """A pytree node that is not registered for serialization."""

    w: Any
    kind: str


class TestDtypes:
    @pytest.mark.parametrize("float8", [False, True], ids=["common", "float8"])
    def test_every_dtype_goes_through_bit_for_bit(self, mode, float8):
        values = {
            dtype.name: bit_patterns(dtype)
            for dtype in DTYPES
            if dtype.name.startswith("float8") == float8
        }
        with enable_x64(True):
            converted = bridge.convert(lambda tree: {name: x[::-1] for name, x in tree.items()})
            results = mode(converted)(tf.nest.map_structure(tf.constant, values))
        assert results.keys() == values.keys()
        for name, value in values.items():
            assert results[name].dtype.name == name
            assert results[name].numpy().tobytes() == value[::-1].tobytes(), name

    @pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e4m3", "float4_e2m1fn"])
    def test_others_are_refused(self, dtype):
        with pytest.raises(DtypeError, match=rf"result\['low'\] has dtype {dtype}, which the Xla"):
            bridge.convert(lambda x: {"low": x.astype(dtype)})(tf.ones(2))
        exported = export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((2,), dtype))
        with pytest.raises(DtypeError, match=rf"args\[0\] has dtype {dtype}"):
            bridge.convert(exported)

    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (lambda: tf.constant("text"), "string"),
            (lambda: "text", "string"),
            (lambda: np.array(["text"]), "string"),
            (lambda: tf.Variable(1.0).handle, "resource"),
            (lambda: tf.cast([1.0], tf.qint8), "qint8"),
            (lambda: tf.cast([1], tf.dtypes.experimental.int4), "int4"),
        ],
    )
    def test_what_jax_lacks_is_refused(self, value, dtype):
        with pytest.raises(
            DtypeError, match=rf"args\[0\]\['a'\]\[1\] has dtype {dtype}, which the"
        ):
            bridge.convert(lambda x: x)({"a": [tf.ones(2), value()]})

    def test_a_byte_order_that_is_not_the_machines(self):
        converted = bridge.convert(lambda x: x + 1)
        assert converted(np.arange(3, dtype=">f4")).numpy().tolist() == [1, 2, 3]


class TestNumbers:
    @pytest.mark.parametrize(
        ("value", "dtype"),
        [
            (2.0, "bfloat16"),
            (2, "bfloat16"),
            (True, "bfloat16"),
            (jnp.asarray(2.0), "bfloat16"),
            (jnp.full(2, 2.0), "bfloat16"),
            (jnp.ones(2), "float32"),
            (2j, "complex64"),
            (np.float32(2), "float32"),
            (np.int8(2), "bfloat16"),
            (jnp.float16(2), "float32"),
            (tf.constant(2.0), "float32"),
            (tf.Variable(2.0), "float32"),
        ],
    )
    def test_promotion_is_that_of_jax(self, value, dtype):
        """JAX's weak types: a Python number takes the dtype of what it meets."""
        x = tf.ones(2, tf.bfloat16)
        result = bridge.convert(lambda x, y: x * y)(x, value)
        assert result.dtype.name == dtype
        theirs = value.numpy() if isinstance(value, (tf.Tensor, tf.Variable)) else value
        assert (jnp.ones(2, jnp.bfloat16) * theirs).dtype == dtype

    def test_weak_and_strong_ones_are_exported_apart(self):
        traced = []
        converted = bridge.convert(lambda x, y: traced.append(y.aval.weak_type) or x * y)
        x = tf.ones(2, tf.bfloat16)
        assert converted(x, 2.0).dtype == tf.bfloat16
        assert converted(x, np.float32(2)).dtype == tf.float32
        assert converted(x, 3.0).dtype == tf.bfloat16
        assert traced == [True, False]

    @pytest.mark.parametrize(
        ("value", "cure"),
        [(2**31, "call jax.*x64"), (-(2**31) - 1, "call jax.*x64"), (2**80, "pass a float")],
    )
    def test_an_integer_that_is_too_large(self, value, cure):
        said = rf"args\[0\] is {value} \(int\), too large for JAX .*To do: {cure}"
        with pytest.raises(StructureError, match=said):
            bridge.convert(lambda x: x)(value)

    def test_an_enumeration(self):
        class Color(enum.IntEnum):
            RED = 3

        assert bridge.convert(lambda x: x + 1)(Color.RED).numpy() == 4

    @pytest.mark.parametrize(
        "value",
        [
            object(),
            np.array([object()]),
            tf.ragged.constant([[1], [2, 3]]),
            tf.sparse.from_dense([1, 0]),
            b"\xff",
            print,
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_what_is_no_tensor(self, value):
        with pytest.raises(
            InteropError, match=r"^kwargs\['x'\] (is .* expected a tensor|has dtype)"
        ):
            bridge.convert(lambda x: x)(x=value)


class TestContainers:
    def test_python_containers(self, mode):
        def function(tree, pair):
            return {"y": [tree["b"] - tree["a"]], "n": (pair[0] * pair[1], None)}

        result = mode(bridge.convert(function))(
            {"b": tf.constant(5.0), "a": tf.constant(2.0)}, (tf.constant(2), tf.constant(3))
        )
        assert result["y"][0].numpy() == 3
        assert result["n"][0].numpy() == 6
        assert result["n"][1] is None

    def test_the_structure_is_the_functions(self):
        converted = bridge.convert(lambda p: (Point(p.x, p.y), OrderedDict(b=p.x, a=[p.y]), None))
        point, ordered, nothing = converted(Point(1.0, 2.0))
        assert isinstance(point, Point)
        assert isinstance(ordered, OrderedDict)
        assert (list(ordered), point.y.numpy(), nothing) == (["b", "a"], 2.0, None)

    def test_dictionaries_of_every_kind(self):
        converted = bridge.convert(lambda tree: tree["a"] + tree["b"])
        for kind in (dict, OrderedDict, lambda d: defaultdict(float, d)):
            assert converted(kind({"a": 1.0, "b": 2.0})).numpy() == 3

    def test_a_registered_class_in_an_exported(self):
        """It need not be registered for serialization, since nothing is written."""
        layer = Layer(jax.ShapeDtypeStruct((2, 3), "float32"), "dense")
        exported = export.export(jax.jit(lambda layer: Layer(layer.w.T, "t")))(layer)
        converted = bridge.convert(exported)
        assert converted(Layer(tf.ones((2, 3)), "dense")).w.shape == (3, 2)
        with pytest.raises(StructureError, match=r"args\[0\] of <lambda> has the structure .*conv"):
            converted(Layer(tf.ones((2, 3)), "conv"))

    def test_what_a_module_swaps_in(self, mode):
        """`tf.Module` wraps lists, dicts and tuples, so that it sees its variables."""
        module = tf.Module()
        module.tree = {"list": [tf.Variable(2.0)], "tuple": (tf.Variable(3.0),)}
        module.point = Point(tf.Variable(4.0), {"x": tf.Variable(5.0)})
        kinds = {type(x).__name__ for x in (module.tree, *module.tree.values(), module.point)}
        assert kinds == {"_DictWrapper", "ListWrapper", "_TupleWrapper"}

        def function(tree, point):
            assert isinstance(point, Point)
            return tree["list"][0] * tree["tuple"][0] + point.y * point.x["x"]

        converted = bridge.convert(function)
        module.run = mode(lambda factor: factor * converted(module.tree, module.point))
        with tf.GradientTape() as tape:
            result = converted(module.tree, module.point)
        gradients = tape.gradient(result, module.trainable_variables)
        assert [g.numpy() for g in gradients] == [5.0, 4.0, 3.0, 2.0]
        assert result.numpy() == 26

    def test_no_arguments_and_no_results(self, mode):
        assert mode(bridge.convert(lambda: jnp.arange(3)))().numpy().tolist() == [0, 1, 2]
        assert mode(bridge.convert(lambda x: ()))(tf.ones(2)) in ((), [])
        assert mode(bridge.convert(lambda: None))() is None
        assert mode(bridge.convert(lambda x, y: [y]))({}, tf.ones(2))[0].numpy().tolist() == [1, 1]

    def test_no_elements(self, mode):
        converted = bridge.convert(lambda x, y: (x @ y, jnp.concatenate([x, x]), x.sum(1)))
        product, pair, sums = mode(converted)(tf.ones((0, 3)), tf.ones((3, 2)))
        assert (product.shape, pair.shape, sums.shape) == ((0, 2), (0, 3), (0,))


class TestKeys:
    """Typed PRNG keys cross as their key data."""

    def test_in_and_out(self, mode):
        def function(data):
            key = jax.random.wrap_key_data(data)
            return jax.random.split(key, 3), jax.random.normal(key, (2,))

        key = jax.random.key(7)
        keys, normal = mode(bridge.convert(function))(tf.constant(jax.random.key_data(key)))
        np.testing.assert_array_equal(keys, jax.random.key_data(jax.random.split(key, 3)))
        # XLA's two versions approximate the inverse error function, in the last place
        np.testing.assert_allclose(normal, jax.random.normal(key, (2,)), rtol=1e-6)

    @pytest.mark.parametrize("sizes", [None, "b"])
    def test_what_also_returns_a_key_is_differentiated(self, mode, sizes):
        def function(data, x):
            key = jax.random.wrap_key_data(data)
            return key, jax.random.split(key, 3), (x**2).sum()

        converted = mode(bridge.convert(function, polymorphic_shapes=[None, sizes]))
        data, x = tf.constant(jax.random.key_data(jax.random.key(7))), tf.constant([1.0, 3])
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = converted(data, x)[-1]
        np.testing.assert_array_equal(tape.gradient(total, x), [2, 6])

    def test_arrays_of_keys_and_other_generators(self):
        converted = bridge.convert(jax.vmap(lambda key: jax.random.bits(key, (2,))))
        for impl in ("threefry2x32", "rbg", "unsafe_rbg"):
            keys = jax.random.split(jax.random.key(0, impl=impl), 3)
            expected = jax.vmap(lambda key: jax.random.bits(key, (2,)))(keys)
            np.testing.assert_array_equal(converted(keys), expected)

    def test_an_exported_takes_keys_and_their_data(self):
        key = jax.random.key(7)
        converted = bridge.convert(export.export(jax.jit(jax.random.bits))(key))
        for argument in (key, tf.constant(jax.random.key_data(key)), np.uint32([0, 7])):
            assert converted(argument).numpy() == jax.random.bits(key)
        with pytest.raises(DtypeError, match=r"args\[0\] has dtype key<rbg>; .* for key<fry>"):
            converted(jax.random.key(7, impl="rbg"))
        with pytest.raises(DtypeError, match=r"args\[0\] has dtype float32; .* for key<fry>"):
            converted(7.0)
        with pytest.raises(
            StructureError, match=r"args\[0\] of .* has shape \(3,\); expected uint"
        ):
            converted(np.uint32([0, 7, 1]))


def test_float0():
    """A VJP's cotangents of integers are float0 in JAX and `false` in TensorFlow."""
    args = jax.ShapeDtypeStruct((2,), "float32"), jax.ShapeDtypeStruct((2,), "int32")
    exported = export.export(jax.jit(lambda x, n: (x * n, n + 1)))(*args)
    converted = bridge.convert(exported.vjp())
    for cotangent in (tf.zeros(2, tf.bool), np.zeros(2, jax.dtypes.float0)):
        dx, dn = converted(tf.ones(2), tf.constant([2, 3]), tf.ones(2), cotangent)
        assert dx.numpy().tolist() == [2, 3]
        assert (dn.dtype, dn.numpy().tolist()) == (tf.bool, [False, False])
    with pytest.raises(
        DtypeError, match=r"args\[3\] has dtype int32; it was exported for .*float0"
    ):
        converted(tf.ones(2), tf.constant([2, 3]), tf.ones(2), tf.constant([0, 0]))


def _activate(x, kind="double", *, training=False, mask=None, scale=2.0):
    """Choose an activation by a value that must stay Python's."""
    assert isinstance(kind, str)
    assert training is False
    x = x * scale if kind == "double" else x
    return x if mask is None else x * mask


class TestDefaults:
    """tf.function passes every default as if the caller had."""

    def test_they_stay_out_of_the_module(self, mode):
        result = mode(bridge.convert(_activate))(tf.constant([1.0, 2.0]))
        assert result.numpy().tolist() == [2, 4]

    def test_what_is_passed_counts(self, mode):
        converted = bridge.convert(_activate)
        run = mode(lambda x, m: converted(x, mask=m, scale=tf.constant(3.0)))
        assert run(tf.constant([1.0, 2.0]), tf.constant([0.0, 1.0])).numpy().tolist() == [0, 6]

    def test_a_default_between_arguments(self):
        def function(x, flag=False, y=None, /, z=None):
            assert flag is False
            return x + (0 if y is None else y) + (0 if z is None else z)

        converted = bridge.convert(function)
        for call in (converted, tf.function(converted)):
            assert call(tf.constant(1.0)).numpy() == 1
            assert call(tf.constant(1.0), z=tf.constant(2.0)).numpy() == 3

    def test_a_default_before_what_has_no_name(self):
        """It cannot be left out, so it arrives as what it is."""

        def function(x, n=1, y=0.0, /, *rest):
            return x * n + y + sum(rest)

        converted = bridge.convert(function)
        assert converted(2.0, 1, 3.0).numpy() == 5
        assert converted(2.0, 1, 3.0, 4.0).numpy() == 9
        assert converted(2.0, 1).numpy() == 2

    def test_a_function_that_does_not_tell_its_parameters(self):
        class Callable:
            __signature__ = "none"

            def __call__(self, x):
                return x + 1

        assert bridge.convert(Callable())(1.0).numpy() == 2

    def test_parameters_that_are_bound(self, mode):
        bound = functools.partial(lambda x, kind: x * (2 if kind == "double" else 3), kind="double")
        assert mode(bridge.convert(bound))(tf.constant(2.0)).numpy() == 4

    def test_static_arguments_of_jit(self, mode):
        jitted = jax.jit(_activate, static_argnames=("kind", "training"))
        assert mode(bridge.convert(jitted))(tf.constant(2.0)).numpy() == 4
        bound = functools.partial(jitted, kind="single")
        assert mode(bridge.convert(bound))(tf.constant(2.0)).numpy() == 2

    @pytest.mark.parametrize(
        ("static", "args", "kwargs", "where"),
        [
            ({"static_argnums": 1}, (1.0, 3), {}, r"args\[1\]"),
            ({"static_argnums": -1}, (1.0, 3), {}, r"args\[-?1\]"),
            ({"static_argnums": 1}, (1.0,), {"n": 3}, r"kwargs\['n'\]"),
            ({"static_argnames": "n"}, (1.0,), {"n": 3}, r"kwargs\['n'\]"),
            ({"static_argnames": "n"}, (1.0, 3), {}, r"args\[1\]"),
        ],
    )
    def test_a_static_argument_cannot_arrive(self, static, args, kwargs, where):
        converted = bridge.convert(jax.jit(lambda x, n: jnp.full(n, x), **static))
        with pytest.raises(
            StructureError, match=rf"{where} of <lambda> is a static argument of jax"
        ):
            converted(*args, **kwargs)

    def test_static_arguments_are_noticed_without_the_gate(self, monkeypatch):
        monkeypatch.setattr(converted_function, "static_parameters", lambda fun: ((), ()))
        with pytest.raises(StructureError, match=r"some of its arguments are static\. To do: bind"):
            bridge.convert(jax.jit(lambda x, n: x, static_argnums=1))(1.0, 3)


def test_metadata():
    def predict(image, *, scale: float = 1.0) -> int:
        """Scales."""
        return image * scale

    converted = bridge.convert(predict)
    names = ("__name__", "__qualname__", "__doc__", "__module__")
    assert [getattr(converted, name) for name in names] == [
        getattr(predict, name) for name in names
    ]
    assert str(converted.__signature__) == "(image, *, scale: 'float' = 1.0)"
    assert not hasattr(converted, "__wrapped__")
    exported = export.export(jax.jit(predict))(jnp.ones(2))
    assert bridge.convert(exported).__name__ == "predict"
    assert bridge.convert(functools.partial(predict, scale=2.0))(tf.ones(2)).numpy().tolist() == [
        2,
        2,
    ]


def test_inputs_are_named_after_the_arguments(tmp_path):
    module = tf.Module()
    module.f = tf.function(bridge.convert(lambda image, *, scale: {"y": image * scale}))
    concrete = module.f.get_concrete_function(tf.TensorSpec([2]), scale=tf.TensorSpec([]))
    tf.saved_model.save(module, str(tmp_path), signatures=concrete)
    signature = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    assert signature.structured_input_signature[1].keys() == {"image", "scale"}
    assert signature.structured_outputs.keys() == {"y"}


def test_autograph_has_nothing_to_convert(caplog):
    """It is on by default, and complains of what it cannot read."""
    converted = bridge.convert(_activate)

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = converted(x)
        return tape.gradient(y, x)

    tf.get_logger().addHandler(caplog.handler)
    try:
        assert gradient(tf.ones(2)).numpy().tolist() == [2, 2]
        assert tf.function(converted)(tf.ones(2)).numpy().tolist() == [2, 2]
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert caplog.messages == []


CONVERTED_INSIDE = {
    "convert": lambda x: bridge.convert(jnp.sin)(x),
    "call_tf": lambda x: bridge.convert(bridge.call_tf(tf.sin))(x),
    "the interface of JAX": lambda x: bridge.jax2tf.convert(bridge.jax2tf.call_tf(tf.sin))(x),
    "a constant": lambda x: x + np.asarray(bridge.call_tf(tf.sin)(np.zeros(2, np.float32))),
}


@pytest.mark.parametrize("how", CONVERTED_INSIDE)
def test_autograph_passes_over_what_is_converted_inside(how, caplog):
    function = tf.function(CONVERTED_INSIDE[how])
    tf.get_logger().addHandler(caplog.handler)
    try:
        assert function(tf.zeros(2)).numpy().tolist() == [0, 0]
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert caplog.messages == []


def test_autograph_keeps_the_class_of_an_error():
    converted = bridge.convert(jnp.sin)

    @tf.function
    def run(x):
        return converted(x)

    with pytest.raises(DtypeError, match=r"in user code.*(\n.*)*has dtype string"):
        run(tf.constant("text"))


@pytest.mark.parametrize("call_tf", [bridge.call_tf, bridge.jax2tf.call_tf])
def test_a_tensor_of_a_graph_is_refused_by_call_tf(call_tf):
    called = call_tf(tf.sin)
    with pytest.raises(ArgumentError, match=r"args\[0\] is .*tracing.*bridge\.convert\(bridge"):
        tf.function(lambda x: called(x))(tf.zeros(2))


@pytest.mark.parametrize(
    "module", ["tensorflow.python.autograph.impl.api", "tensorflow.python.eager.record"]
)
def test_without_a_gate(module, monkeypatch):
    """What TensorFlow keeps private makes it fast; without it, the public way does the same."""
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        converted = bridge.convert(lambda x: jnp.sin(x))
        converted(tf.zeros(2))
    x = tf.zeros(2)
    for run in (converted, tf.function(converted)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(x)
        assert tape.gradient(y, x).numpy().tolist() == [1, 1]


def test_without_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    wanted = re.escape(f"TensorFlow, which is not installed. To do: {installing('tensorflow')}")
    with pytest.raises(MissingDependencyError, match=wanted):
        bridge.convert(jnp.sin)


@pytest.mark.parametrize("fun", [3, "text", None, export])
def test_what_is_no_function(fun):
    with pytest.raises(
        StructureError, match=r"Expected a Python function or a jax\.export\.Exporte"
    ):
        bridge.convert(fun)
