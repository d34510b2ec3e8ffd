"""Lifted operations, judged by StableHLO's reference interpreter.

All dtypes are judged by `python -m tests.bridge.lifting.judged_operations`, and the interpreter's
own tests by `python -m tests.bridge.lifting.interpreter_programs`.
"""

import re

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export
from jaxlib.mlir.dialects import stablehlo

import bridge
from tests.bridge.lifting.interpreter_programs import judge_program, programs_of
from tests.bridge.lifting.judged_operations import all_cases, faults_of
from tests.bridge.lifting.reference_interpreter import differs
from xla_call_module.errors import DtypeError, UnsupportedError

# Operations that the interpreter does not have, or has for several devices and programs.
_NOT_JUDGED = {
    "after_all", "all_gather", "all_reduce", "all_to_all", "async_done", "async_start",
    "batch_norm_grad", "batch_norm_inference", "batch_norm_training", "broadcast", "cholesky",
    "collective_broadcast", "collective_permute", "collective_reduce", "composite", "constant",
    "create_token", "cross-replica-sum", "custom_call", "dot", "einsum", "infeed", "outfeed",
    "partition_id", "real_dynamic_slice", "recv", "reduce_scatter", "replica_id", "return", "rng",
    "rng_bit_generator", "send", "set_dimension_size", "torch_index_select", "unary_einsum",
    "uniform_dequantize", "uniform_quantize",
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["bool", "int4", "uint8", "bfloat16", "float32", "complex64"])
def test_operations_are_what_the_interpreter_makes_of_them(dtype):
    cases = list(all_cases(dtype))
    assert faults_of(cases) == []
    assert faults_of(cases, constants=True) == []


def test_each_operation_of_the_interpreter_is_judged():
    texts = " ".join(c.body for name in ("int8", "float32", "complex128") for c in all_cases(name))
    classes = [getattr(stablehlo, name) for name in dir(stablehlo) if name.endswith("Op")]
    names = {c.OPERATION_NAME for c in classes if hasattr(c, "OPERATION_NAME")}
    judged = set(re.findall(r"stablehlo\.\w+", texts))
    assert {name.removeprefix("stablehlo.") for name in names - judged} <= _NOT_JUDGED


_TESTED = """// RUN: nothing

func.func @sum_of_bytes() {
  %0 = stablehlo.constant dense<[100, 27]> : tensor<2xi8>
  %1 = stablehlo.add %0, %0 : tensor<2xi8>
  check.expect_eq_const %1, dense<[-56, 54]> : tensor<2xi8>
  func.return
}

// -----

func.func @thirds() {
  %0 = stablehlo.constant dense<3.0> : tensor<f32>
  %1 = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.divide %1, %0 : tensor<f32>
  check.expect_almost_eq %2, %1 : tensor<f32>
  check.expect_almost_eq_const %2, dense<1.0> : tensor<f32>
  func.return
}

// -----

func.func @sizes() {
  %0 = stablehlo.constant dense<7> : tensor<i64>
  %1 = stablehlo.constant dense<2> : tensor<1xi64>
  %2 = stablehlo.dynamic_broadcast_in_dim %0, %1, dims = [] : (tensor<i64>, tensor<1xi64>)
    -> tensor<2xi64>
  check.expect_eq_const %2, dense<[7, 7]> : tensor<2xi64>
  func.return
}
"""


def test_files_of_the_interpreters_tests_are_read_and_judged(tmp_path):
    path = tmp_path / "sum.mlir"
    path.write_text(_TESTED)
    verdicts = {program.name: judge_program(program) for program in programs_of(path)}
    assert verdicts.pop("sum.mlir:1") == ("xla", "constants: float32 [0.], expected [1.]")
    assert verdicts == {"sum.mlir:0": ("right", ""), "sum.mlir:2": ("right", "")}


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e3m4"])
def test_narrow_dtypes_are_arguments_and_results(name):
    if not hasattr(jnp, name):
        pytest.skip(f"this JAX has no {name}")
    array = np.array([1, 0, 1, -1 if name[0] != "u" else 3]).astype(getattr(ml_dtypes, name))
    exported = export.export(jax.jit(lambda x: (x, x.astype(jnp.float32) * 2)))(array)
    same, doubled = bridge.to_jax(exported)(array)
    assert not differs(same, array)
    np.testing.assert_array_equal(doubled, 2 * array.astype(np.float32))
    with pytest.raises(DtypeError, match=f"has dtype {name}, which the XlaCallModule op cannot"):
        bridge.convert(exported)


