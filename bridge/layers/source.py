"""What a Keras layer is made of: what is exported, functions, modules, and files."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from bridge.core.explaining import flatten
from bridge.exporting.lowering import export_for
from bridge.exporting.specifications import ArgumentSpec, specify
from bridge.layers.artifact import LayerArtifact, LayerFunction, LayerWeight
from bridge.layers.function import check_same_inputs, check_weights, described, to_function
from bridge.layers.layer_state import Held, shape_of
from bridge.loading.loaded import LoadedModel
from savedmodel.read import read
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import ArgumentError, StructureError
from xla_call_module.platforms import DEFAULT_PLATFORMS

__all__ = ["ExportedSource", "FunctionSource", "read_source", "to_source"]

_TRAINING = "training"


@dataclass(frozen=True, slots=True)
class ExportedSource:
    """Functions that are exported already.

    Attributes:
        inference: the one that is called unless the layer is training.
        training: the one that is called when it is; None where that is the same.
    """

    inference: export.Exported
    training: export.Exported | None = None

    def to_artifact(
        self, held: Held, gradient_order: int
    ) -> tuple[LayerArtifact, dict[str, np.ndarray[Any, Any]]]:
        """What the layer computes, and the values of its constants.

        Args:
            held: what it holds.
            gradient_order: how many times it can be differentiated.

        Raises:
            InteropError: the functions do not fit what the layer holds, or cannot cross.
        """
        constants: dict[str, np.ndarray[Any, Any]] = {}
        variables = held.variables()

        def function(exported: export.Exported, *, updates: bool) -> LayerFunction:
            made = to_function(exported, held, gradient_order, constants, updates=updates)
            check_weights(made, variables, held.compute_dtype)
            return made

        training = None
        if self.training is not None:
            training = function(self.training, updates=True)
        inference = function(self.inference, updates=training is None)
        check_same_inputs(inference, training)
        functions = [inference, *([training] if training else [])]
        if held.keys is not None and not any(found.keys for found in functions):
            raise StructureError(
                f"rng is given, and {inference.name} takes no PRNG key after "
                f"{described(held)}. To do: leave rng out, or export a function that takes a key "
                "there."
            )
        params, state = held.structures()
        artifact = LayerArtifact(
            weights=tuple(LayerWeight(v.name, v.dtype, v.shape, v.trainable) for v in variables),
            params=params,
            state=state,
            inference=inference,
            training=training,
            constants=tuple(
                LayerWeight(key, dtype_from_name(str(value.dtype), where=key), value.shape)
                for key, value in constants.items()
            ),
        )
        return artifact, constants


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """Functions that are exported when it is known what the layer is called with.

    Attributes:
        inference: as of `ExportedSource`.
        training: as of `ExportedSource`.
    """

    inference: Callable[..., Any]
    training: Callable[..., Any] | None = None

    def to_exported(
        self, held: Held, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ExportedSource:
        """The functions, exported for any batch size.

        Args:
            held: what the layer holds.
            args: its inputs; the leaves are `ArgumentSpec`s.
            kwargs: the same by keyword.

        Raises:
            StructureError: JAX cannot export a function for every batch size.
            Exception: what tracing it raises.
        """
        if self.training is None:
            return ExportedSource(_export(self.inference, held, args, kwargs))
        training = _export(self.training, held, args, kwargs)
        less = _without_unused(self.inference, held, args)
        return ExportedSource(_export(self.inference, less, args, kwargs), training)


def to_source(model: Any, train: Any) -> ExportedSource | FunctionSource:
    """What a layer is made of: Exporteds, or functions.

    A function with a parameter `training` is both functions, unless there is one for training.

    Raises:
        ArgumentError: it is something else.
    """
    for what, found in (("The function of a layer", model), ("train", train)):
        if found is None and what == "train":
            continue
        if not isinstance(found, export.Exported) and not callable(found):
            raise ArgumentError(
                f"{what} is a {type(found).__name__}; expected a jax.export.Exported, a function "
                "of JAX arrays, or the path of a SavedModel that bridge.save wrote."
            )
    if isinstance(model, export.Exported):
        if train is not None and not isinstance(train, export.Exported):
            raise ArgumentError(
                f"train is a {type(train).__name__}, and the function for inference is exported. "
                "To do: export both, or neither."
            )
        return ExportedSource(model, train)
    if isinstance(train, export.Exported):
        raise ArgumentError(
            "train is exported, and the function for inference is not. To do: export both, or "
            "neither."
        )
    if train is None and _TRAINING in _parameters(model):
        return FunctionSource(
            _named(functools.partial(model, training=False), model),
            _named(functools.partial(model, training=True), model),
        )
    return FunctionSource(model, train)


def read_source(path: str | os.PathLike[str], train: Any) -> tuple[ExportedSource, Any, Any]:
    """What is in a SavedModel: its default signature, the parameters, and which are trainable.

    Args:
        path: of a folder that `bridge.save` wrote.
        train: the key of the signature for training, an Exported, or None.

    Raises:
        InteropError: see `bridge.load`.
        StructureError: there is no such signature.
    """
    model = read(path)
    loaded = LoadedModel(model)
    if isinstance(train, str):
        if train not in loaded.signatures:
            raise StructureError(
                f"{os.fspath(path)} has the signatures {sorted(loaded.signatures)}, and train is "
                f"{train!r}."
            )
        train = loaded.signatures[train].exported
    default = loaded.default
    binding = default.binding
    source = to_source(default.exported, train)
    assert isinstance(source, ExportedSource)
    if binding.params is None:
        return source, None, True
    flags = [i is None or model.variables[i].trainable for i in binding.variables]
    return source, default.params, tree_util.tree_unflatten(binding.params, flags)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin, which tells nothing
        return {}


def _named(partial: functools.partial[Any], function: Any) -> functools.partial[Any]:
    named: Any = partial
    named.__name__ = getattr(function, "__name__", "function")
    return partial


def _export(
    function: Callable[..., Any], held: Held, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> export.Exported:
    name = str(getattr(function, "__name__", type(function).__name__))
    leading = [x for x in (held.params, held.state, held.keys) if x is not None]
    args = _spread(function, len(leading), args)
    leaves, tree = flatten((tuple(args), dict(kwargs)), where=f"An input of {name}")
    specs = specify(_for_any_batch(leaves), tree, polymorphic_shapes="auto", constraints=())
    inputs, keywords = tree_util.tree_unflatten(tree, specs)
    own = tree_util.tree_map(shape_of, tuple(leading))
    if held.params is not None and held.compute_dtype:
        own = (_cast_specs(own[0], held.compute_dtype), *own[1:])
    jitted = function if isinstance(function, jax.stages.Wrapped) else jax.jit(function)
    try:
        return export_for(
            jitted, (*own, *inputs), keywords, name=name, platforms=DEFAULT_PLATFORMS,
            disabled_checks=(),
        )  # fmt: skip
    except Exception as error:
        if type(error).__name__ != "InconclusiveDimensionOperation":
            raise
        raise StructureError(
            f"{name} cannot be exported for every batch size: {error.__cause__} To do: export "
            "it with jax.export.export for the sizes that it is for, with constraints between "
            "symbolic dimensions if need be, and pass the result."
        ) from error


def _without_unused(function: Any, held: Held, args: Sequence[Any]) -> Held:
    """What is passed to a function for inference, which may do without keys and state."""
    leading = [x for x in (held.params, held.state, held.keys) if x is not None]
    missing = len(leading) + len(_spread(function, 0, args)) - len(_required(function))
    kinds = {parameter.kind for parameter in _parameters(function).values()}
    if inspect.Parameter.VAR_POSITIONAL in kinds or missing < 1:
        return held
    without = [name for name in ("keys", "state") if getattr(held, name) is not None][:missing]
    return dataclasses.replace(
        held,
        keys=None if "keys" in without else held.keys,
        state=None if "state" in without else held.state,
    )


def _required(function: Any) -> list[inspect.Parameter]:
    """The positional parameters that have no default."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = _parameters(function).values()
    return [p for p in found if p.kind in kinds and p.default is p.empty]


def _spread(function: Any, leading: int, args: Sequence[Any]) -> Sequence[Any]:
    """The inputs; those of a function of several may come as one list."""
    if len(args) != 1 or not isinstance(args[0], (list, tuple)):
        return args
    wanted = len(_required(function)) - leading
    return args[0] if wanted == len(args[0]) > 1 else args


def _for_any_batch(arguments: Sequence[ArgumentSpec]) -> list[ArgumentSpec]:
    """The same without the size of a batch, which is dimension 0 of all that have one."""
    sizes = {argument.shape[0] for argument in arguments if argument.shape}
    alike = len(sizes - {None}) < 2
    return [
        dataclasses.replace(
            argument,
            shape=(None, *argument.shape[1:]) if argument.shape and alike else argument.shape,
            dtype=jax.dtypes.canonicalize_dtype(np.dtype(argument.dtype)),
        )
        for argument in arguments
    ]


def _cast_specs(specs: Any, dtype: str) -> Any:
    def cast(spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        is_float = jax.dtypes.issubdtype(spec.dtype, np.floating)
        return jax.ShapeDtypeStruct(spec.shape, dtype) if is_float else spec

    return tree_util.tree_map(cast, specs)
