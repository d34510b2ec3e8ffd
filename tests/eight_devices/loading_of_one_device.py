"""`bridge.load` on a mesh of what was exported for one device, inside of `shard_map` too."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bridge

P = PartitionSpec
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def make(axes, kind=AUTO):
    count = int(np.prod(axes))
    names = ("data", "model")
    return jax.make_mesh(axes, names, axis_types=(kind,) * 2, devices=jax.devices()[:count])


def product(w, x):
    return jnp.sin(w * x) * x


@pytest.fixture(scope="module")
def saved_on_one_device(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one") / "m"
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((2,), (4, 2))]
    bridge.save(jax.export.export(jax.jit(product))(*specs), folder, gradient_order=2)
    return folder


@pytest.fixture(scope="module")
def on_one_device(saved_on_one_device):
    return bridge.load(saved_on_one_device)


@pytest.mark.parametrize("spec", [None, P("data"), P("data", "model")])
@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_exported_for_one_device_on_axes_of_each_kind(saved_on_one_device, kind, spec):
    mesh = make((2, 2), kind=kind)
    loaded = bridge.load(saved_on_one_device, mesh=mesh)
    w, x = jnp.arange(1.0, 3.0), jnp.sin(jnp.arange(8.0)).reshape(4, 2)
    placed = x if spec is None else jax.device_put(x, NamedSharding(mesh, spec))

    def results(f, x):
        def total(x):
            return f(w, x).sum()

        _, pushed = jax.jvp(lambda x: f(w, x), (x,), (x,))
        stacked = jax.vmap(lambda x: f(w, x))(jnp.stack([x, 2 * x]))
        return f(w, x), jax.grad(total)(x), jax.hessian(total)(x), pushed, stacked

    with jax.set_mesh(mesh):
        found = jax.jit(lambda x: results(loaded, x))(placed)
        eager = loaded(w, placed)
    assert set(eager.sharding.device_set) == set(mesh.devices.flat)
    for one, other in zip(found, results(product, x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(eager, found[0])
    np.testing.assert_array_equal(loaded(w, placed), found[0])


@pytest.mark.parametrize("specs", [(P(), P("data")), (P("model"), P("data"))])
def test_gradients_inside_of_shard_map(on_one_device, specs):
    w = jnp.arange(1.0, 3.0) if specs[0] == P() else jnp.arange(1.0, 5.0)
    x = jnp.sin(jnp.arange(32.0)).reshape(16, 2)

    def found(f):
        def body(w, x):
            return jax.lax.psum(f(w, x).sum(), (*specs[0], *specs[1]))

        total = jax.shard_map(body, mesh=make((4, 2)), in_specs=specs, out_specs=P())
        first = jax.grad(total, (0, 1))
        second = jax.grad(lambda w, x: first(w, x)[0].sum())
        return total(w, x), first(w, x), jax.jit(first)(w, x), second(w, x)

    pairs = map(jax.tree.leaves, map(found, (on_one_device, product)))
    for one, other in zip(*pairs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_what_differs_between_devices_is_known_to(on_one_device):
    specs = {"in_specs": (P(), P("data")), "out_specs": P()}
    mapped = jax.shard_map(on_one_device, mesh=make((4, 2)), **specs)
    with pytest.raises(ValueError, match="out_specs"):
        mapped(jnp.ones(2), jnp.ones((16, 2)))
