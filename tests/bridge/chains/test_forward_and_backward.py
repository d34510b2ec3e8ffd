"""A function and its VJP as a forward and a backward pass."""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64
from jax import export as jax_export

import bridge
import savedmodel
from bridge.chains.exported_order import carried_by
from bridge.chains.forward_and_backward import export_both, split_at_residuals
from bridge.chains.orders import ChainOptions
from bridge.core._jax import without_results
from tests.work import times_called
from xla_call_module._jax import parse_artifact, serialize_artifact
from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.passes.module_pass import open_pair, run_passes
from xla_call_module.passes.pipeline import Target, prepare, prepare_chain, retarget
from xla_call_module.passes.residuals import DROP_RESIDUALS, join_residuals
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.modules import functions_of, open_module, walk

W = np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2)
X = np.linspace(0.1, 1.3, 12).astype(np.float32).reshape(4, 3)
LARGE = np.linspace(0, 1, 6000).astype(np.float32).reshape(2, 3000)


def layers(w, x):
    hidden = jnp.tanh(x @ w)
    return jax.nn.softmax(hidden * 2) @ w.T


def scanned(w, x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c @ w) @ w.T, c.sum()), x, None, length=3)


def by_platform(w, x):
    y = jax.lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)
    return jnp.exp(y) @ w


def narrow(w, x):
    """Compute with a residual of a dtype that TensorFlow lacks."""
    return (x.astype(jnp.float8_e4m3b11fnuz).astype(jnp.float32) * x) @ w


def counted(w, x):
    return jnp.exp(x @ w), x.shape[0] + jnp.arange(x.shape[0])


@jax.custom_jvp
def factored_tanh(x):
    return jnp.tanh(x)


@factored_tanh.defjvp
def _factored_tanh_jvp(primals, tangents):
    y = jnp.tanh(*primals)
    return y, tangents[0] * ((1 + y) * (1 - y))


def cubed(w, x):
    """Of `y` alone come both factors of the gradient, `(1 + y) * (1 - y)` and `3 * y * y`."""
    return factored_tanh(x @ w) ** 3


def elementwise(w, x):
    """Nothing in it asks what platform it runs on."""
    return jnp.sin(x) * w.sum()


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


# Neither the derivative of the operations, nor linear in the cotangent.
clipped.defvjp(
    lambda x: (jnp.sin(x), jnp.exp(x)), lambda e, g: (jnp.clip(g, -0.25, 0.25) * jnp.cos(e),)
)


def ruled(w, x):
    return clipped(x @ w) * 3


def complex_numbers(w, x):
    z = (x + 1j * x**2) @ w
    return jnp.exp(1j * z), jnp.abs(z)


def branched(w, x):
    return jax.lax.cond(w.sum() > 0.5, jnp.tanh, jnp.sin, x) @ w


def jitted(w, x):
    return jax.jit(lambda x: jnp.sin(jnp.exp(x @ w)))(x)


def randomized(w, x):
    """Compute with keys, which no TensorFlow has, and with noise that depends on arguments."""
    key = jax.random.fold_in(jax.random.key(0), (x[0, 0] * 100).astype(jnp.uint32))
    return jnp.sin(x @ w) * jax.random.uniform(jax.random.split(key)[0], (2,))


def constant(w, x):
    return jnp.sin(x @ w @ LARGE).sum(1)


def accumulated(w, x):
    """On GPUs a composite with a region, which no version of StableHLO has."""
    return jnp.cumsum(jnp.sin(x @ w), 1)


FUNCTIONS = {
    f.__name__: f
    for f in (
        accumulated, layers, scanned, by_platform, narrow, counted, cubed, elementwise, ruled,
        complex_numbers, branched, jitted, constant, randomized,
    )
}  # fmt: skip
SOURCES = ("traced", "artifact")


def export(function, dims, platforms=("cpu",), source="traced"):
    x = jax.ShapeDtypeStruct(jax_export.symbolic_shape(f"{dims}, 3"), np.float32)
    exported = jax_export.export(jax.jit(function), platforms=platforms)(W, x)
    if source == "traced":
        return exported
    return jax_export.deserialize(exported.serialize(vjp_order=1))


def run(call, arrays):
    """The results, by TensorFlow."""
    operands = [tf.constant(arrays[index]) for index in call.kept]
    with tf.device("/CPU:0"):
        return [result.numpy() for result in Op(retarget(call, "2.21")).run(operands)]


