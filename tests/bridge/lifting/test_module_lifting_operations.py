"""Operations of StableHLO that JAX does not write, against what XLA makes of them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64
from jaxlib.mlir.dialects import stablehlo

import bridge
from bridge.lifting.lifting_table import JAX_TABLE
from bridge.loading.exported_from_call import exported_from_call
from xla_call_module.errors import UnsupportedError
from xla_call_module.mlir_files import call_of_file

# Operations without a rule: what the walk itself does, and what one program of JAX cannot do.
_WALKED = {"composite", "custom_call", "get_tuple_element", "return", "tuple"}
_REFUSED = {
    "async_done", "async_start", "collective_reduce", "cross-replica-sum", "infeed", "outfeed",
    "recv", "rng", "rng_bit_generator", "send", "uniform_dequantize", "uniform_quantize",
}  # fmt: skip

_GENERAL = """({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %m = stablehlo.multiply %a, %b : tensor<f32>
    %s = stablehlo.add %m, %a : tensor<f32>
    %t = stablehlo.add %s, %b : tensor<f32>
    stablehlo.return %t : tensor<f32> })"""


def _region(name, element="f32"):
    return f"""({{ ^bb0(%a: tensor<{element}>, %b: tensor<{element}>):
        %s = stablehlo.{name} %a, %b : tensor<{element}>
        stablehlo.return %s : tensor<{element}> }})"""


def _comparison(direction, kind, names="%a, %b", before=""):
    return f"""{before}
        %p = stablehlo.compare {direction}, {names}, {kind} : (tensor<f32>, tensor<f32>)
          -> tensor<i1>
        stablehlo.return %p : tensor<i1> }}"""


def _mlir_type(array):
    dims = "".join(f"{size}x" for size in array.shape)
    names = {"float32": "f32", "int32": "i32", "bool": "i1"}
    return f"tensor<{dims}{names[array.dtype.name]}>"


def _program(operation, arrays, results, attributes="", before=""):
    """The text of a program of one operation."""
    types = [_mlir_type(array) for array in arrays]
    names = ", ".join(f"%x{n}" for n in range(len(arrays)))
    arguments = ", ".join(f"%x{n}: {type_}" for n, type_ in enumerate(types))
    name, _, regions = operation.partition(" ")
    made = ", ".join(f"%r#{n}" for n in range(len(results))) if len(results) > 1 else "%r"
    several = f":{len(results)}" if len(results) > 1 else ""
    kinds = ", ".join(results)
    return f"""func.func @main({arguments}) -> ({kinds}) {{ {before}
      %r{several} = "stablehlo.{name}"({names}) {regions} {{{attributes}}}
        : ({", ".join(types)}) -> ({kinds})
      return {made} : {kinds} }}"""


_X = np.array([3.0, -1.0, 2.0, 5.0], np.float32)
_SORTED = np.array([3.0, 0.0, -0.0, -2.0, 3.0, 1.0], np.float32)
_PLACES = np.array([[1], [1], [9]], np.int32)
_UNIQUE = np.array([[3], [1], [9]], np.int32)
_SCATTER = """scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
  scatter_dims_to_operand_dims = [0], index_vector_dim = 1>, unique_indices = """
_WINDOW = """window_dimensions = array<i64: 3>, window_strides = array<i64: 2>,
  padding = dense<[[1, 1]]> : tensor<1x2xi64>, base_dilations = array<i64: 2>"""
_POOL = """window_dimensions = array<i64: 3>, window_strides = array<i64: 2>,
  padding = dense<[[0, 1]]> : tensor<1x2xi64>"""
_NORM = "epsilon = 1.0e-03 : f32, feature_index = 1 : i64"
_PAIR = "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>, %c: tensor<i32>, %d: tensor<i32>):"
_ONE = "({ ^bb0(%a: tensor<f32>, %b: tensor<f32>):"
_ABSOLUTE = "%c = stablehlo.abs %a : tensor<f32> %d = stablehlo.abs %b : tensor<f32>"
_IMAGE = np.sin(np.arange(12, dtype=np.float32)).reshape(2, 3, 2)
_SCALE = np.array([1.0, 2.0, 0.5], np.float32)


def _programs():
    f4, f6, numbers = "tensor<4xf32>", "tensor<6xf32>", np.array([2.0, 3.0, 4.0], np.float32)
    for name, region in [("general", _GENERAL), ("divide", _region("divide"))]:
        for unique, places in [("false", _PLACES), ("true", _UNIQUE)]:
            arrays = [_X, places, numbers]
            yield (
                f"scatter {name} {unique}",
                _program(f"scatter {region}", arrays, [f4], _SCATTER + unique),
                arrays,
            )
    arrays = [_SORTED, np.arange(6, dtype=np.int32)]
    for kind in ["GT, FLOAT", "LT, TOTALORDER", "GT, TOTALORDER"]:
        region = f"{_PAIR} {_comparison(*kind.split(', '))})"
        yield (
            f"sort {kind}",
            _program(
                f"sort {region}",
                arrays,
                [f6, "tensor<6xi32>"],
                "dimension = 0 : i64, is_stable = true",
            ),
            arrays,
        )
    region = f"{_ONE} {_comparison('LT', 'FLOAT', '%c, %d', _ABSOLUTE)})"
    yield (
        "sort by magnitude",
        _program(f"sort {region}", [_SORTED], [f6], "dimension = 0 : i64, is_stable = true"),
        [_SORTED],
    )
    start = np.array(0.0, np.float32)
    for name, region in [("general", _GENERAL), ("add", _region("add"))]:
        yield (
            f"reduce {name}",
            _program(
                f"reduce {region}", [_X, start], ["tensor<f32>"], "dimensions = array<i64: 0>"
            ),
            [_X, start],
        )
        yield (
            f"reduce_window {name}",
            _program(f"reduce_window {region}", [_SORTED, start], [f6], _WINDOW),
            [_SORTED, start],
        )
    bools = [_X > 0, np.array(False)]
    yield (
        "reduce of bool",
        _program(
            f"reduce {_region('add', 'i1')}", bools, ["tensor<i1>"], "dimensions = array<i64: 0>"
        ),
        bools,
    )
    arrays = [np.array([1, 1, 1, -2, -2, 0], np.float32), numbers, np.array(0.5, np.float32)]
    for direction in ("GE", "GT", "LE", "LT"):
        for name in ("add", "maximum"):
            regions = f"{_ONE} {_comparison(direction, 'FLOAT')}, {_region(name)[1:]}"
            yield (
                f"select_and_scatter {direction} {name}",
                _program(f"select_and_scatter {regions}", arrays, [f6], _POOL),
                arrays,
            )
    yield "map", _program(f"map {_GENERAL}", [_X, _X], [f4], "dimensions = array<i64: 0>"), [_X, _X]
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), _IMAGE.reshape(3, 4)]
    yield (
        "einsum",
        _program("einsum", arrays, ["tensor<2x4xf32>"], 'einsum_config = "ij,jk->ik"'),
        arrays,
    )
    arrays = [_IMAGE, np.array([1, 9], np.int32)]
    yield (
        "torch_index_select",
        _program(
            "torch_index_select",
            arrays,
            ["tensor<2x3x2xf32>"],
            "dim = 0 : i64, batch_dims = 0 : i64",
        ),
        arrays,
    )
    arrays = [np.array([2, -1, -1, 7], np.int32), np.array([5, -3, -2, -1], np.int32)]
    yield "power of integers", _program("power", arrays, ["tensor<4xi32>"]), arrays
    image, line = "tensor<2x3x2xf32>", "tensor<3xf32>"
    arrays = [_IMAGE, *[_SCALE] * 4]
    yield "batch_norm_inference", _program("batch_norm_inference", arrays, [image], _NORM), arrays
    for name, arrays in [
        ("training", [_IMAGE, _SCALE, _SCALE]),
        ("grad", [_IMAGE, _SCALE, _SCALE, _SCALE, _IMAGE * 2]),
    ]:
        text = _program(f"batch_norm_{name}", arrays, [image, line, line], _NORM)
        yield f"batch_norm_{name}", text, arrays


_PROGRAMS = list(_programs())


@pytest.mark.parametrize(
    ("text", "arrays"), [p[1:] for p in _PROGRAMS], ids=[p[0] for p in _PROGRAMS]
)
def test_results_and_transformations(text, arrays, tmp_path):
    path = tmp_path / "program.mlir"
    path.write_text(text)
    lifted = bridge.to_jax(path)
    results = jax.tree.leaves(lifted(*arrays))
    for result, expected in zip(results, _run(text, arrays), strict=True):
        np.testing.assert_allclose(result, expected, rtol=2e-6, atol=1e-6)
    pairs = [jnp.stack([array, array]) for array in arrays]
    for mapped, expected in zip(jax.tree.leaves(jax.vmap(lifted)(*pairs)), results, strict=True):
        np.testing.assert_allclose(mapped[1], expected, rtol=2e-6, atol=1e-6)
    _check_gradient(lifted, arrays)


def _run(text, arrays):
    """Return what XLA computes."""
    call = call_of_file(Path("program.mlir"), text.encode())
    return jax.tree.leaves(exported_from_call(call).call(*arrays))


def _check_gradient(lifted, arrays):
    """Assert that both modes have the same derivative, with respect to all floats."""
    moved = [n for n, array in enumerate(arrays) if array.dtype == np.float32]

    def total(*floats):
        full = list(arrays)
        for n, value in zip(moved, floats, strict=True):
            full[n] = value
        leaves = [leaf for leaf in jax.tree.leaves(lifted(*full)) if leaf.dtype == np.float32]
        return sum(jnp.sum(leaf * leaf) for leaf in leaves) if leaves else jnp.zeros(())

    floats = [jnp.asarray(arrays[n]) for n in moved]
    if not floats:
        return
    _, forward = jax.jvp(total, floats, [jnp.ones_like(array) for array in floats])
    backward = sum(jnp.sum(part) for part in jax.grad(total, tuple(range(len(floats))))(*floats))
    np.testing.assert_allclose(forward, backward, rtol=1e-4, atol=1e-4)


def test_a_slice_at_a_computed_place():
    text = """func.func @main(%x: tensor<6xf32>, %n: tensor<1xi64>) -> tensor<2xf32> {
      %two = stablehlo.constant dense<2> : tensor<1xi64>
      %one = stablehlo.constant dense<1> : tensor<1xi64>
      %end = stablehlo.add %n, %two : tensor<1xi64>
      %r = stablehlo.real_dynamic_slice %x, %n, %end, %one : (tensor<6xf32>, tensor<1xi64>,
        tensor<1xi64>, tensor<1xi64>) -> tensor<2xf32>
      return %r : tensor<2xf32> }"""
    with enable_x64(True):
        np.testing.assert_array_equal(bridge.to_jax(text)(_SORTED, np.array([3])), _SORTED[3:5])


def test_each_operation_has_a_rule_or_is_refused_on_purpose():
    classes = [getattr(stablehlo, name) for name in dir(stablehlo) if name.endswith("Op")]
    names = {c.OPERATION_NAME for c in classes if hasattr(c, "OPERATION_NAME")}
    lacking = {name.removeprefix("stablehlo.") for name in names - JAX_TABLE.rules.keys()}
    assert lacking - _WALKED <= _REFUSED


def test_what_has_no_rule_says_so():
    text = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
      %t = stablehlo.create_token : !stablehlo.token
      %r:2 = "stablehlo.infeed"(%t) : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
      return %r#0 : tensor<4xf32> }"""
    with pytest.raises(UnsupportedError, match=r"stablehlo\.infeed at .*JAX has no operation for"):
        bridge.to_jax(text)(_X)


