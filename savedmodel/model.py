"""The value of a SavedModel: what is in the file, before it is protos and after."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from savedmodel.protos.structures import NONE, Structure
from savedmodel.tensorflow_graph import TensorFlowGraph
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import DType, dtype_from_name
from xla_call_module.errors import StructureError
from xla_call_module.shape_checks import ShapeCheck

# Children of the root object that are not functions.
RESERVED_NAMES = frozenset({
    "constants", "params", "signatures", "trainable_variables", "variables",
    # set by tf.saved_model.load itself
    "graph_debug_info", "tensorflow_git_version", "tensorflow_version",
})  # fmt: skip
DEFAULT_SIGNATURE = "serving_default"
# The tag of the meta graph that servers and loaders take.
SERVE_TAG = "serve"
# How the keys of signatures begin that TensorFlow adds for itself.
INTERNAL_SIGNATURE = "__saved_model"
# Where a meta graph has the metadata.
METADATA_COLLECTION = "jax_tf_bridge"


@dataclass(frozen=True, slots=True)
class VariablePart:
    """A part of a variable that is sharded over devices, as it is to be written.

    Attributes:
        extent: the start and stop of the part in each dimension.
        chunks: as `Variable.chunks`, for the part; None where another process has it.
        holder: the number of the process that writes the part.
    """

    extent: tuple[tuple[int, int], ...]
    chunks: Callable[[], Iterator[Any]] | None
    holder: int = 0


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a SavedModel.

    Attributes:
        name: the pytree path with slashes, such as `layers/0/w`; unique in the file.
        dtype: the element type.
        shape: the shape.
        trainable: whether TensorFlow counts the variable among the trainable ones.
        constant: whether it is a constant of the computation, and no parameter of the model.
        key: the path in the object graph of the file that it was read from, such as `params/w`.
        chunks: a function that yields the bytes in C order, in contiguous buffers of any size.
        source: a function that gives the bytes, read-only and shared by all who hold them; None
            for a variable that was not read from a file.
        shards: of a value that is sharded over devices the parts, which make up the whole; it is
            written in slices. Empty for any other.
        holder: the process that writes the value where it is not sharded.
        parts: a function that gives the bytes of a part, of which it is told the start and stop in
            each dimension; None for a variable that was not read from a file.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    trainable: bool = True
    constant: bool = False
    key: str = field(default="", compare=False)
    chunks: Callable[[], Iterator[Any]] | None = field(default=None, compare=False)
    source: Callable[[], np.ndarray[Any, Any]] | None = field(default=None, compare=False)
    shards: tuple[VariablePart, ...] = field(default=(), compare=False)
    holder: int = field(default=0, compare=False)
    parts: Callable[[tuple[tuple[int, int], ...]], np.ndarray[Any, Any]] | None = field(
        default=None, compare=False
    )

    @property
    def size(self) -> int:
        """The number of bytes of the value."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count * self.dtype.itemsize

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """Return the value.

        Raises:
            StructureError: the variable has no value.
            FormatError: the file that it is read from is damaged.
        """
        if self.chunks is None:
            raise StructureError(
                f"The variable {self.name} has no value. To do: read it where the file is."
            )
        value = np.empty(self.size, np.uint8)
        start = 0
        for chunk in self.chunks():
            # An ndarray of an ml_dtypes dtype has no buffer of its own.
            array = chunk if isinstance(chunk, np.ndarray) else np.frombuffer(chunk, np.uint8)
            piece = array.reshape(-1).view(np.uint8)
            value[start : start + piece.size] = piece
            start += piece.size
        return value.view(self.dtype.numpy).reshape(self.shape)

    def shared(self) -> np.ndarray[Any, Any]:
        """Return the value, read-only; while somebody holds it, all who ask have the same memory.

        A tensor that the file has in slices is put together, and a value that comes from no file is
        copied.

        Raises:
            StructureError: it has none.
            FormatError: the file is damaged.

        Example:
            >>> import bridge, jax, numpy as np, savedmodel
            >>> params = {"w": np.arange(3.0, dtype="float32")}
            >>> exported = jax.export.export(jax.jit(lambda p, x: p["w"] * x))(params, 1.0)
            >>> saved = bridge.save(exported, "my_model", params=params)
            >>> savedmodel.read("my_model").variables[0].shared()
            array([0., 1., 2.], dtype=float32)
        """
        if self.source is None:
            value = self.to_numpy()
            value.flags.writeable = False
            return value
        return self.source().view(self.dtype.numpy).reshape(self.shape)

    def part(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """Return a part of the value, read-only and in memory of its own.

        Only the pieces of the file that the part needs are read, and checked when they are first
        needed. Where another program stored the tensor as a whole, there is one checksum, and the
        first part reads all of it, a few megabytes at a time.

        Args:
            index: a slice for each dimension, as `jax.sharding.Sharding.devices_indices_map` has
                them; their steps are 1.

        Raises:
            StructureError: it is no such index, or the variable has no value.
            FormatError: the file is damaged where it was read.

        Example:
            >>> import bridge, jax, numpy as np, savedmodel
            >>> params = {"w": np.arange(6.0, dtype="float32").reshape(3, 2)}
            >>> exported = jax.export.export(jax.jit(lambda p, x: p["w"] * x))(params, 1.0)
            >>> saved = bridge.save(exported, "a_model", params=params)
            >>> savedmodel.read("a_model").variables[0].part((slice(1, 3), slice(None)))
            array([[2., 3.],
                   [4., 5.]], dtype=float32)
        """
        extent = self._extent(index)
        if self.parts is None:
            value = self.to_numpy()[index].copy()
        else:
            shape = [stop - start for start, stop in extent]
            value = self.parts(extent).view(self.dtype.numpy).reshape(shape)
        value.flags.writeable = False
        return value

    def _extent(self, index: tuple[slice, ...]) -> tuple[tuple[int, int], ...]:
        given: Any = index
        fits = isinstance(given, tuple) and len(given) == len(self.shape)
        if not fits or not all(isinstance(p, slice) and p.step in (None, 1) for p in given):
            raise StructureError(
                f"{index} is not part of {self.name}, which has the shape {self.shape}. To do: "
                "pass one slice for each dimension, without a step."
            )
        bounds = [part.indices(size) for part, size in zip(index, self.shape, strict=True)]
        return tuple((start, max(start, stop)) for start, stop, _ in bounds)


@dataclass(frozen=True, slots=True)
class BatchBuckets:
    """The sizes that the batches of a function are padded to; XLA compiles a program for each.

    A batch goes to the smallest of them that holds it, with its last row repeated, and of the
    results the rows that were added are cut off. A batch that is larger than all, and an empty one,
    is passed as it is.

    Attributes:
        symbol: the dimension variable that leads the shapes of what is padded and cut.
        sizes: the sizes, ascending.
    """

    symbol: str
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse sizes that are none, or not in order."""
        if not self.sizes or self.sizes[0] < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise StructureError(
                f"{self.sizes} are not sizes of batches; expected ascending numbers from 1 on."
            )

    def lead(self, spec: TensorSpec) -> bool:
        """Return whether the rows of an argument or result are those of the batch."""
        return bool(spec.shape) and spec.shape is not None and spec.shape[0] == self.symbol


@dataclass(frozen=True, slots=True)
class Input:
    """An input of the signature, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A variable of the file, by its index."""

    variable: int


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """An array in the graph."""

    value: np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Cast:
    """A value in another dtype."""

    source: Value
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reshape:
    """A value in another shape, of which one size may be -1, to be inferred."""

    source: Value
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A result of a function, by the index of the function in the signature and its own."""

    function: int
    index: int


@dataclass(frozen=True, slots=True)
class Labels:
    """The texts for an output: for each of its indices, or for the index of its greatest score.

    Attributes:
        output: the name of the output.
        texts: the text for each index.
    """

    output: str
    texts: tuple[str, ...]


def label_output(output: str) -> str:
    """Return the name of the output of texts beside another output."""
    return f"{output}_label"


Value = Input | Parameter | Constant | Cast | Reshape | Output


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of a call, as another program's file has it.

    Attributes:
        call: the module.
        operands: what it takes: `("operand", i)` of the call, the cotangent of `("result", i)`, or
            `("zero", i)` for the cotangent of the i-th result that has none.
        results: for each operand of the call which result is its cotangent; None for none.
    """

    call: CallModule
    operands: tuple[tuple[str, int], ...]
    results: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A chain of calls with what is bound to their arguments, as one TensorFlow function.

    Attributes:
        name: the name of the function in the file.
        chain: the call, its VJP, the VJP of that, …; as many gradients as are written.
        passed: for indices into `chain[0].args` the value that is passed there; what the module
            does not take may be missing.
        arguments: the arguments that are no variables, as a pair of positional and keyword
            arguments; the leaves are indices into `chain[0].args`.
        parameters: the names of the positional arguments.
        results: the result; the leaves are indices into `chain[0].results`.
        no_gradient: the message of TensorFlow when a gradient is asked for that the chain lacks.
        constants: for the keys of the chain's constants the index of the variable that holds it.
        batch_buckets: the sizes that batches are padded to; None where they are not padded.
        check: the assertions about the arguments' shapes before the call, besides those of its
            module; None for a function that was read, because the chain says all of it.
        gradient: the gradient of a call that does not describe itself, if the file has one.
        assigned: for indices into `chain[0].results` the index of the variable that the result is
            assigned to; what is assigned is not among `results`.
        operations: for each call of the chain the same in TensorFlow's own operations, which are
            written in the place of its module; empty where the calls are XlaCallModule nodes.
    """

    name: str
    chain: tuple[CallModule, ...]
    passed: Mapping[int, Value]
    arguments: Structure = NONE
    parameters: tuple[str, ...] = ()
    results: Structure = NONE
    no_gradient: str = ""
    constants: Mapping[str, int] = field(default_factory=dict)
    batch_buckets: BatchBuckets | None = None
    check: ShapeCheck | None = field(default=None, compare=False)
    gradient: Gradient | None = None
    assigned: Mapping[int, int] = field(default_factory=dict)
    operations: tuple[TensorFlowGraph, ...] = field(default=(), compare=False)

    @property
    def call(self) -> CallModule:
        """The call of order 0."""
        return self.chain[0]

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values that the call takes, in the order of `call.operands`."""
        return tuple(self.passed[index] for index in self.call.kept)

    @property
    def bound(self) -> dict[int, int]:
        """For indices into `chain[0].args` the index of the parameter that is passed there."""
        constants = self.call.constants
        return {
            index: value.variable
            for index, value in self.passed.items()
            if isinstance(value, Parameter) and index not in constants
        }


@dataclass(frozen=True, slots=True)
class Signature:
    """A computation under the flat names that TensorFlow Serving knows.

    A signature that is written has one function, takes its arguments and returns its results as
    they are. One that was read may have several, with casts and reshapes between.

    Attributes:
        key: the key, such as `serving_default`; also the name of the root's function.
        function: the first function.
        input_specs: for each input name what TensorFlow says of it.
        output_values: for each output name its value.
        other_functions: the functions after the first, each after those whose results it takes.
        defaults: by the names of inputs the values that they have where a request leaves them out.
        labels: by the names of outputs of texts the labels that they return; JAX has none of them.
        inputs: for each input that the first function takes as it is the index of its argument.
        outputs: for each output that the first function returns as it is the index of its result.
    """

    key: str
    function: Function
    input_specs: Mapping[str, TensorSpec]
    output_values: Mapping[str, Value]
    other_functions: tuple[Function, ...] = ()
    defaults: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict, compare=False)
    labels: Mapping[str, Labels] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(init=False, compare=False)
    outputs: Mapping[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse a key that the root object cannot have as an attribute; index the names."""
        if not re.fullmatch(r"[A-Za-z]\w*", self.key) or self.key in RESERVED_NAMES:
            raise StructureError(
                f"{self.key!r} cannot be a signature key. To do: take a letter followed by "
                f"letters, digits and underscores, and none of {', '.join(sorted(RESERVED_NAMES))}."
            )
        passed = self.function.passed.items()
        taken = {value.name: index for index, value in passed if isinstance(value, Input)}
        inputs = {name: taken[name] for name in self.input_specs if name in taken}
        outputs = {
            name: value.index
            for name, value in self.output_values.items()
            if isinstance(value, Output) and value.function == 0
        }
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)

    @property
    def functions(self) -> tuple[Function, ...]:
        """All functions, each after those whose results it takes."""
        return (self.function, *self.other_functions)

    @property
    def is_one_function(self) -> bool:
        """Return whether the signature is one function of its inputs and of variables alone."""
        returned = [*self.output_values.values()]
        if self.function.assigned and not self.outputs:
            returned = []  # a constant, since a signature has at least one output
        return (
            not self.other_functions
            and all(isinstance(value, Input | Parameter) for value in self.function.operands)
            and all(isinstance(value, Output) for value in returned)
        )

    @property
    def assigned_variables(self) -> tuple[int, ...]:
        """The indices of the variables that a call assigns, ascending; empty if it only reads."""
        return tuple(sorted({v for f in self.functions for v in f.assigned.values()}))

    @property
    def read_variables(self) -> frozenset[int]:
        """The indices of the variables that are passed to calls, constants among them."""
        return frozenset(value.variable for value in self.values() if isinstance(value, Parameter))

    def output_spec(self, name: str) -> TensorSpec:
        """Return the spec of an output that the first function returns, or that is a constant."""
        if name in self.outputs:
            return self.function.call.results[self.outputs[name]]
        value = self.output_values[name]
        assert isinstance(value, Constant), "others are read, and not written"
        dtype = dtype_from_name(value.value.dtype.name, where=name)
        return TensorSpec(value.value.shape, dtype, name)

    def values(self) -> Iterator[Value]:
        """Return every value, before those that are made of it; each as often as it is used."""
        functions = self.functions
        seen: set[int] = set()
        assigned = [Output(n, index) for n, f in enumerate(functions) for index in f.assigned]
        # With each value whether what it is made of was visited; a stack, as chains are long.
        pending = [(value, False) for value in [*self.output_values.values(), *assigned][::-1]]
        while pending:
            value, visited = pending.pop()
            below: Sequence[Value] = ()
            if isinstance(value, Cast | Reshape):
                below = (value.source,)
            elif isinstance(value, Output) and value.function not in seen:
                seen.add(value.function)
                below = functions[value.function].operands
            if visited or not below:
                yield value
            else:
                pending.append((value, True))
                pending.extend((operand, False) for operand in reversed(below))


