"""Modules of the frameworks that are built on JAX, and their parameters, as a Keras layer has them.

What is a module here, and what its parameters are, is what `bridge.save` says, so that a layer and
a SavedModel of one have the same weights.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jax import export

from bridge.exporting.export_model import trainable_of
from bridge.exporting.framework_modules import of_module
from bridge.exporting.parametric import Parametric, of_function
from bridge.loading.loaded import LoadedModel, LoadedSignature
from xla_call_module.errors import ArgumentError, StructureError

__all__ = ["LayerArguments", "adapt"]

_TRAINING = "training"


@dataclass(frozen=True, slots=True)
class LayerArguments:
    """What a layer is made of, as `to_computation` takes it."""

    model: Any
    train: Any
    params: Any
    trainable: Any


def adapt(given: LayerArguments, state_and_keys: Mapping[str, Any]) -> LayerArguments:
    """The same with a function for a module, and with parameters that files can have.

    Args:
        given: its model is an Exported, which stays as it is, a function, or a module.
        state_and_keys: what else was passed that is for functions only, by name.

    Raises:
        InteropError: a module does not hold its parameters and none are passed, or the reverse;
            or it was passed with what is for functions.
    """
    model, train, params = given.model, given.train, given.params
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
        return given
    module = of_module(model, params)
    if module is not None:
        _refuse_with_module(module, {"train": train, **state_and_keys})
        call = _for_inference(module, model)
        return LayerArguments(call, None, module.params, trainable_of(module, given.trainable))
    if not callable(model):
        return given
    function = of_function(model, params)
    if callable(train) and not isinstance(train, export.Exported):
        train = of_function(train, params).call
    trainable = trainable_of(function, given.trainable)
    return LayerArguments(function.call, train, function.params, trainable)


def _refuse_with_module(module: Parametric, others: Mapping[str, Any]) -> None:
    names = [name for name, value in others.items() if value is not None and value is not False]
    if names:
        raise StructureError(
            f"{module.name} was passed with {' and '.join(names)}, and a layer calls a module as "
            "for inference. To do: leave them out, or pass a function of (params, state, rng, "
            "*inputs), as far as they are given, that applies the module."
        )


def _for_inference(module: Parametric, model: Any) -> Callable[..., Any]:
    """The function of a module, which training does not change."""
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
