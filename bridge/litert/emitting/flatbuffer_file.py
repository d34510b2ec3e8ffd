"""A LiteRT file: tensors, operators and subgraphs, written by the schema's own classes.

https://github.com/google-ai-edge/LiteRT/blob/main/tflite/schema/schema.fbs
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from xla_call_module.dtypes import Array
from xla_call_module.errors import UnsupportedError
from xla_call_module.node import INEXACT
from xla_call_module.size_polynomials import Shape

_IDENTIFIER = b"TFL3"
_VERSION = 3
# The release of the runtime of which the kernels are.
_RUNTIME = b"2.3.0"
_ALIGNMENT = 16
_MAX_BYTES = 2**31 - 1  # of offsets in a flatbuffer
_MAX_NAME = 200
# Bytes of a constant that is compared with others of its subgraph.
_MAX_COMPARED = 1 << 12


def _numbers(enumeration: Any) -> dict[str, int]:
    return {
        name.lower().replace("_", ""): number
        for name, number in vars(enumeration).items()
        if isinstance(number, int)
    }


TYPES: Mapping[str, int] = _numbers(schema.TensorType)
_OPTIONS, _OPTIONS_2 = _numbers(schema.BuiltinOptions), _numbers(schema.BuiltinOptions2)


class _Buffer(schema.BufferT):  # type: ignore[misc]
    """Bytes that begin at a multiple of 16, as the schema asks of them."""

    def Pack(self, builder: Any) -> Any:  # noqa: N802 - the name in the schema's classes
        """Write the bytes, aligned."""
        builder.Prep(_ALIGNMENT, len(self.data))
        return super().Pack(builder)


class FlatbufferFile:
    """Buffers and codes of operators, which all subgraphs share."""

    def __init__(self, *, exact: bool = True) -> None:
        """Have no subgraph, and the empty buffer, which comes first."""
        self._exact = exact
        self.subgraphs: list[Subgraph] = []
        self._buffers: list[Any] = [schema.BufferT()]
        self._numbers: dict[bytes, int] = {}
        self._codes: dict[tuple[str, int], int] = {}
        self._signatures: list[Any] = []
        self._turned: dict[Any, tuple[Array, Array]] = {}
        self._names: dict[str, int] = {}

    def unique(self, name: str) -> str:
        """Return a name for a tensor, with a number if there is such a one in any subgraph.

        To the interpreter a name says nothing; `ai_edge_quantizer` has the scale of a tensor by it.
        """
        made, count = name, self._names.get(name, 0)
        while made in self._names:
            count += 1
            made = f"{name}_{count}"
        self._names[name] = count
        self._names.setdefault(made, 0)
        return made

    def buffer(self, array: Array) -> int:
        """Return the number of the buffer with the bytes of an array, of which there is one."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        key = hashlib.blake2b(data.data, digest_size=20).digest()
        if key not in self._numbers:
            made = _Buffer()
            made.data = data
            self._numbers[key] = len(self._buffers)
            self._buffers.append(made)
        return self._numbers[key]

    def turned(self, array: Array, order: Sequence[int]) -> Array:
        """Return an array with its dimensions in another order, which is the same one each time."""
        key = (id(array), tuple(order))
        if key not in self._turned:
            self._turned[key] = (array, np.ascontiguousarray(array.transpose(order)))
        return self._turned[key][1]

    def code(self, name: str, version: int) -> int:
        """Return the number of an operator's code."""
        return self._codes.setdefault((name, version), len(self._codes))

    def sign(self, key: str, subgraph: Subgraph, inputs: Named, outputs: Named) -> None:
        """Give a subgraph a signature: names of tensors."""
        made = schema.SignatureDefT()
        made.signatureKey, made.subgraphIndex = key, subgraph.number
        made.inputs, made.outputs = _named(inputs), _named(outputs)
        self._signatures.append(made)

    def to_bytes(self) -> bytes:
        """Return the file."""
        model = schema.ModelT()
        model.version, model.description = _VERSION, "jax-tf-bridge"
        model.operatorCodes = [_code(*key) for key in self._codes]
        model.subgraphs = [one.table for one in self.subgraphs]
        model.signatureDefs = self._signatures
        model.metadata = [self._note("min_runtime_version", _RUNTIME.ljust(16, b"\0"))]
        if not self._exact:
            model.metadata.append(self._note(INEXACT, b"\1"))
        model.buffers = self._buffers
        size = sum(len(one.data) + 64 for one in self._buffers if one.data is not None)
        if size > _MAX_BYTES:
            raise UnsupportedError(
                f"The constants of the model have {size:,} bytes, and a LiteRT file has less than "
                f"{_MAX_BYTES:,}. To do: pass weights of float16, or convert the model in parts."
            )
        builder = flatbuffers.Builder(size + (1 << 16))
        builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
        return bytes(builder.Output())

    def _note(self, name: str, content: bytes) -> Any:
        made = schema.MetadataT()
        made.name, made.buffer = name, self.buffer(np.frombuffer(content, np.uint8))
        return made