@dataclass(frozen=True, slots=True)
class SavedModel:
    """The whole file as a value.

    Attributes:
        signatures: at least one.
        variables: shared by all signatures, in their pytree's order; then the constants.
        params: the pytree of the variables; the leaves are indices into `variables`.
        metadata: JSON values that `inspect` shows and no loader needs.
        others: signatures of a file that was read which compute something besides calls of modules,
            by their keys, and what that is.
        tensorflow: of a file that TensorFlow saved the version that did; empty for other writers.
        graph_constants: of a file that was read the arrays in its graphs that may be constants
            which a gradient takes and its function does not, as dtype and shape tell.
    """

    signatures: tuple[Signature, ...]
    variables: tuple[Variable, ...] = ()
    params: Structure = NONE
    metadata: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    tensorflow: str = field(default="", compare=False)
    graph_constants: tuple[np.ndarray[Any, Any], ...] = field(default=(), compare=False)

    @property
    def module_bytes(self) -> int:
        """The size of all modules, which is nearly all of saved_model.pb."""
        return sum(len(call.module) for call in self.calls)

    @property
    def calls(self) -> Iterator[CallModule]:
        """The calls of all signatures, each with its gradients."""
        for signature in self.signatures:
            for function in signature.functions:
                yield from function.chain
                if function.gradient is not None:
                    yield function.gradient.call

    @property
    def state(self) -> frozenset[int]:
        """The indices of the variables that some signature assigns."""
        return frozenset(v for s in self.signatures for v in s.assigned_variables)

    @property
    def default(self) -> Signature:
        """The signature that the root object itself calls."""
        keys = {signature.key: signature for signature in self.signatures}
        return keys.get(DEFAULT_SIGNATURE, self.signatures[0])
