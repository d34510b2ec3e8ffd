"""MLIR without JAX: the contexts in which modules are parsed."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.interpreters import mlir

from tests.bridge.absence import run_without_jax
from xla_call_module import _jax

PARSE = """
import sys
from xla_call_module.passes import retargeting
from xla_call_module.stablehlo import modules as stablehlo
with stablehlo.open_module(open(sys.argv[1], "rb").read()) as module:
    print(stablehlo.read_main(module).args[0])
    stablehlo.serialize_module(module, (1, 9, 1))
assert "jax" not in sys.modules
"""
DIALECTS = """
module {
  sdy.mesh @mesh = <["x"=2]>
  func.func @main(
    %x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}
  ) -> tensor<2xf32> {
    %y = chlo.erf %x : tensor<2xf32> -> tensor<2xf32>
    %z = "mhlo.copy"(%y) : (tensor<2xf32>) -> tensor<2xf32>
    %w = stablehlo.add %z, %z : tensor<2xf32>
    %c = arith.constant 1 : index
    return %w : tensor<2xf32>
  }
}
"""


def test_a_module_is_parsed_without_jax(tmp_path):
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float32")
    exported = jax.export.export(jax.jit(lambda x: jnp.linalg.norm(x @ x.T)))(spec)
    (tmp_path / "module").write_bytes(exported.mlir_module_serialized)
    command = [sys.executable, "-c", PARSE, str(tmp_path / "module")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "tensor<?x3xf32>\n"


WITHOUT = """
import sys
from xla_call_module.passes import asserting, gspmd, pipeline, residuals
from xla_call_module.stablehlo import modules
from xla_call_module.errors import MissingDependencyError
try:
    with modules.open_module(open(sys.argv[1], "rb").read()):
        pass
except MissingDependencyError as error:
    print(error)
"""


def test_jaxlib_is_asked_for_where_a_module_is_parsed(tmp_path):
    exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), "float32"))
    (tmp_path / "module").write_bytes(exported.mlir_module_serialized)
    said = run_without_jax(WITHOUT, tmp_path / "module")
    assert "needs jaxlib, which is not installed. To do: pip install jaxlib." in said


@pytest.mark.parametrize("make", [_jax.make_ir_context, mlir.make_ir_context])
def test_the_dialects_are_those_of_jax(make):
    with make():
        text = str(_jax.ir.Module.parse(DIALECTS))
    found = ("sdy.mesh", "chlo.erf", "mhlo.copy", "stablehlo.add", "arith.constant")
    assert all(name in text for name in found)


@pytest.mark.parametrize("error", [ImportError, AttributeError])
def test_with_another_jaxlib_the_context_is_that_of_jax(monkeypatch, error):
    def moved():
        raise error("not where it was")

    monkeypatch.setattr(_jax, "_context_class", moved)
    context = _jax.make_ir_context()
    assert type(context) is type(mlir.make_ir_context())