Named = Sequence[tuple[str, int]]


def _named(pairs: Named) -> list[Any]:
    return [schema.TensorMapT(name=name, tensorIndex=tensor) for name, tensor in pairs]


def _code(name: str, version: int) -> Any:
    made = schema.OperatorCodeT()
    made.builtinCode, made.version = getattr(schema.BuiltinOperator, name), version
    made.deprecatedBuiltinCode = min(made.builtinCode, 127)
    return made


@dataclass(slots=True)
class Operator:
    """One operator of a subgraph, beside its table.

    Attributes:
        name: as the schema has it, such as `ADD`.
    """

    name: str
    table: Any


class Subgraph:
    """One subgraph, in which a tensor is its number."""

    def __init__(self, file: FlatbufferFile, name: str) -> None:
        """Be empty."""
        self.file = file
        self.number = len(file.subgraphs)
        self.operators: list[Operator] = []
        self.table = schema.SubGraphT()
        self.table.name = name
        self.table.tensors, self.table.operators = [], []
        self.table.inputs, self.table.outputs = [], []
        self._constants: dict[Any, tuple[int, Array]] = {}
        file.subgraphs.append(self)

    def tensor(
        self, shape: Shape, dtype: Any, *, buffer: int = 0, name: str = "", kind: str = ""
    ) -> int:
        """Return a new tensor.

        Args:
            shape: its shape; symbolic sizes are 1 until the model runs.
            dtype: its dtype.
            buffer: that of its elements; 0 where there are none.
            name: a name, which is numbered if there is such a tensor.
            kind: the name of a type that is no dtype.
        """
        made = schema.TensorT()
        made.shape = [size if isinstance(size, int) else 1 for size in shape]
        if not all(isinstance(size, int) for size in shape):
            made.shapeSignature = [size if isinstance(size, int) else -1 for size in shape]
        made.type = TYPES[kind or np.dtype(dtype).name]
        made.name, made.buffer, made.hasRank = self.file.unique(name), buffer, True
        self.table.tensors.append(made)
        return len(self.table.tensors) - 1

    def alike(self, tensor: int, name: str, shape: Sequence[int] | None = None) -> int:
        """Return a new tensor of the type of another one, with its elements if it is a constant.

        Its shape is that of the other one if none is given.
        """
        made, given = schema.TensorT(), self.table.tensors[tensor]
        made.shape, made.shapeSignature = given.shape, given.shapeSignature
        if shape is not None:
            made.shape, made.shapeSignature = [*shape], None
        made.type, made.hasRank, made.buffer = given.type, True, given.buffer
        made.name = self.file.unique(name)
        self.table.tensors.append(made)
        return len(self.table.tensors) - 1

    def constant(self, array: Any) -> int:
        """Return the tensor of a constant."""
        array = np.asarray(array)
        content = array.tobytes() if array.nbytes <= _MAX_COMPARED else id(array)
        key = (array.dtype.name, array.shape, content)
        if key not in self._constants:
            buffer = self.file.buffer(array)
            made = self.tensor(array.shape, array.dtype, buffer=buffer, name="constant")
            self._constants[key] = (made, array)
        return self._constants[key][0]

    def is_constant(self, tensor: int) -> bool:
        """Return whether a tensor is a constant."""
        return bool(self.table.tensors[tensor].buffer)

    def shape_of(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a tensor, in which sizes that are known later are -1."""
        made = self.table.tensors[tensor]
        return tuple(made.shape if made.shapeSignature is None else made.shapeSignature)

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: str = "",
        version: int = 1,
        **values: Any,
    ) -> None:
        """Append an operator.

        Args:
            name: its name in the schema.
            inputs: tensors; -1 for one that is left out.
            outputs: tensors.
            options: the name of the table of its options, where it is another one than its own.
            version: of the operator.
            values: the options that are not the default.
        """
        made = schema.OperatorT()
        made.opcodeIndex = self.file.code(name, version)
        made.inputs, made.outputs = [*inputs], [*outputs]
        title = options or f"{_camel(name)}Options"
        table = getattr(schema, f"{title}T", None)
        assert table is not None or not values, f"{name} has no {title}"
        if table is not None:
            held = table()
            for key, value in values.items():
                assert hasattr(held, key), f"{title} has no {key}"
                setattr(held, key, value)
            if (number := _OPTIONS.get(title.lower())) is not None:
                made.builtinOptions, made.builtinOptionsType = held, number
            else:
                made.builtinOptions2, made.builtinOptions2Type = held, _OPTIONS_2[title.lower()]
        self.table.operators.append(made)
        self.operators.append(Operator(name, made))


def _camel(name: str) -> str:
    return name.title().replace("_", "")


def tensor_name(text: str) -> str:
    """Return a text as the name of a tensor: commas and such have a meaning to some readers.

    >>> tensor_name("params/Dense:0")
    'params_Dense_0'
    """
    return re.sub(r"\W", "_", text)[:_MAX_NAME]
