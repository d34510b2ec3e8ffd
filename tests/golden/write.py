"""`python write.py OUT`: what this version of the project writes, with what JAX computes.

Each folder in OUT has `model`, a SavedModel, and `values.npz`: `KEY/argument/I` and `KEY/result/I`
for the leaves of a signature's arguments and results, and `KEY/gradient/I` for the gradients of the
sum of all results with respect to the floating leaves of the parameters, then of the arguments.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bridge

PARAMS = {
    "layers": [
        {"w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), "b": np.ones(3, np.float32)},
        {"w": np.linspace(1, -1, 6, dtype=np.float32).reshape(3, 2), "b": np.zeros(2, np.float32)},
    ],
    "step": np.int32(7),
    "unused": np.ones(5, np.float32),
}
LARGE = np.linspace(0, 1, 500, dtype=np.float32)
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
N = np.arange(3, dtype=np.int32)


def predict(params, x, n):
    """Floats and integers, a constant, and what TensorFlow reads only in another form."""
    for layer in params["layers"]:
        x = jax.lax.erf(x @ layer["w"] + layer["b"])
    x = jax.lax.platform_dependent(x, cpu=lambda x: x + 1, default=lambda x: x - 1)
    return {"scores": x * jnp.mean(LARGE), "n": n + params["step"]}


def norm(params, x, n):
    """Linear algebra."""
    w = params["layers"][0]["w"]
    return (jnp.linalg.cholesky(w.T @ w + jnp.eye(3)), jnp.sum((x @ w) ** 2, axis=1) * n)


FILES = {
    "plain": {"gradient_order": 2},
    "residuals": {"residuals": True, "hoist_constants": 1000},
    "old": {"tensorflow": "2.14", "disabled_checks": ["platform"]},
    "without_gradients": {"gradient_order": 0, "hoist_constants": None},
}


def main(out):
    """Write every file."""
    (b,) = jax.export.symbolic_shape("b")
    specs = jax.ShapeDtypeStruct((b, 4), np.float32), jax.ShapeDtypeStruct((b,), np.int32)
    functions = {"predict": predict, "norm": norm}
    exported = {
        key: jax.export.export(jax.jit(function), platforms=["cuda", "cpu", "tpu"])(PARAMS, *specs)
        for key, function in functions.items()
    }
    for name, options in FILES.items():
        bridge.save(exported, out / name / "model", params=PARAMS, **options)
        np.savez(out / name / "values.npz", **dict(values(functions)))


def values(functions):
    """Return what JAX computes."""
    for key, function in functions.items():
        arrays = {"argument": [X, N], "result": jax.tree.leaves(function(PARAMS, X, N))}

        def total(params, x, function=function):
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(function(params, x, N)))

        gradients = jax.grad(total, argnums=(0, 1), allow_int=True)(PARAMS, X)
        arrays["gradient"] = [
            leaf for leaf in jax.tree.leaves(gradients) if leaf.dtype != jax.dtypes.float0
        ]
        for kind, leaves in arrays.items():
            for index, leaf in enumerate(leaves):
                yield f"{key}/{kind}/{index}", np.asarray(leaf)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
