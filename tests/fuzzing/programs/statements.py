"""The table of statements that random programs consist of: one line for each.

`statement(name, text, *kinds)` adds one. `{0}`, `{1}`, … in the text are operands; each has a word
in `kinds` for what it may be: letters for dtypes (`f` floats, `s` those of 32 and 64 bits, `c`
complex, `i` and `u` integers, `b` booleans, `e` 8-bit floats, `n` for `fciu`), or `=0` for the
dtype of operand 0 and a shape that broadcasts with its, `==0` for its dtype and shape, `~0` for its
dtype. Other words in braces are drawn: see `Draw`. The result's dtype and shape are found by
tracing; a line that JAX refuses is drawn again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzzing.programs.bodies import expression

_WORD = re.compile(r"\{([a-z]\w*)\}")


@dataclass(frozen=True, slots=True)
class Template:
    """One statement of the table.

    Attributes:
        name: its name.
        text: the expression.
        kinds: what each operand may be.
        level: how large the result is, as a power of two: `max+1`, `sum`, or a number.
        weight: how often it is drawn.
        rank: the least rank of operand 0.
        static: whether all sizes of operand 0 must be known.
        preamble: the definitions that it needs, as a template.
    """

    name: str
    text: str
    kinds: tuple[str, ...]
    level: str
    weight: float
    rank: int
    static: bool
    preamble: str


class Draw:
    """The words that a text may have besides operands, drawn for certain operands."""

    def __init__(self, rng: random.Random, avals: list[Any], *, x64: bool) -> None:
        self._rng = rng
        self._avals = avals
        self._x64 = x64

    def word(self, name: str) -> str:
        """The text for a word; the same word drawn again may be another."""
        return str(getattr(self, name)())

    def axis(self) -> int:
        """An axis of operand 0, counted from the front or the end."""
        rank = len(self._avals[0].shape)
        return self._rng.randrange(-rank, rank)

    def axes(self) -> Any:
        """An axis, several of them, or None."""
        rank = len(self._avals[0].shape)
        picked = sorted(self._rng.sample(range(rank), self._rng.randint(1, rank)))
        return self._rng.choice([None, tuple(picked), picked[0], picked[0]])

    def lax_axes(self) -> Any:
        """A tuple of axes."""
        rank = len(self._avals[0].shape)
        return tuple(sorted(self._rng.sample(range(rank), self._rng.randint(1, rank))))

    def permutation(self) -> Any:
        """A permutation of the axes."""
        rank = len(self._avals[0].shape)
        return tuple(self._rng.sample(range(rank), rank))

    def number(self) -> float:
        """A Python float."""
        return self._rng.choice([0.5, -1.5, 2.0, 0.1, 3.0, -0.25, 1.0])

    def small(self) -> int:
        """A Python int from 1 to 3."""
        return self._rng.randint(1, 3)

    def natural(self) -> int:
        """A Python int from 0 to 9."""
        return self._rng.randint(0, 9)

    def flag(self) -> bool:
        """True or False."""
        return self._rng.random() < 0.5

    def body(self) -> str:
        """An expression of `x`, elementwise, of the dtype of operand 0."""
        return expression(self._rng, "x", kind_of(self._avals[0].dtype))

    def size(self) -> int:
        """The size of a static axis of operand 0."""
        sizes = [dim for dim in self._avals[0].shape if isinstance(dim, int)]
        return self._rng.choice(sizes)

    def float(self) -> str:
        """A float dtype."""
        return self._dtype(["float32", "float32", "float16", "bfloat16"], ["float64"])

    def complex(self) -> str:
        """A complex dtype."""
        return self._dtype(["complex64"], ["complex128"])

    def integer(self) -> str:
        """An integer dtype."""
        return self._dtype(
            ["int32", "int32", "int8", "int16", "uint8", "uint16", "uint32"], ["int64", "uint64"]
        )

    def tiny(self) -> str:
        """A dtype of 8-bit floats."""
        return self._rng.choice(["float8_e4m3fn", "float8_e5m2"])

    def length(self) -> int:
        """A size from 1 to 6."""
        return self._rng.randint(1, 6)

    def seed(self) -> int:
        """A seed of a PRNG."""
        return self._rng.randint(0, 99)

    def tag(self) -> int:
        """A number for a definition."""
        return self._rng.randint(0, 10**6)

    def _dtype(self, narrow: list[str], wide: list[str]) -> str:
        return self._rng.choice(narrow + wide * 2 if self._x64 else narrow)


def write(template: Template, draw: Draw) -> tuple[str, str]:
    """The text and the preamble of a statement."""
    tag = draw.word("tag")

    def word(match: re.Match[str]) -> str:
        return tag if match[1] == "tag" else draw.word(match[1])

    return _WORD.sub(word, template.text), _WORD.sub(word, template.preamble)


def takes(kinds: str, dtype: Any) -> bool:
    """Return whether a word for operands stands for a dtype."""
    if kind_of(dtype) == "f" and np.dtype(dtype).itemsize > 2 and "s" in kinds:
        return True
    return kind_of(dtype) in kinds.replace("n", "fciu")


def kind_of(dtype: Any) -> str:
    """The letter of a dtype; `?` for one that no statement takes."""
    dtype = np.dtype(dtype)
    if dtype.name.startswith("float8"):
        return "e"
    if dtype.name == "bfloat16":
        return "f"
    return {"f": "f", "c": "c", "i": "i", "u": "u", "b": "b"}.get(dtype.kind, "?")


def collect(*families: Callable[..., None]) -> tuple[Template, ...]:
    """Return the templates that functions add by the function that each is called with."""
    templates: list[Template] = []

    def statement(
        name: str,
        text: str,
        *kinds: str,
        level: str = "max",
        weight: float = 1.0,
        rank: int = 0,
        static: bool = False,
        preamble: str = "",
    ) -> None:
        templates.append(Template(name, text, kinds, level, weight, rank, static, preamble))

    for add in families:
        add(statement)
    return tuple(templates)


_Add = Callable[..., None]


def _elementwise(statement: _Add) -> None:
    for name in ("square", "negative", "abs", "sign", "conj", "positive"):
        statement(name, f"jnp.{name}({{0}})", "nc", level="max+2" if name == "square" else "max")
    statement("square_unsigned", "jnp.square({0})", "u", level="sum")
    for name in ("floor", "ceil", "trunc", "rint", "nan_to_num", "deg2rad", "fabs", "i0"):
        statement(name, f"jnp.{name}({{0}})", "f", weight=0.6, level="max")
    for name in ("isnan", "isfinite", "isinf", "signbit"):
        statement(name, f"jnp.{name}({{0}})", "f", weight=0.3, level="0")
    statement("round", "jnp.round({0}, {small})", "f", weight=0.5)
    statement("lax_round", "lax.round({0}, lax.RoundingMethod.AWAY_FROM_ZERO)", "f", weight=0.4)
    statement("sqrt", "jnp.sqrt(jnp.abs({0}))", "f")
    statement("sqrt_raw", "jnp.sqrt({0})", "fc", weight=0.3)
    statement("rsqrt", "lax.rsqrt(jnp.abs({0}) + 0.5)", "f", level="1")
    statement("cbrt", "jnp.cbrt({0})", "f", weight=0.5)
    statement("log", "jnp.log(jnp.abs({0}) + 0.5)", "f")
    statement("log_raw", "jnp.log({0})", "fc", weight=0.3)
    statement("log_of", "jnp.log{small_log}(jnp.abs({0}) + 0.1)".replace("{small_log}", "2"), "f")
    statement("log10", "jnp.log10(jnp.abs({0}) + 0.1)", "f", weight=0.5)
    statement("log1p", "jnp.log1p(jnp.abs({0}))", "f")
    statement("exp", "jnp.exp(jnp.minimum({0}, 3))", "f", level="5")
    statement("exp_complex", "jnp.exp(-jnp.abs({0}) + 1j * {0})", "c", level="2", weight=0.5)
    statement("exp2", "jnp.exp2(jnp.clip({0}, -5, 4))", "f", level="4")
    statement("expm1", "jnp.expm1(jnp.minimum({0}, 3))", "f", level="5")
    statement("sinh", "jnp.sinh(jnp.clip({0}, -3, 3))", "f", level="4")
    statement("cosh", "jnp.cosh(jnp.clip({0}, -3, 3))", "f", level="4")
    statement("gammaln", "jax.scipy.special.gammaln(jnp.abs({0}) + 0.5)", "f", level="max+2")
    statement("digamma", "jax.scipy.special.digamma(jnp.abs({0}) + 0.5)", "f", level="2")
    statement("erfinv", "jax.scipy.special.erfinv(jnp.tanh({0}) * 0.9)", "f", level="2")
    statement("ndtri", "jax.scipy.special.ndtri(jax.nn.sigmoid({0}))", "f", level="3", weight=0.5)
    statement("xlogy", "jax.scipy.special.xlogy({0}, jnp.abs({0}))", "f", level="max+2")
    statement("entr", "jax.scipy.special.entr(jnp.abs({0}))", "f", level="max+2", weight=0.5)
    statement("angle", "jnp.angle({0})", "c", level="2")
    statement("absolute", "jnp.abs({0})", "c")
    statement("real_imag", "{0}.real - {0}.imag", "c", level="max+1")
    statement("lax_complex", "lax.complex({0}, {1})", "f", "==0")
    statement("reciprocal", "1 / (1 + jnp.square({0}))", "fc", level="1")
    statement("integer_pow", "{0} ** {small}", "fc", level="max+4")
    statement("negative_pow", "(jnp.abs({0}) + 0.5) ** -{small}", "f", level="3")
    statement("scaled", "{0} * {number}", "fc", level="max+2")
    statement("weak_sum", "{0} + {number}", "fciu", level="max+1")
    statement("weak_difference", "{natural} - {0}", "fci", level="max+3")
    statement("reversed_division", "{number} / ({0} + 20)", "f", level="1", weight=0.5)
    statement("clip", "jnp.clip({0}, -{small}, {small})", "fi", level="2")
    statement("lax_clamp", "lax.clamp(-1., {0}, 2.).astype({0}.dtype)", "f", level="1", weight=0.4)
    statement("reduce_precision", "lax.reduce_precision({0}, 5, 7)", "f", weight=0.4)
    statement(
        "frexp",
        "jnp.frexp({0})[{flag_index}]".replace("{flag_index}", "0"),
        "f",
        level="0",
        weight=0.3,
    )
    statement("modf", "jnp.modf({0})[0]", "f", level="0", weight=0.3)
    statement("barrier", "lax.optimization_barrier({0})", "nb", weight=0.5)
    statement("stop_gradient", "lax.stop_gradient({0})", "fc", weight=0.7)


def _bounded(statement: _Add) -> None:
    for name in ("sin", "cos", "tanh", "arctan", "sinc"):
        statement(name, f"jnp.{name}({{0}})", "f", level="1", weight=1.5)
    statement("trigonometry_complex", "jnp.sin({0} / (1 + jnp.abs({0})))", "c", level="1")
    statement("tanh_complex", "jnp.tanh({0} / (1 + jnp.abs({0})))", "c", level="1", weight=0.5)
    for name in ("arcsin", "arccos", "arctanh"):
        statement(name, f"jnp.{name}(jnp.tanh({{0}}) * 0.9)", "f", level="2", weight=0.7)
    statement("tan", "jnp.tan(jnp.tanh({0}))", "f", level="1", weight=0.7)
    statement("arcsinh", "jnp.arcsinh({0})", "f", weight=0.7)
    statement("arccosh", "jnp.arccosh(1.5 + jnp.abs({0}))", "f", weight=0.7)
    # Calls from one place that are lowered to other operations each.
    for name, value in (
        ("bessel_i1e", "{0}"),
        ("digamma", "(jnp.abs({0}) + 0.5)"),
        ("erf_inv", "(jnp.tanh({0}) * 0.9)"),
        ("erfc", "{0}"),
        ("lgamma", "(jnp.abs({0}) + 0.5)"),
    ):
        several = (
            f"{value}, {value}[None], jnp.ones((), {{0}}.dtype) / 2, {value}.astype('{{float}}')"
        )
        statement(
            f"{name}_at_one_place",
            f"sum(lax.{name}(v).sum().astype({{0}}.dtype) for v in ({several})) + {{0}}",
            "f",
            level="sum+3",
            weight=0.3,
        )
    statement("erf", "lax.erf({0})", "f", level="1")
    statement("erfc", "lax.erfc({0})", "f", level="1", weight=0.7)
    statement("ndtr", "jax.scipy.special.ndtr({0})", "f", level="0", weight=0.5)
    statement("log_ndtr", "jax.scipy.special.log_ndtr({0})", "f", level="max+3", weight=0.5)
    statement("bessel_i0e", "lax.bessel_i0e({0})", "f", level="0", weight=0.4)
    statement("bessel_i1e", "lax.bessel_i1e({0})", "f", level="0", weight=0.4)
    statement(
        "igamma",
        "lax.igamma(jnp.abs({0}) + 0.5, jnp.abs({1}) + 0.1)",
        "f",
        "==0",
        level="0",
        weight=0.3,
    )
    statement(
        "betainc",
        "jax.scipy.special.betainc(jnp.abs({0}) + 0.5, jnp.abs({1}) + 0.5, jax.nn.sigmoid({0}))",
        "f",
        "==0",
        level="0",
        weight=0.15,
    )


def _networks(statement: _Add) -> None:
    for name in (
        "relu", "relu6", "sigmoid", "softplus", "silu", "elu", "selu", "celu", "leaky_relu",
        "hard_tanh", "hard_swish", "hard_sigmoid", "log_sigmoid", "soft_sign", "mish",
        "squareplus", "sparse_plus", "tanh",
    ):  # fmt: skip
        statement(f"nn_{name}", f"jax.nn.{name}({{0}})", "f", weight=0.5)
    statement("gelu", "jax.nn.gelu({0}, approximate={flag})", "f")
    statement("glu", "jax.nn.glu(jnp.concatenate([{0}, {0} * 0.5], axis=-1))", "f", rank=1)
    for name in ("softmax", "log_softmax", "standardize"):
        statement(name, f"jax.nn.{name}({{0}}, axis={{axis}})", "f", rank=1, level="3")
    statement(
        "softmax_where",
        "jax.nn.softmax({0}, axis={axis}, where={0} > -1)",
        "f",
        rank=1,
        level="1",
        weight=0.5,
    )
    statement(
        "logsumexp",
        "jax.nn.logsumexp({0}, axis={axes}, keepdims={flag})",
        "f",
        rank=1,
        level="max+3",
    )
    statement(
        "one_hot",
        "jax.nn.one_hot({0} % 5, 5, dtype={float_name})".replace("{float_name}", "jnp.float32"),
        "iu",
        level="0",
    )
    statement(
        "layer_norm",
        "({0} - {0}.mean(-1, keepdims=True)) * lax.rsqrt({0}.var(-1, keepdims=True) + 1e-3)",
        "f",
        rank=1,
        level="3",
    )
    statement(
        "attention",
        "jax.nn.dot_product_attention(*[{0}[:, :, None, :]] * 3)",
        "f",
        rank=3,
        level="max",
        weight=0.4,
    )
    statement(
        "dropout",
        "jnp.where(jax.random.bernoulli(jax.random.key({seed}), 0.8, {0}.shape), {0} / 0.8, 0)",
        "f",
        level="max+1",
        weight=0.5,
    )


def _binary(statement: _Add) -> None:
    statement("add", "{0} + {1}", "n", "=0", level="max+1", weight=3)
    statement("subtract", "{0} - {1}", "n", "=0", level="max+1", weight=2)
    statement("multiply", "{0} * {1}", "n", "=0", level="sum", weight=3)
    statement("mixed", "{0} * {1}", "n", "n", level="sum", weight=1)
    statement("mixed_sum", "jnp.add({0}, {1})", "nb", "nb", level="max+1", weight=1)
    statement("divide", "{0} / (jnp.abs({1}) + 0.5)", "fc", "=0", level="max+1", weight=2)
    statement("divide_raw", "{0} / {1}", "fc", "=0", level="10", weight=0.2)
    statement("true_divide", "{0} / ({1} | 1)", "iu", "=0", level="max")
    for name in ("maximum", "minimum", "fmax", "fmin"):
        statement(name, f"jnp.{name}({{0}}, {{1}})", "fiu", "=0", weight=0.8)
    statement(
        "power", "jnp.power(jnp.abs({0}) + 0.1, jnp.clip({1}, -2, 2))", "f", "=0", level="max+6"
    )
    statement(
        "float_power", "jnp.float_power(jnp.abs({0}) + 0.5, 1.5)", "f", level="max+4", weight=0.4
    )
    # Exponents that are integers at run time, of zeros, too.
    statement("power_of_integers", "{0} ** jnp.clip({1}, 0, 2)", "fc", "iu", level="max+4")
    statement(
        "powers_of_integers",
        "(jnp.round({0})[..., None] ** jnp.arange(3)).sum(-1)",
        "f",
        level="max+4",
        weight=0.4,
    )
    statement("arctan2", "jnp.arctan2({0}, {1})", "f", "=0", level="2")
    statement("hypot", "jnp.hypot({0}, {1})", "f", "=0", level="max+1")
    statement("logaddexp", "jnp.logaddexp({0}, {1})", "f", "=0", level="max+1")
    statement("logaddexp2", "jnp.logaddexp2({0}, {1})", "f", "=0", level="max+1", weight=0.5)
    statement("copysign", "jnp.copysign({0}, {1})", "f", "=0", weight=0.5)
    statement("nextafter", "lax.nextafter({0}, {1})", "f", "==0", weight=0.3)
    statement("remainder", "jnp.remainder({0}, jnp.abs({1}) + 0.5)", "f", "=0", weight=0.6)
    statement("fmod", "jnp.fmod({0}, jnp.abs({1}) + 0.5)", "f", "=0", weight=0.6)
    statement("floor_divide", "{0} // (jnp.abs({1}) + 0.5)", "f", "=0", level="max+1", weight=0.5)
    statement("heaviside", "jnp.heaviside({0}, {1})", "f", "=0", weight=0.3)
    statement("ldexp", "jnp.ldexp({0}, jnp.clip({1}, -3, 3))", "f", "i", level="max+3", weight=0.4)
    statement("where_less", "jnp.where({0} < {1}, {0}, {1} * 2)", "f", "=0", level="max+1")
    statement("squared_difference", "jnp.square({0} - {1})", "fc", "=0", level="max+4")


def _integers(statement: _Add) -> None:
    for symbol, name in (("&", "and"), ("|", "or"), ("^", "xor")):
        statement(f"bitwise_{name}", f"{{0}} {symbol} {{1}}", "iub", "=0", weight=0.6)
    statement("invert", "~{0}", "iub", weight=0.5)
    statement("shift_left", "{0} << ({1} & 3)", "iu", "=0", level="max+3", weight=0.5)
    statement("shift_right", "{0} >> ({1} & 3)", "iu", "=0", weight=0.5)
    statement(
        "shift_logical",
        "lax.shift_right_logical({0}, {1} & 3)",
        "iu",
        "==0",
        level="10",
        weight=0.4,
    )
    statement("integer_divide", "{0} // ({1} | 1)", "iu", "=0", weight=0.7)
    statement("integer_remainder", "{0} % ({1} | 1)", "iu", "=0", weight=0.7)
    statement("lax_div", "lax.div({0}, {1} | 1)", "iu", "==0", weight=0.4)
    statement("lax_rem", "lax.rem({0}, {1} | 1)", "iu", "==0", weight=0.4)
    statement("popcount", "lax.population_count({0})", "iu", level="4", weight=0.5)
    statement("clz", "lax.clz({0})", "iu", level="5", weight=0.5)
    statement("integer_power", "{0} ** {small}", "iu", level="max+6", weight=0.5)
    statement("gcd", "jnp.gcd({0}, {1})", "iu", "=0", weight=0.2)
    statement("divmod", "sum(jnp.divmod({0}, {1} | 3))", "iu", "=0", level="max+1", weight=0.3)


def _booleans(statement: _Add) -> None:
    for symbol, name in (("<", "less"), (">=", "greater_equal"), ("==", "equal"), ("!=", "ne")):
        statement(name, f"{{0}} {symbol} {{1}}", "fiu", "=0", level="0", weight=0.6)
    statement("positive_mask", "{0} > 0", "fiu", level="0")
    statement("complex_equal", "{0} == {1}", "c", "=0", level="0", weight=0.3)
    statement("logical_not", "jnp.logical_not({0})", "b", level="0", weight=0.5)
    statement("logical_and", "jnp.logical_and({0}, {1})", "bf", "=0", level="0", weight=0.4)
    statement("where", "jnp.where({0}, {1}, {2})", "b", "nb", "=1", weight=1.5)
    statement("where_scalar", "jnp.where({0}, {1}, {number})", "b", "fc", level="max+1")
    statement("where_mask", "jnp.where({0} > 0, {0}, -{number})", "f", level="max+1")
    statement("select_n", "lax.select_n({0}, {1}, {2})", "b", "nb", "==1", weight=0.6)
    statement(
        "choose",
        "jnp.select([{0} > 1, {0} < -1], [{0} * 2, -{0}], 0)",
        "fi",
        level="max+1",
        weight=0.5,
    )
    statement(
        "piecewise",
        "jnp.piecewise({0}, [{0} < 0], [lambda x: x * 0.5, lambda x: x + 1])",
        "f",
        level="max+1",
        weight=0.3,
    )
    statement("isclose", "jnp.isclose({0}, {1} + 5)", "f", "=0", level="0", weight=0.2)


def _reductions(statement: _Add) -> None:
    for name in ("sum", "mean"):
        statement(
            name,
            f"jnp.{name}({{0}}, axis={{axes}}, keepdims={{flag}})",
            "nc",
            rank=1,
            level="max+4",
            weight=2,
        )
    for name in ("max", "min"):
        statement(
            name,
            f"jnp.{name}({{0}}, axis={{axes}}, keepdims={{flag}}, initial={{number}})",
            "f",
            rank=1,
        )
        statement(
            f"{name}_integer",
            f"jnp.{name}({{0}}, axis={{axis}}, initial=1)",
            "iu",
            rank=1,
            weight=0.6,
        )
        statement(
            f"cumulative_{name}",
            f"lax.cum{name}({{0}}, axis={{axis_from_0}})".replace("{axis_from_0}", "0"),
            "fiu",
            rank=1,
            weight=0.6,
        )
    statement("raw_max", "jnp.max({0}, axis={axis})", "fiu", rank=1, weight=0.7)
    statement("product", "jnp.prod(jnp.tanh({0}), axis={axes})", "f", rank=1, level="0", weight=0.7)
    statement("integer_product", "jnp.prod({0}, axis={axis})", "iu", rank=1, level="10", weight=0.4)
    for name in ("var", "std"):
        statement(
            name,
            f"jnp.{name}({{0}}, axis={{axes}}, keepdims={{flag}})",
            "f",
            rank=1,
            level="max+4",
            weight=0.7,
        )
    statement("all", "jnp.all({0} > -1, axis={axes})", "fi", rank=1, level="0", weight=0.5)
    statement("any", "jnp.any({0}, axis={axis})", "b", rank=1, level="0", weight=0.5)
    for name in ("argmax", "argmin"):
        statement(
            name,
            f"jnp.{name}({{0}}, axis={{axis}}, keepdims={{flag}})",
            "fi",
            rank=1,
            level="2",
            weight=0.6,
        )
    statement("lax_argmax", "lax.argmax({0}, 0, jnp.int32)", "fiu", rank=1, level="2", weight=0.4)
    statement("cumsum", "jnp.cumsum({0}, axis={axis})", "n", rank=1, level="max+4")
    statement(
        "cumsum_reverse", "lax.cumsum({0}, 0, reverse=True)", "n", rank=1, level="max+4", weight=0.6
    )
    statement(
        "cumprod", "jnp.cumprod(jnp.tanh({0}), axis={axis})", "f", rank=1, level="0", weight=0.7
    )
    statement(
        "cumlogsumexp", "lax.cumlogsumexp({0}, axis=0)", "f", rank=1, level="max+3", weight=0.5
    )
    statement("nansum", "jnp.nansum({0}, axis={axis})", "f", rank=1, level="max+4", weight=0.4)
    statement("nanmax", "jnp.nanmax({0}, axis={axis}, initial=-1.0)", "f", rank=1, weight=0.3)
    statement(
        "count_nonzero", "jnp.count_nonzero({0}, axis={axis})", "fib", rank=1, level="3", weight=0.4
    )
    statement(
        "average",
        "jnp.average({0}, axis=-1, weights=jnp.arange(1., {0}.shape[-1] + 1))",
        "f",
        rank=1,
        weight=0.4,
    )
    statement(
        "lax_reduce",
        "lax.reduce({0}, np.array(0, {0}.dtype), lambda a, b: a + b * 1, {lax_axes})",
        "fi",
        rank=1,
        level="max+4",
        weight=0.4,
    )
    statement(
        "lax_reduce_region",
        "lax.reduce({0}, np.array(0, {0}.dtype), lambda a, b: "
        "jnp.where(a * a < b * b, b, a), {lax_axes})",
        "fi",
        rank=1,
        weight=0.3,
    )
    statement("ptp", "jnp.ptp({0}, axis={axis})", "fi", rank=1, level="max+1", weight=0.4)
    statement("norm", "jnp.linalg.norm({0} + 0.1, axis=-1)", "fc", rank=1, level="max+2")
    statement(
        "reduce_window",
        "lax.reduce_window({0}, np.array(0, {0}.dtype), lax.add, "
        "(2,) + (1,) * ({0}.ndim - 1), (1,) * {0}.ndim, 'SAME')",
        "fi",
        rank=1,
        level="max+1",
        weight=0.5,
    )
    statement(
        "max_pool",
        "lax.reduce_window({0}, np.array(-np.inf, {0}.dtype), lax.max, "
        "(1,) * ({0}.ndim - 1) + (2,), (1,) * ({0}.ndim - 1) + (2,), 'VALID')",
        "f",
        rank=1,
        static=True,
        weight=0.5,
    )
    statement("median", "jnp.median({0}, axis={axis})", "f", rank=1, static=True, weight=0.4)
    statement("quantile", "jnp.quantile({0}, 0.3, axis=-1)", "f", rank=1, static=True, weight=0.4)
    statement("trapezoid", "jnp.trapezoid({0}, axis=-1)", "f", rank=1, level="max+3", weight=0.3)
    statement("diff", "jnp.diff({0}, axis=-1)", "fi", rank=1, level="max+1", weight=0.5)
    statement(
        "bincount",
        "jnp.bincount(jnp.abs({0}.ravel()) % 5, length=5)",
        "i",
        rank=1,
        level="4",
        weight=0.3,
    )
    statement(
        "segment_sum",
        "jax.ops.segment_sum({0}, jnp.arange({0}.shape[0]) % 2, 2)",
        "fi",
        rank=1,
        level="max+4",
        weight=0.5,
    )
    statement(
        "histogram",
        "jnp.histogram({0}, bins=4, range=(-2., 2.))[0]",
        "f",
        rank=1,
        level="4",
        weight=0.2,
    )


def _shapes(statement: _Add) -> None:
    every = "nbe"
    statement("transpose", "jnp.transpose({0}, {permutation})", every, rank=2)
    statement("matrix_transpose", "{0}.mT", every, rank=2, weight=0.6)
    statement("ravel", "{0}.ravel()", every, rank=1, weight=0.6)
    statement("reshape", "{0}.reshape({0}.shape[0], -1)", every, rank=2, weight=0.8)
    statement("reshape_last", "{0}.reshape(-1, {0}.shape[-1])", every, rank=1, weight=0.6)
    statement("expand", "jnp.expand_dims({0}, {small_axis})".replace("{small_axis}", "0"), every)
    statement("expand_last", "{0}[..., None]", every)
    statement("squeeze", "jnp.squeeze({0}[:1], 0)", every, rank=1, weight=0.5)
    statement("broadcast", "jnp.broadcast_to({0}, ({small}, *{0}.shape))", every, weight=0.8)
    statement("concatenate", "jnp.concatenate([{0}, {1}], axis={axis})", every, "==0", rank=1)
    statement(
        "concatenate_self",
        "jnp.concatenate([{0}, {0}[:1], {0}], axis=0)",
        every,
        rank=1,
        weight=0.5,
    )
    statement("stack", "jnp.stack([{0}, {1}], axis=-1)", every, "==0")
    statement(
        "pad",
        "jnp.pad({0}, [({small}, 1)] + [(0, 0)] * ({0}.ndim - 1), constant_values={natural})",
        "fiu",
        rank=1,
    )
    statement(
        "pad_mode",
        "jnp.pad({0}, [(0, 0)] * ({0}.ndim - 1) + [(1, 1)], mode='edge')",
        "fi",
        rank=1,
        weight=0.5,
    )
    statement(
        "pad_reflect",
        "jnp.pad({0}, [(0, 0)] * ({0}.ndim - 1) + [(1, 0)], mode='wrap')",
        "fi",
        rank=1,
        static=True,
        weight=0.4,
    )
    statement(
        "lax_pad",
        "lax.pad({0}, np.array(1, {0}.dtype), [(1, -1, 1)] + [(0, 0, 0)] * ({0}.ndim - 1))",
        "fiuc",
        rank=1,
        weight=0.6,
    )
    statement("flip", "jnp.flip({0}, axis={axis})", every, rank=1)
    statement("roll", "jnp.roll({0}, {small}, axis={axis})", "nb", rank=1, weight=0.8)
    statement("tile", "jnp.tile({0}, {small})", every, rank=1, weight=0.6)
    statement("repeat", "jnp.repeat({0}, {small}, axis={axis})", every, rank=1, weight=0.6)
    statement("head", "{0}[:{small}]", every, rank=1)
    statement("tail", "{0}[-{small}:]", every, rank=1, weight=0.7)
    statement("strided", "{0}[..., ::2]", every, rank=1)
    statement("backwards", "{0}[..., ::-2]", every, rank=1, weight=0.6)
    statement("first", "{0}[0]", every, rank=1, weight=0.8)
    statement("last", "{0}[..., -1]", every, rank=1, weight=0.8)
    statement("split", "jnp.split({0}, [1], axis=-1)[1]", every, rank=1, weight=0.6)
    statement("triangle", "jnp.tril({0}, {small})", "nb", rank=2, weight=0.7)
    statement("upper", "jnp.triu({0})", "n", rank=2, weight=0.5)
    statement("diagonal", "jnp.diagonal({0})", "nb", rank=2, weight=0.6)
    statement("diag", "jnp.diag({0}.ravel()[:4])", "n", rank=1, weight=0.5, static=True)
    statement("trace", "jnp.trace({0})", "n", rank=2, level="max+3", weight=0.5)
    statement("rot90", "jnp.rot90({0})", every, rank=2, weight=0.4)
    statement("moveaxis", "jnp.moveaxis({0}, 0, -1)", every, rank=2, weight=0.5)
    statement(
        "meshgrid",
        "jnp.meshgrid({0}.ravel()[:3], {0}.ravel()[:2])[0]",
        "n",
        rank=1,
        static=True,
        weight=0.3,
    )
    statement("shape_sum", "{0} / {0}.shape[0]", "f", rank=1, weight=0.7)
    statement("empty", "{0}[:0]", "nb", rank=1, weight=0.2)
    statement("grow_empty", "jnp.concatenate([{0}[:0], {0}])", "nb", rank=1, weight=0.3)


def _indexing(statement: _Add) -> None:
    every = "nb"
    statement(
        "take", "jnp.take({0}, jnp.array([0, 2, 1]), axis={axis}, mode='clip')", every, rank=1
    )
    statement(
        "take_wrap", "jnp.take({0}, {1} % 4, axis=0, mode='wrap')", every, "i", rank=1, weight=0.7
    )
    statement(
        "take_fill",
        "jnp.take({0}, {1}, axis=-1, mode='fill', fill_value=0)",
        "n",
        "i",
        rank=1,
        weight=0.6,
    )
    statement("take_default", "jnp.take({0}, {1}, axis=0)", "fi", "i", rank=1, weight=0.4)
    statement("gather", "{0}[{1}]", every, "iu", rank=1)
    statement("gather_array", "{0}[jnp.array([0, -1, 0])]", every, rank=1)
    statement("gather_columns", "{0}[:, np.array([1, 0])]", every, rank=2, weight=0.7)
    statement("gather_pairs", "{0}[np.array([0, 1]), np.array([1, 0])]", every, rank=2, weight=0.6)
    statement(
        "gather_mode", "{0}.at[{1}].get(mode='fill', fill_value=1)", "nb", "i", rank=1, weight=0.5
    )
    statement(
        "take_along",
        "jnp.take_along_axis({0}, jnp.argsort({0}, axis=-1), axis=-1)",
        "fi",
        rank=1,
        weight=0.6,
    )
    for name in ("set", "add", "multiply", "max", "min"):
        statement(
            f"scatter_{name}",
            f"{{0}}.at[np.array([0, 2, 0])].{name}(jnp.asarray(2, {{0}}.dtype))"
            if name != "set"
            else "{0}.at[np.array([0, 2])].set(1)",
            "fi",
            rank=1,
            level="max+2",
            weight=0.5,
        )
    statement("scatter_indices", "{0}.at[{1}].add(1)", "fi", "i", rank=1, level="max+3", weight=0.7)
    statement(
        "scatter_set_indices",
        "{0}.at[jnp.clip({1}, 0, 2).ravel()[:1]].set(0)",
        "fi",
        "i",
        rank=1,
        weight=0.4,
        static=True,
    )
    statement(
        "scatter_drop",
        "{0}.at[..., {small}].mul(2, mode='drop')",
        "fi",
        rank=1,
        level="max+1",
        weight=0.5,
    )
    statement("scatter_rows", "{0}.at[0].set({0}[-1])", every, rank=1, weight=0.7)
    statement(
        "scatter_columns", "{0}.at[:, -1].add({0}[:, 0])", "fci", rank=2, level="max+1", weight=0.6
    )
    statement("scatter_apply", "{0}.at[1:].apply(jnp.sin)", "f", rank=1, weight=0.3)
    statement(
        "dynamic_slice",
        "lax.dynamic_slice_in_dim({0}, {1}.ravel().sum(), 1, axis={axis})",
        every,
        "i",
        rank=1,
        weight=0.7,
    )
    statement(
        "dynamic_update",
        "lax.dynamic_update_slice_in_dim({0}, {0}[:1] * 2, {1}.ravel().sum(), 0)",
        "fi",
        "i",
        rank=1,
        level="max+1",
        weight=0.7,
    )
    statement(
        "dynamic_index",
        "lax.dynamic_index_in_dim({0}, jnp.argmax({0}.ravel()) % 2, 0, keepdims={flag})",
        "fi",
        rank=1,
        weight=0.6,
    )
    statement(
        "boolean_where",
        "jnp.where({0} > 0)[0].sum() if False else ({0} > 0).sum()",
        "f",
        rank=1,
        level="4",
        weight=0.1,
    )
    statement(
        "nonzero",
        "jnp.nonzero({0}.ravel() > 0, size=3, fill_value=0)[0]",
        "fi",
        rank=1,
        level="4",
        weight=0.4,
    )
    statement(
        "compress",
        "jnp.extract({0}.ravel() > 0, {0}.ravel(), size=3, fill_value=0)",
        "fi",
        rank=1,
        weight=0.3,
    )


def _sorting(statement: _Add) -> None:
    statement("sort", "jnp.sort({0}, axis={axis})", "fiu", rank=1)
    statement(
        "sort_descending", "jnp.sort({0}, axis=-1, descending=True)", "fi", rank=1, weight=0.6
    )
    statement("argsort", "jnp.argsort({0}, axis={axis})", "fiu", rank=1, level="2", weight=0.7)
    statement(
        "sort_pairs",
        "lax.sort(({0}, {1}), dimension=-1, num_keys=1)[1]",
        "fi",
        "f",
        rank=1,
        weight=0.4,
    )
    statement(
        "sort_two",
        "lax.sort(({0}, {0} * 2), dimension=-1)[1]",
        "fi",
        rank=1,
        level="max+1",
        weight=0.4,
    )
    statement("sort_complex", "jnp.sort({0}, axis=-1)", "c", rank=1, weight=0.3)
    statement("sort_bool", "jnp.sort({0}, axis=-1)", "b", rank=1, weight=0.3)
    statement("top_k", "lax.top_k({0}, 1)[0]", "fi", rank=1, weight=0.6)
    statement("top_k_index", "lax.top_k({0}, 1)[1]", "f", rank=1, level="2", weight=0.4)
    statement(
        "searchsorted",
        "jnp.searchsorted(jnp.sort({0}.ravel()), {1})",
        "fi",
        "~0",
        rank=1,
        level="4",
        weight=0.5,
    )
    statement("unique", "jnp.unique({0}, size=4, fill_value=0)", "i", rank=1, weight=0.4)
    statement("partition", "jnp.partition({0}, 1, axis=-1)[..., :1]", "f", rank=1, weight=0.2)
    statement("lexsort", "jnp.lexsort(({0}, {0} * -1))", "i", rank=1, level="3", weight=0.2)
    statement(
        "rank_of",
        "jax.scipy.stats.rankdata({0}.ravel())",
        "fi",
        rank=1,
        static=True,
        level="4",
        weight=0.2,
    )


def _square(text: str) -> str:
    """A well-conditioned matrix of `{0}`, whose last axis has a static size."""
    return text.replace(
        "{spd}", "({0}.mT.conj() @ {0} + 2 * jnp.eye({0}.shape[-1], dtype={0}.dtype))"
    )


def _linear_algebra(statement: _Add) -> None:
    def linalg(name: str, text: str, kinds: str = "s", *, weight: float = 0.35, **options: Any):
        statement(f"linalg_{name}", _square(text), kinds, rank=2, weight=weight, **options)

    linalg("cholesky", "jnp.linalg.cholesky({spd})", "sc", level="max+3")
    linalg("inv", "jnp.linalg.inv({spd})", "sc", level="0")
    linalg("solve", "jnp.linalg.solve({spd}, {0}.mT)", "sc", level="max")
    linalg(
        "solve_vector", "jax.scipy.linalg.solve({spd}, {0}[..., 0, :], assume_a='pos')", level="max"
    )
    linalg("det", "jnp.linalg.det({spd} / (1 + jnp.max(jnp.abs({spd}))))", "sc", level="2")
    linalg("slogdet", "jnp.linalg.slogdet({spd})[1]", level="5")
    linalg(
        "qr",
        "jnp.abs(jnp.linalg.qr({0} + jnp.eye({0}.shape[-2], {0}.shape[-1]))[1])",
        level="max+3",
    )
    linalg("svdvals", "jnp.linalg.svd({0}, compute_uv=False)", "sc", level="max+3")
    linalg(
        "svd",
        "(lambda u, s, v: (u * s[..., None, :]) @ v)(*jnp.linalg.svd({0}, full_matrices=False))",
        "s",
        level="max+3",
        weight=0.25,
    )
    linalg("eigvalsh", "jnp.linalg.eigvalsh({spd})", "sc", level="max+4")
    linalg(
        "eigh",
        "(lambda w, v: (v * jnp.sqrt(w)[..., None, :]) @ v.mT)(*jnp.linalg.eigh({spd}))",
        level="max+2",
        weight=0.25,
    )
    linalg(
        "triangular",
        "lax.linalg.triangular_solve({spd}, {0}, lower={flag}, transpose_a={flag})",
        "sc",
        level="max",
    )
    linalg(
        "solve_triangular",
        "jax.scipy.linalg.solve_triangular({spd}, {0}.mT, lower={flag})",
        level="max",
    )
    linalg(
        "cho_solve",
        "jax.scipy.linalg.cho_solve((jnp.linalg.cholesky({spd}), True), {0}.mT)",
        level="max",
    )
    linalg("lu", "jax.scipy.linalg.lu({spd})[2]", level="max+3")
    linalg(
        "lu_solve",
        "jax.scipy.linalg.lu_solve(jax.scipy.linalg.lu_factor({spd}), {0}.mT)",
        level="max",
    )
    linalg("pinv", "jnp.linalg.pinv({0})", level="max", weight=0.2)
    linalg("lstsq", "jnp.linalg.lstsq({spd}, {0}.mT)[0]", level="max", weight=0.15, static=True)
    linalg("matrix_power", "jnp.linalg.matrix_power({spd} / 50, {small})", level="max")
    linalg("expm", "jax.scipy.linalg.expm({spd} / 50)", level="3", weight=0.12, static=True)
    linalg(
        "multi_dot",
        "jnp.linalg.multi_dot([{0}, {0}.mT, {0}])",
        level="max+8",
        weight=0.2,
        static=True,
    )
    linalg("matrix_norm", "jnp.linalg.norm({0}, axis=(-2, -1))", level="max+2")
    linalg("cond", "jnp.linalg.cond({spd})", level="5", weight=0.12)
    linalg(
        "tridiagonal",
        "lax.linalg.tridiagonal_solve(jnp.zeros_like({0}[..., 0]), 2 + "
        "jnp.abs({0}[..., 0]), jnp.zeros_like({0}[..., 0]), {0})",
        level="max",
        weight=0.15,
    )


def _products(statement: _Add) -> None:
    statement("matmul_self", "{0} @ {0}.mT", "nc", rank=2, level="max+8")
    statement("gram", "jnp.einsum('...ij,...ik->...jk', {0}, {0})", "fc", rank=2, level="max+8")
    statement("matmul", "{0} @ {1}", "n", "~0", rank=1, level="sum", weight=2)
    statement(
        "matmul_transposed", "jnp.matmul({0}, {1}.T)", "f", "~0", rank=2, level="sum", weight=1.5
    )
    statement(
        "dot_mixed",
        "jnp.dot({0}, {1}.T, preferred_element_type=jnp.float32)",
        "f",
        "f",
        rank=1,
        level="sum",
    )
    statement(
        "dot_integers",
        "lax.dot_general({0}, {1}, ((({0}.ndim - 1,), ({1}.ndim - 1,)), "
        "((), ())), preferred_element_type=jnp.int32)",
        "i",
        "~0",
        rank=1,
        level="sum",
        weight=0.6,
    )
    statement(
        "dot_precision",
        "jnp.matmul({0}, {1}, precision='highest')",
        "f",
        "~0",
        rank=1,
        level="sum",
        weight=0.6,
    )
    statement("outer", "jnp.outer({0}, {1})", "n", "=0", rank=1, level="sum", weight=0.7)
    statement("inner", "jnp.inner({0}, {1})", "fc", "==0", rank=1, level="sum")
    statement("vdot", "jnp.vdot({0}, {1})", "fc", "==0", level="sum", weight=0.7)
    statement(
        "tensordot",
        "jnp.tensordot({0}, {1}, axes=([0], [0]))",
        "fi",
        "==0",
        rank=1,
        level="sum",
        weight=0.7,
    )
    statement("einsum", "jnp.einsum('i...,i...->...', {0}, {1})", "fc", "==0", rank=1, level="sum")
    statement("kron", "jnp.kron({0}, {1})", "f", "=0", rank=1, level="sum", weight=0.3)
    statement(
        "cross",
        "jnp.cross({0}[..., :3], {1}[..., :3])",
        "f",
        "==0",
        rank=1,
        level="sum",
        weight=0.3,
    )
    statement(
        "convolve",
        "jnp.convolve({0}, {1}[:3], mode='same')",
        "f",
        "~0",
        rank=1,
        level="sum",
        weight=0.6,
    )
    statement(
        "conv_1d",
        "lax.conv_general_dilated({0}[:, None, :], jnp.ones((2, 1, 2), "
        "{0}.dtype) * {number}, (1,), 'SAME')",
        "f",
        rank=2,
        level="max+3",
        weight=0.7,
    )
    statement(
        "conv_2d",
        "lax.conv_general_dilated({0}[..., None], jnp.ones((2, 2, 1, 3), "
        "{0}.dtype), (2, 1), 'VALID', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))",
        "f",
        rank=3,
        level="max+3",
        weight=0.7,
    )
    statement(
        "conv_dilated",
        "lax.conv_general_dilated({0}[:, None, :], jnp.ones((1, 1, 2), "
        "{0}.dtype), (1,), [(2, 1)], lhs_dilation=(2,), rhs_dilation=(2,))",
        "f",
        rank=2,
        level="max+2",
        weight=0.4,
    )
    statement("fft", "jnp.fft.fft({0})", "fc", rank=1, level="max+3", static=True, weight=0.6)
    statement("ifft", "jnp.fft.ifft({0}, axis={axis})", "c", rank=1, static=True, weight=0.6)
    statement("rfft", "jnp.fft.rfft({0})", "f", rank=1, level="max+3", static=True, weight=0.6)
    statement("irfft", "jnp.fft.irfft({0})", "c", rank=1, static=True, weight=0.5)
    statement(
        "fft2", "jnp.abs(jnp.fft.fft2({0}))", "fc", rank=2, level="max+5", static=True, weight=0.3
    )
    statement(
        "polyval",
        "jnp.polyval(jnp.array([0.5, -1., 2.]).astype({0}.dtype), jnp.tanh({0}))",
        "f",
        level="2",
        weight=0.5,
    )
    statement(
        "interp",
        "jnp.interp({0}, jnp.array([-1., 0., 2.]), jnp.array([1., -1., 0.5]))",
        "f",
        level="1",
        weight=0.4,
    )


def _random(statement: _Add) -> None:
    keys = (
        "jax.random.key({seed})",
        "jax.random.fold_in(jax.random.key({seed}), {natural})",
        "jax.random.split(jax.random.key({seed}), 3)[1]",
        "jax.random.PRNGKey({seed})",
    )
    texts = (
        ("normal", "jax.random.normal(KEY, {0}.shape, {0}.dtype)", "f", "2"),
        ("uniform", "{0} + jax.random.uniform(KEY, {0}.shape, {0}.dtype)", "f", "max+1"),
        ("randint", "jax.random.randint(KEY, {0}.shape, -5, 6)", "fi", "3"),
        ("bernoulli", "jax.random.bernoulli(KEY, 0.4, {0}.shape)", "fib", "0"),
        ("permutation", "jax.random.permutation(KEY, {0})", "fi", "max"),
        ("gumbel", "jax.random.gumbel(KEY, {0}.shape)", "f", "3"),
        ("exponential", "jax.random.exponential(KEY, {0}.shape)", "f", "3"),
        ("categorical", "jax.random.categorical(KEY, {0})", "f", "2"),
        ("truncated", "jax.random.truncated_normal(KEY, -1., 2., {0}.shape)", "f", "1"),
        ("laplace", "jax.random.laplace(KEY, {0}.shape)", "f", "3"),
        ("bits", "jax.random.bits(KEY, {0}.shape, 'uint32') >> 20", "fi", "10"),
        ("choice", "jax.random.choice(KEY, {0}.ravel(), (3,))", "fi", "max"),
        ("complex_normal", "jax.random.normal(KEY, {0}.shape, {0}.dtype)", "c", "2"),
    )
    for position, (name, text, kind, level) in enumerate(texts):
        rank = 1 if name in ("permutation", "categorical", "choice") else 0
        key = keys[position % len(keys)]
        statement(
            f"random_{name}", text.replace("KEY", key), kind, level=level, weight=0.35, rank=rank
        )
    statement(
        "random_from_value",
        "jax.random.normal(jax.random.key({0}.ravel().sum()), (2,))",
        "iu",
        level="2",
        weight=0.5,
    )
    statement(
        "random_rbg",
        "jax.random.uniform(jax.random.key({seed}, impl='rbg'), {0}.shape)",
        "f",
        level="0",
        weight=0.2,
    )
    statement(
        "random_gamma",
        "jax.random.gamma(jax.random.key({seed}), 1.5, (2,))",
        "f",
        level="3",
        weight=0.1,
    )
    statement(
        "random_under_map",
        "jax.vmap(lambda k: jax.random.normal(k))(jax.random.split(jax.random.key({seed}), 4))",
        "f",
        level="2",
        weight=0.2,
    )


def _conversions(statement: _Add) -> None:
    bounded = "jnp.nan_to_num(jnp.clip({0}, -100, 100))"
    statement("to_float", "{0}.astype('{float}')", "fiub", weight=2, level="max")
    statement("to_complex", "{0}.astype('{complex}')", "fiubc", level="max")
    statement("float_to_integer", f"{bounded}.astype('{{integer}}')", "f", level="7", weight=0.4)
    statement(
        "abs_to_unsigned",
        "jnp.clip(jnp.abs({0}), 0, 100).astype('uint8')",
        "i",
        level="7",
        weight=0.6,
    )
    statement("float_to_int32", f"{bounded}.astype(jnp.int32)", "f", level="7")
    statement("integer_cast", "{0}.astype('{integer}')", "iub", weight=1.2, level="max")
    statement("to_bool", "{0}.astype(bool)", "fiu", level="0", weight=0.6)
    statement("to_tiny", "jnp.clip({0}, -200, 200).astype('{tiny}')", "f", weight=0.5, level="max")
    statement("from_tiny", "{0}.astype('{float}')", "e", weight=3)
    statement("bitcast", "lax.bitcast_convert_type({0}, jnp.int32)", "f", level="10", weight=0.3)
    statement(
        "bitcast_narrow", "lax.bitcast_convert_type({0}, jnp.uint8)", "fiu", level="8", weight=0.3
    )
    statement("view", "{0}.view(jnp.int16)", "fi", rank=1, level="10", weight=0.2)
    statement("int4", "{0}.astype(jnp.int4).astype(jnp.int8)", "i", level="3", weight=0.2)
    statement("weak_scalar", "jnp.asarray({number}) * {0}", "fc", level="max+2", weight=0.5)
    statement("lax_convert", "lax.convert_element_type({0}, np.float32)", "fiub", weight=0.5)
    statement("full_like", "jnp.full_like({0}, {number}) + {0}", "fc", level="max+1", weight=0.4)
    statement(
        "result_type", "{0}.astype(jnp.promote_types({0}.dtype, jnp.bfloat16))", "fiu", weight=0.4
    )


def _control_flow(statement: _Add) -> None:
    cond = "lax.cond({0}.sum() > {number}, lambda x: {body}, lambda x: {body}, {0})"
    statement("cond", cond, "fi", level="max+3")
    statement(
        "cond_complex",
        "lax.cond(jnp.abs({0}).sum() > 2, lambda x: {body}, lambda x: x, {0})",
        "c",
        level="max+2",
        weight=0.4,
    )
    statement(
        "cond_captured",
        "lax.cond(jnp.any({0} > 0), lambda: {0} * 2, lambda: {0} + {1})",
        "f",
        "==0",
        level="max+1",
        weight=0.7,
    )
    statement(
        "switch",
        "lax.switch({1}.ravel().sum() % 3, [lambda x: {body}, lambda x: {body}, "
        "lambda x: x * {small}], {0})",
        "fi",
        "i",
        level="max+3",
        weight=0.8,
    )
    statement("fori", "lax.fori_loop(0, {small}, lambda i, x: {body}, {0})", "f", level="max+6")
    statement(
        "fori_index",
        "lax.fori_loop(0, 3, lambda i, x: x * 0.5 + i, {0})",
        "f",
        level="max+3",
        weight=0.7,
    )
    statement(
        "fori_dynamic",
        "lax.fori_loop(0, {0}.shape[0], lambda i, x: x + jnp.tanh({0}[i])"
        ".sum(), jnp.zeros((), {0}.dtype))",
        "f",
        rank=1,
        level="5",
        weight=0.5,
    )
    statement(
        "while",
        "lax.while_loop(lambda x: jnp.sum(jnp.abs(x)) > 1, lambda x: x * 0.5, "
        "jnp.clip(jnp.nan_to_num({0}), -8, 8))",
        "f",
        level="1",
        weight=0.7,
    )
    statement(
        "while_counter",
        "lax.while_loop(lambda s: s[0] < {small}, lambda s: (s[0] + 1, "
        "jnp.sin(s[1])), (0, {0}))[1]",
        "f",
        level="1",
        weight=0.6,
    )
    statement(
        "while_integer",
        "lax.while_loop(lambda x: jnp.any(x > 2), lambda x: x // 2, {0})",
        "i",
        level="2",
        weight=0.4,
    )
    statement(
        "scan",
        "lax.scan(lambda c, x: (jnp.tanh(c + x), c * 0.5), jnp.zeros_like({0}[0]), "
        "{0})[{flag_position}]".replace("{flag_position}", "1"),
        "f",
        rank=1,
        level="1",
    )
    statement(
        "scan_carry",
        "lax.scan(lambda c, x: (c + x * {number}, None), jnp.zeros_like({0}[0]), {0})[0]",
        "fc",
        rank=1,
        level="max+4",
        weight=0.8,
    )
    statement(
        "scan_reverse",
        "lax.scan(lambda c, x: (c * x, c + x), jnp.ones_like({0}[0]) * 0.5, "
        "jnp.tanh({0}), reverse=True)[1]",
        "f",
        rank=1,
        level="1",
        weight=0.6,
    )
    statement(
        "scan_length",
        "lax.scan(lambda c, _: (jnp.sin(c), c), {0}, None, length={small})[1]",
        "f",
        level="max",
        weight=0.5,
    )
    statement(
        "scan_unrolled",
        "lax.scan(lambda c, x: (c * 0.9 + x, c), jnp.zeros_like({0}[0]), {0}, unroll=2)[1]",
        "f",
        rank=1,
        static=True,
        level="max+3",
        weight=0.4,
    )
    statement("map", "lax.map(lambda x: {body}, {0})", "fi", rank=1, level="max+3", weight=0.7)
    statement(
        "associative_scan",
        "lax.associative_scan(lambda a, b: a * 0.5 + b, {0})",
        "f",
        rank=1,
        static=True,
        level="max+2",
        weight=0.4,
    )
    statement(
        "cond_in_scan",
        "lax.scan(lambda c, x: (lax.cond(jnp.sum(x) > 0, lambda a: a + 1, "
        "lambda a: a * 0.5, c), c), jnp.zeros(()), {0})[1]",
        "f",
        rank=1,
        level="4",
        weight=0.6,
    )
    statement(
        "scan_in_cond",
        "lax.cond({0}.sum() > 0, lambda x: lax.scan(lambda c, y: (c + y, c), "
        "jnp.zeros_like(x[0]), x)[1], lambda x: x, {0})",
        "f",
        rank=1,
        level="max+3",
        weight=0.5,
    )
    statement(
        "platform_dependent",
        "lax.platform_dependent({0}, cpu=lambda x: {body}, default=lambda x: x * 1)",
        "f",
        level="max+3",
        weight=0.4,
    )
    statement(
        "while_grad_free",
        "lax.stop_gradient(lax.while_loop(lambda x: x.sum() < 3, "
        "lambda x: x * 2 + 1, jnp.abs({0}.astype(jnp.float32))))",
        "f",
        rank=1,
        level="5",
        weight=0.3,
    )


_CUSTOM_VJP = """\
@jax.custom_vjp
def scaled_{tag}(x):
    return jnp.sin(x) * {number}


