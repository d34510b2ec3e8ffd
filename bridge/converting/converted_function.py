"""Functions of JAX as TensorFlow functions: arguments in, the call that fits them, results out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np
import tensorflow as tf
from jax import export, tree_util

from bridge.chains.exported_order import ExportedOrder
from bridge.converting.eager import EagerCalls
from bridge.converting.gradient import DifferentiableCall, GradientOptions
from bridge.converting.tensors import describe, plain_structure, read_arguments
from bridge.core._jax import settings_query, static_parameters
from bridge.core.narrowing import narrow_dtype
from bridge.exporting.lowering import argument_names, export_for, refuse_static
from bridge.exporting.specifications import ArgumentSpec, Specifier
from xla_call_module.call import TensorSpec, bind_symbols
from xla_call_module.dtypes import WIDE
from xla_call_module.errors import DtypeError, StructureError
from xla_call_module.runtime.op import static_shape
from xla_call_module.runtime.tensorflow_errors import ShapeMismatchError
from xla_call_module.tracebacks import warn

# What JAX raises where it does not run a call that TensorFlow may run, or refuses in better words:
# its compiler, runtime and transfer guard, for shapes and devices, for NaNs, and for memory that
# TensorFlow does not take over.
_REFUSALS_OF_JAX = (RuntimeError, ValueError, FloatingPointError, BufferError)
_BIND_STATIC = (
    "To do: bind it first, as in bridge.convert(functools.partial(fun, name=value)), or leave it "
    "to its default."
)
_UNKNOWN = object()  # in the place of a runner that has not been looked for


class CallSource(Protocol):
    """The place where the differentiable call for a set of arguments comes from.

    Attributes:
        is_wide: whether Python numbers keep 64 bits, whatever JAX is set to.
        settings: returns the configuration of JAX that the call depends on.
    """

    is_wide: bool
    settings: Callable[[], Hashable]

    def resolve(
        self, arguments: Sequence[ArgumentSpec], tree: tree_util.PyTreeDef
    ) -> tuple[DifferentiableCall, tree_util.PyTreeDef]:
        """Return the call for these arguments, and the structure of its results."""


class ExportedSource:
    """An `Exported`: one call, whatever arrives, and whatever JAX is set to."""

    def __init__(self, exported: export.Exported, options: GradientOptions) -> None:
        """Prepare the call."""
        self._exported = exported
        self._call = _differentiable(exported, options, at_once=True)
        self.is_wide = any(spec.dtype.name in WIDE for spec in self._call.call.args)
        self.settings: Callable[[], Hashable] = tuple  # none

    def resolve(
        self, arguments: Sequence[ArgumentSpec], tree: tree_util.PyTreeDef
    ) -> tuple[DifferentiableCall, tree_util.PyTreeDef]:
        """Return the call and the structure of its results."""
        exported = self._exported
        if tree != exported.in_tree:
            raise StructureError(_describe_mismatch(exported.fun_name, tree, exported.in_tree))
        for argument, aval in zip(arguments, exported.in_avals, strict=True):
            _check_dtype(argument, aval.dtype)
        return self._call, exported.out_tree


def _differentiable(
    exported: export.Exported,
    options: GradientOptions,
    names: Sequence[str] | None = None,
    *,
    at_once: bool = False,
) -> DifferentiableCall:
    finds_zeros = not options.unconnected_zeros
    order = ExportedOrder(exported, options.passes, argument_names=names, finds_zeros=finds_zeros)
    return DifferentiableCall(order, options, at_once=at_once)


class FunctionSource:
    """A function of JAX arrays: exported once for each set of specs."""

    is_wide = False

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        specify: Specifier,
        platforms: tuple[str, ...] | None,
        options: GradientOptions,
    ) -> None:
        """Do nothing yet."""
        self._fun = fun if isinstance(fun, jax.stages.Wrapped) else jax.jit(fun)
        self._name = str(getattr(self._fun, "__name__", self._fun))
        self._specify = specify
        self._platforms = platforms
        self._options = options
        self._calls: dict[Hashable, tuple[DifferentiableCall, tree_util.PyTreeDef]] = {}
        self.settings = _settings_of_exports()

    def resolve(
        self, arguments: Sequence[ArgumentSpec], tree: tree_util.PyTreeDef
    ) -> tuple[DifferentiableCall, tree_util.PyTreeDef]:
        """Return the call for these arguments, and the structure of its results.

        Raises:
            InteropError: the arguments do not fit, or the function cannot cross.
            Exception: what tracing the function raises.
        """
        self._refuse_static(tree)
        specs = self._specify(
            [replace(argument, dtype=_canonical_dtype(argument)) for argument in arguments], tree
        )
        platforms = self._platforms or (export.default_export_platform(),)
        # Specs of equal text are equal up to the symbolic scope, which is new for each of them.
        key = (tree, self.settings(), platforms, *map(str, specs))
        if key not in self._calls:
            self._calls[key] = self._export(specs, tree, platforms)
        return self._calls[key]

    def _export(
        self,
        specs: Sequence[jax.ShapeDtypeStruct],
        tree: tree_util.PyTreeDef,
        platforms: tuple[str, ...],
    ) -> tuple[DifferentiableCall, tree_util.PyTreeDef]:
        args, kwargs = tree_util.tree_unflatten(tree, specs)
        exported = export_for(
            self._fun,
            args,
            kwargs,
            name=self._name,
            platforms=platforms,
            disabled_checks=self._options.passes.disabled_checks,
        )
        if exported.in_tree != tree:
            raise StructureError(
                f"{self._name} was called with the structure {tree}, and JAX exported it for "
                f"{exported.in_tree}: some of its arguments are static. {_BIND_STATIC}"
            )
        names = argument_names(self._fun, args, kwargs)
        return _differentiable(exported, self._options, names), exported.out_tree

    def _refuse_static(self, tree: tree_util.PyTreeDef) -> None:
        """Refuse arguments that `jax.jit` was told to take as Python values."""
        args, kwargs = tree_util.tree_unflatten(tree, range(tree.num_leaves))
        static = static_parameters(self._fun)
        refuse_static(self._fun, args, kwargs, static=static, name=self._name)


@dataclass(frozen=True, slots=True)
class _BoundCall:
    """A call made ready for arguments of one structure, shape and dtype.

    Attributes:
        casts: the index of each argument that is cast, with the number of the dtype that it gets.
        order: for each argument of the call its index among those that arrive; None where that is
            the same.
        label: the beginning of the names of arguments and results in a graph; may be empty.
    """

    call: DifferentiableCall
    out_tree: tree_util.PyTreeDef
    casts: tuple[tuple[int, int], ...]
    order: tuple[int, ...] | None
    label: str

    def __call__(self, tensors: list[Any]) -> Any:
        tensors = _in_order(tensors, self.order)
        for index, enum in self.casts:
            tensors[index] = tf.cast(tensors[index], enum)
        named = bool(self.label) and not tf.executing_eagerly()
        if named:
            tensors = [tf.identity(x, f"{self.label}_arg_{i}") for i, x in enumerate(tensors)]
        results = self.call(tensors)
        if named:
            results = [tf.identity(result, f"{self.label}_out") for result in results]
        return tree_util.tree_unflatten(self.out_tree, results)

    def runner(self) -> Callable[[list[Any]], Any] | None:
        """Return the call in JAX, on views of tensors; None where only TensorFlow can."""
        run = None if self.casts else self.call.runner()
        if run is None:
            return None
        order, unflatten = self.order, self.out_tree.unflatten
        if order is None:  # which takes a call less
            return lambda arrays: unflatten(run(arrays))
        return lambda arrays: unflatten(run(_in_order(arrays, order)))


class ConvertedFunction:
    """A TensorFlow function: arguments in, results out.

    What the first call with arguments of some structure, shapes and dtypes finds out is kept.
    """

    def __init__(self, source: CallSource, *, label: str = "", warns: bool = True) -> None:
        """Do nothing yet."""
        self._source = source
        self._settings = source.settings
        self._label = label
        self._warns = warns
        self._read = partial(read_arguments, wide=True) if source.is_wide else read_arguments
        self._bound: dict[Hashable, _BoundCall] = {}
        self._eager = EagerCalls()
        self._runners: dict[Hashable, Any] = {}
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the pytree of results."""
        settings = self._settings()
        if (views := self._eager.view(args, kwargs)) is not None:
            arrays, parts = views
            key = (settings, *parts)
            run = self._runners.get(key, _UNKNOWN)
            if is_first := run is _UNKNOWN:
                run = self._runners[key] = self._find(args, kwargs, settings)[0].runner()
            if run is not None:
                try:
                    return run(arrays)
                except _REFUSALS_OF_JAX:
                    if is_first:
                        self._runners[key] = None
        bound, tensors = self._find(args, kwargs, settings)
        return bound(tensors)

    def _find(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], settings: Hashable
    ) -> tuple[_BoundCall, list[Any]]:
        """Return the call, ready for these arguments, and the tensors that they are."""
        tensors, key = self._read(args, kwargs)
        key += (settings,)
        bound = self._bound.get(key)
        if bound is None:
            with self._lock:
                bound = self._bound[key] = self._bind(tensors, *key[:2])
        return bound, tensors

    def _bind(
        self, tensors: list[Any], tree: tree_util.PyTreeDef, origins: tuple[Any, ...]
    ) -> _BoundCall:
        tree, order = plain_structure(tree)
        tensors = _in_order(tensors, order)
        arguments = describe(tensors, tree, origins)
        call, out_tree = self._source.resolve(arguments, tree)
        _check_shapes(call, tensors)
        casts = []
        for index, (argument, spec) in enumerate(zip(arguments, call.call.args, strict=True)):
            if tensors[index].dtype.as_datatype_enum != spec.dtype.enum:
                self._warn_of_narrowing(argument, spec)
                casts.append((index, spec.dtype.enum))
        return _BoundCall(call, out_tree, tuple(casts), order, self._label)

    def _warn_of_narrowing(self, argument: ArgumentSpec, spec: TensorSpec) -> None:
        """Warn once of a tensor, which has chosen its dtype; JAX narrows arrays silently, too."""
        if not self._warns or not argument.is_tensor or argument.path in self._warned:
            return
        self._warned.add(argument.path)
        warn(
            f"{argument.path} is a {argument.dtype} tensor, and while jax_enable_x64 is off JAX "
            f"computes with {spec.dtype.name}. To keep 64 bits call jax.config.update("
            "'jax_enable_x64', True) first; to silence this cast the tensor.",
        )


def _in_order(tensors: list[Any], order: tuple[int, ...] | None) -> list[Any]:
    return tensors if order is None else [tensors[index] for index in order]


def _check_shapes(call: DifferentiableCall, tensors: Sequence[tf.Tensor]) -> None:
    """Compare the shapes that are known with the specification."""
    module, shapes = call.call, list(map(static_shape, tensors))
    try:
        bind_symbols(module.name, module.own_args, shapes, disabled_checks=call.disabled_checks)
    except StructureError as error:
        raise ShapeMismatchError(None, None, str(error)) from None


def _canonical_dtype(argument: ArgumentSpec) -> Any:
    if jax.dtypes.issubdtype(argument.dtype, jax.dtypes.extended):
        return argument.dtype
    return narrow_dtype(argument.dtype)


def _check_dtype(argument: ArgumentSpec, expected: Any) -> None:
    """Refuse what JAX would not convert to the exported dtype by itself."""
    if jax.dtypes.issubdtype(expected, jax.dtypes.extended):
        fits = argument.dtype == expected or argument.dtype == np.dtype("uint32")
    elif expected == jax.dtypes.float0:
        fits = argument.dtype == np.dtype("bool")
    else:
        fits = _canonical_dtype(argument) == expected or argument.dtype == expected
        fits = fits or (argument.is_weak and _category(argument.origin) <= _category(expected))
    if fits:
        return
    raise DtypeError(
        f"{argument.path} has dtype {argument.dtype}; it was exported for {expected}. To do: cast "
        "it with tf.cast, or export the function for that dtype."
    )


