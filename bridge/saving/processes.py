"""The processes of `jax.distributed`, when they save one file together.

They tell each other what they do in the key-value store of JAX's own runtime. That one also sees
to it that a process that dies takes the others with it: they end when its heartbeats have been
missing for `heartbeat_timeout_seconds` of `jax.distributed.initialize`, and at once when it was
process 0.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import tree_util

from bridge.core._jax import coordination_client
from xla_call_module.errors import InteropError, StructureError, shown_as_base

_NAMESPACE = "jax-tf-bridge/save"
_TIMEOUT_SECONDS = 300.0
_REPORT_SECONDS = 1.0
_ERROR_GRACE_SECONDS = 5.0
_MIN_POLL_SECONDS = 0.01
_MAX_POLL_SECONDS = 1.0
_DONE = "done"
_MAX_ERROR_LENGTH = 2000
_MAX_NAMES_SHOWN = 5


def is_multi_process(params: Any) -> bool:
    """Return whether a pytree has arrays with shards on devices of other processes."""
    return any(
        isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
        for leaf in tree_util.tree_leaves(params)
    )


class JaxProcesses:
    """All processes of the program, as a `savedmodel.write.Group`.

    The store has for each save, under a name of its own, what each process has agreed to, how far
    each is, and how it ended.
    """

    __slots__ = ("_client", "_reported", "_save", "_total", "_verb", "rank", "size")

    def __init__(self, verb: str = "bridge.save") -> None:
        """Connect to the other processes, which call the same verb."""
        self._verb = verb
        self.rank = jax.process_index()
        self.size = jax.process_count()
        self._client: Any = coordination_client()
        self._save = ""
        self._reported = 0.0
        self._total = 0
        if self._client is None:
            raise StructureError(
                "The parameters are sharded over several processes, which are not connected by "
                "jax.distributed. To do: call jax.distributed.initialize() in each of them first."
            )

    def begin(self, folder: str, agreed: Mapping[str, str]) -> str:
        """Return the folder that process 0 gives, once all processes have come and agreed."""
        if self.rank == 0:
            return self._invite(folder, agreed)
        invitation = json.loads(self._invitation())
        self._save = invitation["save"]
        self._set("agreed", json.dumps(dict(agreed)))
        if invitation["error"]:
            self._set("heard", "")
            raise _OtherFailedError(f"Process 0 has failed: {invitation['error']}")
        folder = str(invitation["folder"])
        self._wait(lambda: "begun" in self._read("lead"), "agreed")
        return folder

    def _invite(self, folder: str, agreed: Mapping[str, str], error: str = "") -> str:
        self._save = f"{_NAMESPACE}/{secrets.token_hex(8)}"
        invitation = {"save": self._save, "folder": folder, "error": error}
        self._client.key_value_set(
            f"{_NAMESPACE}/invitation", json.dumps(invitation), allow_overwrite=True
        )
        try:
            self._wait(lambda: len(self._read("agreed")) == self.size - 1, "agreed")
        finally:
            # Who comes later has missed it, and takes no part in what is half done.
            self._client.key_value_delete(f"{_NAMESPACE}/invitation")
        if not error:
            for rank, theirs in sorted(self._read("agreed").items()):
                _check_agreement(int(rank), json.loads(theirs), agreed)
            self._tell("begun", "")
        return folder

    def _invitation(self) -> str:
        try:
            milliseconds = int(1000 * _TIMEOUT_SECONDS)
            return str(
                self._client.blocking_key_value_get(f"{_NAMESPACE}/invitation", milliseconds)
            )
        except jax.errors.JaxRuntimeError as error:
            raise InteropError(
                f"Process {self.rank} has waited {_TIMEOUT_SECONDS:.0f} seconds for process 0 to "
                f"call {self._verb}. To do: call it in all processes, since the parameters are "
                "sharded over them."
            ) from error

    def report(self, written: int) -> int:
        """Report the bytes written here, and return those of all processes, as far as known."""
        now = time.monotonic()
        if now - self._reported < _REPORT_SECONDS:
            return self._total + written
        self._reported = now
        self._set("written", str(written))
        self._check_failure()
        if self.rank == 0:
            # Those that are done already wait as long as there is progress here.
            self._tell("progress", str(written))
            others = self._read("written")
            self._total = sum(int(n) for rank, n in others.items() if n != _DONE and rank != "0")
        return self._total + written

    def finish(self) -> None:
        """Report that all is written here; process 0 waits until it is so everywhere."""
        self._set("written", _DONE)
        if self.rank == 0:
            self._wait(self._all_are_done, "written")

    def _all_are_done(self) -> bool:
        progress = self._read("written")
        # The others see by this that there is progress, without asking for that of each.
        self._tell("progress", str(sorted(progress.items())))
        return len(progress) == self.size and set(progress.values()) == {_DONE}

    def succeed(self, size: int) -> int:
        """Report in process 0 that the folder has appeared; wait for that in the others."""
        if self.rank:
            self._wait(lambda: "appeared" in self._read("lead"), "written")
            return int(self._read("lead")["appeared"])
        self._tell("appeared", str(size))
        for what in ("agreed", "written"):
            self._client.key_value_delete(f"{self._save}/{what}")
        return size

    def fail(self, error: BaseException) -> None:
        """Report to the others what has failed here, unless one of them has reported it."""
        text = f"{type(error).__name__}: {error}"[:_MAX_ERROR_LENGTH]
        # The error itself is raised by the caller; that nobody hears of it is no other one.
        with contextlib.suppress(InteropError, jax.errors.JaxRuntimeError):
            if not self._save and self.rank == 0:
                self._invite("", {}, error=text)
            elif not self._save:
                self._save = json.loads(self._invitation())["save"]
                self._set("agreed", json.dumps({"error": text}))
            if not isinstance(error, _OtherFailedError):
                self._set("failed", text)
            self._await_hearing()

    def _await_hearing(self) -> None:
        """Wait in process 0 until the others have read the error: its end is the end of all."""
        if self.rank:
            return
        end = time.monotonic() + _ERROR_GRACE_SECONDS
        while time.monotonic() < end:
            know = self._read("heard").keys() | self._read("failed").keys()
            if len(know - {"0"}) == self.size - 1:
                return
            time.sleep(_MIN_POLL_SECONDS)

    def _wait(self, is_over: Callable[[], bool], what: str) -> None:
        """Wait until something holds, as long as the others make progress."""
        seen: object = None
        pause, since = _MIN_POLL_SECONDS, time.monotonic()
        while not is_over():
            self._check_failure()
            watched = ("written", "agreed") if self.rank == 0 else ("lead",)
            state = [self._read(place) for place in watched]
            if state != seen:
                seen, since = state, time.monotonic()
            if time.monotonic() - since > _TIMEOUT_SECONDS:
                raise InteropError(
                    f"Process {self.rank} has waited {_TIMEOUT_SECONDS:.0f} seconds, in which "
                    f"{self._missing(what)}. The file is not written, and an older one is as it "
                    "was. To do: see what the other processes have printed, and save again."
                )
            time.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_SECONDS)

    def _missing(self, what: str) -> str:
        if self.rank:
            return "process 0 has not come to an end"
        there = self._read(what)
        done = {rank for rank, state in there.items() if what == "agreed" or state == _DONE}
        missing = [rank for rank in range(self.size) if rank and str(rank) not in done]
        names = ", ".join(map(str, missing[:_MAX_NAMES_SHOWN]))
        more = ", …" if len(missing) > _MAX_NAMES_SHOWN else ""
        verb = f"called {self._verb}" if what == "agreed" else "made progress"
        return f"process {names}{more} has not {verb}"

    def _check_failure(self) -> None:
        for rank, text in sorted(self._read("failed").items()):
            if rank != str(self.rank):
                self._set("heard", "")
                raise _OtherFailedError(
                    f"Process {rank} has failed: {text} The file is not written, and an older one "
                    "is as it was."
                )

    def _read(self, what: str) -> dict[str, str]:
        """Return the messages of the processes, by their numbers."""
        pairs = self._client.key_value_dir_get(f"{self._save}/{what}/")
        return {str(key).rpartition("/")[2]: str(value) for key, value in pairs}

    def _set(self, what: str, value: str) -> None:
        key = f"{self._save}/{what}/{self.rank}"
        self._client.key_value_set(key, value, allow_overwrite=True)

    def _tell(self, name: str, value: str) -> None:
        self._client.key_value_set(f"{self._save}/lead/{name}", value, allow_overwrite=True)


@shown_as_base
class _OtherFailedError(InteropError):
    """The save has failed in another process, which knows why."""


def _check_agreement(rank: int, theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    if "error" in theirs:
        raise _OtherFailedError(f"Process {rank} has failed: {theirs['error']}")
    for what, value in ours.items():
        if theirs.get(what) != value:
            raise StructureError(
                f"Process {rank} was called with another {what} than process 0: "
                f"{theirs.get(what)}, and not {value}. To do: call it with the same arguments in "
                "all processes."
            )