@pytest.mark.parametrize("element", ["i2", "ui2"])
def test_integers_of_two_bits_are_joined_and_sorted(element):
    text = f"""func.func @main(%x: tensor<3x{element}>) -> tensor<6x{element}> {{
      %y = stablehlo.concatenate %x, %x, dim = 0 : (tensor<3x{element}>, tensor<3x{element}>)
        -> tensor<6x{element}>
      %r = "stablehlo.sort"(%y) <{{dimension = 0 : i64}}> ({{
        ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
          %c = stablehlo.compare LT, %a, %b : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
          stablehlo.return %c : tensor<i1> }}) : (tensor<6x{element}>) -> tensor<6x{element}>
      return %r : tensor<6x{element}> }}"""
    dtype = ml_dtypes.int2 if element == "i2" else ml_dtypes.uint2
    array = np.array([1, -2 if element == "i2" else 3, 0]).astype(dtype)
    expected = np.sort(np.tile(array.astype(np.int8), 2)).astype(dtype)
    assert not differs(bridge.to_jax(text)(array), expected)


def test_bits_of_booleans_are_refused():
    text = """func.func @main(%x: tensor<8xi1>) -> tensor<i8> {
      %r = stablehlo.bitcast_convert %x : (tensor<8xi1>) -> tensor<i8>
      return %r : tensor<i8> }"""
    with pytest.raises(UnsupportedError, match="XLA has no bits of booleans"):
        bridge.to_jax(text)(np.ones(8, bool))


def test_an_algorithm_of_floats_means_nothing_for_integers():
    text = """func.func @main(%x: tensor<2x2xi32>) -> tensor<2x2xi32> {
      %r = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0], algorithm = <
        lhs_precision_type = tf32, rhs_precision_type = tf32, accumulation_type = f32,
        lhs_component_count = 1, rhs_component_count = 1, num_primitive_operations = 1,
        allow_imprecise_accumulation = false>
        : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xi32>
      return %r : tensor<2x2xi32> }"""
    array = np.arange(4, dtype=np.int32).reshape(2, 2)
    np.testing.assert_array_equal(bridge.to_jax(text)(array), array @ array)


def test_the_least_integer_divided_by_minus_one_is_folded_to_itself():
    text = """func.func @main() -> tensor<2xi8> {
      %x = stablehlo.constant dense<[-128, 64]> : tensor<2xi8>
      %y = stablehlo.constant dense<[-1, -2]> : tensor<2xi8>
      %r = stablehlo.divide %x, %y : tensor<2xi8>
      return %r : tensor<2xi8> }"""
    np.testing.assert_array_equal(bridge.to_jax(text)(), np.array([-128, -32], np.int8))


@pytest.mark.parametrize(
    ("extreme", "share"), [(jnp.minimum, [0.5, 0, 0, 1]), (jnp.maximum, [0.5, 1, 0, 0])]
)
def test_the_extreme_of_complex_numbers_moves_with_the_one_that_it_is(extreme, share):
    """JAX said so until it had no derivative of it; equal numbers have equal shares."""
    x = jnp.array([1 + 2j, 1 + 2j, jnp.nan + 0j, 3 - 1j])
    y = jnp.array([1 + 2j, 1 - 2j, 1 + 0j, 4 + 1j])
    lifted = bridge.to_jax(export.export(jax.jit(extreme))(x, y))
    of_x, of_y = x.at[2].set(1), -1j * y
    value, tangent = jax.jvp(lifted, (x, y), (of_x, of_y))
    np.testing.assert_array_equal(value, extreme(x, y))
    np.testing.assert_array_equal(tangent, of_x * np.array(share) + of_y * (1 - np.array(share)))
