"""`bridge.testing`: what it accepts, what it finds, and how it says so."""

from __future__ import annotations

import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge.testing
from bridge.testing import assert_gradients_match
from bridge.verifying.comparison import Tolerance, describe_difference
from tests.bridge.absence import run_without_tensorflow
from xla_call_module.errors import (
    DtypeError,
    MissingDependencyError,
    StructureError,
    UnsupportedError,
    installing,
)

PARAMS = {"b": np.float32([0.1, -0.2]), "w": np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2)}
X = np.linspace(0.1, 1.3, 6).astype(np.float32).reshape(2, 3)
ROW = np.float32([0.5, 1.0, 2.0])


def network(params, x, *, scale=1.0):
    y = jnp.tanh(x @ params["w"] + params["b"])
    return {"y": y * scale, "count": jnp.int32(x.shape[0])}


class TestWhatAgrees:
    @pytest.mark.parametrize("variables", [False, True])
    def test_every_mode(self, variables):
        assert_gradients_match(network, PARAMS, X, order=1, variables=variables)

    @pytest.mark.parametrize("mode", ["eager", "graph", "jit", "saved"])
    def test_forward_mode(self, mode):
        assert_gradients_match(network, PARAMS, X, order=0, modes=[mode], forward=True)

    def test_forward_mode_after_reverse_mode(self):
        assert_gradients_match(network, PARAMS, X, order=1, modes=["graph"], forward=True)

    @pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
    def test_functions(self, wrap):
        assert_gradients_match(
            wrap(network), PARAMS, X, kwargs={"scale": 2.0}, order=1, modes=["eager"]
        )

    def test_complex_numbers(self):
        """JAX's gradients are the conjugates of TensorFlow's, of each order and cotangent."""
        z = np.complex64([1 + 2j, -0.5 + 1j])
        assert_gradients_match(
            lambda z, x: (z * z * x, jnp.sin(z)), z, ROW[:2], order=2, modes=["eager"]
        )

    def test_an_exported(self):
        shapes = jax.export.symbolic_args_specs((PARAMS, X), (None, "b, 3"))
        exported = jax.export.export(jax.jit(network))(*shapes)
        modes = ["graph", "saved"]
        assert_gradients_match(exported, PARAMS, X, order=1, modes=modes)
        assert_gradients_match(exported, PARAMS, X[:1], order=1, modes=modes, reference=network)

    def test_nothing_to_differentiate(self):
        assert_gradients_match(lambda n: (n + 1, n > 2), np.arange(4), order=2, modes=["saved"])

    def test_the_seed_chooses_the_cotangents(self):
        """A gradient that is wrong for some cotangents alone is found by some seeds alone."""
        function = _with_pullback(lambda x: x * 2, lambda x, ct: (ct * 2,))
        wrong = _with_pullback(lambda x: x * 2, lambda x, ct: (ct * (2 + (ct[0] > 0)),))
        found = []
        for seed in (*range(8), 0):
            try:
                assert_gradients_match(
                    function, ROW, reference=wrong, order=1, modes=["eager"], seed=seed
                )
            except AssertionError:
                found.append(seed)
        assert found.count(0) in (0, 2)
        assert 0 < len({*found}) < 8

    def test_half_precision_inside_of_float32(self):
        """XLA leaves out roundings that JAX's operations make one by one."""

        def mixed(x):
            return jnp.sin(x.astype(jnp.bfloat16)).astype(jnp.float32), x * 2

        def other(scale, rest):
            def reference(x):
                y, z = mixed(x)
                return y * (1 + scale), z * (1 + rest)

            return {"order": 1, "modes": ["eager"], "reference": reference}

        assert_gradients_match(mixed, ROW, **other(1e-2, 0))
        with pytest.raises(AssertionError, match=r"result\[1\] at index"):
            assert_gradients_match(mixed, ROW, **other(0, 1e-2))

    def test_tolerances(self):
        options = {"order": 0, "modes": ["eager"], "reference": lambda x: x * (1 + 1e-3)}
        assert_gradients_match(lambda x: x, ROW, rtol=2e-3, atol=0, **options)
        assert_gradients_match(lambda x: x, ROW, rtol=0, atol=3e-3, **options)
        with pytest.raises(
            AssertionError, match=r"0\.002 is allowed \(rtol=0, atol=0\.002\)\. 3 of"
        ):
            assert_gradients_match(lambda x: x, ROW * 4, rtol=0, atol=2e-3, **options)


def _with_pullback(forward, pull_back):
    function = jax.custom_vjp(forward)
    function.defvjp(lambda *x: (forward(*x), x), pull_back)
    return function


def _twofold(params, x):
    return {"a": x + params["b"], "b": params["w"] * x**3}


def _twofold_but_for_one(params, x):
    pulled = _with_pullback(lambda w: w, lambda residuals, ct: (ct.at[1].multiply(1.5),))
    return {"a": x + params["b"], "b": pulled(params["w"]) * x**3}


