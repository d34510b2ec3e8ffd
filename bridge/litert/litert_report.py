"""The report of a LiteRT model for `bridge.inspect`; the model is not run."""

from __future__ import annotations

import math
import os
from pathlib import Path

from bridge.inspecting.graph_report import GraphReport, GraphSignature, GraphVariable
from bridge.inspecting.operation_counts import most_frequent
from bridge.inspecting.report import FileReport, StoredFile, report_graph_variables
from bridge.inspecting.tensor_report import TensorReport
from bridge.litert.runtime import LiteRTTensor, describe
from xla_call_module.dtypes import DTYPES

_WIDTHS = {dtype.name: dtype.numpy.itemsize for dtype in DTYPES}


def report_of_litert(path: Path) -> FileReport:
    """Return the report of a LiteRT model of any writer: its signatures, operators and size.

    Its parameters are the variables that it keeps between calls; weights are none of these. The
    operators of all subgraphs are counted together: signatures share those of branches and
    loops.
    """
    contents = describe(path)
    size = path.stat().st_size
    operators = most_frequent(contents.operators)
    is_one = len(contents.signatures) == 1
    signatures = tuple(
        GraphSignature(
            one.name,
            tuple(map(_tensor, one.inputs)),
            tuple(map(_tensor, one.outputs)),
            operators if is_one else {},
        )
        for one in contents.signatures
    )
    return FileReport(
        path=os.fspath(path),
        bytes=size,
        parameters=report_graph_variables(list(map(_variable, contents.variables))),
        writer="a converter of LiteRT",
        files=(StoredFile(path.name, size),),
        others={one.key: ", ".join([*operators][:8]) for one in signatures},
        graph=GraphReport(signatures=signatures, operations=operators, functions={}, calls=()),
    )


def _variable(tensor: LiteRTTensor) -> GraphVariable:
    size = math.prod(tensor.shape) * _WIDTHS.get(tensor.dtype, 0)
    return GraphVariable(tensor.name, tensor.dtype, tensor.shape, size, trainable=False)


def _tensor(tensor: LiteRTTensor) -> TensorReport:
    """Return the report of a tensor, whose sizes that vary have no name in the model."""
    shape = tuple("_" if size < 0 else size for size in tensor.shape)
    return TensorReport(tensor.name, "", tensor.dtype, shape, "", used=True)
