"""Outputs of texts, as `savedmodel.encode.labels` writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from savedmodel.decode.dataflow import Operation, Origin
from savedmodel.model import Labels, label_output
from savedmodel.protos.tensor_values import decode_tensor
from savedmodel.tensorflow_graph import STRING


def read_labels(outputs: Mapping[str, Origin]) -> dict[str, Labels]:
    """Return the outputs that are the labels of other ones, by their names."""
    found = {
        label_output(name): Labels(name, texts)
        for name, origin in outputs.items()
        for texts in _texts(outputs.get(label_output(name)), origin)
    }
    return {name: labels for name, labels in found.items() if labels.output not in found}


def _texts(labels: Origin | None, output: Origin) -> Iterator[tuple[str, ...]]:
    """Yield the texts that labels of an output are looked up in; nothing where they are others."""
    match labels:
        case Operation("GatherV2", _, (table, index, axis), node) if (
            isinstance(table, Operation)
            and table.tensor is not None
            and table.tensor.dtype == STRING.enum
            and len(table.tensor.tensor_shape.dim) == 1
            and _is_constant(axis, 0)
            and not node.attr["batch_dims"].i
            and (index == output or _is_index_of(index, output))
        ):
            yield tuple(decode_tensor(table.tensor).tolist())


def _is_index_of(index: Origin, output: Origin) -> bool:
    match index:
        case Operation("ArgMax", _, (source, dimension)):
            return source == output and _is_constant(dimension, -1)
        case Operation("Cast", _, (source,)):
            return source == output
    return False


def _is_constant(origin: Origin, value: int) -> bool:
    if not isinstance(origin, Operation) or (tensor := origin.tensor) is None:
        return False
    return bool(tensor.dtype != STRING.enum and decode_tensor(tensor).tolist() == value)