class TestWhatDiffers:
    MODES = ("eager", "graph", "jit", "saved", "tf_saved", "resaved")

    @pytest.mark.parametrize("mode", MODES)
    def test_a_value(self, mode):
        def reference(x):
            return {"y": [x, (x * 2).at[2].add(0.5)]}

        wanted = (
            rf"^<lambda> in the mode '{mode}': result\['y'\]\[1\] at index \(2,\) is 4\.0; JAX has "
            r"4\.5\. They differ by 0\.5, and 0\.000902 is allowed \(rtol=0\.0001, "
            r"atol=0\.000452\)\. 1 of 3 elements of float32\[3\] differ\.$"
        )
        with pytest.raises(AssertionError, match=wanted):
            assert_gradients_match(
                lambda x: {"y": [x, x * 2]}, ROW, order=0, modes=[mode], reference=reference
            )

    @pytest.mark.parametrize("mode", MODES)
    def test_a_gradient(self, mode):
        """The message names the result and the argument, each among others."""
        params = {"b": ROW, "w": ROW}
        wanted = (
            rf"mode '{mode}': the gradient of order 1 of result\['b'\] with respect to "
            r"args\[0\]\['w'\] at index \(1,\) is .* 1 of 3 elements"
        )
        with pytest.raises(AssertionError, match=wanted):
            assert_gradients_match(
                _twofold, params, ROW, order=1, modes=[mode], reference=_twofold_but_for_one
            )

    @pytest.mark.parametrize("mode", MODES[:4])
    @pytest.mark.parametrize(
        ("pull_back", "where"),
        [
            (
                lambda x, ct: (ct * jax.lax.stop_gradient(3 * x[0] ** 2),),
                r"2 of result with respect to args\[0\] at index",
            ),
            (
                lambda x, ct: (jax.lax.stop_gradient(ct) * 3 * x[0] ** 2,),
                r"2 with respect to the cotangent of result at index",
            ),
        ],
        ids=["argument", "cotangent"],
    )
    def test_the_second_order(self, mode, pull_back, where):
        reference = _with_pullback(lambda x: x**3, pull_back)
        options = {"modes": [mode], "reference": reference}
        assert_gradients_match(lambda x: x**3, ROW, order=1, **options)
        with pytest.raises(AssertionError, match=f"mode '{mode}': the gradient of order {where}"):
            assert_gradients_match(lambda x: x**3, ROW, order=2, **options)

    @pytest.mark.parametrize("mode", ["eager", "graph", "saved"])
    def test_none_is_zeros(self, mode):
        def stopped(x, y):
            return x * jax.lax.stop_gradient(y)

        options = {"order": 1, "modes": [mode]}
        assert_gradients_match(stopped, ROW, ROW, **options)
        wanted = r"with respect to args\[1\] is None; with zeros for it, it at index \(2,\) is 0\.0"
        with pytest.raises(AssertionError, match=wanted):
            assert_gradients_match(stopped, ROW, ROW, reference=lambda x, y: x * y, **options)

    @pytest.mark.parametrize("mode", ["eager", "graph", "saved"])
    def test_a_tangent(self, mode):
        reference = jax.custom_jvp(lambda x: {"y": x**2})
        reference.defjvp(lambda x, t: ({"y": x[0] ** 2}, {"y": x[0] * t[0]}))
        options = {"order": 0, "modes": [mode], "reference": reference}
        assert_gradients_match(lambda x: {"y": x**2}, ROW, **options)
        with pytest.raises(AssertionError, match=r": the tangent of result\['y'\] at index"):
            assert_gradients_match(lambda x: {"y": x**2}, ROW, forward=True, **options)


NAN, INF = float("nan"), float("inf")


class TestComparison:
    @pytest.mark.parametrize(
        ("found", "expected", "text"),
        [
            ([1.0, NAN], [1.0, 2.0], "at index (1,) is nan; JAX has 2.0."),
            ([1.0, 2.0], [1.0, NAN], "at index (1,) is 2.0; JAX has nan."),
            ([INF, 2.0], [-INF, 2.0], "at index (0,) is inf; JAX has -inf."),
            ([[1.0, 2.0], [3.0, 9.0]], [[1.0, 2.5], [3.0, 4.0]], "at index (1, 1) is 9.0;"),
            (1.0, 2.0, "is 1.0; JAX has 2.0."),
            ([1 + 2j], [1 - 2j], "at index (0,) is (1+2j); JAX has (1-2j). They differ by 4,"),
        ],
    )
    def test_different(self, found, expected, text):
        single = np.complex64 if np.iscomplexobj(found) else np.float32
        arrays = np.asarray(found, single), np.asarray(expected, single)
        assert describe_difference(*arrays, Tolerance()).startswith(text)

    @pytest.mark.parametrize(
        ("found", "expected", "text"),
        [
            (np.arange(3), np.arange(3) * 2, "at index (1,) is 1; JAX has 2. 2 of 3 elements of i"),
            (np.array([True]), np.array([False]), "at index (0,) is True; JAX has False. 1 of 1"),
            (np.float32([1]), np.float64([1]), "is float32[1]; JAX has float64[1]."),
            (np.zeros((2, 1)), np.zeros(2), "is float64[2,1]; JAX has float64[2]."),
        ],
    )
    def test_dtypes_and_shapes(self, found, expected, text):
        assert describe_difference(found, expected, Tolerance(1.0, 1.0)).startswith(text)

    @pytest.mark.parametrize(
        ("dtype", "rtol"),
        [
            ("float64", 1e-10),
            ("complex128", 1e-10),
            ("float32", 1e-4),
            ("float16", 2**-7),
            ("bfloat16", 2**-4),
            ("float8_e4m3fn", 0.25),
        ],
    )
    def test_what_is_usual_for_a_dtype(self, dtype, rtol):
        expected = np.array([0.0, 8.0]).astype(jnp.dtype(dtype))
        assert Tolerance().of(expected, 0.0) == (rtol, 8 * rtol)
        assert Tolerance().of(expected, 1.0)[1] > 8 * rtol
        assert Tolerance(0.5).of(expected, 0.0) == (0.5, 4.0)
        assert Tolerance(0.5, 0.1).of(expected, 1.0) == (0.5, 0.1)


