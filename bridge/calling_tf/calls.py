"""Calls of a TensorFlow function from JAX: pytrees in, pytrees out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import tree_util

from bridge.calling_tf.callbacks import Callback, read_at_run_time
from bridge.calling_tf.concrete_functions import (
    TracedFunction,
    call_with_tensors,
    flatten_results,
    is_static,
    name_of,
    open_function,
    symbolic_tensor,
    to_callable,
    trace,
)
from bridge.calling_tf.derivatives import CompiledFunction
from bridge.calling_tf.embedding import Embedding
from bridge.calling_tf.graph_nodes import is_stateful, stateful_operations
from bridge.calling_tf.results import declared_results
from bridge.calling_tf.variables import (
    is_split,
    is_trainable,
    path_of,
    read,
    to_array,
    to_spec,
    variables_of,
)
from bridge.core._jax import is_staging, transformation_query
from bridge.core._tf import composite_tensor_classes
from bridge.core.backend import require_own_runtime
from bridge.core.explaining import flatten
from bridge.core.keys import is_key, key_data_aval, to_physical
from bridge.core.narrowing import narrow_array, narrow_dtype
from bridge.core.trees import unique_names
from xla_call_module._autograph import exempt_from_autograph
from xla_call_module._jax import survive_forks
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import ArgumentError, StructureError
from xla_call_module.exported import argument_paths, result_paths
from xla_call_module.tracebacks import api_boundary, warn


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options of `bridge.call_tf`.

    Attributes:
        variables: `live`, `argument` or `constant`.
        compiled: whether JAX compiles the function, or calls TensorFlow back.
        graph: whether it stays a TensorFlow function in what is exported.
        only_exported: with `graph`, whether JAX itself may not run a program with it.
        shapes: a pytree of the results' shapes and dtypes, or None.
        has_side_effects: whether calls keep their order, and are not left out; None for whether
            the function has operations that ask for it.
        warns: whether a warning says that results of 64 bits are narrowed.
    """

    variables: str
    compiled: bool
    graph: bool
    shapes: Any
    has_side_effects: bool | None
    only_exported: bool = False
    warns: bool = True


@dataclass(frozen=True, slots=True)
class _BoundCall:
    """A call made ready for arguments of one structure, shape and dtype.

    Attributes:
        run: a function of the leaves of the arguments, then of the values of the variables.
        specs: the shape and dtype in which `run` takes the value of each variable.
    """

    run: Callable[..., Sequence[jax.Array]]
    out_tree: tree_util.PyTreeDef
    variables: tuple[tf.Variable, ...]
    specs: tuple[jax.ShapeDtypeStruct, ...]


_is_outside_transformations = transformation_query()