def _category(dtype: Any) -> int:
    """Return the rank of a dtype: a Python number takes any dtype it meets that is not below.

    https://docs.jax.dev/en/latest/type_promotion.html
    """
    categories = (np.bool_, np.integer, np.floating, np.complexfloating)
    return next(i for i, kind in enumerate(categories) if jax.dtypes.issubdtype(dtype, kind))


def _describe_mismatch(name: str, given: Any, expected: Any) -> str:
    """Return a message with the first argument whose structure is not the exported one."""
    (args, kwargs), (wanted_args, wanted_kwargs) = (
        tree_util.tree_unflatten(tree, range(tree.num_leaves)) for tree in (given, expected)
    )
    if len(args) != len(wanted_args) or kwargs.keys() != wanted_kwargs.keys():
        return (
            f"{name} was called with {len(args)} positional arguments and the keywords "
            f"{sorted(kwargs)}; it was exported for {len(wanted_args)} and {sorted(wanted_kwargs)}."
        )
    pairs = [
        *((f"args[{i}]", *pair) for i, pair in enumerate(zip(args, wanted_args, strict=True))),
        *((f"kwargs[{key!r}]", kwargs[key], wanted_kwargs[key]) for key in sorted(kwargs)),
    ]
    for path, *parts in pairs:
        here, there = map(str, map(tree_util.tree_structure, parts))
        if here != there:
            return f"{path} of {name} has the structure {here}; it was exported for {there}."
    return f"{name} was called with the structure {given}; it was exported for {expected}."


def _settings_of_exports() -> Callable[[], Hashable]:
    """Return a function that returns the configuration of JAX on which an export depends."""
    config: Any = jax.config  # its values are attributes that JAX adds when it is imported
    traced = settings_query()
    return lambda: (traced(), config.jax_export_calling_convention_version)
