"""Operations are counted for each order and each platform."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from bridge.cli.main import main
from bridge.inspecting.report_facts import operation_lines


def _function(x, kernel):
    two = lax.conv(lax.conv(x, kernel, (1, 1), "SAME"), kernel, (1, 1), "SAME")
    # JAX lowers it for the CPU in another way than elsewhere.
    return lax.platform_dependent(two, cpu=lambda y: jnp.sin(jnp.cos(y)), default=jnp.tanh)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("counts") / "model"
    x, kernel = np.ones((1, 2, 8, 8), "f"), np.ones((2, 2, 3, 3), "f")
    exported = export.export(jax.jit(_function), platforms=["cpu", "cuda", "tpu"])(x, kernel)
    bridge.save(exported, path, gradient_order=1)
    return path


def test_counts_are_of_what_runs(folder):
    (signature,) = bridge.inspect(folder).signatures
    function, gradient = signature.orders
    counts = {count.platforms: count.operations for count in function.counts}
    assert counts.keys() == {("cpu",), ("cuda", "tpu")}
    for operations in counts.values():
        assert operations["stablehlo.convolution"] == 2
        assert "stablehlo.case" not in operations
    assert (counts["cpu",]["stablehlo.cosine"], counts["cpu",]["stablehlo.sine"]) == (1, 1)
    assert "stablehlo.tanh" not in counts["cpu",]
    assert counts["cuda", "tpu"]["stablehlo.tanh"] == 1
    assert "stablehlo.sine" not in counts["cuda", "tpu"]
    # Newer versions of JAX lower convolutions of each platform apart.
    assert function.operations["stablehlo.convolution"] >= 2
    assert all(c.operations["stablehlo.convolution"] >= 4 for c in gradient.counts)


def test_a_module_that_is_the_same_everywhere_is_counted_once(tmp_path):
    bridge.save(jnp.sin, tmp_path / "m", args="f32[3]", gradient_order=0)
    (order,) = bridge.inspect(tmp_path / "m").signatures[0].orders
    (count,) = order.counts
    assert count.platforms == ("cpu", "cuda", "tpu")
    assert count.operations == order.operations
    assert operation_lines([order]) == ["function on cpu, cuda, tpu: 1 stablehlo.sine"]


def test_they_are_shown(folder, tmp_path, capsys):
    assert main(["inspect", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "operations, function on cpu: " in text
    assert "operations, gradient 1 on cuda, tpu: " in text
    assert main(["inspect", str(folder), "--json"]) == 0
    orders = json.loads(capsys.readouterr().out)["signatures"][0]["orders"]
    assert [len(order["counts"]) for order in orders] == [2, 2]
    assert main(["inspect", str(folder), "--html", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert "function on cpu" in page
    assert "gradient 1 on cuda, tpu" in page
