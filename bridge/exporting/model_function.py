"""A model as a function whose first argument is its parameters."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jax import tree_util

from bridge.core.trees import check_flags, key_names
from bridge.core.updates import UpdatePositions
from bridge.exporting.plain_parameters import PlainParameters, is_plain
from xla_call_module.errors import ArgumentError, StructureError

# What linen calls the collection that is trained, and that of running averages.
LINEN_TRAINED = "params"
_AVERAGES = "batch_stats"


@dataclass(frozen=True, slots=True)
class ModelFunction:
    """A function of parameters and inputs; after the export it is an `ExportedModel`.

    Attributes:
        call: the function, of the parameters and its own arguments; of the latter alone where
            there are no parameters.
        params: a pytree of arrays; None where there are none.
        trainable: for each leaf of `params`, in JAX's order, whether its framework trains it.
        inputs: the specs of the arguments where the object knows them.
        input_names: the names of the inputs where the object knows them, too.
        arranged: the pytree that the user passed, where `params` are dicts of its arrays.
        wrapper: for a module a function that calls it, with `{}` in the place of its arguments, for
            messages; None for what is no module.
    """

    call: Callable[..., Any]
    name: str
    params: Any = None
    trainable: tuple[bool, ...] = ()
    inputs: tuple[Any, ...] | None = None
    input_names: tuple[str, ...] | None = None
    arranged: PlainParameters | None = None
    wrapper: str | None = None

    def select_trainable(self, wanted: Any) -> Any:
        """Return the leaves that the user and the framework both train, as a pytree of bools."""
        if self.params is None:
            return True
        try:
            flags = check_flags(wanted, self.params)
        except StructureError:
            if self.arranged is None:
                raise
            passed = self.arranged.rebuild(self.params)
            flags = list(self.arranged.select(check_flags(wanted, passed)))
        both = [flag and own for flag, own in zip(flags, self.trainable, strict=True)]
        return tree_util.tree_unflatten(tree_util.tree_structure(self.params), both)


def from_function(
    function: Callable[..., Any], params: Any, updates: UpdatePositions | None = None
) -> ModelFunction:
    """Return a callable with the parameters as its first argument."""
    name = _name_of(function)
    if params is None:
        return ModelFunction(function, name)
    _refuse_foreign_leaves(params)
    trained = _trained_collections(function, params)
    function = _with_method_signature(function)
    if is_plain(params):
        return ModelFunction(function, name, params, trained)
    plain = PlainParameters.of(params)

    def of_plain(params: Any, *args: Any, **kwargs: Any) -> Any:
        return plain.plain_results(function(plain.rebuild(params), *args, **kwargs), updates or {})

    call = with_signature_of(of_plain, function, skip=1)
    flags = plain.select(trained)
    return ModelFunction(call, name, plain.params, flags, arranged=plain)


def _refuse_foreign_leaves(params: Any) -> None:
    """Refuse texts, which no file would have, and arrays that are written as lists of lists.

    A module of a framework may have both; the containers of Python hold parameters alone.
    """
    found = tree_util.tree_leaves_with_path(params, is_leaf=lambda part: not _is_plain_node(part))
    for path, leaf in found:
        where = f"params{tree_util.keystr(path)}"
        if isinstance(leaf, (str, bytes)):
            raise ArgumentError(
                f"{where} is {leaf!r:.80}; expected an array or a number. To do: leave it out of "
                "params=, and bind it to the function, as in functools.partial."
            )
        if isinstance(leaf, list):
            raise ArgumentError(
                f"{where} is a list of lists of numbers; expected an array. To do: make one of it, "
                "as in jax.numpy.asarray([[1.0, 2.0]])."
            )


def _is_plain_node(part: Any) -> bool:
    """Return whether it is a container of Python, and no matrix."""
    if not isinstance(part, list):
        return isinstance(part, (dict, tuple))
    rows = [row for row in part if isinstance(row, list)]
    sizes = {len(row) for row in rows}
    is_matrix = len(rows) == len(part) > 0 and len(sizes) == 1 and 0 not in sizes
    numbers = (isinstance(value, (int, float, complex)) for row in rows for value in row)
    return not (is_matrix and all(numbers))


def _trained_collections(function: Any, params: Any) -> tuple[bool, ...]:
    """Return for each leaf of `params` whether it is trained."""
    linen = sys.modules.get("flax.linen")
    is_linen = linen is not None and isinstance(_owner(function), linen.Module)
    if is_linen and isinstance(params, Mapping):
        return in_collection(params, LINEN_TRAINED)
    return trained_leaves(params)


def _with_method_signature(function: Any) -> Any:
    """Return `apply` of a linen module with the parameters of the method that it applies.

    Its own are any, so that JAX would call the inputs `args[0]`; any other function stays.
    """
    linen, bound = sys.modules.get("flax.linen"), dict[str, Any]()
    inner: Any = function
    while isinstance(inner, functools.partial) and not inner.args:
        inner, bound = inner.func, {**inner.keywords, **bound}
    module = getattr(inner, "__self__", None)
    if linen is None or not isinstance(module, linen.Module) or inner.__name__ != "apply":
        return function
    method = bound.get("method") or "__call__"
    method = getattr(type(module), method) if isinstance(method, str) else method
    signature = inspect.signature(method)
    free = [p for name, p in signature.parameters.items() if name not in bound]
    if not any(p.kind is p.VAR_KEYWORD for p in free):
        free.append(inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD))  # such as `rngs`

    def applied(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    like: Any = applied
    like.__signature__ = signature.replace(parameters=free)
    return with_signature_of(applied, applied, name=inner.__name__)


def _owner(function: Any) -> Any:
    """Return the object whose method it is, behind `functools.partial` and `jax.jit`; or None."""
    while not hasattr(function, "__self__"):
        inner = getattr(function, "__wrapped__", getattr(function, "func", None))
        if inner is None:
            return None
        function = inner
    return function.__self__


def in_collection(variables: Mapping[str, Any], trained: str) -> tuple[bool, ...]:
    """Return for each leaf of Flax's variables whether it is in one collection."""
    paths = key_names(tree_util.tree_structure(variables))
    return tuple(path[0] == trained for path in paths)


