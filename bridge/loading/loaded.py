"""`LoadedSignature`: a signature of a SavedModel as a JAX function, without TensorFlow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax import export, tree_util
from jax.sharding import Mesh, NamedSharding

from bridge.core._jax import transformation_query
from bridge.core.backend import require_own_runtime
from bridge.core.keys import to_logical
from bridge.core.progress import progress_bar
from bridge.loading.arguments import Arguments, Sizes
from bridge.loading.binding import BoundExported, bind
from bridge.loading.calling import call_flat, gradient_source
from bridge.loading.exported_from_call import exported_from_call
from bridge.loading.placing import OnMesh, place_variable
from savedmodel.model import SavedModel, Signature, Variable
from xla_call_module._autograph import exempt_from_autograph
from xla_call_module._jax import is_runtime_inherited
from xla_call_module.checks import DisabledCheck, unite
from xla_call_module.dimensions import aval_text
from xla_call_module.dtypes import Array
from xla_call_module.errors import InteropError, StructureError, quote
from xla_call_module.exported import from_exported
from xla_call_module.flags import read_flags
from xla_call_module.pytrees.tree_restoring import missing_classes
from xla_call_module.stablehlo.refining import refine
from xla_call_module.tracebacks import api_boundary, leave_out_frames, warn

# The number of shapes that a function was not exported for, and for which it is kept.
_MAX_REFINED = 16
_is_outside_transformations = transformation_query()
# Positional and keyword arguments -> the results, or NotImplemented.
_PlainCall = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]


def _never(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return NotImplemented: nothing has been called with all checks yet."""
    del args, kwargs
    return NotImplemented


