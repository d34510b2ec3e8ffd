"""Models run by ai_edge_litert, and what is in them.

It is a part of the program `bridge.litert.worker.worker_program`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]


class LoadedModel:
    """An interpreter of a flatbuffer, and the signatures that it has."""

    def __init__(self, model: str | bytes, *, threads: int, kernels: str) -> None:
        """Read a file, or its contents."""
        from ai_edge_litert.interpreter import Interpreter, OpResolverType

        resolver = {
            "delegate": OpResolverType.BUILTIN,
            "builtin": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            "reference": OpResolverType.BUILTIN_REF,
        }[kernels]
        where = {"model_path": model} if isinstance(model, str) else {"model_content": model}
        self._interpreter = Interpreter(
            **where, num_threads=threads, experimental_op_resolver_type=resolver
        )
        self._runners = {
            name: self._interpreter.get_signature_runner(name)
            for name in self._interpreter.get_signature_list()
        }

    def run(self, signature: str, arrays: Arrays) -> dict[str, np.ndarray[Any, Any]]:
        """Return what a signature returns of some arrays."""
        results = self._runners[signature](**arrays)
        return {name: np.asarray(value) for name, value in results.items()}


def describe_model(model: bytes) -> dict[str, Any]:
    """Return the signatures, variables and notes in a flatbuffer, and how many operations."""
    from ai_edge_litert import schema_py_generated as schema

    if model[4:8] != b"TFL3":
        raise ValueError("It does not begin as a LiteRT model does.")
    root = schema.Model.GetRootAs(model, 0)
    names = _names(schema.BuiltinOperator)
    codes = [
        names.get(max(code.BuiltinCode(), code.DeprecatedBuiltinCode()), "?")
        if code.CustomCode() is None
        else code.CustomCode().decode()
        for code in map(root.OperatorCodes, range(root.OperatorCodesLength()))
    ]
    graphs = [root.Subgraphs(n) for n in range(root.SubgraphsLength())]
    counts = Counter(
        codes[graph.Operators(n).OpcodeIndex()]
        for graph in graphs
        for n in range(graph.OperatorsLength())
    )
    notes = [root.Metadata(n).Name() or b"" for n in range(root.MetadataLength())]
    signatures = map(root.SignatureDefs, range(root.SignatureDefsLength()))
    dtypes = _names(schema.TensorType)
    return {
        "signatures": [_signature(one, graphs, dtypes) for one in signatures],
        "variables": _variables(graphs, codes, dtypes),
        "operators": dict(sorted(counts.items())),
        "subgraphs": len(graphs),
        "notes": [note.decode(errors="replace") for note in notes],
    }


def _variables(
    graphs: Any, codes: list[str], dtypes: Mapping[int, str]
) -> list[tuple[str, str, list[int]]]:
    """Return the name, the dtype and the shape of what is assigned to each variable."""
    from ai_edge_litert import schema_py_generated as schema

    variables: dict[str, Any] = {}
    for graph in graphs:
        handles: dict[int, str] = {}
        for operator in map(graph.Operators, range(graph.OperatorsLength())):
            if codes[operator.OpcodeIndex()] == "VAR_HANDLE":
                options, table = schema.VarHandleOptions(), operator.BuiltinOptions()
                options.Init(table.Bytes, table.Pos)
                handles[operator.Outputs(0)] = (options.SharedName() or b"").decode()
            if codes[operator.OpcodeIndex()] == "ASSIGN_VARIABLE":
                value = graph.Tensors(operator.Inputs(1))
                variables.setdefault(handles.get(operator.Inputs(0), "?"), value)
    return [(name, *_spec(tensor, dtypes)) for name, tensor in variables.items()]


def _spec(tensor: Any, dtypes: Mapping[int, str]) -> tuple[str, list[int]]:
    """Return the dtype and the shape of a tensor, in which sizes that vary are -1."""
    shape = tensor.ShapeSignatureAsNumpy() if tensor.ShapeSignatureLength() else None
    shape = tensor.ShapeAsNumpy() if shape is None and tensor.ShapeLength() else shape
    sizes = [] if shape is None else [int(size) for size in shape]
    return _DTYPES.get(dtypes[tensor.Type()], dtypes[tensor.Type()]), sizes


def _names(enumeration: Any) -> dict[int, str]:
    return {v: k for k, v in vars(enumeration).items() if isinstance(v, int)}


def _signature(signature: Any, graphs: Any, dtypes: Mapping[int, str]) -> dict[str, Any]:
    graph = graphs[signature.SubgraphIndex()]
    inputs = map(signature.Inputs, range(signature.InputsLength()))
    outputs = map(signature.Outputs, range(signature.OutputsLength()))
    return {
        "name": signature.SignatureKey().decode(),
        "inputs": _tensors(
            inputs, graph, [*map(graph.Inputs, range(graph.InputsLength()))], dtypes
        ),
        "outputs": _tensors(
            outputs, graph, [*map(graph.Outputs, range(graph.OutputsLength()))], dtypes
        ),
    }


def _tensors(maps: Any, graph: Any, order: list[int], dtypes: Mapping[int, str]) -> list[Any]:
    """Return the name, the dtype and the shape of tensors, in the order of the subgraph."""
    pairs = [(one.TensorIndex(), one.Name().decode()) for one in maps]
    place = {index: n for n, index in reversed([*enumerate(order)])}
    ordered = sorted(pairs, key=lambda pair: place.get(pair[0], len(order)))
    return [(name, *_spec(graph.Tensors(index), dtypes)) for index, name in ordered]


_DTYPES = {"BOOL": "bool"} | {
    f"{kind.upper()}{bits}": f"{kind}{bits}"
    for kind in ("float", "int", "uint", "complex")
    for bits in (4, 8, 16, 32, 64, 128)
}
