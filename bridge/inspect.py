"""`inspect`: the report of a SavedModel, without TensorFlow and without running the file.

The modules behind it are imported by the call, so that `import bridge` stays quick.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    from bridge.inspecting.report import FileReport
    from savedmodel.files.model_folder import ModelFolder


@api_boundary
def inspect(path: str | os.PathLike[str] | ModelFolder) -> FileReport:
    """Return a report of a file: signatures, modules, variables and the oldest TensorFlow.

    It is of a SavedModel of any writer, of a serialized `jax.export.Exported`, of StableHLO as text
    or bytecode, of an ONNX model, or of a LiteRT model. Of what is not calls of modules, such as
    the operations of TensorFlow, ONNX and LiteRT, `FileReport.graph` has the signatures and counts.

    The values of variables are not read. A safety check is reported as disabled where the file or
    TF_XLA_FLAGS disables it.

    Args:
        path: the folder of the SavedModel, or one of the other files.

    Raises:
        FormatError: the file is damaged, or none of these.
        MissingDependencyError: it is an ONNX or LiteRT model, and the package `onnx` or
            `ai-edge-litert` is not installed.

    Example:
        >>> import bridge, jax
        >>> exported = jax.export.export(jax.jit(jax.numpy.sin), platforms=["cpu", "tpu"])(1.0)
        >>> saved = bridge.save(exported, "my_model")
        >>> bridge.inspect("my_model").signatures[0].platforms
        ('cpu', 'tpu')
        >>> with open("sine.bin", "wb") as file:
        ...     written = file.write(exported.serialize(vjp_order=1))
        >>> bridge.inspect("sine.bin").signatures[0].gradient_order
        1
    """
    from bridge.formats.format_registry import format_of

    return format_of(path).inspect(path)
