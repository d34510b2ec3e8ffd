"""`inspect`: the report of a SavedModel, without TensorFlow and without running the file.

The modules behind it are imported by the call, so that `import bridge` stays quick.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xla_call_module.errors import refusing_damage
from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    from bridge.inspecting.report import FileReport
    from savedmodel.files.model_folder import ModelFolder

__all__ = ["inspect"]


@api_boundary
def inspect(path: str | os.PathLike[str] | ModelFolder) -> FileReport:
    """Return a report of a SavedModel: signatures, modules, variables and the oldest TensorFlow.

    The values of variables are not read. A safety check is reported as disabled where the file or
    TF_XLA_FLAGS disables it.

    Args:
        path: the folder of the SavedModel.

    Raises:
        FormatError: the file is damaged.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin), platforms=["cpu", "tpu"])(1.0)
        >>> saved = bridge.save(exported, "my_model")
        >>> bridge.inspect("my_model").signatures[0].platforms
        ('cpu', 'tpu')
    """
    from savedmodel.files.model_folder import read_one_version

    return read_one_version(path, _inspect)


def _inspect(folder: ModelFolder) -> FileReport:
    from bridge.inspecting.report import report_of, report_of_plain
    from savedmodel.decode.functions import NoModuleError
    from savedmodel.read import read
    from xla_call_module.errors import DtypeError, StructureError

    with refusing_damage(str(folder.path)):
        try:
            model = read(folder)
        except (NoModuleError, StructureError, DtypeError):
            return report_of_plain(folder)
        return report_of(model, folder)
