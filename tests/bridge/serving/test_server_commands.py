"""The commands that start a server: their options, with and without those that enable XLA."""

from __future__ import annotations

import json
import shlex
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_serving")

from bridge.serving import publish, rollback
from bridge.serving.server_commands import server_commands
from bridge.serving.signatures import read_signatures
from tests.bridge.serving import served
from tests.bridge.serving.conftest import PARAMS, predict
from tests.policy.source import ROOT
from xla_call_module.errors import ShardingError, StructureError

# Each version is loaded and asked as by a server, before XLA is disabled for the whole process, as
# it is in a server without the option, and afterwards.
_ASK = """
import json, sys
import tensorflow as tf
from bridge.core._tf import disable_xla
from bridge.local_server.servable import Servable, to_proto
for disable in (lambda: None, disable_xla):
    disable()
    for folder, key, inputs in json.loads(sys.argv[1]):
        try:
            version = Servable(folder, 1)
            dtypes = {n: info.dtype for n, info in version.signatures[key].inputs.items()}
            made = {n: tf.constant(v, dtypes[n]) for n, v in inputs.items()}
            version.predict(key, {n: to_proto(v.numpy()) for n, v in made.items()})
            print("answered")
        except Exception as error:
            print("XLA compilation disabled" if "XLA compilation disabled" in str(error) else error)
"""


def _step(state, x):
    return {"w": state["w"] + x.sum()}, {"y": state["w"] * x.sum()}


def test_what_is_published_needs_the_option(tmp_path, preloaded_python):
    """Parameters, pads, new weights, a copy, assignments, warmup records and preprocessing."""
    small, wide = {"x": [[1.0, 2.0, 3.0]]}, {"x": [[0.5] * 8]}
    padded, options = tmp_path / "padded", {"args": "f32[b,3]", "operations": "xla"}
    versions = [
        publish(predict, padded, params=PARAMS, batch_buckets=(1, 4), **options),
        publish(None, padded, weights=PARAMS, force=True),
        rollback(padded),
        publish(_step, tmp_path / "step", params={"w": jnp.ones(())}, updates=0, **options),
    ]
    asked = [(version.path, "serving_default", small) for version in versions]
    composed = publish(served.composed(tmp_path), tmp_path / "composed", operations="xla")
    asked += [(composed.path, key, wide) for key in served.KEYS]
    asked.append((composed.path, "text", {"text": ["1 2 3 4 5 6 7 8"]}))
    publish(predict, tmp_path / "warm", params=PARAMS, warmup=(1,), **options)
    asked.append((str(tmp_path / "warm" / "1"), "serving_default", small))
    plain = tmp_path / "plain" / "1"
    _write_plain(plain)
    code = [
        preloaded_python,
        "-c",
        _ASK,
        json.dumps([*asked, (str(plain), "serving_default", small)]),
    ]
    done = subprocess.run(code, capture_output=True, text=True, check=True, cwd=ROOT)
    answers = done.stdout.splitlines()
    refused = ["XLA compilation disabled"] * len(asked)
    assert answers == ["answered"] * (len(asked) + 1) + [*refused, "answered"]
    # Only what needs XLA is started with the option that enables it.
    assert publish(plain, tmp_path / "copy").servers[0].options[2:] == ()


def _write_plain(folder):
    module = tf.Module()
    double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec([None, 3], name="x")])
    tf.saved_model.save(module, str(folder), signatures={"serving_default": double})


