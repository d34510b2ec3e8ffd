"""The command `jax-tf-bridge serve`: what it prints, where it listens, which version it serves."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager

import jax.numpy as jnp
import pytest

from bridge.cli.main import main
from bridge.serving import publish
from tests.bridge.serving.servers import wait_for
from tests.policy.source import ROOT

grpc = pytest.importorskip("grpc")


class Served:
    """A server that was started by the command.

    Attributes:
        process: its process.
        log: the file that it prints to.
    """

    def __init__(self, process, log):
        self.process = process
        self.log = log

    def wait_for(self, text):
        """Return the lines until one has a text."""
        wait_for(lambda: text in self.log.read_text() or self.process.poll() is not None, str)
        lines = self.log.read_text()
        assert text in lines, lines
        return lines

    def url(self):
        return re.search(r"^REST: (\S+)$", self.wait_for("REST: "), re.MULTILINE)[1]

    def address(self):
        return re.search(r"^gRPC: (\S+)$", self.wait_for("gRPC: "), re.MULTILINE)[1]


# Without a package, if one is named before the words of the command.
_MAIN = """
import sys
sys.modules.update(dict.fromkeys(filter(None, [sys.argv.pop(1)])))
from bridge.cli.main import main
sys.exit(main())
"""


@contextmanager
def started(log, *options, missing=""):
    command = [sys.executable, "-c", _MAIN, missing, "serve", *map(str, options)]
    ports = ["--rest-port", "0", "--grpc-port", "0"]
    with log.open("w") as output:
        process = subprocess.Popen([*command, *ports], stdout=output, stderr=output, cwd=ROOT)
    try:
        yield Served(process, log)
    finally:
        process.kill()
        process.wait()


def ask(url, body=None):
    """Return the status and the answer of a request over REST."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(url, data, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def predict_by_grpc(address, model, x):
    """Return what gRPC answers to a client with the messages of TensorFlow Serving."""
    tf = pytest.importorskip("tensorflow")
    apis = pytest.importorskip("tensorflow_serving.apis.prediction_service_pb2_grpc")
    from tensorflow_serving.apis.predict_pb2 import PredictRequest

    request = PredictRequest()
    request.model_spec.name = model
    request.inputs["x"].CopyFrom(tf.make_tensor_proto(x, tf.float32))
    with grpc.insecure_channel(address) as channel:
        response = apis.PredictionServiceStub(channel).Predict(request, timeout=60)
    return tf.make_ndarray(response.outputs["output_0"])


def test_a_model_is_tried_by_what_the_command_prints(tmp_path):
    base = tmp_path / "double"
    plain = {"args": "f32[b,3]", "operations": "tensorflow"}
    with started(tmp_path / "log", base) as served:
        served.wait_for("no version below")
        publish(lambda x: 2 * x, base, warmup=(1, 4), **plain)
        lines = served.wait_for("version 1 is served, after 2 warmup records")
        assert lines.startswith("For trying a model on this machine, not for production:")
        assert "XLA is disabled, as in a server with default flags" in lines
        url = served.url()
        assert url.startswith("http://127.0.0.1:")
        # What is printed is a request as it stands.
        words = shlex.split(served.wait_for("curl").splitlines()[-1])
        assert words[:2] == ["curl", "-d"]
        assert ask(words[3], words[2].encode()) == (200, {"outputs": [[0.0, 0.0, 0.0]]})
        rows = {"instances": [[1, 2, 3], [4, 5, 6.5]]}
        assert ask(f"{url}:predict", rows)[1] == {"predictions": [[2, 4, 6], [8, 10, 13]]}
        answer = predict_by_grpc(served.address(), "double", [[1, 2, 3]])
        assert answer.tolist() == [[2, 4, 6]]
        # One that is not a model leaves the older one in place; a later one takes over.
        (base / "2").mkdir()
        served.wait_for("version 2 cannot be served")
        assert ask(f"{url}:predict", rows)[0] == 200
        publish(lambda x: 3 * x, base, **plain)
        served.wait_for("version 3 is served")
        assert ask(f"{url}:predict", rows)[1]["predictions"][0] == [3, 6, 9]
        states = {s["version"]: s["state"] for s in ask(url)[1]["model_version_status"]}
        assert states == {"1": "END", "2": "END", "3": "AVAILABLE"}
        # Those that go are served no more.
        for version in ("2", "3"):
            shutil.rmtree(base / version)
        wait_for(lambda: ask(f"{url}:predict", rows)[1]["predictions"][0] == [2, 4, 6])
        served.process.send_signal(signal.SIGINT)
        assert served.process.wait(timeout=60) == 0
        assert served.wait_for("ended").endswith("ended\n")


def test_nothing_is_compiled_but_with_the_option(tmp_path):
    base = tmp_path / "tanh"
    publish(jnp.tanh, base, args="f32[b]", operations="xla")
    cure = 'publish with operations="tensorflow", or start the server with XLA'
    with started(tmp_path / "without", base) as served:
        lines = served.wait_for("curl")
        assert "requests fail with XLA disabled" in lines
        assert cure in lines
        status, answer = ask(f"{served.url()}:predict", {"instances": [0.5]})
        assert status == 500
        assert "XLA compilation disabled" in answer["error"]
        assert cure in answer["error"]
    with started(tmp_path / "with", base, "--xla") as served:
        assert "XLA compiles" in served.wait_for("curl")
        (value,) = ask(f"{served.url()}:predict", {"instances": [0.5]})[1]["predictions"]
    assert value == pytest.approx(float(jnp.tanh(0.5)), rel=1e-5)


def test_it_listens_on_this_machine_alone(tmp_path):
    publish(jnp.tanh, tmp_path / "tanh", args="f32[b]", operations="tensorflow")
    with started(tmp_path / "log", tmp_path / "tanh") as served:
        served.wait_for("curl")
        for text in (served.url(), served.address()):
            port = int(re.search(r"127\.0\.0\.1:(\d+)", text)[1])
            with socket.socket() as other, pytest.raises(OSError, match="refused"):
                other.connect(("127.0.0.2", port))


def test_without_grpcio_there_is_rest_alone(tmp_path):
    publish(jnp.tanh, tmp_path / "tanh", args="f32[b]", operations="tensorflow")
    with started(tmp_path / "log", tmp_path / "tanh", missing="grpc") as served:
        assert "gRPC: needs grpcio. To do: pip install grpcio." in served.wait_for("curl")
        assert ask(f"{served.url()}:predict", {"inputs": [0]}) == (200, {"outputs": [0.0]})


def test_without_tensorflow_it_says_what_to_install(tmp_path):
    with started(tmp_path / "log", tmp_path, missing="tensorflow") as served:
        served.wait_for("jax-tf-bridge serve needs TensorFlow, which is not installed. To do: ")
        assert served.process.wait(timeout=120) == 2


@pytest.mark.parametrize("option", ["--rest-port", "--grpc-port"])
def test_a_port_that_is_taken(tmp_path, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        others = {"--rest-port": 0, "--grpc-port": 0} | {option: port}
        words = [str(word) for pair in others.items() for word in pair]
        done = subprocess.run(
            [sys.executable, "-m", "bridge", "serve", str(tmp_path), *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
    assert done.returncode == 2
    assert f"Nothing can listen at port {port} of 127.0.0.1" in done.stderr
    assert f"take any free port with {option} 0" in done.stderr


def test_a_model_is_no_folder_of_versions(tmp_path, capsys):
    published = publish(jnp.tanh, tmp_path, args="f32[b]")
    assert main(["serve", published.path]) == 2
    assert "a server takes the folder above its versions" in capsys.readouterr().err
