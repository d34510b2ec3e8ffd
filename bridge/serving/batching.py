"""How TensorFlow Serving puts requests together to batches (batching_parameters.txt)."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bridge.batching.batch_sizes import parse_sizes
from bridge.serving.messages import BatchingParameters, encode_text
from bridge.serving.signatures import ServedSignature, ServedTensor
from xla_call_module.dimensions import evaluate
from xla_call_module.errors import StructureError

__all__ = ["Batching", "check_batching", "parse_batching"]

# Without allowed sizes a batch may have any size; so many of them are tried.
_MOST_TRIED = 4096
_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Batching:
    """What Serving is told of batches; what is None is left to the server.

    Example:
        >>> from bridge.serving import Batching
        >>> print(Batching(allowed_batch_sizes=(1, 8), batch_timeout_micros=2000).to_text())
        max_batch_size {
          value: 8
        }
        batch_timeout_micros {
          value: 2000
        }
        allowed_batch_sizes: 1
        allowed_batch_sizes: 8
        <BLANKLINE>

    Attributes:
        allowed_batch_sizes: a batch is padded to the next of these; empty for no padding. They
            increase.
        max_batch_size: at which a batch is full: the last allowed size, and by default that.
        batch_timeout_micros: how long a batch waits for more requests, in microseconds.
        max_enqueued_batches: how many may wait before requests are refused.
        num_batch_threads: how many batches run at a time.
        thread_pool_name: of the threads, for the server's metrics.
        pad_variable_length_inputs: whether other dimensions than the first are padded with zeros
            to those of the largest request in a batch.
    """

    allowed_batch_sizes: tuple[int, ...] = ()
    max_batch_size: int | None = None
    batch_timeout_micros: int | None = None
    max_enqueued_batches: int | None = None
    num_batch_threads: int | None = None
    thread_pool_name: str | None = None
    pad_variable_length_inputs: bool = False

    def __post_init__(self) -> None:
        """Refuse what the server would refuse.

        Raises:
            StructureError: the sizes do not increase, the last is not the largest batch, or a
                number is out of range.
        """
        allowed = parse_sizes(self.allowed_batch_sizes) if self.allowed_batch_sizes else ()
        if allowed is None or list(allowed) != sorted(set(self.allowed_batch_sizes)):
            raise StructureError(
                f"allowed_batch_sizes={self.allowed_batch_sizes!r}: expected whole numbers that "
                "increase, such as (1, 8, 32)."
            )
        object.__setattr__(self, "allowed_batch_sizes", allowed)
        if allowed and self.max_batch_size is None:
            object.__setattr__(self, "max_batch_size", allowed[-1])
        for name, least in _LEAST.items():
            object.__setattr__(self, name, _parse_number(name, getattr(self, name), least))
        pool: Any = self.thread_pool_name  # what a user says may be anything
        if not isinstance(pool, str | None):
            raise StructureError(f"thread_pool_name={pool!r}; expected some text.")
        if allowed and self.max_batch_size != allowed[-1]:
            raise StructureError(
                f"max_batch_size={self.max_batch_size}, and the last of allowed_batch_sizes is "
                f"{allowed[-1]}; TensorFlow Serving takes them only if they are equal. To do: "
                "leave max_batch_size out."
            )

    def to_text(self) -> str:
        """The content of batching_parameters.txt."""
        message: Any = BatchingParameters()
        for name in (*_LEAST, "thread_pool_name"):
            if (value := getattr(self, name)) is not None:
                getattr(message, name).value = value
        message.allowed_batch_sizes.extend(self.allowed_batch_sizes)
        message.pad_variable_length_inputs = self.pad_variable_length_inputs
        return encode_text(message)


_LEAST = {
    "max_batch_size": 1,
    "batch_timeout_micros": 0,
    "max_enqueued_batches": 1,
    "num_batch_threads": 1,
}


def _parse_number(name: str, value: Any, least: int) -> int | None:
    if value is None:
        return None
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        number = operator.index(value)
        if least <= number <= _MOST:
            return number
    raise StructureError(f"{name}={value!r}; expected a whole number from {least} to {_MOST:,}.")


def parse_batching(batching: Any, *, sizes: Sequence[int]) -> Batching | None:
    """What `batching=` says.

    Args:
        batching: a `Batching`, its fields as a mapping, allowed batch sizes, True for the sizes
            that the model is warmed up with, or None.
        sizes: those, or the ones that the model pads batches to.

    Raises:
        StructureError: it is none of these, or says what the server would refuse.
    """
    if batching is None or batching is False:
        return None
    if isinstance(batching, Batching):
        return batching
    if batching is True:
        if not sizes:
            raise StructureError(
                "batching=True allows the batch sizes that the model is warmed up with or pads to, "
                "and neither warmup nor batch_buckets has any. To do: pass batching=(1, 8, 32), or "
                "warmup=(1, 8, 32)."
            )
        return Batching(tuple(sorted(set(sizes))))
    if isinstance(batching, Mapping):
        known = [field.name for field in dataclasses.fields(Batching)]
        if unknown := sorted(str(name) for name in batching if name not in known):
            raise StructureError(
                f"batching has {unknown[0]!r}, which is no batching parameter. To do: take some "
                f"of {', '.join(known)}."
            )
        fields = dict(batching)
        if sizes and not fields.keys() & {"allowed_batch_sizes", "max_batch_size"}:
            fields["allowed_batch_sizes"] = tuple(sorted(set(sizes)))
        return Batching(**fields)
    if (allowed := parse_sizes(batching)) is not None:
        return Batching(allowed)
    raise StructureError(
        f"batching={batching!r}; expected allowed batch sizes such as (1, 8, 32), a Batching or "
        "its fields as a mapping, or True for the sizes of warmup."
    )


def check_batching(signatures: Sequence[ServedSignature], batching: Batching) -> None:
    """Whether every signature can be run in these batches.

    Serving joins the inputs of requests along dimension 0, pads the batch, and splits the outputs
    along dimension 0 (tensorflow_serving/batching/batching_session.cc).

    Raises:
        StructureError: an input or output has no batch dimension, or a size that the server may
            run does not fit a signature; the message names its constraint.
    """
    for signature in signatures:
        _check_inputs(signature)
        for size in _possible_sizes(batching):
            values = signature.sizes_at(size)
            for output in signature.outputs:
                _check_output(signature.key, output, size, values)


def _possible_sizes(batching: Batching) -> Sequence[int]:
    if batching.allowed_batch_sizes:
        return batching.allowed_batch_sizes
    # SharedBatchScheduler's own default (tensorflow/core/kernels/batching_util) is 1000.
    most = batching.max_batch_size or 1000
    return (*range(1, min(most, _MOST_TRIED)), most)


def _check_inputs(signature: ServedSignature) -> None:
    for tensor in signature.inputs:
        fixed = isinstance(tensor.leading, int)
        if tensor.is_scalar or (fixed and signature.has_free_batch):
            raise StructureError(_unbatchable(signature.key, f"its input {tensor}"))
    if not signature.has_free_batch and signature.fixed_batch is None:
        inputs = ", ".join(map(str, signature.inputs)) or "none"
        raise StructureError(_unbatchable(signature.key, f"its inputs ({inputs})"))


def _check_output(key: str, output: ServedTensor, size: int, values: Mapping[str, int]) -> None:
    if output.is_scalar:
        raise StructureError(_unbatchable(key, f"its output {output}"))
    found = None if output.leading is None else evaluate(output.leading, values)
    if found is not None and found != size:
        raise StructureError(
            _unbatchable(key, f"its output {output}, of {found} rows at batch size {size},")
        )


def _unbatchable(key: str, what: str) -> str:
    return (
        f"{key} cannot be batched: {what} has no dimension 0 that is the batch, and TensorFlow "
        "Serving joins and splits all inputs and outputs there. To do: give it one, or publish "
        "without batching."
    )
