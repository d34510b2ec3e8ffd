"""`jax.nn`."""

from __future__ import annotations

import jax.numpy as jnp

from tests.operations.case import FLOATS, Lines
from tests.operations.operands import Operand, fixed, rows

X = Operand((1,))
M = rows(4)

_activations = Lines("jax.nn", FLOATS, elementwise=True)
_rows = Lines("jax.nn", FLOATS)
_filled = Lines("jax.nn", FLOATS, without=("empty",))
_products = Lines("jax.nn", ("float32", "float16", "bfloat16"), loose=4)

CASES = (
    *_activations(
        "celu elu selu relu relu6 leaky_relu sigmoid hard_sigmoid hard_silu hard_tanh "
        "identity log_sigmoid mish silu soft_sign softplus sparse_plus sparse_sigmoid "
        "squareplus",
        X,
    ),
    *_activations("log1mexp", Operand((1,), 0.1, 3.0)),
    *_activations("gelu", X),
    *_activations("gelu", X, approximate=False),
    *_rows("glu", M),
    *_rows("softmax log_softmax", M),
    *_filled("softmax logsumexp logmeanexp", M, axis=0),
    *_filled(
        "logsumexp",
        M,
        note="weighted",
        by=lambda f, x: f(x, axis=1, b=jnp.array([1, -1, 2, 0.5], x.dtype), return_sign=True),
    ),
    *_rows("softmax", M, note="masked", by=lambda f, x: f(x, where=x > -1)),
    *Lines("jax.nn", FLOATS, loose=16)("standardize", M),
    *_products(
        "scaled_matmul",
        Operand((2, 3, 32)),
        Operand((2, 4, 32)),
        Operand((2, 3, 1), 0.5, 2),
        Operand((2, 4, 1), 0.5, 2),
    ),
    *_products(
        "scaled_dot_general",
        Operand((2, 3, 32)),
        Operand((2, 4, 32)),
        dimension_numbers=(((2,), (2,)), ((0,), (0,))),
    ),
    *_rows("one_hot", fixed([2, 0, 7, -1], "int32"), num_classes=4),
    *_products(
        "dot_product_attention", Operand((2, 3, 2, 4)), Operand((2, 5, 2, 4)), Operand((2, 5, 2, 4))
    ),
    *_products(
        "dot_product_attention",
        Operand((2, 3, 4, 4)),
        Operand((2, 3, 2, 4)),
        Operand((2, 3, 2, 4)),
        is_causal=True,
    ),
)
