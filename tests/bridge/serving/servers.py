"""Model servers as processes: TensorFlow Serving's own, and `jax-tf-bridge serve`."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf import text_format
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from tests.bridge.serving.clients import GrpcClient, RequestError, RestClient
from tests.policy.source import ROOT

MODEL = "served"
_BINARY = "tensorflow_model_server"
_PATIENCE = 120.0  # seconds, of a busy machine


def _serving(options: Sequence[str], ports: Sequence[int]) -> Sequence[str] | None:
    found = shutil.which(_BINARY)
    if found is None:
        return None
    where = [f"--port={ports[0]}", f"--rest_api_port={ports[1]}"]
    return [found, *where, "--file_system_poll_wait_seconds=1", *options]


def _local(options: Sequence[str], ports: Sequence[int]) -> Sequence[str]:
    """Return the command for the model that the options of Serving name."""
    pairs = dict(option.removeprefix("--").split("=", 1) for option in options)
    if "model_config_file" in pairs:
        text = Path(pairs["model_config_file"]).read_text()
        (config,) = text_format.Parse(text, ModelServerConfig()).model_config_list.config
        pairs |= {"model_name": config.name, "model_base_path": config.base_path}
    where = [f"--grpc-port={ports[0]}", f"--rest-port={ports[1]}"]
    named = [pairs["model_base_path"], f"--name={pairs['model_name']}"]
    xla = ["--xla"] if any(name.startswith("xla_") for name in pairs) else []
    return [sys.executable, "-m", "bridge", "serve", *named, *where, *xla]


# For each kind of server what makes its command of Serving's options and of the ports for gRPC and
# REST; that is None where it is not installed.
COMMANDS: dict[str, Callable[[Sequence[str], Sequence[int]], Sequence[str] | None]] = {
    "serve": _local,
    _BINARY: _serving,
}


class Server:
    """A server that runs, and its clients.

    Attributes:
        addresses: where it listens for gRPC and for REST.
        grpc: the one for gRPC.
        rest: the one for REST.
        pid: of its process.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], log: Path, ports: Sequence[int], name: str
    ) -> None:
        self.addresses = tuple(f"127.0.0.1:{port}" for port in ports)
        self.grpc = GrpcClient(self.addresses[0], name)
        self.rest = RestClient(self.addresses[1], name)
        self.pid = process.pid
        self._process = process
        self._log = log

    def wait_for(self, version: int) -> None:
        """Until it can be called, by either protocol, and no other one can."""
        for client in (self.grpc, self.rest):
            wait_for(lambda client=client: self._serves(client, version), self._last_words)

    def _serves(self, client: GrpcClient | RestClient, version: int) -> bool:
        assert self._process.poll() is None, self._last_words()
        try:
            states = client.states()
        except RequestError:
            return False
        return [v for v, state in states.items() if state == "AVAILABLE"] == [version]

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def wait_for(condition: Callable[[], bool], say: Callable[[], str] = str) -> None:
    """Until it holds; AssertionError with the words where it does not in two minutes."""
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end, say()
        time.sleep(0.05)


@contextmanager
def running(
    kind: str,
    log: Path,
    configured: Sequence[str],
    *,
    name: str = MODEL,
) -> Iterator[Server]:
    """A server of the versions below a folder, until the block ends.

    Args:
        kind: one of `COMMANDS`.
        log: the file that it writes to.
        configured: options as `publish` returns them, which name the model and the folder.
        name: of the model.
    """
    ports = _free_ports(2)
    command = COMMANDS[kind](configured, ports)
    if command is None:
        pytest.skip(f"there is no {kind} on the PATH")
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT)
    server = Server(process, log, ports, name)
    try:
        yield server
    finally:
        server.grpc.close()
        server.rest.close()
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens at; another process may still take one before the server does."""
    sockets = [socket.socket() for _ in range(count)]
    for found in sockets:
        found.bind(("127.0.0.1", 0))
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports
