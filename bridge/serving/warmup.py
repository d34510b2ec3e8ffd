"""Warmup records: requests that TensorFlow Serving runs before a version takes any.

They are PredictionLog messages in a TFRecord, in the folder of the version
(https://www.tensorflow.org/tfx/serving/saved_model_warmup).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bridge.serving.examples import Example, WarmupRequest, requests_of
from bridge.serving.messages import PredictionLog
from bridge.serving.signatures import STRING, ServedSignature, read_signatures
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.files.records import write_records
from savedmodel.files.serving_files import WARMUP_FILE
from savedmodel.protos.schema import Proto
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import StructureError

__all__ = ["MOST_RECORDS", "add_warmup", "write_warmup"]

# tensorflow_serving/servables/tensorflow/saved_model_warmup_util.h
MOST_RECORDS = 1000


def add_warmup(path: str | os.PathLike[str], warmup: Any, *, name: str = "", seed: int = 0) -> int:
    """Give a SavedModel the requests that TensorFlow Serving warms it up with; their number.

    An older file of them is replaced in one step. `publish` does the same before a version can be
    seen, so that no server ever loads it without them.

    Args:
        path: the folder of a SavedModel of any writer.
        warmup: batch sizes, as `(1, 8, 32)`, or True for the sizes that `batch_buckets` of
            `bridge.save`, or `batching` of `publish`, has; or example inputs: a dict of named
            inputs, the function's own arguments without the parameters, or a list of either; or a
            mapping from signature keys to these. Made-up inputs are the same in each run: random
            floating-point numbers, and zeros where numbers are whole, also as the features of
            serialized `tf.Example`s. Other strings cannot be made up.
        name: of the model, as requests say it. Serving does not look at it here.
        seed: of the random numbers.

    Raises:
        StructureError: a batch size does not fit a signature or its constraints; an example does
            not fit; inputs cannot be made up; there would be more than 1,000 records, which Serving
            refuses.
        DtypeError: an example has another dtype than the signature.
        FormatError, OSError: as `bridge.inspect`.

    Example:
        >>> import bridge.serving, jax
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float32")
        >>> bridge.save(jax.export.export(jax.jit(jax.numpy.sin))(x), "my_model")
        >>> bridge.serving.add_warmup("my_model", (1, 8, 32))
        3
        >>> bridge.inspect("my_model").warmup.records
        3
    """

    def add(folder: ModelFolder) -> int:
        signatures = read_signatures(folder)
        count = write_warmup(folder.path, signatures, warmup, name=name, seed=seed)
        # Otherwise it was perhaps given to another version, which then gets its own.
        folder.check_current()
        return count

    return read_one_version(path, add)


def write_warmup(
    folder: Path,
    signatures: Sequence[ServedSignature],
    warmup: Any,
    *,
    name: str,
    seed: int,
    allowed: Sequence[int] = (),
) -> int:
    """`add_warmup`, for signatures that are known.

    Args:
        folder: the SavedModel.
        signatures: what is in it.
        warmup: as for `add_warmup`.
        name: as for `add_warmup`.
        seed: as for `add_warmup`.
        allowed: the batch sizes that the server runs, where it batches requests.
    """
    requests = requests_of(signatures, warmup, allowed=allowed, seed=seed)
    if len(requests) > MOST_RECORDS:
        raise StructureError(
            f"{len(requests)} warmup records for {len(signatures)} signature(s), and TensorFlow "
            f"Serving refuses a model with more than {MOST_RECORDS:,}. To do: ask for fewer batch "
            "sizes or examples."
        )
    if allowed:
        _check_largest(requests, max(allowed))
    file = folder / WARMUP_FILE
    file.parent.mkdir(exist_ok=True)
    new = file.with_name(f".{file.name}.new")
    try:
        count = write_records(new, (_record(r.key, r.inputs(), name) for r in requests))
        new.replace(file)
    finally:
        new.unlink(missing_ok=True)
    return count


def _check_largest(requests: Sequence[WarmupRequest], most: int) -> None:
    """A request that is larger than a batch fails, and with it the loading of the model."""
    for request in requests:
        if request.rows > most:
            raise StructureError(
                f"A warmup request of {request.key} has {request.rows} rows, and the largest "
                f"allowed batch size is {most}: TensorFlow Serving would not load the model. To "
                "do: allow a larger batch, or warm up with smaller ones."
            )


def _record(key: str, example: Example, model: str) -> bytes:
    log: Any = PredictionLog()
    request = log.predict_log.request
    request.model_spec.name = model
    request.model_spec.signature_name = key
    for name, array in example.items():
        _encode_tensor(array, request.inputs[name])
    data: bytes = log.SerializeToString(deterministic=True)
    return data


def _encode_tensor(array: np.ndarray[Any, Any], proto: Proto) -> None:
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if array.dtype == object:
        proto.dtype = STRING
        proto.string_val.extend(array.reshape(-1).tolist())
        return
    proto.dtype = dtype_from_name(array.dtype.name, where="A warmup input").enum
    proto.tensor_content = np.ascontiguousarray(array).tobytes()
