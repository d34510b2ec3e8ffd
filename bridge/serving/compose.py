"""`compose`: a user's TensorFlow functions around a JAX function, as one signature.

This file needs TensorFlow. The call of the JAX function stays as it is: a node that describes
itself.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from xla_call_module.errors import InteropError, MissingDependencyError, StructureError, quote

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingDependencyError.of(
        "bridge.serving.compose", "TensorFlow", extra="tensorflow"
    ) from error

from bridge.core.operations_option import refuse_for_converters
from bridge.exporting.environment import describe_environment, source_file
from bridge.save import SaveOptions, save
from bridge.serving.keywords import check_keywords
from bridge.serving.methods import MethodName, ServingMethod, named_outputs, parse_method
from bridge.serving.preprocessing import (
    PreprocessedRequest,
    as_function,
    named_tensors,
    parameters_of,
    read_request,
)
from savedmodel.files.folder import new_folder
from savedmodel.files.model_folder import ModelFolder, read_one_version
from savedmodel.files.remote import is_remote
from savedmodel.manifest import write_manifest
from savedmodel.model import DEFAULT_SIGNATURE
from savedmodel.protos.schema import Proto, TensorProto
from savedmodel.read import read, read_proto, served_graphs
from savedmodel.write import serialize_proto, write_proto
from xla_call_module.tracebacks import api_boundary

_FINGERPRINT = "fingerprint.pb"
_ATTEMPTS = 3
# How many references from a function a resource may be away.
_MAX_DEPTH = 8


@api_boundary
def compose(
    model: Any,
    path: str | os.PathLike[str],
    *,
    preprocess: Any = None,
    postprocess: Any = None,
    request: Mapping[str, tf.TensorSpec] | None = None,
    examples: bool | Mapping[str, Any] = False,
    method: MethodName = "predict",
    classes: Sequence[str] | None = None,
    defaults: Mapping[str, Any] | None = None,
    signature: str = DEFAULT_SIGNATURE,
    bare: str = "bare",
    overwrite: bool = False,
    **options: Unpack[SaveOptions],
) -> str:
    """Write a SavedModel with TensorFlow functions around a model; return its folder.

    What a request has goes through `preprocess` to the inputs of the call, and the outputs of the
    call through `postprocess` to the response. Lookup tables, variables and asset files that the
    two functions use go into the file. The signature as it was is there, too, under another key:
    `bridge.load(path).signatures["bare"]` is a JAX function. What TensorFlow loads has a method for
    each of both, and is itself callable as the composed one, where that is the default. The folder
    is a model for `bridge.serving.publish`.

    The folder appears whole or not at all. Its bytes are not the same each time: TensorFlow numbers
    the functions of a process, and names the place that assets came from.

    Args:
        model: what `bridge.save` takes, or the folder of a SavedModel.
        path: the folder to make.
        preprocess: a Python or TensorFlow function of tensors, called with those of the request by
            their names. It returns the inputs of the signature by their names, or the one that it
            has; inputs that it does not return are the request's own.
        postprocess: the same for the outputs: it is called with all of them by their names, and
            returns those of the response by theirs, or a single one. A tensor of the request that
            it has as a parameter is passed, too, such as an identifier that the response repeats.
        request: what a request has: for each name, which one of the two functions has as a
            parameter, its `tf.TensorSpec`. By default what the `input_signature` of `preprocess`
            says; without `preprocess` the inputs of the signature.
        examples: whether a request is a batch of serialized `tf.Example`s, in the one input
            `examples`, that have these tensors as features, the batch not counted. Or these
            features, such as `{"x": tf.io.FixedLenFeature([3], tf.float32)}`.
        method: which of TensorFlow Serving's calls the signature is for: `predict`; `classify`,
            with `scores` (float32, batch by classes), `classes` (strings of that shape) or both as
            its response; `regress`, with one number for each row in `outputs`. The last two take
            serialized `tf.Example`s, whose input is then called `inputs`, and a single output of
            the function is `scores` or `outputs` for them.
        classes: for `classify` the names of the classes.
        defaults: values for what a request may leave out, by name; see `bridge.save`.
        signature: the key of the one to put together, which then is that of the composed one.
        bare: the key under which it stays as it was.
        overwrite: whether a SavedModel at `path` is replaced.
        options: `params` and whatever else `bridge.save` takes, for a `model` that is no folder.

    Raises:
        StructureError: the functions do not fit the signature or the method; a key is taken or
            missing; `path` exists.
        DtypeError: they have another dtype.
        InteropError, OSError: as `bridge.save`. Then nothing has appeared.

    Example:
        >>> import bridge.serving, jax, tensorflow as tf
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float32")
        >>> exported = jax.export.export(jax.jit(lambda x: x.sum(1)))(x)
        >>> def parse(text):
        ...     return tf.strings.to_number(tf.strings.split(text, ",").to_tensor(shape=[None, 3]))
        >>> folder = bridge.serving.compose(
        ...     exported, "sum_of_text", preprocess=parse,
        ...     request={"text": tf.TensorSpec([None], tf.string)},
        ... )
        >>> serve = tf.saved_model.load(folder).signatures["serving_default"]
        >>> serve(text=tf.constant(["1,2,3", "4,5,6"]))["output_0"].numpy()
        array([ 6., 15.], dtype=float32)
        >>> import numpy as np
        >>> bridge.load(folder).signatures["bare"](np.ones((2, 3), "float32"))
        Array([3., 3.], dtype=float32)
    """
    from bridge.verifying.composed import AFTER, BEFORE

    refuse_for_converters(options, "bridge.serving.compose")
    check_keywords(compose, options, SaveOptions)
    kind, manifest = parse_method(method, classes), options.pop("manifest", False)
    if is_remote(path):
        raise StructureError(
            f"{os.fspath(path)} is an address, and TensorFlow writes to a folder here. To do: "
            "compose to a folder, and publish that."
        )
    with _as_folder(model, options) as source:
        loaded, called, lost = read_one_version(
            source, lambda folder: _load(folder, signature, bare), attempts=_ATTEMPTS
        )
        inputs = dict(sorted(called.structured_input_signature[1].items()))
        beside = parameters_of(postprocess) - called.structured_outputs.keys()
        asked = read_request(
            inputs, preprocess, request, examples, one_name=kind.input, beside=beside
        )
        kind.check_request(asked.specs)
        composed, before, after = _compose(called, asked, postprocess, kind, classes, bare)
        given = _parse_defaults(asked.specs, lost.values, defaults, signature, bare)
        loaded.composed_resources = _resources_of([preprocess, postprocess])
        _rename_functions(loaded, composed, signature=signature, bare=bare)
        # For `bridge.verify`, which runs JAX between both.
        setattr(loaded, f"{BEFORE}{signature}", before)
        setattr(loaded, f"{AFTER}{signature}", after)
        signatures = {**loaded.signatures, bare: called, signature: composed}
        with new_folder(Path(path), overwrite=overwrite) as place:
            _write(loaded, place, signatures)
            # TensorFlow has copied the assets from where the path leads to by now.
            lost.folder.check_current()
            methods = {**lost.methods, signature: kind.name}
            _finish(place, methods, {**lost.defaults, **given})
            if manifest:
                write_manifest(place, **describe_environment(source_file(model)), request={})
    return os.fspath(path)


@contextlib.contextmanager
def _as_folder(model: Any, options: SaveOptions) -> Iterator[Path]:
    """Yield the folder of a SavedModel; a model that is not saved is written to a temporary one."""
    if isinstance(model, str | os.PathLike):
        if options:
            raise StructureError(
                f"{os.fspath(model)} is saved already, and {', '.join(options)} would have no "
                "effect. To do: pass what was exported."
            )
        yield Path(model)
        return
    with tempfile.TemporaryDirectory() as temporary:
        save(model, Path(temporary) / "model", **options)
        yield Path(temporary) / "model"


@dataclass(frozen=True, slots=True)
class _LostBySaving:
    """The parts of a file that TensorFlow leaves out when it saves the file again.

    Attributes:
        values: the defaults of the inputs of each signature that is a JAX function.
        methods: the method of each signature, without the composed one.
        defaults: the same signatures' defaults as protos.
    """

    folder: ModelFolder
    values: Mapping[str, Mapping[str, Any]]
    methods: Mapping[str, str]
    defaults: Mapping[str, Mapping[str, Proto]]


def _load(folder: ModelFolder, signature: str, bare: str) -> tuple[Any, Any, _LostBySaving]:
    """Return what TensorFlow loads, the signature to be called, and what TensorFlow leaves out."""
    values = {known.key: dict(known.defaults) for known in read(folder).signatures}
    if signature not in values:
        raise StructureError(
            f"{folder.path} has no signature {signature!r} that is a JAX function, only "
            f"{', '.join(map(repr, values))}. To do: pass signature=."
        )
    lost = _LostBySaving(folder, values, *_read_lost(folder, signature))
    loaded = _load_in_tensorflow(folder)
    if bare in loaded.signatures or bare == signature or not bare.isidentifier():
        raise StructureError(
            f"The signature {signature} cannot have the key {bare!r}, which is taken or not a "
            "valid name. To do: pass another one as bare=."
        )
    return loaded, loaded.signatures[signature], lost


def _load_in_tensorflow(folder: ModelFolder) -> Any:
    """Load a file in TensorFlow, which opens it by its path."""
    try:
        loaded = tf.saved_model.load(folder.path)
    except Exception:
        folder.check_current()
        raise
    folder.check_current()
    return loaded


def _compose(
    called: Any,
    asked: PreprocessedRequest,
    postprocess: Any,
    kind: ServingMethod,
    classes: Sequence[str] | None,
    bare: str,
) -> tuple[Any, Any, Any]:
    """Return the TensorFlow function from a request to a response, and what is around its call."""
    process = None if postprocess is None else as_function(postprocess)

    def respond(beside: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
        if process is not None:
            outputs = named_tensors(process(**beside, **outputs), ["output_0"], "postprocess")
        return named_outputs(kind, outputs, classes)

    def composed(**tensors: Any) -> dict[str, Any]:
        inputs, beside = asked.to_inputs(tensors)
        return respond(beside, called(**inputs))

    def before(**tensors: Any) -> dict[str, Any]:
        inputs, beside = asked.to_inputs(tensors)
        made = {f"input/{bare}/{name}": tensor for name, tensor in inputs.items()}
        return made | {f"beside/{name}": tensor for name, tensor in beside.items()}

    def after(**tensors: Any) -> dict[str, Any]:
        outputs = {name: tensors.pop(name) for name in called.structured_outputs}
        return respond(tensors, outputs)

    def traced(function: Any, specs: Mapping[str, Any]) -> Any:
        return tf.function(function, autograph=False).get_concrete_function(**specs)

    try:
        around = traced(before, asked.specs)
        made = around.structured_outputs
        passed = {name[7:]: made[name] for name in made if name.startswith("beside/")}
        specs = {**passed, **called.structured_outputs}
        passed = {name: tf.TensorSpec(t.shape, t.dtype, name) for name, t in specs.items()}
        return traced(composed, asked.specs), around, traced(after, passed)
    except (ValueError, TypeError, LookupError) as error:
        if isinstance(error, InteropError):
            raise
        raise StructureError(
            f"TensorFlow cannot trace the functions around the call: {quote(error)}. To do: take "
            "and return tensors of the shapes and dtypes of the signature."
        ) from error


def _rename_functions(loaded: Any, composed: Any, *, signature: str, bare: str) -> None:
    """Let a method of the loaded object be what the signature of its name is, in place.

    Files of `bridge.save` have a method for each signature, and call the default one.
    """
    if not hasattr(loaded, signature):
        return
    setattr(loaded, bare, getattr(loaded, signature))
    setattr(loaded, signature, composed)
    if signature == DEFAULT_SIGNATURE and callable(loaded):
        loaded.__call__ = composed


def _parse_defaults(
    specs: Mapping[str, Any],
    known: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any] | None,
    signature: str,
    bare: str,
) -> dict[str, dict[str, Proto]]:
    """Return the defaults of each signature; given ones replace those of the file."""
    own = {name: value for name, value in known[signature].items() if name in specs}
    wanted: dict[str, Mapping[str, Any]] = {**known, bare: known[signature]}
    wanted[signature] = own | dict(defaults or {})
    protos: dict[str, dict[str, Proto]] = {}
    for key, values in wanted.items():
        protos[key] = {}
        for name, value in values.items():
            spec = specs.get(name) if key == signature else None
            if key == signature and spec is None:
                raise StructureError(
                    f"defaults has {name!r} for {signature}; its inputs are {', '.join(specs)}. "
                    "To do: name some of these."
                )
            protos[key][name] = _to_proto(name, value, spec)
    return protos


def _to_proto(name: str, value: Any, spec: Any) -> Proto:
    try:
        tensor = tf.constant(value, None if spec is None else spec.dtype)
    except (ValueError, TypeError) as error:
        raise StructureError(
            f"The default of {name} is {value!r}; expected {spec}: {error}"
        ) from error
    if spec is not None and not spec.shape.is_compatible_with(tensor.shape):
        raise StructureError(f"The default of {name} has shape {tensor.shape}; expected {spec}.")
    message = tf.make_tensor_proto(tensor)
    return TensorProto.FromString(message.SerializeToString())


def _write(loaded: Any, place: Path, signatures: Mapping[str, Any]) -> None:
    try:
        tf.saved_model.save(loaded, str(place), signatures=dict(signatures))
    except AssertionError as error:
        raise StructureError(
            "A function around the call uses a table or a variable that is not found in it: "
            f"{error} To do: let it be a method of a tf.Module that has these as attributes."
        ) from error


def _read_lost(
    folder: ModelFolder, signature: str
) -> tuple[dict[str, str], dict[str, dict[str, Proto]]]:
    """Return the methods and defaults of the other signatures, which TensorFlow drops."""
    methods, defaults = {}, {}
    for meta_graph in served_graphs(read_proto(folder)):
        for key, definition in meta_graph.signature_def.items():
            if key != signature:
                methods[key] = definition.method_name
                defaults[key] = dict(definition.defaults)
    return methods, defaults


def _finish(
    place: Path, methods: Mapping[str, str], defaults: Mapping[str, Mapping[str, Proto]]
) -> None:
    """Add methods and defaults to the file, which TensorFlow has written without them."""
    proto = read_proto(place)
    for meta_graph in served_graphs(proto):
        for key, name in methods.items():
            if key in meta_graph.signature_def:
                meta_graph.signature_def[key].method_name = name
        for key, values in defaults.items():
            for name, value in values.items():
                _set_default(meta_graph, meta_graph.signature_def[key], name, value)
    write_proto(place, serialize_proto(proto))
    # It describes the bytes that were there before, and nothing compares it.
    (place / _FINGERPRINT).unlink(missing_ok=True)


def _set_default(meta_graph: Proto, definition: Proto, name: str, value: Proto) -> None:
    """Give an input a value for requests that leave it out."""
    definition.defaults[name].CopyFrom(value)
    fed = definition.inputs[name].name.partition(":")[0]
    graph = meta_graph.graph_def
    node = next(node for node in graph.node if node.name == fed)
    constant = graph.node.add(name=f"{fed}/default", op="Const")
    constant.attr["dtype"].CopyFrom(node.attr["dtype"])
    constant.attr["value"].tensor.CopyFrom(value)
    node.op = "PlaceholderWithDefault"
    node.input.append(constant.name)


def _resources_of(functions: Iterable[Any]) -> list[Any]:
    """Return the tables, variables and asset files that a user's functions use.

    They are what the functions are methods of, close over, or name among the globals of their
    module. TensorFlow saves what is an attribute of what is saved; what a function merely closes
    over it refuses.
    """
    resources: dict[int, Any] = {}
    for function in functions:
        for value in _reached(function, set(), _MAX_DEPTH):
            if _is_trackable(value):
                resources.setdefault(id(value), value)
    return list(resources.values())


def _reached(value: Any, seen: set[int], depth: int) -> Iterator[Any]:
    if id(value) in seen or depth < 0:
        return
    seen.add(id(value))
    yield value
    for below in _used_by(value):
        yield from _reached(below, seen, depth - 1)


def _used_by(value: Any) -> list[Any]:
    """Return what a value refers to, as far as a user keeps resources in such values."""
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    function = getattr(value, "python_function", value)
    owner = getattr(function, "__self__", None)
    function = inspect.unwrap(getattr(function, "__func__", function))
    used = [] if owner is None or inspect.ismodule(owner) else [owner, *_attributes(owner)]
    if hasattr(function, "func") and hasattr(function, "args"):  # a functools.partial
        return [*used, function.func, *function.args, *function.keywords.values()]
    if not inspect.isfunction(function):
        return used
    names = inspect.getclosurevars(function)
    return [*used, *names.nonlocals.values(), *names.globals.values()]


def _attributes(owner: Any) -> list[Any]:
    """Return the attributes of an object; only its functions, if TensorFlow saves the object."""
    values = list(getattr(owner, "__dict__", {}).values())
    return [v for v in values if inspect.isfunction(v)] if _is_trackable(owner) else values


def _is_trackable(value: Any) -> bool:
    """Return whether TensorFlow can save a value."""
    if isinstance(value, dict | list | tuple | set | frozenset | type) or value is None:
        return False
    if inspect.isroutine(value) or inspect.ismodule(value):
        return False
    try:
        tf.train.Checkpoint(value=value)
    except (ValueError, TypeError):
        return False
    return True
