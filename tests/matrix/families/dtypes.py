"""Element types."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.matrix.case import (
    DOUBLE,
    EXACT,
    FLOAT16,
    HALF,
    Case,
    complexes,
    floats,
    integers,
)


def _half(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w), x.astype(jnp.float32).sum(), x * 3


def _half_elementary(x: Any) -> Any:
    return {"sinh": jnp.sinh(x), "erf": lax.erf(x), "exp": jnp.exp(x), "sorted": jnp.sort(x)}


def _float8(x: Any, y: Any) -> Any:
    product = lax.dot(x, y, preferred_element_type=jnp.float32)
    return {"reversed": x[::-1], "wide": x.astype(jnp.float32), "product": product}


def _complex_numbers(z: Any) -> Any:
    return z * jnp.conj(z[::-1]), jnp.abs(z), jnp.exp(z), z.real


def _complex_functions(z: Any) -> Any:
    return {"tanh": jnp.tanh(z), "sqrt": jnp.sqrt(z), "log": jnp.log(z), "power": z**2.5}


def _integer_arithmetic(x: Any, y: Any) -> Any:
    products = lax.dot(x, x.T, preferred_element_type=jnp.int32)
    return {"quotient": x // 3, "rest": y % 5, "products": products, "sum": y.sum(), "less": x < 7}


def _booleans(x: Any, y: Any) -> Any:
    return x & ~y, jnp.logical_xor(x, y).sum(), jnp.where(x, 1.5, y)


def _wide(x: Any, n: Any) -> Any:
    return jnp.sin(x) @ x.T, n * 2**40 + 1, x.astype(jnp.complex128) * 1j


def _wide_functions(x: Any) -> Any:
    return {"erf": lax.erf(x), "sinh": jnp.sinh(x), "log1p": jnp.log1p(x * x), "sum": x.sum()}


def _int4_inside(x: Any) -> Any:
    return jnp.clip(x, -7, 7).astype(jnp.int4).astype(jnp.int8)


def _float8_inside(x: Any) -> Any:
    return x.astype(jnp.float8_e5m2).astype(jnp.float32)


def _mixed(x: Any, y: Any) -> Any:
    return x * 2 + y, x.astype(jnp.bfloat16) * y, (x > 0) + y


def _pair(dtype: Any) -> tuple[Any, Any]:
    return floats(3, 4, dtype=dtype), floats(4, 2, dtype=dtype)


CASES = (
    Case("bfloat16", _half, _pair(ml_dtypes.bfloat16), tolerance=HALF),
    Case("bfloat16_functions", _half_elementary, (floats(3, 4, dtype=ml_dtypes.bfloat16),),
         tolerance=HALF),
    Case("float16", _half, _pair(np.float16), tolerance=FLOAT16),
    Case("float16_functions", _half_elementary, (floats(3, 4, dtype=np.float16),),
         tolerance=FLOAT16),
    Case("float8_e4m3fn", _float8, _pair(ml_dtypes.float8_e4m3fn)),
    Case("float8_e5m2", _float8, _pair(ml_dtypes.float8_e5m2)),
    Case("complex64", _complex_numbers, (complexes(5),)),
    Case("complex_functions", _complex_functions, (complexes(5),)),
    Case("integers", _integer_arithmetic, (integers(3, 4, dtype=np.int8),
                                           integers(5, dtype=np.uint16)), tolerance=EXACT),
    Case("booleans", _booleans, (integers(6) > 40, integers(6) > 20), tolerance=EXACT),
    Case("float64", _wide, (floats(3, 4, dtype=np.float64), integers(3, dtype=np.int64)),
         tolerance=DOUBLE, x64=True),
    Case("float64_functions", _wide_functions, (floats(3, 4, dtype=np.float64),),
         tolerance=DOUBLE, x64=True),
    Case("uint8_and_int16", lambda x, y: (x << 1, x + 200, y * y, y >> 2),
         (integers(6, dtype=np.uint8), integers(6, dtype=np.int16)), tolerance=EXACT),
    Case("mixed", _mixed, (floats(5), integers(5, dtype=np.int8)), tolerance=HALF),
    Case("int4_inside", _int4_inside, (floats(3, 4, high=9),), tolerance=EXACT),
    Case("float8_inside", _float8_inside, (floats(3, 4, high=9),), tolerance=EXACT, gradient=False),
)  # fmt: skip
