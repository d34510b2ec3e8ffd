"""The files that a model server is started with: models.config and monitoring.config."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bridge.serving.base_path import open_base_path
from bridge.serving.batching import Batching
from bridge.serving.messages import (
    ModelServerConfig,
    MonitoringConfig,
    decode_text,
    encode_text,
)
from savedmodel.files.remote import is_remote
from xla_call_module.errors import StructureError

__all__ = [
    "BATCHING_FILE",
    "METRICS_PATH",
    "MODELS_FILE",
    "MONITORING_FILE",
    "ConfigFiles",
    "ModelConfig",
    "models_text",
    "monitoring_text",
    "pinned_versions",
    "write_configs",
]

BATCHING_FILE = "batching_parameters.txt"
MODELS_FILE = "models.config"
MONITORING_FILE = "monitoring.config"
# PrometheusExporter::kPrometheusPath in tensorflow_serving/util/prometheus_exporter.cc
METRICS_PATH = "/monitoring/prometheus/metrics"
_PLATFORM = "tensorflow"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model of a server.

    Attributes:
        name: by which requests call it.
        base_path: the folder above its versions, as the server sees it: absolute, or an address.
        versions: which are served: None for the newest, a number for so many of the newest, `all`,
            or a sequence of versions.
        labels: names such as `stable` or `canary` for versions, by which requests call them. A
            server takes a label for a version that it has loaded already, or any with
            `--allow_version_labels_for_unavailable_models`.
    """

    name: str
    base_path: str
    versions: int | str | Sequence[int] | None = None
    labels: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what the server would refuse.

        Raises:
            StructureError: the name is empty, the path is relative, or the versions or labels
                make no sense.
        """
        name: Any = self.name  # what a user says may be anything
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
    """The files that were written.

    Attributes:
        models: models.config.
        monitoring: monitoring.config.
        batching: batching_parameters.txt; None where requests are not batched.
    """

    models: str
    monitoring: str
    batching: str | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What `tensorflow_model_server` is started with."""
        batched = (
            ("--enable_batching=true", f"--batching_parameters_file={self.batching}")
            if self.batching
            else ()
        )
        return (
            f"--model_config_file={self.models}",
            f"--monitoring_config_file={self.monitoring}",
            *batched,
        )


def write_configs(
    folder: str | os.PathLike[str],
    models: Sequence[ModelConfig],
    *,
    batching: Batching | None = None,
    metrics_path: str | None = METRICS_PATH,
) -> ConfigFiles:
    """Write the files that a model server of several models is started with.

    `publish` writes those of one model.

    Args:
        folder: where; made where it is not there.
        models: what the server has.
        batching: how it batches requests, of all models; None if it does not.
        metrics_path: the path below the REST port at which Prometheus finds its metrics; None for
            none.

    Raises:
        StructureError: two models have the same name, or there is none; something is no model.
        OSError: a file cannot be written.

    Example:
        >>> from bridge.serving import ModelConfig, write_configs
        >>> digits = ModelConfig("digits", "/models/digits", [3, 4], {"stable": 3, "canary": 4})
        >>> write_configs("configs", [digits]).options
        ('--model_config_file=...models.config', '--monitoring_config_file=...monitoring.config')
    """
    given: Any = batching  # what a user says may be anything
    if given is not None and not isinstance(given, Batching):
        raise StructureError(
            f"batching={given!r}; expected a Batching. To do: pass such as "
            "bridge.serving.Batching((1, 8, 32))."
        )
    text = models_text(models)
    place = open_base_path(folder)
    return ConfigFiles(
        models=place.write_text(MODELS_FILE, text),
        monitoring=place.write_text(MONITORING_FILE, monitoring_text(metrics_path)),
        batching=None if batching is None else place.write_text(BATCHING_FILE, batching.to_text()),
    )


def models_text(models: Sequence[ModelConfig]) -> str:
    """The content of models.config.

    Raises:
        StructureError: two models have the same name, or there is none.
    """
    given: Any = models  # what a user says may be anything
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
    return encode_text(message)


def monitoring_text(metrics_path: str | None = METRICS_PATH) -> str:
    """The content of monitoring.config."""
    message: Any = MonitoringConfig()
    message.prometheus_config.enable = metrics_path is not None
    if metrics_path is not None:
        message.prometheus_config.path = metrics_path
    return encode_text(message)


def pinned_versions(text: str, *, where: str) -> frozenset[int]:
    """The versions that a models.config names one by one, or by labels.

    Raises:
        FormatError: it is no such file.
    """
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
