"""`LayerArtifact` <-> one line of text, as a layer's config has it.

The text is base64 of zlib of a JSON header and the XlaCallModule nodes of all chains. A node
carries its own description and its own `Exported` (`xla_call_module/node.py`), so that what is read
runs in TensorFlow without JAX, and in JAX.

The header also says which releases of TensorFlow run each module as it stands, and what a function
asserts of sizes, for both of which a module would be parsed. It is jaxlib that parses them. Texts
without that are read, too; they get it when they are written again where jaxlib is installed.
"""

from __future__ import annotations

import base64
import contextlib
import json
import operator
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from bridge.layers.artifact import LayerArtifact, LayerFunction, LayerWeight
from bridge.layers.shape_check_json import (
    decode_call,
    decode_shape_check,
    encode_call,
    encode_shape_check,
)
from savedmodel.protos.structures import Branch, Kind, Leaf, Structure
from xla_call_module.allowance import Allowance
from xla_call_module.call import CallModule
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import (
    FormatError,
    MissingDependencyError,
    UnsupportedError,
    VersionError,
    refusing_damage,
)
from xla_call_module.node import description_allowance
from xla_call_module.shape_checks import ShapeCheck

_FORMAT = 1
_WHERE = "The artifact in the config of an ExportedLayer"
_LENGTH_BYTES = 8
# Modules without their constants have some megabytes at most; a text can say much more than it has.
_MAX_BYTES = 1 << 31
_KINDS = ("dict", "list", "tuple", "namedtuple", "none")


def encode_artifact(artifact: LayerArtifact) -> str:
    """Return the text that `decode_artifact` reads."""
    nodes: list[bytes] = []
    header = {
        "format": _FORMAT,
        "weights": list(map(_encode_weight, artifact.weights)),
        "constants": list(map(_encode_weight, artifact.constants)),
        "params": _encode_structure(artifact.params),
        "state": _encode_structure(artifact.state),
        "inference": _encode_function(artifact.inference, nodes),
        "training": artifact.training and _encode_function(artifact.training, nodes),
    }
    header["nodes"] = list(map(len, nodes))
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    data = b"".join([len(text).to_bytes(_LENGTH_BYTES, "little"), text, *nodes])
    return base64.b64encode(zlib.compress(data, 9)).decode()


def decode_artifact(text: object) -> LayerArtifact:
    """Return the artifact that `encode_artifact` wrote."""
    data = _decompress(text)
    with refusing_damage(_WHERE):
        first = int.from_bytes(data[:_LENGTH_BYTES], "little") + _LENGTH_BYTES
        header = json.loads(data[_LENGTH_BYTES:first])
        if (version := header["format"]) != _FORMAT:
            raise VersionError(
                f"{_WHERE} has the format {version!r}; understood is {_FORMAT}. To do: take the "
                "version of this package that wrote it, or a newer one."
            )
        nodes = _Nodes(data, first, header["nodes"])
        artifact = LayerArtifact(
            weights=tuple(map(_decode_weight, header["weights"])),
            constants=tuple(map(_decode_weight, header["constants"])),
            params=_decode_structure(header["params"]),
            state=_decode_structure(header["state"]),
            inference=_decode_function(header["inference"], nodes),
            training=header["training"] and _decode_function(header["training"], nodes),
        )
        nodes.finish()
        _check(artifact)
    return artifact


def _decompress(text: object) -> bytes:
    if not isinstance(text, str):
        raise FormatError(f"{_WHERE} is a {type(text).__name__}; expected text.")
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
    except (ValueError, zlib.error) as error:
        raise FormatError(f"{_WHERE} is damaged: {error}. To do: write it again.") from error
    if not reader.eof or reader.unused_data:
        raise FormatError(f"{_WHERE} is damaged: it is cut off, or goes on. To do: write it again.")
    return data


def _encode_weight(weight: LayerWeight) -> list[Any]:
    return [weight.name, weight.dtype.name, list(weight.shape), weight.trainable]


def _decode_weight(fields: Sequence[Any]) -> LayerWeight:
    name, dtype, shape, trainable = fields
    sizes = tuple(map(operator.index, shape))
    if not isinstance(name, str) or min(sizes, default=0) < 0:
        raise FormatError(f"{_WHERE} has a weight {str(fields)[:200]}.")
    return LayerWeight(name, dtype_from_name(dtype, where=name), sizes, bool(trainable))


def _encode_structure(structure: Structure) -> Any:
    if isinstance(structure, Leaf):
        return structure.index
    children = [[key, _encode_structure(child)] for key, child in structure.children]
    return [structure.kind, children, structure.name]


def _decode_structure(fields: Any) -> Structure:
    if isinstance(fields, int):
        return Leaf(operator.index(fields))
    kind, children, name = fields
    if kind not in _KINDS:
        raise FormatError(f"{_WHERE} has a container of the kind {str(kind)[:80]!r}.")
    branches = tuple((str(key), _decode_structure(child)) for key, child in children)
    return Branch(cast("Kind", kind), branches, str(name))


def _encode_function(function: LayerFunction, nodes: list[bytes]) -> dict[str, Any]:
    for call in function.chain:
        if call.function_list:
            raise UnsupportedError(
                f"{call.name} calls TensorFlow functions (bridge.call_tf), and the config of a "
                "layer does not carry these. To do: save the model as a SavedModel, with "
                "model.export, or leave call_tf out of the layer."
            )
        nodes.append(encode_call(call))
    if not function.since:
        with contextlib.suppress(MissingDependencyError):
            function = function.recorded()
    return {
        "orders": len(function.chain),
        "counts": [function.parameters, function.state, function.keys],
        "inputs": _encode_structure(function.inputs),
        "outputs": _encode_structure(function.outputs),
        "new_state": list(function.new_state),
        "since": [since and list(since) for since in function.since],
        "shape_check": function.shape_check and encode_shape_check(function.shape_check),
        **({"plain_operations": True} if function.plain_operations else {}),
    }


