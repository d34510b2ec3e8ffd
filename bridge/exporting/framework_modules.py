"""Functions, and modules of the frameworks that are built on JAX, as functions of their parameters.

No framework is imported here: an object can only be one of its modules where it has been imported
already.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from jax import export, tree_util

from bridge.core._jax import depends_on_first
from bridge.core.updates import UpdatePositions
from bridge.exporting.model_function import (
    LINEN_TRAINED,
    ModelFunction,
    flags_of_parts,
    from_function,
    in_collection,
    trained_leaves,
    unwrapped,
    with_signature_of,
)
from bridge.exporting.plain_parameters import PlainParameters
from xla_call_module.errors import ArgumentError, StructureError, remedy_for


def to_model_function(
    model: Any, params: Any = None, updates: UpdatePositions | None = None
) -> ModelFunction:
    """Return the function that an object is, with its parameters."""
    function = from_module(model, params)
    if function is not None and updates:
        raise StructureError(
            f"{function.name} returns its outputs alone, so that updates= finds no new parameters. "
            "To do: pass a function of the parameters that returns them, too, such as "
            "functools.partial(model.apply, mutable=['batch_stats'])."
        )
    if function is not None:
        return function
    if not callable(model) or isinstance(model, (type, export.Exported)):
        is_data = isinstance(model, bytes | bytearray)
        shown = type(model).__name__ if is_data else f"{model!r:.80}"
        raise ArgumentError(
            f"Expected a jax.export.Exported, a function, or a module of Flax, Haiku, Equinox or "
            f"Keras on JAX, got {shown}. "
            f"{remedy_for(model, otherwise='pass one of these; of a class, an instance')}"
        )
    return from_function(model, params, updates)


def from_module(model: Any, params: Any = None) -> ModelFunction | None:
    """Return the function that a module is, with its parameters; None for what is no module."""
    for framework, adapter in _ADAPTERS.items():
        module = sys.modules.get(framework)
        function = None if module is None else adapter(module, model, params)
        if function is not None:
            return function
    return None


def _of_keras(keras: ModuleType, model: Any, params: Any) -> ModelFunction | None:
    if not isinstance(model, keras.layers.Layer):
        return None
    name = f"The Keras model {model.name}"
    _refuse_params(name, params)
    if keras.backend.backend() != "jax":
        raise ArgumentError(
            f"{name} runs on Keras's backend {keras.backend.backend()}; expected jax. To do: set "
            "KERAS_BACKEND=jax before Keras is imported."
        )
    if not model.built:
        raise StructureError(
            f"{name} has not been built, so that it has no variables. To do: call it once."
        )
    trained, fixed = model.trainable_variables, model.non_trainable_variables
    values = [(v.path.split("/"), v.value) for v in (*trained, *fixed)]
    plain = PlainParameters.of_paths(values)

    def call(params: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = plain.leaves(params)
        state = leaves[len(trained) :]
        results, new = model.stateless_call(
            leaves[: len(trained)], state, *args, training=False, **kwargs
        )
        _refuse_new_state(name, state, new)
        return results

    flags = plain.select([True] * len(trained) + [False] * len(fixed))
    inputs, names = _keras_inputs(model)
    return ModelFunction(
        with_signature_of(call, model.call, name=model.name),
        name,
        plain.params,
        flags,
        inputs,
        names,
        wrapper="",
    )


def _keras_inputs(model: Any) -> tuple[tuple[Any, ...] | None, tuple[str, ...] | None]:
    """Return the inputs that a functional or sequential model declares."""
    tensors = getattr(model, "inputs", None)
    if not tensors:
        return None, None
    # A sequential model has a single input, and `input` only once it is part of another one.
    nested = tensors[0] if len(tensors) == 1 else model.input
    names = tuple(tensor.name for tensor in tensors)
    # What nobody has named has a number of the process, such as keras_tensor_7.
    given = not any(name.startswith("keras_tensor") for name in names)
    numbers = {id(tensor): number for number, tensor in enumerate(tensors)}
    specs = tree_util.tree_map(lambda tensor: _text_of(tensor, numbers[id(tensor)]), nested)
    return (specs,), names if given else None


def _text_of(tensor: Any, number: int) -> str:
    """Return a spec as `float32[b,8,b0_2]`: one symbol for the batch, one for each other size."""
    sizes = [
        str(size) if size is not None else f"b{number}_{axis}" if axis else "b"
        for axis, size in enumerate(tensor.shape)
    ]
    return f"{tensor.dtype}[{','.join(sizes)}]"


def _of_equinox(equinox: ModuleType, model: Any, params: Any) -> ModelFunction | None:
    if not isinstance(model, equinox.Module):
        return None
    plain = PlainParameters.of(model)
    if params is not None and not plain.paths:
        return None  # a function that `equinox.filter_jit` and the like have wrapped
    name = f"The Equinox module {type(unwrapped(model)).__name__}"
    _refuse_params(name, params)
    if not callable(model):
        raise ArgumentError(
            f"{name} is not callable. To do: pass a function of it, as in bridge.save(lambda m, x: "
            "m.encode(x), path, params=module, args=…)."
        )
    call = with_signature_of(lambda p, *args, **kw: plain.rebuild(p)(*args, **kw), model)
    flags = plain.select(trained_leaves(model))
    return ModelFunction(
        call, name, plain.params, flags, arranged=plain, wrapper=_CALLED_WITH_ITSELF
    )


def _of_linen(linen: ModuleType, model: Any, params: Any) -> ModelFunction | None:
    if not isinstance(model, linen.Module):
        return None
    name = f"The linen module {type(model).__name__}"
    if model.scope is not None:
        _refuse_params(name, params)
        model, params = model.unbind()
    _expect_params(name, params, "params=module.init(key, x)")
    if not isinstance(params, Mapping) or LINEN_TRAINED not in params:
        passed = sorted(map(str, params)) if isinstance(params, Mapping) else type(params).__name__
        raise StructureError(
            f"{name} takes variables by collection, with 'params' among them; found {passed}. To "
            "do: pass what module.init returned, or params={'params': …}."
        )
    made = from_function(model.apply, params)
    call = with_signature_of(made.call, type(model).__call__, name=type(model).__name__)
    return ModelFunction(
        call,
        name,
        made.params,
        made.trainable,
        wrapper="lambda params, x: module.apply(params, {})",
    )


def _of_nnx(nnx: ModuleType, model: Any, params: Any) -> ModelFunction | None:
    owner, method = model, "__call__"
    if inspect.ismethod(model):
        owner, method = model.__self__, model.__name__
    if not isinstance(owner, nnx.Module):
        return None
    name = f"The nnx module {type(owner).__name__}"
    _refuse_params(name, params)
    definition, keys, state = nnx.split(owner, nnx.RngState, ...)
    plain = PlainParameters.of(state, without="value")

    drawn, structure = tree_util.tree_flatten(keys)

    def call(params: Any, *args: Any, **kwargs: Any) -> Any:
        def run(drawn: list[Any]) -> tuple[Any, bool]:
            # New variables: those of another trace cannot count what is drawn of them.
            own = tree_util.tree_unflatten(structure, drawn)
            module = nnx.merge(definition, own, plain.rebuild(params))
            results = getattr(module, method)(*args, **kwargs)
            _, after, state = nnx.split(module, nnx.RngState, ...)
            _refuse_new_state(name, plain.leaves(params), tree_util.tree_leaves(state))
            return results, _is_new(drawn, tree_util.tree_leaves(after))

        try:
            results, is_drawn = run(drawn)
            if is_drawn and depends_on_first(lambda drawn: run(drawn)[0], drawn):
                raise _new_state(name, "random numbers on which its results depend")
        except sys.modules["flax.errors"].TraceContextError as error:  # of the keys' count
            raise _new_state(name, "random numbers") from error
        return results

    flags = flags_of_parts(state, lambda part: isinstance(part, nnx.Param), trained=True)
    return ModelFunction(
        with_signature_of(call, model), name, plain.params, plain.select(flags),
        wrapper=_CALLED_WITH_ITSELF,
    )  # fmt: skip


def _of_haiku(haiku: ModuleType, model: Any, params: Any) -> ModelFunction | None:
    if isinstance(model, haiku.MultiTransformed | haiku.MultiTransformedWithState):
        raise ArgumentError(
            "A function of haiku.multi_transform has several apply functions. To do: pass one of "
            "them, as in bridge.save(f.apply[0], path, params=params, args=…)."
        )
    if not isinstance(model, haiku.Transformed | haiku.TransformedWithState):
        return None
    name = "The Haiku function"
    _expect_params(name, params, "params=transformed.init(key, x)")
    takes_key = "rng" in inspect.signature(model.apply).parameters
    key = (None,) if takes_key else ()
    if isinstance(model, haiku.Transformed):
        call = with_signature_of(
            lambda p, *a, **kw: model.apply(p, *key, *a, **kw),
            model.apply,
            name="haiku",
            skip=len(key) + 1,
        )
        trained = (True,) * len(tree_util.tree_leaves(params))
        return ModelFunction(call, name, params, trained, wrapper="")
    if not isinstance(params, tuple) or len(params) != 2:
        raise StructureError(
            f"{name} has a state. To do: pass both that transformed.init returned, as in "
            "params=(params, state)."
        )

    def with_state(params: Any, *args: Any, **kwargs: Any) -> Any:
        results, new = model.apply(params["params"], params["state"], *key, *args, **kwargs)
        leaves = tree_util.tree_leaves
        _refuse_new_state(name, leaves(params["state"]), leaves(new))
        return results

    both = {"params": params[0], "state": params[1]}
    call = with_signature_of(with_state, model.apply, name="haiku", skip=len(key) + 2)
    return ModelFunction(call, name, both, in_collection(both, "params"), wrapper="")


# A function that calls a module of Equinox or nnx, which is a pytree of its parameters.
_CALLED_WITH_ITSELF = "lambda module, x: module({}) with params=module"

_ADAPTERS: Mapping[str, Callable[[ModuleType, Any, Any], ModelFunction | None]] = {
    "keras": _of_keras,
    "equinox": _of_equinox,
    "flax.linen": _of_linen,
    "flax.nnx": _of_nnx,
    "haiku": _of_haiku,
}


def _refuse_params(name: str, params: Any) -> None:
    if params is not None:
        raise StructureError(
            f"{name} holds its parameters, and params= was passed, too. To do: leave it out."
        )


def _expect_params(name: str, params: Any, how: str) -> None:
    if params is None:
        raise StructureError(f"{name} does not hold its parameters. To do: pass {how}.")


def _is_new(old: Sequence[Any], new: Sequence[Any]) -> bool:
    return len(old) != len(new) or not all(a is b for a, b in zip(old, new, strict=True))


def _refuse_new_state(name: str, old: Sequence[Any], new: Sequence[Any]) -> None:
    """Refuse a new state, which would be lost: a signature returns results alone."""
    if _is_new(old, new):
        raise _new_state(name, "its state, such as batch statistics")


def _new_state(name: str, what: str) -> StructureError:
    return StructureError(
        f"{name} changes {what}, as in training, when it is called, and a file would have its "
        "results only. To do: pass it in inference mode: model.eval() in nnx, or initial_carry= "
        "for the carry of an nnx.RNN that is drawn; is_training=False in the function that Haiku "
        "transforms; or pass a function that takes the state and returns the new one, too."
    )