def split(exported):
    """The forward and the backward pass, and the two calls that they are of."""
    vjp = exported.vjp()
    calls = from_exported(exported), from_exported(vjp)
    passes = split_at_residuals(
        exported, export_both(exported) or vjp, ChainOptions(), describe=carried_by
    )
    return prepare_chain(passes, Target(portable_linalg=True)).calls, calls


def count_operations(call):
    with open_module(call.module) as module:
        return collections.Counter(operation.name for operation in walk(module))


def cotangents_for(vjp):
    return [
        np.full([4 if isinstance(dim, str) else dim for dim in spec.shape], 0.5, spec.dtype.numpy)
        for spec in vjp.args[2:]
    ]


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", ["4", "b"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_two_passes_compute_what_the_two_calls_do(name, source, dims):
    (forward, backward), (primal, vjp) = split(
        export(FUNCTIONS[name], dims, ("cuda", "cpu"), source)
    )
    assert forward.args == primal.args
    assert backward.results == vjp.results
    assert forward.own_results == primal.results
    assert backward.own_args == vjp.args
    results, found = run(primal, [W, X]), run(forward, [W, X])
    assert len(found) == len(results) + forward.residual_results
    assert_close(found[: len(results)], results)
    cotangents = cotangents_for(vjp)
    pulled = run(backward, [W, X, *cotangents, *found[len(results) :]])
    assert_close(pulled, run(vjp, [W, X, *cotangents]))
    with open_pair(forward, backward) as pair:
        joined = join_residuals(*pair).serialized(forward)
    assert (joined.args, joined.results) == (vjp.args, vjp.results)
    assert_close(run(joined, [W, X, *cotangents]), pulled)


@pytest.mark.parametrize("wide", [(True, False), (False, True)])
def test_a_platform_index_of_other_bits_in_the_vjp(wide):
    """It has 64 bits in what is exported while x64 is on, the VJP later or earlier than that."""
    with enable_x64(wide[0]):
        exported = export(by_platform, "4", ("cuda", "cpu"))
    with enable_x64(wide[1]):
        (forward, backward), (_, vjp) = split(exported)
    cotangent = np.ones((4, 2), np.float32)
    pulled = run(backward, [W, X, cotangent, *run(forward, [W, X])[1:]])
    assert_close(pulled, run(vjp, [W, X, cotangent]))
    with open_pair(forward, backward) as pair:
        joined = join_residuals(*pair).serialized()
    assert_close(run(joined, [W, X, cotangent]), pulled)


def test_each_pass_is_parsed_and_serialized_once():
    exported = export(constant, "4")
    both = export_both(exported)
    passes = split_at_residuals(exported, both, ChainOptions(), describe=carried_by)

    def work():
        return prepare_chain(passes, Target(hoist_from=100))

    assert work().calls[0].hoisted == work().calls[1].hoisted != ()
    assert [times_called(f, work) for f in (parse_artifact, serialize_artifact)] == [2, 2]


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_is_computed_twice(source):
    (forward, backward), (primal, vjp) = split(export(layers, "b", source=source))
    ours, theirs = (count_operations(call) for call in (forward, primal))
    for operation in ("dot_general", "tanh", "exponential"):
        assert ours[f"stablehlo.{operation}"] == theirs[f"stablehlo.{operation}"]
    left = count_operations(backward)
    assert left["stablehlo.tanh"] == left["stablehlo.exponential"] == 0
    all_of_it = count_operations(vjp)["stablehlo.dot_general"]
    assert left["stablehlo.dot_general"] == all_of_it - theirs["stablehlo.dot_general"] + 1


def test_a_loop_hands_on_what_its_gradient_needs():
    """It runs once in the forward pass, and no more in the backward pass than its transpose."""
    (forward, backward), (primal, _) = split(export(scanned, "4"))
    assert (
        count_operations(forward)["stablehlo.while"]
        == count_operations(primal)["stablehlo.while"]
        == count_operations(backward)["stablehlo.while"]
        == 1
    )


@pytest.mark.parametrize("source", SOURCES)
def test_what_jax_checkpoint_forgets_is_computed_again(source):
    def deep(w, x):
        return jnp.sin(jnp.exp(jnp.sin(x @ w))).sum()

    once, again = (
        split(export(function, "b", source=source))[0] for function in (deep, jax.checkpoint(deep))
    )
    assert once[0].residual_results > 0 == again[0].residual_results
    assert count_operations(once[1])["stablehlo.exponential"] == 0
    assert count_operations(again[1])["stablehlo.exponential"] == 1


