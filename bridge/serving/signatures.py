"""The signatures of a SavedModel as TensorFlow Serving calls them, with their batch sizes."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.inspecting.graph_report import operations_behind_signatures
from bridge.loading.signature_calls import calls_of, inputs_of, outputs_of
from bridge.serving.example_features import ExampleFeature, features_of
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.model import INTERNAL_SIGNATURE, SERVE_TAG, SavedModel
from savedmodel.protos.schema import Proto
from savedmodel.read import read, read_proto, served_graphs
from xla_call_module.analyses.constraints import SizeConstraint, constraints_of
from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import Dim, evaluate, linear_form, solve
from xla_call_module.dtypes import DTYPES, DType
from xla_call_module.errors import FormatError, InteropError, StructureError
from xla_call_module.node import OP

STRING = 7  # DT_STRING in tensorflow/core/framework/types.proto, which JAX has nothing like
# The operations of tensorflow/core/ops/{resource_variable,state,training}_ops.cc that write to a
# variable; what begins with Scatter and with TensorScatter is another operation.
_ASSIGNING = re.compile(
    r"Assign|(Resource)?(Sparse)?Apply|ResourceScatter|ResourceStridedSliceAssign|CountUpTo"
    r"|Scatter(Add|Sub|Mul|Div|Min|Max|Update|NdAdd|NdSub|NdMin|NdMax|NdUpdate)$"
)
DTYPES_BY_ENUM = {dtype.enum: dtype for dtype in DTYPES}

Shape = tuple[Dim | None, ...]


@dataclass(frozen=True, slots=True)
class ServedTensor:
    """An input or output of a signature.

    Attributes:
        enum: the number of the dtype in TensorFlow's `DataType`.
        shape: the dimensions: numbers, dimension expressions, or None for unknown ones; None where
            the rank is unknown.
        element: the dtype in JAX where it is another, such as `key<fry>`.
        optional: whether the signature has a default for it.
        path: the pytree path in the exported function, such as `args[1]['image']`; empty where
            unknown.
        title: the argument of the Python function, such as `batch['image']`; empty where unknown.
        features: the features that are parsed from its strings, if they are `tf.Example`s.
    """

    name: str
    enum: int
    shape: Shape | None
    element: str = ""
    optional: bool = False
    path: str = ""
    title: str = ""
    features: tuple[ExampleFeature, ...] | None = None

    @property
    def dtype(self) -> DType | None:
        """The entry of the dtype table; None for strings and others that JAX does not have."""
        return DTYPES_BY_ENUM.get(self.enum)

    @property
    def leading(self) -> Dim | None:
        """The size along dimension 0; None where it is unknown or there is none."""
        return self.shape[0] if self.shape else None

    @property
    def is_scalar(self) -> bool:
        """Return whether there is no dimension 0."""
        return self.shape == ()

    def __str__(self) -> str:
        if self.shape is None:
            return f"{self.name} of unknown rank"
        dims = ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{self.name} of shape ({dims})"


@dataclass(frozen=True, slots=True)
class ServedSignature:
    """A signature as requests reach it.

    Attributes:
        inputs: the inputs, sorted by name.
        outputs: the outputs, sorted by name.
        buckets: the sizes that the signature pads batches to, ascending.
        assigns: whether a request changes variables.
        platforms: the platforms of the StableHLO modules that it calls, and that XLA compiles for
            each size; none where it calls no module.
    """

    key: str
    inputs: tuple[ServedTensor, ...]
    outputs: tuple[ServedTensor, ...]
    constraints: tuple[SizeConstraint, ...] = ()
    buckets: tuple[int, ...] = ()
    assigns: bool = False
    platforms: tuple[str, ...] = ()

    @property
    def has_free_batch(self) -> bool:
        """Return whether dimension 0 of some input has no fixed size."""
        return any(not t.is_scalar and not isinstance(t.leading, int) for t in self.inputs)

    @property
    def fixed_batch(self) -> int | None:
        """The size that dimension 0 of all inputs has; None where there is no such size."""
        sizes = {tensor.leading for tensor in self.inputs}
        size = sizes.pop() if len(sizes) == 1 else None
        return size if isinstance(size, int) else None

    def sizes_at(self, batch: int) -> dict[str, int]:
        """The dimension variables that follow from a batch size."""
        if not self.has_free_batch:
            if self.fixed_batch is not None and self.fixed_batch != batch:
                raise StructureError(
                    f"The batch size {batch} does not fit {self.key}: it takes "
                    f"{self._inputs_text()}, so its only batch size is {self.fixed_batch}. To do: "
                    "ask for that one, or export with a symbolic batch dimension."
                )
            return {}
        values = self._bind({t.name: (batch,) for t in self.inputs}, f"The batch size {batch}")
        for tensor in self.inputs:
            if isinstance(tensor.leading, str) and evaluate(tensor.leading, values) is None:
                raise StructureError(_unsolved(f"The batch size {batch}", self.key, tensor))
        return values

    def check_shapes(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Check that the inputs may have these shapes together."""
        self._bind(shapes, "The example")

    def _bind(self, shapes: Mapping[str, Sequence[int]], what: str) -> dict[str, int]:
        """Return the dimension variables that follow from the given dimensions of inputs."""
        dimensions = [
            (tensor, axis, dim, size)
            for tensor in self.inputs
            for axis, (dim, size) in enumerate(
                zip(tensor.shape or (), shapes.get(tensor.name, ()), strict=False)
            )
            if isinstance(dim, str)
        ]
        dims = [(dim,) for _, _, dim, _ in dimensions]
        values = solve(dims, [(size,) for *_, size in dimensions])
        for tensor, _, dim, size in dimensions:
            at = evaluate(dim, values)
            missed = at != size and (at is not None or linear_form(dim) is not None)
            # JAX has no dimension variable that is 0.
            if missed or min(values.values(), default=1) < 1:
                raise StructureError(_unsolved(what, self.key, tensor))
        padded = [(self._padded(size) if axis == 0 else size,) for _, axis, _, size in dimensions]
        self._check_constraints(what, solve(dims, padded))
        return values

    def _padded(self, batch: int) -> int:
        """Return the size that a batch is padded to."""
        return next((size for size in self.buckets if size >= batch), batch)

    def shapes_at(self, batch: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input for a batch size."""
        values = self.sizes_at(batch)
        return {tensor.name: self._shape_at(tensor, batch, values) for tensor in self.inputs}

    def _shape_at(
        self, tensor: ServedTensor, batch: int, values: Mapping[str, int]
    ) -> tuple[int, ...]:
        if tensor.shape is None:
            raise StructureError(not_made_up(self.key, tensor, "its rank is unknown"))
        sizes = []
        for axis, dim in enumerate(tensor.shape):
            size = None if dim is None else evaluate(dim, values)
            if axis == 0 and dim is None:
                size = batch
            if size is None:
                what = f"nothing says what dimension {axis} is at batch size {batch}"
                raise StructureError(not_made_up(self.key, tensor, what))
            if size < 0:
                raise StructureError(
                    f"The batch size {batch} does not fit {self.key}: dimension {axis} of {tensor} "
                    f"would be {size}. To do: take a larger one."
                )
            sizes.append(size)
        return tuple(sizes)

    def _check_constraints(self, what: str, values: Mapping[str, int]) -> None:
        for constraint in self.constraints:
            if constraint.holds(values) is False:
                raise StructureError(
                    f"{what} does not fit {self.key}: it was exported with the "
                    f"constraint {constraint}, and takes {self._inputs_text()}. To do: take sizes "
                    "that meet the constraint, or export without it."
                )

    def _inputs_text(self) -> str:
        return ", ".join(map(str, self.inputs)) or "no inputs"


def _unsolved(what: str, key: str, tensor: ServedTensor) -> str:
    return (
        f"{what} does not fit {key}: no value of its dimension variables gives it for {tensor}. To "
        "do: take sizes that its dimensions can have."
    )


def not_made_up(key: str, tensor: ServedTensor, reason: str) -> str:
    """Return the message for an input that batch sizes alone do not determine."""
    return (
        f"No example can be made up for {key}, input {tensor}: {reason}. To do: pass example "
        f"inputs for warmup from Python, such as [{{{tensor.name!r}: …}}], instead of batch sizes."
    )


def read_signatures(
    folder: str | os.PathLike[str] | ModelFolder,
) -> tuple[ServedSignature, ...]:
    """Return the signatures of a SavedModel of any writer, sorted by their keys."""
    return read_one_version(folder, _read_signatures)


def _read_signatures(folder: ModelFolder) -> tuple[ServedSignature, ...]:
    proto = read_proto(folder)
    graphs = served_graphs(proto)
    definitions = {
        key: definition
        for graph in graphs[:1]
        for key, definition in sorted(graph.signature_def.items())
        if not key.startswith(INTERNAL_SIGNATURE)
    }
    if not definitions:
        raise FormatError(
            f"{folder.path} has no signature under the tag {SERVE_TAG!r}, which is what "
            "TensorFlow Serving calls. To do: save it with signatures=."
        )
    features = {
        (key, name): features_of(graphs[0].graph_def, info.name)
        for key, definition in definitions.items()
        for name, info in definition.inputs.items()
        if info.dtype == STRING
    }
    operations = operations_behind_signatures(graphs[0])
    platforms = _platforms(graphs[0])
    del proto, graphs
    model: SavedModel | None = None
    # A signature that computes more than calls of modules is served, too; its sizes are unknown.
    with contextlib.suppress(InteropError):
        model = read(folder)
    if model is None:
        folder.check_current()
    served = (
        dataclasses.replace(
            _signature(key, definition, model),
            assigns=any(map(_ASSIGNING.match, operations[key])),
            platforms=platforms if OP in operations[key] else (),
        )
        for key, definition in definitions.items()
    )
    return tuple(_with_features(signature, features) for signature in served)


def _platforms(meta_graph: Proto) -> tuple[str, ...]:
    """Return the platforms of all modules of a file; `cpu` where they do not say."""
    functions = (function.node_def for function in meta_graph.graph_def.library.function)
    nodes = itertools.chain(meta_graph.graph_def.node, *functions)
    names = (name for node in nodes if node.op == OP for name in node.attr["platforms"].list.s)
    return tuple({name.decode(errors="replace").lower(): None for name in names}) or ("cpu",)


def _with_features(
    signature: ServedSignature,
    features: Mapping[tuple[str, str], tuple[ExampleFeature, ...] | None],
) -> ServedSignature:
    inputs = tuple(
        dataclasses.replace(tensor, features=features.get((signature.key, tensor.name)))
        for tensor in signature.inputs
    )
    return dataclasses.replace(signature, inputs=inputs)


def _signature(key: str, definition: Proto, model: SavedModel | None) -> ServedSignature:
    plain = ServedSignature(
        key,
        _tensors(definition.inputs, frozenset(definition.defaults)),
        _tensors(definition.outputs),
    )
    matching = [s for s in model.signatures if s.key == key] if model is not None else []
    if model is None or not matching:
        return plain
    (signature,) = matching
    calls = calls_of(signature)
    first = calls[0][0]
    inputs = {name: spec for name, spec, _ in inputs_of(signature, first)}
    outputs = dict(outputs_of(signature, calls, model.variables))
    return ServedSignature(
        key,
        _described(plain.inputs, inputs),
        _described(plain.outputs, outputs),
        constraints=tuple({c: None for chain in calls for c in constraints_of(chain[0])}),
        buckets=() if (buckets := signature.function.batch_buckets) is None else buckets.sizes,
    )


def _tensors(
    infos: Mapping[str, Proto], optional: frozenset[str] = frozenset()
) -> tuple[ServedTensor, ...]:
    return tuple(
        ServedTensor(name, info.dtype, _shape(info.tensor_shape), optional=name in optional)
        for name, info in sorted(infos.items())
    )


def _shape(proto: Proto) -> Shape | None:
    if proto.unknown_rank:
        return None
    return tuple(None if dim.size < 0 else int(dim.size) for dim in proto.dim)


def _described(
    tensors: Sequence[ServedTensor], specs: Mapping[str, TensorSpec]
) -> tuple[ServedTensor, ...]:
    return tuple(
        tensor if (spec := specs.get(tensor.name)) is None else _with_spec(tensor, spec)
        for tensor in tensors
    )


def _with_spec(tensor: ServedTensor, spec: TensorSpec) -> ServedTensor:
    """Return the tensor with the dimension expressions of the function for unknown dimensions."""
    shape = tensor.shape
    if spec.shape is not None and (shape is None or len(shape) == len(spec.shape)):
        known = shape or (None,) * len(spec.shape)
        shape = tuple(
            size if size is not None else None if dim == "_" else dim
            for size, dim in zip(known, spec.shape, strict=True)
        )
    return dataclasses.replace(
        tensor, shape=shape, element=spec.element, path=spec.path, title=spec.name
    )
