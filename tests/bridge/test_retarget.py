"""`bridge.retarget`: what comes out is an Exported in JAX, and older in every order."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from xla_call_module import from_exported
from xla_call_module.call import read_artifact_version
from xla_call_module.errors import LoweringError, StructureError, VersionError
from xla_call_module.passes.obstacles import oldest_release
from xla_call_module.versions import parse_release

X = np.linspace(-0.9, 0.9, 6, dtype=np.float32).reshape(2, 3)
Y = np.linspace(1, 2, 6, dtype=np.float32).reshape(3, 2)


def _function(x, y):
    return {"product": jnp.sinh(x) @ y}


@pytest.fixture(scope="module")
def exported():
    symbolic = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), np.float32)
    return export.export(jax.jit(_function), platforms=["tpu", "cpu"])(symbolic, Y)


def _orders(exported, count):
    chain = [exported]
    for _ in range(count):
        chain.append(chain[-1].vjp())
    return chain


@pytest.mark.parametrize("tensorflow", ["2.14", "2.16", "2.18", "2.21"])
def test_every_order_is_older(exported, tensorflow):
    release = parse_release(tensorflow)
    written = read_artifact_version(exported.mlir_module_serialized)
    for order in _orders(bridge.retarget(exported, tensorflow), 2):
        version = read_artifact_version(order.mlir_module_serialized)
        assert version == min(release.stablehlo, written)
        assert order.calling_convention_version == min(release.convention, 9)
        assert oldest_release(from_exported(order)).tensorflow <= release.tensorflow


def test_only_modules_and_conventions_change(exported):
    old = bridge.retarget(exported, "2.14")
    for before, after in zip(_orders(exported, 1), _orders(old, 1), strict=True):
        for field in ("fun_name", "in_tree", "out_tree", "platforms", "module_kept_var_idx"):
            assert getattr(after, field) == getattr(before, field)
        assert list(map(str, after.in_avals)) == list(map(str, before.in_avals))
        assert list(map(str, after.out_avals)) == list(map(str, before.out_avals))


def test_jax_calls_and_differentiates_it(exported):
    old = bridge.retarget(exported, "2.14")
    np.testing.assert_allclose(old.call(X, Y)["product"], np.sinh(X) @ Y, rtol=1e-6)
    gradient = jax.grad(lambda x: (old.call(x, Y)["product"] ** 2).sum())(X)
    expected = jax.grad(lambda x: (_function(x, Y)["product"] ** 2).sum())(X)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


def test_it_is_serialized_with_the_orders_that_are_asked_for(exported):
    old = bridge.retarget(exported, "2.14")
    read = export.deserialize(old.serialize(vjp_order=2))
    chain = _orders(read, 2)
    assert [order.calling_convention_version for order in chain] == [8, 8, 8]
    assert not chain[-1].has_vjp()
    np.testing.assert_array_equal(read.call(X, Y)["product"], old.call(X, Y)["product"])


def test_what_was_done_is_told_by_what_is_made_of_it(exported, tmp_path):
    version = ".".join(map(str, read_artifact_version(exported.mlir_module_serialized)))
    old = bridge.retarget(exported, "2.14")
    again = bridge.retarget(export.deserialize(old.serialize(vjp_order=1)), "2.14")
    expected = ("composites by their definitions", f"StableHLO {version} to 0.14.8")
    for order in (old, old.vjp(), again, again.vjp()):
        changes = from_exported(order).changes
        assert [change for change in changes if change not in expected] == []
        assert changes[-1] == expected[-1]
    bridge.save(again, tmp_path / "model")
    loaded = bridge.load(tmp_path / "model").signatures["serving_default"]
    (signature,) = bridge.inspect(tmp_path / "model").signatures
    assert signature.orders[0].changes == loaded.changes
    assert loaded.changes[-1] == expected[-1]


def test_one_that_has_no_vjp_stays_so(exported):
    read = export.deserialize(exported.serialize(vjp_order=0))
    assert not bridge.retarget(read, "2.14").has_vjp()


def test_what_only_the_vjp_contains_is_found_when_it_is_asked_for():
    @jax.custom_vjp
    def plain(x):
        return x + 1

    accurate = functools.partial(lax.exp, accuracy=lax.AccuracyMode.HIGHEST)
    plain.defvjp(lambda x: (plain(x), x), lambda x, cotangent: (cotangent * accurate(x),))
    old = bridge.retarget(export.export(jax.jit(plain))(X), "2.16")
    assert old.call(X).shape == X.shape
    match = r"vhlo\.exponential_v2 with result_accuracy HIGHEST at .*that runs it is 2\.19\."
    with pytest.raises(VersionError, match=match):
        old.vjp()
    with pytest.raises(VersionError, match=match):
        old.serialize(vjp_order=1)


def test_no_exported():
    with pytest.raises(StructureError, match=r"Expected a jax\.export\.Exported, got function"):
        bridge.retarget(_function, "2.16")


def test_no_release(exported):
    with pytest.raises(VersionError, match=r"TensorFlow 2\.13 is older than 2\.14"):
        bridge.retarget(exported, "2.13")


class TestPlatforms:
    """An `Exported` is exported again, of its operations."""

    def test_new_ones(self):
        b = export.symbolic_shape("b, 3", constraints=["b >= 2"])
        matrix, x = np.eye(3, dtype=np.float32) * 2, np.ones((4, 3), np.float32)

        def function(params, x):
            return {"y": jnp.linalg.cholesky(params["w"]) @ x.T}

        made = export.export(jax.jit(function), platforms=["cpu"])(
            {"w": matrix}, jax.ShapeDtypeStruct(b, np.float32)
        )
        read = export.deserialize(made.serialize(vjp_order=1))
        found = bridge.retarget(read, platforms=["cpu", "cuda", "tpu"])
        assert found.platforms == found.vjp().platforms == ("cpu", "cuda", "tpu")
        assert (str(found.in_avals), found.fun_name) == (str(made.in_avals), made.fun_name)
        assert not found.vjp().has_vjp()
        of_x = lambda call: jax.grad(lambda x: call({"w": matrix}, x)["y"].sum())(x)  # noqa: E731
        np.testing.assert_array_equal(
            found.call({"w": matrix}, x)["y"], made.call({"w": matrix}, x)["y"]
        )
        np.testing.assert_allclose(of_x(found.call), of_x(made.call), rtol=1e-6)
        older = bridge.retarget(made, "2.16", platforms=["tpu"])
        assert (older.platforms, older.calling_convention_version) == (("tpu",), 9)

    @pytest.mark.parametrize("platforms", [["tpu"], ["cpu", "tpu"]])
    def test_what_is_different_on_each(self, platforms):
        chosen = jax.jit(lambda x: lax.platform_dependent(x, cpu=jnp.sin, cuda=jnp.cos))
        made = export.export(chosen, platforms=["cpu", "cuda"])(X)
        with pytest.raises(LoweringError, match=r"exported for cpu, cuda, and has no form for all"):
            bridge.retarget(made, platforms=platforms)
