"""The models of `examples/serving/`: published, configured, and asked by both clients."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

import bridge
from bridge.cli.main import main
from bridge.serving.messages import BatchingParameters, MonitoringConfig
from tests.policy.source import ROOT

pytest.importorskip("sklearn")
pytest.importorskip("tensorflow_serving.apis.predict_pb2")

from tests.bridge.serving.servers import COMMANDS, running

SERVING = ROOT / "examples" / "serving"
SERVER = "tensorflow_model_server"


def _run(script, *arguments):
    done = subprocess.run(
        [sys.executable, str(SERVING / script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    printed = _run("publish.py", folder)
    return folder, printed


def test_publish(published):
    folder, printed = published
    base = folder / "models" / "digits"
    assert f"version 1 in {base}/1" in printed
    assert int(re.search(r"(\d+) of 20 right", printed)[1]) >= 18
    assert bridge.inspect(base / "1").warmup.records == 3
    command = next(line for line in printed.splitlines() if line.startswith(SERVER))
    files = re.findall(r"--\w+_file=(\S+)", command)
    assert sorted(Path(file).name for file in files) == [
        "batching_parameters.txt",
        "models.config",
        "monitoring.config",
    ]
    assert all(Path(file).is_file() for file in files)


def test_the_configuration_is_what_is_written_now(tmp_path):
    _run("write_configs.py", tmp_path)
    there = {file.name: file.read_text() for file in (SERVING / "configs").iterdir()}
    assert there == {file.name: file.read_text() for file in tmp_path.iterdir()}


def test_the_configuration_is_read_by_the_messages_of_serving():
    from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

    kinds = {
        "models.config": ModelServerConfig,
        "monitoring.config": MonitoringConfig,
        "batching_parameters.txt": BatchingParameters,
    }
    read = {
        name: text_format.Parse((SERVING / "configs" / name).read_text(), kind())
        for name, kind in kinds.items()
    }
    (model,) = read["models.config"].model_config_list.config
    assert (model.name, model.base_path) == ("digits", "/models/digits")
    assert read["monitoring.config"].prometheus_config.enable
    assert list(read["batching_parameters.txt"].allowed_batch_sizes) == [1, 8, 32]


def test_the_container_command(published, tmp_path):
    folder, _ = published
    (tmp_path / "docker").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "docker").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = [str(SERVING / "serve.sh"), str(folder)]
    environment = {**os.environ, "PATH": path}
    captured = {"env": environment, "capture_output": True, "text": True, "check": True}
    done = subprocess.run(command, **captured)
    words = done.stdout.split("\n")
    assert words[:2] == ["run", "--rm"]
    options = [word for word in words[words.index("tensorflow/serving:2.19.1") + 1 :] if word]
    assert options[-1] == "--xla_cpu_compilation_enabled=true"
    in_kubernetes = re.findall(r"^ +- (--\S+)$", (SERVING / "kubernetes.yaml").read_text(), re.M)
    assert in_kubernetes == options
    mounts = dict(
        word.removesuffix(":ro").split(":")[::-1]
        for flag, word in itertools.pairwise(words)
        if flag == "--volume"
    )
    on_gpus = subprocess.run([*command, "gpu"], **captured).stdout
    assert "--gpus=all" in on_gpus
    assert "tensorflow/serving:2.19.1-gpu\n" in on_gpus
    assert on_gpus.endswith("--xla_gpu_compilation_enabled=true\n")
    # Every file that the server is told of is one that is mounted.
    for file in re.findall(r"--\w+_file=(\S+)", done.stdout):
        mount = next(mount for mount in mounts if file.startswith(f"{mount}/"))
        assert Path(mounts[mount] + file.removeprefix(mount)).is_file()
    assert (Path(mounts["/models"]) / "digits" / "1").is_dir()


@pytest.fixture(scope="module", params=COMMANDS)
def server(request, published, tmp_path_factory):
    folder, printed = published
    words = next(line for line in printed.splitlines() if line.startswith(SERVER)).split()
    # The others are its name, ports that may be taken, and a comment.
    options = [word for word in words if re.match(r"--(?!\w*port=)", word)]
    base, log = folder / "models" / "digits", tmp_path_factory.mktemp("log") / "log"
    flags = re.search(r"^export TF_XLA_FLAGS=(\S+)$", printed, re.MULTILINE)[1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_XLA_FLAGS", flags)
        with running(request.param, log, options, name=base.name) as server:
            server.wait_for(1)
            yield server


@pytest.mark.parametrize("client", ["grpc_client.py", "rest_client.py"])
def test_a_client(published, server, client):
    folder, _ = published
    address = server.addresses[client == "rest_client.py"]
    printed = _run(client, folder / "requests.npz", address)
    with np.load(folder / "requests.npz") as requests:
        assert str(requests["label"].tolist()) in printed
    # float32 softmax, computed by two builds of XLA
    assert float(re.search(r"from JAX: (\S+)", printed)[1]) < 1e-5


def _compiled(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "compiled").iterdir()}


def test_a_second_run_is_no_new_version(tmp_path):
    base = tmp_path / "models" / "digits"
    for _ in range(2):
        assert f"version 1 in {base}/1" in _run("publish.py", tmp_path)
    assert not (base / "2").exists()


def test_other_weights_compile_nothing(published, server, tmp_path):
    """The program is that of the first version, so the server compiles nothing for another one."""
    folder, _ = published
    before = _compiled(folder)
    assert len(before) >= 3, "one for each batch size"
    base = folder / "models" / "digits"
    params = bridge.load(base / "1").params
    np.savez(tmp_path / "new.npz", **{name: value[..., ::-1] for name, value in params.items()})
    arguments = ["publish", "--weights", tmp_path / "new.npz", base]
    assert main([str(argument) for argument in arguments]) == 0
    version = max(int(path.name) for path in base.iterdir() if path.name.isdigit())
    server.wait_for(version)
    with np.load(folder / "requests.npz") as requests:
        found = server.grpc.predict({"image": requests["image"][:8]}).outputs
        expected = bridge.load(base / str(version))(requests["image"][:8])
        assert not np.allclose(expected["probability"], requests["probability"][:8])
    np.testing.assert_allclose(found["probability"], expected["probability"], rtol=1e-4, atol=1e-6)
    assert _compiled(folder) == before
