"""The calls of a signature and what it takes and returns, of any writer.

Files of this package have one call, which takes the inputs and returns the outputs as they are.
Others may have several, with casts and reshapes between.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections import Counter
from collections.abc import Mapping, Sequence

from savedmodel.model import (
    Cast,
    Gradient,
    Input,
    Output,
    Parameter,
    Reshape,
    Signature,
    Value,
    Variable,
)
from savedmodel.tensorflow_graph import STRING
from xla_call_module.analyses.infer_signature import argument_shapes, infer_signature
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dimensions import Shape
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import StructureError

Chain = tuple[CallModule, ...]


def with_inferred_signature(call: CallModule, gradient: Gradient | None = None) -> CallModule:
    """Return the call with the known shapes that another program's node lacks."""
    with contextlib.suppress(StructureError):
        return infer_signature(call, result_shapes(gradient))
    return call


def result_shapes(gradient: Gradient | None) -> dict[int, Shape]:
    """Return the shapes of a call's results that its gradient's module takes the cotangents of."""
    if gradient is None:
        return {}
    shapes = argument_shapes(gradient.call)
    pairs = zip(gradient.operands, shapes, strict=True)
    return {index: shape for (kind, index), shape in pairs if kind == "result"}


def calls_of(signature: Signature) -> tuple[Chain, ...]:
    """Return each call with its gradients, those first whose results others take."""
    once = functools.cache(with_inferred_signature)
    chains: list[Chain] = []
    for function in signature.functions:
        first, *others = function.chain
        if function.gradient is not None:
            others.append(function.gradient.call)
        chains.append((once(first, function.gradient), *map(once, others)))
    return tuple(chains)


def call_of_order(signature: Signature, chain: Chain, order: int) -> CallModule:
    """Return the call of one order."""
    if not 0 <= order < len(chain):
        raise StructureError(
            f"The signature {signature.key} has gradients up to order {len(chain) - 1}, "
            f"not {order}. To do: save it with gradient_order={order}, or ask for less."
        )
    return chain[order]


def names_of(variables: Sequence[Variable]) -> tuple[str, ...]:
    """Return a name for each variable; its path where other programs give several the same."""
    times = Counter(variable.name for variable in variables)
    paths = (v.key if times[v.name] > 1 and v.key else v.name for v in variables)
    names: dict[str, None] = {}
    for path in paths:
        number, name = 1, path
        while name in names:
            number += 1
            name = f"{path}#{number}"
        names[name] = None
    return tuple(names)


def assigned_of(signature: Signature, variables: Sequence[Variable]) -> tuple[str, ...]:
    """Return the names of the variables that a call of a signature assigns."""
    names = names_of(variables)
    return tuple(names[index] for index in signature.assigned_variables)


def inputs_of(signature: Signature, call: CallModule) -> list[tuple[str, TensorSpec, bool]]:
    """Return name and spec of each input, in order, and whether a module takes it."""
    ordered = sorted(signature.inputs.items(), key=lambda item: item[1])
    used = set(call.kept)
    inputs = [(name, call.args[index], index in used) for name, index in ordered]
    taken = {value.name for value in signature.values() if isinstance(value, Input)}
    others = [
        (name, spec, name in taken)
        for name, spec in signature.input_specs.items()
        if name not in signature.inputs
    ]
    return [*inputs, *others]


def outputs_of(
    signature: Signature, calls: Sequence[Chain], variables: Sequence[Variable]
) -> list[tuple[str, TensorSpec]]:
    """Return name and spec of each output, in the order of the results."""
    ordered = sorted(signature.outputs.items(), key=lambda item: item[1])
    outputs = [(name, calls[0][0].results[index]) for name, index in ordered]
    results = [chain[0].results for chain in calls]
    others = [
        (name, _spec(value, signature.input_specs, variables, results))
        for name, value in signature.output_values.items()
        if name not in signature.outputs
    ]
    specs = dict([*outputs, *others])
    labels = [
        (name, _label_spec(specs[labels.output])) for name, labels in signature.labels.items()
    ]
    return [*outputs, *others, *labels]


def _label_spec(output: TensorSpec) -> TensorSpec:
    is_score = output.dtype.differentiable  # and not complex; what is no score is an index
    shape = output.shape[:-1] if is_score and output.shape is not None else output.shape
    return TensorSpec(shape, STRING, f"the label of {output.path}")


def _spec(
    value: Value,
    inputs: Mapping[str, TensorSpec],
    variables: Sequence[Variable],
    results: Sequence[Sequence[TensorSpec]],
) -> TensorSpec:
    """Return the spec of a value, as far as it is known."""
    if isinstance(value, Cast):
        source = _spec(value.source, inputs, variables, results)
        return dataclasses.replace(source, dtype=value.dtype, element="")
    if isinstance(value, Reshape):
        source = _spec(value.source, inputs, variables, results)
        sizes = tuple("_" if size < 0 else size for size in value.shape)
        return dataclasses.replace(source, shape=sizes)
    if isinstance(value, Output):
        return results[value.function][value.index]
    if isinstance(value, Input):
        return inputs[value.name]
    if isinstance(value, Parameter):
        variable = variables[value.variable]
        return TensorSpec(variable.shape, variable.dtype, variable.name)
    dtype = dtype_from_name(value.value.dtype.name, where="A constant of the graph")
    return TensorSpec(value.value.shape, dtype, "a constant")
