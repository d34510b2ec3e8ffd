"""`python -m tests.device.write OUT`: files for every platform, and what JAX computes on a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bridge
from tests.benchmarks import models


def solve(params, x):
    """Linear algebra of all kinds."""
    spd = params["w"] @ params["w"].T + 8 * jnp.eye(8)
    q, r = jnp.linalg.qr(params["w"])
    values, vectors = jnp.linalg.eigh(spd)
    return {
        "cholesky": jnp.linalg.cholesky(spd),
        "solve": jnp.linalg.solve(spd, x),
        "qr": q @ r,
        "eigh": (vectors * values) @ vectors.T,
        "singular": jnp.linalg.svd(params["w"], compute_uv=False),
    }


def cases():
    """Name -> function, parameters, argument."""
    draw = np.random.default_rng(0)
    square = {"w": draw.standard_normal((8, 8)).astype(np.float32)}
    return {
        "transformer_block": (
            lambda params, x: {"y": models.transformer_block(params, x)},
            *models.transformer_data(width=64, batch=2, time=16),
        ),
        "linear_algebra": (solve, square, draw.standard_normal((8, 2)).astype(np.float32)),
    }


def main(out):
    """Write everything."""
    for name, (function, params, x) in cases().items():
        exported = jax.export.export(jax.jit(function), platforms=["cpu", "cuda", "tpu"])(params, x)
        bridge.save(exported, out / name / "model", params=params)
        total = lambda p, x, f=function: sum(map(jnp.sum, jax.tree.leaves(f(p, x))))  # noqa: E731
        leaves = {
            "result": jax.tree.leaves(function(params, x)),
            "gradient": jax.tree.leaves(jax.grad(total, argnums=(0, 1))(params, x)),
            "argument": [x],
        }
        arrays = {
            f"{kind}/{index}": np.asarray(leaf)
            for kind, found in leaves.items()
            for index, leaf in enumerate(found)
        }
        np.savez(out / name / "values.npz", **arrays)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