def test_a_command_for_each_platform(tmp_path):
    base = tmp_path / "sine"
    exported = jax.export.export(jax.jit(jnp.sin), platforms=["cpu", "cuda", "tpu"])(1.0)
    published = publish(exported, base, operations="xla")
    named = ("--model_name=sine", f"--model_base_path={base}")
    on_cpu, on_gpu = published.servers
    assert (on_cpu.platform, on_cpu.tensorflow) == ("cpu", published.tensorflow)
    assert on_cpu.options == (*named, "--xla_cpu_compilation_enabled=true")
    assert (on_gpu.platform, on_gpu.tensorflow) == ("cuda", "2.18")
    assert on_gpu.options == (*named, "--xla_gpu_compilation_enabled=true")
    lines = str(published).splitlines()
    hint = 'for servers without this option, publish it with operations="tensorflow"'
    assert hint in lines
    for server in published.servers:
        assert str(server) in lines
        assert shlex.split(str(server), comments=True)[2:] == [*server.options]
        assert server.container in lines
        words = shlex.split(server.container)
        assert words[:2] == ["docker", "run"]
        assert f"--volume={base}:{base}:ro" in words
        assert words[-3:] == [*server.options]
    assert on_gpu.container.count("--gpus=all tensorflow/serving:latest-gpu ") == 1
    assert "gpu" not in on_cpu.container


@pytest.mark.parametrize("release", ["2.16", "2.21"])
def test_the_release_is_the_younger_one(release):
    on_cpu, on_gpu = server_commands("gs://b/m", ("--x",), ("cpu", "cuda"), release)
    assert on_cpu.tensorflow == release
    assert on_gpu.tensorflow == max(release, "2.18")
    assert on_cpu.container == on_gpu.container == ""


def test_plain_operations_need_no_flag(tmp_path):
    published = publish(jnp.tanh, tmp_path / "base", args="f32[b,3]", warmup=(1, 8))
    (server,) = published.servers
    assert not any("compilation" in option for option in server.options)
    assert "operations=" not in str(published)
    assert not published.first_requests.sizes
    assert not published.first_requests.unbounded


def _plain(folder):
    return not any(signature.platforms for signature in read_signatures(folder))


def test_what_is_there_is_published_in_operations_that_need_no_flag(saved, tmp_path):
    """A folder, new weights of one, and functions around it; with XLA it is a copy."""
    new = {"w": PARAMS["w"] + 1}
    request = {"x": tf.TensorSpec([None, 3])}
    around = {"preprocess": lambda x: 2 * x, "request": request}
    versions = [
        (publish(saved, tmp_path / "copy"), PARAMS["w"]),
        (publish(saved, tmp_path / "weights", weights=new), new["w"]),
        (publish(saved, tmp_path / "composed", **around), 2 * PARAMS["w"]),
    ]
    for published, w in versions:
        assert _plain(published)
        assert not any("compilation" in option for option in published.servers[0].options)
        (found,) = (
            tf.saved_model.load(published.path)
            .signatures["serving_default"](x=tf.ones([2, 3]))
            .values()
        )
        assert found.numpy() == pytest.approx(np.ones((2, 3)) @ w)
    for options in ({}, {"weights": new}, around):
        base = tmp_path / f"xla{len(options)}"
        assert not _plain(publish(saved, base, operations="xla", **options))
    # The program of the newest version stays what it is.
    assert not _plain(publish(None, tmp_path / "xla0", weights=new))
    with pytest.raises(StructureError, match="so operations= has no effect"):
        publish(None, tmp_path / "xla0", weights=new, operations="tensorflow")


def test_what_only_xla_runs_is_refused_with_both_ways_out(tmp_path):
    options = {"args": "f32[b,3]", "batch_buckets": (1, 2)}
    ways = r'To do: leave out .* pass operations="xla"\. .*--xla_cpu_compilation_enabled=true'
    with pytest.raises(StructureError, match=ways):
        publish(jnp.tanh, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []
    assert publish(jnp.tanh, tmp_path, operations="xla", **options).version == 1
    # What neither runs has one way out.
    with pytest.raises(StructureError, match="args") as refused:
        publish(lambda x: x, tmp_path)
    assert "operations" not in str(refused.value)


def test_a_file_for_several_devices_is_refused_with_both_ways_out(tmp_path):
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    exported = jax.export.export(jax.jit(jnp.sin, in_shardings=split), platforms=["cpu"])(
        jax.ShapeDtypeStruct((4,), "float32")
    )
    ways = r'without shardings, or pass operations="xla"\. .*--xla_cpu_compilation_enabled=true'
    with pytest.raises(ShardingError, match=ways):
        publish(exported, tmp_path / "base")
