"""The small SavedModels that are mutated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

import bridge

W = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
PARAMS = {"b": np.ones(2, np.float32), "layers": [{"w": W}, {"n": np.int32(3)}]}
TABLE = np.linspace(0, 1, 64, dtype=np.float32)


def _network(params: dict, x: jax.Array) -> dict:
    return {
        "y": jnp.tanh(x @ params["layers"][0]["w"] + params["b"]),
        "n": params["layers"][1]["n"],
    }


def _of_table(params: dict, x: jax.Array) -> jax.Array:
    return x.sum() * params["b"] + TABLE.mean()


def _export(function: Callable[..., object], shape: tuple[object, ...]) -> export.Exported:
    return export.export(jax.jit(function))(PARAMS, jax.ShapeDtypeStruct(shape, np.float32))


def _params(folder: Path) -> None:
    exported = _export(_network, (*export.symbolic_shape("b"), 3))
    bridge.save(exported, folder, params=PARAMS, gradient_order=2)


def _two_signatures(folder: Path) -> None:
    exporteds = {"serving_default": _export(_network, (4, 3)), "other": _export(_of_table, (5,))}
    bridge.save(exporteds, folder, params=PARAMS, residuals=True)


def _hoisted(folder: Path) -> None:
    bridge.save(_export(_of_table, (5,)), folder, params=PARAMS, hoist_constants=16)


def _plain(folder: Path) -> None:
    exported = _export(_network, (*export.symbolic_shape("b"), 3))
    bridge.save(exported, folder, params=PARAMS, operations="tensorflow")


MODELS = {
    "params": _params,
    "two_signatures": _two_signatures,
    "hoisted": _hoisted,
    "plain": _plain,
}


def make(folder: Path) -> dict[str, Path]:
    """A folder for each of the models."""
    for name, save in MODELS.items():
        save(folder / name)
    return {name: folder / name for name in MODELS}