@pytest.mark.parametrize("source", SOURCES)
def test_factors_of_one_value_are_computed_of_it_again(source):
    (forward, backward), _ = split(export(cubed, "b", source=source))
    assert forward.residual_results == 1
    assert count_operations(forward)["stablehlo.tanh"] == 1
    assert count_operations(backward)["stablehlo.tanh"] == 0


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_cheap_is_computed_again(source):
    exported = export(lambda w, x: ((x - x.mean()) * 2 + 1) ** 2 @ w, "4", source=source)
    (forward, _), _ = split(exported)
    assert [spec.shape for spec in forward.results[1:]] == [()]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "function", [lambda w, x: x * 2, lambda w, x: x @ w, lambda w, x: x * LARGE[0, :3]]
)
def test_what_needs_arguments_and_constants_alone_has_no_residuals(function, source):
    (forward, backward), _ = split(export(function, "b", source=source))
    assert forward.residual_results == backward.residual_args == 0


@pytest.mark.parametrize("source", SOURCES)
def test_zeros_of_two_signs_are_two_values(source):
    (forward, backward), (_, vjp) = split(
        export(lambda w, x: jnp.arctan2(x * 0.0, x) + jnp.arctan2(x * -0.0, -x), "4", source=source)
    )
    cotangents = cotangents_for(vjp)
    pulled = run(backward, [W, X, *cotangents, *run(forward, [W, X])[1:]])
    assert_close(pulled, run(vjp, [W, X, *cotangents]))


def test_the_places_in_the_source_stay():
    (forward, _), _ = split(export(jax.named_scope("hidden")(layers), "4"))
    with open_module(forward.module) as module:
        places = [str(op.location) for op in walk(module) if op.name == "stablehlo.tanh"]
    assert all("hidden" in place and Path(__file__).name in place for place in places)
    assert places