class TestMisuse:
    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"order": -1}, "order is -1; expected a whole number, 0 or more"),
            ({"order": "1"}, "order is '1'; expected"),
            ({"modes": "eager"}, r"modes is 'eager'; expected a sequence of some of \('eager', "),
            ({"modes": []}, r"modes is \[\]; expected"),
            ({"modes": ["eager", "live"]}, r"modes is \['eager', 'live'\]; expected"),
            ({"reference": lambda x: [x]}, r"The reference returns the structure .*\[\*\].*<lamb"),
            (
                {"reference": lambda x: x.astype(int)},
                r"The reference returns int32\[3\] for result; <lambda> returns float32\[3\]\.",
            ),
            ({"reference": lambda x: x[:2]}, r"The reference returns float32\[2\] for result; <"),
        ],
    )
    def test_options(self, options, match):
        with pytest.raises(StructureError, match=match):
            assert_gradients_match(lambda x: x * 2, ROW, **options)

    @pytest.mark.parametrize(
        ("args", "error", "match"),
        [
            ((ROW, ROW), StructureError, "was called with the structure .* it was exported for"),
            (
                (ROW[:2],),
                StructureError,
                r"args\[0\] of .* has shape \(2,\); expected float32\[3\]",
            ),
            ((np.arange(3),), DtypeError, r"args\[0\] is int32\[3\]; .* was exported for float32"),
        ],
    )
    def test_arguments(self, args, error, match):
        exported = jax.export.export(jax.jit(lambda x: x * 2))(ROW)
        with pytest.raises(error, match=match):
            assert_gradients_match(exported, *args)

    @pytest.mark.parametrize(
        ("fun", "args", "options", "match"),
        [
            (3, (ROW,), {}, "Expected a Python function or a jax.export.Exported, got int"),
            (jnp.sin, ([ROW, "text"],), {}, r"args\[0\]\[1\] is a str; expected an array or a Pyt"),
            (
                lambda: 1.0,
                (),
                {"variables": True},
                "makes variables of the first argument, and there is none",
            ),
        ],
    )
    def test_what_is_no_function_or_argument(self, fun, args, options, match):
        with pytest.raises(StructureError, match=match):
            assert_gradients_match(fun, *args, **options)

    def test_forward_mode_of_a_function_that_has_none_in_jax(self):
        @jax.custom_vjp
        def sine(x):
            return jnp.sin(x)

        sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, cotangent: (cotangent * jnp.cos(x),))
        with pytest.raises(UnsupportedError, match=r"custom_vjp.*To do: leave out forward=True"):
            assert_gradients_match(sine, ROW, forward=True, modes=["eager"])
        assert_gradients_match(sine, ROW, modes=["eager"])

    def test_errors_name_their_mode(self):
        class Point:
            def __init__(self, x):
                self.x = x

        kind = object()
        jax.tree_util.register_pytree_node(
            Point, lambda point: ((point.x,), kind), lambda _, parts: Point(*parts)
        )
        with pytest.raises(StructureError, match=r"args\[0\] \(static data of Point\)") as caught:
            assert_gradients_match(lambda point: point.x * 2, Point(ROW), modes=["graph", "saved"])
        assert "in the mode 'saved' of assert_gradients_match" in caught.value.__notes__


def test_without_tensorflow(monkeypatch):
    code = "import bridge.testing; print(bridge.testing.__all__)"
    assert run_without_tensorflow(code) == "['assert_gradients_match']\n"
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    wanted = re.escape(f"TensorFlow, which is not installed. To do: {installing('tensorflow')}")
    with pytest.raises(MissingDependencyError, match=wanted):
        bridge.testing.assert_gradients_match(jnp.sin, ROW)
