"""Modules that ask for much are traced in bounded time and memory, or refused."""

import time

import jax
import numpy as np
import pytest

import bridge
from bridge.loading.lifted_exported import lift_module
from xla_call_module._jax import ir, make_ir_context
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import InteropError
from xla_call_module.stablehlo.modules import serialize_module
from xla_call_module.versions import LAST_WITHOUT_SHARDY, NEWEST

_MAX_SECONDS = 30.0  # of a process that shares its machine; without bounds these never end


def _call(text, *, shape=(2,)):
    with make_ir_context():
        artifact = serialize_module(ir.Module.parse(text), NEWEST.stablehlo)
    dtype = dtype_from_name("float32", where="a test")
    spec = TensorSpec(shape, dtype, "args[0]")
    result = TensorSpec(shape, dtype, "result[0]")
    return CallModule("f", artifact, LAST_WITHOUT_SHARDY, ("cpu",), (spec,), (result,), (0,))


def _doubling(depth):
    """Functions that each call the next one twice."""
    functions = [
        f"""func.func private @f{n}(%x: tensor<2xf32>) -> tensor<2xf32> {{
          %a = func.call @f{n + 1}(%x) : (tensor<2xf32>) -> tensor<2xf32>
          %b = func.call @f{n + 1}(%a) : (tensor<2xf32>) -> tensor<2xf32>
          return %b : tensor<2xf32> }}"""
        for n in range(depth)
    ]
    return f"""module {{
      func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %a = func.call @f0(%x) : (tensor<2xf32>) -> tensor<2xf32>
        return %a : tensor<2xf32> }}
      {"".join(functions)}
      func.func private @f{depth}(%x: tensor<2xf32>) -> tensor<2xf32> {{
        %a = stablehlo.add %x, %x : tensor<2xf32>
        return %a : tensor<2xf32> }} }}"""


_RECURSION = """module {
  func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %a = func.call @f(%x) : (tensor<2xf32>) -> tensor<2xf32>
    return %a : tensor<2xf32> }
  func.func private @f(%x: tensor<2xf32>) -> tensor<2xf32> {
    %a = func.call @f(%x) : (tensor<2xf32>) -> tensor<2xf32>
    return %a : tensor<2xf32> } }"""
_LARGE_CONSTANTS = """module {
  func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {
    %c = stablehlo.constant dense<1.0> : tensor<4194304x65536xf32>
    %d = stablehlo.add %c, %c : tensor<4194304x65536xf32>
    %e = stablehlo.slice %d [0:1, 0:2] : (tensor<4194304x65536xf32>) -> tensor<1x2xf32>
    %f = stablehlo.reshape %e : (tensor<1x2xf32>) -> tensor<2xf32>
    %g = stablehlo.multiply %x, %f : tensor<2xf32>
    return %g : tensor<2xf32> } }"""


@pytest.mark.parametrize("text", [_doubling(60), _RECURSION], ids=["doubling", "recursion"])
def test_functions_that_call_too_much_are_refused(text):
    started = time.monotonic()
    with pytest.raises(InteropError, match=r"calls|operations"):
        jax.make_jaxpr(lift_module(_call(text)))(np.ones(2, np.float32))
    assert time.monotonic() - started < _MAX_SECONDS


def test_constants_take_no_memory_for_what_they_repeat():
    lifted = bridge.to_jax(_call(_LARGE_CONSTANTS))
    np.testing.assert_array_equal(lifted(np.ones(2, np.float32)), [2.0, 2.0])


def test_arguments_that_do_not_fit_are_named():
    lifted = bridge.to_jax(_call(_doubling(3)))
    with pytest.raises(InteropError, match=r"args\[0\] of f has shape \(3,\)"):
        lifted(np.ones(3, np.float32))
