"""A Python whose processes begin with TensorFlow and JAX imported, as fixture `preloaded_python`.

`python fork_server.py ADDRESS` imports both, does nothing with them, and forks a process for each
client: a program that takes the arguments of `python`, and whose child has its folder, environment
and standard streams. The client ends as the child does; a client that is killed takes the child
with it. XLA_FLAGS and TF_XLA_FLAGS are read after the fork; what JAX, Keras or TensorFlow read when
they are imported (`JAX_…` but for JAX_PLATFORMS, `KERAS_BACKEND`) is that of the server.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

_MODULES = ("jax", "jax.export", "jax.numpy", "tensorflow", "keras")

_POLL_SECONDS = 0.01

_CLIENT = """\
#!{python} -SE
import json, os, signal, socket, sys
request = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(request).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(request)
    with server.makefile() as answer:
        status = int(answer.read() or 1)
if status < 0:
    if -status != signal.SIGKILL:
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@contextlib.contextmanager
def preloaded_python(folder: Path) -> Iterator[str]:
    """The path of a Python that has TensorFlow and JAX imported when it starts.

    On a system other than Linux it is the Python of this process.

    Args:
        folder: a folder for the program and the socket of its server.
    """
    if sys.platform != "linux":
        yield sys.executable
        return
    address, client = folder / "server", folder / "python"
    client.write_text(_CLIENT.format(python=sys.executable, address=str(address)))
    client.chmod(0o755)
    # Nothing but the standard library and what is installed is found by the server.
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", __file__, str(address)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        try:
            yield str(client)
        finally:
            server.terminate()


def _serve(address: str) -> tuple[list[str], dict[str, str]]:
    """Fork for each client; return, in the fork's child, its arguments and environment.

    The server ends with the process that has started it, which holds the other end of its stdin.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            if sys.stdin in select.select([listener, sys.stdin], [], [])[0]:
                os._exit(0)
            client, _ = listener.accept()
            if not os.fork():
                break
            client.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with client:
        size, streams, _, _ = socket.recv_fds(client, 8, 3)
        with client.makefile("rb") as requests:
            arguments, folder, environment = json.loads(requests.read(int.from_bytes(size, "big")))
        child = os.fork()
        if child:
            _wait(child, client)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    return arguments, environment


def _wait(child: int, client: socket.socket) -> None:
    """Tell the client how the child ends, or end it when the client has ended."""
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        # There is nothing to be read before the client's end.
        if select.select([client], [], [], _POLL_SECONDS)[0]:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
            break
    with contextlib.suppress(BrokenPipeError):
        client.sendall(str(os.waitstatus_to_exitcode(ended[1])).encode())
    os._exit(0)


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    """Do what `python ARGUMENTS` does."""
    os.environ.clear()
    os.environ.update(environment)
    if platforms := environment.get("JAX_PLATFORMS"):
        sys.modules["jax"].config.update("jax_platforms", platforms)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    while arguments[0] == "-W":
        warnings.simplefilter(arguments[1])  # type: ignore[arg-type]  # a text is one of them
        arguments = arguments[2:]
    if arguments[0] == "-c":
        sys.argv, code = ["-c", *arguments[2:]], arguments[1]
        sys.path.insert(0, "")
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), vars(main))
    elif arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(arguments[0]).absolute().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _exit(run: Callable[[], None]) -> NoReturn:
    """Run a program, and end this process as it ends.

    What Python does at its end besides, to free each module, would take most of the time.
    """
    status: object = None
    try:
        run()
    except SystemExit as ended:
        status = ended.code
    except BaseException:  # noqa: BLE001 - whatever ends it
        traceback.print_exc()
        status = 1
    if not isinstance(status, int | None):
        print(status, file=sys.stderr)
        status = 1
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):  # its reader or the program has closed it
        sys.stdout.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    for name in _MODULES:
        with contextlib.suppress(ImportError):
            __import__(name)
    gc.collect()
    gc.freeze()
    program = partial(_run, *_serve(sys.argv[1]))
    _exit(program)
