"""Warmup records: requests that TensorFlow Serving runs before a version takes any.

They are PredictionLog messages in a TFRecord, in the folder of the version
(https://www.tensorflow.org/tfx/serving/saved_model_warmup). The option `warmup=` is batch sizes,
for which inputs are made up, or example inputs; both become named arrays for each signature.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from jax import tree_util

from bridge.batching.batch_sizes import parse_sizes
from bridge.core.keys import to_physical
from bridge.core.probes import RANDOM, draw
from bridge.serving.example_features import ExampleFeature, serialize_example
from bridge.serving.messages import PredictionLog
from bridge.serving.signatures import (
    DTYPES_BY_ENUM,
    STRING,
    ServedSignature,
    ServedTensor,
    not_made_up,
    read_signatures,
)
from savedmodel.files.assets import WARMUP_FILE
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.files.records import read_records, write_records
from savedmodel.model import DEFAULT_SIGNATURE
from savedmodel.protos.schema import Proto
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import Array, dtype_from_name
from xla_call_module.errors import DtypeError, FormatError, StructureError
from xla_call_module.tracebacks import api_boundary

# tensorflow_serving/servables/tensorflow/saved_model_warmup_util.h
MAX_RECORDS = 1000
# protobuf's limit for one message, https://protobuf.dev/programming-guides/proto-limits/, less what
# names and shapes take.
_MAX_REQUEST_BYTES = 2**31 - 2**20
_SCALARS = (int, float, complex, str, bytes)
_POSITIONAL = re.compile(r"args\[(\d+)\]")

_Inputs = Mapping[str, Array]


@api_boundary
def add_warmup(path: str | os.PathLike[str], warmup: Any, *, name: str = "", seed: int = 0) -> int:
    """Write warmup requests for TensorFlow Serving into a SavedModel; return their number.

    An older file of them is replaced in one step. `publish` does the same before a version can be
    seen, so that no server ever loads it without them.

    A request runs its signature as every request does, and one that assigns variables (`updates` of
    `bridge.save`) would train the model before anybody asks for it. So these get requests only
    where `warmup` names their keys.

    Args:
        path: the folder of a SavedModel of any writer.
        warmup: batch sizes, as `(1, 8, 32)`, or True for the sizes that `batch_buckets` of
            `bridge.save`, or `batching` of `publish`, has; or example inputs: a dict of named
            inputs, the function's own arguments without the parameters, or a list of either; or a
            mapping from signature keys to these, for those signatures alone. Made-up inputs are the
            same in each run: random floating-point numbers, and zeros where numbers are whole, also
            as the features of serialized `tf.Example`s. Other strings cannot be made up.
        name: the name of the model in the requests. Serving does not look at it here.
        seed: the seed of the random numbers.

    Raises:
        StructureError: a batch size does not fit a signature or its constraints; an example does
            not fit; inputs cannot be made up; there would be more than 1,000 records, which Serving
            refuses; or all signatures assign variables, and `warmup` names none of them.
        DtypeError: an example has another dtype than the signature.
        FormatError, OSError: as `bridge.inspect`.

    Example:
        >>> import bridge.serving, jax
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float32")
        >>> saved = bridge.save(jax.export.export(jax.jit(jax.numpy.sin))(x), "my_model")
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
    """Write the warmup records of a SavedModel, and return their number."""
    requests = _requests_of(signatures, warmup, allowed=allowed, seed=seed)
    if len(requests) > MAX_RECORDS:
        raise StructureError(
            f"{len(requests)} warmup records for {len(signatures)} signature(s), and TensorFlow "
            f"Serving refuses a model with more than {MAX_RECORDS:,}. To do: ask for fewer batch "
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


def warmup_sizes(signatures: Sequence[ServedSignature], warmup: Any) -> tuple[int, ...]:
    """Return the batch sizes of the requests that `warmup=` asks for, ascending."""
    requests = _requests_of(signatures, warmup, allowed=(), seed=0)
    return tuple(sorted({request.rows for request in requests if request.rows}))


def _check_largest(requests: Sequence[WarmupRequest], most: int) -> None:
    """Check that no request is larger than a batch: it would fail, and the loading with it."""
    for request in requests:
        if request.rows > most:
            raise StructureError(
                f"A warmup request of {request.key} has {request.rows} rows, and the largest "
                f"allowed batch size is {most}: TensorFlow Serving would not load the model. To "
                "do: allow a larger batch, or warm up with smaller ones."
            )


def _record(key: str, example: _Inputs, model: str) -> bytes:
    log: Any = PredictionLog()
    request = log.predict_log.request
    request.model_spec.name = model
    request.model_spec.signature_name = key
    for name, array in example.items():
        _encode_tensor(array, request.inputs[name])
    data: bytes = log.SerializeToString(deterministic=True)
    return data


def _encode_tensor(array: Array, proto: Proto) -> None:
    for size in array.shape:
        proto.tensor_shape.dim.add(size=size)
    if array.dtype == object:
        proto.dtype = STRING
        proto.string_val.extend(array.reshape(-1).tolist())
        return
    proto.dtype = dtype_from_name(array.dtype.name, where="A warmup input").enum
    proto.tensor_content = np.ascontiguousarray(array).tobytes()


def read_warmup(folder: Path) -> Iterator[WarmupRequest]:
    """Yield the warmup records of a SavedModel of any writer."""
    file = folder / WARMUP_FILE
    for number, record in enumerate(read_records(file) if file.exists() else ()):
        log: Any = PredictionLog()
        try:
            log.ParseFromString(record)
        except DecodeError as error:
            raise FormatError(
                f"{file}, record {number} is not a PredictionLog: {error}. To do: write it again."
            ) from error
        request = log.predict_log.request
        sizes = (proto.tensor_shape.dim for proto in request.inputs.values())
        rows = max((dims[0].size for dims in sizes if dims), default=0)
        key = request.model_spec.signature_name or DEFAULT_SIGNATURE
        yield WarmupRequest(key, rows, partial(_decode_inputs, request.inputs))


def _decode_inputs(inputs: Mapping[str, Proto]) -> _Inputs:
    return {name: _decode_tensor(proto) for name, proto in inputs.items()}


def _decode_tensor(proto: Any) -> Array:
    """Return a tensor; strings, and numbers in another form than `write_warmup`'s, as objects."""
    shape = tuple(dim.size for dim in proto.tensor_shape.dim)
    dtype = DTYPES_BY_ENUM.get(proto.dtype)
    if dtype is None or len(proto.tensor_content) != math.prod(shape) * dtype.itemsize:
        return np.empty(0, object)
    return np.frombuffer(proto.tensor_content, dtype.numpy).reshape(shape)


@dataclass(frozen=True, slots=True)
class WarmupRequest:
    """One request that a model is warmed up with.

    Attributes:
        rows: the largest size of its inputs along dimension 0.
        inputs: a function that returns the inputs by name, so that not all requests are in memory
            at once.
    """

    key: str
    rows: int
    inputs: Callable[[], _Inputs]


def _requests_of(
    signatures: Sequence[ServedSignature], warmup: Any, *, allowed: Sequence[int], seed: int
) -> list[WarmupRequest]:
    """Return the requests that `warmup=` asks for."""
    by_key = _by_signature(signatures, warmup, allowed)
    requests: list[WarmupRequest] = []
    for signature in signatures:
        asked = by_key.get(signature.key)
        if isinstance(asked, tuple):
            requests += drawn_requests(signature, asked, seed)
        elif asked is not None:
            requests += (_given(signature.key, example) for example in asked)
            requests += _repeated(signature, asked, allowed)
    return requests


def _by_signature(
    signatures: Sequence[ServedSignature], warmup: Any, allowed: Sequence[int]
) -> dict[str, tuple[int, ...] | list[_Inputs]]:
    """Return for each key the batch sizes, as a tuple, or the examples, as a list."""
    named = {signature.key: signature for signature in signatures}
    if isinstance(warmup, Mapping) and warmup and warmup.keys() <= named.keys():
        by_key = {}
        for key, asked in warmup.items():
            sizes = parse_sizes(asked)
            by_key[key] = sizes if sizes is not None else _examples(named[key], asked)
        return by_key
    keys = {key: signature for key, signature in named.items() if not signature.assigns}
    if not keys:
        raise StructureError(
            f"Every signature assigns variables ({', '.join(named)}), and a warmup request would "
            "do so, too. To do: leave out warmup, or name those that may, as in "
            f"warmup={{{next(iter(named))!r}: …}}."
        )
    if warmup is True:
        return {**_known_sizes([*keys.values()], allowed)}
    if (sizes := parse_sizes(warmup)) is not None:
        return dict.fromkeys(keys, sizes)
    taken: dict[str, tuple[int, ...] | list[_Inputs]] = {}
    refused: dict[str, Exception] = {}
    for key, signature in keys.items():
        try:
            taken[key] = _examples(signature, warmup)
        except (StructureError, DtypeError) as error:
            refused[key] = error
    if not taken:
        # The default signature's own words are the most telling.
        raise refused.get(DEFAULT_SIGNATURE, next(iter(refused.values())))
    return taken


def _known_sizes(
    signatures: Sequence[ServedSignature], allowed: Sequence[int]
) -> dict[str, tuple[int, ...]]:
    """Return for each signature the sizes that the server runs, or that it pads batches to."""
    by_key = {signature.key: tuple(allowed) or signature.buckets for signature in signatures}
    if not any(by_key.values()):
        raise StructureError(
            "warmup=True warms up with the allowed batch sizes, and neither batching nor "
            "batch_buckets has any. To do: pass warmup=(1, 8, 32), or one of these."
        )
    return {key: sizes for key, sizes in by_key.items() if sizes}


def _examples(signature: ServedSignature, value: Any) -> list[_Inputs]:
    """Return one example, or each of a list of them, as named inputs."""
    if isinstance(value, list) or (isinstance(value, tuple) and _as_one(signature, value) is None):
        if not value:
            raise StructureError(
                "warmup is empty. To do: pass batch sizes such as (1, 8, 32), or example inputs; "
                "None for no warmup."
            )
        return [_example(signature, item) for item in value]
    return [_example(signature, value)]


def _example(signature: ServedSignature, value: Any) -> _Inputs:
    named = _as_one(signature, value)
    if named is None:
        names = [tensor.name for tensor in signature.inputs]
        given = sorted(value) if isinstance(value, Mapping) else type(value).__name__
        raise StructureError(
            f"warmup has an example that {signature.key} does not take: found {given}, and its "
            f"inputs are {names}. To do: pass a dict of these names, the function's own arguments "
            "without the parameters, a list of either, or batch sizes."
        )
    tensors = {tensor.name: tensor for tensor in signature.inputs}
    arrays = {
        name: _array(signature.key, tensors[name], array) for name, array in sorted(named.items())
    }
    # A request that the module refuses would keep the server from loading the model.
    signature.check_shapes({name: array.shape for name, array in arrays.items()})
    return arrays


def _as_one(signature: ServedSignature, value: Any) -> dict[str, Any] | None:
    """Return a value as named inputs; None where it is not one example."""
    names = [tensor.name for tensor in signature.inputs]
    required = {tensor.name for tensor in signature.inputs if not tensor.optional}
    if isinstance(value, Mapping) and required <= value.keys() <= set(names):
        return dict(value)
    if len(names) == 1 and (hasattr(value, "dtype") or isinstance(value, _SCALARS)):
        return {names[0]: value}
    by_path = {tensor.path: tensor.name for tensor in signature.inputs}
    by_title = {tensor.title: tensor.name for tensor in signature.inputs}
    for known, leaves in ((by_path, _leaves_at(signature, value)), (by_title, _by_name(value))):
        if leaves and leaves.keys() == known.keys():
            return {known[path]: leaf for path, leaf in leaves.items()}
    return None


def _leaves_at(signature: ServedSignature, value: Any) -> dict[str, Any]:
    """Return the leaves of all positional arguments, or of the only one, by their paths."""
    matches = (_POSITIONAL.match(tensor.path) for tensor in signature.inputs)
    numbers = {int(match[1]) for match in matches if match is not None}
    if not numbers:
        return {}
    first = min(numbers)  # those before it are the parameters
    given = value if isinstance(value, tuple) and len(value) == len(numbers) else (value,)
    leaves = tree_util.tree_leaves_with_path((*(None,) * first, *given))
    return {f"args{tree_util.keystr(path)}": leaf for path, leaf in leaves}


def _by_name(value: Any) -> dict[str, Any]:
    """Return the leaves of a mapping from argument names, by name and path."""
    if not isinstance(value, Mapping):
        return {}
    return {
        f"{name}{tree_util.keystr(path)}": leaf
        for name, argument in value.items()
        for path, leaf in tree_util.tree_leaves_with_path(argument)
    }


def _array(key: str, tensor: ServedTensor, value: Any) -> Array:
    """Return a value as the array that the signature takes."""
    if tensor.enum == STRING:
        array = _strings(key, tensor, value)
    elif (dtype := tensor.dtype) is None:
        raise DtypeError(
            f"{key}, input {tensor} has TensorFlow's dtype number {tensor.enum}, for which no "
            "example can be written. To do: leave this signature out, by warmup={key: …}."
        )
    else:
        physical = to_physical(value)
        has_dtype = hasattr(physical, "dtype")
        array = np.asarray(physical) if has_dtype else _in_dtype(key, tensor, physical)
        if array.dtype != dtype.numpy:
            raise DtypeError(
                f"The example of {key}, input {tensor} has dtype {array.dtype.name}, and the "
                f"signature takes {dtype.name}. To do: convert it to {dtype.name}."
            )
    shape = tensor.shape
    fits = shape is None or (
        len(shape) == array.ndim
        and all(n == d for n, d in zip(array.shape, shape, strict=True) if isinstance(d, int))
    )
    if not fits:
        raise StructureError(
            f"The example of {key}, input {tensor} has shape {array.shape}. To do: pass one that "
            "fits, with its batch dimension."
        )
    return array


def _in_dtype(key: str, tensor: ServedTensor, value: Any) -> Array:
    """Return Python numbers in the dtype of an input."""
    assert tensor.dtype is not None
    try:
        return np.asarray(value, tensor.dtype.numpy)
    except OverflowError as error:
        raise DtypeError(
            f"The example of {key}, input {tensor} is {value!r:.80}, which {tensor.dtype.name} "
            f"does not hold: {error}. To do: pass one that it holds."
        ) from error
    except (ValueError, TypeError) as error:
        raise StructureError(
            f"The example of {key}, input {tensor} is {value!r:.80}; expected numbers. To do: pass "
            "an array, or batch sizes, as in warmup=(1, 8)."
        ) from error


def _strings(key: str, tensor: ServedTensor, value: Any) -> Array:
    array = np.asarray(value, object)
    encoded = [item.encode() if isinstance(item, str) else item for item in array.reshape(-1)]
    if not all(isinstance(item, bytes) for item in encoded):
        raise DtypeError(
            f"The example of {key}, input {tensor} has to be strings or bytes. To do: pass those."
        )
    strings = np.empty(len(encoded), object)
    strings[:] = encoded
    return strings.reshape(array.shape)


def _given(key: str, example: _Inputs) -> WarmupRequest:
    _check_bytes(key, sum(array.nbytes for array in example.values()))
    rows = max((array.shape[0] for array in example.values() if array.ndim), default=0)
    return WarmupRequest(key, rows, lambda: example)


def _check_bytes(key: str, size: int) -> None:
    if size > _MAX_REQUEST_BYTES:
        raise StructureError(
            f"A warmup request of {key} has {size:,} bytes, and a message can have "
            f"{_MAX_REQUEST_BYTES:,}. To do: take a smaller batch."
        )


def drawn_requests(
    signature: ServedSignature, sizes: Sequence[int], seed: int
) -> Iterator[WarmupRequest]:
    """Make up inputs for each batch size: random numbers, and zeros for integers.

    An integer may be an index, a token or the length of a loop, and zero is any of them.
    """
    if not signature.has_free_batch and signature.fixed_batch is None:
        sizes = sizes[:1]  # no input has a batch dimension, so all sizes are the same request
    for size in sizes:
        shapes = list(signature.shapes_at(size).values())
        pairs = list(zip(signature.inputs, shapes, strict=True))
        made_of = [_made_of(signature.key, tensor, shape) for tensor, shape in pairs]
        _check_bytes(signature.key, sum(made.bytes for made in made_of))
        rows = max((shape[0] for shape in shapes if shape), default=0)
        seeds = (seed, size, zlib.crc32(signature.key.encode()))
        yield WarmupRequest(signature.key, rows, partial(_draw, made_of, seeds))


@dataclass(frozen=True, slots=True)
class _DrawnNumbers:
    """An input that random numbers are drawn for."""

    spec: TensorSpec
    bytes: int

    @property
    def name(self) -> str:
        return self.spec.name

    def draw(self, random: np.random.Generator) -> Array:
        kind = "zeros" if self.spec.dtype.numpy.kind in "iu" else RANDOM
        array: Array = draw(self.spec, kind, {}, random)
        return array


@dataclass(frozen=True, slots=True)
class _DrawnExamples:
    """An input of serialized `tf.Example`s, whose features are drawn."""

    name: str
    features: tuple[ExampleFeature, ...]
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        # An int64 that is zero has one byte, and a float32 four.
        row = sum(len(feature.key) + 16 + 4 * feature.count for feature in self.features)
        return math.prod(self.shape) * row

    def draw(self, random: np.random.Generator) -> Array:
        rows = np.empty(math.prod(self.shape), object)
        rows[:] = [
            serialize_example(
                {
                    feature: random.standard_normal(feature.count).tolist()
                    if feature.is_float
                    else [0] * feature.count
                    for feature in self.features
                }
            )
            for _ in rows
        ]
        return rows.reshape(self.shape)


def _made_of(
    key: str, tensor: ServedTensor, shape: tuple[int, ...]
) -> _DrawnNumbers | _DrawnExamples:
    """Return the source of made-up values for an input.

    Strings are not made up, since a function may read anything from them, such as an image.
    """
    if (dtype := tensor.dtype) is not None:
        spec = TensorSpec(shape, dtype, tensor.path, name=tensor.name, element=tensor.element)
        return _DrawnNumbers(spec, math.prod(shape) * dtype.itemsize)
    what = "strings" if tensor.enum == STRING else f"TensorFlow's dtype number {tensor.enum}"
    if tensor.features is not None:
        strings = [feature.key for feature in tensor.features if not feature.is_number]
        if not strings:
            return _DrawnExamples(tensor.name, tensor.features, shape)
        what = f"tf.Examples with strings in {', '.join(strings)}"
    raise StructureError(not_made_up(key, tensor, f"it takes {what}"))


def _draw(made_of: Sequence[_DrawnNumbers | _DrawnExamples], seeds: Sequence[int]) -> _Inputs:
    random = np.random.default_rng(seeds)
    return {made.name: made.draw(random) for made in made_of}


def _repeated(
    signature: ServedSignature, examples: Sequence[_Inputs], allowed: Sequence[int]
) -> Iterator[WarmupRequest]:
    """Repeat the rows of the first example for each allowed batch size that no example has."""
    first = examples[0]
    rows = {array.shape[:1] for array in first.values()}
    if len(rows) != 1 or not rows.isdisjoint({(), (0,)}):
        return
    ((count,),) = rows
    present = {array.shape[0] for example in examples for array in example.values() if array.ndim}
    for size in allowed:
        if size not in present:
            yield WarmupRequest(signature.key, size, partial(_repeat, first, size, count))


def _repeat(example: _Inputs, size: int, count: int) -> _Inputs:
    return {name: array[np.arange(size) % count] for name, array in example.items()}
