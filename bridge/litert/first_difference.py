"""The search for the first operation of a module whose results differ in its LiteRT model.

Beginnings of the module, whose results are those of one of its operations, are lowered, converted
and run as the whole is, and compared with JAX; each halves what is left.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bridge.litert.litert_model import make_model
from bridge.litert.runtime import compare_model
from bridge.litert.worker_process import LiteRTProcess
from bridge.sources.bound_call import BoundCall
from bridge.verifying.bound_trials import given_trials
from bridge.verifying.comparison import Tolerance
from bridge.verifying.trials import Trial
from xla_call_module._jax import func, ir
from xla_call_module.call import CallModule, TensorSpec, read_artifact_version
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import InteropError
from xla_call_module.stablehlo.inlining import inline_calls
from xla_call_module.stablehlo.modules import find_main, open_module, serialize_module, tensor_type
from xla_call_module.stablehlo.operation_locations import describe_location

_DTYPES = {dtype.mlir: dtype for dtype in DTYPES}


def first_difference(
    bound: BoundCall,
    trial: Trial,
    *,
    process: LiteRTProcess,
    tolerance: Tolerance | None = None,
) -> str:
    """Return the first operation that differs and its place, such as `stablehlo.sine at a.py:3`.

    It is empty where every beginning of the module agrees, and for modules of symbolic sizes.
    Variables have their first values.
    """
    if bound.call.symbols:
        return ""
    numbers = _candidates(bound)
    first, last = 0, len(numbers)
    while first < last:
        middle = (first + last) // 2
        if _differs(bound, numbers[middle], trial, process, tolerance):
            last = middle
        else:
            first = middle + 1
    return _beginning(bound.call, numbers[first])[1] if first < len(numbers) else ""


def _candidates(bound: BoundCall) -> list[int]:
    """Return the places of the operations that compute tensors, in the order of the module."""
    call = bound.call
    with open_module(call.module) as module:
        inline_calls(module)
        block = find_main(module).regions[0].blocks[0]
        *operations, _ = block
        taken = zip(call.kept, block.arguments, strict=True)
        computed = {value for index, value in taken if index not in bound.parameters}
        candidates = []
        for number, operation in enumerate(operations):
            # What is made of constants alone is folded, and right.
            if computed.intersection(operation.operands) or len(operation.regions) > 0:
                computed.update(operation.results)
                if _specs(operation.results):
                    candidates.append(number)
        return candidates


def _specs(values: Sequence[Any]) -> tuple[TensorSpec, ...] | None:
    """Return the specs of values, if all are tensors of known dtypes and there is one."""
    specs = []
    for number, value in enumerate(values):
        text = str(value.type)
        parsed = tensor_type(text) if text.startswith("tensor<") else None
        dtype = _DTYPES.get(parsed.element) if parsed is not None else None
        if parsed is None or dtype is None or None in parsed.shape:
            return None
        shape = tuple(size for size in parsed.shape if size is not None)
        specs.append(TensorSpec(shape, dtype, f"result[{number}]"))
    return tuple(specs) or None


def _beginning(call: CallModule, number: int) -> tuple[CallModule, str]:
    """Return the module until an operation of it, and that operation in words."""
    with open_module(call.module) as module:
        inline_calls(module)
        main = find_main(module)
        *operations, last = main.regions[0].blocks[0]
        chosen = operations[number]
        specs = _specs(chosen.results)
        assert specs is not None
        text = f"{chosen.operation.name} at {describe_location(chosen)}"
        results = list(chosen.results)
        with last.location, ir.InsertionPoint(last):
            func.ReturnOp(results)
        last.operation.erase()
        for operation in reversed(operations[number + 1 :]):
            operation.operation.erase()
        with module.context:
            takes = [argument.type for argument in main.regions[0].blocks[0].arguments]
            kind = ir.FunctionType.get(takes, [value.type for value in results])
            main.attributes["function_type"] = ir.TypeAttr.get(kind)
        if "res_attrs" in main.attributes:
            del main.attributes["res_attrs"]
        made = serialize_module(module, read_artifact_version(call.module), mixed=True)
    return dataclasses.replace(call, module=made, results=specs, exported=b"", trees=None), text


def _differs(
    bound: BoundCall,
    number: int,
    trial: Trial,
    process: LiteRTProcess,
    tolerance: Tolerance | None,
) -> bool:
    """Return whether the results of an operation differ; one that cannot be tried does not."""
    try:
        call, _ = _beginning(bound.call, number)
        names = tuple(f"result_{place}" for place in range(len(call.results)))
        variables = {f"variable {index}": array for index, (_, array) in bound.state.items()}
        part = dataclasses.replace(
            bound,
            call=call,
            original=call,
            inputs={**bound.inputs, **dict(zip(bound.state, variables, strict=True))},
            outputs=names,
            state={},
            assigned={},
        )
        inputs = {**trial.inputs, **variables}
        key = trial.signature
        model = make_model({key: part}, exact=trial.exact)
        given = given_trials({key: part}, {key: [inputs]})
        trials = [dataclasses.replace(one, exact=trial.exact) for one in given]
        return any(row.problem for row in compare_model(model, trials, tolerance, process=process))
    except InteropError:
        return False
