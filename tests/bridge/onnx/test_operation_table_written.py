"""Operations that JAX does not write, but older programs and other frameworks do."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from jax.lax import linalg

import bridge
from tests.bridge.onnx.checking import assert_same, check, check_narrow, evaluate, run
from tests.bridge.onnx.written import check_written, exported
from tests.jax_versions import REVERSES_EQUAL_KEYS
from xla_call_module.errors import UnsupportedError

X = np.array([[1, 2.5], [3, -4], [5, 5.5]], np.float32)
SCALE = np.array([2, 0.5], np.float32)
VARIANCE = X.var(0)
NORMALIZED = (X - X.mean(0)) / np.sqrt(VARIANCE + np.float32(0.01))
EPSILON = "{epsilon = 0.01 : f32, feature_index = 1 : i64}"
FLOAT, INT, BOOL = "tensor<f32>", "tensor<i32>", "tensor<i1>"
COMPARATOR = """({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %p = stablehlo.compare LT, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %p : tensor<i1> })"""


def test_batch_norm_inference():
    check_written(
        f"""%r0 = "stablehlo.batch_norm_inference"(%a, %b, %c, %d, %e) {EPSILON}
        : (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>)
        -> tensor<3x2xf32>""",
        [X, SCALE, SCALE + 1, X.mean(0), VARIANCE],
        NORMALIZED * SCALE + SCALE + 1,
    )


def test_batch_norm_training():
    check_written(
        f"""%r0, %r1, %r2 = "stablehlo.batch_norm_training"(%a, %b, %c) {EPSILON}
        : (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>)
        -> (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>)""",
        [X, SCALE, SCALE + 1],
        NORMALIZED * SCALE + SCALE + 1,
        X.mean(0),
        VARIANCE,
    )


def test_batch_norm_gradients():
    gradient = np.array([[1, 0], [0.5, 2], [-1, 3]], np.float32)
    of_scale = (gradient * NORMALIZED).sum(0)
    rest = gradient - gradient.mean(0) - NORMALIZED * of_scale / 3
    check_written(
        f"""%r0, %r1, %r2 = "stablehlo.batch_norm_grad"(%a, %b, %c, %d, %e) {EPSILON}
        : (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<3x2xf32>)
        -> (tensor<3x2xf32>, tensor<2xf32>, tensor<2xf32>)""",
        [X, SCALE, X.mean(0), VARIANCE, gradient],
        SCALE * rest / np.sqrt(VARIANCE + np.float32(0.01)),
        of_scale,
        gradient.sum(0),
        rtol=1e-4,
    )


def test_einsum():
    a, b = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.ones((2, 2, 4), np.float32)
    check_written(
        """%r0 = stablehlo.einsum %a, %b, config = "bij,bjk->bik"
        : (tensor<2x3x2xf32>, tensor<2x2x4xf32>) -> tensor<2x3x4xf32>""",
        [a, b],
        np.einsum("bij,bjk->bik", a, b),
    )


def test_torch_index_select():
    a, index = np.arange(12, dtype=np.float32).reshape(2, 3, 2), np.array([2, 0, 9], np.int32)
    check_written(
        """%r0 = "stablehlo.torch_index_select"(%a, %b) {dim = 1 : i64, batch_dims = 0 : i64}
        : (tensor<2x3x2xf32>, tensor<3xi32>) -> tensor<2x3x2xf32>""",
        [a, index],
        a[:, [2, 0, 2]],
    )


def test_torch_index_select_in_batches():
    a = np.arange(24, dtype=np.int32).reshape(2, 4, 3)
    index = np.array([[0, 2, 1, 1], [2, 2, 0, 1]], np.int32)
    check_written(
        """%r0 = "stablehlo.torch_index_select"(%a, %b) {dim = 2 : i64, batch_dims = 1 : i64}
        : (tensor<2x4x3xi32>, tensor<2x4xi32>) -> tensor<2x4x4xi32>""",
        [a, index],
        np.take_along_axis(a, index[:, None, :].repeat(4, 1), 2),
    )


def test_map():
    check_written(
        """%r0 = "stablehlo.map"(%a, %a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %c = stablehlo.constant dense<2.0> : tensor<f32>
            %p = stablehlo.multiply %x, %c : tensor<f32>
            %q = stablehlo.add %p, %y : tensor<f32>
            stablehlo.return %q : tensor<f32> }) {dimensions = array<i64: 0, 1>}
        : (tensor<3x2xf32>, tensor<3x2xf32>) -> tensor<3x2xf32>""",
        [X],
        3 * X,
    )


@pytest.mark.parametrize(("index", "factor"), [(0, 1), (1, -1), (2, -1), (-1, -1)])
def test_a_case_whose_index_is_a_number(index, factor):
    """One that is out of bounds chooses the last branch."""
    check_written(
        f"""%i = stablehlo.constant dense<{index}> : tensor<i32>
        %r0 = "stablehlo.case"(%i) ({{
            %x = stablehlo.add %a, %a : tensor<3x2xf32>
            stablehlo.return %x : tensor<3x2xf32> }}, {{
            %y = stablehlo.add %a, %a : tensor<3x2xf32>
            %z = stablehlo.negate %y : tensor<3x2xf32>
            stablehlo.return %z : tensor<3x2xf32> }}) : (tensor<i32>) -> tensor<3x2xf32>""",
        [X],
        2 * factor * X,
    )


def test_tokens():
    check_written(
        """%t = stablehlo.create_token : !stablehlo.token
        %u = stablehlo.after_all %t, %t : !stablehlo.token
        %r0 = stablehlo.negate %a : tensor<3x2xf32>""",
        [X],
        -X,
    )


def test_a_sort_by_a_plain_comparison():
    check_written(
        f"""%r0 = "stablehlo.sort"(%a) {COMPARATOR} {{dimension = 0 : i64, is_stable = true}}
        : (tensor<3x2xf32>) -> tensor<3x2xf32>""",
        [X],
        np.sort(X, 0),
    )


def test_a_sort_by_any_comparison():
    a, b = np.array([[3, 1, 2, 2]], np.int64), np.array([[0, 5, 1, 0.5]], np.float32)
    order = np.argsort(-(a + b), 1, kind="stable")
    check_written(
        """%r0, %r1 = "stablehlo.sort"(%a, %b) ({
        ^bb0(%x: tensor<i64>, %y: tensor<i64>, %u: tensor<f32>, %v: tensor<f32>):
            %p = stablehlo.convert %x : (tensor<i64>) -> tensor<f32>
            %q = stablehlo.convert %y : (tensor<i64>) -> tensor<f32>
            %s = stablehlo.add %p, %u : tensor<f32>
            %t = stablehlo.add %q, %v : tensor<f32>
            %c = stablehlo.compare GT, %s, %t : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %c : tensor<i1> }) {dimension = 1 : i64, is_stable = true}
        : (tensor<1x4xi64>, tensor<1x4xf32>) -> (tensor<1x4xi64>, tensor<1x4xf32>)""",
        [a, b],
        np.take_along_axis(a, order, 1),
        np.take_along_axis(b, order, 1),
    )


@pytest.mark.parametrize(("direction", "sign"), [("LE", 1), ("GE", -1)])
def test_a_comparison_that_holds_of_equal_keys(direction, sign):
    a, b = np.array([[3, 1, 2, 1, 3, 1]], np.int64), np.arange(6, dtype=np.int64)[None]
    order = np.lexsort((-b, sign * a))
    check_written(
        f"""%r0, %r1 = "stablehlo.sort"(%a, %b) ({{
        ^bb0(%x: tensor<i64>, %y: tensor<i64>, %u: tensor<i64>, %v: tensor<i64>):
            %c = stablehlo.compare {direction}, %x, %y : (tensor<i64>, tensor<i64>) -> tensor<i1>
            stablehlo.return %c : tensor<i1> }}) {{dimension = 1 : i64, is_stable = true}}
        : (tensor<1x6xi64>, tensor<1x6xi64>) -> (tensor<1x6xi64>, tensor<1x6xi64>)""",
        [a, b],
        np.take_along_axis(a, order, 1),
        np.take_along_axis(b, order, 1),
        in_jax=REVERSES_EQUAL_KEYS,
    )


def test_too_many_elements_to_compare():
    a = np.zeros(20_000, np.int64)
    program = exported(
        """%r0 = "stablehlo.sort"(%a) ({ ^bb0(%x: tensor<i64>, %y: tensor<i64>):
            %s = stablehlo.multiply %x, %x : tensor<i64>
            %c = stablehlo.compare LT, %s, %y : (tensor<i64>, tensor<i64>) -> tensor<i1>
            stablehlo.return %c : tensor<i1> }) {is_stable = true}
        : (tensor<20000xi64>) -> tensor<20000xi64>""",
        [a],
        [a],
    )
    with pytest.raises(UnsupportedError, match=r"sort at .*20000 elements are too many"):
        bridge.to_onnx(program)


@pytest.mark.parametrize("count", [1, 0])
def test_a_choice_in_one_window_or_in_none(count):
    x = np.array([[3, 5, 2]], np.float32)[:, : 3 * count]
    check_written(
        f"""%c = stablehlo.constant dense<7.0> : tensor<1x{count}xf32>
        %z = stablehlo.constant dense<0.0> : tensor<f32>
        %r0 = "stablehlo.select_and_scatter"(%a, %c, %z) ({{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %p = stablehlo.compare GE, %x, %y : (tensor<f32>, tensor<f32>) -> tensor<i1>
            stablehlo.return %p : tensor<i1> }}, {{
        ^bb0(%x: tensor<f32>, %y: tensor<f32>):
            %p = stablehlo.add %x, %y : tensor<f32>
            stablehlo.return %p : tensor<f32> }}) {{window_dimensions = array<i64: 1, 3>}}
        : (tensor<1x{3 * count}xf32>, tensor<1x{count}xf32>, tensor<f32>)
        -> tensor<1x{3 * count}xf32>""",
        [x],
        np.float32([[0, 7, 0]])[:, : 3 * count],
    )


FOLD = """({{
    ^bb0(%x: tensor<i32>, %y: tensor<i32>):
        %p = stablehlo.{} %y, %y : tensor<i32>
        %q = stablehlo.{} %x, %p : tensor<i32>
        stablehlo.return %q : tensor<i32> }})"""


@pytest.mark.parametrize("operation", ["maximum", "subtract"])
def test_a_region_whose_order_matters(operation):
    x = np.array([[1, 2, 3, 9, 4], [4, 5, 6, 1, 7]], np.int32)
    function = {"maximum": np.maximum, "subtract": np.subtract}[operation]
    folded = functools.reduce(function, 2 * x.T, np.int32([3, 3]))
    check_written(
        f"""%r0 = "stablehlo.reduce"(%a, %b) {FOLD.format("add", operation)}
        {{dimensions = array<i64: 1>}} : (tensor<2x5xi32>, tensor<i32>) -> tensor<2xi32>""",
        [x, np.array(3, np.int32)],
        folded,
    )
    window = f"""%r0 = "stablehlo.reduce_window"(%a, %b) {FOLD.format("add", operation)}
        {{window_dimensions = array<i64: 1, 5>}}
        : (tensor<2x5xi32>, tensor<i32>) -> tensor<2x1xi32>"""
    check_written(window, [x, np.array(3, np.int32)], folded[:, None])


def test_scatters_into_several_arrays():
    a, b = np.array([1, 2, 3], np.int64), np.array([1, 2, 3], np.float32)
    index = np.array([[1], [7], [1]], np.int32)
    u, v = np.array([10, 20, 30], np.int64), np.array([0.5, 1.5, 4], np.float32)
    check_written(
        """%r0, %r1 = "stablehlo.scatter"(%a, %b, %c, %d, %e) ({
        ^bb0(%x: tensor<i64>, %p: tensor<f32>, %y: tensor<i64>, %q: tensor<f32>):
            %s = stablehlo.subtract %y, %x : tensor<i64>
            %t = stablehlo.multiply %p, %q : tensor<f32>
            stablehlo.return %s, %t : tensor<i64>, tensor<f32> })
        {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
         scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
        : (tensor<3xi64>, tensor<3xf32>, tensor<3x1xi32>, tensor<3xi64>, tensor<3xf32>)
        -> (tensor<3xi64>, tensor<3xf32>)""",
        [a, b, index, u, v],
        np.array([1, 30 - (10 - 2), 3], np.int64),
        np.array([1, 2 * 0.5 * 4, 3], np.float32),
    )


def test_pads_by_computed_amounts():
    a, filling = np.arange(6).reshape(2, 3), np.array(9)
    amounts = [np.array(n) for n in ([1, -1], [-1, 2], [1, 0])]
    check_written(
        """%r0 = stablehlo.dynamic_pad %a, %b, %c, %d, %e : (tensor<2x3xi64>, tensor<i64>,
        tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<3x4xi64>""",
        [a, filling, *amounts],
        np.array([[9, 9, 9, 9], [1, 2, 9, 9], [9, 9, 9, 9]]),
        in_jax=False,
    )


def test_slices_of_computed_sizes():
    a = np.arange(8).reshape(2, 4)
    check_written(
        """%r0 = stablehlo.real_dynamic_slice %a, %b, %c, %d : (tensor<2x4xi64>, tensor<2xi64>,
        tensor<2xi64>, tensor<2xi64>) -> tensor<1x2xi64>""",
        [a, np.array([1, 1]), np.array([2, 4]), np.array([1, 2])],
        a[1:2, 1:4:2],
        in_jax=False,
    )
    check_written(
        """%r0 = "stablehlo.dynamic_gather"(%a, %b, %c) {dimension_numbers = #stablehlo.gather<
        offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>,
        slice_sizes = array<i64: 1, 2>}
        : (tensor<2x4xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<2x2xi64>""",
        [a, np.array([0, 10]), np.array([1, 2])],
        a[:, :2],
        in_jax=False,
    )


def test_tuples():
    pair = "tuple<tensor<3x2xf32>, tensor<2xf32>>"
    check_written(
        f"""%t = stablehlo.tuple %a, %b : {pair}
        %u = stablehlo.tuple %t, %b : tuple<{pair}, tensor<2xf32>>
        %v = stablehlo.get_tuple_element %u[0] : (tuple<{pair}, tensor<2xf32>>) -> {pair}
        %r0 = stablehlo.get_tuple_element %v[1] : ({pair}) -> tensor<2xf32>""",
        [X, SCALE],
        SCALE,
    )


def test_bits_of_flags():
    flags = np.unpackbits(np.frombuffer(X.tobytes(), np.uint8), bitorder="little")
    flags = flags.reshape(3, 2, 32).astype(bool)
    check_written(
        """%r0 = stablehlo.bitcast_convert %a : (tensor<3x2xf32>) -> tensor<3x2x32xi1>
        %r1 = stablehlo.bitcast_convert %b : (tensor<3x2x32xi1>) -> tensor<3x2xi32>""",
        [X, flags],
        flags,
        X.view(np.int32),
        in_jax=False,  # which counts a flag as a byte
    )


def test_a_loop_that_never_begins():
    check_written(
        """%r0 = stablehlo.while(%x = %a) : tensor<3x2xf32>
        cond { stablehlo.return %b : tensor<i1> }
        do { %y = stablehlo.add %x, %x : tensor<3x2xf32>
             stablehlo.return %y : tensor<3x2xf32> }""",
        [X, np.array(False)],
        X,
    )


def test_the_size_of_a_dimension_stays():
    body = """%r0 = "stablehlo.set_dimension_size"(%a, %{}) {{dimension = 0 : i64}}
        : (tensor<3x2xf32>, tensor<i32>) -> tensor<3x2xf32>"""
    same = "%n = stablehlo.get_dimension_size %a, dim = 0 : (tensor<3x2xf32>) -> tensor<i32>\n"
    check_written(same + body.format("n"), [X], X)
    program = exported(body.format("b"), [X, np.array(2, np.int32)], [X])
    with pytest.raises(UnsupportedError, match=r"set_dimension_size at .*take a slice"):
        bridge.to_onnx(program)


@pytest.mark.parametrize("base", [0, 1, -1, 2])
def test_integers_to_negative_powers(base):
    check_written(
        "%r0 = stablehlo.power %a, %b : tensor<2xi32>",
        [np.full(2, base, np.int32), np.array([-1, -2], np.int32)],
        np.array([{1: 1, -1: -1}.get(base, 0), abs(base) == 1], np.int32),
    )


@pytest.mark.parametrize("lower", [True, False])
def test_cholesky(lower):
    matrix = np.array([[4, 2, 0], [2, 5, 1], [0, 1, 3]], np.float32)
    factor = np.linalg.cholesky(matrix)
    check_written(
        f"""%r0 = "stablehlo.cholesky"(%a) {{lower = {str(lower).lower()}}}
        : (tensor<3x3xf32>) -> tensor<3x3xf32>""",
        [matrix],
        factor if lower else factor.T,
    )


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE"])
def test_triangular_solve(left, transpose):
    matrix = np.array([[1, 0, 0], [2, 3, 0], [4, 5, 6]], np.float32)
    right = np.array([[7, 8, 9]], np.float32)
    used = matrix.T if transpose == "TRANSPOSE" else matrix
    right = right.T.copy() if left else right
    solution = np.linalg.solve(used, right) if left else np.linalg.solve(used.T, right.T).T
    dims = "3x1" if left else "1x3"
    check_written(
        f"""%r0 = "stablehlo.triangular_solve"(%a, %b) {{left_side = {str(left).lower()},
        lower = true, unit_diagonal = false, transpose_a = #stablehlo<transpose {transpose}>}}
        : (tensor<3x3xf32>, tensor<{dims}xf32>) -> tensor<{dims}xf32>""",
        [matrix, right],
        np.ascontiguousarray(solution).astype(np.float32),
    )


def test_lapack_leaves_the_other_triangle():
    matrix = np.array([[4, 2, 7], [2, 5, 1], [7, 1, 30]], np.float32)
    check(lambda a: linalg.cholesky_p.bind(a), matrix, rtol=1e-4)


def test_comparators_of_bits():
    """As JAX wrote them before StableHLO had a total order."""
    keys = []
    for name in "xy":
        keys += [
            f"%{name}i = stablehlo.bitcast_convert %{name} : ({FLOAT}) -> {INT}",
            f"%{name}s = stablehlo.subtract %most, %{name}i : {INT}",
            f"%{name}n = stablehlo.compare LT, %{name}i, %zero : ({INT}, {INT}) -> {BOOL}",
            f"%{name}k = stablehlo.select %{name}n, %{name}s, %{name}i : {BOOL}, {INT}",
        ]
    numbers = np.float32([2, -np.nan, -0.0, 1, np.nan, 0.0, -np.inf, np.inf, -3, -2, 0.0])
    order = np.array([1, 6, 8, 9, 2, 5, 10, 3, 0, 7, 4], np.int32)
    check_written(
        f"""%n = stablehlo.iota dim = 0 : tensor<11xi32>
        %s, %r0 = "stablehlo.sort"(%a, %n) ({{ ^bb0(%x: {FLOAT}, %y: {FLOAT},
            %l: {INT}, %m: {INT}):
            %most = stablehlo.constant dense<2147483647> : {INT}
            %zero = stablehlo.constant dense<0> : {INT}
            {chr(10).join(keys)}
            %p = stablehlo.compare LT, %xk, %yk : ({INT}, {INT}) -> {BOOL}
            stablehlo.return %p : {BOOL} }}) {{dimension = 0 : i64, is_stable = true}}
        : (tensor<11xf32>, tensor<11xi32>) -> (tensor<11xf32>, tensor<11xi32>)""",
        [numbers],
        order,
    )


def test_calls_of_mhlo():
    """As JAX wrote them before it wrote composites."""
    check_written(
        """%r0 = stablehlo.custom_call @mhlo.erf(%a) {mhlo.attributes = {}, mhlo.version = 1 : i64}
            : (tensor<3x2xf32>) -> tensor<3x2xf32>
        %r1, %r2 = stablehlo.custom_call @mhlo.topk(%a)
            {mhlo.attributes = {k = 1 : i64, largest = true}, mhlo.version = 1 : i64}
            : (tensor<3x2xf32>) -> (tensor<3x1xf32>, tensor<3x1xi32>)""",
        [X],
        np.asarray(jax.lax.erf(X)),
        X.max(1, keepdims=True),
        X.argmax(1)[:, None].astype(np.int32),
    )


@pytest.mark.parametrize(("scatter", "start"), [("or", False), ("add", False), ("and", True)])
def test_what_windows_hand_back_to_flags(scatter, start):
    operand = np.array([False, True, True, True, False])
    source = np.array([True, False, start, not start])
    expected = np.full(5, start)
    for window, flag in enumerate(source):
        place = window if operand[window] or not operand[window + 1] else window + 1
        expected[place] = expected[place] & flag if scatter == "and" else expected[place] | flag
    check_written(
        f"""%s = stablehlo.constant dense<{str(start).lower()}> : {BOOL}
        %r0 = "stablehlo.select_and_scatter"(%a, %b, %s) <{{window_dimensions = array<i64: 2>}}> ({{
          ^bb0(%x: {BOOL}, %y: {BOOL}):
            %0 = stablehlo.compare GE, %x, %y : ({BOOL}, {BOOL}) -> {BOOL}
            stablehlo.return %0 : {BOOL} }}, {{
          ^bb0(%x: {BOOL}, %y: {BOOL}):
            %0 = stablehlo.{scatter} %x, %y : {BOOL}
            stablehlo.return %0 : {BOOL} }})
        : (tensor<5xi1>, tensor<4xi1>, {BOOL}) -> tensor<5xi1>""",
        [operand, source],
        expected,
    )


@pytest.mark.parametrize("dtype", ["float32", "int32", "int4"])
def test_collectives_of_one_device_do_nothing(dtype):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("i",))

    def combine(x):
        place = jax.lax.axis_index("i").astype(x.dtype)
        return jax.lax.psum(x + place, "i")

    function = jax.shard_map(
        combine, mesh=mesh, in_specs=jax.sharding.PartitionSpec("i"),
        out_specs=jax.sharding.PartitionSpec(),
    )  # fmt: skip
    x = np.array([1, -2, 3, 7]).astype(dtype)
    if dtype == "int4":
        check_narrow(function, [x], [x])
    else:
        check(function, x)


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("all_gather", "all_gather_dim = 0 : i64, replica_groups = dense<0> : tensor<1x1xi64>"),
        ("collective_broadcast", "replica_groups = dense<0> : tensor<1x1xi64>"),
        ("collective_permute", "source_target_pairs = dense<0> : tensor<1x2xi64>"),
    ],
)
def test_collectives_of_modules_for_one_device(tmp_path, name, attributes):
    path = tmp_path / "collective.mlir"
    text = f"""func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {{
        %r = "stablehlo.{name}"(%a) {{{attributes}}} : (tensor<2xf32>) -> tensor<2xf32>
        return %r : tensor<2xf32> }}"""
    path.write_text(text)
    model = bridge.to_onnx(path)
    assert_same(run(model, [SCALE]), [SCALE], rtol=0, atol=0)
    assert_same(evaluate(model, [SCALE]), [SCALE], rtol=0, atol=0)
    path.write_text(text.replace("dense<0>", "dense<[[0, 1]]>").replace("1x1xi64", "1x2xi64"))
    with pytest.raises(UnsupportedError, match="it is for several devices"):
        bridge.to_onnx(path)
