"""StableHLO modules converted to a LiteRT model, in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from bridge.litert.worker_process import LiteRTProcess, ProcessDeath, check_installed
from xla_call_module.errors import UnsupportedError
from xla_call_module.tracebacks import is_internal_file

_MAX_MESSAGE = 1000  # characters
_NUMBER = re.compile(r"/@(\d+)")
_FRAME = re.compile(r'"((?:[^"\\]|\\.)+)":(\d+)(?::\d+)?')


@dataclass(frozen=True, slots=True)
class SignatureModule:
    """A module that becomes a signature of a model.

    Attributes:
        artifact: the portable artifact, as `jax.export.Exported.mlir_module_serialized`.
        inputs: the names of the arguments of `main`.
        reads: for each argument the name of the variable that it is; empty for an input. Without
            any, all are inputs.
        assigns: for each result the name of the variable whose new value it is; empty for an
            output. Without any, all are outputs.
    """

    signature: str
    artifact: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...] = ()
    assigns: tuple[str, ...] = ()

    def names(self) -> dict[str, Any]:
        """Return all names, for a request."""
        return {
            "signature": self.signature,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "reads": self.reads or [""] * len(self.inputs),
            "assigns": self.assigns or [""] * len(self.outputs),
        }


def convert(
    modules: Sequence[SignatureModule],
    *,
    process: LiteRTProcess | None = None,
    places: Sequence[str] = (),
) -> bytes:
    """Return a LiteRT model with a signature for each module, which share their constants."""
    check_installed("bridge.to_litert")
    names = [module.names() for module in modules]
    with nullcontext(process) if process is not None else LiteRTProcess() as at_work:
        try:
            answer, parts = at_work.request(
                "convert", [module.artifact for module in modules], modules=names
            )
        except ProcessDeath as error:
            raise _refusal(f"litert-converter does not survive it: {error}") from error
    if "error" in answer:
        raise _refusal(f"litert-converter fails: {answer['error']}")
    if "refused" in answer:
        raise _refusal(_shown(answer["refused"], answer["places"], places))
    return parts[0]


def _shown(message: str, refused: Sequence[tuple[str, str]], known: Sequence[str]) -> str:
    """Return what the converter refuses, and where it is in the user's program."""
    numbered = [(name, location, _NUMBER.findall(location)) for name, location in refused]
    places = dict.fromkeys(
        f"{name} in {known[int(numbers[-1])]}"
        if known and numbers
        else f"{name} at {_place(location)}"
        for name, location, numbers in numbered
    )
    return f"litert-converter refuses {'; '.join(places) or 'it'}: {message[:_MAX_MESSAGE]}"


def _place(location: str) -> str:
    """Return the innermost line of the user's program in a location, or its name.

    >>> _place('loc("jit(f)/fft"(callsite("f"("/a/model.py":8:1) at "g"("/a/b.py":4:3))))')
    '/a/model.py:8'
    >>> _place('loc("jit(f)/fft")')
    'jit(f)/fft'
    """
    for file, line in _FRAME.findall(location):
        if not is_internal_file(file):
            return f"{file}:{line}"
    named = re.search(r'"((?:[^"\\]|\\.)+)"', location)
    return named[1] if named else "an unknown place"


def _refusal(message: str) -> UnsupportedError:
    return UnsupportedError(
        f"{message.rstrip('.')}. To do: leave it out of what is exported, or compute it otherwise."
    )
