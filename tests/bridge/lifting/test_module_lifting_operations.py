"""Operations of StableHLO: each has a rule; what JAX does not write is transformed; what folds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export, lax
from jaxlib.mlir.dialects import stablehlo

import bridge
from bridge.lifting.lifting_table import JAX_TABLE
from tests.bridge.lifting.lifted import assert_same, lift
from tests.operations.cases.modules import PROGRAMS
from tests.operations.cells import batches
from tests.operations.operands import structured
from tests.operations.table import CASES
from xla_call_module.errors import DtypeError, UnsupportedError

# Operations without a rule: what the walk itself does, and what one program of JAX cannot do.
_WALKED = {"composite", "custom_call", "get_tuple_element", "return", "tuple"}
_REFUSED = {
    "async_done", "async_start", "collective_reduce", "cross-replica-sum", "infeed", "outfeed",
    "recv", "rng", "rng_bit_generator", "send", "uniform_dequantize", "uniform_quantize",
}  # fmt: skip


def test_each_operation_has_a_rule_or_is_refused_on_purpose():
    classes = [getattr(stablehlo, name) for name in dir(stablehlo) if name.endswith("Op")]
    names = {c.OPERATION_NAME for c in classes if hasattr(c, "OPERATION_NAME")}
    lacking = {name.removeprefix("stablehlo.") for name in names - JAX_TABLE.rules.keys()}
    assert lacking - _WALKED <= _REFUSED


def test_a_composite_of_many_operations_is_one_function():
    def many(x):
        for n in range(20):
            x = jnp.sin(x) + n
        return x

    x = np.float32([0.5, -2])
    lifted = lift(lambda x: lax.composite(many, "my.op")(x) * 2, x)
    assert_same(lifted(x), many(x) * 2, rtol=1e-6)
    assert_same(jax.vmap(lifted)(np.stack([x, -x]))[0], many(x) * 2, rtol=1e-6)


def _arrays(name):
    given = enumerate(PROGRAMS[name][1])
    return [structured(operand, "float32", "plain", None, 5 * n) for n, operand in given]


@pytest.mark.parametrize("name", PROGRAMS)
def test_transformations_of_what_jax_does_not_write(name):
    """Both modes have the same derivative, and `vmap` has the results one by one."""
    lifted, arrays = bridge.to_jax(PROGRAMS[name][0]), _arrays(name)
    moved = [n for n, array in enumerate(arrays) if array.dtype == np.float32]

    def total(*floats):
        full = list(arrays)
        for n, value in zip(moved, floats, strict=True):
            full[n] = value
        leaves = [leaf for leaf in jax.tree.leaves(lifted(*full)) if leaf.dtype == np.float32]
        return sum((jnp.sum(leaf * leaf) for leaf in leaves), jnp.zeros(()))

    if arrays and not name.startswith("RealDynamicSlice"):
        pairs = [jnp.stack([array, array]) for array in arrays]
        mapped = [leaf[1] for leaf in jax.tree.leaves(jax.vmap(lifted)(*pairs))]
        assert_same(mapped, lifted(*arrays), rtol=2e-6, atol=1e-6)
    if floats := [jnp.asarray(arrays[n]) for n in moved]:
        _, forward = jax.jvp(total, floats, [jnp.ones_like(array) for array in floats])
        parts = jax.grad(total, tuple(range(len(floats))))(*floats)
        backward = sum(jnp.sum(part) for part in parts)
        np.testing.assert_allclose(forward, backward, rtol=1e-4, atol=1e-4)


_FOLDED = [
    batch
    for dtypes in (["float32"], ["int8"], ["uint64"], ["bfloat16"], ["bool"])
    for batch in batches([case for case in CASES if case.subject.startswith("jax.lax.")
                          and not case.long and case.operands], ["static"], dtypes)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("batch", _FOLDED, ids=lambda batch: batch.name)
def test_operations_of_constants_are_computed_once(batch):
    """The cases of the table whose arrays are constants of the module."""
    (_, arrays), function = batch.arrays()[0], batch.function()
    exported = export.export(jax.jit(lambda: function(*map(jnp.asarray, arrays))))()
    assert_same(bridge.to_jax(exported)(), jax.jit(exported.call)(), rtol=4e-6)


def test_what_has_no_rule_says_so():
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %t = stablehlo.create_token : !stablehlo.token
      %r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
      return %r#0 : tensor<4xf32> }"""
    with pytest.raises(UnsupportedError, match=r"stablehlo\.infeed at .*JAX has no operation for"):
        bridge.to_jax(text)(np.ones(4, np.float32))


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float8_e3m4"])
def test_narrow_dtypes_are_arguments_and_results(name):
    if not hasattr(jnp, name):
        pytest.skip(f"this JAX has no {name}")
    array = np.array([1, 0, 1, -1 if name[0] != "u" else 3]).astype(getattr(ml_dtypes, name))
    exported = export.export(jax.jit(lambda x: (x, x.astype(jnp.float32) * 2)))(array)
    same, doubled = bridge.to_jax(exported)(array)
    assert (same.dtype, np.asarray(same).tobytes()) == (array.dtype, array.tobytes())
    np.testing.assert_array_equal(doubled, 2 * array.astype(np.float32))
    with pytest.raises(DtypeError, match=f"has dtype {name}, which the XlaCallModule op cannot"):
        bridge.convert(exported)


@pytest.mark.parametrize(("element", "dtype"), [("i2", ml_dtypes.int2), ("ui2", ml_dtypes.uint2)])
def test_integers_of_two_bits_are_joined_and_sorted(element, dtype):
    text = f"""func.func @main(%x: tensor<3x{element}>) -> tensor<6x{element}> {{
      %y = stablehlo.concatenate %x, %x, dim = 0 : (tensor<3x{element}>, tensor<3x{element}>)
        -> tensor<6x{element}>
      %r = "stablehlo.sort"(%y) <{{dimension = 0 : i64}}> ({{
        ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
          %c = stablehlo.compare LT, %a, %b : (tensor<{element}>, tensor<{element}>) -> tensor<i1>
          stablehlo.return %c : tensor<i1> }}) : (tensor<6x{element}>) -> tensor<6x{element}>
      return %r : tensor<6x{element}> }}"""
    array = np.array([1, -2 if element == "i2" else 3, 0]).astype(dtype)
    found = np.asarray(bridge.to_jax(text)(array))
    np.testing.assert_array_equal(found.astype(int), np.sort(np.tile(array.astype(int), 2)))


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


def test_a_convolution_whose_padding_is_an_operand():
    text = """func.func @main(%x: tensor<1x4x1xf32>) -> tensor<1x6x1xf32> {
      %k = stablehlo.constant dense<[[[1.0]], [[10.0]]]> : tensor<2x1x1xf32>
      %n = stablehlo.constant dense<[[1, 2]]> : tensor<1x2xi64>
      %r = "stablehlo.dynamic_conv"(%x, %k, %n) <{dimension_numbers = #stablehlo.conv<[b, 0, f]x
        [0, i, o]->[b, 0, f]>, batch_group_count = 1 : i64, feature_group_count = 1 : i64}> :
        (tensor<1x4x1xf32>, tensor<2x1x1xf32>, tensor<1x2xi64>) -> tensor<1x6x1xf32>
      return %r : tensor<1x6x1xf32> }"""
    found = bridge.to_jax(text)(np.arange(1, 5, dtype=np.float32).reshape(1, 4, 1))
    np.testing.assert_array_equal(found.ravel(), [10, 21, 32, 43, 4, 0])
