"""JAX functions, exported or not, and files -> what a Keras layer computes."""

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

from bridge._jax import replace_vjp
from bridge.keys import to_physical
from bridge.layer_artifact import LayerArtifact, LayerFunction, LayerWeight
from bridge.layer_computation import LayerComputation
from bridge.loaded import LoadedModel
from bridge.lowering import export_for
from bridge.parameters import check_parameters, to_variables
from bridge.save import ChainOptions, to_chain
from bridge.specifications import ArgumentSpec, specify
from bridge.trees import to_structure, unique_names
from bridge.vjp import vjp_of
from savedmodel.model import Variable
from savedmodel.read import read
from savedmodel.structures import NONE, Branch, Structure, as_tuple
from xla_call_module.call import TensorSpec
from xla_call_module.constants import HOISTED_FROM
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import ArgumentError, DtypeError, StructureError
from xla_call_module.exported import argument_paths, result_paths
from xla_call_module.platforms import DEFAULT_PLATFORMS

__all__ = [
    "ExportedSource",
    "FunctionSource",
    "Held",
    "hold",
    "read_source",
    "seed_of",
    "to_source",
]

_TRAINING = "training"
_DEFAULT = "float32"
_FLOATS = frozenset({"bfloat16", "float16", "float32", "float64"})


@dataclass(frozen=True, slots=True)
class Held:
    """What a layer holds besides its functions.

    Attributes:
        params: the pytree of the parameters; None if there are none.
        state: the pytree of the state; None if there is none.
        keys: a pytree of PRNG keys; None if the functions take none.
        trainable: a prefix of `params` with bools.
        variable_dtype: of the variables of floating-point parameters; empty for their own.
        compute_dtype: that a function takes these in, and its inputs; empty for their own.
    """

    params: Any = None
    state: Any = None
    keys: Any = None
    trainable: Any = True
    variable_dtype: str = ""
    compute_dtype: str = ""

    @property
    def params_tree(self) -> tree_util.PyTreeDef | None:
        """The structure of the parameters."""
        return None if self.params is None else tree_util.tree_structure(self.params)

    def variables(self) -> tuple[Variable, ...]:
        """The parameters and then the state, with their values."""
        found = []
        for values, trainable, root in (
            (_cast(self.params, self.variable_dtype), self.trainable, "params"),
            (self.state, False, "state"),
        ):
            if values is not None:
                made = to_variables(values, trainable, list(map(_spec_of, _leaves(values))))
                alone = tree_util.treedef_is_leaf(tree_util.tree_structure(values))
                found += [dataclasses.replace(v, name=root) if alone else v for v in made]
        names = unique_names(variable.name for variable in found)
        pairs = zip(found, names, strict=True)
        return tuple(dataclasses.replace(variable, name=name) for variable, name in pairs)

    def structures(self) -> tuple[Structure, Structure]:
        """The pytrees of parameters and state, whose leaves are indices into both together."""
        if self.params_tree is None:
            return NONE, NONE if self.state is None else to_structure(
                tree_util.tree_structure(self.state)
            )
        if self.state is None:
            return to_structure(self.params_tree), NONE
        both: Any = to_structure(tree_util.tree_structure((self.params, self.state)))
        (_, params), (_, state) = both.children
        return params, state


def _cast(params: Any, dtype: str) -> Any:
    """The parameters, with those that are floating-point numbers as others."""
    if not dtype or params is None:
        return params
    return tree_util.tree_map(lambda leaf: _cast_leaf(leaf, dtype), params)


def _cast_leaf(leaf: Any, dtype: str) -> Any:
    is_float = jax.dtypes.issubdtype(_shape_of(leaf).dtype, np.floating)
    return (
        np.asarray(leaf).astype(dtype_from_name(dtype, where="dtype").numpy) if is_float else leaf
    )


def hold(params: Any, state: Any, rng: Any, trainable: Any) -> Held:
    """What the arguments of a layer say that it holds.

    Args:
        params: a pytree of arrays.
        state: a pytree of arrays.
        rng: a pytree of typed keys, of their key data, or of seeds; a single True or a generator of
            seeds stands for one typed key.
        trainable: a prefix of `params` with bools.
    """
    keys = None
    if rng is not None and rng is not False:
        keys = tree_util.tree_map(_to_key, rng)
    return Held(params, state, keys, trainable)


