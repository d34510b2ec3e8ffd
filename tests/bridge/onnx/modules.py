"""Modules that are written by hand, for operations that JAX does not write."""

from __future__ import annotations

import contextlib

import jax
import numpy as np
from jax import enable_x64

import bridge
from bridge.loading.exported_from_call import exported_from_call
from tests.bridge.onnx.checking import assert_same, evaluate, run
from xla_call_module._jax import ir, make_ir_context
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import DTYPES
from xla_call_module.stablehlo.modules import read_main, serialize_module


def exported_of(text):
    """The `Exported` of a module's text, whose `main` has static shapes."""
    with make_ir_context():
        module = ir.Module.parse(text)
        main = read_main(module)
        artifact = serialize_module(module, (1, 9, 0))
    specs = [
        tuple(
            TensorSpec(type_.shape, _dtype(type_.element), f"{root}[{index}]")
            for index, type_ in enumerate(types)
        )
        for root, types in (("args", main.args), ("result", main.results))
    ]
    call = CallModule("main", artifact, 9, ("cpu",), *specs, tuple(range(len(specs[0]))))
    return exported_from_call(call)


def _dtype(element):
    return next(dtype for dtype in DTYPES if dtype.mlir == element)


def check_module(text, *arrays, rtol=1e-5, atol=0.0, reference=True):
    """Assert that a module's results are the same everywhere, and return its model."""
    exported, arrays = exported_of(text), [np.asarray(array) for array in arrays]
    wide = any(array.dtype.itemsize == 8 for array in arrays)
    with enable_x64() if wide else contextlib.nullcontext():
        expected = [np.asarray(x) for x in jax.tree.leaves(exported.call(*arrays))]
    model = bridge.to_onnx(exported)
    assert_same(run(model, arrays), expected, rtol=rtol, atol=atol)
    if reference:
        assert_same(evaluate(model, arrays), expected, rtol=rtol, atol=atol)
    return model
