"""The files that a model server is started with.

batching_parameters.txt says how requests become batches, models.config which models and versions
are served, and monitoring.config where the metrics are.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bridge.batching.batch_sizes import parse_sizes
from bridge.serving.base_path import open_base_path
from bridge.serving.messages import (
    BatchingParameters,
    ModelServerConfig,
    MonitoringConfig,
    decode_text,
    encode_text,
)
from bridge.serving.server_commands import compilation_flags, servers_comment
from bridge.serving.signatures import ServedSignature, ServedTensor
from savedmodel.files.remote import is_remote
from xla_call_module.dimensions import evaluate
from xla_call_module.errors import StructureError
from xla_call_module.platforms import parse_platforms
from xla_call_module.tracebacks import api_boundary, warn

BATCHING_FILE = "batching_parameters.txt"
MODELS_FILE = "models.config"
MONITORING_FILE = "monitoring.config"
# PrometheusExporter::kPrometheusPath in tensorflow_serving/util/prometheus_exporter.cc
_METRICS_PATH = "/monitoring/prometheus/metrics"
_PLATFORM = "tensorflow"
# Without allowed sizes a batch may have any size; so many of them are tried.
_MAX_SIZES_TRIED = 4096
_MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Batching:
    """The batching parameters of TensorFlow Serving; None leaves a parameter to the server.

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
        allowed_batch_sizes: the sizes that a batch is padded to, ascending; empty for no padding.
        max_batch_size: the size of a full batch, by default the last allowed size.
        batch_timeout_micros: how long a batch waits for more requests, in microseconds.
        max_enqueued_batches: how many batches may wait before requests are refused.
        num_batch_threads: how many batches run at the same time.
        thread_pool_name: the name of the threads in the server's metrics.
        pad_variable_length_inputs: whether the other dimensions are padded to those of the largest
            request in a batch, with the first element of what is padded.
    """

    allowed_batch_sizes: tuple[int, ...] = ()
    max_batch_size: int | None = None
    batch_timeout_micros: int | None = None
    max_enqueued_batches: int | None = None
    num_batch_threads: int | None = None
    thread_pool_name: str | None = None
    pad_variable_length_inputs: bool = False

    def __post_init__(self) -> None:
        """Check the values as the server does."""
        allowed = parse_sizes(self.allowed_batch_sizes) if self.allowed_batch_sizes else ()
        if allowed is None or list(allowed) != sorted(set(self.allowed_batch_sizes)):
            raise StructureError(
                f"allowed_batch_sizes={self.allowed_batch_sizes!r}: expected whole numbers that "
                "increase, such as (1, 8, 32)."
            )
        object.__setattr__(self, "allowed_batch_sizes", allowed)
        if allowed and self.max_batch_size is None:
            object.__setattr__(self, "max_batch_size", allowed[-1])
        for name, least in _MINIMA.items():
            object.__setattr__(self, name, _parse_number(name, getattr(self, name), least))
        pool: Any = self.thread_pool_name  # users may pass anything
        if not isinstance(pool, str | None):
            raise StructureError(f"thread_pool_name={pool!r}; expected some text.")
        if allowed and self.max_batch_size != allowed[-1]:
            raise StructureError(
                f"max_batch_size={self.max_batch_size}, and the last of allowed_batch_sizes is "
                f"{allowed[-1]}; TensorFlow Serving takes them only if they are equal. To do: "
                "leave max_batch_size out."
            )

    def to_text(self) -> str:
        """Return the content of batching_parameters.txt."""
        message: Any = BatchingParameters()
        for name in (*_MINIMA, "thread_pool_name"):
            if (value := getattr(self, name)) is not None:
                getattr(message, name).value = value
        message.allowed_batch_sizes.extend(self.allowed_batch_sizes)
        message.pad_variable_length_inputs = self.pad_variable_length_inputs
        return encode_text(message)


_MINIMA = {
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
        if least <= number <= _MAX_INT:
            return number
    raise StructureError(f"{name}={value!r}; expected a whole number from {least} to {_MAX_INT:,}.")


def parse_batching(batching: Any, *, sizes: Sequence[int]) -> Batching | None:
    """Return the value of the option `batching=`."""
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
                f"batching has {unknown[0]!r}, which is not a batching parameter. To do: take some "
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
    """Check that every signature can be run in these batches.

    Serving joins the inputs of requests along dimension 0, pads the batch, and splits the outputs
    along dimension 0 (tensorflow_serving/batching/batching_session.cc).
    """
    for signature in signatures:
        if signature.assigns:
            raise StructureError(
                f"{signature.key} assigns variables and cannot be batched: TensorFlow Serving "
                "batches the requests of every signature, so that one step would take several "
                "clients' requests and the rows that pad them. To do: publish without batching, or "
                "publish the signatures that only read as another model."
            )
        _check_inputs(signature)
        _warn_of_other_sizes(signature, batching)
        for size in _possible_sizes(batching):
            values = signature.sizes_at(size)
            for output in signature.outputs:
                _check_output(signature.key, output, size, values)


def _possible_sizes(batching: Batching) -> Sequence[int]:
    if batching.allowed_batch_sizes:
        return batching.allowed_batch_sizes
    # SharedBatchScheduler's own default (tensorflow/core/kernels/batching_util) is 1000.
    most = batching.max_batch_size or 1000
    return (*range(1, min(most, _MAX_SIZES_TRIED)), most)


def _check_inputs(signature: ServedSignature) -> None:
    for tensor in signature.inputs:
        fixed = isinstance(tensor.leading, int)
        if tensor.is_scalar or (fixed and signature.has_free_batch):
            raise StructureError(_unbatchable(signature.key, f"its input {tensor}"))
    if not signature.has_free_batch and signature.fixed_batch is None:
        inputs = ", ".join(map(str, signature.inputs)) or "none"
        raise StructureError(_unbatchable(signature.key, f"its inputs ({inputs})"))


def _warn_of_other_sizes(signature: ServedSignature, batching: Batching) -> None:
    """Warn of inputs that may have other sizes in each request, such as images.

    What Serving does is in tensorflow_serving/batching: batching_session.cc refuses a batch of
    several, and `AddPadding` of batching_util.h pads them.
    """
    for tensor in signature.inputs:
        open_sizes = [dim for dim in (tensor.shape or ())[1:] if not isinstance(dim, int)]
        if not open_sizes or _follow_from_batch(signature, tensor, batching):
            continue
        what = f"{signature.key}, input {tensor} may have other sizes in each request. "
        if batching.pad_variable_length_inputs:
            warn(
                f"{what}TensorFlow Serving pads all of a batch to the largest, with the first "
                "element of each, such as a pixel, and the model sees them padded. To do: bring "
                "them to one size before the call, by preprocess= or in the client."
            )
        else:
            warn(
                f"{what}TensorFlow Serving fails all requests of a batch with several sizes ('have "
                "different shapes and padding is turned off'). To do: bring them to one size "
                "before the call, by preprocess= or in the client; or publish without batching."
            )


def _follow_from_batch(
    signature: ServedSignature, tensor: ServedTensor, batching: Batching
) -> bool:
    """Return whether the size of a batch says all sizes of an input."""
    values = signature.sizes_at(_possible_sizes(batching)[-1])
    sizes = (None if dim is None else evaluate(dim, values) for dim in (tensor.shape or ())[1:])
    return all(size is not None for size in sizes)


def _check_output(key: str, output: ServedTensor, size: int, values: Mapping[str, int]) -> None:
    if output.is_scalar:
        raise StructureError(_unbatchable(key, f"its output {output}"))
    rows = None if output.leading is None else evaluate(output.leading, values)
    if rows is not None and rows != size:
        raise StructureError(
            _unbatchable(key, f"its output {output}, of {rows} rows at batch size {size},")
        )


def _unbatchable(key: str, what: str) -> str:
    return (
        f"{key} cannot be batched: {what} has no dimension 0 that is the batch, and TensorFlow "
        "Serving joins and splits all inputs and outputs there. To do: give it one, or publish "
        "without batching."
    )


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model of a server.

    Attributes:
        name: the name that requests use.
        base_path: the folder above its versions, as the server sees it: absolute, or an address.
        versions: the versions that are served: None for the newest, a number for so many of the
            newest, `all`, or a sequence of versions.
        labels: names such as `stable` or `canary` for versions, which requests may use. A server
            takes a label for a version that it has loaded already, or any with
            `--allow_version_labels_for_unavailable_models`.
    """

    name: str
    base_path: str
    versions: int | str | Sequence[int] | None = None
    labels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the values as the server does."""
        name: Any = self.name  # users may pass anything
        if not isinstance(name, str) or not name:
            raise StructureError(f"A model has the name {name!r}; expected some text.")
        object.__setattr__(self, "base_path", os.fspath(self.base_path))
        if not (is_remote(self.base_path) or os.path.isabs(self.base_path)):
            raise StructureError(
                f"The model {name} has the base_path {self.base_path!r}, and TensorFlow Serving "
                "takes absolute paths and addresses. To do: pass it as the server sees it, such "
                "as /models/NAME in a container."
            )
        versions: Any = self.versions
        if not (versions in (None, "all") or _is_number(versions) or _are_numbers(versions)):
            raise StructureError(
                f"The model {name} has versions={versions!r}; expected None for the newest, a "
                "number for so many of the newest, 'all', or a sequence of versions."
            )
        labels: Mapping[Any, Any] = self.labels
        for label, version in labels.items():
            served = not _are_numbers(versions) or version in versions
            if not isinstance(label, str) or not label or not _is_number(version) or not served:
                raise StructureError(
                    f"The model {name} has the label {label!r} for the version {version!r}; "
                    f"expected text, and one of the versions that are served ({versions!r})."
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _are_numbers(value: Any) -> bool:
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    return listed and all(map(_is_number, value))


@dataclass(frozen=True, slots=True)
class ConfigFiles:
    """The files that a model server is started with.

    Attributes:
        models: the path of models.config.
        monitoring: the path of monitoring.config.
        batching: the path of batching_parameters.txt; None where requests are not batched.
        platforms: the platforms of the servers; none where no model calls a StableHLO module.
    """

    models: str
    monitoring: str
    batching: str | None = None
    platforms: tuple[str, ...] = ("cpu",)

    @property
    def options(self) -> tuple[str, ...]:
        """The options of `tensorflow_model_server` that name these files, and enable XLA."""
        batched = (
            ("--enable_batching=true", f"--batching_parameters_file={self.batching}")
            if self.batching
            else ()
        )
        return (
            f"--model_config_file={self.models}",
            f"--monitoring_config_file={self.monitoring}",
            *batched,
            *compilation_flags(self.platforms),
        )


@api_boundary
def write_configs(
    folder: str | os.PathLike[str],
    models: Sequence[ModelConfig],
    *,
    batching: Batching | None = None,
    platforms: Sequence[str] = ("cpu",),
) -> ConfigFiles:
    """Write the files that a model server of several models is started with.

    `publish` writes those of one model.

    Args:
        folder: the folder for the files, which is made if it does not exist.
        models: the models of the server.
        batching: how the requests of all models are batched; None if they are not.
        platforms: `cpu`, `cuda` or both, for which the server has to compile StableHLO modules;
            none where no model calls one.

    Raises:
        StructureError: there is no model, two have the same name, or one is no `ModelConfig`.
        OSError: a file cannot be written.

    Example:
        >>> from bridge.serving import ModelConfig, write_configs
        >>> digits = ModelConfig("digits", "/models/digits", [3, 4], {"stable": 3, "canary": 4})
        >>> for option in write_configs("configs", [digits]).options:
        ...     print(option)
        --model_config_file=...models.config
        --monitoring_config_file=...monitoring.config
        --xla_cpu_compilation_enabled=true
    """
    given: Any = batching  # users may pass anything
    if given is not None and not isinstance(given, Batching):
        raise StructureError(
            f"batching={given!r}; expected a Batching. To do: pass such as "
            "bridge.serving.Batching((1, 8, 32))."
        )
    servers = parse_platforms(platforms) if platforms else ()
    text = models_text(models, servers)
    place = open_base_path(folder)
    return ConfigFiles(
        models=place.write_text(MODELS_FILE, text),
        monitoring=place.write_text(MONITORING_FILE, monitoring_text()),
        batching=None if batching is None else place.write_text(BATCHING_FILE, batching.to_text()),
        platforms=servers,
    )


def models_text(models: Sequence[ModelConfig], platforms: Sequence[str]) -> str:
    """Return the content of models.config, which says how servers for it are started."""
    given: Any = models  # users may pass anything
    if not isinstance(given, Sequence) or not all(isinstance(m, ModelConfig) for m in given):
        raise StructureError(
            f"The models are {given!r}; expected a sequence of ModelConfigs. To do: pass such as "
            "[bridge.serving.ModelConfig('digits', '/models/digits')]."
        )
    names = [model.name for model in models]
    if not names or len(set(names)) < len(names):
        raise StructureError(
            f"The models are {names}; expected at least one, each with a name of its own."
        )
    message: Any = ModelServerConfig()
    for model in models:
        config = message.model_config_list.config.add(
            name=model.name, base_path=model.base_path, model_platform=_PLATFORM
        )
        policy, versions = config.model_version_policy, model.versions
        if versions == "all":
            policy.all.SetInParent()
        elif isinstance(versions, Sequence):
            policy.specific.versions.extend(versions)
        else:
            policy.latest.num_versions = versions or 1
        config.version_labels.update(model.labels)
    return servers_comment(platforms) + encode_text(message)


def monitoring_text() -> str:
    """Return the content of monitoring.config."""
    message: Any = MonitoringConfig()
    message.prometheus_config.enable = True
    message.prometheus_config.path = _METRICS_PATH
    return encode_text(message)


def pinned_versions(text: str, *, where: str) -> frozenset[int]:
    """Return the versions that a models.config names one by one, or by labels."""
    message: Any = decode_text(text, ModelServerConfig, where=where)
    configs = message.model_config_list.config
    return frozenset(
        version
        for config in configs
        for versions in (
            config.model_version_policy.specific.versions,
            config.version_labels.values(),
        )
        for version in versions
    )