def _name_of(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))


def with_signature_of(
    call: Callable[..., Any], like: Any, *, name: str = "", skip: int | None = None
) -> Callable[..., Any]:
    """Return the same function with the signature of another one behind `params`.

    JAX names the arguments of an export by the signature.
    """

    def renamed(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs)

    renamed.__name__ = name or _name_of(unwrapped(like))
    try:
        parameters = list(inspect.signature(like).parameters.values())
    except (TypeError, ValueError):  # a builtin, which tells nothing
        return renamed
    if skip is None:
        skip = int(bool(parameters) and parameters[0].name == "self")
    own = parameters[skip:]
    leading = "params"
    while any(parameter.name == leading for parameter in own):
        leading += "_"
    first = inspect.Parameter(leading, inspect.Parameter.POSITIONAL_ONLY)
    with_signature: Any = renamed
    with_signature.__signature__ = inspect.Signature([first, *own])
    return renamed


def unwrapped(model: Any) -> Any:
    """Return the function inside of `equinox.filter_vmap` and the like."""
    while (inner := getattr(model, "__wrapped__", None)) is not None:
        model = inner
    return model


def trained_leaves(params: Any) -> tuple[bool, ...]:
    """Return for each leaf whether its framework trains it, as far as classes and names tell.

    Flax's nnx trains the variables that are `nnx.Param`, Equinox no `equinox.nn.State`, and optax
    nothing in the states of its optimizers.
    """
    paths = key_names(tree_util.tree_structure(params))
    flags = tuple(_AVERAGES not in path for path in paths)
    for framework, is_untrained in _UNTRAINED.items():
        module = sys.modules.get(framework)
        if module is not None:
            parts = flags_of_parts(params, lambda part: is_untrained(module, part), trained=False)  # noqa: B023
            flags = tuple(a and b for a, b in zip(flags, parts, strict=True))
    return flags


def _is_other_variable(nnx: Any, part: Any) -> bool:
    """Return whether it is a variable of another kind, or in older versions the state of one."""
    if isinstance(part, nnx.Variable):
        return not isinstance(part, nnx.Param)
    # In newer versions it is another name of Variable.
    state = vars(nnx).get("VariableState", nnx.Variable)
    return isinstance(part, state) and not issubclass(part.type, nnx.Param)


def _is_optimizer_state(optax: Any, part: Any) -> bool:
    """Return whether it is a state; `optax.LookaheadParams` are parameters."""
    kind = type(part)
    return kind.__module__.split(".")[0] == optax.__name__ and kind.__name__.endswith("State")


_UNTRAINED: Mapping[str, Callable[[Any, Any], bool]] = {
    "flax.nnx": _is_other_variable,
    "equinox": lambda equinox, part: isinstance(part, equinox.nn.State),
    "optax": _is_optimizer_state,
}


def flags_of_parts(tree: Any, is_part: Callable[[Any], bool], *, trained: bool) -> tuple[bool, ...]:
    """Return for each leaf `trained` if it is in such a part, and the opposite elsewhere."""
    flags: list[bool] = []
    for part in tree_util.tree_leaves(tree, is_leaf=is_part):
        flags += [trained == is_part(part)] * len(tree_util.tree_leaves(part))
    return tuple(flags)