class LoadedSignature:
    """A signature of a SavedModel as a JAX function whose parameters are bound.

    A call runs the module that was saved, bit for bit. It can be called under every transformation
    of JAX, which are made of the lifted function (see `bridge.to_jax`): `jax.vmap` is one batched
    program, `jax.jvp`, `jax.linearize`, `jax.jacfwd` and `jax.hessian` are its derivatives. In
    reverse mode the VJPs that were saved come first, since they know the `jax.custom_vjp` of the
    author; `gradient_source` tells which orders these are.

    Where an operation cannot be lifted, and on a mesh, `jax.vmap` calls it for one element after
    another, and there are the gradients that were saved, in reverse mode.

    The parameters are constants in all of these; to differentiate with respect to them call
    `exported.call(params, ...)`. What assigns them in TensorFlow returns their new values, too, as
    the function that was exported; `LoadedModel.stateful` keeps them.

    Attributes:
        key: the key of the signature.
        call_plain: the call of arguments that need no other checks than those of JAX; it returns
            NotImplemented for all others, and for what JAX refuses.
    """

    key: str

    def __init__(
        self,
        signature: Signature,
        model: SavedModel,
        values: VariableValues,
        mesh: Mesh | None = None,
    ) -> None:
        """Take over the value of a signature."""
        self.key = signature.key
        self._mesh = mesh
        self._signature = signature
        self._model = model
        self._values = values
        self._refined: dict[Sizes, Any] = {}
        self.call_plain: _PlainCall = _never

    @property
    def is_plain(self) -> bool:
        """Whether TensorFlow runs its own operations, and XLA compiles nothing."""
        return bool(self._signature.function.operations)

    @property
    def is_exact(self) -> bool:
        """Whether NaN, signs of zeros and integers divided by 0 are as in JAX."""
        return all(graph.exact for graph in self._signature.function.operations)

    @property
    @api_boundary
    def exported(self) -> export.Exported:
        """The `Exported` that was saved; its first argument is the parameters, if it has any.

        Its module means what the exported one meant; `changes` says what was done to it. Constants
        that are variables in the file, and what a backward pass is handed in TensorFlow, are in it
        again. On a mesh it is for that mesh: `exported.in_shardings_jax(mesh)` says how the
        arguments lie on it, and `exported.call` takes arrays that lie so.

        Raises:
            FormatError: it is damaged.
            ShardingError: it cannot run on the mesh.
            StructureError: a pytree type of an older file is not registered for serialization in
                this process.
            VersionError: a newer JAX wrote it.

        Warns:
            UserWarning: a class of its arguments or results is not imported; it has a stand-in.
        """
        return self.binding.exported

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes that saving made to the module, in words; none if it is as exported."""
        return self._signature.function.call.changes

    @property
    @api_boundary
    def params(self) -> Any:
        """The pytree of the parameters as read-only numpy arrays, or None.

        On a mesh they are JAX's arrays and lie on it; those that were donated are read again.

        Raises:
            FormatError: a value is damaged.
        """
        if self.binding.params is None:
            return None
        if _is_any_deleted(self._leaves):
            del self._leaves
        return tree_util.tree_unflatten(self.binding.params, self._leaves)

    @cached_property
    def _leaves(self) -> list[Any]:
        # A tracer must not be remembered.
        with jax.ensure_compile_time_eval():
            return self._parameters(self._values.host)

    @cached_property
    @api_boundary
    def inputs(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """The spec of each input by its name in the signature, in the order of the arguments."""
        return _specs(self.binding.inputs, self.exported.in_avals)

    @cached_property
    @api_boundary
    def outputs(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """The spec of each output by its name in the signature, in the order of the results."""
        return _specs(self.binding.outputs, self.exported.out_avals)

    @property
    def file(self) -> SavedModel:
        """The value of the file that the signature is of."""
        return self._model

    @cached_property
    def binding(self) -> BoundExported:
        """The exported function, and which of its leaves are parameters, inputs and outputs."""
        bound = bind(self._signature, self._model, self._flags, self._mesh)
        self._values.warn_of_missing(bound.exported)
        return bound

    @property
    def variable_names(self) -> tuple[str, ...]:
        """A name for each leaf of the parameters that only its variable has; empty if it has none.

        Where several have one name, as jax2tf leaves them, it is followed by dtype and shape, such
        as `Variable float32[3,2]`.
        """
        plain = [variable.name for variable in self._model.variables]
        full = [f"{v.name} {aval_text(v.dtype.name, v.shape)}" for v in self._model.variables]

        times, full_times = Counter(plain), Counter(full)

        def name(index: int) -> str:
            if times[plain[index]] == 1:
                return plain[index]
            return full[index] if full_times[full[index]] == 1 else ""

        return tuple("" if i is None else name(i) for i in self.binding.variables)

    @exempt_from_autograph
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and return its results as a pytree."""
        try:
            found = self.call_plain(args, kwargs)
            return self.call_checked(args, kwargs) if found is NotImplemented else found
        except Exception as error:
            leave_out_frames(error)
            raise

    def call_checked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function with all checks, and call arguments of the same kind without them."""
        results, tree = self.call_on({}, args, kwargs)
        if self._mesh is None and (types := self._arguments.plain_types(args, kwargs)) is not None:
            self.call_plain = self._plain_call(types)
        return tree_util.tree_unflatten(tree, results)

    def _plain_call(self, types: frozenset[type]) -> _PlainCall:
        """Return the call of arrays of these types, which JAX checks as much as this package would.

        It does not refer to the signature, so that the arrays go with the last name of that.
        """
        run = partial(self._run, *self._device_parameters)
        out_tree: Any = self.exported.out_tree  # the stub of its class lacks `unflatten`
        in_tree, unflatten = self._arguments.tree, out_tree.unflatten
        is_flat = in_tree == tree_util.tree_structure(((0,) * in_tree.num_leaves, {}))
        count = in_tree.num_leaves if is_flat else -1

        def call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            try:
                leaves: Sequence[Any] = args
                if kwargs or len(args) != count:
                    leaves, tree = tree_util.tree_flatten((args, kwargs))
                    if tree != in_tree:
                        return NotImplemented
                if types.issuperset(map(type, leaves)) and not is_runtime_inherited():
                    return unflatten(run(*leaves))
            except Exception:  # noqa: BLE001 - the call with all checks raises it
                pass
            return NotImplemented

        return call

    def call_on(
        self, state: Mapping[int, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Sequence[Any], tree_util.PyTreeDef]:
        """Return the flat results, and their structure, with other values for some variables.

        Args:
            state: values by the indices of variables; the others have those in the file.
            args: positional arguments, as of a call.
            kwargs: keyword arguments, as of a call.

        Raises:
            InteropError: as of a call.
        """
        if _is_outside_transformations():
            require_own_runtime(f"what {self.key} returns")
        if not args and self._signature.defaults and kwargs.keys() <= self._signature.inputs.keys():
            kwargs = {**self._signature.defaults, **kwargs}
        leaves, match = self._arguments.flatten(args, kwargs)
        if self._on_mesh is not None:
            leaves = self._on_mesh.inputs(leaves, len(self.binding.variables))
        sizes = self._arguments.other_shapes(leaves)
        run = self._run if sizes is None else self._run_for(sizes)
        if self._mesh is not None and _is_any_deleted(self._device_parameters):
            del self._device_parameters
        try:
            results = run(*self._with_state(self._device_parameters, state), *leaves)
        except (ValueError, TypeError) as error:
            if isinstance(error, InteropError):
                raise
            raise StructureError(
                f"JAX cannot call {self.key} in this way: {quote(error)}. To do: call it with "
                "arrays of the shapes that it was exported for."
            ) from error
        return results, match.results(self.exported.out_tree)

    def params_from(self, state: Mapping[int, Any]) -> Any:
        """Return the pytree of the parameters, with other values for some variables."""
        if self.binding.params is None:
            return None
        leaves = self._with_state(tree_util.tree_leaves(self.params), state)
        return tree_util.tree_unflatten(self.binding.params, leaves)

    def _with_state(self, leaves: Sequence[Any], state: Mapping[int, Any]) -> list[Any]:
        """Return the leaves of the parameters, with other values for some variables."""
        values = []
        for position, (leaf, variable) in enumerate(
            zip(leaves, self.binding.variables, strict=True)
        ):
            if variable is None or variable not in state:
                values.append(leaf)
            elif self._on_mesh is None:
                values.append(state[variable])
            else:
                values.append(jax.device_put(state[variable], self._on_mesh.of_parameter(position)))
        return values

    @api_boundary
    def gradient_source(self, order: int = 1) -> str:
        """Return where the gradient of an order comes from in reverse mode.

        `jax.grad` takes the VJP of order 1, `jax.jacrev(jax.grad(...))` that of order 2, and so on.

        Args:
            order: the order, from 1 on.

        Returns:
            "saved" for a VJP of the file, which has the `jax.custom_vjp` of the author; "lifted"
            for one that was made of the operations of a module, when it was saved or by JAX now.
            A lifted one has no `custom_vjp`, and goes through `jax.lax.stop_gradient`.

        Raises:
            StructureError: there is no such gradient; the message says why.
            ArgumentError: it is no order.

        Example:
            >>> import bridge, jax, jax.numpy as jnp
            >>> exported = jax.export.export(jax.jit(jnp.sin))(jnp.ones(3))
            >>> saved = bridge.save(exported, "sines", gradient_order=1)
            >>> signature = bridge.load("sines").default
            >>> signature.gradient_source(1), signature.gradient_source(2)
            ('saved', 'lifted')
        """
        source = gradient_source(self.exported, order, name=self.key)
        chain = self._signature.function.chain
        return chain[order].gradient_source if order < len(chain) else source

    def __repr__(self) -> str:
        """The key and what the module takes."""
        call = self._signature.function.call
        ordered = sorted(self._signature.inputs.items(), key=lambda item: item[1])
        inputs = ", ".join(f"{name}: {call.args[index]}" for name, index in ordered)
        return f"{self.key}({inputs})"

    @cached_property
    def _on_mesh(self) -> OnMesh | None:
        return None if self._mesh is None else OnMesh(self.key, self.exported, self._mesh)

    @cached_property
    def _flags(self) -> tuple[DisabledCheck, ...]:
        """The checks that TF_XLA_FLAGS disables, as TensorFlow would have it."""
        return read_flags().disabled_checks

    @cached_property
    def _arguments(self) -> Arguments:
        checks = unite(self._signature.function.call.disabled_checks, self._flags)
        device = None if self._mesh is None else self._mesh.devices.flat[0]
        padded = self._signature.function.batch_buckets
        sizes = () if padded is None else padded.sizes
        return Arguments(self.key, self.binding, checks, device, sizes)

    @cached_property
    def _run(self) -> Any:
        return self._jit(call_flat(self.exported, name=self.key))

    def _jit(self, flat: Callable[..., Any]) -> Any:
        if self._on_mesh is None:
            return jax.jit(flat)
        on_mesh, count = self._on_mesh, len(self.binding.variables)
        parameters = tuple(on_mesh.of_parameter(position) for position in range(count))
        return jax.jit(
            on_mesh.with_devices(flat), in_shardings=(*parameters, *on_mesh.shardings[count:])
        )

    def _run_for(self, sizes: Sizes) -> Any:
        """Return the function for arguments of other shapes than it was exported for."""
        if sizes not in self._refined:
            call = from_exported(self.exported, allow_flat_trees=True)
            shapes = [tuple(size or 0 for size in sizes[index]) for index in call.kept]
            flat = call_flat(exported_from_call(refine(call, shapes)), name=self.key)
            if len(self._refined) >= _MAX_REFINED:
                self._refined.pop(next(iter(self._refined)))
            self._refined[sizes] = self._jit(lambda *leaves: flat(*(leaves[i] for i in call.kept)))
        return self._refined[sizes]

    @cached_property
    def _device_parameters(self) -> list[Any]:
        # A tracer must not be remembered.
        with jax.ensure_compile_time_eval():
            return self._parameters(self._values.device, self.binding.taken)

    def _parameters(
        self, value_of: Callable[[int], Any], needed: Container[int] | None = None
    ) -> list[Any]:
        """Return the leaves of the parameters, with zeros for those that are not needed."""
        leaves = []
        avals = self.exported.in_avals
        variables = self._model.variables
        sizes = [0 if i is None else variables[i].size for i in self.binding.variables]
        done = 0
        with progress_bar("Loading") as progress:
            for position, variable in enumerate(self.binding.variables):
                if variable is None or (needed is not None and position not in needed):
                    leaves.append(self._zeros(position, avals[position]))
                elif self._on_mesh is None:
                    leaves.append(to_logical(value_of(variable), avals[position]))
                else:
                    sharding = self._on_mesh.of_parameter(position)
                    placed = self._values.placed(variable, sharding)
                    leaves.append(to_logical(placed, avals[position]))
                done += sizes[position]
                if progress is not None:
                    progress(done, sum(sizes))
        return leaves

    def _zeros(self, position: int, aval: Any) -> Any:
        return _zeros(aval) if self._on_mesh is None else self._on_mesh.zeros(position, aval)


class VariableValues:
    """The values of a file's variables, which its signatures share, each of them read once."""

    def __init__(self, variables: Sequence[Variable]) -> None:
        self._variables = variables
        self._device: dict[int, jax.Array] = {}
        self._placed: dict[tuple[int, NamedSharding], jax.Array] = {}
        self._missing: set[str] = set()

    def warn_of_missing(self, exported: export.Exported) -> None:
        """Warn once of each class that this process has not imported."""
        trees = (exported.in_tree, exported.out_tree)
        missing = {path for tree in trees for path in missing_classes(tree)} - self._missing
        if not missing:
            return
        self._missing |= missing
        warn(
            f"The pytrees of {exported.fun_name} have classes that this process has not imported, "
            f"or that have other fields here: {', '.join(sorted(missing))}. Classes with the same "
            "fields stand in for them. To do: import them before bridge.load; on the command line, "
            "by --import.",
        )

    def host(self, index: int) -> Array:
        """Return the value of a variable as a read-only array."""
        return self._variables[index].shared()

    def device(self, index: int) -> jax.Array:
        """Return the value on JAX's default device; on a CPU it is the same memory."""
        if index not in self._device:
            self._device[index] = jax.device_put(self.host(index))
        return self._device[index]

    def placed(self, index: int, sharding: NamedSharding) -> jax.Array:
        """Return the value on a mesh, of which each device has read its part."""
        array = self._placed.get((index, sharding))
        if array is None or array.is_deleted():
            array = self._placed[index, sharding] = place_variable(self._variables[index], sharding)
        return array


def _is_any_deleted(leaves: Sequence[Any]) -> bool:
    """Return whether a caller has donated an array, which the model shares with its callers."""
    return any(isinstance(leaf, jax.Array) and leaf.is_deleted() for leaf in leaves)


def _zeros(aval: Any) -> Any:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return jax.numpy.zeros(aval.shape, aval.dtype)
    return np.zeros(aval.shape, aval.dtype)


def _specs(indices: Mapping[str, int], avals: Sequence[Any]) -> Mapping[str, jax.ShapeDtypeStruct]:
    ordered = sorted(indices.items(), key=lambda item: item[1])
    return MappingProxyType(
        {name: jax.ShapeDtypeStruct(avals[i].shape, avals[i].dtype) for name, i in ordered}
    )
