"""`to_onnx` and `save_onnx`: functions, modules and what is exported become ONNX models.

The package `onnx` is imported when one of them is called.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bridge.chains.orders import check_order
from xla_call_module.errors import MissingDependencyError
from xla_call_module.tracebacks import api_boundary

if TYPE_CHECKING:
    import onnx

    from bridge.core.names import Names
    from bridge.exporting.source import Exportable
    from bridge.inspecting.written_file import WrittenFile
    from bridge.sources.bound_call import BoundCall
    from bridge.verifying.comparison import Tolerance


@api_boundary
def to_onnx(
    exported: Exportable | Any,
    *,
    params: Any = None,
    args: Any = None,
    gradient_order: int = 0,
    platform: str = "cpu",
    opset: int | None = None,
    inputs: Names | None = None,
    outputs: Names | None = None,
    exact: bool = True,
    verify: bool = False,
    tolerance: Tolerance | float | tuple[float, float] | None = None,
) -> onnx.ModelProto:
    """Return the ONNX model of a function, checked by `onnx.checker`.

    Symbolic dimensions are ONNX's, by the same names. ONNX has no assertions: that dimensions of
    one name are the same, and what else the export asks of shapes, is the caller's to see to. A
    message of protobuf is less than 2 GiB: a larger model is for `bridge.save_onnx`, and is not
    checked here. A gradient of integers is of `bool` and False, as JAX has it of no numbers.

    ONNX Runtime takes and returns no integers of 4 or 2 bits: inputs, results and parameters of
    these are int8 or uint8 with their values, and what an input has beyond them wraps around. Small
    floats other than float8_e4m3fn and float8_e5m2 are float32 in the same way, and rounded.
    Complex numbers are pairs of floats, along a last dimension of 2.

    Args:
        exported: a function, or a module of Flax (linen or nnx), Haiku, Equinox or, on its JAX
            backend, Keras, which is exported here as `bridge.save` does it. Or an `Exported`, such
            as another one's `vjp()`, with or without the Python function; what `bridge.load`
            returned, or one of its signatures; the path of a SavedModel or of a serialized
            `Exported`; or StableHLO without one, which is the path of a text, with operations of
            CHLO if need be, or of a portable artifact, or a `xla_call_module.CallModule`. Of a text
            it is the function `main`, or the only one that no other one names. The parameters of a
            file become initializers.
        params: the pytree that is the first positional argument; its leaves become initializers,
            named by their pytree path. Those of a `vjp()`, which knows no pytrees, are its first
            primals. Of a function or a module as for `bridge.save`.
        args: where a function or a module is exported here, its arguments after the parameters, as
            for `bridge.save`, such as `"f32[b,28,28]"`.
        gradient_order: how often the function is differentiated first. 0 is the function itself, 1
            its VJP, of which the inputs are those of the function and the cotangents of its
            results; and so on.
        platform: one of those that it was lowered for; a function is lowered for it here.
        opset: the version of ONNX's operations, 18 to 26; by default 21, or 26 for what
            reads the bits of floats (`bitcast_convert_type`, `top_k`). Before 26 nothing tells the
            sign of a NaN: `top_k` takes every NaN for the greatest, other readers are refused.
        inputs: names for the inputs: a sequence, one for each leaf of the arguments, or a mapping
            from default names to new ones.
        outputs: the same for the results.
        exact: whether NaN, the sign of zero and integers divided by 0 are as in JAX where ONNX
            Runtime has them otherwise, which takes more nodes. Without it a model has fewer, and
            the numbers of other inputs are as near to JAX's, but for what the logistic function
            has below 1e-7.
        verify: whether the model is run by ONNX Runtime on probes, in a process of its own, and
            compared with JAX before it is returned.
        tolerance: the allowed difference, as for `bridge.verify`.

    Raises:
        UnsupportedError: an operation that ONNX cannot express, with its source line; or the
            runtime computes something else than JAX, with the inputs and the greatest difference.
        DtypeError: elements that ONNX does not have, such as quantized ones.
        StructureError: `params` or a name does not fit.
        PlatformError: it was not lowered for the platform.
        VersionError: the opset is not one of those.
        MissingDependencyError: the package `onnx` is not installed, or `onnxruntime` to verify.

    Example:
        >>> import bridge, jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 3"), "float32")
        >>> exported = jax.export.export(jax.jit(lambda w, x: jnp.tanh(x @ w)))(jnp.ones((3, 2)), x)
        >>> model = bridge.to_onnx(exported, params=jnp.ones((3, 2)))
        >>> [node.op_type for node in model.graph.node]
        ['MatMul', 'Tanh']
        >>> [value.name for value in bridge.to_onnx(jnp.sin, args="f32[batch,3]").graph.input]
        ['x']
    """
    check_installed()
    from bridge.onnx.onnx_model import ONNX, convert, decomposed, embedded, serialized
    from bridge.sources.bound_call import bind_source

    check_order(gradient_order)
    check = _check(tolerance, verify=verify, exact=exact)
    bound = bind_source(
        exported, ONNX, params=params, args=args, platform=platform,
        inputs=inputs, outputs=outputs, order=gradient_order,
    )  # fmt: skip
    model = embedded(convert(decomposed(bound), opset, exact=exact))
    if verify:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.onnx")
            path.write_bytes(serialized(model))
            check(bound, path)
    return model


def _check(tolerance: Any, *, verify: bool, exact: bool) -> Callable[[BoundCall, Path], None]:
    """Return the comparison of a file with JAX, or a function that does nothing."""
    if not verify and tolerance is None:
        return lambda _bound, _path: None
    from bridge.onnx.model_verification import verify_onnx
    from bridge.verifying.trial_request import conversion_tolerance

    allowed = conversion_tolerance(tolerance, verify=verify)
    return lambda bound, path: verify_onnx(bound, path, allowed, exact=exact)


@api_boundary
def save_onnx(
    model: Exportable | Any,
    path: str | os.PathLike[str],
    *,
    params: Any = None,
    args: Any = None,
    gradient_order: int = 0,
    external_data: str | bool = "auto",
    platform: str = "cpu",
    opset: int | None = None,
    inputs: Names | None = None,
    outputs: Names | None = None,
    exact: bool = True,
    verify: bool = False,
    tolerance: Tolerance | float | tuple[float, float] | None = None,
    overwrite: bool = False,
) -> WrittenFile:
    """Write an ONNX file of a function, checked by `onnx.checker`.

    Args:
        model: as for `bridge.to_onnx`.
        path: the file to write, in a folder that is made if need be; it appears whole or not at
            all.
        params: as for `bridge.to_onnx`.
        args: the same.
        gradient_order: the same.
        external_data: whether weights are in a file of their own, beside the other one and named
            like it with `.data` behind; `"auto"` for past 1 GiB of them.
        platform: as for `bridge.to_onnx`.
        opset: the same.
        inputs: the same.
        outputs: the same.
        exact: the same.
        verify: the same.
        tolerance: the same.
        overwrite: whether a file at `path` may be replaced, and its weights beside it.

    Returns:
        What was written, as of `bridge.save`, with the version of ONNX's operations.

    Raises:
        InteropError: as for `bridge.to_onnx`.
        StructureError: an option is wrong, or there is a file and `overwrite` is off.
        OSError: a file cannot be written.

    Example:
        >>> import bridge, jax, jax.numpy as jnp
        >>> x = jax.ShapeDtypeStruct((2, 3), "float32")
        >>> exported = jax.export.export(jax.jit(jnp.sin))(x)
        >>> print(bridge.save_onnx(exported, "sine.onnx"))
        sine.onnx: ... bytes, ONNX opset 21
        sin(x: float32[2,3]) -> output_0: float32[2,3]
        >>> written = bridge.save_onnx(exported, "cosine.onnx", gradient_order=1)
    """
    check_installed()
    from bridge.inspecting.written_file import WrittenFile
    from bridge.onnx.onnx_model import ONNX, check_target, save
    from bridge.sources.bound_call import bind_source

    check_order(gradient_order)
    check = _check(tolerance, verify=verify, exact=exact)
    target = check_target(path, external_data, overwrite=overwrite)
    bound = bind_source(
        model,
        ONNX,
        params=params,
        args=args,
        platform=platform,
        inputs=inputs,
        outputs=outputs,
        order=gradient_order,
    )
    facts = save(
        bound,
        target,
        opset=opset,
        exact=exact,
        external_data=external_data,
        check=functools.partial(check, bound),
    )
    return WrittenFile(path=os.fspath(path), **facts)


def check_installed() -> None:
    """Refuse to go on without the package `onnx`."""
    if importlib.util.find_spec("onnx") is None:
        raise MissingDependencyError.of("bridge.to_onnx", "onnx", extra="onnx")
