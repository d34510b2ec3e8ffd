"""`convert`: make a TensorFlow callable of a JAX function."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np
from jax import export, tree_util

from bridge.chains.exported_order import ExportedOrder
from bridge.chains.orders import ChainOptions
from bridge.converting.signature import Defaults, adopt_metadata, read_defaults, signature_of
from bridge.core._jax import settings_query, static_parameters
from bridge.core.narrowing import narrow_dtype
from bridge.exporting.lowering import argument_names, export_for
from bridge.exporting.specifications import ArgumentSpec, Specifier, parse_constraints, specify
from xla_call_module._autograph import exempt_from_autograph
from xla_call_module.call import TensorSpec, bind_symbols
from xla_call_module.checks import parse_checks
from xla_call_module.dtypes import WIDE
from xla_call_module.errors import (
    ArgumentError,
    DtypeError,
    MissingDependencyError,
    StructureError,
)
from xla_call_module.exported import Check
from xla_call_module.linalg.linalg_option import parse_linalg
from xla_call_module.passes.constants import HOISTED_FROM
from xla_call_module.platforms import DEFAULT_PLATFORMS, parse_platforms

if TYPE_CHECKING:
    from bridge.converting.gradient import DifferentiableCall, GradientOptions
    from bridge.converting.tensors import Arguments

__all__ = ["Converted", "Tracer", "convert"]

# What JAX raises where it does not run a call that TensorFlow may run, or refuses in better words:
# its compiler, runtime and transfer guard, for shapes and devices, for NaNs, and for memory that
# TensorFlow does not take over.
_REFUSALS_OF_JAX = (RuntimeError, ValueError, FloatingPointError, BufferError)
_BIND_STATIC = (
    "To do: bind it first, as in bridge.convert(functools.partial(fun, name=value)), or leave it "
    "to its default."
)


@exempt_from_autograph
def convert(
    fun: Callable[..., Any] | export.Exported,
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[Check] = (),
    with_gradient: bool = True,
    gradient_order: int = 1,
    residuals: bool = False,
    hoist_constants: int | None = HOISTED_FROM,
    linalg: str = "portable",
) -> Callable[..., Any]:
    """Return a TensorFlow callable that computes what `fun` computes.

    It takes tensors, variables, numpy arrays, JAX arrays and Python scalars in any registered
    pytree, positional and keyword, and returns the pytree of tensors that `fun` returns. It works
    eagerly, in `tf.function`, compiled, in TensorFlow's control flow, and in a `tf.Module` that
    `tf.saved_model.save` writes. `fun` is exported once for each combination of argument shapes and
    dtypes.

    Args:
        fun: a Python function of JAX arrays, a `jax.jit`-ed one, or a `jax.export.Exported`. A
            parameter that it reads as a Python value, such as `training=False`, must have its
            default or be bound with `functools.partial`; whatever is passed arrives as an array.
        polymorphic_shapes: the names of unknown dimensions. A string such as `"b, _"` or
            `"b, ..."` for every argument, or a pytree of strings and None that is a prefix of the
            positional arguments, in the language of `jax.export.symbolic_args_specs`; or
            `"auto"`: an unknown dimension 0 is the same symbol in all arguments, and any other
            unknown dimension a symbol of its own.
        polymorphic_constraints: constraints between the symbols, such as `"b >= 2"`.
        platforms: the platforms to lower for, some of `cpu`, `cuda`, `rocm`, `tpu`, `gpu`; by
            default cpu, cuda and tpu together.
        disabled_checks: safety checks to leave out, on every order of the gradient: `platform`,
            `shape_assertions`, `custom_call:TARGET`, or JAX's `DisabledSafetyCheck` values. With an
            `Exported`, besides those that it leaves out itself.
        with_gradient: whether TensorFlow can differentiate the result; live, any number of times.
        gradient_order: how many times a file of `tf.saved_model.save` can be differentiated. From 2
            on, each order is exported when a `tf.function` is traced.
        residuals: whether the function keeps the intermediate values that its gradient needs,
            instead of computing the forward pass again: less time, more memory, the same results.
        hoist_constants: the number of bytes from which on an array that `fun` closes over is kept
            once, outside of the modules of the function and its gradients, where it would cost time
            at each eager call; None for never.
        linalg: `portable` replaces calls of LAPACK, cuSOLVER and the like by operations that run
            everywhere, in gradients too; `lapack` leaves them for a TensorFlow that has them.

    Returns:
        A callable. Typed PRNG keys cross as their key data (uint32); 64-bit tensors as the 32-bit
        ones that JAX would make of them while `jax_enable_x64` is off, with one warning.

    Raises:
        InteropError: `fun` or its arguments cannot cross; raised when it is called, except for
            wrong options and for an `Exported`, which are refused at once.

    Example:
        >>> import bridge, jax.numpy as jnp, tensorflow as tf
        >>> f = bridge.convert(lambda x, *, scale: jnp.sin(x) * scale)
        >>> f(tf.constant([0.0, 1.0]), scale=2.0).numpy()
        array([0.       , 1.6829419], dtype=float32)
    """
    _import_tensorflow()
    from bridge.converting.gradient import GradientOptions

    passes = ChainOptions(
        disabled_checks=parse_checks(disabled_checks),
        portable_linalg=parse_linalg(linalg),
        residuals=residuals,
        hoist_constants=hoist_constants,
    )
    options = GradientOptions(passes, with_gradient=with_gradient, order_in_file=gradient_order)
    source: _Source
    if isinstance(fun, export.Exported):
        if polymorphic_shapes or polymorphic_constraints or platforms:
            raise StructureError(
                f"{fun.fun_name} is already exported: polymorphic_shapes, polymorphic_constraints "
                "and platforms are fixed in it. To do: leave them out, or export it again with "
                "them."
            )
        source = _Ready(fun, options)
    elif not callable(fun):
        raise ArgumentError(
            f"Expected a Python function or a jax.export.Exported, got {type(fun).__name__}."
        )
    else:
        source = Tracer(
            fun,
            specify=partial(
                specify,
                polymorphic_shapes=polymorphic_shapes,
                constraints=parse_constraints(polymorphic_constraints),
            ),
            platforms=DEFAULT_PLATFORMS if platforms is None else parse_platforms(platforms),
            options=options,
        )
    signature = signature_of(fun)
    call = _to_function(Converted(source), read_defaults(signature))
    adopt_metadata(call, fun, signature)
    # AutoGraph would rewrite this package's own code, which has no TensorFlow control flow.
    return exempt_from_autograph(call)


def _to_function(converted: Converted, defaults: Defaults | None) -> Callable[..., Any]:
    """A plain function, whose attributes can be set."""
    if defaults is None:
        return lambda *args, **kwargs: converted(args, kwargs)
    return lambda *args, **kwargs: converted(*defaults.leave_out(args, kwargs))


class _Source(Protocol):
    """Where the differentiable call for a set of arguments comes from."""

    def resolve(
        self, arguments: Sequence[ArgumentSpec], tree: tree_util.PyTreeDef
    ) -> tuple[DifferentiableCall, tree_util.PyTreeDef]:
        """The call for these arguments, and the structure of its results."""


class _Ready:
    """An `Exported`: one call, whatever arrives."""

    def __init__(self, exported: export.Exported, options: GradientOptions) -> None:
        self._exported = exported
        self._call = _differentiable(exported, options)
        self._call.prepare()
        self.is_wide = any(spec.dtype.name in WIDE for spec in self._call.call.args)

    def resolve(
        self, arguments: Sequence[ArgumentSpec], tree: tree_util.PyTreeDef
    ) -> tuple[DifferentiableCall, tree_util.PyTreeDef]:
        exported = self._exported
        if tree != exported.in_tree:
            raise StructureError(_describe_mismatch(exported.fun_name, tree, exported.in_tree))
        for argument, aval in zip(arguments, exported.in_avals, strict=True):
            _check_dtype(argument, aval.dtype)
        return self._call, exported.out_tree


def _differentiable(
    exported: export.Exported, options: GradientOptions, names: Sequence[str] | None = None
) -> DifferentiableCall:
    from bridge.converting.gradient import DifferentiableCall

    finds_zeros = not options.unconnected_zeros
    order = ExportedOrder(exported, options.passes, argument_names=names, finds_zeros=finds_zeros)
    return DifferentiableCall(order, options)


class Tracer:
    """A function: exported once for each set of specs."""

    def __init__(
        self,
        fun: Callable[..., Any],
        *,
        specify: Specifier,
        platforms: tuple[str, ...] | None,
        options: GradientOptions,
    ) -> None:
        """Do nothing yet.

        Args:
            fun: what is exported.
            specify: makes specs of what is known of the arguments.
            platforms: what it is lowered for; None for what JAX runs on when it is called.
            options: what is asked of the gradients.
        """
        self._fun = fun if isinstance(fun, jax.stages.Wrapped) else jax.jit(fun)
        self._specify = specify
        self._platforms = platforms
        self._options = options
        self._calls: dict[Hashable, tuple[DifferentiableCall, tree_util.PyTreeDef]] = {}

    def resolve(
        self, arguments: Sequence[ArgumentSpec], tree: tree_util.PyTreeDef
    ) -> tuple[DifferentiableCall, tree_util.PyTreeDef]:
        """The call for these arguments, and the structure of its results.

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
        key = (tree, _jax_settings()(), platforms, *(str(spec) for spec in specs))
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
            name=_name_of(self._fun),
            platforms=platforms,
            disabled_checks=self._options.passes.disabled_checks,
        )
        if exported.in_tree != tree:
            raise StructureError(
                f"{_name_of(self._fun)} was called with the structure {tree}, and JAX exported it "
                f"for {exported.in_tree}: some of its arguments are static. {_BIND_STATIC}"
            )
        names = argument_names(self._fun, args, kwargs)
        return _differentiable(exported, self._options, names), exported.out_tree

    def _refuse_static(self, tree: tree_util.PyTreeDef) -> None:
        """Refuse arguments that `jax.jit` was told to take as Python values."""
        args, kwargs = tree_util.tree_unflatten(tree, range(tree.num_leaves))
        positions, names = static_parameters(self._fun)
        static = [f"args[{index}]" for index in positions if -len(args) <= index < len(args)]
        static += [f"kwargs[{name!r}]" for name in names if name in kwargs]
        if static:
            raise StructureError(
                f"{static[0]} of {_name_of(self._fun)} is a static argument of jax.jit: its value "
                f"is part of the program and cannot arrive from TensorFlow. {_BIND_STATIC}"
            )


