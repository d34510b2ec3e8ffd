"""Whole networks: their results of any batch, and the gradients of their weights and inputs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from tests.bridge import networks
from tests.operations.case import Case
from tests.operations.operands import ROWS, Operand

_WITHOUT = ("vmap", "gradient", "second gradient", "empty")
# Of these the dimension of any size is the second one: that of time, or of caches.
_TURNED = ("gpt", "gpt_step", "bigru")
_MODELS = {
    "mlp": networks.mlp,
    "resnet": lambda: networks.resnet((1, 1), width=4, size=16),
    "mobilenet": networks.mobilenet,
    "mobilenet_v2": lambda: networks.mobilenet_v2(stages=3, size=32),
    "unet": networks.unet,
    "vit": networks.vit,
    "gpt": networks.gpt,
    "gpt_step": networks.gpt_step,
    "lstm": lambda: networks.lstm(steps=20),
    "bigru": networks.bigru,
    "solver": networks.solver,
    "kalman": networks.kalman,
}


def _operand(array, *, rows=False):
    return Operand(
        array.shape, dtype=array.dtype.name, rows=rows, extreme=False, values=lambda: array
    )


def _turned(x):
    return x.swapaxes(0, 1) if x.ndim > 1 else x


def _of_inputs(function, params, is_turned, *inputs):
    given = [_turned(x) if is_turned else x for x in inputs]
    return function(jax.tree.map(jnp.asarray, params), *given)


def _gradients(function, tree, is_turned, *arrays):
    """Return the gradients of half the squares of all results."""

    def loss(*arrays):
        params = jax.tree.unflatten(tree, arrays[: tree.num_leaves])
        results = _of_inputs(function, params, is_turned, *arrays[tree.num_leaves :])
        return sum(jnp.sum(leaf**2) / 2 for leaf in jax.tree.leaves(results))

    floats = [n for n, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.floating)]
    return jax.grad(loss, floats)(*arrays)


def _cases(name):
    model, is_turned = _MODELS[name](), name in _TURNED
    inputs = [_turned(x) if is_turned else x for x in model.inputs(ROWS)]
    inputs = [_operand(x, rows=x.ndim > 0) for x in inputs]
    leaves, tree = jax.tree.flatten(model.params)
    weights = [_operand(leaf) for leaf in leaves]
    subject = f"tests.bridge.networks.{name}"
    forward = functools.partial(_of_inputs, model.function, model.params, is_turned)
    backward = functools.partial(_gradients, model.function, tree, is_turned)
    for note, function, operands in (
        ("", forward, inputs),
        ("(gradients)", backward, [*weights, *inputs]),
    ):
        if note and name in ("mobilenet_v2", "gpt_step"):
            continue  # which have the operations of others
        yield Case(
            subject + note, subject, function, tuple(operands), ("float32",), loose=4,
            without=_WITHOUT,
        )  # fmt: skip


CASES = tuple(case for name in _MODELS for case in _cases(name))
