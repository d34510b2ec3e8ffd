"""A call and its VJP as a forward and a backward pass."""

from __future__ import annotations

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64

from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.passes.module_pass import open_pair, run_passes
from xla_call_module.passes.pipeline import Target, prepare, prepare_chain, retarget
from xla_call_module.passes.residuals import drop_residuals, join_residuals, split_residuals
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.modules import open_module, walk

W = np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2)
X = np.linspace(0.1, 1.3, 12).astype(np.float32).reshape(4, 3)


def _join(forward, backward, kept):
    with open_pair(forward, backward) as pair:
        return tuple(parsed.serialized() for parsed in join_residuals(*pair, kept))


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


FUNCTIONS = {
    f.__name__: f for f in (layers, scanned, by_platform, narrow, counted, cubed, elementwise)
}


def export(function, dims, platforms=("cpu",)):
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(f"{dims}, 3"), np.float32)
    return jax.export.export(jax.jit(function), platforms=platforms)(W, x)


def run(call, arrays):
    """The results, by TensorFlow."""
    operands = [tf.constant(arrays[index]) for index in call.kept]
    with tf.device("/CPU:0"):
        return [result.numpy() for result in Op(retarget(call, "2.21")).run(operands)]


def split(primal, vjp):
    """The forward and the backward pass, serialized."""
    with open_pair(primal, vjp) as pair:
        passes = split_residuals(*pair)
        return passes and tuple(one.serialized() for one in passes)


def count_operations(call):
    with open_module(call.module) as module:
        return collections.Counter(operation.name for operation in walk(module))


