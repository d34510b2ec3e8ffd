"""The shardings of a file: its arrays on their mesh."""

from __future__ import annotations

import io
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from rich.console import Console

import bridge
import bridge.meshes
from bridge.inspecting.html import to_html
from bridge.inspecting.report_text import print_report
from bridge.inspecting.sharding import read_shardings
from xla_call_module import from_exported, retarget
from xla_call_module.shardings.mesh_placement import MeshAxis
from xla_call_module.stablehlo.modules import open_module

SPEC = PartitionSpec
W, X = np.zeros((8, 16), np.float32), np.zeros((32, 8), np.float32)


def _export(specs, *, kind=AxisType.Auto, axes=(4, 2), names=("data", "model"), out=None):
    mesh = AbstractMesh(axes, names, axis_types=(kind,) * len(axes))
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    out = NamedSharding(mesh, SPEC() if out is None else out)
    function = jax.jit(lambda x, w: x @ w, in_shardings=shardings, out_shardings=out)
    return jax.export.export(function)(X, W)


def _read(exported, tensorflow=None):
    call = from_exported(exported)
    call = retarget(call, tensorflow) if tensorflow else call
    with open_module(call.module) as module:
        return read_shardings(call, module)


@pytest.fixture(scope="module", params=[AxisType.Auto, AxisType.Explicit])
def exported(request):
    specs = [SPEC("data", None), SPEC(None, "model")]
    return _export(specs, kind=request.param, out=SPEC("data", "model"))


@pytest.mark.parametrize(
    ("tensorflow", "partitioner"), [(None, "Shardy"), ("2.20", "Shardy"), ("2.16", "GSPMD")]
)
def test_the_mesh_and_its_arrays(exported, tensorflow, partitioner):
    report = _read(exported, tensorflow)
    assert report.partitioner == partitioner
    assert report.mesh == (MeshAxis("data", 4), MeshAxis("model", 2))
    found = {(a.role, a.path): (a.axes, a.parts, a.tiles) for a in report.arrays}
    assert found == {
        ("in", "args[0]"): ((("data",), ()), (4, 1), (0, 0, 1, 1, 2, 2, 3, 3)),
        ("in", "args[1]"): (((), ("model",)), (1, 2), (0, 1) * 4),
        ("out", "result"): ((("data",), ("model",)), (4, 2), tuple(range(8))),
    }


def _index_by_device(spec, shape, axes, names):
    """Return where JAX itself puts the parts: the first index of each device's part."""
    devices = np.arange(np.prod(axes)).reshape(axes)
    found = []
    for device in range(devices.size):
        place = dict(zip(names, np.argwhere(devices == device)[0], strict=True))
        starts = []
        for size, entry in zip(shape, spec, strict=True):
            number, parts = 0, 1
            for name in (entry,) if isinstance(entry, str) else entry or ():
                count = axes[names.index(name)]
                number, parts = number * count + place[name], parts * count
            starts.append(int(number * size // parts))
        found.append(tuple(starts))
    return found


@pytest.mark.parametrize(
    "spec",
    [
        SPEC("a", "b"),
        SPEC("b", "a"),
        SPEC(("a", "c"), None),
        SPEC(("c", "a"), "b"),
        SPEC(None, ("b", "a", "c")),
        SPEC("c", None),
    ],
)
def test_each_device_has_the_part_that_jax_gives_it(spec):
    axes, names = (2, 2, 2), ("a", "b", "c")
    exported = _export([spec, SPEC()], axes=axes, names=names)
    report = _read(exported)
    (array,) = [a for a in report.arrays if a.path == "args[0]"]
    places = [np.unravel_index(tile, array.parts) for tile in array.tiles]
    starts = [
        tuple(
            int(n * size // parts) for n, size, parts in zip(p, X.shape, array.parts, strict=True)
        )
        for p in places
    ]
    assert starts == _index_by_device(spec, X.shape, axes, names)
    shards = bridge.meshes.shards_of(exported)["args[0]"]
    assert starts == [
        tuple(part.indices(size)[0] for part, size in zip(shard, X.shape, strict=True))
        for shard in shards
    ]
    wanted = [(e,) if isinstance(e, str) else e or () for e in spec]
    assert list(array.axes) == wanted


def test_one_device_has_no_mesh():
    call = from_exported(jax.export.export(jax.jit(jnp.sin))(X))
    with open_module(call.module) as module:
        assert read_shardings(call, module) is None


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    specs = [SPEC("data", None), SPEC(None, "<b>")]
    folder = tmp_path_factory.mktemp("sharded") / "m"
    bridge.save(_export(specs, names=("data", "<b>")), folder)
    return bridge.inspect(folder)


def test_the_text_draws_the_mesh(saved):
    console = Console(file=io.StringIO(), width=100)
    print_report(saved, console)
    text = console.file.getvalue()
    assert "mesh of 8 devices: data 4 x <b> 2 (Shardy)" in text
    assert "in args[0] [32,8]: split by (data, whole), 4 x 1 parts" in text
    assert "out result [32,16]: whole on every device" in text
    assert re.search(r"data=3 +3 +3\n", text)


def test_the_page_draws_the_mesh(saved):
    page = to_html(saved)
    assert "mesh of 8 devices: data 4 x &lt;b&gt; 2 (Shardy)" in page
    picture = re.search(r"<svg[^>]*><title>Which part of args\[0\].*?</svg>", page)[0]
    assert re.findall(r"<title>part (\d)</title>", picture) == list("00112233")


@pytest.fixture(scope="module")
def manual(tmp_path_factory):
    mesh = AbstractMesh((8,), ("d",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(jnp.sin, mesh=mesh, in_specs=SPEC("d"), out_specs=SPEC("d"))
    split = NamedSharding(mesh, SPEC("d"))
    exported = jax.export.export(jax.jit(mapped, in_shardings=split))(np.ones(8, np.float32))
    folder = tmp_path_factory.mktemp("manual") / "m"
    with pytest.warns(UserWarning, match="cannot run on one device"):
        bridge.save(exported, folder)
    return bridge.inspect(folder)


def test_what_one_device_cannot_run_is_said(manual, saved):
    """In text, JSON and HTML; what XLA partitions by itself runs on one."""
    operation = re.compile(r"^jax\.shard_map at .*test_sharding\.py:\d+$")
    order = manual.signatures[0].orders[0]
    assert operation.match(order.needs_devices)
    assert operation.match(manual.to_json()["signatures"][0]["orders"][0]["needs_devices"])
    console = Console(file=io.StringIO(), width=400)
    print_report(manual, console)
    said = r"8; one device, as in TensorFlow, cannot run jax\.shard_map at .*\.py:\d+"
    assert re.search(said, console.file.getvalue())
    assert re.search(said, to_html(manual))
    assert all(order.needs_devices == "" for order in saved.signatures[0].orders)
    assert "one device, as" not in to_html(saved)


def test_another_form_of_sharding_is_shown_as_text(exported):
    call = retarget(from_exported(exported), "2.16")
    with open_module(call.module) as module:
        text = str(module).replace("{devices=[4,1,2]<=[8] last_tile_dim_replicate}", "{manual}")
    changed = _reparsed(text, call)
    (array,) = [a for a in changed.arrays if a.path == "args[0]"]
    assert (array.tiles, array.parts, array.text) == ((), (), "{manual}")


def _reparsed(text, call):
    from jax.extend.mlir import ir

    with open_module(call.module) as module:
        return read_shardings(call, ir.Module.parse(text, module.context))