class _Nodes:
    """The nodes of a text, one after another."""

    def __init__(self, data: bytes, first: int, sizes: Sequence[int]) -> None:
        self._data = data
        self._next = first
        self._sizes = list(map(operator.index, sizes))
        self.allowance: Allowance = description_allowance()
        if min(self._sizes, default=0) < 0 or first + sum(self._sizes) != len(data):
            raise FormatError(f"{_WHERE} has {len(data)} bytes, which are not those of its nodes.")

    def take(self) -> CallModule:
        """Return the call of the next node."""
        size = self._sizes.pop(0)
        self._next += size
        return decode_call(self._data[self._next - size : self._next], self.allowance)

    def finish(self) -> None:
        """Refuse what is left over."""
        if self._sizes:
            raise FormatError(f"{_WHERE} has {len(self._sizes)} nodes that nothing calls.")


def _decode_function(fields: Mapping[str, Any], nodes: _Nodes) -> LayerFunction:
    parameters, state, keys = map(operator.index, fields["counts"])
    check = fields.get("shape_check")
    return LayerFunction(
        chain=tuple(nodes.take() for _ in range(operator.index(fields["orders"]))),
        parameters=parameters,
        state=state,
        keys=keys,
        inputs=_decode_structure(fields["inputs"]),
        outputs=_decode_structure(fields["outputs"]),
        new_state=tuple(map(operator.index, fields["new_state"])),
        since=tuple(map(_decode_release, fields.get("since", ()))),
        shape_check=None if check is None else decode_shape_check(check, nodes.allowance),
        plain_operations=bool(fields.get("plain_operations", False)),
    )


def _decode_release(fields: Sequence[int] | None) -> tuple[int, int] | None:
    if fields is None:
        return None
    major, minor = map(operator.index, fields)
    return major, minor


def _check(artifact: LayerArtifact) -> None:
    """Refuse functions and structures that do not fit together."""
    leaves = [*_indices(artifact.params), *_indices(artifact.state)]
    _check_leaves(leaves, range(len(artifact.weights)))
    for function in (artifact.inference, artifact.training):
        if function is not None:
            _check_function(artifact, function)


def _check_function(artifact: LayerArtifact, function: LayerFunction) -> None:
    states = len(artifact.weights) - artifact.inference.parameters
    fits = (
        min(function.parameters, function.state, function.keys) >= 0
        and function.parameters == artifact.inference.parameters
        and function.state in (0, states)
        and len(function.new_state) in (0, states)
    )
    shapes = [weight.shape for weight in artifact.weights[: function.parameters + function.state]]
    if not fits or shapes != [spec.shape for spec in function.specs[: len(shapes)]]:
        raise FormatError(f"{_WHERE}: {function.name} does not take the weights that it has.")
    call = function.chain[0]
    _check_leaves(_indices(function.inputs), range(function.first_input, len(function.specs)))
    _check_leaves([*_indices(function.outputs), *function.new_state], range(len(call.results)))
    known = {constant.name for constant in artifact.constants}
    if len(function.since) not in (0, len(function.chain)):
        raise FormatError(f"{_WHERE}: it is not said of each order what runs {function.name}.")
    if function.shape_check is not None:
        _check_kept(call, function.shape_check)
    below: CallModule | None = None
    for order in function.chain:
        if not set(order.hoisted) <= known or order.residual_args or order.residual_results:
            raise FormatError(f"{_WHERE}: {order.name} takes constants that are not there.")
        if below is not None and not _is_vjp(order, below):
            raise FormatError(f"{_WHERE}: {order.name} is not the VJP of {below.name}.")
        below = order


def _check_kept(call: CallModule, check: ShapeCheck) -> None:
    """Refuse a shape check of other arguments than those of its function."""
    pairs = zip(check.kept, check.call.args, strict=False)
    if len(check.kept) != len(check.call.args) or not all(
        index in call.kept and call.args[index].shape == spec.shape for index, spec in pairs
    ):
        raise FormatError(f"{_WHERE}: the shape check of {call.name} is for other arguments.")


def _is_vjp(vjp: CallModule, call: CallModule) -> bool:
    """Return whether a call takes arguments and cotangents of another one, as its VJP does.

    What has no derivative has a float0 in its place, of the shape that it has in JAX.
    """
    pairs = [
        ((*call.own_args, *call.results), vjp.own_args),
        (call.own_args, vjp.results),
    ]
    return all(
        len(wanted) == len(actual)
        and all(
            (w.shape, w.dtype) == (f.shape, f.dtype)
            for w, f in zip(wanted, actual, strict=True)
            if w.dtype.differentiable
        )
        for wanted, actual in pairs
    )


def _indices(structure: Structure) -> list[int]:
    if isinstance(structure, Leaf):
        return [structure.index]
    return [index for _, child in structure.children for index in _indices(child)]


def _check_leaves(indices: Sequence[int], expected: range) -> None:
    if sorted(indices) != list(expected):
        raise FormatError(
            f"{_WHERE}: {str(sorted(indices))[:200]} are not the leaves of {expected}."
        )