@dataclass(frozen=True, slots=True)
class _Bound:
    """A call made ready for arguments of one structure, shape and dtype."""

    call: DifferentiableCall
    out_tree: tree_util.PyTreeDef
    casts: tuple[tuple[int, int], ...]
    order: tuple[int, ...] | None
    label: str

    def __call__(self, tensors: list[Any]) -> Any:
        if self.order is not None:
            tensors = _in_order(tensors, self.order)
        if self.casts:
            tf = _import_tensorflow()
            for index, enum in self.casts:
                tensors[index] = tf.cast(tensors[index], enum)
        run = self._run_labelled if self.label else self.call
        return tree_util.tree_unflatten(self.out_tree, run(tensors))

    def runner(self) -> Callable[[list[Any]], Any] | None:
        """Return the call in JAX, on views of tensors; None where only TensorFlow can."""
        run = None if self.casts else self.call.runner()
        if run is None:
            return None
        order, unflatten = self.order, self.out_tree.unflatten
        if order is None:
            return lambda arrays: unflatten(run(arrays))
        return lambda arrays: unflatten(run(_in_order(arrays, order)))

    def _run_labelled(self, tensors: list[Any]) -> list[Any]:
        tf = _import_tensorflow()
        if tf.executing_eagerly():
            return self.call(tensors)
        named = [tf.identity(x, f"{self.label}_arg_{i}") for i, x in enumerate(tensors)]
        return [tf.identity(result, f"{self.label}_out") for result in self.call(named)]


