"""Statements that an optimizer of graphs is tempted to rewrite, as `programs.statements` has them.

Constants stand on both sides of sums, products and maxima; activations, of which kernels are fused
with the product before, get special values; halves stand inside of float32; loops have no input.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzzing.programs.statements import collect

_Add = Callable[..., None]

# Numbers whose sums and products round, overflow or vanish where they are put together.
_PAIRS = (
    ("12582912.0", "-12582912.0"), ("1e10", "-1e10"), ("256.0", "256.0"), ("3e38", "0.5"),
    ("1e-30", "1e30"), ("0.1", "0.2"), ("-1.0", "2.0"), ("jnp.inf", "-1.0"), ("0.0", "-0.0"),
)  # fmt: skip
_ACTIVATIONS = (
    "relu", "relu6", "sigmoid", "softplus", "silu", "elu", "selu", "celu", "leaky_relu",
    "hard_tanh", "hard_swish", "hard_sigmoid", "log_sigmoid", "soft_sign", "mish", "squareplus",
    "tanh", "gelu", "softmax", "log_softmax",
)  # fmt: skip
_HALVES = ("float16", "bfloat16")


def _constants_on_both_sides(statement: _Add) -> None:
    forms = {
        "add": ("({0} + {a}) + {b}", "{b} + ({a} + {0})", "({a} - {0}) - {b}", "{a} - ({b} + {0})"),
        "multiply": ("({0} * {a}) * {b}", "{b} * ({a} * {0})", "({0} / {a}) * {b}"),
        "maximum": (
            "jnp.maximum({0}, {b} * {0})", "jnp.maximum({a}, jnp.minimum({0}, {b}))",
            "jnp.minimum(jnp.maximum({b}, {0}), {a} + {0})",
        ),
        "affine": ("({0} - {a}) * {b} + {a}", "{a} * {0} + {b} * {0}", "({0} + {a}) * {b}"),
    }  # fmt: skip
    for name, texts in forms.items():
        for form, text in enumerate(texts):
            for pair, (a, b) in enumerate(_PAIRS):
                filled = text.replace("{a}", a).replace("{b}", b)
                statement(f"{name}_{form}_{pair}", filled, "f", level="max", weight=0.3)


def _values_on_both_sides(statement: _Add) -> None:
    statement("cancelling_sum", "{0} + (-1e10 + ({1} * 0 + 1e10))", "f", "=0", weight=2)
    statement("sum_of_three", "{0} + ({1} + {0})", "f", "=0", level="max+2", weight=2)
    statement("difference_of_sums", "({0} + {1}) - {0}", "f", "=0", level="max+1", weight=2)
    statement("square_of_difference", "({0} - {1}) ** 2", "nu", "=0", level="sum", weight=3)
    statement("largest_logarithm", "jnp.max(jnp.log({0}), -1)", "f", rank=1, weight=2)
    statement("largest_root", "jnp.max(jnp.sqrt({0}), -1)", "f", rank=1, weight=2)
    statement("smallest_negative", "jnp.min(-{0}, -1)", "f", rank=1, weight=2)
    statement("divided_by_itself", "{0} / {0}", "f", level="0", weight=2)
    statement("minus_itself", "{0} - {0}", "f", level="0", weight=2)
    statement("times_zero", "{0} * 0", "f", level="0", weight=2)
    statement("power_of_two", "({0} * {0}) ** 0.5", "f", weight=2)
    statement("twice_transposed", "({0}.T.T + {0}).T", "n", level="max+1", weight=2)
    statement("repeated_cast", "{0}.astype(jnp.int32).astype({0}.dtype)", "iu", weight=2)


def _activations(statement: _Add) -> None:
    for name in _ACTIVATIONS:
        matrix = "np.linspace(-1, 1, 3 * {0}.shape[-1]).reshape(-1, 3).astype({0}.dtype)"
        bias = "np.linspace(-0.5, 0.5, 3).astype({0}.dtype)"
        for kind, text in (("", f"{{0}} @ {matrix}"), ("_bias", f"{{0}} @ {matrix} + {bias}")):
            statement(f"product{kind}_{name}", f"jax.nn.{name}({text})", "f", rank=1, level="max+1")
    statement(
        "two_layers",
        "jax.nn.relu(jax.nn.relu({0} @ np.ones(({0}.shape[-1], 4), {0}.dtype)) "
        "@ np.full((4, 2), -0.5, {0}.dtype))",
        "f", rank=1, level="max+3", weight=3,
    )  # fmt: skip
    statement(
        "convolution_relu",
        "jax.nn.relu(lax.conv_general_dilated({0}[:, None], jnp.ones((2, 1, 2), {0}.dtype), (1,), "
        "'SAME') - 0.25)",
        "f", rank=2, level="max+2", weight=3,
    )  # fmt: skip


def _halves_inside(statement: _Add) -> None:
    for half in _HALVES:
        for name, text in (
            ("sum", "jnp.sum(x, -1)"), ("mean", "jnp.mean(x, -1)"),
            ("softmax", "jax.nn.softmax(x)"),
            ("product", "x @ jnp.ones((x.shape[-1], 2), x.dtype)"), ("scaled", "x * 256 * 0.5"),
        ):  # fmt: skip
            statement(
                f"{half}_{name}",
                f"(lambda x: {text})({{0}}.astype(jnp.{half})).astype(jnp.float32)",
                "s", rank=1, level="max+3",
            )  # fmt: skip


# Compiled in the reference without `jit` too, where thousands of steps would be a compilation each.
_SUM_OF_SINES = """
def sum_of_sines(length):
    with jax.disable_jit(False):
        return lax.scan(lambda c, i: (jnp.sin(c) + i, None), 0., jnp.arange(length))[0]
"""


def _loops_of_constants(statement: _Add) -> None:
    statement(
        "scan_of_constants", "{0} + sum_of_sines({length} * 1000.).astype({0}.dtype)",
        "f", level="9", weight=2, preamble=_SUM_OF_SINES,
    )  # fmt: skip
    statement(
        "counting_loop",
        "{0} * lax.fori_loop(0, {length} * 1000, lambda i, c: c * 0.5 + 1, jnp.ones(3)).sum()"
        ".astype({0}.dtype)",
        "f", level="max+3", weight=2,
    )  # fmt: skip
    statement(
        "loop_until",
        "{0} + lax.while_loop(lambda c: c < {length} * 1000, lambda c: c + 1, 0).astype({0}.dtype)",
        "f", level="9", weight=2,
    )  # fmt: skip
    statement(
        "loop_that_is_not_read", "{0} + 0 * lax.fori_loop(0, 9, lambda i, c: c + i, 0)", "n",
    )  # fmt: skip


HOSTILE = collect(
    _constants_on_both_sides, _values_on_both_sides, _activations, _halves_inside,
    _loops_of_constants,
)  # fmt: skip
