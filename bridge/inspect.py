"""`inspect`: what is in a SavedModel, without TensorFlow and without running it.

What reading needs is imported when it is needed, so that `import bridge` stays quick.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xla_call_module.errors import refusing_damage

if TYPE_CHECKING:
    from bridge.inspecting.report import FileReport
    from savedmodel.files.model_folder import ModelFolder

__all__ = ["inspect"]


def inspect(path: str | os.PathLike[str] | ModelFolder) -> FileReport:
    """What is in a SavedModel.

    Variables are not read. The safety checks are those that apply to this process: the file's and
    those of TF_XLA_FLAGS together.

    Args:
        path: its folder.

    Raises:
        FormatError: it is damaged, or its signatures are not calls of StableHLO modules.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin), platforms=["cpu", "tpu"])(1.0)
        >>> bridge.save(exported, "my_model")
        >>> bridge.inspect("my_model").signatures[0].platforms
        ('cpu', 'tpu')
    """
    from savedmodel.files.model_folder import read_one_version

    return read_one_version(path, _inspect)


def _inspect(folder: ModelFolder) -> FileReport:
    from bridge.inspecting.report import report_of
    from savedmodel.read import read

    with refusing_damage(str(folder.path)):
        return report_of(read(folder), folder)
