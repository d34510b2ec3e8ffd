"""A function of a layer, run by TensorFlow without JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bridge.chains.orders import ChainOptions, WrittenOrder
from bridge.converting.gradient import DifferentiableCall, GradientOptions
from bridge.layers.artifact import LayerFunction
from bridge.layers.computation import Run

__all__ = ["read_variables", "to_tensorflow"]


def to_tensorflow(function: LayerFunction, constants: Mapping[str, np.ndarray[Any, Any]]) -> Run:
    """Return a function of flat tensors and variables, which runs eagerly and in graphs.

    Raises:
        VersionError: the imported TensorFlow does not read the computation.
    """
    orders = len(function.chain) - 1
    options = GradientOptions(
        ChainOptions(portable_linalg=False, hoist_constants=None),  # which was done for the chain
        with_gradient=orders > 0,
        order_in_file=max(orders, 1),
        no_gradient=f"{function.name} is in a layer without its gradient. To do: make the layer "
        "with gradient_order=1 or more, of an Exported that has its VJP; or leave it out of what "
        "is trained.",
    )
    call = DifferentiableCall(WrittenOrder(function.chain, constants), options, at_once=True)
    dtypes = [tf.as_dtype(spec.dtype.enum) for spec in function.specs]

    def run(operands: Sequence[Any]) -> list[Any]:
        tensors = map(tf.convert_to_tensor, operands)
        return call([tf.cast(x, dtype) for x, dtype in zip(tensors, dtypes, strict=True)])

    return run


def read_variables(variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    """Return the values of variables, also where a graph is built."""
    with tf.init_scope():
        return [np.asarray(tf.convert_to_tensor(variable)) for variable in variables]