def _to_key(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, jax.Array)) and np.ndim(leaf) > 0:
        return leaf
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return jax.random.key(0)


def seed_of(rng: Any) -> int | None:
    """The seed that a generator begins with; None for one that is chosen at random.

    Args:
        rng: as for `hold`, but no generator.
    """
    first = tree_util.tree_leaves(rng)[0]
    if isinstance(first, bool):
        return None
    words = np.asarray(to_physical(first), np.uint32 if np.ndim(first) else None).reshape(-1)
    seed = 0
    for word in words.tolist():
        seed = seed * 31 + int(word)
    return seed % (1 << 31)


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
            made = _to_function(exported, held, gradient_order, constants, updates=updates)
            _check_weights(made, variables, held.compute_dtype)
            return made

        training = None
        if self.training is not None:
            training = function(self.training, updates=True)
        inference = function(self.inference, updates=training is None)
        _check_same_inputs(inference, training)
        functions = [inference, *([training] if training else [])]
        if held.keys is not None and not any(found.keys for found in functions):
            raise StructureError(
                f"rng is given, and {inference.name} takes no PRNG key after "
                f"{_described(held)}. To do: leave rng out, or export a function that takes a key "
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
    leaves, tree = tree_util.tree_flatten((tuple(args), dict(kwargs)))
    specs = specify(_for_any_batch(leaves), tree, polymorphic_shapes="auto", constraints=())
    inputs, keywords = tree_util.tree_unflatten(tree, specs)
    own = tree_util.tree_map(_shape_of, tuple(leading))
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
            f"{name} cannot be exported for every batch size: {error} To do: export it with "
            "jax.export.export for the sizes that it is for, with constraints between symbolic "
            "dimensions if need be, and pass the result."
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


def _shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    dtype = leaf.dtype if isinstance(leaf, jax.Array) else np.asarray(leaf).dtype
    if not jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jax.ShapeDtypeStruct(np.shape(leaf), dtype)


def _cast_specs(specs: Any, dtype: str) -> Any:
    def cast(spec: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        is_float = jax.dtypes.issubdtype(spec.dtype, np.floating)
        return jax.ShapeDtypeStruct(spec.shape, dtype) if is_float else spec

    return tree_util.tree_map(cast, specs)


def _leaves(values: Any) -> list[Any]:
    return tree_util.tree_leaves(values)


def _spec_of(leaf: Any) -> TensorSpec:
    """What JAX makes of a leaf that is not exported yet."""
    known = isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))
    array = to_physical(leaf) if known else np.zeros(())
    shape = _shape_of(array)
    dtype = dtype_from_name(str(shape.dtype), where="a parameter")
    return TensorSpec(shape.shape, dtype, "")


def _to_function(
    exported: export.Exported,
    held: Held,
    gradient_order: int,
    constants: dict[str, np.ndarray[Any, Any]],
    *,
    updates: bool,
) -> LayerFunction:
    """A function of a layer; its arguments are told apart by what the layer holds."""
    in_tree: Any = exported.in_tree
    positional = in_tree.children()[0].children()
    parameters, state, keys, taken = 0, 0, 0, 0
    tree: Any = held.params_tree
    if tree is not None:
        if positional[:1] != [tree]:
            raise StructureError(
                f"params has the structure {tree}; the first positional argument of "
                f"{exported.fun_name} has {positional[0] if positional else 'none'}. To do: export "
                "a function whose first argument is the parameters, or leave params out."
            )
        parameters, taken = tree.num_leaves, 1
    if held.state is not None and _is_state(exported, positional[taken:], parameters, held):
        state, taken = len(_leaves(held.state)), taken + 1
    if held.keys is not None and positional[taken:]:
        count = positional[taken].num_leaves
        avals = exported.in_avals[parameters + state : parameters + state + count]
        if count and all(map(_is_key, avals)):
            keys, taken = count, taken + 1
    outputs, new_state = _results(exported, held, state, updates=updates)
    chain = _chain(exported, gradient_order, constants)
    arguments: Any = to_structure(exported.in_tree)
    (_, args), (_, kwargs) = arguments.children
    return LayerFunction(
        chain=chain,
        parameters=parameters,
        state=state,
        keys=keys,
        inputs=as_tuple([as_tuple([child for _, child in args.children[taken:]]), kwargs]),
        outputs=outputs,
        new_state=new_state,
    )