@exempt_from_autograph
class CalledFunction:
    """A TensorFlow function as a JAX function; `bridge.call_tf` makes it."""

    def __init__(self, fun_tf: Any, options: CallOptions) -> None:
        """Take a function; nothing is traced before the first call."""
        self._options = options
        self.__name__ = name_of(fun_tf)
        self.__doc__ = getattr(fun_tf, "__doc__", None)
        self._source = open_function(fun_tf)
        self._function = to_callable(self._source)
        self._mode = options.variables
        self._bound: dict[Hashable, _BoundCall] = {}
        self._warned: set[str] = set()
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        """Return the name of the function."""
        return f"<bridge.call_tf of {self.__name__}>"

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the results of the TensorFlow function as JAX arrays."""
        if _is_outside_transformations():
            require_own_runtime(f"what {self.__name__} returns")
        given: Mapping[str, Any] = {}
        if self._mode == "argument":
            given, args = self._split_variables(args)
        leaves, tree = flatten((args, kwargs), where=f"An argument of {self.__name__}")
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, jax.Array):
                leaves[index] = _to_array(leaf, tree, index)
        bound = self._bind(tree, leaves)
        if bound.variables:
            leaves += self._values(bound, given)
        return tree_util.tree_unflatten(bound.out_tree, bound.run(*leaves))

    def variables(self, *args: Any, **kwargs: Any) -> dict[str, jax.Array]:
        """Return the values of the variables, as `variables="argument"` takes them.

        Those are what JAX can differentiate with respect to; variables of other dtypes stay live.

        Args:
            *args: what the function will be called with, without the variables; needed where it
                has not been called yet and does not say itself which variables it has.
            **kwargs: the same by name.
        """
        names = self._names_for(args, kwargs)
        values = read([variable for variable, _ in names])
        return {name: jax.device_put(value) for (_, name), value in zip(names, values, strict=True)}

    def trainable(self, *args: Any, **kwargs: Any) -> dict[str, bool]:
        """Return for each of `variables` whether TensorFlow trains it, as its maker has said.

        It is what `trainable=` of `bridge.save` takes beside `params=`.

        Args:
            *args: as for `variables`.
            **kwargs: the same by name.
        """
        names = self._names_for(args, kwargs)
        return {name: bool(variable.trainable) for variable, name in names}

    def _names_for(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> list[tuple[tf.Variable, str]]:
        """Return the variables that are arguments, with their names, after binding a call."""
        if args or kwargs:
            leaves, tree = flatten((args, kwargs), where=f"An argument of {self.__name__}")
            self._bind(tree, [_to_array(leaf, tree, i) for i, leaf in enumerate(leaves)])
        if not self._bound and variables_of(self._source) is None:
            raise StructureError(
                f"{self.__name__} has not been called, and does not say which variables it has. To "
                "do: pass `variables` the arguments of a call, without the variables."
            )
        return self._names()

    def _names(self) -> list[tuple[tf.Variable, str]]:
        """Return the variables that are arguments, with the names that they have there."""
        with self._lock:
            known = {id(variable): variable for variable in variables_of(self._source) or ()}
            for bound in self._bound.values():
                known |= {id(variable): variable for variable in bound.variables}
        own = [variable for variable in known.values() if is_trainable(variable)]
        names = unique_names(path_of(variable) for variable in own)
        return list(zip(own, names, strict=True))

    def _split_variables(self, args: tuple[Any, ...]) -> tuple[Mapping[str, Any], tuple[Any, ...]]:
        if not args or not isinstance(args[0], Mapping):
            kind = type(args[0]).__name__ if args else "no argument"
            raise StructureError(
                f"{self.__name__} was made with variables='argument', so its first argument is the "
                f"dict of variables that its attribute `variables` returns; got {kind}. "
                "To do: pass that dict first."
            )
        return args[0], args[1:]

    def _values(self, bound: _BoundCall, given: Mapping[str, Any]) -> Sequence[Any]:
        """Return the values of the variables, now or in a program that is being traced."""
        if self._mode != "argument":
            return self._own_values(bound.variables, bound.specs)
        names = {id(variable): name for variable, name in self._names()}
        if set(given) != set(names.values()):
            raise StructureError(
                f"The variables of {self.__name__} are {sorted(names.values())}; got "
                f"{sorted(given)}. To do: pass what its attribute `variables` returns."
            )
        pairs = zip(bound.variables, bound.specs, strict=True)
        others = [(variable, spec) for variable, spec in pairs if id(variable) not in names]
        live = iter(self._own_values([v for v, _ in others], [spec for _, spec in others]))
        return [
            given[names[id(variable)]] if id(variable) in names else next(live)
            for variable in bound.variables
        ]

    def _own_values(
        self, variables: Sequence[tf.Variable], specs: Sequence[jax.ShapeDtypeStruct]
    ) -> Sequence[Any]:
        if self._mode == "constant" or not is_staging():
            return read(variables)
        return read_at_run_time(variables, specs, name=self.__name__)

    def _bind(self, tree: tree_util.PyTreeDef, leaves: Sequence[Any]) -> _BoundCall:
        config: Any = jax.config  # its values are attributes that JAX adds when it is imported
        key = (tree, config.jax_enable_x64, *((_key_of(leaf.shape), leaf.dtype) for leaf in leaves))
        bound = self._bound.get(key)
        if bound is None:
            with self._lock:
                bound = self._bound[key] = self._bound.get(key) or self._trace(tree, leaves)
        return bound

    def _trace(self, tree: tree_util.PyTreeDef, leaves: Sequence[Any]) -> _BoundCall:
        function, name = self._function, self.__name__
        out_tree = tree
        survive_forks()

        def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
            nonlocal out_tree
            args, kwargs = tree_util.tree_unflatten(tree, tensors)
            results, out_tree = flatten_results(
                call_with_tensors(function, args, kwargs, name), name
            )
            self._warn_of_narrowing(results, out_tree)
            return results

        paths = argument_paths(tree)
        specs = [_to_spec(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
        if not self._options.graph:
            _refuse_symbols(specs, paths, name, compiled=self._options.compiled)
        traced = trace(flat, specs, name=name, compiled=self._is_compiled)
        declared = declared_results(traced, out_tree, self._options.shapes)
        compiled = self._to_function(traced, declared)
        variables = traced.variables if self._takes_variables else ()

        def run(*inputs: Any) -> list[Any]:
            arguments = map(to_physical, inputs[: len(specs)])
            return compiled(*arguments, *inputs[len(specs) :])

        run.__name__ = run.__qualname__ = name
        return _BoundCall(
            run=jax.jit(run, inline=True) if self._is_compiled else run,
            out_tree=out_tree,
            variables=variables,
            specs=tuple(to_spec(variable, traced) for variable in variables),
        )

    def _warn_of_narrowing(self, results: Sequence[tf.Tensor], tree: tree_util.PyTreeDef) -> None:
        """Warn once of each result whose dtype JAX, as it is set, does not have."""
        if not self._options.warns:
            return
        for path, result in zip(result_paths(tree), results, strict=True):
            if path in self._warned or not is_split(result):
                continue
            self._warned.add(path)
            dtype = dtype_from_name(result.dtype.name, where=path).numpy
            narrow = narrow_dtype(dtype)
            warn(
                f"{path} of {self.__name__} is {dtype}, and while jax_enable_x64 is off JAX has "
                f"{narrow}: values that it cannot hold change. To keep 64 bits call "
                "jax.config.update('jax_enable_x64', True) first; to silence this cast the result "
                f"to {narrow}."
            )

    def _to_function(
        self, traced: TracedFunction, declared: tuple[jax.ShapeDtypeStruct, ...] | None
    ) -> CompiledFunction:
        if self._is_compiled:
            return CompiledFunction(traced, traced.variables, results=declared)
        effects = self._options.has_side_effects
        effects = is_stateful(traced.concrete) if effects is None else effects
        # TensorFlow itself reads the variables.
        if self._options.graph:
            variables = traced.variables if self._takes_variables else ()
            return CompiledFunction(
                traced,
                variables,
                results=declared,
                runner=Embedding(effects, self._options.only_exported),
            )
        keeps = bool(stateful_operations(traced.concrete))
        return CompiledFunction(traced, (), results=declared, runner=Callback(effects, keeps))

    @property
    def _takes_variables(self) -> bool:
        """Return whether JAX hands over the values; else TensorFlow itself reads its variables."""
        return self._is_compiled or (self._options.graph and self._mode != "live")

    @property
    def _is_compiled(self) -> bool:
        """Return whether JAX's program has the function as StableHLO."""
        return self._options.compiled and not self._options.graph


