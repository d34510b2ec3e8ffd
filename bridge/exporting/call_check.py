"""The check that a function can be called with its arguments, before it is traced.

JAX would find out while it traces, and then the error is Python's own, about a call that the user
never wrote.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from bridge.core.explaining import arguments_of
from xla_call_module.errors import ArgumentError

_TENSORFLOW = ("tensorflow", "tf_keras")
# The usual switches of a module, with their values for inference.
_SWITCHES = {
    "deterministic": True, "is_training": False, "train": False, "training": False,
    "use_running_average": True,
}  # fmt: skip
_MAX_DEFAULT = 20  # characters


@dataclass(frozen=True, slots=True)
class Passed:
    """How the arguments of a call were passed, for the message about a call that does not fit.

    Attributes:
        said: a clause that says it, such as `args= gives one argument`; empty for a plain call.
        wrapper: for a module a function that calls it, with `{}` in the place of its arguments;
            empty where there is none, and None for what is no module.
        lacks_params: whether `params=` could have been passed, and was not.
        parameters: the names of the first arguments, which hold the parameters.
        options: for a layer the options that would pass more arguments; empty for others.
    """

    said: str = ""
    wrapper: str | None = None
    lacks_params: bool = False
    parameters: tuple[str, ...] = ()
    options: str = ""


def check_call(
    fun: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    passed: Passed | None = None,
    error: Exception | None = None,
) -> None:
    """Refuse a call that does not fit the signature of the function, and functions of TensorFlow.

    A decorator may show the signature of what it wraps and take other arguments. Before the
    function is traced only the outermost signature counts; afterwards, what it shows.

    Example:
        >>> check_call(lambda params, x: x, ["f32[3]"], {}, name="predict")
        Traceback (most recent call last):
            ...
        bridge.ArgumentError: predict takes (params, x); it was called with one argument. To do: \
pass x, too, or bind it, as in functools.partial(predict, x=…).
    """
    function = _unjitted(fun)
    _refuse_tensorflow(function, name)
    if error is not None and not (type(error) is TypeError and "argument" in str(error)):
        return
    try:
        signature = inspect.signature(function, follow_wrapped=error is not None)
    except (TypeError, ValueError):  # a builtin, which tells nothing
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as reason:
        raise ArgumentError(_explain(signature, args, kwargs, name, passed or Passed())) from (
            error or reason
        )


def _unjitted(fun: Any) -> Any:
    jitted: Any = type(jax.jit(check_call))
    while isinstance(fun, jitted):
        fun = fun.__wrapped__
    return fun


def _refuse_tensorflow(function: Any, name: str) -> None:
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    homes = (getattr(inner, "__module__", None), type(inner).__module__)
    if any(str(home).partition(".")[0] in _TENSORFLOW for home in homes):
        raise ArgumentError(
            f"{name} is a function of TensorFlow; expected one of JAX arrays. To do: make a "
            "JAX function of it with bridge.call_tf, or write it with tf.saved_model.save."
        )


def _explain(
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    name: str,
    passed: Passed,
) -> str:
    parameters = [*signature.parameters.values()]
    shown = ", ".join(map(_shown, parameters[int(passed.wrapper is not None) :]))
    said = passed.said or f"it was called with {arguments_of(args, kwargs)}"
    missing = _missing(signature, args, kwargs)
    return f"{name} takes ({shown}); {said}. To do: {_cure(name, missing, kwargs, passed)}."


def _shown(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return str(parameter.replace(annotation=parameter.empty))
    default = repr(parameter.default)
    return f"{parameter.name}={default if len(default) <= _MAX_DEFAULT else '…'}"


def _missing(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[str]:
    """Return the names of the arguments that are missing; none where there are too many."""
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return []
    return [
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.name not in bound
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def _cure(name: str, missing: Sequence[str], kwargs: Mapping[str, Any], passed: Passed) -> str:
    if not missing:
        too_many = "take the names of its signature" if kwargs else "leave out what is too much"
        return f"{too_many}; a shape is written as text, as in 'f32[8,3]'"
    if passed.lacks_params:
        return "pass params= (--params), its first argument, or describe all arguments in args="
    names = " and ".join(missing)
    bound = ", ".join(f"{m}={_SWITCHES.get(m, '…')}" for m in missing)
    if passed.wrapper:
        wrapper = f"pass a function that does, {passed.wrapper.format(f'x, {bound}')}"
        is_switch = _SWITCHES.keys() >= {*missing}
        return wrapper if is_switch else f"describe {names} in args=, too, or {wrapper}"
    describes = passed.said.startswith("args=")
    pass_too = f"describe {names} in args=" if describes else f"pass {names}"
    return f"{pass_too}, too{passed.options}, or bind it, as in functools.partial({name}, {bound})"
