"""The table of statements that random TensorFlow functions consist of, as that of JAX programs.

What the words in braces and the kinds of operands mean is said in `tests.fuzzing.programs.
statements`. `BODIES` are the expressions of branches, loops and nested functions.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzzing.programs.statements import Draw, collect, kind_of

_FLOATS = (
    "tf.sin({x})", "tf.tanh({x})", "{x} * 0.5", "{x} + 1", "{x} * {x} * 0.1", "tf.sigmoid({x})",
    "tf.maximum({x}, 0)", "tf.where({x} > 0, {x}, {x} * 0.1)", "tf.abs({x})",
    "tf.exp(-{x} * {x})", "{x} / (1 + tf.abs({x}))", "tf.math.log1p(tf.abs({x}))", "-{x}",
    "{x} - tf.reduce_mean({x})", "tf.sqrt(1 + {x} * {x})", "tf.nn.relu({x})", "tf.minimum({x}, 1)",
    "tf.zeros_like({x})", "{x}", "tf.floor({x}) + {x}", "tf.stop_gradient({x}) + {x}",
)  # fmt: skip
_COMPLEX = ("{x} * 0.5", "{x} * {x} * 0.1", "tf.math.conj({x})", "{x} * 1j", "-{x}")
_INTEGERS = ("{x} + 1", "{x} * 2", "{x} // 2", "tf.minimum({x}, 4)", "{x}")

# Units in the last place that a statement may be wrong by, and a part of the largest element, in
# units of the dtype's epsilon. By default a few units; a sum, a product of matrices and what
# iterates are wrong by a part of what goes in.
_ULPS = 8.0
_SUMS, _LINALG = 16.0, 400.0
_WHOLE = {"sum": _SUMS, "linalg": _LINALG}
_SPECIAL = {"lgamma": 256.0, "digamma": 256.0, "igamma": 4096.0, "erfinv": 128.0, "pow": 64.0,
            "bessel": 64.0, "ndtri": 256.0, "betainc": 8192.0, "atanh": 32.0}  # fmt: skip


def accuracy_of(template: str) -> tuple[float, float]:
    """Units in the last place, and epsilons of the largest element, that a result may be off."""
    family = template.partition(":")[0] if ":" in template else ""
    return _SPECIAL.get(template, _ULPS), _WHOLE.get(family, 0.0)


class TensorFlowDraw(Draw):
    """The words of a text, drawn for tensors."""

    def body(self) -> str:
        """An expression of `x` that keeps shape and dtype."""
        texts = {"f": _FLOATS, "c": _COMPLEX}.get(kind_of(self._avals[0].dtype), _INTEGERS)
        text = "x"
        for _ in range(self._rng.choice([1, 1, 2])):
            inner = f"({text})" if text != "x" else text
            text = self._rng.choice(texts).replace("{x}", inner)
        return text

    def algorithm(self) -> str:
        """An algorithm for random numbers."""
        return self._rng.choice(["philox", "threefry"])

    def slices(self) -> str:
        """Return what a strided slice has between the brackets."""
        choices = (":", ":", "1:", ":-1", "::2", "::-1", "0", "-1", "0:2")
        rank = len(self._avals[0].shape)
        return ", ".join(self._rng.choices(choices, k=self._rng.randint(1, rank)))

    def name(self) -> str:
        """The dtype of operand 0."""
        return str(self._avals[0].dtype)


_Add = Callable[..., None]


def _elementwise(statement: _Add) -> None:
    for name in ("square", "negative", "abs", "sign"):
        statement(name, f"tf.{name}({{0}})", "f", level="max+2" if name == "square" else "max")
    for name in ("floor", "math.ceil", "math.rint", "round"):
        statement(name, f"tf.{name}({{0}})", "f", weight=0.5)
    for name in ("sin", "cos", "tanh", "math.sigmoid", "math.erf", "math.erfc", "math.atan"):
        statement(name, f"tf.{name}({{0}})", "f", level="1")
    for name in ("math.asinh", "math.expm1", "exp", "math.sinh", "math.cosh"):
        statement(name, f"tf.{name}(tf.clip_by_value({{0}}, -3, 3))", "f", level="4")
    statement("sqrt", "tf.sqrt(tf.abs({0}))", "f")
    statement("rsqrt", "tf.math.rsqrt(tf.abs({0}) + 0.5)", "f", level="1")
    statement("log", "tf.math.log(tf.abs({0}) + 0.5)", "f")
    statement("log1p", "tf.math.log1p(tf.abs({0}))", "f")
    statement("log_raw", "tf.math.log({0})", "f", weight=0.2)
    statement("lgamma", "tf.math.lgamma(tf.abs({0}) + 0.5)", "f", level="max+2", weight=0.5)
    statement("digamma", "tf.math.digamma(tf.abs({0}) + 0.5)", "f", level="2", weight=0.5)
    statement("erfinv", "tf.math.erfinv(tf.tanh({0}) * 0.9)", "f", level="2", weight=0.5)
    statement("ndtri", "tf.math.ndtri(tf.sigmoid({0}))", "f", level="3", weight=0.4)
    statement("atanh", "tf.math.atanh(tf.tanh({0}) * 0.9)", "f", level="2", weight=0.5)
    statement("bessel", "tf.math.bessel_i0e({0})", "f", level="1", weight=0.3)
    statement("reciprocal", "tf.math.reciprocal(1 + tf.square({0}))", "f", level="1")
    statement("reciprocal_no_nan", "tf.math.reciprocal_no_nan({0})", "f", level="6", weight=0.2)
    for name in ("is_nan", "is_finite", "is_inf"):
        statement(name, f"tf.math.{name}({{0}})", "f", weight=0.2, level="0")
    statement("complex", "tf.complex({0}, {1})", "f", "==0")
    statement("conj", "tf.math.conj({0})", "c")
    statement("real", "tf.math.real({0})", "c")
    statement("imag", "tf.math.imag({0})", "c")
    statement("abs_complex", "tf.abs({0})", "c")
    statement("angle", "tf.math.angle({0})", "c", level="2", weight=0.5)
    statement("exp_complex", "tf.exp(tf.complex(-tf.abs({0}), tf.math.imag({0})))", "c", level="2")
    statement("complex_constant", "{0} * tf.constant(0.5 - 2j, {0}.dtype)", "c", level="max+2")
    statement("scaled", "{0} * {number}", "fc", level="max+2")
    statement("shifted", "{0} + {small}", "fiu", level="max+1")


def _activations(statement: _Add) -> None:
    for name in ("relu", "relu6", "elu", "selu", "gelu", "silu", "softplus", "softsign",
                 "leaky_relu", "swish", "crelu"):  # fmt: skip
        statement(name, f"tf.nn.{name}({{0}})", "f", level="max+1", weight=0.5,
                  rank=1 if name == "crelu" else 0)  # fmt: skip
    statement("sum:softmax", "tf.nn.softmax({0}, axis={axis})", "f", level="1", rank=1)
    statement("sum:log_softmax", "tf.nn.log_softmax({0}, axis={axis})", "f", level="4", rank=1)
    statement("sum:l2_normalize", "tf.nn.l2_normalize({0}, {axis}, 0.1)", "f", rank=1, level="1")
    statement("sum:moments", "tf.nn.moments({0}, [{axis}])[{flag_index}]"
              .replace("{flag_index}", "1"), "f", rank=1, level="max+3")  # fmt: skip
    statement("sum:cross_entropy", "tf.nn.softmax_cross_entropy_with_logits({0}, {1})", "f", "==0",
              rank=1, level="sum+3", weight=0.5)  # fmt: skip
    statement("sigmoid_cross_entropy",
              "tf.nn.sigmoid_cross_entropy_with_logits(labels={0}, logits={1})", "f", "==0",
              level="sum", weight=0.5)  # fmt: skip
    statement("dropout_zero", "tf.nn.dropout({0}, 0.0)", "f", weight=0.2)


def _binary(statement: _Add) -> None:
    for sign in "+-":
        statement(f"binary {sign}", f"{{0}} {sign} {{1}}", "fciu", "=0", level="max+1", weight=1.5)
    statement("binary *", "{0} * {1}", "fc", "=0", level="sum", weight=2)
    statement("integer *", "{0} * {1}", "iu", "=0", level="sum")
    statement("division", "{0} / (1 + tf.square({1}))", "fc", "=0", weight=1)
    statement("divide_no_nan", "tf.math.divide_no_nan({0}, {1})", "f", "=0", level="max+6",
              weight=0.4)  # fmt: skip
    for name in ("maximum", "minimum"):
        statement(name, f"tf.{name}({{0}}, {{1}})", "fi", "=0")
    statement("pow", "tf.pow(tf.abs({0}) + 0.5, tf.clip_by_value({1}, -2, 2))", "f", "=0",
              level="max+5")  # fmt: skip
    statement("atan2", "tf.math.atan2({0}, {1})", "f", "=0", level="2")
    statement("squared_difference", "tf.math.squared_difference({0}, {1})", "f", "=0",
              level="sum+2")  # fmt: skip
    statement("xlogy", "tf.math.xlogy({0}, tf.abs({1}) + 0.1)", "f", "=0", level="max+2")
    statement("floormod", "tf.math.floormod({0}, {small} + 0.5)", "f", level="2", weight=0.4)
    statement("igamma", "tf.math.igamma(tf.abs({0}) + 0.5, tf.abs({1}) + 0.1)", "f", "==0",
              level="1", weight=0.2)  # fmt: skip
    for sign in ("<", ">=", "=="):
        statement(f"compare {sign}", f"tf.cast({{0}} {sign} {{1}}, {{0}}.dtype)", "fi", "=0",
                  level="0", weight=0.4)  # fmt: skip
    statement("where", "tf.where({0} > 0, {0}, {1})", "f", "=0")
    statement("where_mask", "tf.where({1}, {0}, tf.zeros_like({0}))", "fc", "b", weight=0.5)
    statement("clip", "tf.clip_by_value({0}, -{small}, {small})", "f", level="2")
    statement("add_n", "tf.add_n([{0}, {1}, {0}])", "f", "==0", level="max+2")
    statement("logical", "tf.math.logical_xor({0}, {1})", "b", "=0", level="0", weight=0.4)
    statement("logical_not", "tf.logical_not({0})", "b", level="0", weight=0.3)


def _integers(statement: _Add) -> None:
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        statement(name, f"tf.bitwise.{name}({{0}}, {{1}})", "iu", "=0", weight=0.3)
    statement("left_shift", "tf.bitwise.left_shift({0}, tf.cast({small}, {0}.dtype))", "iu",
              level="max+3", weight=0.3)  # fmt: skip
    statement("floordiv", "{0} // {small}", "iu", weight=0.5)
    statement("mod", "{0} % {small}", "i", weight=0.5, level="2")
    statement("truncatediv", "tf.truncatediv({0}, {small})", "i", weight=0.3)


def _reductions(statement: _Add) -> None:
    for name in ("sum", "mean"):
        statement(f"sum:reduce_{name}", f"tf.reduce_{name}({{0}}, {{axes}})", "fc", rank=1,
                  level="max+3", weight=1.5)  # fmt: skip
        statement(f"sum:keepdims_{name}", f"tf.reduce_{name}({{0}}, {{axes}}, keepdims=True)", "f",
                  rank=1, level="max+3")  # fmt: skip
    for name in ("max", "min", "prod"):
        statement(f"reduce_{name}", f"tf.reduce_{name}({{0}}, {{axes}})", "f", rank=1,
                  level="6" if name == "prod" else "max", weight=0.7)  # fmt: skip
    statement("integer_sum", "tf.reduce_sum({0}, {axes})", "iu", rank=1, level="max+3")
    statement("sum:logsumexp", "tf.reduce_logsumexp({0}, {axis})", "f", rank=1, level="max+2")
    statement("sum:variance", "tf.math.reduce_variance({0}, {axis})", "f", rank=1, level="max+3")
    statement("sum:std", "tf.math.reduce_std({0} * {0} + 1, {axis})", "f", rank=1, level="max+3",
              weight=0.4)  # fmt: skip
    statement("sum:euclidean", "tf.math.reduce_euclidean_norm({0}, {axis})", "f", rank=1,
              level="max+2", weight=0.5)  # fmt: skip
    statement("any", "tf.reduce_any({0}, {axes})", "b", rank=1, level="0", weight=0.3)
    statement("argmax", "tf.argmax({0}, {axis})", "fi", rank=1, level="3", weight=0.5)
    statement("argmin32", "tf.argmin({0}, {axis}, output_type=tf.int32)", "f", rank=1, level="3",
              weight=0.4)  # fmt: skip
    statement("sum:cumsum", "tf.cumsum({0}, {axis}, exclusive={flag}, reverse={flag})", "fi",
              rank=1, level="max+3")  # fmt: skip
    statement("cumprod", "tf.math.cumprod(tf.tanh({0}), {axis})", "f", rank=1, level="1",
              weight=0.6)  # fmt: skip
    statement("sum:cumulative_logsumexp", "tf.math.cumulative_logsumexp({0}, {axis})", "f", rank=1,
              level="max+3", weight=0.4)  # fmt: skip


def _shapes(statement: _Add) -> None:
    statement("transpose", "tf.transpose({0}, {permutation})", "fciub", rank=2)
    statement("expand", "tf.expand_dims({0}, {axis})", "fcib", rank=1)
    statement("flatten", "tf.reshape({0}, [-1])", "fci", rank=1)
    statement("reshape", "tf.reshape({0}, tf.concat([tf.shape({0})[:1], [-1]], 0))", "f", rank=2)
    statement("reverse", "tf.reverse({0}, [{axis}])", "fci", rank=1)
    statement("roll", "tf.roll({0}, {small}, {axis})", "fci", rank=1)
    statement("tile", "tf.tile({0}, [{small}] + [1] * ({0}.shape.rank - 1))", "f", rank=1,
              weight=0.5)  # fmt: skip
    statement("repeat", "tf.repeat({0}, 2, axis={axis})", "fi", rank=1, weight=0.5)
    statement("pad", "tf.pad({0}, [[{small}, 1]] * {0}.shape.rank, constant_values=0)", "fi",
              rank=1, weight=0.5)  # fmt: skip
    statement("pad_reflect", "tf.pad({0}, [[1, 1]] * {0}.shape.rank, 'REFLECT')", "f", rank=1,
              weight=0.3)  # fmt: skip
    statement("concat", "tf.concat([{0}, {1}], {axis})", "fci", "==0", rank=1)
    statement("stack", "tf.stack([{0}, {1}], 0)", "fc", "==0")
    statement("unstack", "tf.unstack({0}, axis=-1)[0]", "f", rank=2, static=True, weight=0.4)
    statement("split", "tf.split({0}, [1, {0}.shape[-1] - 1], -1)[0]", "f", rank=1, static=True,
              weight=0.4)  # fmt: skip
    statement("slice", "{0}[{slices}]", "fciub", rank=1, weight=2)
    statement("newaxis", "{0}[..., tf.newaxis, :]", "f", rank=1, weight=0.4)
    statement("broadcast", "tf.broadcast_to({0}, tf.concat([[{small}], tf.shape({0})], 0))", "fci",
              weight=0.6)  # fmt: skip
    statement("zeros_like", "tf.zeros_like({0}) + 1", "fi", level="1", weight=0.3)
    statement("sized", "{0} * tf.cast(tf.shape({0})[0], {0}.dtype)", "f", rank=1, level="max+4",
              weight=0.6)  # fmt: skip
    statement("range", "{0} + tf.cast(tf.range(tf.shape({0})[-1]), {0}.dtype)", "fi", rank=1,
              level="max+3", weight=0.6)  # fmt: skip
    statement("diag", "tf.linalg.diag({0})", "fc", rank=1, weight=0.5)
    statement("diag_part", "tf.linalg.diag_part({0})", "f", rank=2, weight=0.4)
    statement("band_part", "tf.linalg.band_part({0}, 1, 0)", "f", rank=2, weight=0.5)
    statement("meshgrid", "tf.meshgrid({0}, {1})[0]", "f", "~0", weight=0.2)
    statement("squeeze", "tf.squeeze(tf.expand_dims({0}, 0), 0)", "fi", weight=0.2)


def _indexing(statement: _Add) -> None:
    statement("gather", "tf.gather({0}, [0, -1 + tf.shape({0})[{axis}], 0], axis=0)"
              .replace("{axis}", "0"), "fc", rank=1)  # fmt: skip
    statement("gather_index", "tf.gather({0}, tf.math.floormod({1}, 2), axis=0)", "f", "i", rank=1)
    statement("gather_last", "tf.gather({0}, [1, 0], axis=-1)", "f", rank=1, weight=0.6)
    statement("gather_nd", "tf.gather_nd({0}, [[0, 0], [1, 0]])", "f", rank=2, weight=0.6)
    statement("take_along", "tf.gather({0}, tf.argsort({0}, -1), axis=-1, batch_dims={0}.shape.rank"
              " - 1)", "f", rank=1, weight=0.4)  # fmt: skip
    statement("scatter_nd", "tf.scatter_nd([[0], [2], [0]], {0}[:3] * 0 + {0}[:1], "
              "tf.concat([[4], tf.shape({0})[1:]], 0))", "f", rank=1, weight=0.5)  # fmt: skip
    statement("scatter_update", "tf.tensor_scatter_nd_update({0}, [[0]], {0}[1:2])", "fi", rank=1,
              weight=0.7)  # fmt: skip
    statement("scatter_add", "tf.tensor_scatter_nd_add({0}, [[0], [1], [0]], tf.stack([{0}[1]] * "
              "3))", "f", rank=1, weight=0.7, level="max+2")  # fmt: skip
    statement("scatter_max", "tf.tensor_scatter_nd_max({0}, [[0], [1]], {0}[:2] * 0.5)", "f",
              rank=1, weight=0.3)  # fmt: skip
    statement("one_hot", "tf.one_hot({0}, 4)", "i", level="1", weight=0.6)
    statement("sort", "tf.sort({0}, {axis}, direction='DESCENDING')", "fi", rank=1, weight=0.7)
    statement("argsort", "tf.argsort({0}, {axis}, stable=True)", "fi", rank=1, level="3",
              weight=0.4)  # fmt: skip
    statement("top_k", "tf.math.top_k({0}, 2)[0]", "fi", rank=1, weight=0.6)
    statement("sum:segment_sum", "tf.math.unsorted_segment_sum({0}, tf.range(tf.shape({0})[0]) % 2,"
              " 2)", "f", rank=1, level="max+2", weight=0.5)  # fmt: skip
    statement("searchsorted", "tf.searchsorted([-1., 0., 1.], tf.cast({0}, tf.float32))", "f",
              level="2", weight=0.3, rank=1)  # fmt: skip
    statement("sequence_mask", "tf.sequence_mask(tf.math.floormod({0}, 4), 4)", "i", level="0",
              weight=0.3)  # fmt: skip


def _networks(statement: _Add) -> None:
    image = "tf.reshape(tf.concat([tf.reshape({0}, [-1]), tf.zeros([32], {0}.dtype)], 0)[:32], "
    for padding in ("SAME", "VALID"):
        statement(f"sum:conv2d {padding}", f"tf.nn.conv2d({image}[1, 4, 4, 2]), tf.reshape("
                  f"tf.cast(tf.range(24), {{0}}.dtype) * 0.1 - 1, [2, 2, 2, 3]), {{small}}, "
                  f"'{padding}')", "f", rank=1, level="max+3", weight=0.5)  # fmt: skip
        statement(f"max_pool {padding}", f"tf.nn.max_pool2d({image}[1, 4, 4, 2]), 2, {{small}}, "
                  f"'{padding}')", "f", rank=1, weight=0.4)  # fmt: skip
        statement(f"sum:avg_pool {padding}", f"tf.nn.avg_pool2d({image}[1, 4, 4, 2]), 2, {{small}},"
                  f" '{padding}')", "f", rank=1, weight=0.4)  # fmt: skip
    statement("sum:depthwise", f"tf.nn.depthwise_conv2d({image}[2, 4, 4, 1]), tf.ones([2, 2, 1, 2],"
              " {0}.dtype) * 0.5, [1, 1, 1, 1], 'SAME')", "f", rank=1, level="max+2",
              weight=0.3)  # fmt: skip
    statement("sum:conv1d", "tf.nn.conv1d({0}[..., None], tf.reshape(tf.constant([0.5, 1., -1.], "
              "{0}.dtype), [3, 1, 1]), 1, 'SAME')", "f", rank=2, level="max+2",
              weight=0.5)  # fmt: skip
    statement("pool_rows", "tf.nn.max_pool1d({0}[..., None], 2, 1, 'SAME')", "f", rank=2,
              weight=0.5)  # fmt: skip
    statement("space_to_depth", f"tf.nn.space_to_depth({image}[1, 4, 4, 2]), 2)", "f", rank=1,
              weight=0.3)  # fmt: skip
    statement("sum:batch_norm", f"tf.compat.v1.nn.fused_batch_norm({image}[2, 2, 4, 2]), [1., 2.], "
              "[0., 1.])[0]", "f", rank=1, level="3", weight=0.3)  # fmt: skip
    statement("sum:resize", f"tf.image.resize({image}[1, 4, 4, 2]), [3, 5])", "f", rank=1,
              weight=0.2)  # fmt: skip


def _linear_algebra(statement: _Add) -> None:
    statement("sum:matmul", "tf.matmul({0}, {1}, transpose_b=True)", "fc", "~0", rank=2,
              level="sum+2", weight=1.5)  # fmt: skip
    statement("sum:gram", "tf.matmul({0}, {0}, transpose_a=True)", "f", rank=2, level="sum+3")
    statement("sum:matvec", "tf.linalg.matvec({0}, {1})", "f", "~0", rank=2, level="sum+2")
    statement("sum:einsum", "tf.einsum('...i,...j->...ij', {0}, {1})", "fc", "==0", rank=1,
              level="sum")  # fmt: skip
    statement("sum:einsum_sum", "tf.einsum('...i,...i->...', {0}, {1})", "f", "==0", rank=1,
              level="sum+2")  # fmt: skip
    statement("sum:tensordot", "tf.tensordot({0}, {1}, [[-1], [-1]])", "f", "~0", rank=1,
              level="sum+2", weight=0.7)  # fmt: skip
    spd = "tf.matmul({0}, {0}, transpose_b=True) * 0.1 + tf.eye(tf.shape({0})[-2], dtype={0}.dtype)"
    for name, text in {
        "cholesky": f"tf.linalg.cholesky({spd})",
        "inv": f"tf.linalg.inv({spd})",
        "det": f"tf.linalg.det({spd})",
        "logdet": f"tf.linalg.logdet({spd})",
        "solve": f"tf.linalg.solve({spd}, {{0}})",
        "eigvalsh": f"tf.linalg.eigvalsh({spd})",
        "qr": f"tf.abs(tf.linalg.qr({spd})[1])",
        "svd": f"tf.linalg.svd({spd}, compute_uv=False)",
        "triangular": f"tf.linalg.triangular_solve(tf.linalg.cholesky({spd}), {{0}})",
        "expm": "tf.linalg.expm(tf.matmul(tf.tanh({0}), tf.tanh({0}), transpose_b=True) * 0.1)",
    }.items():
        statement(f"linalg:{name}", text, "f", rank=2, level="max+3", weight=0.12)
    statement("linalg:norm", "tf.norm({0} + 2)", "f", rank=1, level="max+3", weight=0.4)
    statement("linalg:trace", "tf.linalg.trace({0})", "f", rank=2, level="max+2", weight=0.4)
    statement("fft", "tf.signal.fft({0})", "c", rank=1, level="max+3", weight=0.5)
    statement("linalg:rfft", "tf.abs(tf.signal.rfft({0}, [4])) + 0.1", "f", rank=1, level="max+3",
              weight=0.3)  # fmt: skip
    statement("linalg:cross", "tf.linalg.cross({0}[..., :3], {0}[..., :3] + 1)", "f", rank=1,
              level="sum+1", weight=0.2)  # fmt: skip


def _random(statement: _Add) -> None:
    for name in ("uniform", "normal", "truncated_normal"):
        statement(f"stateless_{name}", f"{{0}} + tf.random.stateless_{name}(tf.shape({{0}}), "
                  "[{seed}, 1], dtype={0}.dtype, alg='philox')", "f", rank=1, weight=0.3,
                  level="max+2")  # fmt: skip
    # Each element of a batch has a seed of its own; TensorFlow's kernels have no threefry.
    statement("stateless_seeds", "{0} + tf.function(lambda x: tf.reduce_sum("
              "tf.random.stateless_uniform([2], [tf.cast(tf.reduce_max(x), tf.int32), {seed}], "
              "0, 5, x.dtype, alg='{algorithm}')), jit_compile=True)({0})", "i", rank=1, weight=0.3,
              level="max+3")  # fmt: skip
    statement("stateless_integers", "{0} + tf.random.stateless_uniform(tf.shape({0}), [{seed}, 2], "
              "0, 5, {0}.dtype, alg='philox')", "i", rank=1, weight=0.3,
              level="max+3")  # fmt: skip


def _conversions(statement: _Add) -> None:
    statement("cast_float", "tf.cast({0}, '{float}')", "fiub")
    statement("cast_integer", "tf.cast(tf.clip_by_value({0}, -50, 50), 'int32')", "f", level="5")
    statement("cast_integers", "tf.cast({0}, '{integer}')", "iub", weight=0.5)
    statement("cast_complex", "tf.cast({0}, '{complex}')", "f", weight=0.4)
    statement("cast_wide", "tf.cast(tf.cast({0}, 'float64') * 2, {0}.dtype)", "f", weight=0.3)
    statement("cast_int64", "tf.cast(tf.cast({0}, 'int64') * 3, {0}.dtype)", "i", weight=0.3,
              level="max+2")  # fmt: skip
    statement("cast_bool", "tf.cast({0}, 'bool')", "fi", level="0", weight=0.3)
    statement("bitcast", "tf.bitcast(tf.bitcast(tf.cast({0}, 'float32'), 'int32'), 'float32')", "f",
              weight=0.2)  # fmt: skip
    statement("saturate", "tf.saturate_cast({0} * 30, 'int8')", "f", level="7", weight=0.3)
    statement("float8", "tf.cast(tf.cast({0}, '{tiny}'), {0}.dtype)", "f", weight=0.2)


def _control_flow(statement: _Add) -> None:
    body = "(lambda x: {body})"
    statement("cond", f"tf.cond(tf.reduce_sum({{0}}) > 0, lambda: {body}({{0}}), lambda: {body}"
              "({0}))", "f", weight=1.2)  # fmt: skip
    statement("cond_mask", f"tf.cond(tf.reduce_any({{1}}), lambda: {body}({{0}}), lambda: {{0}})",
              "fc", "b", weight=0.5)  # fmt: skip
    statement("switch_case", f"tf.switch_case(tf.constant({{small}} - 1), [lambda: {body}({{0}}), "
              f"lambda: {body}({{0}}), lambda: {{0}}])", "f", weight=0.6)  # fmt: skip
    statement("while_loop", f"tf.while_loop(lambda i, x: i < {{small}}, lambda i, x: (i + 1, {body}"
              "(x)), (0, {0}), maximum_iterations=4)[1]", "fc", weight=0.9)  # fmt: skip
    statement("while_value", f"tf.while_loop(lambda i, x: tf.reduce_sum(tf.abs(x)) < 9, lambda i, x"
              f": (i + 1, {body}(x) + 0.5), (0, {{0}}), maximum_iterations=3)[1]", "f",
              weight=0.5, level="max+2")  # fmt: skip
    statement("map_fn", f"tf.map_fn({body}, {{0}})", "f", rank=1, weight=0.8)
    statement("scan", f"tf.scan(lambda c, x: c * 0.5 + {body}(x), {{0}})", "f", rank=1, weight=0.6,
              level="max+1")  # fmt: skip
    statement("foldl", "tf.foldl(lambda c, x: c * 0.5 + x, {0})", "f", rank=1, weight=0.4,
              level="max+1")  # fmt: skip
    statement("vectorized_map", f"tf.vectorized_map({body}, {{0}})", "f", rank=1, weight=0.2)
    statement("tensor_array", "rows_{tag}({0})", "f", rank=1, weight=0.7, preamble="""\