def _is_state(exported: export.Exported, positional: Any, first: int, held: Held) -> bool:
    """Whether the next argument is the state: it has its structure, shapes and dtypes."""
    tree: Any = tree_util.tree_structure(held.state)
    if positional[:1] != [tree]:
        return False
    avals = exported.in_avals[first : first + tree.num_leaves]
    return all(map(_is_alike, avals, _leaves(held.state)))


def _is_alike(aval: Any, leaf: Any) -> bool:
    shape = _shape_of(leaf)
    return (tuple(aval.shape), aval.dtype) == (shape.shape, shape.dtype)


def _is_key(aval: Any) -> bool:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return True
    return bool(aval.dtype == np.uint32 and aval.shape and aval.shape[-1] in (2, 4))


def _results(
    exported: export.Exported, held: Held, state: int, *, updates: bool
) -> tuple[Structure, tuple[int, ...]]:
    """The outputs, and which results are the new state."""
    structure = to_structure(exported.out_tree)
    if held.state is None:
        return structure, ()
    tree: Any = tree_util.tree_structure(held.state)
    out_tree: Any = exported.out_tree
    children = out_tree.children()
    is_pair = isinstance(structure, Branch) and structure.kind == "tuple" and len(children) == 2
    if is_pair and children[1] == tree:
        count = len(exported.out_avals)
        indices = range(count - tree.num_leaves, count)
        if all(map(_is_alike, (exported.out_avals[i] for i in indices), _leaves(held.state))):
            assert isinstance(structure, Branch)
            return structure.children[0][1], tuple(indices)
    if updates:
        raise StructureError(
            f"state is given, and {exported.fun_name} "
            + ("does not take it as its next argument" if not state else f"returns {out_tree}")
            + f"; expected a function of {_described(held)} and the inputs that returns (outputs, "
            f"new_state), where new_state has the structure, shapes and dtypes of state: {tree}. "
            "To do: export such a function, or pass what never changes in params, with False in "
            "trainable."
        )
    return structure, ()


def _described(held: Held) -> str:
    names = {"params": held.params, "state": held.state, "rng": held.keys}
    return ", ".join(name for name, value in names.items() if value is not None) or "nothing"


def _chain(
    exported: export.Exported, gradient_order: int, constants: dict[str, np.ndarray[Any, Any]]
) -> Any:
    options = ChainOptions(
        tensorflow=None,
        gradient_order=gradient_order,
        residuals=False,
        hoist_constants=HOISTED_FROM,
        disabled_checks=(),
        portable_linalg=True,
    )
    first, *others = to_chain(_flat(exported), options, constants)
    args, results = argument_paths(exported.in_tree), result_paths(exported.out_tree)
    constant_paths = [spec.path for spec in first.args[len(args) :]]
    first = dataclasses.replace(
        first,
        args=tuple(
            dataclasses.replace(spec, path=path)
            for spec, path in zip(first.args, (*args, *constant_paths), strict=True)
        ),
        results=tuple(
            dataclasses.replace(spec, path=path)
            for spec, path in zip(first.results, results, strict=True)
        ),
    )
    return (first, *others)


def _flat(exported: export.Exported) -> export.Exported:
    """The same in no structure, whose classes a process that loads the layer may not have."""
    flat = dataclasses.replace(
        exported,
        in_tree=tree_util.tree_structure((tuple(exported.in_avals), {})),
        out_tree=tree_util.tree_structure(tuple(exported.out_avals)),
    )
    return replace_vjp(flat, lambda: vjp_of(exported)) if exported.has_vjp() else flat


def _check_weights(
    function: LayerFunction, variables: Sequence[Variable], compute_dtype: str
) -> None:
    """Refuse parameters that the function was not exported for."""
    if compute_dtype:
        cast = dtype_from_name(compute_dtype, where="dtype")
        variables = [
            dataclasses.replace(v, dtype=cast)
            if index < function.parameters and v.dtype.name in _FLOATS
            else v
            for index, v in enumerate(variables)
        ]
    count = function.parameters + function.state
    check_parameters(function.name, function.specs[:count], variables[:count])


