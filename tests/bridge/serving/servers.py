"""Model servers as processes: TensorFlow Serving's own, or the stand-in with its command line."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.bridge.serving.clients import GrpcClient, RequestError, RestClient
from tests.policy.source import ROOT

__all__ = ["COMMANDS", "MODEL", "Server", "running", "wait_for"]

MODEL = "served"
_BINARY = "tensorflow_model_server"
_PATIENCE = 120.0  # seconds, of a busy machine


def _real() -> Sequence[str] | None:
    found = shutil.which(_BINARY)
    return None if found is None else [found]


# For each kind of server the command that its options follow; None where it is not installed.
COMMANDS: dict[str, Callable[[], Sequence[str] | None]] = {
    "stand_in": lambda: [sys.executable, "-m", "tests.bridge.serving.stand_in"],
    _BINARY: _real,
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
    command: Sequence[str],
    log: Path,
    configured: Sequence[str],
    *,
    name: str = MODEL,
) -> Iterator[Server]:
    """A server of the versions below a folder, until the block ends.

    Args:
        command: what the server's options follow.
        log: the file that it writes to.
        configured: options as `publish` returns them, which name the model and the folder.
        name: of the model.
    """
    ports = _free_ports(2)
    options = [
        f"--port={ports[0]}",
        f"--rest_api_port={ports[1]}",
        "--file_system_poll_wait_seconds=1",
        *configured,
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *options], stdout=output, stderr=subprocess.STDOUT, cwd=ROOT
        )
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
