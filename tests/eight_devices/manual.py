"""Files with `jax.shard_map`, loaded in JAX: of each shape, platform, mesh and order of gradients.

Where a size or a platform is only known when it runs, JAX refines the shapes of the module, and
took the calls of a manual computation apart so that XLA ended the process.
"""

from __future__ import annotations

import functools
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import bridge

P = PartitionSpec
X = np.linspace(-1, 1, 32 * 8, dtype=np.float32).reshape(32, 8)


def make_mesh():
    return jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def whole(function, mesh):
    """All axes are manual."""
    spec = P("data", "model")
    return jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec)


def partly(function, mesh):
    """One axis is manual, XLA partitions along the other one."""
    spec = P("data")
    return jax.shard_map(
        function, mesh=mesh, in_specs=spec, out_specs=spec, axis_names=frozenset({"data"})
    )


def nested(function, mesh):
    """One manual computation inside of another."""
    del mesh
    mesh = make_mesh()

    def outer(x):
        inner = jax.shard_map(
            function, in_specs=P(None, "model"), out_specs=P(None, "model"), axis_names={"model"}
        )
        return inner(jnp.sin(x)) * 2

    return jax.shard_map(
        outer, mesh=mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )


def twice(function, mesh):
    """The same function two times, one behind the other, and once more without a use."""
    once = whole(function, mesh)
    return lambda x: once(once(x) * 2)


def body(x):
    return jnp.cos(x) * jax.lax.psum(jnp.sin(x), "data")


def in_inner(x):
    return jnp.cos(x) * jax.lax.psum(jnp.sin(x), "model")


FORMS = {"whole": whole, "partly": partly, "twice": twice, "nested": nested}


@functools.cache
def saved(form, platforms, rows, folder):
    mesh = make_mesh()
    inner = FORMS[form](in_inner if form == "nested" else body, mesh)
    jitted = jax.jit(inner, in_shardings=NamedSharding(mesh, P("data", "model")))
    (size,) = jax.export.symbolic_shape("4*b") if rows else (32,)
    spec = jax.ShapeDtypeStruct((size, 8), np.float32)
    exported = jax.export.export(jitted, platforms=platforms.split("+"))(spec)
    path = folder / f"{form}-{platforms}-{rows}"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A file that TensorFlow cannot run on one device")
        warnings.filterwarnings("ignore", ".* is saved without a gradient")
        bridge.save(exported, path)
    return jitted, path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("manual")


# JAX itself refines no sizes of what is nested.
CASES = [case for case in itertools.product(FORMS, (False, True)) if case != ("nested", True)]


@pytest.mark.parametrize("on_mesh", [False, True], ids=["", "mesh"])
@pytest.mark.parametrize("platforms", ["cpu", "cpu+cuda+tpu"])
@pytest.mark.parametrize(("form", "rows"), CASES)
def test_loaded(form, rows, platforms, on_mesh, folder):
    jitted, path = saved(form, platforms, rows, folder)
    mesh = make_mesh()
    x = jax.device_put(X, NamedSharding(mesh, P("data", "model")))
    model = bridge.load(path, mesh=mesh) if on_mesh else bridge.load(path)
    call = model if on_mesh else model.default.exported.call
    # Sums over devices are not made in one order.
    np.testing.assert_allclose(call(x), jitted(x), rtol=1e-6, atol=1e-6)
    # JAX exports no VJP of what is nested.
    assert model.default.exported.has_vjp() == (form != "nested")
    if form != "nested":
        found, expected = (jax.grad(lambda x, f=f: jnp.sum(f(x)))(x) for f in (call, jitted))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_loaded_and_saved_again(folder, tmp_path):
    jitted, path = saved("twice", "cpu+cuda+tpu", True, folder)
    with pytest.warns(UserWarning, match="cannot run on one device"):
        bridge.save(bridge.load(path).default.exported, tmp_path / "again")
    x = jax.device_put(X, NamedSharding(make_mesh(), P("data", "model")))
    found = bridge.load(tmp_path / "again").default.exported.call(x)
    np.testing.assert_allclose(found, jitted(x), rtol=1e-6, atol=1e-6)