@pytest.mark.parametrize("shape", ["2x2", "2x3"])
def test_a_broadcast_that_changes_the_order_of_axes_has_a_derivative(shape):
    rows, columns = map(int, shape.split("x"))
    text = f"""func.func @main(%x: tensor<{shape}xf32>) -> tensor<{columns}x4x{rows}xf32> {{
      %r = stablehlo.broadcast_in_dim %x, dims = [2, 0]
        : (tensor<{shape}xf32>) -> tensor<{columns}x4x{rows}xf32>
      return %r : tensor<{columns}x4x{rows}xf32> }}"""
    lifted = bridge.to_jax(text)
    x, weights = np.ones((rows, columns), np.float32), np.arange(24 * 3.0, dtype=np.float32)
    weights = weights[: rows * columns * 4].reshape(columns, 4, rows)
    found = jax.grad(lambda x: (lifted(x) * weights).sum())(x)
    np.testing.assert_array_equal(found, weights.sum(1).T)
    assert jax.vmap(lifted)(x[None]).shape == (1, columns, 4, rows)


def test_a_broadcast_puts_each_axis_where_it_says():
    """Three that change places in turn: the order back is another one."""
    text = """func.func @main(%x: tensor<2x3x4xf32>) -> tensor<4x2x5x3xf32> {
      %r = stablehlo.broadcast_in_dim %x, dims = [1, 3, 0]
        : (tensor<2x3x4xf32>) -> tensor<4x2x5x3xf32>
      return %r : tensor<4x2x5x3xf32> }"""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    wanted = np.broadcast_to(x.transpose(2, 0, 1)[:, :, None], (4, 2, 5, 3))
    np.testing.assert_array_equal(bridge.to_jax(text)(x), wanted)
