"""ResNet-50 as somebody draws it in ONNX: what the runtime can do at best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

_PLAN = (3, 4, 6, 3)
_OPSET = 21


class _Drawing:
    """Nodes and weights, in the order in which they are drawn."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: Any) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"value_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def convolution(
        self, x: str, weight: Any, norm: Mapping[str, Any], size: int, stride: int = 1
    ) -> str:
        pads = {"pads": _same(size, weight.shape[0], stride), "strides": [stride] * 2}
        made = self.node("Conv", x, self.weight(weight.transpose(3, 2, 0, 1)), **pads)
        rows = [self.weight(norm[name]) for name in ("scale", "shift", "mean", "variance")]
        return self.node("BatchNormalization", made, *rows, epsilon=1e-5)

    def block(self, x: str, params: Mapping[str, Any], size: int, stride: int) -> str:
        y = self.node("Relu", self.convolution(x, params["c1"], params["n1"], size))
        y = self.node("Relu", self.convolution(y, params["c2"], params["n2"], size, stride))
        y = self.convolution(y, params["c3"], params["n3"], -(-size // stride))
        if "c0" in params:
            x = self.convolution(x, params["c0"], params["n0"], size, stride)
        return self.node("Relu", self.node("Add", x, y))


def _same(size: int, window: int, stride: int) -> list[int]:
    total = max((-(-size // stride) - 1) * stride + window - size, 0)
    return [total // 2] * 2 + [total - total // 2] * 2


def draw_resnet(params: Mapping[str, Any], x: Any) -> onnx.ModelProto:
    """The network of `tests.bridge.networks.resnet`, for inputs like this one."""
    drawing, size = _Drawing(), x.shape[1]
    y = drawing.node("Transpose", "x", perm=[0, 3, 1, 2])
    y = drawing.node("Relu", drawing.convolution(y, params["stem"], params["norm"], size, 2))
    size //= 2
    pool: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": _same(size, 3, 2)}
    y, size = drawing.node("MaxPool", y, **pool), size // 2
    blocks = iter(params["blocks"])
    for stage, count in enumerate(_PLAN):
        for index in range(count):
            stride = 2 if stage and not index else 1
            y, size = drawing.block(y, next(blocks), size, stride), size // stride
    y = drawing.node("Flatten", drawing.node("GlobalAveragePool", y))
    head = [drawing.weight(params["head"][name]) for name in "wb"]
    y = drawing.node("Gemm", y, *head)
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)
    result = helper.make_tensor_value_info(y, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(drawing.nodes, "resnet", [given], [result], drawing.weights)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=helper.OP_SET_ID_VERSION_MAP["ai.onnx", _OPSET],
    )
