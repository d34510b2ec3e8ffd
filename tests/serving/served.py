"""The model that the tests here serve: two signatures of the same variables, and gradients."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

__all__ = ["KEYS", "expected", "exported", "inputs", "parameters"]

_WIDTH, _CLASSES = 8, 3
KEYS = ("serving_default", "hidden")


def _hidden(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def _scores(params: Any, x: Any) -> Any:
    return {"scores": jax.nn.softmax(_hidden(params, x) @ params["out"]), "norm": (x * x).sum(1)}


_FUNCTIONS = {"serving_default": _scores, "hidden": _hidden}


def parameters(scale: float = 1.0) -> Any:
    draw = np.random.default_rng(7)
    return {
        "w": (scale * draw.standard_normal((_WIDTH, _WIDTH))).astype(np.float32),
        "b": draw.standard_normal(_WIDTH).astype(np.float32),
        "out": draw.standard_normal((_WIDTH, _CLASSES)).astype(np.float32),
    }


def exported() -> dict[str, export.Exported]:
    """An `Exported` for each signature, of any batch size."""
    x = jax.ShapeDtypeStruct(export.symbolic_shape(f"batch, {_WIDTH}"), np.float32)
    return {
        key: export.export(jax.jit(function))(parameters(), x)
        for key, function in _FUNCTIONS.items()
    }


def inputs(batch: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch).standard_normal((batch, _WIDTH)).astype(np.float32)


def expected(key: str, batch: int, scale: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    """What JAX computes, by the names of the outputs."""
    result = jax.jit(_FUNCTIONS[key])(parameters(scale), inputs(batch))
    named = result if isinstance(result, dict) else {"output_0": result}
    return {name: np.asarray(value) for name, value in named.items()}
