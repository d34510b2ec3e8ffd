"""SavedModels as a format: inspected without JAX, called by JAX and by TensorFlow."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bridge.formats.file_format import FileFormat, Runtime, RuntimeCall
from xla_call_module.errors import StructureError, refusing_damage

if TYPE_CHECKING:
    from bridge.formats.runnable import Runnable
    from bridge.inspecting.report import FileReport
    from bridge.loading.loaded import LoadedSignature
    from bridge.loading.loaded_model import LoadedModel
    from savedmodel.files.model_folder import ModelFolder
    from xla_call_module.dtypes import Array


def _recognises(path: str, head: bytes) -> bool:
    """Return whether it is a folder or one of its files; a file without content is refused so."""
    from savedmodel.files.folder import PROTO_FILE

    return not head or os.path.basename(path) == PROTO_FILE


def _inspect(path: str | os.PathLike[str] | ModelFolder) -> FileReport:
    from savedmodel.files.model_folder import read_one_version

    return read_one_version(path, _report_of)


def _report_of(folder: ModelFolder) -> FileReport:
    from bridge.inspecting.report import report_of, report_of_plain
    from savedmodel.decode.functions import NoModuleError
    from savedmodel.read import read
    from xla_call_module.errors import DtypeError

    with refusing_damage(str(folder.path)):
        try:
            model = read(folder)
        except (NoModuleError, StructureError, DtypeError):
            return report_of_plain(folder)
        return report_of(model, folder)


def _open(path: str, signature: str | None) -> Runnable:
    from bridge.loading.loaded_model import LoadedModel
    from savedmodel.read import read

    return _runnable(_choose(LoadedModel(read(_model_folder(path))), path, signature))


def _model_folder(path: str) -> str:
    """Return the folder of the newest version below a base path; any other path as it is."""
    from savedmodel.files.folder import PROTO_FILE
    from savedmodel.files.model_folder import newest_version
    from savedmodel.files.remote import is_remote

    if is_remote(path) or os.path.exists(os.path.join(path, PROTO_FILE)):
        return path
    return newest_version(path) or path


def _choose(model: LoadedModel, path: str, key: str | None) -> LoadedSignature:
    from bridge.exporting.source import default_of

    if key is None:
        return default_of(model)
    keys = [*model.signatures]
    if key not in {*keys, *model.others}:
        raise StructureError(
            f"{path} has no signature {key!r}. To do: name one of its signatures: "
            f"{', '.join(keys)}."
        )
    return model.signatures[key]


def _runnable(signature: LoadedSignature) -> Runnable:
    import jax
    from jax import tree_util

    from bridge.core.keys import is_key, to_physical
    from bridge.formats.runnable import Runnable
    from xla_call_module.exported import argument_specs, call_of_exported
    from xla_call_module.stablehlo.refining import accepts_sizes

    exported, binding = signature.exported, signature.binding
    specs = argument_specs(exported)
    defaults = next(s for s in signature.file.signatures if s.key == signature.key).defaults
    outputs = tuple(sorted(binding.outputs, key=binding.outputs.__getitem__))
    places = sorted(binding.outputs.values())
    has_keys = any(map(is_key, exported.out_avals))

    def bind(arrays: Mapping[str, Array]) -> Callable[[], Sequence[Any]]:
        args, kwargs = _arguments(signature, {**defaults, **arrays})

        def call() -> Sequence[Any]:
            leaves = tree_util.tree_leaves(signature(*args, **kwargs))
            results = [leaves[place] for place in places]
            return list(
                jax.block_until_ready([*map(to_physical, results)] if has_keys else results)
            )

        return call

    return Runnable(
        name=signature.key,
        inputs={name: specs[index] for name, index in binding.inputs.items()},
        outputs=outputs,
        bind=bind,
        defaults=defaults,
        signature=signature.key,
        accepts=functools.partial(accepts_sizes, call_of_exported(exported)),
    )


def _arguments(
    signature: LoadedSignature, arrays: Mapping[str, Array]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs as arguments of the function, which it takes sooner than those by name."""
    import jax
    from jax import tree_util

    from bridge.core.keys import to_logical

    exported, binding = signature.exported, signature.binding
    avals = {name: exported.in_avals[index] for name, index in binding.inputs.items()}
    named = {name: to_logical(array, avals[name]) for name, array in arrays.items()}
    leaves = {binding.inputs[name]: value for name, value in named.items()}
    first = len(binding.variables)
    if sorted(leaves) != [*range(first, len(exported.in_avals))]:
        return (), named
    ordered = [None] * first + [jax.device_put(leaves[index]) for index in sorted(leaves)]
    args, kwargs = tree_util.tree_unflatten(exported.in_tree, ordered)
    return tuple(args if binding.params is None else args[1:]), kwargs


def _prepare(call: RuntimeCall) -> Callable[[], Sequence[Any]]:
    import tensorflow as tf

    loaded = tf.saved_model.load(call.path)
    function = loaded.signatures[call.signature]
    specs = function.structured_input_signature[1]
    tensors = {name: tf.cast(array, specs[name].dtype) for name, array in call.inputs.items()}

    def run(_: Any = loaded) -> Sequence[Any]:  # its variables live as long as it does
        results = function(**tensors)
        return [results[name].numpy() for name in call.outputs]

    return run


SAVED_MODEL = FileFormat(
    name="a SavedModel",
    recognises=_recognises,
    inspect=_inspect,
    open=_open,
    is_source=True,
    runtime=Runtime(
        name="TensorFlow",
        option="tensorflow",
        wheels=("tensorflow", "tensorflow-cpu"),
        modules=("tensorflow",),
        prepare=_prepare,
    ),
)