@pytest.mark.parametrize("source", SOURCES)
def test_a_factorization_is_made_once(source):
    """It is a loop in a loop, with a constant that the VJP has outside of it, and branches."""
    size = 70
    x = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)

    def factor(x):
        return jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(size))

    exported = jax_export.export(jax.jit(factor))(x)
    if source == "artifact":
        exported = jax_export.deserialize(exported.serialize(vjp_order=1))
    (forward, backward), (primal, _) = split(exported)
    (whole,) = prepare(primal, Target(portable_linalg=True)).calls
    once, both = count_operations(whole), count_operations(forward)
    for name in ("stablehlo.sqrt", "stablehlo.while"):
        assert once[name] == both[name] > 0
    factors, pull_back = jax.vjp(factor, x)
    results = run(forward, [x])
    np.testing.assert_allclose(results[0], factors, atol=1e-4)
    (gradient,) = run(backward, [x, np.ones_like(x), *results[1:]])
    np.testing.assert_allclose(gradient, *pull_back(jnp.ones_like(x)), atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("operations", ["xla", "tensorflow"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_written_rule_is_kept(source, operations, tmp_path):
    """In a file and live, in TensorFlow and back in JAX; and the derivative of the rule."""
    exported = export(ruled, "b", source=source)
    bridge.save(exported, tmp_path / "m", residuals=True, gradient_order=2, operations=operations)
    expected = jax.vjp(ruled, W, X)[1](np.full((4, 2), 0.1, np.float32))
    for call in (
        tf.saved_model.load(str(tmp_path / "m")),
        bridge.convert(exported, residuals=True, operations=operations),
    ):
        w, x = tf.constant(W), tf.constant(X)
        with tf.GradientTape() as tape:
            tape.watch((w, x))
            y = call(w, x)
        assert_close(tape.gradient(y, (w, x), tf.fill([4, 2], 0.1)), expected)
    if operations == "xla":
        loaded = bridge.load(tmp_path / "m")
        assert_close(jax.vjp(loaded, W, X)[1](np.full((4, 2), 0.1, np.float32)), expected)


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_donated_is_there_in_the_backward_pass(source):
    exported = jax_export.export(jax.jit(lambda w, x: jnp.sin(x) * w[0, 0], donate_argnums=1))(W, X)
    if source == "artifact":
        exported = jax_export.deserialize(exported.serialize(vjp_order=1))
    call, x = bridge.convert(exported, residuals=True), tf.constant(X)
    for run in (call, tf.function(call, jit_compile=True, autograph=False)):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = run(W, x)
        assert_close([tape.gradient(y, x)], [W[0, 0] * np.cos(X)])
    np.testing.assert_array_equal(x, X)


@pytest.mark.parametrize("source", SOURCES)
def test_integers_and_float64(source, tmp_path):
    """An integer argument and result have no cotangents; 64 bits cross while JAX has 32."""
    specs = (
        jax.ShapeDtypeStruct(jax_export.symbolic_shape("b"), "float64"),
        jax.ShapeDtypeStruct((), "int64"),
    )

    def f(x, n):
        return jnp.sin(x * 2) * n, n + 1

    with enable_x64():
        exported = jax_export.export(jax.jit(f))(*specs)
        if source == "artifact":
            exported = jax_export.deserialize(exported.serialize(vjp_order=1))
    bridge.save(exported, tmp_path / "m", residuals=True, gradient_order=2)
    given = np.linspace(0.1, 1, 5)
    for call in (
        tf.saved_model.load(str(tmp_path / "m")), bridge.convert(exported, residuals=True)
    ):  # fmt: skip
        x = tf.constant(given)
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y, n = call(x, tf.constant(3, tf.int64))
            first = tape.gradient(y, x)
        second = outer.gradient(first, x)
        assert int(n) == 4
        np.testing.assert_allclose(first, 6 * np.cos(2 * given), rtol=1e-13)
        np.testing.assert_allclose(second, -12 * np.sin(2 * given), rtol=1e-13)


def test_a_program_that_another_process_has(tmp_path):
    """JAX cannot trace the call again where only the artifact is there."""

    @jax.custom_vjp
    def foreign(x):
        return jax.ffi.ffi_call("made_up", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    foreign.defvjp(lambda x: (foreign(x), jnp.cos(x)), lambda c, g: (c * g,))
    check = jax_export.DisabledSafetyCheck.custom_call("made_up")
    exported = jax_export.export(jax.jit(foreign), disabled_checks=[check])(X)
    for source in (exported, jax_export.deserialize(exported.serialize(vjp_order=1))):
        bridge.save(source, tmp_path / "m", residuals=True, overwrite=True)
        forward, backward = savedmodel.read(tmp_path / "m").default.function.chain
        assert forward.residual_results == backward.residual_args == 1
        counts = [count_operations(call)["stablehlo.custom_call"] for call in (forward, backward)]
        assert counts == [1, 0]


@pytest.mark.parametrize("source", SOURCES)
def test_the_definitions_of_composites_go_with_them(source):
    """The backward pass has none where it has no composite."""

    def composed(w, x):
        return jax.scipy.special.erf(x @ w)

    (_, backward), _ = split(export(composed, "b", source=source))
    with open_module(backward.module) as module:
        assert list(functions_of(module)) == ["main"]


@pytest.mark.parametrize("source", SOURCES)
def test_random_bits_of_a_constant_key_are_handed_on(source):
    """They are made in a loop, which takes longer than to read them."""

    def dropped(w, x):
        return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, (2,)), jnp.sin(x @ w), 0)

    (forward, backward), (primal, _) = split(export(dropped, "b", source=source))
    ours, theirs = count_operations(forward), count_operations(primal)
    assert ours["stablehlo.while"] == theirs["stablehlo.while"] > 0
    assert count_operations(backward)["stablehlo.while"] == 0


def test_the_vjp_is_described_as_jax_does():
    """The program of results and gradients takes its place."""
    exported = export(ruled, "b")
    ours, theirs = without_results(export_both(exported), 1), exported.vjp()
    same = {"mlir_module_serialized": b"", "_get_vjp": None}
    ours, theirs = (dataclasses.replace(vjp, **same) for vjp in (ours, theirs))
    assert ours == theirs
    assert from_exported(export_both(exported)).args == from_exported(exported.vjp()).args


def test_residuals_that_nothing_takes_are_dropped():
    (forward, _), (primal, _) = split(export(layers, "b", ("cuda", "cpu")))
    alone = run_passes(forward, [DROP_RESIDUALS])
    same = {"module": primal.module, "kept": primal.kept, "version": primal.version}
    assert dataclasses.replace(alone, **same) == dataclasses.replace(primal, **same)
    assert_close(run(alone, [W, X]), run(primal, [W, X]))
    assert count_operations(alone)["stablehlo.tanh"] == 1


def test_passes_of_different_functions_are_not_joined():
    (forward, _), _ = split(export(layers, "b"))
    (_, backward), _ = split(export(counted, "b"))
    with (
        open_pair(forward, backward) as pair,
        pytest.raises(StructureError, match="Expected a forward pass and its backward pass"),
    ):
        join_residuals(*pair)


def test_more_residuals_than_results():
    call = from_exported(export(layers, "b"))
    with pytest.raises(StructureError, match="2 of its 1 results"):
        dataclasses.replace(call, residual_results=2)
