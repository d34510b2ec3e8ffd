"""Python numbers and arrays as the arguments of what was loaded."""

from __future__ import annotations

import numpy as np
import pytest

import bridge
from xla_call_module.errors import DtypeError, PlatformError, StructureError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("arguments") / "model"
    bridge.save(lambda x, n: (x * 2, n + 1), path, args="f16[], i32[]", gradient_order=0)
    return bridge.load(path)


@pytest.mark.parametrize("number", [1.5, 2, True, float("inf"), -float("inf"), float("nan")])
def test_a_number_has_the_dtype_of_its_argument(model, number):
    double, following = model(number, True)
    assert (double.dtype, following.dtype) == ("float16", "int32")
    np.testing.assert_array_equal(double, np.float16(number) * 2)
    assert following == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1e6, 1), "x of serving_default is 1000000.0, which is infinite as float16"),
        ((1.0, 1.5), "n of serving_default has dtype float32; expected int32"),
        ((1.0, 1 << 40), "n of serving_default is 1099511627776, which is no int32"),
        ((1j, 1), "x of serving_default has dtype complex64; expected float16"),
        ((np.float32(1), 1), "x of serving_default has dtype float32; expected float16"),
        (("1", 1), "x of serving_default is a str"),
    ],
)
def test_a_number_of_another_kind_is_refused(model, arguments, message):
    with pytest.raises(DtypeError, match=message):
        model(*arguments)


def test_the_platform_is_compared_unless_that_is_disabled(tmp_path):
    for checks in ([], ["shape_assertions"], ["platform"]):
        path = tmp_path / "-".join(["m", *checks])
        options = {"platforms": ["tpu"], "disabled_checks": checks, "gradient_order": 0}
        bridge.save(lambda x: x + 1, path, args="f32[]", **options)
        if checks == ["platform"]:
            assert bridge.load(path)(1.0) == 2
            continue
        with pytest.raises(PlatformError, match="was exported for tpu, and JAX runs on cpu"):
            bridge.load(path)(1.0)


def test_inputs_by_name_are_all_of_them(model):
    assert model(n=1, x=0.5)[1] == 2
    for names in ({"x": 1.0}, {"x": 1.0, "n": 1, "m": 1}):
        with pytest.raises(StructureError, match="or its inputs by name: n, x"):
            model(**names)


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (
            ([[1.0, 2.0]], 1),
            {},
            r"takes \(float16\[\], int32\[\]\), .* \(\[\[\*, \*\]\], \*\)\. To do: make",
        ),
        ((), {"image": 1.0}, r"called with image by name\. To do: pass arrays in this structure"),
        (([0.5] * 100, 1), {}, r"\(\[\*, \*, .*…\)\. To do: make arrays"),
    ],
)
def test_another_structure(model, arguments, named, message):
    with pytest.raises(StructureError, match=message):
        model(*arguments, **named)