@pytest.mark.parametrize("dims", ["4", "b"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_two_passes_compute_what_the_two_calls_do(name, dims):
    exported = export(FUNCTIONS[name], dims, ("cuda", "cpu"))
    primal, vjp = from_exported(exported), from_exported(exported.vjp())
    forward, backward = split(primal, vjp)
    cotangents = [
        np.ones([4 if isinstance(dim, str) else dim for dim in spec.shape], spec.dtype.numpy)
        for spec in vjp.args[2:]
    ]
    results = run(primal, [W, X])
    found = run(forward, [W, X])
    assert len(found) == len(results) + forward.residual_results
    for one, other in zip(found, results, strict=False):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    pulled = run(backward, [W, X, *cotangents, *found[len(results) :]])
    for one, other in zip(pulled, run(vjp, [W, X, *cotangents]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dims", ["4", "b"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_joined_again_they_are_the_two_calls(name, dims):
    exported = export(FUNCTIONS[name], dims, ("cuda", "cpu"))
    primal, vjp = from_exported(exported), from_exported(exported.vjp())
    joined, joined_vjp = _join(*split(primal, vjp), primal.kept)
    assert dataclasses.replace(joined, module=primal.module) == primal
    assert (joined_vjp.args, joined_vjp.results) == (vjp.args, vjp.results)
    assert (
        count_operations(joined)["stablehlo.custom_call"]
        == (count_operations(primal)["stablehlo.custom_call"])
    )
    cotangents = [
        np.ones([4 if isinstance(dim, str) else dim for dim in spec.shape], spec.dtype.numpy)
        for spec in vjp.args[2:]
    ]
    for one, other in zip(run(joined, [W, X]), run(primal, [W, X]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    arrays = [W, X, *cotangents]
    for one, other in zip(run(joined_vjp, arrays), run(vjp, arrays), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wide", [(True, False), (False, True)])
def test_a_platform_index_of_other_bits_in_the_vjp(wide):
    """It has 64 bits in what is exported while x64 is on, the VJP later or earlier than that."""
    with enable_x64(wide[0]):
        exported = export(by_platform, "4", ("cuda", "cpu"))
    with enable_x64(wide[1]):
        vjp = from_exported(exported.vjp())
    primal = from_exported(exported)
    forward, backward = split(primal, vjp)
    cotangent = np.ones((4, 2), np.float32)
    residuals = run(forward, [W, X])[1:]
    pulled = [
        run(vjp, [W, X, cotangent]),
        run(backward, [W, X, cotangent, *residuals]),
        run(_join(forward, backward, primal.kept)[1], [W, X, cotangent]),
    ]
    for one in pulled[1:]:
        for ours, theirs in zip(one, pulled[0], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_residuals_that_nothing_takes_are_dropped():
    primal = from_exported(export(layers, "b", ("cuda", "cpu")))
    forward, _ = split(primal, from_exported(export(layers, "b", ("cuda", "cpu")).vjp()))
    alone = run_passes(forward, [drop_residuals(primal.kept)])
    assert dataclasses.replace(alone, module=primal.module) == primal
    np.testing.assert_allclose(run(alone, [W, X])[0], run(primal, [W, X])[0], rtol=1e-6)


def test_passes_of_different_functions_are_not_joined():
    one, other = (export(FUNCTIONS[name], "b") for name in ("layers", "counted"))
    forward, _ = split(from_exported(one), from_exported(one.vjp()))
    _, backward = split(from_exported(other), from_exported(other.vjp()))
    with pytest.raises(StructureError, match="Expected a forward pass and its backward pass"):
        _join(forward, backward, forward.kept)


def test_a_joined_call_needs_its_arguments():
    exported = export(layers, "b")
    passes = split(from_exported(exported), from_exported(exported.vjp()))
    with pytest.raises(StructureError, match=r"cannot become \[0\], and \[1\] are needed"):
        _join(*passes, [0])


def test_nothing_is_computed_twice():
    exported = export(layers, "b")
    primal, vjp = from_exported(exported), from_exported(exported.vjp())
    forward, backward = split(primal, vjp)
    ours, theirs = (count_operations(call) for call in (forward, primal))
    for operation in ("dot_general", "tanh", "exponential"):
        assert ours[f"stablehlo.{operation}"] == theirs[f"stablehlo.{operation}"]
    left = count_operations(backward)
    assert left["stablehlo.tanh"] == left["stablehlo.exponential"] == 0
    all_of_it = count_operations(vjp)["stablehlo.dot_general"]
    assert left["stablehlo.dot_general"] == all_of_it - theirs["stablehlo.dot_general"] + 1


def test_factors_of_one_value_are_computed_of_it_again():
    exported = export(cubed, "b")
    forward, backward = split(from_exported(exported), from_exported(exported.vjp()))
    assert forward.residual_results == 1
    assert count_operations(forward)["stablehlo.tanh"] == 1
    assert count_operations(backward)["stablehlo.tanh"] == 0


def test_what_is_cheap_is_computed_again():
    exported = export(lambda w, x: ((x - x.mean()) * 2 + 1) ** 2 @ w, "4")
    forward, _ = split(from_exported(exported), from_exported(exported.vjp()))
    assert [spec.shape for spec in forward.results[1:]] == [()]


def test_a_linear_function_has_no_residuals():
    exported = export(lambda w, x: x * 2, "b")
    forward, backward = split(from_exported(exported), from_exported(exported.vjp()))
    assert forward.residual_results == backward.residual_args == 0


def test_another_functions_vjp():
    one, other = export(layers, "b"), export(counted, "b")
    with pytest.raises(StructureError, match=r"takes 4 arguments; the VJP of layers takes its 2"):
        split(from_exported(one), from_exported(other.vjp()))


def test_more_residuals_than_results():
    call = from_exported(export(layers, "b"))
    with pytest.raises(StructureError, match="2 of its 1 results"):
        dataclasses.replace(call, residual_results=2)


def test_a_factorization_is_made_once():
    """It is a loop in a loop, with a constant that the VJP has outside of it, and branches."""
    size = 70
    x = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)

    def factor(x):
        return jnp.linalg.cholesky(x @ x.T + 3 * jnp.eye(size))

    exported = jax.export.export(jax.jit(factor))(x)
    calls = [from_exported(exported), from_exported(exported.vjp())]
    (whole,) = prepare(calls[0], Target(portable_linalg=True)).calls
    forward, backward = prepare_chain(calls, Target(portable_linalg=True), residuals=True).calls
    once, both = count_operations(whole), count_operations(forward)
    for name in ("stablehlo.sqrt", "stablehlo.while"):
        assert once[name] == both[name] > 0
    factors, pull_back = jax.vjp(factor, x)
    results = run(forward, [x])
    np.testing.assert_allclose(results[0], factors, atol=1e-4)
    (gradient,) = run(backward, [x, np.ones_like(x), *results[1:]])
    np.testing.assert_allclose(gradient, *pull_back(jnp.ones_like(x)), atol=1e-2, rtol=1e-3)
