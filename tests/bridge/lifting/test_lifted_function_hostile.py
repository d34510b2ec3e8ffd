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
_F = "tensor<2xf32>"


def _call(lines):
    with make_ir_context():
        artifact = serialize_module(ir.Module.parse("\n".join(lines)), NEWEST.stablehlo)
    dtype = dtype_from_name("float32", where="a test")
    specs = (TensorSpec((2,), dtype, "args[0]"),), (TensorSpec((2,), dtype, "result[0]"),)
    return CallModule("f", artifact, LAST_WITHOUT_SHARDY, ("cpu",), *specs, (0,))


def _function(name, *lines, result="%r"):
    body = "\n".join(lines)
    return f"func.func {name}(%x: {_F}) -> {_F} {{ {body}\n return {result} : {_F} }}"


def _calls(name, value, result="%r"):
    return f"{result} = func.call @{name}({value}) : ({_F}) -> {_F}"


def _doubling(depth):
    """Functions that each call the next one twice."""
    yield _function("public @main", _calls("f0", "%x"))
    for n in range(depth):
        calls = _calls(f"f{n + 1}", "%x", "%a"), _calls(f"f{n + 1}", "%a")
        yield _function(f"private @f{n}", *calls)
    yield _function(f"private @f{depth}", f"%r = stablehlo.add %x, %x : {_F}")


_RECURSION = [_function("public @main", _calls("f", "%x")),
              _function("private @f", _calls("f", "%x"))]  # fmt: skip
_LARGE = "tensor<4194304x65536xf32>"
_LARGE_CONSTANTS = [_function(
    "public @main",
    f"%c = stablehlo.constant dense<1.0> : {_LARGE}",
    f"%d = stablehlo.add %c, %c : {_LARGE}",
    f"%e = stablehlo.slice %d [0:1, 0:2] : ({_LARGE}) -> tensor<1x2xf32>",
    f"%f = stablehlo.reshape %e : (tensor<1x2xf32>) -> {_F}",
    f"%r = stablehlo.multiply %x, %f : {_F}",
)]  # fmt: skip


@pytest.mark.parametrize("lines", [_doubling(60), _RECURSION], ids=["doubling", "recursion"])
def test_functions_that_call_too_much_are_refused(lines):
    started = time.monotonic()
    with pytest.raises(InteropError, match=r"calls|operations"):
        jax.make_jaxpr(lift_module(_call(lines)))(np.ones(2, np.float32))
    assert time.monotonic() - started < _MAX_SECONDS


def test_constants_take_no_memory_for_what_they_repeat():
    lifted = bridge.to_jax(_call(_LARGE_CONSTANTS))
    np.testing.assert_array_equal(lifted(np.ones(2, np.float32)), [2.0, 2.0])


def test_arguments_that_do_not_fit_are_named():
    with pytest.raises(InteropError, match=r"args\[0\] of f has shape \(3,\)"):
        bridge.to_jax(_call(_doubling(3)))(np.ones(3, np.float32))
