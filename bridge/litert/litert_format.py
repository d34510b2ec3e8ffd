"""LiteRT models as a format: inspected, called and compared by ai-edge-litert."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.formats.file_format import (
    TOLERANCE,
    Conversion,
    ConvertCommand,
    FileFormat,
    Runtime,
    RuntimeCall,
)
from xla_call_module.errors import StructureError

if TYPE_CHECKING:
    from bridge.formats.runnable import Runnable
    from bridge.inspecting.report import FileReport
    from bridge.inspecting.written_file import WrittenFile
    from bridge.litert.runtime import LiteRTTensor
    from bridge.verifying.comparison import Tolerance
    from bridge.verifying.trials import Trial
    from bridge.verifying.verification import VerifyRow
    from xla_call_module.call import TensorSpec
    from xla_call_module.dtypes import Array


_SUFFIX = ".tflite"
_IDENTIFIER = b"TFL3"  # https://flatbuffers.dev/schema: after the offset of the root table


def _recognises(path: str, head: bytes) -> bool:
    return head[4:8] == _IDENTIFIER or (bool(head) and path.endswith(_SUFFIX))


def _inspect(path: str | os.PathLike[str]) -> FileReport:
    from bridge.litert.litert_report import report_of_litert

    return report_of_litert(Path(path))


def _open(path: str, signature: str | None) -> Runnable:
    from bridge.formats.runnable import Runnable
    from bridge.litert.runtime import Runtime as LiteRTRuntime
    from bridge.litert.runtime import describe

    signatures = {one.name: one for one in describe(path).signatures}
    chosen = signatures[_choose([*signatures], path, signature)]

    def bind(arrays: Mapping[str, Array]) -> Callable[[], Sequence[Any]]:
        def call() -> Sequence[Any]:
            with LiteRTRuntime(path) as runtime:
                return [*runtime.run(arrays, signature=chosen.name).values()]

        return call

    return Runnable(
        name=chosen.name,
        inputs={tensor.name: _spec(tensor, path) for tensor in chosen.inputs},
        outputs=tuple(tensor.name for tensor in chosen.outputs),
        bind=bind,
        defaults={},
        signature=chosen.name,
    )


def _choose(keys: Sequence[str], path: str, key: str | None) -> str:
    from savedmodel.model import DEFAULT_SIGNATURE

    if key is None:
        key = keys[0] if len(keys) == 1 else DEFAULT_SIGNATURE
    if key not in keys:
        raise StructureError(
            f"Which signature is meant? {path} has {', '.join(keys) or 'none'}. To do: name one "
            "by --signature."
        )
    return key


def _spec(tensor: LiteRTTensor, path: str) -> TensorSpec:
    from xla_call_module.call import TensorSpec
    from xla_call_module.dtypes import dtype_from_name

    shape = tuple(
        size if size >= 0 else f"{tensor.name}_{axis}" for axis, size in enumerate(tensor.shape)
    )
    dtype = dtype_from_name(tensor.dtype, where=f"The input {tensor.name} of {path}")
    return TensorSpec(shape, dtype, tensor.name)


def _compare(path: str, trials: Sequence[Trial], tolerance: Tolerance) -> Sequence[VerifyRow]:
    from bridge.litert.runtime import compare_model

    return compare_model(path, trials, tolerance)


def _prepare(call: RuntimeCall) -> Callable[[], Sequence[Any]]:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(call.path, num_threads=1).get_signature_runner(call.signature)
    # Inputs of narrow types are of a wider one in the model.
    details = runner.get_input_details()
    inputs = {name: array.astype(details[name]["dtype"]) for name, array in call.inputs.items()}

    def run() -> Sequence[Any]:
        results = runner(**inputs)
        return [results[name] for name in call.outputs]

    return run


def _convert(request: Conversion) -> WrittenFile:
    from bridge.litert.conversion import save_litert

    options = request.options
    return save_litert(
        request.source,
        request.target,
        signatures=[*request.signatures] or None,
        gradient_order=request.gradient_order,
        platform=request.platform,
        quantize=options.get("quantize"),
        calibration=options.get("calibration"),
        state=options.get("state", "variables"),
        exact=not options.get("inexact", False),
        verify=not options.get("no_verify", False),
        tolerance=options.get("tolerance"),
        overwrite=request.overwrite,
    )


LITERT = FileFormat(
    name="a LiteRT model",
    recognises=_recognises,
    inspect=_inspect,
    open=_open,
    compare=_compare,
    runtime=Runtime(
        name="LiteRT",
        option="litert",
        wheels=("ai-edge-litert",),
        modules=("ai_edge_litert.interpreter",),
        prepare=_prepare,
    ),
    convert=_convert,
    command=ConvertCommand(
        name="litert",
        suffix=_SUFFIX,
        options={
            "quantize": {
                "choices": ("dynamic_int8", "float16", "int8"),
                "help": "weights of int8 or float16, or all of int8 with --calibration",
            },
            "calibration": {
                "metavar": "FILE.npz",
                "type": os.path.expanduser,
                "help": "arrays by INPUT or SIGNATURE/INPUT, whose first axis has the calls",
            },
            "state": {
                "choices": ("variables", "arguments"),
                "default": "variables",
                "help": "whether the interpreter keeps what is assigned, or it is passed and "
                "returned",
            },
            "inexact": {
                "action": "store_true",
                "help": "leave NaN and signs of zeros to the runtime, for a smaller model",
            },
            "tolerance": TOLERANCE,
            "no_verify": {
                "action": "store_true",
                "help": "write what was not compared with JAX",
            },
        },
    ),
)
