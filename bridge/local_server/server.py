"""The server: REST by the standard library, and gRPC where grpcio is installed, on 127.0.0.1."""

from __future__ import annotations

import importlib.util
import os
import shlex
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import tensorflow as tf

from bridge.core._tf import disable_xla
from bridge.local_server.json_format import example_body
from bridge.local_server.rest import rest_handler
from bridge.local_server.servable import WITH_XLA, RefusedError, Servable
from bridge.local_server.service import METHODS
from bridge.local_server.versions import ServedModel
from bridge.serving.base_path import open_base_path
from savedmodel.files.folder import PROTO_FILE
from savedmodel.files.remote import is_remote
from savedmodel.model import DEFAULT_SIGNATURE
from xla_call_module.errors import InteropError, StructureError

_HOST = "127.0.0.1"
_SECONDS_BETWEEN_POLLS = 1.0  # as --file_system_poll_wait_seconds of Serving
_GRPC_THREADS = 8
_WITH_XLA = "XLA compiles, as in a server with --xla_cpu_compilation_enabled=true."
_WITHOUT_XLA = "XLA is disabled, as in a server with default flags; --xla enables it."


def serve(
    base_path: str | os.PathLike[str],
    *,
    name: str | None = None,
    rest_port: int = 8501,
    grpc_port: int = 8500,
    xla: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the highest version below a folder until the process is interrupted."""
    if not is_remote(base_path) and (Path(base_path) / PROTO_FILE).exists():
        raise StructureError(
            f"{os.fspath(base_path)} is a SavedModel, and a server takes the folder above its "
            "versions. To do: jax-tf-bridge publish it to another folder, and serve that."
        )
    base = open_base_path(base_path)
    tf.get_logger().setLevel("ERROR")  # it would say that the session loader is an older one
    if not xla:
        disable_xla()
    own_name = name or base.path.rpartition("/")[2]
    model = ServedModel(
        own_name,
        base,
        say=say,
        announce=lambda found: say("\n".join(_lines(found, url, xla=xla))),
    )
    http = _listen_for_rest(model, rest_port)
    rpc, port = _listen_for_grpc(model, grpc_port)
    url = f"http://{_HOST}:{http.server_address[1]}/v1/models/{own_name}"
    say(_WITH_XLA if xla else _WITHOUT_XLA)
    say(f"REST: {url}")
    say(f"gRPC: {f'{_HOST}:{port}' if port else 'needs grpcio. To do: pip install grpcio.'}")
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        _poll(model, say, where=base.path)
    finally:
        http.shutdown()
        http.server_close()
        if rpc is not None:
            rpc.stop(None)


def _lines(found: Servable, url: str, *, xla: bool) -> list[str]:
    """Return what is to say of a version that can be called now."""
    warmed = f", after {found.warmed} warmup records" if found.warmed else ""
    lines = [f"version {found.version} is served{warmed}"]
    if found.calls_modules and not xla:
        lines.append(f"It calls StableHLO modules, so requests fail with XLA disabled.{WITH_XLA}")
    definition = found.signatures.get(DEFAULT_SIGNATURE)
    body = None if definition is None else example_body(definition)
    if body is not None:
        lines.append(f"curl -d {shlex.quote(body)} {url}:predict")
    return lines


def _poll(model: ServedModel, say: Callable[[str], None], *, where: str) -> None:
    """Look for versions again and again, and say each problem once."""
    said = ""
    while True:
        problem = ""
        try:
            model.poll()
            if not model.states:
                problem = f"no version below {where} yet"
        except (InteropError, OSError) as error:
            problem = f"{where}: {error}"
        if problem not in ("", said):
            say(problem)
        said = problem
        time.sleep(_SECONDS_BETWEEN_POLLS)


def _listen_for_rest(model: ServedModel, port: int) -> ThreadingHTTPServer:
    try:
        return ThreadingHTTPServer((_HOST, port), rest_handler(model))
    except OSError as error:
        raise _taken(port, "rest_port", error) from error


def _listen_for_grpc(model: ServedModel, port: int) -> tuple[Any, int]:
    """Return the server and its port; None and 0 without grpcio."""
    if importlib.util.find_spec("grpc") is None:
        return None, 0
    import grpc

    # A port has one server; and requests may be large, as in Serving.
    options = [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    server = grpc.server(ThreadPoolExecutor(_GRPC_THREADS), options=options)
    for service, methods in METHODS.items():
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                partial(_answer, model, answer),
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (request, answer) in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    try:
        port = server.add_insecure_port(f"{_HOST}:{port}")
    except RuntimeError as error:
        raise _taken(port, "grpc_port", error) from error
    server.start()
    return server, port


def _answer(model: ServedModel, answer: Callable[..., Any], request: Any, context: Any) -> Any:
    import grpc

    try:
        return answer(model, request)
    except RefusedError as refused:
        context.abort(getattr(grpc.StatusCode, refused.code), refused.message)


def _taken(port: int, option: str, error: Exception) -> StructureError:
    return StructureError(
        f"Nothing can listen at port {port} of {_HOST}: {error}. To do: stop what listens there, "
        f"or take any free port with {option}=0."
    )
