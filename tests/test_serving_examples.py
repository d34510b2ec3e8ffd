"""What `examples/serving/` has: published, configured, and asked by both clients."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

import bridge
from bridge.serving.messages import BatchingParameters, MonitoringConfig
from tests.policy.source import ROOT

pytest.importorskip("sklearn")
predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
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
    done = subprocess.run(
        [str(SERVING / "serve.sh"), str(folder)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split("\n")
    assert words[:2] == ["run", "--rm"]
    mounts = dict(
        word.removesuffix(":ro").split(":")[::-1]
        for flag, word in itertools.pairwise(words)
        if flag == "--volume"
    )
    # Every file that the server is told of is one that is mounted.
    for file in re.findall(r"--\w+_file=(\S+)", done.stdout):
        mount = next(mount for mount in mounts if file.startswith(f"{mount}/"))
        assert Path(mounts[mount] + file.removeprefix(mount)).is_file()
    assert (Path(mounts["/models"]) / "digits" / "1").is_dir()


class _Model:
    """The published version, called by its signature as the server calls it."""

    def __init__(self, folder):
        self._call = tf.saved_model.load(str(folder)).signatures["serving_default"]

    def __call__(self, inputs):
        constants = {name: tf.constant(value, tf.float32) for name, value in inputs.items()}
        return {name: value.numpy() for name, value in self._call(**constants).items()}


@pytest.fixture(scope="module")
def model(published):
    return _Model(published[0] / "models" / "digits" / "1")


@contextmanager
def _grpc_server(model):
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):  # noqa: N802 - the name in the protocol
            assert request.model_spec.name == "digits"
            assert request.model_spec.signature_name == "serving_default"
            inputs = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
            response = predict_pb2.PredictResponse()
            response.model_spec.version.value = 1
            for name, value in model(inputs).items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
            return response

    server = grpc.server(ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@contextmanager
def _rest_server(model):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            assert self.path == "/v1/models/digits:predict"
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert request["signature_name"] == "serving_default"
            found = {name: value.tolist() for name, value in model(request["inputs"]).items()}
            body = json.dumps({"outputs": found}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


SERVERS = {"grpc_client.py": _grpc_server, "rest_client.py": _rest_server}


def _ask(client, folder, address):
    printed = _run(client, folder / "requests.npz", address)
    with np.load(folder / "requests.npz") as requests:
        assert str(requests["label"].tolist()) in printed
    # float32 softmax, computed by two builds of XLA
    assert float(re.search(r"from JAX: (\S+)", printed)[1]) < 1e-5


@pytest.mark.parametrize("client", SERVERS)
def test_a_client(published, model, client):
    with SERVERS[client](model) as address:
        _ask(client, published[0], address)


@pytest.mark.skipif(shutil.which(SERVER) is None, reason=f"there is no {SERVER} on the PATH")
def test_the_clients_of_a_real_server(published):
    folder, printed = published
    command = next(line for line in printed.splitlines() if line.startswith(SERVER)).split()
    ports = {"--port=8500": _free_port(), "--rest_api_port=8501": _free_port()}
    options = [f"{word.split('=')[0]}={ports[word]}" if word in ports else word for word in command]
    with subprocess.Popen(options) as server:
        try:
            for port in ports.values():
                _wait(port, server)
            for client, port in zip(SERVERS, ports.values(), strict=True):
                _ask(client, folder, f"localhost:{port}")
        finally:
            server.terminate()


def _free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _wait(port, server):
    for _ in range(600):
        assert server.poll() is None
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens at {port}")


def test_a_second_run_is_the_next_version(published):
    folder, _ = published
    assert f"version 2 in {folder}/models/digits/2" in _run("publish.py", folder)
