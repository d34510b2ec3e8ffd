"""The commands that start TensorFlow Serving for a model, on each platform."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from savedmodel.files.remote import is_remote
from xla_call_module.versions import OLDEST, parse_release

# tensorflow_serving/model_servers/main.cc calls DisableXlaCompilation() unless one of them is
# there, and every XlaCallModule then fails with "XLA compilation disabled".
_FLAGS = {
    "cpu": "--xla_cpu_compilation_enabled=true",
    "cuda": "--xla_gpu_compilation_enabled=true",
}
_FIRST_WITH_FLAG = {"cpu": OLDEST.name, "cuda": "2.18"}
_IMAGES = {"cpu": "tensorflow/serving:latest", "cuda": "tensorflow/serving:latest-gpu"}
_PORTS = "--publish=8500:8500 --publish=8501:8501"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """The command that starts TensorFlow Serving for a model on one platform; a line of a shell.

    Attributes:
        platform: `cpu` or `cuda`.
        tensorflow: the oldest release of TensorFlow Serving that runs the model there.
        options: the options of `tensorflow_model_server`; also the `args` of a container of its
            image, as in Kubernetes, if the models lie there at the same path.
        container: the line of a shell that runs them in its image, with the models in it at the
            same path; empty for an address.
    """

    platform: str
    tensorflow: str
    options: tuple[str, ...]
    container: str

    def __str__(self) -> str:
        """Return the command, and for which servers it is."""
        command = shlex.join(("tensorflow_model_server", "--rest_api_port=8501", *self.options))
        return f"{command}  # {self.platform}, from TensorFlow Serving {self.tensorflow} on"


def compilation_flags(platforms: Collection[str]) -> tuple[str, ...]:
    """Return the options without which a server compiles no StableHLO module."""
    return tuple(flag for platform, flag in _FLAGS.items() if platform in platforms)


def compiles(command: ServerCommand) -> bool:
    """Return whether a command starts a server that compiles StableHLO modules."""
    return not {*_FLAGS.values()}.isdisjoint(command.options)


def servers_comment(platforms: Collection[str]) -> str:
    """Return the lines of a configuration file that say for which servers it is."""
    return "".join(
        f"# For TensorFlow Serving {_FIRST_WITH_FLAG[platform]} or later on {platform}: {flag}\n"
        for platform, flag in _FLAGS.items()
        if platform in platforms
    )


def server_commands(
    base_path: str, options: Sequence[str], platforms: Collection[str], tensorflow: str
) -> tuple[ServerCommand, ...]:
    """Return the command of each platform that TensorFlow Serving has an image for."""
    commands = []
    for platform in [name for name in _FLAGS if name in platforms] or ["cpu"]:
        all_options = (*options, *compilation_flags({platform} & {*platforms}))
        releases = filter(None, (tensorflow, _FIRST_WITH_FLAG[platform]))
        oldest = max(releases, key=lambda release: parse_release(release).tensorflow)
        volume = shlex.quote(f"--volume={base_path}:{base_path}:ro")
        run = f"docker run --rm {_PORTS} {volume}{' --gpus=all' * (platform == 'cuda')}"
        container = f"{run} {_IMAGES[platform]} {shlex.join(all_options)}"
        container = "" if is_remote(base_path) else container
        commands.append(ServerCommand(platform, oldest, all_options, container))
    return tuple(commands)
