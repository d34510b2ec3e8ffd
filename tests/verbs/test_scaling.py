"""The work of each verb grows with the leaves of its pytrees and the number of signatures.

The lines that run are counted, function by function, for some number of leaves, for twice and for
three times as many. What MLIR and protobuf do is not counted; `make bench` measures it.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.diff import diff
from bridge.litert.lowering.call_lowering import lower_call
from tests.work import superlinear, times_called
from xla_call_module import from_exported
from xla_call_module._jax import parse_artifact, serialize_artifact
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.stablehlo.modules import open_module, read_main

PLATFORMS = ("cpu", "cuda", "tpu")
SIZE = 24


def make_params(leaves, first=0.0):
    """A pytree of that many leaves and one more; arrays of one kind have the same last key."""
    layers = [
        {"w": np.full(2, first + n, np.float32), "b": np.full(2, n, np.float32)}
        for n in range(leaves // 2)
    ]
    return {"layers": layers, "step": np.int32(3)}


def predict(params, xs, *, k):
    """Results of all kinds: computed, zeros, handed on."""
    layers = params["layers"]
    computed = {f"y{n}": layer["w"] * xs[n] + layer["b"] for n, layer in enumerate(layers)}
    return computed, [jnp.zeros(3) for _ in layers], [layer["b"] for layer in layers], k


def export(leaves, *, batch=""):
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"{batch}2"), "float32")
    k = jax.ShapeDtypeStruct((), "int32")
    exporter = jax.export.export(jax.jit(predict), platforms=PLATFORMS)
    return exporter(make_params(leaves), [spec] * (leaves // 2), k=k)


@pytest.fixture(scope="module")
def exported():
    made = {}

    def get(leaves, batch=""):
        if (leaves, batch) not in made:
            made[leaves, batch] = export(leaves, batch=batch)
        return made[leaves, batch]

    return get


@pytest.fixture(scope="module")
def saved(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")

    def get(leaves, first=0.0):
        path = folder / f"{leaves}_{first}"
        if not path.exists():
            bridge.save(exported(leaves), path, params=make_params(leaves, first))
        return path

    return get


SAVES = {
    "plain": {},
    "two orders": {"gradient_order": 2},
    "residuals": {"residuals": True},
    "constants": {"hoist_constants": 4},
    "an old TensorFlow": {"tensorflow": "2.14"},
}


@pytest.mark.parametrize("options", SAVES.values(), ids=SAVES.keys())
def test_save(exported, tmp_path, options):
    def save(leaves):
        params, path = make_params(leaves), tmp_path / str(leaves)
        function = exported(leaves)
        return lambda: bridge.save(function, path, params=params, overwrite=True, **options)

    assert superlinear(save, size=SIZE) == []


def test_save_with_dimension_variables(exported, tmp_path):
    def save(leaves):
        params, path = make_params(leaves), tmp_path / str(leaves)
        function = exported(leaves, "b, ")
        return lambda: bridge.save(function, path, params=params, overwrite=True)

    assert superlinear(save, size=SIZE) == []


def _looked_at(verb):
    return lambda saved, leaves: lambda: verb(saved(leaves))


def _called(saved, leaves):
    model, xs = bridge.load(saved(leaves)), [jnp.ones(2)] * (leaves // 2)
    return lambda: model(xs, k=jnp.int32(1))


def _differing(saved, leaves):
    first, second = saved(leaves), saved(leaves, 0.5)
    return lambda: str(diff(first, second))


VERBS = {
    "load": _looked_at(bridge.load),
    "call": _called,
    "inspect": _looked_at(lambda path: str(bridge.inspect(path))),
    "diff": _differing,
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_file_with_many_leaves(saved, verb):
    assert superlinear(lambda leaves: verb(saved, leaves), size=SIZE) == []


def test_retarget_of_a_file(saved, tmp_path):
    targets = (tmp_path / str(number) for number in itertools.count())

    def retarget(leaves):
        source = saved(leaves)
        return lambda: bridge.retarget(source, "2.18", to=next(targets))

    assert superlinear(retarget, size=SIZE) == []


def test_retarget_of_a_function(exported):
    def retarget(leaves):
        function = exported(leaves)
        return lambda: bridge.retarget(function, "2.18")

    assert superlinear(retarget, size=SIZE) == []


@pytest.fixture(scope="module")
def signatures():
    made = {}

    def get(count):
        for n in range(len(made), count):
            spec = jax.ShapeDtypeStruct((n + 1,), "float32")
            made[n] = jax.export.export(jax.jit(lambda params, x: x * params["w"]))(
                {"w": np.float32(1)}, spec
            )
        return {f"s{n}": made[n] for n in range(count)}

    return get


def test_many_signatures(signatures, tmp_path):
    params = {"w": np.float32(1)}

    def save(count):
        functions, path = signatures(count), tmp_path / str(count)
        return lambda: bridge.save(functions, path, params=params, overwrite=True)

    assert superlinear(save, size=8) == []
    assert superlinear(lambda count: lambda: bridge.load(tmp_path / str(count)), size=8) == []
    assert superlinear(lambda count: lambda: bridge.inspect(tmp_path / str(count)), size=8) == []


@pytest.fixture(scope="module", params=["3", "b"], ids=["static", "symbolic"])
def repeated(request, tmp_path_factory):
    """A file of TensorFlow that calls one function some times, one after another."""
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(request.param), "float32")
    sine = bridge.convert(jax.export.export(jax.jit(jnp.sin))(spec))
    shape = [None if request.param == "b" else 3]
    folder = tmp_path_factory.mktemp("repeated")

    def get(calls):
        def repeat(x):
            for _ in range(calls):
                x = sine(x)
            return x

        path, module = folder / str(calls), tf.Module()
        if not path.exists():
            module.run = tf.function(repeat, [tf.TensorSpec(shape, tf.float32)], autograph=False)
            tf.saved_model.save(module, path)
        return path

    return get


def _derivative(path):
    return jax.grad(lambda x: jnp.sum(bridge.load(path)(x)))(jnp.ones(3))


CALLING_VERBS = {
    "load": bridge.load,
    "call": lambda path: bridge.load(path)(jnp.ones(3)),
    "derivative": _derivative,
    "inspect": bridge.inspect,
    "diff": lambda path: diff(path, path),
    "to_onnx": bridge.to_onnx,
}


@pytest.mark.parametrize("verb", CALLING_VERBS.values(), ids=CALLING_VERBS.keys())
def test_many_calls_in_a_file_of_tensorflow(repeated, verb):
    def made(calls):
        path = repeated(calls)
        return lambda: verb(path)

    assert superlinear(made, size=8) == []
    for function in (parse_artifact, serialize_artifact):
        few, many = (times_called(function, made(calls)) for calls in (8, 16))
        assert few == many  # equal calls are looked at once


def test_many_arguments_of_a_tensorflow_function():
    def lower(arguments):
        called = bridge.call_tf(tf.function(lambda *xs: [x + 1.0 for x in xs]))
        xs = [np.float32(1)] * arguments
        return lambda: jax.jit(called).lower(*xs)

    assert superlinear(lower, size=SIZE) == []


def test_many_leaves_in_tensorflow(exported):
    def trace(leaves):
        function = bridge.convert(exported(leaves))
        xs = [tf.ones(2)] * (leaves // 2)

        @tf.function(autograph=False)
        def gradients(xs):
            with tf.GradientTape() as tape:
                tape.watch(xs)
                computed, *_ = function(make_params(leaves), xs, k=np.int32(1))
            return tape.gradient(computed, xs)

        return lambda: gradients.get_concrete_function(xs)

    assert superlinear(trace, size=SIZE) == []


def test_many_factorizations():
    def lower(count):
        def factorize(x):
            return [jax.lax.linalg.cholesky(x + n) for n in range(count)]

        spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 2, 2"), "float32")
        call = from_exported(jax.export.export(jax.jit(factorize), platforms=["cpu"])(spec))
        return lambda: run_passes(call, [lower_linalg()])

    assert superlinear(lower, size=8) == []


def test_many_calls_of_what_jax_lowers_once():
    """No operation of `jnp.sort` has a line; each has that of a call, of which there are many."""

    def lower(count):
        def sort(xs):
            return [jnp.cumsum(jnp.sort(x)) for x in xs]

        specs = [jax.ShapeDtypeStruct((n + 2,), "float32") for n in range(count)]
        call = from_exported(jax.export.export(jax.jit(sort), platforms=["cpu"])(specs))
        return lambda: lower_call(call)

    assert superlinear(lower, size=8) == []


def test_results_that_are_zero_in_a_function_that_main_calls(exported):
    """With dimension variables JAX calls the function from `main`."""
    function = exported(SIZE, "b, ")
    with open_module(function.mlir_module_serialized) as module:
        zeros = read_main(module).zeros
    half = SIZE // 2
    assert zeros == (False,) * half + (True,) * half + (False,) * (half + 1)


def test_what_grows_faster_is_found():
    assert superlinear(_pairs, size=20) == []  # it is no function of the project


def _pairs(count):
    return lambda: sum(1 for a in range(count) for b in range(count) if a < b)
