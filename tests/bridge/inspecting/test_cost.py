"""The cost of a call, as XLA counts it, and the StableHLO that it is counted of."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64

import bridge
import savedmodel
from bridge.cli.inspect_command import module_text
from bridge.cli.main import main
from bridge.inspecting.cost import costs_of_model, parse_sizes
from xla_call_module.errors import PlatformError, ShardingError, StructureError

PARAMS = {"w": np.ones((16, 8), np.float32), "c": np.ones((8, 8), np.float32)}


def predict(params, x):
    return jnp.tanh(x @ params["w"]) @ params["c"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    b, s = jax.export.symbolic_shape("b, s")
    spec = jax.ShapeDtypeStruct
    dynamic = jax.export.export(jax.jit(predict), platforms=["cpu", "cuda"])(
        PARAMS, spec((b, 2 * s, 16), jnp.float32)
    )
    static = jax.export.export(jax.jit(predict), platforms=["cpu", "tpu"])(
        PARAMS, spec((4, 6, 16), jnp.float32)
    )
    folder = tmp_path_factory.mktemp("cost") / "m"
    bridge.save({"serving_default": dynamic, "static": static}, folder, params=PARAMS)
    return folder


@pytest.fixture(scope="module")
def model(file):
    return savedmodel.read(file)


def test_symbolic_dimensions_cost_what_static_ones_do(model):
    found = {c.signature: c for c in costs_of_model(model, sizes={"b": 4, "s": 3})}
    dynamic, static = found["serving_default"], found["static"]
    assert (dynamic.sizes, static.sizes) == ({"b": 4, "s": 3}, {})
    for cost in (dynamic, static):
        assert (cost.order, cost.platform, cost.compiled) == (0, "cpu", True)
        products = 2 * 4 * 6 * (16 * 8 + 8 * 8)
        assert products <= cost.flops <= 1.2 * products
        assert cost.transcendentals == 4 * 6 * 8
        arrays = 4 * (4 * 6 * 16 + 16 * 8 + 8 * 8)
        assert arrays <= cost.argument_bytes <= arrays + 16  # and the platform index
        assert cost.result_bytes == 4 * 4 * 6 * 8
        assert cost.peak_bytes >= cost.argument_bytes + cost.result_bytes
        assert cost.bytes_accessed >= cost.argument_bytes


def test_it_is_what_jax_says_of_the_original(model):
    specs = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), PARAMS)
    x = jax.ShapeDtypeStruct((4, 6, 16), jnp.float32)
    original = jax.jit(predict).lower(specs, x).compile()
    (cost,) = [c for c in costs_of_model(model, batch=1) if c.signature == "static"]
    assert cost.flops == original.cost_analysis()["flops"]
    assert cost.transcendentals == original.cost_analysis()["transcendentals"]
    assert cost.result_bytes == original.memory_analysis().output_size_in_bytes


def test_the_batch_is_the_size_of_what_has_none(model):
    (cost, _) = costs_of_model(model, batch=8, sizes={"s": 5})
    assert cost.sizes == {"b": 8, "s": 5}


def test_a_gradient_costs_more(model):
    first, second = (costs_of_model(model, order=order, batch=4)[0] for order in (0, 1))
    assert second.order == 1
    assert second.flops > 1.9 * first.flops


def test_a_platform_that_is_not_at_hand(model):
    with pytest.raises(PlatformError, match="exported for cpu, cuda, not for tpu"):
        costs_of_model(model, platform="tpu", batch=2)
    static = savedmodel.SavedModel(model.signatures[1:], model.variables)
    if any(device.platform == "tpu" for device in jax.devices()):
        pytest.skip("there is a TPU")
    (cost,) = costs_of_model(static, platform="tpu")
    assert (cost.platform, cost.compiled, cost.peak_bytes) == ("tpu", False, None)
    assert cost.flops >= 2 * 4 * 6 * (16 * 8 + 8 * 8)


@pytest.mark.parametrize("order", [0, 1])
def test_symbolic_dimensions_for_a_platform_that_is_not_at_hand(model, order):
    if jax.default_backend() != "cpu":
        pytest.skip("there is an accelerator")
    dynamic = savedmodel.SavedModel(model.signatures[:1], model.variables)
    sizes = {"b": 4, "s": 3}
    here, there = (
        costs_of_model(dynamic, platform=platform, sizes=sizes, order=order)[0]
        for platform in ("cpu", "cuda")
    )
    assert (there.platform, there.compiled, there.sizes) == ("cuda", False, sizes)
    assert there.flops == pytest.approx(here.flops, rel=0.1)
    assert there.transcendentals == here.transcendentals
    assert (there.argument_bytes, there.peak_bytes) == (None, None)


def test_several_devices(tmp_path):
    mesh = jax.sharding.AbstractMesh((2,), ("d",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    exported = jax.export.export(jax.jit(jnp.sin, in_shardings=sharding))(np.zeros(4, np.float32))
    bridge.save(exported, tmp_path / "m")
    with pytest.raises(ShardingError, match="exported for 2 devices"):
        costs_of_model(savedmodel.read(tmp_path / "m"))


def test_wide_dtypes_and_keys(tmp_path):
    with enable_x64(True):
        exported = jax.export.export(
            jax.jit(lambda x, key: x + jax.random.normal(key, (3,), jnp.float64))
        )(np.zeros(3), jax.random.key(0))
    bridge.save(exported, tmp_path / "m")
    (cost,) = costs_of_model(savedmodel.read(tmp_path / "m"))
    assert (cost.argument_bytes, cost.result_bytes) == (3 * 8 + 2 * 4, 3 * 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"b, s has no size. To do: give --batch N, or --size b=N"),
        ({"sizes": {"b": 2}}, r"\bs has no size"),
        ({"sizes": {"b": 2, "c": 1}}, "c is not a dimension variable of the file; it has b, s"),
        ({"batch": 2, "order": 3}, "gradients up to order 1, not 3"),
    ],
)
def test_what_cannot_be_counted(model, options, message):
    with pytest.raises(StructureError, match=message):
        costs_of_model(model, **options)


def test_a_platform_that_it_was_not_exported_for(tmp_path):
    """Only the check of the platform itself allows it, whatever other ones are disabled."""
    exported = jax.export.export(jax.jit(jnp.sin), platforms=["tpu"])(np.zeros(3, np.float32))
    for checks in ([], ["shape_assertions"], ["platform"]):
        bridge.save(
            exported, tmp_path / "m", disabled_checks=checks, overwrite=True, gradient_order=0
        )
        model = savedmodel.read(tmp_path / "m")
        if checks == ["platform"]:
            assert costs_of_model(model, platform="cpu")[0].platform == "cpu"
            continue
        with pytest.raises(PlatformError, match="was exported for tpu, not for cpu"):
            costs_of_model(model, platform="cpu")


@pytest.mark.parametrize("text", ["b", "b=", "b=0", "b=-1", "=3", "b=1;c=2", "b=99999999999"])
def test_a_text_that_is_no_size(text):
    with pytest.raises(StructureError, match="is not a size"):
        parse_sizes([text])


def test_command(file, capsys):
    assert main(["inspect", str(file), "--cost", "--batch", "4", "--size", "s=3"]) == 0
    text = capsys.readouterr().out
    for part in ("Signature static, function on cpu", "b = 4, s = 3", "FLOPs", "peak memory"):
        assert part in text
    assert main(["inspect", str(file), "--cost", "--batch", "4", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [cost["compiled"] for cost in printed["costs"]] == [True, True]
    assert printed["signatures"][0]["key"] == "serving_default"
    assert main(["inspect", str(file), "--cost"]) == 2
    assert "has no size" in capsys.readouterr().err


def test_the_module_as_text(file, model, capsys):
    assert main(["inspect", str(file), "--mlir"]) == 0
    text = capsys.readouterr().out
    assert "stablehlo.tanh" in text
    assert "func.func public @main" in text
    assert main(["inspect", str(file), "--mlir", "static", "--order", "1"]) == 0
    gradient = capsys.readouterr().out
    assert gradient.strip() == module_text(file, signature="static", order=1).strip()
    assert gradient.count("stablehlo.dot_general") > text.count("stablehlo.dot_general")
    assert main(["inspect", str(file), "--mlir", "missing"]) == 2
    shown = capsys.readouterr().err
    assert "no signature 'missing'" in shown
    assert "serving_default, static" in shown


def test_large_constants_are_left_out_of_the_text(tmp_path):
    values = np.arange(1000, dtype=np.float32)
    exported = jax.export.export(jax.jit(lambda x: x + values))(values)
    bridge.save(exported, tmp_path / "m")
    text = module_text(tmp_path / "m")
    assert "stablehlo.constant" in text
    assert len(text) < 3000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "4"], "--batch is for --cost"),
        (["--json", "--size", "b=4"], "--size is for --cost"),
        (["--platform", "cpu"], "--platform is for --cost"),
        (["--order", "1"], "--order is for --mlir and --cost"),
        (["--mlir", "--cost"], "exclude each other"),
        (["--cost", "--batch", "0"], "--batch is at least 1"),
        (["--mlir", "--json"], "not allowed with"),
    ],
)
def test_options_that_would_have_no_effect(file, arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", str(file), *arguments])
    assert message in capsys.readouterr().err
