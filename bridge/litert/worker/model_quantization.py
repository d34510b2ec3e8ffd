"""Flatbuffers quantized by ai_edge_quantizer.

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from ai_edge_quantizer import algorithm_manager, qtyping, quantizer, recipe

# What has kernels for int8, and then those of which no operand is a number that has no scale, such
# as the infinite bounds of maxima.
_PRODUCTS = [
    "AVERAGE_POOL_2D", "BATCH_MATMUL", "CONV_2D", "CONV_2D_TRANSPOSE", "DEPTHWISE_CONV_2D",
    "FULLY_CONNECTED", "LOGISTIC", "RESHAPE", "SOFTMAX", "TANH", "TRANSPOSE",
]  # fmt: skip
_INT8 = [
    *_PRODUCTS, "ADD", "CONCATENATION", "MAX_POOL_2D", "MEAN", "MUL", "PAD", "RELU", "SLICE",
    "STRIDED_SLICE", "SUB",
]  # fmt: skip


def quantize_model(
    model: bytes,
    kind: str,
    samples: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    products_only: bool,
) -> bytes:
    """Return a quantized model, which takes and returns floats as the given one does."""
    made = quantizer.Quantizer(bytearray(model))
    if kind == "dynamic_int8":
        made.load_quantization_recipe(recipe.dynamic_wi8_afp32())
    elif kind == "float16":
        made.update_quantization_recipe(
            regex=".*",
            operation_name=qtyping.TFLOperationName.ALL_SUPPORTED,
            op_config=qtyping.OpQuantizationConfig(
                weight_tensor_config=qtyping.TensorQuantizationConfig(
                    num_bits=16, dtype=qtyping.TensorDataType.FLOAT
                ),
                compute_precision=qtyping.ComputePrecision.FLOAT,
                explicit_dequantize=True,
            ),
            algorithm_key=algorithm_manager.AlgorithmName.FLOAT_CASTING,
        )
    else:
        for name in _PRODUCTS if products_only else _INT8:
            made.add_static_config(
                regex=".*",
                operation_name=qtyping.TFLOperationName(name),
                activation_num_bits=8,
                weight_num_bits=8,
            )
    ranges = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of memory, and of what is refused by its results
        if made.need_calibration:
            ranges = made.calibrate({key: [*map(dict, calls)] for key, calls in samples.items()})
        return bytes(made.quantize(ranges, enable_progress_report=False).quantized_model)