scaled_{tag}.defvjp(
    lambda x: (scaled_{tag}(x), x), lambda x, ct: (ct * jnp.cos(x) * {number},)
)
"""
_CUSTOM_VJP_PAIR = """\
@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def pair_{tag}(k, x, y):
    return jnp.sin(x) * k + y, y * x


pair_{tag}.defvjp(
    lambda k, x, y: (pair_{tag}(k, x, y), (x, y)),
    lambda k, saved, cts: (cts[0] * k + cts[1] * saved[1], cts[0] - cts[1] * saved[0]),
)
"""
_CUSTOM_JVP = """\
@jax.custom_jvp
def smooth_{tag}(x):
    return jnp.tanh(x) + x


smooth_{tag}.defjvps(lambda t, y, x: t * (1.5 - jnp.tanh(x)))
"""
_CUSTOM_ROUND = """\
@jax.custom_vjp
def straight_{tag}(x):
    return jnp.round(x)


straight_{tag}.defvjp(lambda x: (straight_{tag}(x), None), lambda _, ct: (jnp.clip(ct, -1, 1),))
"""


def _transformations(statement: _Add) -> None:
    statement("nested_jit", "jax.jit(lambda x: {body})({0})", "nc", level="max+3", weight=1.2)
    statement(
        "nested_jit_two",
        "jax.jit(lambda x, y: (x + y, x))({0}, {1})[0]",
        "nc",
        "=0",
        level="max+1",
        weight=0.8,
    )
    statement(
        "jit_of_jit",
        "jax.jit(lambda x: jax.jit(lambda y: y * {small})(x) + x)({0})",
        "nc",
        level="max+3",
        weight=0.5,
    )
    statement("remat", "jax.checkpoint(lambda x: {body})({0})", "fc", level="max+3", weight=1.2)
    statement(
        "remat_policy",
        "jax.checkpoint(lambda x: jnp.sin(jnp.sin(x) @ jnp.ones(("
        "{0}.shape[-1], 2), x.dtype)), policy=jax.checkpoint_policies.dots_saveable)({0})",
        "f",
        rank=1,
        level="1",
        weight=0.5,
    )
    statement(
        "custom_vjp", "scaled_{tag}({0})", "f", level="max+2", preamble=_CUSTOM_VJP, weight=1.2
    )
    statement(
        "custom_vjp_pair",
        "sum(pair_{tag}({natural}, {0}, {1}))",
        "f",
        "==0",
        level="sum+4",
        preamble=_CUSTOM_VJP_PAIR,
        weight=0.8,
    )
    statement("custom_jvp", "smooth_{tag}({0})", "f", level="max+1", preamble=_CUSTOM_JVP)
    statement("straight_through", "straight_{tag}({0})", "f", preamble=_CUSTOM_ROUND, weight=0.7)
    statement("vmap", "jax.vmap(lambda x: {body})({0})", "nc", rank=1, level="max+3")
    statement(
        "vmap_out",
        "jax.vmap(lambda x: jnp.cumsum(x, 0), in_axes=-1, out_axes=-1)({0})",
        "f",
        rank=2,
        level="max+3",
        weight=0.5,
    )
    statement(
        "vmap_while",
        "jax.vmap(lambda x: lax.while_loop(lambda c: jnp.abs(c).sum() > 1, "
        "lambda c: c * 0.5, x))(jnp.clip(jnp.nan_to_num({0}), -8, 8))",
        "f",
        rank=1,
        level="1",
        weight=0.4,
    )
    statement(
        "vmap_cond",
        "jax.vmap(lambda x: lax.cond(x.sum() > 0, lambda y: y, lambda y: y * 2, x))({0})",
        "f",
        rank=1,
        level="max+1",
        weight=0.5,
    )
    statement(
        "inner_grad", "jax.grad(lambda x: jnp.sum({body}))({0})", "f", level="max+3", weight=0.8
    )
    statement(
        "inner_jvp",
        "jax.jvp(lambda x: {body}, ({0},), ({0} * 0.5,))[1]",
        "f",
        level="max+3",
        weight=0.6,
    )
    statement(
        "inner_vjp",
        "jax.vjp(lambda x: {body}, {0})[1](jnp.ones_like({0}))[0]",
        "f",
        level="max+3",
        weight=0.5,
    )
    statement(
        "linearize", "jax.linearize(lambda x: {body}, {0})[1]({0})", "f", level="max+3", weight=0.4
    )
    statement(
        "named_scope",
        "jax.named_call(lambda x: {body}, name='part')({0})",
        "f",
        level="max+3",
        weight=0.4,
    )
    statement(
        "remat_scan",
        "lax.scan(jax.checkpoint(lambda c, x: (jnp.sin(c + x), c)), "
        "jnp.zeros_like({0}[0]), {0})[1]",
        "f",
        rank=1,
        level="1",
        weight=0.5,
    )
    statement(
        "jit_static",
        "jax.jit(lambda x, n: x * n, static_argnums=1)({0}, {small})",
        "n",
        level="max+2",
        weight=0.4,
    )
    statement(
        "custom_root",
        "lax.custom_root(lambda x: x + 0.3 * jnp.sin(x) - {0}, {0}, "
        "lambda f, x: lax.fori_loop(0, 8, lambda _, y: y - f(y), x), "
        "lambda g, y: y / g(jnp.ones_like(y)))",
        "f",
        level="max+1",
        weight=0.2,
    )
    statement(
        "linear_solve",
        "lax.custom_linear_solve(lambda x: 3 * x, {0}, lambda mv, b: b / 3, symmetric=True)",
        "f",
        weight=0.25,
    )


def _constants(statement: _Add) -> None:
    statement(
        "constant",
        "{0} + np.linspace(-1, 1, {size}, dtype={0}.dtype)",
        "f",
        rank=1,
        level="max+1",
        weight=0.7,
    )
    statement(
        "constant_matrix",
        "{0} @ np.full(({0}.shape[-1], 3), {number}, {0}.dtype)",
        "f",
        rank=1,
        level="max+4",
    )
    statement(
        "large_constant",
        "{0} * jnp.asarray((np.arange(40 * 41) % 7).reshape(40, 41), {0}.dtype).sum()",
        "f",
        level="10",
        weight=0.3,
    )
    statement(
        "large_table",
        "{0}.ravel()[:3] + jnp.asarray(np.sin(np.arange(18000.)), "
        "jnp.float32)[6000 * {small} - 3:][:3].astype({0}.dtype)",
        "f",
        rank=1,
        level="max+1",
        weight=0.3,
    )
    statement("arange", "jnp.arange({0}.shape[0])", "nb", rank=1, level="3", weight=0.7)
    statement(
        "iota", "lax.broadcasted_iota(jnp.int32, {0}.shape, 0)", "nb", rank=1, level="3", weight=0.6
    )
    statement(
        "iota_float",
        "{0} + lax.iota({0}.dtype, {0}.shape[0]).reshape((-1,) + (1,) * ({0}.ndim - 1))",
        "fi",
        rank=1,
        level="max+2",
        weight=0.5,
    )
    statement(
        "eye",
        "{0} + jnp.eye({0}.shape[-2], {0}.shape[-1], dtype={0}.dtype)",
        "n",
        rank=2,
        level="max+1",
        weight=0.6,
    )
    statement("ones_like", "jnp.ones_like({0}) - {0}", "n", level="max+1", weight=0.5)
    statement("zeros", "jnp.zeros({0}.shape, {0}.dtype)", "nbe", level="0", weight=0.3)
    statement("linspace", "jnp.linspace(0., 1., {length})", "f", level="0", weight=0.3)
    statement(
        "special_numbers",
        "{0} * jnp.array([1., jnp.inf, -0., jnp.nan]).astype({0}.dtype)[{small} - 1]",
        "f",
        weight=0.15,
    )
    statement("dimension", "{0} * {0}.shape[0]", "fi", rank=1, level="max+4", weight=0.6)


STATEMENTS = collect(
    _elementwise, _bounded, _networks, _binary, _integers, _booleans, _reductions, _shapes,
    _indexing, _sorting, _linear_algebra, _products, _random, _conversions, _control_flow,
    _transformations, _constants,
)  # fmt: skip
