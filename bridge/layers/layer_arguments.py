"""The arguments of a Keras layer -> its functions and its parameters.

Modules of Flax and the like are those of `bridge.save`, so that a layer and a SavedModel of one
have the same weights.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jax import export, tree_util

from bridge.exporting.framework_modules import from_module
from bridge.exporting.model_function import ModelFunction, from_function
from bridge.exporting.source import open_model
from bridge.loading.loaded import LoadedSignature
from bridge.loading.loaded_model import LoadedModel
from xla_call_module.errors import ArgumentError, StructureError, remedy_for

_TRAINING = "training"


@dataclass(frozen=True, slots=True)
class LayerArguments:
    """The functions of a layer, and its parameters.

    Attributes:
        inference: the function that is called unless the layer is training: an `Exported`, or one
            that is exported when the layer is first called.
        training: the function for training; None where that is the same.
        trainable: a prefix of `params` with bools.
    """

    inference: Any
    training: Any
    params: Any
    trainable: Any

    @property
    def is_exported(self) -> bool:
        """Return whether both functions are `Exported`s."""
        return isinstance(self.inference, export.Exported)


def read_arguments(
    model: Any, train: Any, params: Any, trainable: Any, state_and_keys: Mapping[str, Any]
) -> LayerArguments:
    """Return the functions of a layer, with parameters that files can have."""
    if isinstance(model, (str, os.PathLike)):
        return _read_file(model, train, params, trainable)
    if isinstance(model, (LoadedModel, LoadedSignature)):
        raise ArgumentError(
            f"The function of a layer is a {type(model).__name__}, whose parameters would be "
            "constants. To do: pass the path of the SavedModel, or an Exported of it with params."
        )
    if isinstance(model, type):
        raise ArgumentError(
            f"The function of a layer is the class {model.__name__}. To do: pass an instance of it."
        )
    if isinstance(model, export.Exported):
        return _with_functions(model, train, params, trainable)
    module = from_module(model, params)
    if module is not None:
        _refuse_with_module(module, {"train": train, **state_and_keys})
        call = _for_inference(module, model)
        return _with_functions(call, None, module.params, module.select_trainable(trainable))
    if not callable(model):
        return _with_functions(model, train, params, trainable)
    function = from_function(model, params)
    if callable(train) and not isinstance(train, export.Exported):
        train = from_function(train, params).call
    trainable = function.select_trainable(trainable)
    return _with_functions(function.call, train, function.params, trainable)


def _with_functions(model: Any, train: Any, params: Any, trainable: Any) -> LayerArguments:
    """Return the arguments of a layer of `Exported`s or of functions.

    A function with a parameter `training` is both functions, unless there is one for training.
    """
    for what, function in (("The function of a layer", model), ("train", train)):
        if function is None and what == "train":
            continue
        if not isinstance(function, export.Exported) and not callable(function):
            raise ArgumentError(
                f"{what} is a {type(function).__name__}; expected a jax.export.Exported, a "
                "function of JAX arrays, or the path of a SavedModel that bridge.save wrote. "
                f"{remedy_for(function, otherwise='pass one of these')}"
            )
    if isinstance(model, export.Exported):
        if train is not None and not isinstance(train, export.Exported):
            raise ArgumentError(
                f"train is a {type(train).__name__}, and the function for inference is exported. "
                "To do: export both, or neither."
            )
        return LayerArguments(model, train, params, trainable)
    if isinstance(train, export.Exported):
        raise ArgumentError(
            "train is exported, and the function for inference is not. To do: export both, or "
            "neither."
        )
    if train is None and _TRAINING in parameters_of(model):
        model, train = (
            _named(functools.partial(model, training=training), model) for training in (False, True)
        )
    return LayerArguments(model, train, params, trainable)


def _read_file(
    path: str | os.PathLike[str], train: Any, params: Any, trainable: Any
) -> LayerArguments:
    """Return what a file has; a SavedModel its default signature and its parameters."""
    loaded = open_model(path)
    if not isinstance(loaded, LoadedModel):
        return _with_functions(loaded, train, params, trainable)
    if isinstance(train, str):
        if train not in loaded.signatures:
            raise StructureError(
                f"{os.fspath(path)} has the signatures {sorted(loaded.signatures)}, and train is "
                f"{train!r}. To do: name one of these."
            )
        train = loaded.signatures[train].exported
    bound = loaded.default.binding
    if params is None and bound.params is not None:
        params = loaded.default.params
        if trainable is True:
            file = loaded.default.file
            flags = [i is None or file.variables[i].trainable for i in bound.variables]
            trainable = tree_util.tree_unflatten(bound.params, flags)
    return _with_functions(bound.exported, train, params, trainable)


def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a Python function by name; none where it does not tell."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin, which tells nothing
        return {}


def _named(partial: functools.partial[Any], function: Any) -> functools.partial[Any]:
    named: Any = partial
    named.__name__ = getattr(function, "__name__", "function")
    return partial


def _refuse_with_module(module: ModelFunction, others: Mapping[str, Any]) -> None:
    names = [name for name, value in others.items() if value is not None and value is not False]
    if names:
        raise StructureError(
            f"{module.name} was passed with {' and '.join(names)}, and a layer calls a module as "
            "for inference. To do: leave them out, or pass a function of (params, state, rng, "
            "*inputs), as far as they are given, that applies the module."
        )


def _for_inference(module: ModelFunction, model: Any) -> Callable[..., Any]:
    """Return the function of a module for inference."""
    signature = inspect.signature(module.call)
    if _TRAINING not in signature.parameters:
        return module.call
    if not hasattr(model, "stateless_call"):  # Keras models are called with training=False
        raise StructureError(
            f"{module.name} has a parameter training, and a layer calls a module as for "
            "inference. To do: pass a function of (params, state, rng, *inputs, training), without "
            "state and rng where there are none, that applies the module."
        )

    @functools.wraps(module.call)
    def call(*args: Any, **kwargs: Any) -> Any:
        return module.call(*args, **kwargs)

    inference: Any = call
    own = [p for name, p in signature.parameters.items() if name != _TRAINING]
    inference.__signature__ = signature.replace(parameters=own)
    return call
