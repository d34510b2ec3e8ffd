"""`to_litert` and `save_litert`: functions, modules and what is exported become LiteRT models.

The runtime works in a process of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from bridge.chains.orders import check_order
from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    from bridge.core.names import Names
    from bridge.core.updates import Updates
    from bridge.exporting.source import Exportable
    from bridge.inspecting.written_file import Quantization, WrittenFile
    from bridge.litert.litert_model import State
    from bridge.sources.bound_call import BoundCall
    from bridge.verifying.comparison import Tolerance


QuantizeKind = Literal["dynamic_int8", "float16", "int8"]
Calibration = str | os.PathLike[str] | Iterable[Any] | Mapping[str, Iterable[Any]]

# Kernels of maxima, and so of every network that pools or rectifies, ignore NaN; the page on LiteRT
# says so.
_UNSAID = "nan"


@api_boundary
def to_litert(
    model: Exportable | Any,
    *,
    params: Any = None,
    args: Any = None,
    signatures: str | Sequence[str] | None = None,
    gradient_order: int = 0,
    platform: str = "cpu",
    inputs: Names | None = None,
    outputs: Names | None = None,
    quantize: QuantizeKind | None = None,
    calibration: Calibration | None = None,
    updates: Updates | None = None,
    state: State = "variables",
    exact: bool = True,
    verify: bool = True,
    tolerance: Tolerance | float | tuple[float, float] | None = None,
) -> bytes:
    """Return the LiteRT model (TFLite's flatbuffer) of one or several functions.

    The module of each function is brought into operations that the runtime executes as JAX means
    them, and written as a file; TensorFlow is not needed. Then the model is run on probes in a
    process of its own, and compared with JAX: what differs is refused.

    float32, bool and integers of up to 32 bits are themselves in the model. float16 is taken and
    returned as it is and computed in float32, rounded after each operation; bfloat16 and smaller
    floats are float32 at the boundary, integers of fewer than 8 bits are int8 or uint8. Complex
    numbers are float32 with a last axis of real and imaginary part. Symbolic
    dimensions, such as a batch, are dynamic ones: the interpreter is told their sizes by
    `resize_tensor_input`, which a signature runner does itself.

    Args:
        model: what `bridge.to_onnx` takes: a function or a module, an `Exported`, what
            `bridge.load` returned or one of its signatures, the path of a SavedModel, of a
            serialized `Exported` or of StableHLO, or a `CallModule`. Or a mapping from names of
            signatures to such. A SavedModel becomes a model with all of its signatures. Weights
            that they share are in the model once.
        params: the pytree that is the first positional argument, of each of them.
        args: the arguments of a function or a module, as for `bridge.save`.
        signatures: the names of those signatures of a SavedModel or a mapping that are taken, by
            default all; or the name of the only function, by default `serving_default`.
        gradient_order: how often each function is differentiated first: 0 is the function itself, 1
            its VJP, as for `bridge.save_onnx`.
        platform: one of those that it was lowered for; a function is lowered for it here. What the
            model is compared with is the branches of this platform, run by JAX on the CPU.
        inputs: names for the inputs, as for `bridge.save`.
        outputs: the same for the results.
        quantize: `dynamic_int8` for weights of int8, which products take with inputs that are
            quantized as they come; `float16` for weights of float16; `int8` for weights and values
            of int8 wherever there is a kernel, with scales that the calibration data has. Inputs
            and outputs stay as they are. The model is verified before it is quantized; afterwards
            the error is measured and reported, and only refused where numbers become none.
        calibration: inputs such as those that the model is used with, for `int8` and to measure the
            error: an iterable of calls, each an array, a tuple of arrays, or a mapping from the
            names of the inputs; for several signatures a mapping from these to such. Or the path of
            an .npz file, with arrays by `INPUT` or `SIGNATURE/INPUT`, whose first axis has the
            calls.
        updates: for functions that return new parameters where these stand in what they return, as
            for `bridge.save`; a SavedModel says so itself.
        state: `variables` has what some signature assigns kept by the interpreter from call to
            call, for all signatures of the model, from the given parameters on; `arguments` has it
            passed as inputs, and new values returned as outputs. Gradients have it so, too.
        exact: whether NaN, the sign of zero and integers divided by 0 are as in JAX where LiteRT's
            kernels have them otherwise, which takes more operators. Without it a model has fewer,
            and the numbers of other inputs are as near to JAX's, but for what the logistic function
            and GELU have near 0, which may be 0.
        verify: whether the model is run on probes and compared with JAX before it is returned.
        tolerance: the allowed difference, as for `bridge.verify`.

    Returns:
        The bytes of a `.tflite` file.

    Raises:
        UnsupportedError: an operation that LiteRT cannot execute, with its source line; or the
            runtime computes something else than JAX, with the inputs and the greatest difference.
        DtypeError: elements that LiteRT does not have, such as float64.
        StructureError: `params`, a name or a signature does not fit.
        MissingDependencyError: `ai-edge-litert` is not installed.

    Example:
        >>> import bridge, jax.numpy as jnp
        >>> model = bridge.to_litert(lambda x: jnp.sort(x) * 2, args="f32[4]")
        >>> model[4:8]
        b'TFL3'
    """
    bound = _bind(
        model, signatures, params=params, args=args, platform=platform,
        order=gradient_order, inputs=inputs, outputs=outputs, updates=updates, state=state,
    )  # fmt: skip
    made, _ = _made(
        bound, exact=exact, verify=verify, tolerance=tolerance, quantize=quantize,
        calibration=calibration,
    )  # fmt: skip
    return made


def _bind(
    model: Any, signatures: Any, *, platform: str, order: int, **options: Any
) -> dict[str, BoundCall]:
    from bridge.litert.worker_process import check_installed

    check_installed("bridge.to_litert")
    from bridge.litert.litert_model import bind_signatures  # which imports it

    check_order(order)
    return bind_signatures(model, signatures=signatures, platform=platform, order=order, **options)


def _made(
    bound: Mapping[str, BoundCall],
    *,
    exact: bool,
    verify: bool,
    tolerance: Any,
    quantize: QuantizeKind | None,
    calibration: Calibration | None,
) -> tuple[bytes, Quantization | None]:
    """Return the model, and what its quantization costs."""
    from bridge.litert.first_difference import first_difference
    from bridge.litert.litert_model import make_model
    from bridge.litert.quantization import check_quantize, quantized
    from bridge.litert.runtime import compare_model
    from bridge.litert.worker_process import LiteRTProcess
    from bridge.verifying.bound_trials import make_trials
    from bridge.verifying.trial_request import conversion_tolerance
    from bridge.verifying.verification import refuse_differences

    check_quantize(quantize, calibration, bound)
    allowed = conversion_tolerance(tolerance, verify=verify)
    with LiteRTProcess() as process:
        made = make_model(bound, exact=exact)
        trials = list(make_trials(bound, exact=exact)) if verify or quantize else []
        if verify:
            rows = compare_model(made, trials, allowed, process=process)
            refuse_differences(
                rows,
                [trial.sizes for trial in trials],
                runtime="LiteRT",
                first_difference=lambda n: first_difference(
                    bound[trials[n].signature], trials[n], process=process, tolerance=allowed
                ),
                unsaid=_UNSAID,
            )
        if quantize is None:
            return made, None
        return quantized(
            made, quantize, trials, bound=bound, calibration=calibration, process=process
        )


@api_boundary
def save_litert(
    model: Exportable | Any,
    path: str | os.PathLike[str],
    *,
    params: Any = None,
    args: Any = None,
    signatures: str | Sequence[str] | None = None,
    gradient_order: int = 0,
    platform: str = "cpu",
    inputs: Names | None = None,
    outputs: Names | None = None,
    quantize: QuantizeKind | None = None,
    calibration: Calibration | None = None,
    updates: Updates | None = None,
    state: State = "variables",
    exact: bool = True,
    verify: bool = True,
    tolerance: Tolerance | float | tuple[float, float] | None = None,
    overwrite: bool = False,
) -> WrittenFile:
    """Write a LiteRT model (a `.tflite` file) of one or several functions.

    Args:
        model: as for `bridge.to_litert`.
        path: the file to write, in a folder that is made if need be; it appears whole or not at
            all, and not before it has been verified.
        params: as for `bridge.to_litert`.
        args: the same.
        signatures: the same.
        gradient_order: the same.
        platform: the same.
        inputs: the same.
        outputs: the same.
        quantize: the same.
        calibration: the same.
        updates: the same.
        state: the same.
        exact: the same.
        verify: the same.
        tolerance: the same.
        overwrite: whether a file at `path` may be replaced.

    Returns:
        What was written, as of `bridge.save`.

    Raises:
        InteropError: as for `bridge.to_litert`.
        StructureError: an option is wrong, or there is a file and `overwrite` is off.
        OSError: the file cannot be written.

    Example:
        >>> import bridge, jax.numpy as jnp
        >>> print(bridge.save_litert(jnp.sin, "sine.tflite", args="f32[2,3]"))
        sine.tflite: ... bytes
        serving_default(x: float32[2,3]) -> output_0: float32[2,3]
    """
    from bridge.inspecting.written_file import WrittenFile
    from bridge.litert.litert_model import written_signature
    from bridge.sources.target_file import target_file
    from savedmodel.files.folder import hidden_folder

    target = target_file(path, overwrite=overwrite)
    bound = _bind(
        model, signatures, params=params, args=args, platform=platform,
        order=gradient_order, inputs=inputs, outputs=outputs, updates=updates, state=state,
    )  # fmt: skip
    made, report = _made(
        bound, exact=exact, verify=verify, tolerance=tolerance, quantize=quantize,
        calibration=calibration,
    )  # fmt: skip
    with hidden_folder(target.parent, target.name) as folder:
        (folder / target.name).write_bytes(made)
        (folder / target.name).replace(target)
    arrays = {
        id(array): array.nbytes
        for one in bound.values()
        for _, array in (*one.parameters.values(), *one.state.values())
    }
    return WrittenFile(
        path=os.fspath(path),
        signatures=tuple(written_signature(key, one) for key, one in bound.items()),
        bytes=len(made),
        parameter_bytes=sum(arrays.values()),
        quantization=report,
    )
