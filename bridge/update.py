"""`update`: new values for the variables of a SavedModel, whose program stays as it is."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.core.progress import progress_bar
from bridge.exporting.parameter_files import open_parameters
from bridge.inspecting.wording import counted, printable
from bridge.inspecting.written_file import WrittenFile, facts_of
from bridge.saving.new_values import new_tensors, stored_variables
from bridge.saving.processes import JaxProcesses, is_multi_process
from savedmodel.decode.objects import open_checkpoint
from savedmodel.files.folder import VARIABLES, locked
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.files.remote import is_remote
from savedmodel.manifest import hash_file, read_manifest
from savedmodel.rewrite import rewrite_variables
from xla_call_module.errors import StructureError
from xla_call_module.tracebacks import api_boundary

_MAX_NAMES = 10


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UpdatedFile(WrittenFile):
    """A SavedModel that was written again with new values of variables.

    Attributes:
        updated: the names of the variables that have new values, sorted.
        kept: the names of the other ones, sorted; without constants of the computation.
    """

    updated: tuple[str, ...]
    kept: tuple[str, ...]

    def __str__(self) -> str:
        """Return a line of facts, one of what has changed, and one for each signature."""
        changes = changes_text(self.updated, self.kept)
        return "\n".join([self._title(), changes, *self._signature_lines()])


def changes_text(updated: Sequence[str], kept: Sequence[str]) -> str:
    """Return in a line how many variables have new values, and which do not."""
    total = len(updated) + len(kept)
    changed = f"new values for {len(updated)} of {counted(total, 'variable')}"
    names = ", ".join(kept[:_MAX_NAMES]) + ", …" * (len(kept) > _MAX_NAMES)
    return printable(f"{changed}; as they were: {names}" if kept else changed)


@api_boundary
def update(
    path: str | os.PathLike[str],
    params: Any,
    *,
    to: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
) -> UpdatedFile:
    """Write a SavedModel with new values of its variables and the same program.

    Nothing is exported. saved_model.pb is the old one byte for byte, so that what was compiled for
    it stays right; warmup requests, assets and the configuration come along, a manifest is written
    anew. What does not change is linked where the file system can, new values are streamed, and
    the folder appears whole or not at all. Neither TensorFlow nor the classes of the file's pytrees
    are needed.

    Args:
        path: the folder of a SavedModel of any writer.
        params: the new values: a pytree as `bridge.save` takes it for `params`, or a module of
            nnx, Keras or Equinox, which holds them; or the path of a .npz or .safetensors file or
            of a checkpoint folder of orbax, whose arrays are read one at a time. Each leaf is for
            the variable at its pytree path; in a file of another writer for that of its name, of
            its path in the object graph, such as `params/w`, or of its key in the checkpoint.
            Shapes and dtypes are those of the variables. Variables for which there is no leaf keep
            their values; the result names them.
        to: the new folder, or an address as for `bridge.save`; by default the new one takes the
            place of the old one, in one step. If another writer has replaced that meanwhile, the
            values are put into the new one.
        overwrite: whether a SavedModel at `to` is replaced.

    Returns:
        What was written: its path, signatures and size, and the names of the variables that have
        new values, and of those that do not.

    Raises:
        StructureError: a leaf is for no variable or not of its shape, the message has both; `to`
            exists; the file has no variables; the processes of a sharded update do not agree.
        DtypeError: a leaf is not of the dtype of its variable.
        FormatError: the file is damaged, not what its manifest says, or no SavedModel.
        MissingDependencyError: what is needed to read the file of parameters is not installed.
        OSError: a file cannot be read or written; an older folder is untouched.

    Example:
        >>> import bridge, jax, jax.numpy as jnp
        >>> params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
        >>> def predict(params, x):
        ...     return x @ params["w"] + params["b"]
        >>> saved = bridge.save(predict, "my_model", params=params, args="f32[batch,3]")
        >>> print(bridge.update("my_model", {"b": jnp.ones(2)}, to="next"))
        next: ... bytes, readable from TensorFlow 2.14 on
        new values for 1 of 2 variables; as they were: w
        serving_default(x: float32[batch,3]) -> output_0: float32[batch,2], for cpu, cuda, tpu
        >>> bridge.load("next")(jnp.ones((1, 3)))
        Array([[4., 4.]], dtype=float32)
    """
    if to is None or (not is_remote(to) and os.path.realpath(to) == os.path.realpath(path)):
        if to is not None and not overwrite:
            raise StructureError(
                f"{os.fspath(to)} is the file that is updated. To do: leave out to=, pass "
                "overwrite=True, or take another path."
            )
        # Processes that write together wait for one another, and would for their turns.
        waits = os.path.isdir(path) and not is_multi_process(params)
        with locked(Path(path)) if waits else contextlib.nullcontext():
            written = write_updated(path, None, params)
    else:
        written = write_updated(path, to, params, overwrite=overwrite)
    return written


def write_updated(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None,
    params: Any,
    *,
    overwrite: bool = False,
    linked: bool = True,
    where: str | None = None,
) -> UpdatedFile:
    """Write a SavedModel again with new values; see `update`."""
    is_file = isinstance(params, str | os.PathLike)

    def write(folder: ModelFolder) -> UpdatedFile:
        facts = facts_of(folder)
        has_any = folder.find(f"{VARIABLES}.index", links=True) is not None
        index = open_checkpoint(folder) if has_any else None
        variables = () if index is None else stored_variables(folder, index)
        tensors = new_tensors(
            values,
            variables,
            where=where or os.fspath(source),
            is_split=is_file and os.path.isfile(params),
        )
        assert index is not None
        updated = tuple(sorted(tensors))
        with progress_bar("Updating") as progress:
            size = rewrite_variables(
                folder,
                target,
                index,
                [*tensors.values()],
                overwrite=overwrite,
                linked=linked,
                request=_request(folder, params if is_file else None, updated),
                progress=progress,
                group=JaxProcesses("bridge.update") if is_shared else None,
            )
        kept = sorted(v.name for v in variables if v.name not in tensors and not v.constant)
        path = os.fspath(source if target is None else target)
        return UpdatedFile(path=path, updated=updated, kept=tuple(kept), **{**facts, "bytes": size})

    # A link stays one; what it leads to is replaced.
    place = os.path.realpath(source) if target is None and not is_remote(source) else source
    with open_parameters(params) if is_file else contextlib.nullcontext(params) as values:
        is_shared = is_multi_process(values)
        # Processes that begin anew would have to agree on that.
        return read_one_version(place, write, **({"attempts": 1} if is_shared else {}))


def _request(
    folder: ModelFolder, origin: str | os.PathLike[str] | None, updated: Sequence[str]
) -> dict[str, Any]:
    """Return what a manifest says of an update, without paths."""
    if read_manifest(folder) is None:
        return {}
    request: dict[str, Any] = {"updated": [*updated]}
    if origin is not None:
        request["params"] = os.path.basename(os.path.normpath(origin))
        if os.path.isfile(origin):
            with open(origin, "rb") as file:
                request["params_sha256"] = hash_file(file).sha256
    return {"update": request}
