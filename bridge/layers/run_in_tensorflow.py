"""A function of a layer, run by TensorFlow without JAX, and without jaxlib where it is for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from bridge.chains.orders import ChainOptions, WrittenOrder
from bridge.converting.gradient import DifferentiableCall, GradientOptions
from bridge.layers.artifact import LayerFunction
from bridge.layers.computation import Run
from xla_call_module._tf import imported_release
from xla_call_module.dtypes import Array


def to_tensorflow(function: LayerFunction, constants: Mapping[str, Array]) -> Run:
    """Return a function of flat tensors and variables, which runs eagerly and in graphs."""
    orders = len(function.chain) - 1
    options = GradientOptions(
        ChainOptions(  # the first two were done for the chain
            portable_linalg=False,
            hoist_constants=None,
            plain_operations=function.plain_operations,
        ),
        with_gradient=orders > 0,
        order_in_file=max(orders, 1),
        no_gradient=f"{function.name} is in a layer without its gradient. To do: make the layer "
        "with gradient_order=1 or more, of an Exported that has its VJP; or leave it out of what "
        "is trained.",
        no_jaxlib=_no_jaxlib(function),
    )
    order = WrittenOrder(
        function.chain, constants, since=function.since, shape_check=function.shape_check
    )
    call = DifferentiableCall(order, options, at_once=True)
    dtypes = [tf.as_dtype(spec.dtype.enum) for spec in function.specs]

    def run(operands: Sequence[Any]) -> list[Any]:
        tensors = map(tf.convert_to_tensor, operands)
        return call([tf.cast(x, dtype) for x, dtype in zip(tensors, dtypes, strict=True)])

    return run


def _no_jaxlib(function: LayerFunction) -> str:
    """Return what is said where the imported TensorFlow needs another form, and jaxlib is missing.

    Where it is not recorded what runs the layer, an older version of this package wrote it.
    """
    here = imported_release().name
    known = [since for since in function.since if since is not None]
    made_for = "is for no release as it stands"
    cure = f"make the layer with tensorflow={here!r}"
    if known:
        made_for = f"is for TensorFlow {'.'.join(map(str, max(known)))} and newer"
    if not function.since:
        made_for, cure = "does not say which releases run it as it stands", "save the model again"
    return (
        f"{function.name} is in a layer that {made_for}, and TensorFlow {here} is imported: "
        "converting it needs jaxlib, which is not installed. To do: pip install jaxlib; or, where "
        f"it is installed, {cure}."
    )


def read_variables(variables: Sequence[Any]) -> list[Array]:
    """Return the values of variables, also where a graph is built."""
    with tf.init_scope():
        return [np.asarray(tf.convert_to_tensor(variable)) for variable in variables]