def rows_{tag}(x):
    array = tf.TensorArray(x.dtype, size=3, element_shape=x.shape[1:])
    for index in range(3):
        row = x[index % 2] * (index + 1)
        array = array.write(index, {body})
    return array.stack()
""".replace("{body}", "tf.tanh(row)"))  # fmt: skip


def _functions(statement: _Add) -> None:
    statement(
        "function",
        "inner_{tag}({0})",
        "fci",
        weight=1,
        preamble="""\
@tf.function(autograph=False)
def inner_{tag}(x):
    return {body}
""",
    )
    statement("custom_gradient", "scaled_{tag}({0})", "f", weight=0.8, preamble="""\
@tf.custom_gradient
def scaled_{tag}(x):
    return x * 2, lambda upstream: upstream * {number}
""")  # fmt: skip
    statement(
        "custom_square",
        "square_{tag}({0})",
        "f",
        weight=0.4,
        level="max+2",
        preamble="""\
@tf.custom_gradient
def square_{tag}(x):
    y = tf.square(x)
    return y, lambda upstream: upstream * x * 3 + y
""",
    )
    statement("recompute", "tf.recompute_grad(lambda x: {body})({0})", "f", weight=0.3)
    statement("stop_gradient", "tf.stop_gradient({0}) * {0}", "f", weight=0.4, level="sum")
    statement("identity_n", "tf.identity_n([{0}, {0}])[1]", "fc", weight=0.3)
    statement(
        "gradient_inside",
        "slope_{tag}({0})",
        "f",
        weight=0.5,
        preamble="""\
def slope_{tag}(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = {body}
    return tape.gradient(y, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)
""",
    )


def _variables(statement: _Add) -> None:
    statement("variable", "{0} * tf.cast(variable_{tag}, {0}.dtype)", "f", weight=0.8,
              level="max+1", preamble="variable_{tag} = tf.Variable({number})")  # fmt: skip
    statement("variable_rows", "{0} + tf.cast(tf.reduce_sum(rows_{tag}), {0}.dtype)", "f",
              weight=0.5, level="max+1",
              preamble="rows_{tag} = tf.Variable([0.5, {number}])")  # fmt: skip
    statement("constant_rows", "{0}[..., :1] + tf.constant([0.5, -1.0, {number}], {0}.dtype)", "f",
              rank=1, weight=0.5, level="max+1")  # fmt: skip
    statement("captured", "{0} + tf.cast(captured_{tag}, {0}.dtype)", "fi", weight=0.4,
              level="max+1", preamble="captured_{tag} = tf.constant([{small}])")  # fmt: skip


STATEMENTS = collect(
    _elementwise, _activations, _binary, _integers, _reductions, _shapes, _indexing, _networks,
    _linear_algebra, _random, _conversions, _control_flow, _functions, _variables,
)  # fmt: skip
