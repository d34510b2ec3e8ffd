"""`bridge.load` on a mesh: what it places, what it takes, what it refuses."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

import bridge
import savedmodel
from bridge.core._jax import replace_shardings
from bridge.meshes import mesh_of, shards_of, to_svg, to_text
from xla_call_module._jax import logical_device_ids, with_logical_device_ids
from xla_call_module.errors import ShardingError, StructureError

P = PartitionSpec
PARAMS = {
    "b": np.arange(16, dtype="float32"),
    "w": np.arange(8 * 16, dtype="float32").reshape(8, 16) / 100,
}
X = np.linspace(-1, 1, 32 * 8, dtype="float32").reshape(32, 8)
SPECS = {"b": P(), "w": P(None, "model")}
AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit


def function(params, x):
    return jnp.tanh(x @ params["w"]) + params["b"]


def export(axes=(4, 2), names=("data", "model"), kind=AUTO, rows=32):
    mesh = AbstractMesh(axes, names, axis_types=(kind,) * len(axes))
    of_params = {k: NamedSharding(mesh, spec) for k, spec in SPECS.items()}
    of_x = NamedSharding(mesh, P("data", None))
    of_y = NamedSharding(mesh, P("data", "model"))
    jitted = jax.jit(function, in_shardings=(of_params, of_x), out_shardings=of_y)
    shape = jax.export.symbolic_shape(f"{rows}, 8")
    return jax.export.export(jitted)(PARAMS, jax.ShapeDtypeStruct(shape, "float32"))


def make(axes, names=("data", "model"), kind=AUTO):
    count = int(np.prod(axes))
    kinds = (kind,) * len(axes)
    return jax.make_mesh(axes, names, axis_types=kinds, devices=jax.devices()[:count])


@pytest.fixture(scope="module")
def exported():
    return export()


@pytest.fixture(scope="module")
def saved(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "m"
    bridge.save(exported, folder, params=PARAMS)
    return folder


@pytest.fixture(scope="module")
def model(saved):
    return bridge.load(saved, mesh=make((4, 2)))


def assert_right(found, x=X):
    np.testing.assert_allclose(jax.device_get(found), function(PARAMS, x), rtol=1e-5, atol=1e-6)


def test_shardings_are_those_of_the_export(exported, model):
    mesh = make((4, 2))
    found = model.default.exported
    assert found.in_shardings_jax(mesh) == exported.in_shardings_jax(mesh)
    assert found.out_shardings_jax(mesh) == exported.out_shardings_jax(mesh)
    assert [s.spec for s in found.in_shardings_jax(mesh)][1] == P(None, "model")


def test_each_device_has_its_part_of_each_parameter(model):
    for name, value in model.params.items():
        assert value.sharding.is_equivalent_to(NamedSharding(make((4, 2)), SPECS[name]), value.ndim)
        assert len(value.addressable_shards) == 8
        for shard in value.addressable_shards:
            np.testing.assert_array_equal(shard.data, PARAMS[name][shard.index])
    assert model.params["w"].addressable_shards[0].data.shape == (8, 8)


@pytest.mark.parametrize("kind", ["numpy", "one device", "its place", "another place", "list"])
def test_arguments_are_put_where_they_belong(model, kind):
    mesh = make((4, 2))
    given = {
        "numpy": lambda: X,
        "one device": lambda: jax.device_put(X, jax.devices()[3]),
        "its place": lambda: jax.device_put(X, NamedSharding(mesh, P("data", None))),
        "another place": lambda: jax.device_put(X, NamedSharding(mesh, P("model", "data"))),
        "list": lambda: jnp.asarray(X),
    }[kind]()
    found = model(given)
    assert found.sharding.is_equivalent_to(NamedSharding(mesh, P("data", "model")), 2)
    assert_right(found)


def test_donated_parameters_are_read_again(saved):
    model = bridge.load(saved, mesh=make((4, 2)))
    assert_right(model(X))
    step = jax.jit(lambda params: jax.tree.map(jnp.negative, params), donate_argnums=0)
    given = model.params
    step(given)
    assert given["w"].is_deleted()
    assert_right(model(X))
    np.testing.assert_array_equal(model.params["w"], PARAMS["w"])
    step(model.params)
    assert_right(jax.jit(lambda x: model(x))(X))


def test_under_transformations(model):
    assert_right(jax.jit(lambda x: model(x) + 1)(X) - 1)
    assert_right(jax.vmap(model)(jnp.stack([X, X]))[1])
    assert_right(jax.lax.scan(lambda c, x: (c, model(x)), 0, jnp.stack([X, X]))[1][0])


def test_gradients(model, exported):
    """Those of the export on the same mesh, and as exact as `1 - tanh(x)**2` is in float32."""
    by_x = jax.grad(lambda x: jnp.sum(model(x) ** 2))(jnp.asarray(X))
    mesh = make((4, 2))
    placed = {k: jax.device_put(PARAMS[k], NamedSharding(mesh, spec)) for k, spec in SPECS.items()}
    x = jax.device_put(X, NamedSharding(mesh, P("data", None)))
    own = jax.grad(lambda x: jnp.sum(exported.call(placed, x) ** 2))(x)
    np.testing.assert_allclose(by_x, own, rtol=1e-6)
    w, b = (PARAMS[name].astype("float64") for name in "wb")
    tanh = np.tanh(X @ w)
    expected = (2 * (tanh + b) * (1 - tanh**2)) @ w.T
    bound = 16 * np.finfo("float32").epsneg * (2 * np.abs(tanh + b)) @ np.abs(w).T
    assert np.all(np.abs(by_x - expected) <= bound)


@pytest.mark.parametrize("is_artifact", [False, True])
@pytest.mark.parametrize("kind", [AUTO, EXPLICIT])
def test_residuals(kind, is_artifact, tmp_path):
    """Both passes are for the mesh, and so is the VJP that is made of them again."""
    one = export(kind=kind)
    if is_artifact:
        one = jax.export.deserialize(one.serialize(vjp_order=1))
    bridge.save(one, tmp_path / "m", params=PARAMS, residuals=True)
    forward, backward = savedmodel.read(tmp_path / "m").default.function.chain
    assert forward.residual_results == backward.residual_args > 0
    assert all(spec.sharding is not None for spec in backward.results)
    found = bridge.load(tmp_path / "m", mesh=make((4, 2)))
    assert_right(found(X))
    by_x = jax.grad(lambda x: jnp.sum(found(x) ** 2))(jnp.asarray(X))
    expected = jax.grad(lambda x: jnp.sum(function(PARAMS, x) ** 2))(jnp.asarray(X))
    np.testing.assert_allclose(by_x, expected, rtol=1e-3, atol=1e-4)


def test_gradients_of_the_second_order(saved, tmp_path, exported):
    bridge.save(exported, tmp_path / "m", params=PARAMS, gradient_order=2)
    found = bridge.load(tmp_path / "m", mesh=make((2, 4)))

    def second(call, params):
        first = jax.grad(lambda p: jnp.sum(call(p, X) ** 2))
        return jax.grad(lambda p: sum(jnp.sum(g**2) for g in jax.tree.leaves(first(p))))(params)

    value = jax.jit(lambda p: second(found.default.exported.call, p))(found.params)
    expected = jax.jit(lambda p: second(function, p))(PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3), value, expected)


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ((4, 2), ("data", "model")),
        ((2, 4), ("data", "model")),
        ((2, 2, 2), ("model", "x", "data")),
        ((1, 1), ("data", "model")),
    ],
)
def test_a_file_for_an_older_tensorflow(exported, tmp_path, sizes, names):
    bridge.save(exported, tmp_path / "m", params=PARAMS, tensorflow="2.16")
    mesh = make(sizes, names)
    model = bridge.load(tmp_path / "m", mesh=mesh)
    found = model(X)
    assert found.sharding.is_equivalent_to(NamedSharding(mesh, P("data", "model")), 2)
    assert_right(found)


def test_devices_in_another_order(saved):
    mesh = Mesh(np.array(jax.devices())[::-1].reshape(4, 2), ("data", "model"))
    model = bridge.load(saved, mesh=mesh)
    assert_right(model(X))
    shards = {shard.device.id: shard for shard in model.params["w"].addressable_shards}
    np.testing.assert_array_equal(shards[7].data, PARAMS["w"][:, :8])


def test_a_sharding_with_an_order_of_devices(tmp_path):
    """The module says it as well as the sharding of the argument."""
    mesh = make((4, 2))
    plain = NamedSharding(mesh.abstract_mesh, P("data", None))
    split = with_logical_device_ids(plain, range(7, -1, -1))
    jitted = jax.jit(lambda x: jnp.sin(x) * 2, in_shardings=split)
    exported = jax.export.export(jitted)(jax.ShapeDtypeStruct((8, 2), "float32"))
    exported = replace_shardings(exported, (split,), (None,))
    bridge.save(exported, tmp_path / "m")
    model = bridge.load(tmp_path / "m", mesh=mesh)
    (found,) = (
        bridge.load(tmp_path / "m").signatures["serving_default"].exported.in_shardings_jax(mesh)
    )
    assert logical_device_ids(found) == tuple(range(7, -1, -1))
    x = np.arange(16, dtype="float32").reshape(8, 2)
    placed = jax.device_put(x, found)
    first = {shard.device.id: shard for shard in placed.addressable_shards}[0]
    np.testing.assert_array_equal(first.data, x[6:])
    for given in (x, placed):
        np.testing.assert_allclose(jax.device_get(model(given)), np.sin(x) * 2, rtol=1e-6)


def test_a_symbolic_batch(tmp_path):
    bridge.save(export(rows="4*b"), tmp_path / "m", params=PARAMS)
    model = bridge.load(tmp_path / "m", mesh=make((2, 4)))
    assert_right(model(X[:4]), X[:4])
    assert_right(model(X[:8]), X[:8])
    model = bridge.load(tmp_path / "m", mesh=make((8, 1)))
    with pytest.raises(ShardingError, match=r"args\[1\].*\[4, 8\].*data 8.*pad it"):
        model(X[:4])


def test_exported_for_one_device(tmp_path):
    plain = jax.export.export(jax.jit(function))(PARAMS, X)
    bridge.save(plain, tmp_path / "m", params=PARAMS)
    model = bridge.load(tmp_path / "m", mesh=make((4, 2)))
    assert all(value.is_fully_replicated for value in model.params.values())
    assert len(model.params["w"].devices()) == 8
    assert_right(model(X))
    found = model(jax.device_put(X, NamedSharding(make((4, 2)), P("data"))))
    assert found.addressable_shards[0].data.shape == (8, 16)
    assert_right(found)


def test_exported_on_a_mesh_of_one_device(tmp_path):
    """What was tried out on one device is spread over all."""
    bridge.save(export((1, 1)), tmp_path / "m", params=PARAMS)
    model = bridge.load(tmp_path / "m", mesh=make((4, 2)))
    assert model.params["w"].addressable_shards[0].data.shape == (8, 8)
    found = model(X)
    assert found.addressable_shards[0].data.shape == (8, 8)
    assert_right(found)
    assert_right(bridge.load(tmp_path / "m")(X))


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4)])
def test_explicit_axes(saved, sizes):
    mesh = make(sizes, kind=EXPLICIT)
    model = bridge.load(saved, mesh=mesh)
    with jax.set_mesh(mesh):
        assert_right(model(X))
        found = jax.jit(jax.grad(lambda p: jnp.sum(model.default.exported.call(p, X) ** 2)))
        value = found(model.params)
    expected = jax.grad(lambda p: jnp.sum(function(p, X) ** 2))(PARAMS)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), value, expected)


def test_other_names(saved):
    mesh = make((8,), ("batch",))
    with pytest.raises(
        ShardingError, match="whose axes have other names: data, model missing"
    ) as e:
        bridge.load(saved, mesh=mesh)(X)
    message = str(e.value)
    assert "exported for a mesh of 8 devices: data 4 x model 2\n" in message
    assert re.search(r"data=3 +6 +7\n", message)
    assert "run on a mesh of 8 devices: batch 8\n" in message
    assert re.search(r"batch=0 .* batch=7\n +0 +1 .* 7\n", message)
    assert "bridge.meshes.mesh_of" in message


def test_an_axis_that_does_not_divide(saved):
    with pytest.raises(ShardingError, match=r"args\[0\]\['w'\] of function.*\[8, 16\].*model 3"):
        bridge.load(saved, mesh=make((2, 3))).params  # noqa: B018


@pytest.mark.parametrize(
    "mesh", [AbstractMesh((8,), ("data",)), "data", Mesh(np.array(jax.devices()[0]), ())], ids=str
)
def test_no_mesh_of_devices(saved, mesh):
    with pytest.raises(ShardingError, match=r"expected a jax.sharding.Mesh of devices"):
        bridge.load(saved, mesh=mesh)


def test_without_a_mesh(saved):
    model = bridge.load(saved)
    assert isinstance(model.params["w"], np.ndarray)
    with pytest.raises(
        ShardingError, match=r"for 8 devices.*'data': 4, 'model': 2.*load it with me"
    ):
        model(X)
    # where the arguments lie on as many devices, JAX runs it
    assert_right(model(jax.device_put(X, NamedSharding(make((4, 2)), P()))))
    assert_right(bridge.load(saved, mesh=make((1, 1)))(X))


def test_wrong_arguments_are_not_about_devices(saved):
    with pytest.raises(StructureError, match=r"expected.*\[32,8\]"):
        bridge.load(saved)(X[:3])


@pytest.mark.parametrize("sizes", [(2, 4), (1, 1), (1, 2), (8, 1), (3, 2)])
def test_shard_map_stays_that_of_its_mesh(sizes, tmp_path):
    mesh = make((4, 2))
    spec = P("data", "model")
    inner = jax.shard_map(lambda x: x - x.max(), mesh=mesh, in_specs=spec, out_specs=spec)
    jitted = jax.jit(inner)
    exported = jax.export.export(jitted)(X)
    with pytest.warns(UserWarning, match="cannot run on one device"):
        bridge.save(exported, tmp_path / "m")
    model = bridge.load(tmp_path / "m", mesh=make(sizes))
    np.testing.assert_array_equal(model(X), jitted(X))
    found, expected = (jax.grad(lambda x, f=f: jnp.sum(jnp.sin(f(x))))(X) for f in (model, jitted))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_mesh_of(exported, saved, model):
    for source in (exported, saved, str(saved), model, model.default):
        mesh = mesh_of(source)
        assert dict(mesh.shape) == {"data": 4, "model": 2}
        assert [device.id for device in mesh.devices.flat] == list(range(8))
        assert mesh.axis_types == (AUTO, AUTO)
    devices = jax.devices()[4:]
    with pytest.raises(ShardingError, match=r"for 8 devices, and 4 are at hand(?s:.*)data=3"):
        mesh_of(exported, devices)
    small = export((2, 2))
    assert set(mesh_of(small, devices).devices.flat) == set(devices)
    with pytest.raises(ShardingError, match=r"for 1 device.*without names"):
        mesh_of(jax.export.export(jax.jit(jnp.sin))(X))
    with pytest.raises(StructureError, match="got int"):
        mesh_of(3)


def test_shards_are_those_of_jax(saved, model):
    found = shards_of(saved)
    mesh = mesh_of(saved)
    shapes = {"args[0]['b']": (16,), "args[0]['w']": (8, 16), "args[1]": (32, 8)}
    shardings = dict(zip(shapes, model.default.exported.in_shardings_jax(mesh), strict=True))
    assert found.keys() == {*shapes, "result"}
    for path, shape in shapes.items():
        indices = shardings[path].devices_indices_map(shape)
        for device, part in zip(mesh.devices.flat, found[path], strict=True):
            assert _bounds(part, shape) == _bounds(indices[device], shape)


def _bounds(index, shape):
    return [part.indices(size) for part, size in zip(index, shape, strict=True)]


def test_pictures(saved):
    text = to_text(saved)
    assert text.startswith("mesh of 8 devices: data 4 x model 2 (Shardy)\n")
    assert "in args[0]['w'] [8,16]: split by (whole, model), 1 x 2 parts; on each device:\n" in text
    assert "in args[0]['b'] [16]: whole on every device\n" in text
    picture = to_svg(saved)
    tree = ElementTree.fromstring(picture)
    assert len(tree.findall(".//{*}svg")) == 6  # the parts and the mesh of what is split
    assert picture.count("Which part of args[0]['w'] each device has") == 1
    assert to_text(bridge.load(saved, mesh=make((2, 4)))).startswith(
        "mesh of 8 devices: data 2 x model 4"
    )


def test_saved_again_on_another_mesh(saved, tmp_path):
    """An `Exported` on its new mesh is one that is saved and loaded like any other."""
    model = bridge.load(saved, mesh=make((2, 2)))
    bridge.save(model.default.exported, tmp_path / "m", params=model.params)
    again = bridge.load(tmp_path / "m", mesh=mesh_of(tmp_path / "m"))
    assert again.params["w"].addressable_shards[0].data.shape == (8, 8)
    assert_right(again(X))
