"""The value of a SavedModel: what is in the file, before it is protos and after."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from savedmodel.batch_buckets import BatchBuckets
from savedmodel.protos.structures import NONE, Structure
from savedmodel.wiring import Wiring
from xla_call_module.call import CallModule
from xla_call_module.dtypes import DType
from xla_call_module.errors import StructureError
from xla_call_module.shape_checks.shape_assertions import ShapeCheck

__all__ = ["Function", "SavedModel", "Signature", "Variable", "VariablePart"]

# Children of the root object that are not functions.
RESERVED_NAMES = frozenset({
    "constants", "params", "signatures", "trainable_variables", "variables",
    # set by tf.saved_model.load itself
    "graph_debug_info", "tensorflow_git_version", "tensorflow_version",
})  # fmt: skip
DEFAULT_SIGNATURE = "serving_default"


@dataclass(frozen=True, slots=True)
class VariablePart:
    """What is to be written of a variable that is spread over devices.

    Attributes:
        extent: its start and stop in each dimension.
        chunks: as `Variable.chunks`, for the part; None where another process has it.
        holder: the process that writes it.
    """

    extent: tuple[tuple[int, int], ...]
    chunks: Callable[[], Iterator[Any]] | None
    holder: int = 0


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable.

    Attributes:
        name: its pytree path with slashes, such as `layers/0/w`; unique in the file.
        dtype: the element type.
        shape: the shape.
        trainable: whether TensorFlow counts it among the trainable ones.
        constant: whether it is a constant of the computation, and no parameter of the model.
        key: its path in the object graph of the file that it was read from, such as `params/w`.
        chunks: a function that yields its bytes in C order, in contiguous buffers of any size.
        source: a function that gives its bytes, read-only and shared by all who hold them; None
            for a variable that was not read from a file.
        spread: of a value that is spread over devices the parts, which make up the whole; it is
            written in slices. Empty for any other.
        holder: the process that writes the value where it is not spread.
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
    spread: tuple[VariablePart, ...] = field(default=(), compare=False)
    holder: int = field(default=0, compare=False)
    parts: Callable[[tuple[tuple[int, int], ...]], np.ndarray[Any, Any]] | None = field(
        default=None, compare=False
    )

    @property
    def size(self) -> int:
        """Bytes of its value."""
        count = 1
        for dim in self.shape:
            count *= dim
        return count * self.dtype.itemsize

    def to_numpy(self) -> np.ndarray[Any, Any]:
        """The value.

        Raises:
            StructureError: it has none.
            FormatError: the file that it is read from is damaged.
        """
        if self.chunks is None:
            raise StructureError(f"The variable {self.name} has no value.")
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
        """The value, read-only; as long as somebody holds it, all who ask have the same memory.

        A tensor that the file has in slices is put together, and a value that comes from no file is
        copied.

        Raises:
            StructureError: it has none.
            FormatError: the file is damaged.

        Example:
            >>> import bridge, jax, numpy as np, savedmodel
            >>> exported = jax.export.export(jax.jit(lambda p, x: p["w"] * x))(
            ...     {"w": np.arange(3.0, dtype="float32")}, 1.0)
            >>> bridge.save(exported, "my_model", params={"w": np.arange(3.0, dtype="float32")})
            >>> savedmodel.read("my_model").variables[0].shared()
            array([0., 1., 2.], dtype=float32)
        """
        if self.source is None:
            value = self.to_numpy()
            value.flags.writeable = False
            return value
        return self.source().view(self.dtype.numpy).reshape(self.shape)

    def part(self, index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        """A part of the value, read-only and in memory of its own.

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
            >>> bridge.save(exported, "a_model", params=params)
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
                f"{index} is no part of {self.name}, which has the shape {self.shape}. To do: pass "
                "one slice for each dimension, without a step."
            )
        bounds = [part.indices(size) for part, size in zip(index, self.shape, strict=True)]
        return tuple((start, max(start, stop)) for start, stop, _ in bounds)


@dataclass(frozen=True, slots=True)
class Function:
    """A chain of calls with variables bound, as one TensorFlow function.

    Attributes:
        name: what it is called in the file.
        chain: the function, its VJP, the VJP of that, …; as many gradients as are written.
        bound: for indices into `chain[0].args`, the index of the variable that is passed there.
        arguments: the other arguments, as a pair of positional and keyword arguments; the leaves
            are indices into `chain[0].args`.
        parameters: names of the positional arguments.
        results: the result; the leaves are indices into `chain[0].results`.
        no_gradient: what TensorFlow says when a gradient is asked for that the chain does not have.
        constants: for the keys of the chain's constants the index of the variable that holds it.
        batch_buckets: what the batches are padded to; None for what they are.
        check: what is asserted of the arguments' shapes before the call, besides what its module
            asserts; of a function that was read None, because the chain says all of it.
    """

    name: str
    chain: tuple[CallModule, ...]
    bound: Mapping[int, int]
    arguments: Structure
    parameters: tuple[str, ...]
    results: Structure
    no_gradient: str = ""
    constants: Mapping[str, int] = field(default_factory=dict)
    batch_buckets: BatchBuckets | None = None
    check: ShapeCheck | None = field(default=None, compare=False)

    @property
    def call(self) -> CallModule:
        """Order 0 of the chain."""
        return self.chain[0]


@dataclass(frozen=True, slots=True)
class Signature:
    """A function under the flat names that TensorFlow Serving knows.

    Attributes:
        key: such as `serving_default`; also the name of the root's function.
        function: what it computes.
        inputs: for each input name the index into the function's arguments.
        outputs: for each output name the index into its results.
        wiring: of one that was read, all that is around its calls; the other attributes have what
            is passed on as it is.
        defaults: what those inputs are that a request leaves out, by their names.
    """

    key: str
    function: Function
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    wiring: Wiring | None = field(default=None, compare=False)
    defaults: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Refuse a key that the root object cannot have as an attribute."""
        if not re.fullmatch(r"[A-Za-z]\w*", self.key) or self.key in RESERVED_NAMES:
            raise StructureError(
                f"{self.key!r} cannot be a signature key. To do: take a letter followed by "
                f"letters, digits and underscores, and none of {', '.join(sorted(RESERVED_NAMES))}."
            )


@dataclass(frozen=True, slots=True)
class SavedModel:
    """All of a file.

    Attributes:
        signatures: at least one.
        variables: shared by all signatures, in their pytree's order; then the constants.
        params: the pytree of the variables; the leaves are indices into `variables`.
        metadata: JSON values that `inspect` shows and no loader needs.
        others: signatures of a file that was read which compute something besides calls of modules,
            by their keys, and what that is.
        graph_constants: of a file that was read the arrays in its graphs that may be constants
            which a gradient takes and its function does not, as dtype and shape tell.
    """

    signatures: tuple[Signature, ...]
    variables: tuple[Variable, ...] = ()
    params: Structure = NONE
    metadata: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    graph_constants: tuple[np.ndarray[Any, Any], ...] = field(default=(), compare=False)

    @property
    def module_bytes(self) -> int:
        """The size of all modules, which is nearly all of saved_model.pb."""
        chains = (signature.function.chain for signature in self.signatures)
        return sum(len(call.module) for chain in chains for call in chain)

    @property
    def default(self) -> Signature:
        """The signature that the root object itself calls."""
        keys = {signature.key: signature for signature in self.signatures}
        return keys.get(DEFAULT_SIGNATURE, self.signatures[0])
