"""The version that is served: the highest one below a folder, which is looked at again and again.

So does TensorFlow Serving unless its configuration names versions
(tensorflow_serving/sources/storage_path/file_system_storage_path_source.cc): a higher one takes
over once it is loaded, and what cannot be loaded leaves the older one in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from bridge.local_server.servable import RefusedError, Servable
from bridge.serving.base_path import BasePath
from bridge.serving.messages import ErrorCode
from xla_call_module.errors import InteropError, quote

# As load_retry_interval_micros of tensorflow_serving/model_servers/server_core.h has it.
_SECONDS_TO_RETRY = 60.0
_FAILURES = (RefusedError, InteropError, tf.errors.OpError, OSError, RuntimeError, ValueError)


@dataclass(frozen=True, slots=True)
class VersionState:
    """The state of a version, as a server tells it.

    Attributes:
        state: the name of Serving's state, such as AVAILABLE.
        code: the name of the code of the error that it ended with; `OK` for none.
        message: the error.
    """

    state: str
    code: str = "OK"
    message: str = ""


class ServedModel:
    """The model of a folder.

    Attributes:
        name: the name of the model in requests.
        states: the state of each version that has been loaded, or was to be.
    """

    def __init__(
        self,
        name: str,
        base: BasePath,
        *,
        say: Callable[[str], None],
        announce: Callable[[Servable], None],
    ) -> None:
        """Load nothing yet."""
        self.name = name
        self.states: dict[int, VersionState] = {}
        self._base = base
        self._say = say
        self._announce = announce
        self._current: Servable | None = None
        self._next_trial: dict[int, float] = {}

    def find(self, name: str, version: int | None = None) -> Servable:
        """Return the version that can be called."""
        found = self._current
        if name == self.name and found is not None and version in (None, found.version):
            return found
        asked = f"Latest({name})" if version is None else f"Specific({name}, {version})"
        raise RefusedError("NOT_FOUND", f"Servable not found for request: {asked}")

    def poll(self) -> None:
        """Load the highest version, and let go of the older one once that can be called."""
        found = self._base.taken()
        wanted = max(found, default=None)
        current = self._current
        if wanted == (None if current is None else current.version):
            return
        if wanted is None:
            self._say(f"no version below {self._base.path} any more")
            self._take(None)
        elif time.monotonic() >= self._next_trial.get(wanted, 0.0):
            self._load(f"{self._base.path}/{found[wanted]}", wanted)

    def _load(self, folder: str, version: int) -> None:
        self.states[version] = VersionState("LOADING")
        try:
            loaded = Servable(folder, version)
        except _FAILURES as error:
            code, message = _status_of(error)
            self.states[version] = VersionState("END", code, message)
            self._next_trial[version] = time.monotonic() + _SECONDS_TO_RETRY
            self._say(f"version {version} cannot be served: {message}")
            return
        self._take(loaded)

    def _take(self, loaded: Servable | None) -> None:
        """Serve a version; one that answers a request still is closed when it has."""
        older, self._current = self._current, loaded
        if loaded is not None:
            self.states[loaded.version] = VersionState("AVAILABLE")
            self._announce(loaded)
        if older is not None:
            self.states[older.version] = VersionState("END")


def _status_of(error: Exception) -> tuple[str, str]:
    if isinstance(error, RefusedError):
        return error.code, error.message
    if isinstance(error, tf.errors.OpError):
        return ErrorCode.values_by_number[error.error_code].name, error.message
    return "INTERNAL", quote(error)
