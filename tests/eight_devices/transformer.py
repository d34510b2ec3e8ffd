"""A transformer block in every layout: values and gradients are those of one device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import bridge
from bridge.meshes import mesh_of

BATCH, LENGTH, WIDTH, HEADS, HEAD, HIDDEN = 8, 4, 16, 8, 2, 32
SHAPES = {
    "norm": (WIDTH,),
    "query": (WIDTH, HEADS, HEAD),
    "key": (WIDTH, HEADS, HEAD),
    "value": (WIDTH, HEADS, HEAD),
    "out": (HEADS, HEAD, WIDTH),
    "up": (WIDTH, HIDDEN),
    "down": (HIDDEN, WIDTH),
}
P = PartitionSpec
BY_HEADS = {
    "norm": P(),
    **dict.fromkeys(("query", "key", "value"), P(None, "model")),
    "out": P("model"),
    "up": P(None, "model"),
    "down": P("model"),
}
TWO = {"data": 2, "model": 4}
# For each layout the mesh, where the parameters lie and where the batch.
LAYOUTS = {
    "data, 1-d": ({"data": 8}, dict.fromkeys(SHAPES, P()), P("data")),
    "tensor, 1-d": ({"model": 8}, BY_HEADS, P()),
    "fully sharded, 1-d": ({"data": 8}, dict.fromkeys(SHAPES, P("data")), P("data")),
    "data, 2-d": (TWO, dict.fromkeys(SHAPES, P()), P("data")),
    "tensor, 2-d": (TWO, BY_HEADS, P("data")),
    "fully sharded, 2-d": (TWO, dict.fromkeys(SHAPES, P(("data", "model"))), P(("data", "model"))),
}


def block(params, x):
    h = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * params["norm"]
    query, key, value = (
        jnp.einsum("bld,dhk->blhk", h, params[n]) for n in ("query", "key", "value")
    )
    scores = jax.nn.softmax(jnp.einsum("blhk,bmhk->bhlm", query, key) / HEAD**0.5)
    x = x + jnp.einsum("bhlm,bmhk,hkd->bld", scores, value, params["out"])
    return x + jax.nn.gelu(x @ params["up"]) @ params["down"]


def loss(run, params, x):
    return jnp.sum(run(params, x) ** 2)


@pytest.fixture(scope="module")
def given():
    random = np.random.default_rng(0)
    params = {k: random.normal(size=s).astype("float32") / 4 for k, s in SHAPES.items()}
    return params, random.normal(size=(BATCH, LENGTH, WIDTH)).astype("float32")


@pytest.fixture(scope="module")
def expected(given):
    """Return what one device computes: the result, and the gradients by parameters and input."""
    gradients = jax.jit(jax.grad(lambda p, x: loss(block, p, x), argnums=(0, 1)))
    return jax.device_get((jax.jit(block)(*given), gradients(*given)))


def assert_close(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), found, expected
    )


def save(layout, given, folder):
    axes, specs, batch = LAYOUTS[layout]
    kinds = (AxisType.Auto,) * len(axes)
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=kinds)
    of_params = {k: NamedSharding(mesh, spec) for k, spec in specs.items()}
    of_batch = NamedSharding(mesh, batch)
    jitted = jax.jit(block, in_shardings=(of_params, of_batch), out_shardings=of_batch)
    exported = jax.export.export(jitted)(*given)
    bridge.save(exported, folder, params=given[0])
    return exported


@pytest.fixture(scope="module")
def saved_by_heads(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "m"
    save("tensor, 2-d", given, folder)
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout(layout, given, expected, tmp_path):
    _, specs, batch = LAYOUTS[layout]
    exported = save(layout, given, tmp_path / "m")
    model = bridge.load(tmp_path / "m", mesh=mesh_of(exported))
    for name, value in model.params.items():
        assert value.sharding.is_equivalent_to(
            NamedSharding(mesh_of(exported), specs[name]), value.ndim
        )
    call = model.default.exported.call
    gradients = jax.jit(jax.grad(lambda p, x: loss(call, p, x), argnums=(0, 1)))
    value = model(given[1])
    assert value.sharding.is_equivalent_to(NamedSharding(mesh_of(exported), batch), 3)
    found = gradients(model.params, jax.device_put(given[1], value.sharding))
    assert_close(jax.device_get((value, found)), expected)
    assert all(
        found[0][k].sharding.is_equivalent_to(model.params[k].sharding, len(SHAPES[k]))
        for k in SHAPES
    )


def test_gradient_by_the_input_of_a_loaded_model(given, expected, saved_by_heads):
    model = bridge.load(saved_by_heads, mesh=mesh_of(saved_by_heads))
    by_input = jax.jit(jax.grad(lambda x: jnp.sum(model(x) ** 2)))
    assert_close(by_input(given[1]), expected[1][1])


@pytest.mark.parametrize(
    ("sizes", "names"),
    [((4, 2), ("data", "model")), ((2, 2, 2), ("model", "spare", "data")), ((1, 1), tuple(TWO))],
)
def test_another_mesh(sizes, names, given, expected, saved_by_heads):
    """The axes have other sizes, another order, or company; or there is one device."""
    count = int(np.prod(sizes))
    kinds = (AxisType.Auto,) * len(sizes)
    mesh = jax.make_mesh(sizes, names, axis_types=kinds, devices=jax.devices()[:count])
    model = bridge.load(saved_by_heads, mesh=mesh)
    exported = model.default.exported
    assert exported.nr_devices == count
    for name, value in model.params.items():
        assert value.sharding.is_equivalent_to(NamedSharding(mesh, BY_HEADS[name]), value.ndim)
    (*_, of_batch) = exported.in_shardings_jax(mesh)
    assert of_batch.is_equivalent_to(NamedSharding(mesh, P("data")), 3)
    value = model(given[1])
    assert value.sharding.is_equivalent_to(NamedSharding(mesh, P("data")), 3)
    assert_close(jax.device_get(value), expected[0])
    gradients = jax.jit(jax.grad(lambda p, x: loss(exported.call, p, x), argnums=(0, 1)))
    found = gradients(model.params, jax.device_put(given[1], value.sharding))
    assert_close(jax.device_get(found), expected[1])
