"""The program that converts modules to LiteRT, and runs models, on request.

A copy of this folder runs in a process of its own, which may die of an assertion of the libraries.

A message, here and there, is 8 bytes with the length of a header (little endian), the header as
JSON, and as many bytes as the numbers in the header's `sizes` add up to. A request has `verb`, the
name of a method of `Worker`; an answer has what it returned, or `error`.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from bridge.litert.worker.model_execution import LoadedModel, describe_model

Answer = tuple[dict[str, Any], Sequence[Any]]


def read_message(stream: IO[bytes]) -> tuple[dict[str, Any], list[bytes]] | None:
    """Return the header and the parts of the next message; None at the end of a stream."""
    head = _read(stream, 8)
    if head is None:
        return None
    header = _read(stream, *struct.unpack("<Q", head))
    if header is None:
        return None
    fields = json.loads(header)
    parts = [_read(stream, size) for size in fields.pop("sizes")]
    return None if None in parts else (fields, [part for part in parts if part is not None])


def _read(stream: IO[bytes], size: int) -> bytes | None:
    data = stream.read(size)
    return data if len(data) == size else None


def write_message(stream: IO[bytes], header: Mapping[str, Any], parts: Sequence[Any] = ()) -> None:
    """Write a message whose parts are bytes or arrays."""
    data = [part if isinstance(part, bytes) else part.tobytes() for part in parts]
    text = json.dumps({**header, "sizes": [len(part) for part in data]}).encode()
    stream.write(struct.pack("<Q", len(text)) + text)
    for part in data:
        stream.write(part)
    stream.flush()


def describe_arrays(arrays: Mapping[str, Any]) -> list[Any]:
    """Return the name, the dtype and the shape of each array, for a header."""
    return [[name, array.dtype.name, [*array.shape]] for name, array in arrays.items()]


def read_arrays(described: Sequence[Any], parts: Sequence[bytes]) -> dict[str, Any]:
    """Return the arrays that `describe_arrays` described."""
    return {
        name: np.frombuffer(bytearray(part), np.dtype(dtype)).reshape(shape)
        for (name, dtype, shape), part in zip(described, parts, strict=True)
    }


class Worker:
    """The verbs, and the models that are loaded."""

    def __init__(self) -> None:
        """Have no model."""
        self._models: dict[int, Any] = {}

    def convert(self, parts: list[bytes], modules: Sequence[Any]) -> Answer:
        """Return the flatbuffer of portable artifacts."""
        from bridge.litert.worker.module_conversion import Refusal, convert_modules

        try:
            return {}, [convert_modules(parts, modules)]
        except Refusal as error:
            return {"refused": str(error), "places": error.places}, []

    def describe(self, parts: Sequence[bytes]) -> Answer:
        """Return what is in a flatbuffer."""
        return describe_model(parts[0]), []

    def load(self, parts: Sequence[bytes], path: str | None, threads: int, kernels: str) -> Answer:
        """Load a model from a path, or from what was sent, and return its number."""
        model = parts[0] if path is None else path
        number = len(self._models)
        self._models[number] = LoadedModel(model, threads=threads, kernels=kernels)
        return {"model": number}, []

    def quantize(
        self, parts: Sequence[bytes], *, kind: str, calls: Sequence[Any], products_only: bool
    ) -> Answer:
        """Return a quantized model; what is sent besides the model are the inputs of calls."""
        from bridge.litert.worker.model_quantization import quantize_model

        samples: dict[str, list[Any]] = {}
        rest = list(parts[1:])
        for signature, described in calls:
            samples.setdefault(signature, []).append(read_arrays(described, rest[: len(described)]))
            del rest[: len(described)]
        return {}, [quantize_model(parts[0], kind, samples, products_only=products_only)]

    def unload(self, _: Sequence[bytes], model: int) -> Answer:
        """Forget a model, whose number is not used again."""
        self._models[model] = None
        return {}, []

    def run(
        self, parts: Sequence[bytes], model: int, signature: str, arrays: Sequence[Any]
    ) -> Answer:
        """Return the results of a signature."""
        results = self._models[model].run(signature, read_arrays(arrays, parts))
        return {"arrays": describe_arrays(results)}, [*results.values()]

    def answer(self, header: Mapping[str, Any], parts: list[bytes]) -> Answer:
        """Return the answer to a request; an error becomes one, too."""
        options = {key: value for key, value in header.items() if key != "verb"}
        try:
            return getattr(self, header["verb"])(parts, **options)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001 - it is handed on
            return {"error": f"{type(error).__name__}: {error}"}, []


def main() -> None:
    """Answer requests until there are no more; what libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    worker = Worker()
    while (message := read_message(sys.stdin.buffer)) is not None:
        write_message(answers, *worker.answer(*message))
