"""Products of matrices and convolutions, of every dtype."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.bridge.litert.checking import LiteRTCheck

_RANDOM = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return _RANDOM.standard_normal(shape).astype(np.float32)


_SUMS = {
    "ij,jk->ik": ((3, 4), (4, 5)),
    "bhqd,bhkd->bhqk": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "qbhd,khbd->hqkb": ((4, 2, 3, 5), (6, 3, 2, 5)),
    "abc,cbd->ad": ((2, 3, 4), (4, 3, 5)),
    "abcde,ebfa->cdf": ((2, 3, 2, 3, 2), (2, 3, 4, 2)),
    "i,j->ij": ((3,), (4,)),
    "i,i->": ((3,), (3,)),
    "bi,bi->b": ((3, 4), (3, 4)),
    "bij,j->bi": ((2, 3, 4), (4,)),
}


@pytest.mark.parametrize("subscripts", _SUMS)
def test_sums_of_products(check: LiteRTCheck, subscripts: str) -> None:
    left, right = (_normal(*shape) for shape in _SUMS[subscripts])
    check(lambda a, b: jnp.einsum(subscripts, a, b), left, right, relative=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "bool"])
@pytest.mark.parametrize("size", [3, 600])
def test_products_of_integers_are_exact(check: LiteRTCheck, dtype: str, size: int) -> None:
    numbers = np.dtype(dtype)
    bounds = (0, 1) if dtype == "bool" else (np.iinfo(numbers).min, np.iinfo(numbers).max)
    left, right = (
        _RANDOM.integers(*bounds, shape, endpoint=True).astype(numbers)
        for shape in ((7, size), (size, 5))
    )
    left[0], right[:, 0] = bounds[0], bounds[0]
    left[1], right[:, 1] = bounds[1], bounds[1]

    def products(left: Any, right: Any) -> Any:
        wide = None if dtype == "bool" else np.int32
        return left @ right, lax.dot(left, right, preferred_element_type=wide)

    check(products, left, right)


def test_products_of_narrow_floats(check: LiteRTCheck) -> None:
    def products(left: Any, right: Any) -> Any:
        return left @ right, lax.dot(left, right, preferred_element_type=np.float32)

    left, right = (_normal(4, 4).astype(jnp.bfloat16) for _ in range(2))
    check(products, left, right, relative=1e-2)


@pytest.mark.parametrize("name", ["int32", "bool"])
def test_only_what_has_been_added_is_rounded(check: LiteRTCheck, name: str) -> None:
    """Products of 1.6 are 2.56, of which three are 7."""
    numbers = np.float32([[1.6, 1.6, 1.6], [-0.5, 0.5, 0.25], [1e20, 0, 1]])
    check(lambda a, b: lax.dot(a, b, preferred_element_type=name), numbers, np.float32(numbers.T))


def test_products_of_complex_numbers(check: LiteRTCheck) -> None:
    def product(left: Any, right: Any) -> Any:
        made = lax.complex(left, -left) @ lax.complex(right, left.T)
        return made.real, made.imag

    check(product, _normal(3, 4), _normal(4, 3), relative=1e-5)


def test_nothing_is_summed(check: LiteRTCheck) -> None:
    check(lambda a: a[:, :0] @ a[:0] + a, _normal(4, 4))


_PLAIN = ("NHWC", "HWIO", "NHWC")
_CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "same": ((2, 5, 6, 3), (3, 3, 3, 4), {"padding": "SAME"}),
    "strided": ((2, 5, 6, 3), (3, 2, 3, 4), {"window_strides": (2, 1)}),
    "first features": (
        (2, 3, 5, 6), (4, 3, 3, 2), {"dimension_numbers": ("NCHW", "OIHW", "NCHW")}
    ),
    "negative padding": ((2, 5, 6, 3), (3, 3, 3, 4), {"padding": ((-1, 1), (2, -2))}),
    "dilated window": (
        (2, 9, 8, 3), (3, 2, 3, 4),
        {"padding": "SAME", "rhs_dilation": (2, 3), "window_strides": (2, 2)},
    ),
    "dilated array": (
        (2, 5, 6, 3), (3, 3, 3, 4), {"padding": ((2, 2), (1, 1)), "lhs_dilation": (2, 3)}
    ),
    "groups": ((2, 5, 6, 4), (3, 3, 2, 6), {"padding": "SAME", "feature_group_count": 2}),
    "depthwise": (
        (2, 5, 6, 4), (3, 3, 1, 8),
        {"padding": "SAME", "feature_group_count": 4, "window_strides": (2, 2)},
    ),
    "groups of the batch": ((4, 5, 6, 3), (3, 3, 3, 4), {"batch_group_count": 2}),
    "one dimension": (
        (2, 3, 5), (6, 1, 3),
        {"feature_group_count": 3, "dimension_numbers": ("NCW", "OIW", "NCW")},
    ),
    "three dimensions": (
        (2, 3, 4, 5, 6), (4, 3, 3, 2, 3),
        {"dimension_numbers": ("NCDHW", "OIDHW", "NCDHW"), "padding": ((0, 0), (1, 0), (1, 1)),
         "rhs_dilation": (1, 2, 1), "lhs_dilation": (1, 1, 2)},
    ),
    "three dimensions in groups": (
        (1, 3, 4, 3, 4), (2, 2, 2, 2, 6),
        {"dimension_numbers": ("NDHWC", "DHWIO", "NDHWC"), "feature_group_count": 2},
    ),
    "no dimension": ((2, 3), (3, 4), {"dimension_numbers": ("NC", "IO", "NC"), "padding": ()}),
}  # fmt: skip


@pytest.mark.parametrize("name", _CONVOLUTIONS)
def test_convolutions_and_their_gradients(check: LiteRTCheck, name: str) -> None:
    shape, kernel_shape, options = _CONVOLUTIONS[name]
    settings = {
        "window_strides": (1,) * (len(shape) - 2), "padding": "VALID", "dimension_numbers": _PLAIN,
    } | options  # fmt: skip

    def convolved(array: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(array, kernel, **settings)

    def square(array: Any, kernel: Any) -> Any:
        return (convolved(array, kernel) ** 2).sum()

    array, kernel = _normal(*shape), _normal(*kernel_shape)
    check(convolved, array, kernel, relative=1e-5)
    check(jax.grad(square, argnums=(0, 1)), array, kernel, relative=1e-5)


def test_a_transposed_convolution(check: LiteRTCheck) -> None:
    array, kernel = _normal(2, 5, 6, 3), _normal(3, 3, 3, 4)
    check(lambda a, k: lax.conv_transpose(a, k, (2, 2), "SAME"), array, kernel, relative=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "int32"])
def test_convolutions_of_integers_are_exact(check: LiteRTCheck, dtype: str) -> None:
    bounds = np.iinfo(np.dtype(dtype))
    array, kernel = (
        _RANDOM.integers(bounds.min, bounds.max, shape, endpoint=True).astype(dtype)
        for shape in ((2, 5, 6, 4), (3, 3, 2, 6))
    )

    def convolved(array: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            array, kernel, (1, 1), "SAME", dimension_numbers=_PLAIN, feature_group_count=2,
            preferred_element_type=np.int32,
        )  # fmt: skip

    check(convolved, array, kernel)
