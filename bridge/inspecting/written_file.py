"""`WrittenFile`, which the verbs that write a file return: its place, signatures and size.

The value is made of what the writer knows, or of a file of any writer that was copied; a notebook
shows it as a table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bridge.inspecting.markup import element, to_markup
from bridge.inspecting.tensor_report import TensorReport, dtype_name
from bridge.inspecting.wording import aval, counted, printable, readers, size
from bridge.loading.signature_calls import assigned_of, calls_of, inputs_of, outputs_of
from savedmodel.files.folder import bytes_of
from savedmodel.files.model_folder import ModelFolder
from savedmodel.model import DEFAULT_SIGNATURE, INTERNAL_SIGNATURE, SavedModel, Signature
from savedmodel.protos.schema import Proto
from xla_call_module.errors import InteropError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


_MAX_SIGNATURES = 20


@dataclass(frozen=True, slots=True)
class WrittenSignature:
    """A function of a file that was written.

    Attributes:
        key: the key of the signature, such as `serving_default`; in ONNX the name of the graph.
        inputs: the inputs, in the order of the function's arguments.
        outputs: the outputs, in the order of its results.
        platforms: the platforms that it was lowered for; empty where the file does not say, or runs
            TensorFlow's own operations.
        gradient_order: the highest order of its gradients in the file.
        assigned: the names of the variables that a call assigns; empty where it only reads.
        gradient_sources: "saved" for each order whose VJP is that of the `Exported`, "lifted" for
            those made of the operations of the function; empty for ONNX.
    """

    key: str
    inputs: tuple[TensorReport, ...]
    outputs: tuple[TensorReport, ...]
    platforms: tuple[str, ...] = ()
    gradient_order: int = 0
    assigned: tuple[str, ...] = ()
    gradient_sources: tuple[str, ...] = ()

    @property
    def client_call(self) -> str:
        """Return the call of it in Python, of what `tf.saved_model.load` returned.

        A request to TensorFlow Serving has the same names, as in `{"inputs": {"x": [[1.0]]}}`.

        Example:
            >>> import bridge, jax.numpy as jnp
            >>> written = bridge.save(jnp.sin, "sine", args="f32[b]")
            >>> written.signatures[0].client_call
            "loaded.signatures['serving_default'](x=…)['output_0']"
        """
        inputs = ", ".join(f"{tensor.name}=…" for tensor in self.inputs)
        output = f"[{self.outputs[0].name!r}]" if len(self.outputs) == 1 else ""
        return f"loaded.signatures[{self.key!r}]({inputs}){output}"


@dataclass(frozen=True, slots=True)
class Quantization:
    """The gain and the cost of the quantization of a model.

    Attributes:
        kind: the kind, as `save_litert` takes it.
        bytes_before: the number of bytes of the model before.
        bytes: the number of bytes of the quantized model.
        error: the greatest difference of a result from JAX, relative to the largest number of its
            array.
        is_calibrated: whether the error is that of the calibration data, or of random inputs.
    """

    kind: str
    bytes_before: int
    bytes: int
    error: float
    is_calibrated: bool

    def __str__(self) -> str:
        """Return it in one line."""
        inputs = "the calibration data" if self.is_calibrated else "random inputs"
        return (
            f"quantized to {self.kind}: {self.bytes_before:,} -> {self.bytes:,} bytes, "
            f"greatest error {self.error:.1e} on {inputs}"
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WrittenFile:
    """A file that was written; `os.fspath` gives its path.

    Attributes:
        path: the folder, file or address, as it was passed.
        signatures: the signatures, sorted by key, the default one first.
        bytes: the number of bytes of all files of it.
        parameter_bytes: the number of bytes of the values of its variables or weights.
        tensorflow: the oldest TensorFlow known to read it, such as `2.18`; empty where the file
            does not say, and for ONNX.
        opset: the version of ONNX's operations; None for other files.
        quantization: what the quantization of a LiteRT model gains and costs; None without.
    """

    path: str
    signatures: tuple[WrittenSignature, ...]
    bytes: int
    parameter_bytes: int
    tensorflow: str = ""
    opset: int | None = None
    quantization: Quantization | None = None

    def __fspath__(self) -> str:
        """Return the path."""
        return self.path

    def __repr__(self) -> str:
        """Return the facts in one line."""
        keys = ", ".join(signature.key for signature in self.signatures[:_MAX_SIGNATURES])
        facts = "".join(f", {fact}" for fact in self._facts())
        return printable(f"<{type(self).__name__} {self.path}: {keys}{facts}>")

    def __str__(self) -> str:
        """Return a line of facts, and one for each signature."""
        quantized = [str(self.quantization)] if self.quantization else []
        return "\n".join([self._title(), *quantized, *self._signature_lines()])

    def _title(self) -> str:
        facts = [f"{self.bytes:,} bytes", self._reader()]
        return printable(f"{self.path}: {', '.join(fact for fact in facts if fact)}")

    def _signature_lines(self) -> list[str]:
        lines = [printable(signature_text(each)) for each in self.signatures[:_MAX_SIGNATURES]]
        rest = len(self.signatures) - len(lines)
        return [*lines, *([f"and {counted(rest, 'other signature')}"] if rest else [])]

    def _reader(self) -> str:
        if self.opset is not None:
            return f"ONNX opset {self.opset}"
        return readers(self.tensorflow) if self.tensorflow else ""

    def _facts(self) -> list[str]:
        """Return the sizes and the readers, as far as they are known."""
        weights = f"{size(self.parameter_bytes)} of weights" if self.parameter_bytes else ""
        quantized = self.quantization.kind if self.quantization else ""
        return [fact for fact in (size(self.bytes), weights, quantized, self._reader()) if fact]

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        heads = ("signature", "inputs", "outputs", "platforms", "gradients")
        rows = [_cells(signature) for signature in self.signatures[:_MAX_SIGNATURES]]
        table = element(
            "table",
            element("tr", *(element("th", head) for head in heads)),
            *(element("tr", *(element("td", cell) for cell in row)) for row in rows),
        )
        rest = len(self.signatures) - len(rows)
        more = [element("p", f"and {counted(rest, 'other signature')}")] if rest else []
        title = element("p", element("code", self.path), f" · {' · '.join(self._facts())}")
        return to_markup(element("div", title, table, *more))


def _cells(signature: WrittenSignature) -> list[Element]:
    order = signature.gradient_order
    texts = (
        _tensors(signature.inputs, "\n"),
        _tensors(signature.outputs, "\n"),
        ", ".join(signature.platforms),
        f"order {order}" if order else "",
    )
    style = "white-space:pre-line;text-align:left"
    return [element("code", signature.key), *(element("span", t, style=style) for t in texts)]


class _Signature(Protocol):
    """The part of the reports of signatures that one line says."""

    @property
    def key(self) -> str: ...
    @property
    def inputs(self) -> tuple[TensorReport, ...]: ...
    @property
    def outputs(self) -> tuple[TensorReport, ...]: ...
    @property
    def platforms(self) -> tuple[str, ...]: ...
    @property
    def assigned(self) -> tuple[str, ...]: ...


def signature_text(signature: _Signature) -> str:
    """Return a signature in one line, as `name(x: float32[b]) -> y: float32[b], for cpu`."""
    inputs, outputs = _tensors(signature.inputs, ", "), _tensors(signature.outputs, ", ")
    platforms = f", for {', '.join(signature.platforms)}" if signature.platforms else ""
    assigns = ""
    if signature.assigned:
        assigns = f", assigns {counted(len(signature.assigned), 'variable')}"
    return f"{signature.key}({inputs}) -> {outputs}{platforms}{assigns}"


def _tensors(tensors: tuple[TensorReport, ...], separator: str) -> str:
    return separator.join(f"{tensor.name}: {aval(tensor)}" for tensor in tensors)


def signatures_of(model: SavedModel) -> tuple[WrittenSignature, ...]:
    """Return the signatures of a SavedModel that are calls of modules, the default one first."""
    default = model.default.key
    ordered = sorted(model.signatures, key=lambda s: (s.key != default, s.key))
    return tuple(_signature(signature, model) for signature in ordered)


def _signature(signature: Signature, model: SavedModel) -> WrittenSignature:
    calls = calls_of(signature)
    call = calls[0][0]
    inputs = inputs_of(signature, call)
    outputs = outputs_of(signature, calls, model.variables)
    return WrittenSignature(
        key=signature.key,
        inputs=tuple(TensorReport.of(name, spec, used=used) for name, spec, used in inputs),
        outputs=tuple(TensorReport.of(name, spec) for name, spec in outputs),
        platforms=() if signature.function.operations else call.platforms,
        gradient_order=min(map(len, calls)) - 1,
        assigned=assigned_of(signature, model.variables),
        gradient_sources=tuple(call.gradient_source for call in min(calls, key=len)[1:]),
    )


def facts_of(folder: Path | ModelFolder) -> dict[str, Any]:
    """Return the fields of the `WrittenFile` of a folder of any writer, but for its path.

    Signatures that are more than calls of modules are described as far as the file says.
    """
    from savedmodel.read import read, read_proto, served_graphs

    known: dict[str, WrittenSignature] = {}
    metadata: Mapping[str, Any] = {}
    parameter_bytes = 0
    # It is described as far as it is understood; whoever uses it is told of the rest.
    with contextlib.suppress(InteropError):
        model = read(folder)
        parameter_bytes = sum(variable.size for variable in model.variables)
        metadata = model.metadata
        known = {signature.key: signature for signature in signatures_of(model)}
    for graph in served_graphs(read_proto(folder))[:1]:
        for key, definition in graph.signature_def.items():
            if key not in known and not key.startswith(INTERNAL_SIGNATURE):
                known[key] = plain_signature(key, definition)
    default = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in known else next(iter(known), "")
    ordered = sorted(known, key=lambda key: (key != default, key))
    return {
        "signatures": tuple(known[key] for key in ordered),
        "bytes": bytes_of(folder.path if isinstance(folder, ModelFolder) else folder),
        "parameter_bytes": parameter_bytes,
        "tensorflow": str(metadata.get("tensorflow", "")),
    }


def plain_signature(key: str, definition: Proto) -> WrittenSignature:
    """Return a signature as its SignatureDef describes it, which may compute anything."""
    inputs, outputs = (
        tuple(
            TensorReport(name, "", dtype_name(info.dtype), _shape(info.tensor_shape), "", used=True)
            for name, info in sorted(infos.items())
        )
        for infos in (definition.inputs, definition.outputs)
    )
    return WrittenSignature(key, inputs, outputs)


def _shape(proto: Proto) -> tuple[int | str, ...] | None:
    if proto.unknown_rank:
        return None
    return tuple("_" if dim.size < 0 else int(dim.size) for dim in proto.dim)
