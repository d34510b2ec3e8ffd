"""The models that the tests here serve: signatures of the same variables, and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

_WIDTH = 8
CLASSES = ("bad", "good", "middling")
KEYS = ("serving_default", "hidden")


def _hidden(params: Any, x: Any) -> Any:
    return jnp.tanh(x @ params["w"] + params["b"])


def _scores(params: Any, x: Any) -> Any:
    return {"scores": jax.nn.softmax(_hidden(params, x) @ params["out"]), "norm": (x * x).sum(1)}


def _classes(params: Any, x: Any) -> Any:
    return _scores(params, x)["scores"]


def _value(params: Any, x: Any) -> Any:
    return _hidden(params, x).sum(axis=1)


_FUNCTIONS = {"serving_default": _scores, "hidden": _hidden}
_COMPOSED = {"classes": _classes, "value": _value, "text": _hidden}


def parameters(scale: float = 1.0) -> Any:
    draw = np.random.default_rng(7)
    return {
        "w": (scale * draw.standard_normal((_WIDTH, _WIDTH))).astype(np.float32),
        "b": draw.standard_normal(_WIDTH).astype(np.float32),
        "out": draw.standard_normal((_WIDTH, len(CLASSES))).astype(np.float32),
    }


def exported() -> dict[str, export.Exported]:
    """An `Exported` for each signature, of any batch size."""
    return _export(_FUNCTIONS)


def _export(functions: Mapping[str, Any]) -> dict[str, export.Exported]:
    x = jax.ShapeDtypeStruct(export.symbolic_shape(f"batch, {_WIDTH}"), np.float32)
    return {
        key: export.export(jax.jit(function))(parameters(), x)
        for key, function in functions.items()
    }


def composed(folder: Path) -> Path:
    """A SavedModel with signatures besides: `classes` and `value` of `tf.Example`s, and `text`."""
    import tensorflow as tf

    from bridge.serving import compose

    def parse(text: Any) -> Any:
        return tf.strings.to_number(tf.strings.split(text, " ").to_tensor(shape=[None, _WIDTH]))

    parts: dict[str, dict[str, Any]] = {
        "classes": {"examples": True, "method": "classify", "classes": CLASSES},
        "value": {"examples": True, "method": "regress"},
        "text": {"preprocess": parse, "request": {"text": tf.TensorSpec([None], tf.string)}},
    }
    model: Any = _export(_FUNCTIONS | _COMPOSED)
    options: dict[str, Any] = {"params": parameters()}
    for key, part in parts.items():
        path = folder / key
        compose(model, path, signature=key, bare=f"{key}_of_arrays", **part, **options)
        model, options = path, {}
    return Path(model)


def inputs(batch: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(batch).standard_normal((batch, _WIDTH)).astype(np.float32)


def expected(key: str, batch: int, scale: float = 1.0) -> dict[str, np.ndarray[Any, Any]]:
    """Return what JAX computes, by the names of the outputs."""
    result = jax.jit((_FUNCTIONS | _COMPOSED)[key])(parameters(scale), inputs(batch))
    named = result if isinstance(result, dict) else {"output_0": result}
    return {name: np.asarray(value) for name, value in named.items()}
