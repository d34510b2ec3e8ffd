"""The command `jax-tf-bridge serve`: a server on this machine, for trying a model."""

from __future__ import annotations

import argparse
import signal

from bridge.cli.command_arguments import add_arguments
from xla_call_module.errors import MissingDependencyError

_FOR_TRYING = (
    "For trying a model on this machine, not for production: one process that answers this machine "
    "alone, and batches no requests."
)


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add_arguments(parser, "base_path")
    parser.add_argument("--name", help="the model's name in requests; by default BASE's")
    for protocol, port in (("rest", 8501), ("grpc", 8500)):
        parser.add_argument(
            f"--{protocol}-port",
            metavar="PORT",
            type=int,
            default=port,
            help=f"where requests come in; by default {port}, and 0 for any that is free",
        )
    parser.add_argument(
        "--xla",
        action="store_true",
        help="compile by XLA, as a server with --xla_cpu_compilation_enabled=true does",
    )


def run_serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or SIGTERM."""
    _say(_FOR_TRYING)
    try:
        from bridge.local_server.server import serve
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise MissingDependencyError.of(
            "jax-tf-bridge serve", "TensorFlow", extra="tensorflow"
        ) from error
    # What a shell starts in the background ignores Ctrl-C; and SIGTERM is what ends a service.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        serve(
            options.base_path,
            name=options.name,
            rest_port=options.rest_port,
            grpc_port=options.grpc_port,
            xla=options.xla,
            say=_say,
        )
    except KeyboardInterrupt:
        _say("ended")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
