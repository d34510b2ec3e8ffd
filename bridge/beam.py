"""Apache Beam: `RunInference` with a SavedModel, without TensorFlow.

Beam's runners distribute a pipeline over machines; each worker process loads the file once and
calls it for many elements at a time.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bridge.batching.batch_sizes import parse_buckets
from bridge.batching.batches import BatchedSignature
from bridge.load import load
from bridge.serving.base_path import parse_version
from savedmodel.files.folder import PROTO_FILE
from savedmodel.files.remote import is_remote
from xla_call_module.errors import FormatError, MissingDependencyError, StructureError
from xla_call_module.tracebacks import api_boundary

try:
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems
    from apache_beam.ml.inference import base
except ImportError as error:
    raise MissingDependencyError.of("bridge.beam", "Apache Beam", extra="beam") from error

__all__ = ["ModelHandler"]


def __dir__() -> list[str]:
    return __all__


class ModelHandler(base.ModelHandler[Any, base.PredictionResult, "BatchedModel"]):
    """The model handler of Apache Beam's `RunInference` for a SavedModel that `bridge.load` reads.

    An element of the pipeline is the argument of the exported function without its batch dimension,
    as an array or a pytree; a tuple of the arguments if it takes several; or a dict of the inputs
    by their names in the signature. The result is Beam's `PredictionResult`: the element, the
    result as a pytree of numpy arrays, and the folder of the model.

    Each element of a batch must be independent of the others, since batches are padded. That is
    tried with random inputs before the first batch: a function whose rows depend on others, on
    their number or their place is refused, except with `batch_buckets=(1,)`, and a warning says
    where it cannot be tried. Inputs that are the same for all elements, without a batch dimension,
    are `RunInference(..., inference_args={"temperature": 0.5})`, by their names in the signature.

    As with Beam's own handlers, elements with keys need `KeyedModelHandler(ModelHandler(...))`, and
    a running pipeline changes its model with `model_metadata_pcoll` or `watch_model_pattern` of
    `RunInference`, such as `models/*/saved_model.pb`. The handler contains no model and can be
    pickled.

    Example:
        >>> import apache_beam as beam, bridge, jax, numpy as np
        >>> from apache_beam.ml.inference.base import RunInference
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 2"), "float32")
        >>> saved = bridge.save(jax.export.export(jax.jit(lambda x: x.sum(axis=1)))(x), "my_model")
        >>> handler = bridge.beam.ModelHandler("my_model")
        >>> elements = [np.array([1, 2], "float32"), np.array([3, 4], "float32")]
        >>> for result in handler.run_inference(elements, handler.load_model()):
        ...     print(float(result.inference), result.model_id)
        3.0 my_model
        7.0 my_model
        >>> run = beam.Create(elements) | RunInference(handler)
    """

    @api_boundary
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        signature: str | None = None,
        batch_buckets: Sequence[int] | None = None,
        min_batch_size: int | None = None,
        max_batch_size: int | None = None,
        max_batch_duration_secs: float | None = None,
        element_size_fn: Callable[[Any], int] | None = None,
        batch_length_fn: Callable[[Any], int] | None = None,
        batch_bucket_boundaries: Sequence[int] | None = None,
        large_model: bool = False,
        model_copies: int | None = None,
        env_vars: Mapping[str, str] | None = None,
    ) -> None:
        """Take the options; nothing is read yet."""
        super().__init__()
        if model_copies is not None and model_copies < 1:
            raise StructureError(f"model_copies is {model_copies}; expected 1 or more.")
        self._path = os.fspath(path)
        self._signature = signature
        self._buckets = None if batch_buckets is None else parse_buckets(batch_buckets)
        if self._buckets is not None and max_batch_size is None:
            max_batch_size = self._buckets[-1]
        self._env_vars = dict(env_vars or {})
        self._copies = model_copies
        self._is_shared = large_model or model_copies is not None
        self._largest = max_batch_size if element_size_fn is None else None
        if batch_bucket_boundaries is not None:
            batch_bucket_boundaries = list(batch_bucket_boundaries)
        options = {
            "min_batch_size": min_batch_size,
            "max_batch_size": max_batch_size,
            "max_batch_duration_secs": max_batch_duration_secs,
            "element_size_fn": element_size_fn,
            "length_fn": batch_length_fn,
            "bucket_boundaries": batch_bucket_boundaries,
        }
        self._batching = {name: value for name, value in options.items() if value is not None}

    @api_boundary
    def load_model(self) -> BatchedModel:
        """Return the model, read from its folder.

        Raises:
            FormatError: there is none, or it is damaged.
            StructureError: it has no such signature.
        """
        folder = _find_model(self._path)
        return BatchedModel(folder, self._signature, self._buckets, self._largest)

    @api_boundary
    def run_inference(
        self,
        batch: Sequence[Any],
        model: BatchedModel,
        inference_args: Mapping[str, Any] | None = None,
    ) -> Iterable[Any]:
        """Return a `PredictionResult` for each element.

        Args:
            batch: the elements.
            model: the model that `load_model` returned.
            inference_args: the inputs that all elements share.

        Raises:
            StructureError, DtypeError: they are not what the function takes.
        """
        folder, inferences = model.run(batch, inference_args)
        return [
            base.PredictionResult(element, inference, folder)
            for element, inference in zip(batch, inferences, strict=True)
        ]

    def get_num_bytes(self, batch: Sequence[Any]) -> int:
        """Return the number of bytes of the arrays in a batch."""
        import jax
        import numpy as np

        return sum(int(np.asarray(leaf).nbytes) for leaf in jax.tree.leaves(list(batch)))

    def get_metrics_namespace(self) -> str:
        """Return the namespace of the metrics that `RunInference` collects."""
        return "BeamML_JAX"

    def batch_elements_kwargs(self) -> Mapping[str, Any]:
        """Return the options of `apache_beam.BatchElements`."""
        return self._batching

    @api_boundary
    def validate_inference_args(self, inference_args: Any) -> None:
        """Refuse inference_args that are no inputs by name.

        Raises:
            StructureError: they are none.
        """
        if inference_args is None:
            return
        if not isinstance(inference_args, Mapping) or not all(
            isinstance(name, str) for name in inference_args
        ):
            raise StructureError(
                f"inference_args is {inference_args!r}; expected a dict of inputs of the signature "
                "by name, which all elements share."
            )

    def update_model_path(self, model_path: str | None = None) -> None:
        """Take another model from the next `load_model` on; None or nothing changes nothing."""
        if model_path:
            self._path = model_path

    def share_model_across_processes(self) -> bool:
        """Return whether the processes of a machine share what is loaded."""
        return self._is_shared

    def model_copies(self) -> int:
        """Return the number of models that the processes of a machine share."""
        return self._copies or 1


class BatchedModel:
    """A loaded signature of a model, and where it came from.

    Beam lets other processes call the methods of this object, so that only elements and results
    cross between processes.
    """

    def __init__(
        self,
        folder: str,
        signature: str | None,
        buckets: Sequence[int] | None,
        largest: int | None,
    ) -> None:
        """Read the model; see `ModelHandler`."""
        self._folder = folder
        # It is kept, since the values of variables are read from its files.
        self._local = _Copy(folder) if is_remote(folder) else None
        model = load(self._local.folder if self._local else folder)
        if signature is not None and signature not in model.signatures:
            raise StructureError(
                f"{folder} has no signature {signature!r}; it has {', '.join(model.signatures)}. "
                "To do: name one of these."
            )
        chosen = model.default if signature is None else model.signatures[signature]
        self._call = BatchedSignature(chosen, buckets=buckets, largest=largest)

    def run(
        self, batch: Sequence[Any], inference_args: Mapping[str, Any] | None = None
    ) -> tuple[str, list[Any]]:
        """Return the folder of the model, and the result for each element."""
        return self._folder, self._call(batch, inference_args)


class _Copy:
    """A folder of one of Beam's file systems, on this machine for as long as the object lives."""

    def __init__(self, address: str) -> None:
        temporary = tempfile.mkdtemp(prefix="jax-tf-bridge-")
        weakref.finalize(self, shutil.rmtree, temporary)
        self.folder = Path(temporary) / "model"
        before = _remote_identity(address)
        for path, _, _ in before:
            target = self.folder / path.removeprefix(f"{address}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            plain = CompressionTypes.UNCOMPRESSED
            with (
                FileSystems.open(path, compression_type=plain) as source,
                target.open("wb") as destination,
            ):
                shutil.copyfileobj(source, destination)
        if _remote_identity(address) != before:
            raise FormatError(
                f"{address} was changed while it was copied. To do: try again once whoever writes "
                "it has finished, or name a version that stays."
            )


def _remote_identity(address: str) -> list[tuple[str, int, float]]:
    """Return the files below an address, each with its size and the time of its last write."""
    (matched,) = FileSystems.match([f"{address}/**"])
    return sorted(
        (file.path, file.size_in_bytes, file.last_updated_in_seconds)
        for file in matched.metadata_list
    )


def _find_model(path: str) -> str:
    """Return the folder of a SavedModel: of its file, or the newest in a folder of versions."""
    folder = path.rstrip("/") or path
    if folder.endswith(f"/{PROTO_FILE}") or folder == PROTO_FILE:
        return os.path.dirname(folder) or "."
    files = _remote_files(folder) if is_remote(folder) else _local_files(folder)
    if f"{folder}/{PROTO_FILE}" in files:
        return folder
    versions = {
        version: os.path.dirname(file)
        for file in files
        if (version := parse_version(os.path.basename(os.path.dirname(file)))) is not None
    }
    if not versions:
        raise FormatError(
            f"{path} has no {PROTO_FILE}, and no numbered folders with one. To do: pass the folder "
            "of a SavedModel, or the folder with its versions."
        )
    return versions[max(versions)]


def _local_files(folder: str) -> set[str]:
    files = (*Path(folder).glob(PROTO_FILE), *Path(folder).glob(f"*/{PROTO_FILE}"))
    return {os.path.join(folder, file.relative_to(folder)) for file in files}


def _remote_files(folder: str) -> set[str]:
    matched = FileSystems.match([f"{folder}/{PROTO_FILE}", f"{folder}/*/{PROTO_FILE}"])
    return {file.path for result in matched for file in result.metadata_list}
