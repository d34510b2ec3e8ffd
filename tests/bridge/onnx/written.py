"""Programs written as StableHLO, for operations and forms that JAX does not write itself."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
from jax import enable_x64, export

import bridge
from tests.bridge.onnx.checking import assert_same, evaluate, run, to_storage
from xla_call_module._jax import ir, make_ir_context
from xla_call_module.stablehlo.modules import serialize_module

_ELEMENTS = {
    "bool": "i1", "bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64",
    "int8": "i8", "int32": "i32", "int64": "i64", "uint8": "ui8", "uint32": "ui32",
    "uint64": "ui64", "int2": "i2", "int4": "i4", "uint2": "ui2", "uint4": "ui4",
    "float8_e4m3": "f8E4M3", "float8_e4m3fnuz": "f8E4M3FNUZ",
    "float8_e4m3b11fnuz": "f8E4M3B11FNUZ", "float8_e5m2fnuz": "f8E5M2FNUZ",
    "float8_e3m4": "f8E3M4", "float8_e8m0fnu": "f8E8M0FNU", "float4_e2m1fn": "f4E2M1FN",
    "float6_e2m3fn": "f6E2M3FN", "float6_e3m2fn": "f6E3M2FN",
}  # fmt: skip


def type_of(array):
    """The type of an array, such as `tensor<2x3xf32>`."""
    dims = "".join(f"{dim}x" for dim in array.shape)
    return f"tensor<{dims}{_ELEMENTS[array.dtype.name]}>"


def exported(body, arrays, results):
    """The `Exported` of a program.

    Args:
        body: operations of the arguments `%a`, `%b`, … that say what `%r0`, `%r1`, … are.
        arrays: what is passed.
        results: arrays of the shapes and dtypes of the results.
    """
    arguments = ", ".join(
        f"%{chr(ord('a') + n)}: {type_of(array)}" for n, array in enumerate(arrays)
    )
    types = ", ".join(map(type_of, results))
    names = ", ".join(f"%r{n}" for n in range(len(results)))
    text = f"""module @m {{ func.func public @main({arguments}) -> ({types}) {{
        {body}
        return {names} : {types} }} }}"""
    with enable_x64():
        made = export.export(jax.jit(lambda *_: tuple(np.zeros_like(x) for x in results)))(*arrays)
    with make_ir_context():
        artifact = serialize_module(ir.Module.parse(text), (1, 10, 0))
    kept = tuple(range(len(arrays)))
    return dataclasses.replace(made, mlir_module_serialized=artifact, module_kept_var_idx=kept)


def check_written(body, arrays, *results, rtol=1e-5, in_jax=True):
    """Assert that a program has these results in ONNX Runtime and in the reference evaluator.

    Args:
        body: as for `exported`.
        arrays: the same.
        results: what is expected.
        rtol: how far floats may differ.
        in_jax: whether XLA has the operation, and these results too.
    """
    program = exported(body, arrays, results)
    if in_jax:
        with enable_x64():
            computed = jax.jit(program.call)(*arrays)
        found, expected = (
            [to_storage(np.asarray(x)) for x in computed],
            list(map(to_storage, results)),
        )
        assert_same(found, expected, rtol=rtol, atol=1e-6)
    model = bridge.to_onnx(program)
    given, expected = list(map(to_storage, arrays)), list(map(to_storage, results))
    assert_same(run(model, given), expected, rtol=rtol, atol=1e-6)
    assert_same(evaluate(model, given), expected, rtol=rtol, atol=1e-6)
