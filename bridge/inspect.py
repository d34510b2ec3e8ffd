"""`inspect`: the report of a SavedModel, without TensorFlow and without running the file.

The modules behind it are imported by the call, so that `import bridge` stays quick.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from xla_call_module.errors import refusing_damage
from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    from bridge.inspecting.report import FileReport
    from savedmodel.files.model_folder import ModelFolder

__all__ = ["inspect"]


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
    from savedmodel.files.folder import PROTO_FILE
    from savedmodel.files.model_folder import read_one_version

    if isinstance(path, str | os.PathLike):
        file = Path(path)
        # What has no content is none of the files, and is refused as no folder.
        if file.is_file() and file.name != PROTO_FILE and file.stat().st_size:
            return _inspect_file(file)
    return read_one_version(path, _inspect)


def _inspect_file(path: Path) -> FileReport:
    if path.suffix == ".onnx":
        from bridge.onnx.onnx_report import report_of_onnx

        return report_of_onnx(path)
    if path.suffix == ".tflite":
        from bridge.litert.litert_report import report_of_litert

        return report_of_litert(path)
    from bridge.exporting.exported_file import call_of_exported
    from bridge.exporting.source import open_model
    from bridge.inspecting.call_report import report_of_calls
    from xla_call_module.call import CallModule

    exported = open_model(path, stand_ins=True)
    if isinstance(exported, CallModule):
        # A module does not say for which platforms it was lowered.
        return report_of_calls(path, [exported], writer="StableHLO", any_platform=True)
    calls = [call_of_exported(exported, carried=True)]
    while exported.has_vjp():
        exported = exported.vjp()
        calls.append(call_of_exported(exported, carried=True))
    return report_of_calls(path, calls, writer="jax.export")


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
