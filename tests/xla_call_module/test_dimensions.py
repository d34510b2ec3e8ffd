"""The text of a symbolic dimension means what JAX means by it, and hostile text ends at once."""

from __future__ import annotations

import operator
import time

import jax
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax import export

from xla_call_module.dimensions import evaluate, evaluate_shape, parse_size, solve, symbols
from xla_call_module.errors import StructureError

NAMES = ("b", "seq_2", "maximum", "for", "é")
OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": jax.core.max_dim,
    "min": jax.core.min_dim,
}

sizes = st.integers(1, 40)
values = st.fixed_dictionaries(dict.fromkeys(NAMES, sizes))
constants = st.integers(-9, 9)
divisors = st.integers(1, 5) | st.sampled_from(NAMES)
trees = st.recursive(
    constants | st.sampled_from(NAMES),
    lambda inner: (
        st.tuples(st.sampled_from(["+", "-", "*", "max", "min"]), inner, inner)
        | st.tuples(st.sampled_from(["floordiv", "mod"]), inner, divisors)
    ),
    max_leaves=8,
)


def _build(tree, leaves):
    """The expression of a tree: JAX's from symbols, a number from numbers."""
    if isinstance(tree, int):
        return tree
    if isinstance(tree, str):
        return leaves[tree]
    operation, left, right = tree
    return OPERATIONS[operation](_build(left, leaves), _build(right, leaves))


def _symbolic(tree):
    scope = export.SymbolicScope()
    return _build(
        tree, dict(zip(NAMES, export.symbolic_shape(", ".join(NAMES), scope=scope), strict=False))
    )


def _text(dim):
    return str(dim) if export.is_symbolic_dim(dim) else dim


@given(trees, values)
def test_an_expression_has_the_value_that_it_has_in_jax(tree, values):
    assert evaluate(_text(_symbolic(tree)), values) == _build(tree, values)


@given(trees, values)
def test_the_polynomial_of_an_expression_has_the_value_that_it_has_in_jax(tree, values):
    assert evaluate(str(parse_size(_text(_symbolic(tree)))), values) == _build(tree, values)


@given(trees, values, st.sampled_from(NAMES))
def test_a_value_is_unknown_as_long_as_one_of_its_symbols_is(tree, values, missing):
    dim = _text(_symbolic(tree))
    del values[missing]
    assert (evaluate(dim, values) is None) == (missing in symbols(dim))


@pytest.mark.parametrize(
    ("dim", "names"),
    [
        (3, set()),
        ("3", set()),
        ("b", {"b"}),
        ("2*b + seq_2^2 - é", {"b", "seq_2", "é"}),
        ("max(floordiv(maximum, 3), mod(b, for))", {"maximum", "b", "for"}),
    ],
)
def test_symbols(dim, names):
    assert symbols(dim) == names


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-2*b + 9", 3),
        ("b*-2 + -1", -7),
        ("+b^2*b^1*b^0", 27),
        ("mod(-b, 2)", 1),
        ("floordiv(-b, 2)", -2),
        (" max ( b,\t-1 * b ) ", 3),
    ],
)
def test_the_language_of_symbolic_shape(text, value):
    assert evaluate(text, {"b": 3}) == value
    (dim,) = export.symbolic_shape(text)
    assert evaluate(_text(dim), {"b": 3}) == value


def test_a_shape():
    assert evaluate_shape((3, "b", "2*b", "c"), {"b": 5}) == (3, 5, 10, None)
    assert evaluate_shape((), {}) == ()


@given(values, st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 5), constants)))
def test_symbols_that_stand_alone_are_found(values, terms):
    """`slope * name + offset`, wherever it stands, is solved for its name."""
    shape = [_symbolic(("+", ("*", slope, name), offset)) for name, slope, offset in terms]
    arrived = [slope * values[name] + offset for name, slope, offset in terms]
    found = solve([tuple(map(_text, shape))], [arrived])
    assert found == {name: values[name] for name, _, _ in terms}


@given(st.lists(trees, max_size=5), values)
def test_what_is_found_is_right(trees, values):
    shape = [_symbolic(tree) for tree in trees]
    arrived = [_build(tree, values) for tree in trees]
    assert solve([tuple(map(_text, shape))], [arrived]).items() <= values.items()


@pytest.mark.parametrize(
    ("shapes", "sizes", "found"),
    [
        ([("b", "b + c")], [(4, 9)], {"b": 4, "c": 5}),
        ([("b + c", "b")], [(9, 4)], {"b": 4, "c": 5}),
        ([("b*c", "c")], [(12, 3)], {"b": 4, "c": 3}),
        ([("b + mod(c, 2)", "c")], [(5, 3)], {"b": 4, "c": 3}),
        ([("b",), ("b",)], [None, (7,)], {"b": 7}),
        ([("b", "c")], [(None, 3)], {"c": 3}),
        ([("2*b",)], [(5,)], {}),
        ([("b^2",)], [(9,)], {}),
        ([("b^3 - 3*b^2 + 3*b",)], [(2,)], {}),
        ([("floordiv(b, 2)",)], [(3,)], {}),
        ([("b - b",)], [(0,)], {}),
        ([("b + c",)], [(5,)], {}),
        ([("b",)], [()], {}),
    ],
)
def test_solve(shapes, sizes, found):
    assert solve(shapes, sizes) == found


HOSTILE = {
    "nested deeply": "mod(" * 1000 + "b" + ", 2)" * 1000,
    "parentheses": "(" * 9000 + "b" + ")" * 900,
    "a tower of powers": "b^64" + "^64" * 3000,
    "a product of powers": "*".join(["b^64"] * 2000),
    "a sum of powers": "+".join(["b^39"] * 1600),
    "minus signs": "-" * 9999 + "b",
    "too long": "b" + "+b" * 50_000,
    "a long number": "9" * 9999,
    "too large an exponent": "b^1000000000",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
@pytest.mark.parametrize("values", [{"b": 1 << 40}, {"b": 3}])
def test_hostile_text_ends_at_once(text, values):
    start = time.perf_counter()
    with pytest.raises(StructureError, match="dimension expression"):
        evaluate(text, values)
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "(b)",
        "b b",
        "2b",
        "b*",
        "*b",
        "b^c",
        "b^-1",
        "b**2",
        "b//2",
        "b%2",
        "1e5",
        "1.5",
        "max(b)",
        "max(b, 1, 2)",
        "max",
        "pow(b, 2)",
        "b,",
        "b;1",
        "--b",
        "2^",
        "b\x00",
        "²",
        "b.c",
        "__import__('os')",
        "lambda: b",
        "b if b else b",
        "'b'",
        "[b]",
    ],
)
def test_other_text_is_refused(text):
    with pytest.raises(StructureError, match=r"is not a dimension expression of jax.export"):
        evaluate(text, {"b": 3, "pow": 1})


def test_a_division_by_zero_is_named():
    with pytest.raises(
        StructureError, match=r"'floordiv\(4, b - 1\)'.*divides by zero at {'b': 1}"
    ):
        evaluate("floordiv(4, b - 1)", {"b": 1})


@example("d^0")
@given(st.text(alphabet="bmodax0129 +-*^(),", max_size=30) | st.text(max_size=10))
def test_any_text_has_a_value_or_is_refused(text):
    try:
        value = evaluate(text, {"b": 2, "a": 3})
    except StructureError:
        return
    assert isinstance(value, int) == (symbols(text) <= {"a", "b"})
