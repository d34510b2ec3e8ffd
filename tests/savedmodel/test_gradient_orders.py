"""Files with fewer orders of gradients, of this writer and of TensorFlow."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from bridge.cli.main import main
from savedmodel.gradient_orders import order_of_functions
from savedmodel.read import read_proto
from xla_call_module.errors import ArgumentError, StructureError, VersionError
from xla_call_module.versions import parse_release

PARAMS = {"w": np.float32(2)}
X = np.linspace(0.1, 0.9, 3, dtype=np.float32)


def _cube(params, x):
    return {"y": params["w"] * jnp.sin(x) ** 3}


@pytest.fixture(scope="module", params=["plain", "residuals", "saved_again"])
def folder(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("orders") / "model"
    bridge.save(
        _cube,
        path,
        params=PARAMS,
        args="f32[b]",
        gradient_order=3,
        residuals=request.param == "residuals",
    )
    if request.param == "saved_again":
        module = tf.saved_model.load(path)
        tf.saved_model.save(module, path.with_name("again"), signatures=module.signatures)
        return path.with_name("again")
    return path


def _orders(folder):
    (meta_graph,) = read_proto(folder).meta_graphs
    return order_of_functions(meta_graph)


@pytest.mark.parametrize("most", [0, 1, 2])
def test_the_orders_that_stay_are_right(folder, most, tmp_path):
    assert max(_orders(folder).values()) == 3
    report = bridge.retarget(folder, to=tmp_path / "less", gradient_order=most)
    assert report.modules == most + 1
    assert max(_orders(tmp_path / "less").values()) == most
    assert bridge.inspect(tmp_path / "less").signatures[0].gradient_order == most
    module = tf.saved_model.load(tmp_path / "less")
    signature = module.signatures["serving_default"]
    np.testing.assert_allclose(signature(x=tf.constant(X))["y"], 2 * np.sin(X) ** 3, rtol=1e-5)
    expected = [jax.grad(lambda x: 2 * jnp.sin(x) ** 3)]
    expected.append(jax.grad(expected[0]))
    for order in range(1, most + 1):
        wanted = jax.vmap(expected[order - 1])(X)
        np.testing.assert_allclose(_gradient(signature, order), wanted, rtol=1e-3, atol=1e-5)
    with pytest.raises(LookupError, match=f"retargeted with gradient_order={most}"):
        _gradient(signature, most + 1)


def _gradient(signature, order, x=None):
    """The sum's gradient of an order, by as many tapes."""
    x = tf.constant(X) if x is None else x
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = signature(x=x)["y"] if order == 1 else _gradient(signature, order - 1, x)
    return tape.gradient(y, x)


def test_what_is_left_is_read_and_saved_again(folder, tmp_path):
    bridge.retarget(folder, to=tmp_path / "less", gradient_order=1)
    signature = bridge.load(tmp_path / "less").signatures["serving_default"]
    gradient = jax.grad(lambda x: signature(x)["y"].sum())(X)
    np.testing.assert_allclose(gradient, 6 * np.sin(X) ** 2 * np.cos(X), rtol=1e-4)
    assert not signature.exported.vjp().has_vjp()
    tf.saved_model.save(tf.saved_model.load(tmp_path / "less"), tmp_path / "again")
    assert bridge.inspect(tmp_path / "again").signatures[0].gradient_order == 1


def test_fewer_orders_are_no_more_bytes(folder, tmp_path):
    sizes = []
    for most in range(4):
        bridge.retarget(folder, to=tmp_path / str(most), gradient_order=most)
        sizes.append((tmp_path / str(most) / "saved_model.pb").stat().st_size)
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize("name", ["jax2tf", "keras", "orbax"])
def test_a_foreign_file(foreign, name, tmp_path):
    file = foreign(name)
    before = {s.key: s.gradient_order for s in bridge.inspect(file.folder).signatures}
    bridge.retarget(file.folder, to=tmp_path / "less", gradient_order=0)
    after = {s.key: s.gradient_order for s in bridge.inspect(tmp_path / "less").signatures}
    assert after == dict.fromkeys(before, 0)
    tf.saved_model.load(tmp_path / "less")


@pytest.fixture(scope="module")
def accurate(tmp_path_factory):
    """A function whose second gradient alone asks for what TensorFlow 2.16 does not have."""

    @jax.custom_vjp
    def slope(x):
        return x * 2

    def pull_back(x, cotangent):
        return (cotangent * jax.lax.exp(x, accuracy=jax.lax.AccuracyMode.HIGHEST),)

    slope.defvjp(lambda x: (slope(x), x), pull_back)

    @jax.custom_vjp
    def f(x):
        return x * x

    f.defvjp(lambda x: (f(x), x), lambda x, cotangent: (cotangent * slope(x),))
    path = tmp_path_factory.mktemp("accurate") / "model"
    bridge.save(f, path, args="f32[3]", gradient_order=2)
    return f, path


def test_trouble_in_a_gradient_says_so(accurate, tmp_path, capsys):
    f, path = accurate
    match = r"(?m)in the gradient of order 2: .* result_accuracy HIGHEST .* gradient_order=1\.$"
    with pytest.raises(VersionError, match=match):
        bridge.retarget(path, "2.16", to=tmp_path / "old")
    command = ["retarget", str(path), str(tmp_path / "old"), "--tensorflow", "2.16"]
    assert main(command) == 2
    assert capsys.readouterr().err.endswith("Or keep fewer gradients: --gradient-order 1.\n")
    assert main([*command, "--gradient-order", "1"]) == 0
    assert bridge.inspect(tmp_path / "old").signatures[0].gradient_order == 1
    exported = jax.export.export(jax.jit(f))(X)
    old = bridge.retarget(exported, "2.16")
    with pytest.raises(VersionError, match=r"^In the gradient of order 2: .*gradient_order=1"):
        old.vjp().vjp()
    kept = bridge.retarget(exported, "2.16", gradient_order=1)
    assert not kept.vjp().has_vjp()


def test_the_release_that_is_told_reads_all_orders(accurate, tmp_path):
    f, path = accurate
    first, second = (
        bridge.save(f, tmp_path / f"{order}", args="f32[3]", gradient_order=order).tensorflow
        for order in (1, 2)
    )
    assert parse_release(first).tensorflow < parse_release(second).tensorflow
    assert bridge.retarget(path, to=tmp_path / "same").tensorflow == second


def test_what_is_no_order(folder, tmp_path):
    with pytest.raises(StructureError, match="gradient_order is -1"):
        bridge.retarget(folder, to=tmp_path / "less", gradient_order=-1)
    with pytest.raises(ArgumentError, match="gradient_order is 'all'"):
        bridge.retarget(folder, to=tmp_path / "less", gradient_order="all")
