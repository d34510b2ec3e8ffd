"""ONNX models as a format: inspected by the package `onnx`, called by ONNX Runtime."""

from __future__ import annotations

import functools
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
from xla_call_module.errors import (
    FormatError,
    InteropError,
    MissingDependencyError,
    StructureError,
    quote,
)
from xla_call_module.node import INEXACT

if TYPE_CHECKING:
    from bridge.formats.runnable import Runnable
    from bridge.inspecting.report import FileReport
    from bridge.inspecting.written_file import WrittenFile
    from bridge.verifying.comparison import Tolerance
    from bridge.verifying.trials import Trial
    from bridge.verifying.verification import VerifyRow
    from xla_call_module.call import TensorSpec
    from xla_call_module.dtypes import Array


_SUFFIX = ".onnx"
_EXTERNAL_DATA: Mapping[str, str | bool] = {"auto": "auto", "yes": True, "no": False}


def _inspect(path: str | os.PathLike[str]) -> FileReport:
    from bridge.onnx.onnx_report import report_of_onnx

    return report_of_onnx(Path(path))


def _open(path: str, signature: str | None) -> Runnable:
    from savedmodel.model import DEFAULT_SIGNATURE

    if signature not in (None, DEFAULT_SIGNATURE):
        raise StructureError(f"{path} is one function. To do: leave out --signature.")
    return _runnable(_session(path), path)


def _runnable(session: Any, path: str) -> Runnable:
    from bridge.formats.runnable import Runnable

    def bind(arrays: Mapping[str, Array]) -> Callable[[], Sequence[Any]]:
        return lambda: _run(session, dict(arrays), path)

    return Runnable(
        name=Path(path).stem,
        inputs={value.name: _spec(value, path) for value in session.get_inputs()},
        outputs=tuple(value.name for value in session.get_outputs()),
        bind=bind,
        defaults={},
    )


def _session(path: str) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependencyError(
            f"To run {path} needs onnxruntime, which is not installed. To do: pip install "
            "onnxruntime."
        ) from error
    try:
        return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:
        # Each of its errors is a class of its own, below Exception alone.
        raise FormatError(
            f"{path} is not an ONNX model that onnxruntime {onnxruntime.__version__} runs: "
            f"{quote(error)}. To do: write it again, or take another onnxruntime."
        ) from error


def _run(session: Any, feeds: Mapping[str, Array], path: str) -> Sequence[Any]:
    try:
        return list(session.run(None, feeds))
    except Exception as error:
        raise InteropError(
            f"onnxruntime does not run {path}: {quote(error)}. To do: pass arrays that it takes."
        ) from error


def _spec(value: Any, path: str) -> TensorSpec:
    """Return the spec of an input of a session, whose type reads `tensor(float)`."""
    from xla_call_module.call import TensorSpec
    from xla_call_module.dtypes import dtype_from_name

    named = {"float": "float32", "double": "float64"}
    element = str(value.type).removeprefix("tensor(").removesuffix(")")
    dtype = dtype_from_name(named.get(element, element), where=f"The input {value.name} of {path}")
    shape = tuple(
        dim if isinstance(dim, int) else _dimension(dim, f"{value.name}_{axis}")
        for axis, dim in enumerate(value.shape)
    )
    return TensorSpec(shape, dtype, value.name)


def _dimension(dim: Any, name: str) -> str:
    """Return a dimension that is a variable, or an expression of some as this package writes it."""
    from xla_call_module.dimensions import symbols

    try:
        symbols(str(dim))
    except InteropError:
        return name
    return str(dim) if dim else name


@functools.lru_cache(maxsize=1)
def _on_one_thread(path: str, written: int) -> Any:
    """Return the session of a file as it was at some time, which all calls of it share."""
    import onnxruntime

    del written
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _prepare(call: RuntimeCall) -> Callable[[], Sequence[Any]]:
    session = _on_one_thread(call.path, os.stat(call.path).st_mtime_ns)
    # Inputs of narrow types are of a wider one in the model.
    feeds = {
        value.name: call.inputs[value.name].astype(_spec(value, call.path).dtype.numpy)
        for value in session.get_inputs()
    }
    # By their names, or, where the model has others, by their places.
    names = {value.name for value in session.get_outputs()}
    outputs = [*call.outputs] if names.issuperset(call.outputs) else None
    return lambda: session.run(outputs, feeds)


def _compare(path: str, trials: Sequence[Trial], tolerance: Tolerance) -> Sequence[VerifyRow]:
    from bridge.onnx.model_verification import compare_onnx
    from bridge.verifying.verification import trials_of

    session = _session(path)
    described = _runnable(session, path)
    exact = INEXACT not in session.get_modelmeta().custom_metadata_map
    fitting = dict.fromkeys(
        trial.signature for trial in trials if trial.inputs.keys() == described.inputs.keys()
    )
    chosen = trials_of([*fitting][:1] or [described.name], trials, exact=exact)
    return compare_onnx(path, chosen, tolerance)


def _convert(request: Conversion) -> WrittenFile:
    from bridge.onnx.conversion import save_onnx

    source: Any = request.source
    if request.signatures:
        source = _signature(source, request.signatures)
    return save_onnx(
        source,
        request.target,
        gradient_order=request.gradient_order,
        external_data=_EXTERNAL_DATA[request.options.get("external_data", "auto")],
        platform=request.platform,
        opset=request.options.get("opset"),
        exact=not request.options.get("inexact", False),
        verify=request.options.get("verify", False),
        tolerance=request.options.get("tolerance"),
        overwrite=request.overwrite,
    )


def _signature(source: str, keys: Sequence[str]) -> Any:
    from bridge.load import load

    signatures = load(source).signatures
    if len(keys) > 1:
        raise StructureError("An ONNX model is one function. To do: name one signature.")
    if keys[0] not in signatures:
        raise StructureError(
            f"{source} has no signature {keys[0]!r}; it has {', '.join(map(repr, signatures))}. "
            "To do: name one of these."
        )
    return signatures[keys[0]]


ONNX = FileFormat(
    name="an ONNX model",
    recognises=lambda path, head: bool(head) and path.endswith(_SUFFIX),
    inspect=_inspect,
    open=_open,
    compare=_compare,
    runtime=Runtime(
        name="ONNX Runtime",
        option="onnx",
        wheels=("onnxruntime",),
        modules=("onnxruntime",),
        prepare=_prepare,
    ),
    convert=_convert,
    command=ConvertCommand(
        name="onnx",
        suffix=_SUFFIX,
        options={
            "opset": {"type": int, "help": "the version of ONNX's operations"},
            "external_data": {
                "choices": tuple(_EXTERNAL_DATA),
                "default": "auto",
                "help": "whether weights are in a file of their own; by default past 1 GiB",
            },
            "inexact": {
                "action": "store_true",
                "help": "leave NaN and signs of zeros to the runtime, for a smaller model",
            },
            "verify": {
                "action": "store_true",
                "help": "compare it with JAX in ONNX Runtime before it appears",
            },
            "tolerance": TOLERANCE,
        },
    ),
)
