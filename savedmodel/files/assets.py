"""The files of a SavedModel beside its graph: assets, and files for a server.

Assets are vocabularies and the like, which operations open by name. They lie in `assets/` and are
listed in the meta graph (`AssetFileDef`), or lie in `assets.extra/` and are listed nowhere
(tensorflow/cc/saved_model/constants.h). TensorFlow Serving, and who publishes for it, have files of
fixed names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.protos.schema import Proto
from xla_call_module.errors import FormatError

_ASSETS = "assets"
_EXTRA = "assets.extra"
# tensorflow_serving/servables/tensorflow/saved_model_warmup_util.h
WARMUP_FILE = "assets.extra/tf_serving_warmup_requests"
# Read with --enable_per_model_batching_parameters, instead of the server's own file
# (tensorflow_serving/servables/tensorflow/bundle_factory_util.cc).
OWN_BATCHING_FILE = "batching_params.pbtxt"
# Of which version another one is a copy; `bridge.serving.rollback` writes it.
PUBLICATION_FILE = "assets.extra/jax_tf_bridge_publication.json"
# What the first request of each size takes; `bridge.serving.publish` writes it.
FIRST_REQUESTS_FILE = "assets.extra/jax_tf_bridge_first_requests.json"
# None of them changes what the model computes.
SERVING_FILES = frozenset({FIRST_REQUESTS_FILE, OWN_BATCHING_FILE, PUBLICATION_FILE, WARMUP_FILE})


def asset_files(folder: str | os.PathLike[str] | ModelFolder, meta_graph: Proto) -> tuple[str, ...]:
    """Return the paths of all assets below a SavedModel's folder, with slashes, sorted.

    None of them is opened. Every one is a regular file inside of the folder, so that a copy of it
    is a copy of nothing else.
    """
    return read_one_version(folder, lambda opened: _asset_files(opened, meta_graph))


def _asset_files(folder: ModelFolder, meta_graph: Proto) -> tuple[str, ...]:
    files = set(_files(folder))
    for asset in meta_graph.asset_file_def:
        name = f"{_ASSETS}/{asset.filename}"
        if asset.filename.startswith("/"):
            raise FormatError(
                f"{folder.path} has an asset with the absolute path {asset.filename!r}."
            )
        folder.find(name)
        if name not in files:
            raise FormatError(
                f"{folder.path} lists an asset {asset.filename!r}, and has no {name}."
            )
    return tuple(sorted(files))


def _files(folder: ModelFolder) -> Iterator[str]:
    for name, status in folder.walk():
        top = name.partition("/")[0]
        if top not in (_ASSETS, _EXTRA):
            continue
        path = folder.path / name
        if stat.S_ISLNK(status.st_mode):
            raise FormatError(
                f"{path} is a link. To do: copy the folder with what its links point to."
            )
        if stat.S_ISDIR(status.st_mode):
            continue
        if name == top:
            raise FormatError(f"{path} is not a folder. To do: copy the model again.")
        folder.find(name)
        yield name