def _to_array(leaf: Any, tree: tree_util.PyTreeDef, index: int) -> Any:
    """Return a leaf of the arguments as JAX takes it; a tensor on the CPU is not copied."""
    if isinstance(leaf, jax.Array):
        return leaf
    if isinstance(leaf, tf.Variable):
        leaf = leaf.read_value()
    if isinstance(leaf, tf.Tensor) and hasattr(leaf, "numpy"):
        return to_array(leaf)
    if isinstance(leaf, composite_tensor_classes()):
        raise ArgumentError(
            f"{argument_paths(tree)[index]} is a {type(leaf).__name__}; expected a dense tensor. "
            "To do: pass its parts, and put them together in the function, or make it dense."
        )
    if isinstance(leaf, tf.Tensor):
        raise symbolic_tensor(leaf, argument_paths(tree)[index])
    array = np.asarray(leaf)
    if array.dtype.kind in "USO":
        raise StructureError(
            f"{argument_paths(tree)[index]} is {leaf!r:.80} ({type(leaf).__name__}); expected a "
            "JAX or numpy array, a tensor or a Python number. To do: bind Python values first, as "
            "in call_tf(functools.partial(fun, name=value))."
        )
    return narrow_array(array, argument_paths(tree)[index])


def _to_spec(leaf: Any, path: str) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of the tensor that the TensorFlow function gets."""
    if is_key(leaf):
        data = key_data_aval(leaf)
        return jax.ShapeDtypeStruct(data.shape, data.dtype)
    dtype_from_name(str(leaf.dtype), where=path)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _refuse_symbols(
    specs: Sequence[jax.ShapeDtypeStruct], paths: Sequence[str], name: str, *, compiled: bool
) -> None:
    """Refuse symbolic sizes, for which only a function that stays TensorFlow's has a form."""
    for path, spec in zip(paths, specs, strict=True):
        if is_static(spec):
            continue
        why = (
            "TensorFlow compiles a function for numbers only"
            if compiled
            else "with compiled=False the function runs through a callback, which is not exported"
        )
        raise StructureError(
            f"{path} of {name} has the symbolic shape {spec.shape}, and {why}. To do: pass "
            "graph=True (call_tf_graph=True to bridge.jax2tf.call_tf), which keeps the function "
            "TensorFlow's in what is exported, and declare results whose sizes depend on symbols, "
            "as in shapes='2*b, 3'; or call a function of one row, and map that with jax.vmap; or "
            "export it once for each size."
        )


def _key_of(shape: tuple[Any, ...]) -> Hashable:
    """Return a key for a shape, since symbolic dimensions of other scopes cannot be compared."""
    scopes = [id(dim.scope) for dim in shape if not isinstance(dim, int)]
    return (str(shape), *scopes) if scopes else shape
