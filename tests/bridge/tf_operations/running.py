"""A graph of TensorFlow's operations as a function that TensorFlow runs, as files have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from savedmodel.encode.graph_functions import serialize_graph
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module._tf import register_function
from xla_call_module.node import NO_OPTIMIZER


def function_of(graph: TensorFlowGraph) -> Callable[..., list[Any]]:
    """Return the function of a graph, of NumPy arrays."""
    library = tf.compat.v1.GraphDef().library
    for definition in serialize_graph(graph):
        library.function.add().ParseFromString(definition)
    for function in library.function:
        register_function(function)
    main = graph.main

    @tf.function(autograph=False)
    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        results: list[tf.Tensor] = tf.raw_ops.StatefulPartitionedCall(
            args=list(tensors),
            Tout=[result.dtype.enum for result in main.results],
            f=library.function[0].signature.name,
            config_proto=NO_OPTIMIZER,
        )
        return results

    def run(*arrays: Any) -> list[Any]:
        pairs = zip(arrays, main.arguments, strict=True)
        tensors = [tf.constant(np.asarray(array), argument.dtype.enum) for array, argument in pairs]
        return [each.numpy() for each in call(*tensors)]

    return run