class Converted:
    """Arguments in, results out; what the first call with some specs found out is kept."""

    def __init__(self, source: _Source, *, label: str = "", warns: bool = True) -> None:
        """Do nothing yet.

        Args:
            source: of the calls.
            label: what arguments and results are called in a graph, as in `label_arg_0` and
                `label_out`; empty for nothing.
            warns: whether a warning says that 64-bit tensors are narrowed.
        """
        from bridge.converting.eager import EagerCalls
        from bridge.converting.tensors import read_arguments

        self._source = source
        self._label = label
        self._warns = warns
        # What an Exported takes and computes depends on no setting any more.
        self._settings = _jax_settings() if isinstance(source, Tracer) else None
        is_wide = isinstance(source, _Ready) and source.is_wide
        self._read = partial(read_arguments, wide=True) if is_wide else read_arguments
        self._bound: dict[Hashable, _Bound] = {}
        self._eager = EagerCalls()
        self._runners: dict[Hashable, Callable[[Any], Any] | None] = {}
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The pytree of results."""
        settings = () if self._settings is None else self._settings()
        views = self._eager.view(args, kwargs)
        if views is not None:
            arrays, parts = views
            key = (settings, *parts)
            if (run := self._runners.get(key)) is not None:
                try:
                    return run(arrays)
                except _REFUSALS_OF_JAX:
                    bound, tensors = self._find(args, kwargs, settings)
                    return bound(tensors)
            if key not in self._runners:
                bound, tensors = self._find(args, kwargs, settings)
                return self._call_first(bound, tensors, arrays, key)
        bound, tensors = self._find(args, kwargs, settings)
        return bound(tensors)

    def _find(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], settings: Hashable
    ) -> tuple[_Bound, list[Any]]:
        """The call, ready for these arguments, and the tensors that they are."""
        tensors, key = self._read(args, kwargs)
        key += (settings,)
        bound = self._bound.get(key)
        if bound is None:
            with self._lock:
                bound = self._bound[key] = self._bind(tensors, *key[:2])
        return bound, tensors

    def _call_first(
        self, bound: _Bound, tensors: list[Any], arrays: list[Any], key: Hashable
    ) -> Any:
        """The results, and from now on a runner where JAX can run it."""
        run = bound.runner()
        try:
            results = None if run is None else run(arrays)
        except _REFUSALS_OF_JAX:
            run = None
        self._runners[key] = run
        return bound(tensors) if run is None else results

    def _bind(
        self, tensors: list[Any], tree: tree_util.PyTreeDef, origins: tuple[Any, ...]
    ) -> _Bound:
        from bridge.converting.tensors import Arguments, plain_structure

        tree, order = plain_structure(tree)
        arguments = Arguments(_in_order(tensors, order), tree, origins)
        described = arguments.describe()
        call, out_tree = self._source.resolve(described, arguments.tree)
        _check_shapes(call, arguments)
        casts = []
        for index, (argument, spec) in enumerate(zip(described, call.call.args, strict=True)):
            if arguments.tensors[index].dtype.as_datatype_enum != spec.dtype.enum:
                self._warn_of_narrowing(argument, spec)
                casts.append((index, spec.dtype.enum))
        return _Bound(call, out_tree, tuple(casts), order, self._label)

    def _warn_of_narrowing(self, argument: ArgumentSpec, spec: TensorSpec) -> None:
        """Arrays and Python numbers narrow silently in JAX, too; a tensor has chosen its dtype."""
        if not self._warns or not argument.is_tensor or argument.path in self._warned:
            return
        self._warned.add(argument.path)
        warnings.warn(
            f"{argument.path} is a {argument.dtype} tensor, and while jax_enable_x64 is off JAX "
            f"computes with {spec.dtype.name}. To keep 64 bits call jax.config.update("
            "'jax_enable_x64', True) first; to silence this cast the tensor.",
            UserWarning,
            stacklevel=6,
        )


def _in_order(tensors: list[Any], order: tuple[int, ...] | None) -> list[Any]:
    return tensors if order is None else [tensors[index] for index in order]


def _check_shapes(call: DifferentiableCall, arguments: Arguments) -> None:
    """Compare the shapes that are known with the specification."""
    from xla_call_module.shape_checks.tensorflow_errors import ShapeMismatchError

    module = call.call
    try:
        bind_symbols(
            module.name, module.own_args, arguments.shapes, disabled_checks=call.disabled_checks
        )
    except StructureError as error:
        raise ShapeMismatchError(str(error)) from error


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
    """A Python number takes the dtype of what it meets, unless that is of a lower category.

    https://docs.jax.dev/en/latest/type_promotion.html
    """
    categories = (np.bool_, np.integer, np.floating, np.complexfloating)
    return next(i for i, kind in enumerate(categories) if jax.dtypes.issubdtype(dtype, kind))


def _describe_mismatch(name: str, found: Any, expected: Any) -> str:
    """The first argument whose structure is not the one that was exported."""
    (args, kwargs), (wanted_args, wanted_kwargs) = (
        tree_util.tree_unflatten(tree, range(tree.num_leaves)) for tree in (found, expected)
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
    return f"{name} was called with the structure {found}; it was exported for {expected}."


def _jax_settings() -> Callable[[], tuple[Hashable, ...]]:
    """A function that tells what of JAX's configuration changes the module of a function."""
    config: Any = jax.config  # its values are attributes that JAX adds when it is imported
    traced = settings_query()
    return lambda: (traced(), config.jax_export_calling_convention_version)


def _name_of(fun: Any) -> str:
    return str(getattr(fun, "__name__", fun))


def _import_tensorflow() -> Any:
    try:
        import tensorflow as tf
    except ImportError as error:
        raise MissingDependencyError.of(
            "bridge.convert",
            "TensorFlow",
            extra="tensorflow",
            instead="write a file with bridge.save",
        ) from error
    return tf
