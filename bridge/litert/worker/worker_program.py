"""The program that runs and quantizes LiteRT models, on request.

A copy of this folder runs in a process of its own, which may die of an assertion of the libraries.

The verb of a request (`bridge.core.worker_messages`) is the name of a method of `Worker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridge.core.worker_messages import Answer, answer_requests, describe_arrays, read_arrays
from bridge.litert.worker.model_execution import LoadedModel, describe_model


class Worker:
    """The verbs, and the models that are loaded."""

    def __init__(self) -> None:
        """Have no model."""
        self._models: dict[int, Any] = {}

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


def main() -> None:
    """Answer requests until there are no more."""
    answer_requests(Worker())
