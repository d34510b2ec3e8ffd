"""Exports with shardings and with `jax.shard_map`, lifted onto meshes of the same and other sizes.

The function stays that of the export: of each mean, index and permutation the sizes are in the
module, so every mesh must give what that of the export gave.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import bridge
from bridge import ShardingError

P = PartitionSpec
X = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)


def make_mesh(**axes):
    sizes = tuple(axes.values())
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, tuple(axes), axis_types=(AxisType.Auto,) * len(sizes))


SAVED = make_mesh(x=4, y=2)
MESHES = {
    "same": SAVED,
    "fewer": make_mesh(x=2, y=2),
    "one": make_mesh(x=1, y=1),
    "odd": make_mesh(x=3, y=2),
    "more": make_mesh(x=1, y=8),
    "new-axis": make_mesh(x=2, z=2, y=2),
}


def manual(function, ins, outs, **options):
    return jax.shard_map(
        function, mesh=SAVED, in_specs=ins, out_specs=outs, check_vma=False, **options
    )


def collectives(a):
    return (
        lax.psum(a, "x"),
        lax.psum(a, ("y", "x")),
        lax.pmax(a, "y"),
        lax.pmin(a, ("x", "y")),
        lax.all_gather(a, "x"),
        lax.all_gather(a, ("y", "x"), axis=1, tiled=True),
        lax.psum_scatter(a, "y", tiled=True),
        lax.psum_scatter(a, ("y", "x"), tiled=True),
        lax.all_to_all(a, "y", 1, 0, tiled=True),
        lax.all_to_all(a, ("x", "y"), 0, 1, tiled=True),
        lax.all_to_all(a, ("y", "x"), 1, 1, tiled=True),
        lax.ppermute(a, "x", [(i, (i + 1) % 4) for i in range(4)]),
        lax.ppermute(a, "x", [(0, 3), (2, 1)]),
        lax.ppermute(a, ("x", "y"), [(i, (i + 3) % 8) for i in range(8)]),
        lax.axis_index("x") + lax.axis_index("y") * a,
        lax.axis_index(("y", "x")) * a,
    )


COLLECTED = (
    P(None, "y"), P(), P("x"), P(), P(None, "x", "y"), P(), P("x", "y"), P(("y", "x")),
    *[P("x", "y")] * 8,
)  # fmt: skip


def loop(a):
    carry, rows = lax.scan(
        lambda c, row: (c + lax.psum(row, "x"), jnp.sin(row) * lax.axis_index("x") * c),
        jnp.zeros(a.shape[1:]),
        a,
    )
    return carry, rows, a / a.shape[0] + lax.pmean(a, "y") + jnp.mean(a)


def nested(a):
    inner = jax.shard_map(
        lambda b: lax.psum(b, "y") * b + lax.axis_index("y") + lax.psum(b, "x"),
        in_specs=P(None, "y"), out_specs=P(None, "y"), axis_names={"y"}, check_vma=False,
    )  # fmt: skip
    return inner(jnp.sin(a)) + lax.psum(a, "x")


def softmax(a):
    largest = lax.pmax(lax.stop_gradient(jnp.max(a, 1)), "y")
    powers = jnp.exp(a - largest[:, None])
    return powers / lax.psum(powers.sum(1), "y")[:, None]


def constrained(a):
    b = lax.with_sharding_constraint(a * 2, NamedSharding(SAVED, P("x", None)))
    open_columns = NamedSharding(SAVED, P(None, P.UNCONSTRAINED))
    return lax.with_sharding_constraint(jnp.sin(b), open_columns) @ b.T


def twice(a):
    once = manual(lambda a: jnp.cos(a) * lax.psum(a, "x"), P(("x", "y")), P(("x", "y")))
    return once(jnp.sin(once(a))) * 2


FORMS = {
    "collectives": manual(collectives, P("x", "y"), COLLECTED),
    "loop": manual(loop, P("x", "y"), (P("y"), P("x", "y"), P("x", "y"))),
    "nested": manual(nested, P("x"), P("x"), axis_names={"x"}),
    "softmax": manual(softmax, P("x", "y"), P("x", "y")),
    "twice": twice,
    "swapped": manual(lambda a: lax.psum(jnp.sin(a), "x") * a, P(("y", "x")), P(None, ("x", "y"))),
    "partly": manual(lambda a: lax.psum(a @ a.T, "x") @ a, P("x"), P("x"), axis_names={"x"}),
    "constrained": jax.jit(
        constrained,
        in_shardings=NamedSharding(SAVED, P("y")),
        out_shardings=NamedSharding(SAVED, P("x")),
    ),
}


def total(function):
    return lambda a: sum(jnp.sum(jnp.sin(leaf)) for leaf in jax.tree.leaves(function(a)))


@functools.cache
def original(form):
    """The export, its results, and its gradient where JAX has one."""
    jitted = jax.jit(FORMS[form])
    exported = export.export(jitted)(jax.ShapeDtypeStruct(X.shape, X.dtype))
    gradient = None if form == "collectives" else jax.jit(jax.grad(total(jitted)))(X)
    return exported, jax.tree.map(np.asarray, jitted(X)), gradient


# What is nested and what goes along several axes is on all meshes.
CASES = [
    (form, mesh)
    for form in FORMS
    for mesh in MESHES
    if form in ("collectives", "nested") or mesh in ("same", "fewer", "odd")
]


@pytest.mark.parametrize(("form", "mesh"), CASES)
def test_on_mesh(form, mesh):
    exported, expected, gradient = original(form)
    lifted = bridge.to_jax(exported, mesh=MESHES[mesh])
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), lifted(X), expected
    )
    if gradient is not None:
        found = jax.jit(jax.grad(total(lifted)))(X)
        atol = 1e-5 * np.abs(gradient).max()
        np.testing.assert_allclose(found, gradient, rtol=1e-3, atol=atol)


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def test_collectives_are_by_axis_name():
    exported, _, _ = original("collectives")
    jaxpr = jax.make_jaxpr(bridge.to_jax(exported, mesh=SAVED))(X).jaxpr
    found = {eqn.primitive.name: eqn.params for eqn in equations(jaxpr)}
    assert {"shard_map", "all_gather", "reduce_scatter", "all_to_all", "ppermute"} <= found.keys()
    assert dict(found["shard_map"]["mesh"].shape) == {"x": 4, "y": 2}
    assert found["ppermute"]["axis_name"] == ("x", "y")


@pytest.mark.parametrize("mesh", ["same", "fewer", "more"])
def test_loaded_with_symbolic_sizes(mesh, tmp_path):
    """JAX itself refines no sizes inside of `jax.shard_map`, such as those of a broadcast."""
    jitted = jax.jit(FORMS["softmax"])
    (rows,) = export.symbolic_shape("8*b")
    exported = export.export(jitted)(jax.ShapeDtypeStruct((rows, 16), X.dtype))
    with pytest.warns(UserWarning, match="cannot run on one device"):
        bridge.save(exported, tmp_path / "m", gradient_order=0)
    model = bridge.load(tmp_path / "m", mesh=MESHES[mesh])
    for x in (X, X[:8]):
        np.testing.assert_allclose(model(x), jitted(x), rtol=1e-5)
    tangent = np.cos(X)
    lifted = bridge.to_jax(exported, mesh=SAVED)
    _, found = jax.jvp(model, (X,), (tangent,))
    _, expected = jax.jvp(jax.jit(lifted), (X,), (tangent,))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-6)
    stack = np.stack([X, X + 1])
    for batched in (jax.vmap(model), jax.jit(jax.vmap(bridge.to_jax(exported, mesh=MESHES[mesh])))):
        np.testing.assert_allclose(batched(stack)[1], jitted(X), rtol=1e-3, atol=1e-6)


def test_without_a_mesh():
    exported, expected, _ = original("twice")
    lifted = bridge.to_jax(exported)
    on_devices = jax.device_put(X, NamedSharding(SAVED, P("x")))
    np.testing.assert_allclose(lifted(on_devices), expected, rtol=1e-5, atol=1e-5)
    again = export.export(bridge.to_jax(exported, mesh=SAVED))(X)
    assert again.nr_devices == 8
    with pytest.raises(ShardingError, match=r"for 8 devices.*'x': 4, 'y': 2.*with mesh="):
        lifted(X)


def test_missing_axes():
    exported, _, _ = original("twice")
    with pytest.raises(ShardingError, match=r"axes x 4 x y 2.*has \{'x': 2\}: y missing"):
        bridge.to_jax(exported, mesh=make_mesh(x=2))(X)


def test_on_a_mesh_of_explicit_types():
    """Of few arrays a module says how they lie, so inside the axes are XLA's."""
    typed = Mesh(SAVED.devices, SAVED.axis_names, axis_types=(AxisType.Explicit,) * 2)
    sharding = NamedSharding(typed, P("x", "y"))
    summed = jax.shard_map(
        lambda a: lax.psum(a, "x"), mesh=typed, in_specs=P("x", "y"), out_specs=P(None, "y")
    )
    jitted = jax.jit(lambda x: jnp.sin(x).sum(0) + summed(x).sum(0))
    on_devices = jax.device_put(X, sharding)
    exported = export.export(jitted)(jax.typeof(on_devices))
    expected = np.asarray(jitted(on_devices))
    for mesh, x in ((typed, X), (typed, on_devices), (SAVED, X), (None, on_devices)):
        found = bridge.to_jax(exported, mesh=mesh)(x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    plain = export.export(jax.jit(lambda x: x @ x.T))(X)
    np.testing.assert_allclose(bridge.to_jax(plain)(on_devices), X @ X.T, rtol=1e-4, atol=1e-5)