def _check_same_inputs(inference: LayerFunction, training: LayerFunction | None) -> None:
    """Refuse functions that are not called in the same way."""
    if training is None:
        return
    shapes = [
        [
            (str(spec), spec.path.partition("[")[0])
            for spec in function.specs[function.first_input :]
        ]
        for function in (inference, training)
    ]
    if [len(found) for found in shapes] != [len(shapes[0])] * 2:
        raise StructureError(
            f"{inference.name} takes {len(shapes[0])} input(s), and the function for training, "
            f"{training.name}, takes {len(shapes[1])}. To do: export both for the same inputs, "
            "after params, state and rng."
        )


def to_computation(
    model: Any,
    *,
    params: Any,
    state: Any,
    rng: Any,
    train: Any,
    trainable: Any,
    dtypes: tuple[str, str],
    gradient_order: int,
) -> LayerComputation:
    """What a layer is made of.

    Args:
        model: an Exported, a function, or the path of a SavedModel.
        params: as of `hold`.
        state: as of `hold`.
        rng: as of `hold`.
        train: an Exported or a function; of a path also the key of a signature.
        trainable: as of `hold`.
        dtypes: in which the layer computes, and of which its variables are.
        gradient_order: how many times it can be differentiated.

    Raises:
        InteropError: they do not fit together, or cannot cross.
    """
    source: ExportedSource | FunctionSource
    if isinstance(model, (str, os.PathLike)):
        source, in_file, flags = read_source(model, train)
        if params is None:
            params, trainable = in_file, flags if trainable is True else trainable
    else:
        source = to_source(model, train)
    variables, params = _unwrapped(params)
    states, state = _unwrapped(state)
    shared = variables | {len(tree_util.tree_leaves(params)) + i: v for i, v in states.items()}
    held = hold(params, state, rng, trainable)
    if isinstance(source, FunctionSource) and dtypes != (_DEFAULT, _DEFAULT):
        _check_widths(dtypes)
        held = dataclasses.replace(held, compute_dtype=dtypes[0], variable_dtype=dtypes[1])
    found = held.variables()
    weights = tuple(LayerWeight(v.name, v.dtype, v.shape, v.trainable) for v in found)
    values = tuple(variable.to_numpy() for variable in found)
    if isinstance(source, ExportedSource):
        _check_policy(source, dtypes[0])
        artifact, constants = source.to_artifact(held, gradient_order)
        return LayerComputation(
            weights=weights, values=values, artifact=artifact, constants=constants, shared=shared
        )

    def export_for_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return source.to_exported(held, args, kwargs).to_artifact(held, gradient_order)

    return LayerComputation(
        weights=weights,
        values=values,
        export=export_for_inputs,
        shared=shared,
        trees=held.structures(),
    )


def _check_widths(dtypes: Sequence[str]) -> None:
    """Refuse dtypes that JAX would narrow."""
    for name in dtypes:
        dtype = dtype_from_name(name, where="the layer's dtype policy").numpy
        if jax.dtypes.canonicalize_dtype(dtype) != dtype:
            raise DtypeError(
                f"The layer's dtype policy asks for {name}, which JAX makes {_DEFAULT} of while "
                "jax_enable_x64 is off. To do: jax.config.update('jax_enable_x64', True), or pass "
                "dtype='float32' to the layer."
            )


def _unwrapped(tree: Any) -> tuple[dict[int, Any], Any]:
    """The variables among the leaves by their index, and the pytree with values instead."""
    leaves, structure = tree_util.tree_flatten(tree)
    found = {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "assign")}
    values = [np.asarray(leaf) if i in found else leaf for i, leaf in enumerate(leaves)]
    return found, tree_util.tree_unflatten(structure, values)


def _check_policy(source: ExportedSource, compute_dtype: str) -> None:
    """Refuse a dtype policy that asks for another dtype than the functions were exported in."""
    if compute_dtype == _DEFAULT:
        return
    exported = source.inference
    dtypes = {str(aval.dtype) for aval in (*exported.in_avals, *exported.out_avals)}
    if compute_dtype in dtypes:
        return
    name = exported.fun_name
    raise DtypeError(
        f"The layer's dtype policy computes in {compute_dtype}, and {name} was exported for other "
        "dtypes, which stay as they are. To do: pass dtype='float32' to the layer, export the "
        f"function for {compute_dtype}, or pass the function itself, which the layer exports in "
        "its own dtype."
    )
