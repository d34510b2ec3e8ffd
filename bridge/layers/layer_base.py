"""`LayerBase`: the part of an `ExportedLayer` that Keras 3 and tf-keras have in common.

A layer is this class and a framework's own. The abstract methods are those in which the frameworks
differ; nothing here imports one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from bridge.core.operations_option import OperationsOption
from bridge.layers.artifact import LayerFunction, LayerWeight, StaticShape
from bridge.layers.computation import LayerComputation, MakeRun, check_cast
from bridge.layers.config_text import decode_artifact, encode_artifact
from xla_call_module._autograph import exempt_from_autograph
from xla_call_module.dtypes import Array
from xla_call_module.errors import (
    ArgumentError,
    FormatError,
    MissingDependencyError,
    StructureError,
)
from xla_call_module.stablehlo.unique_names import scope_names
from xla_call_module.tracebacks import api_boundary
from xla_call_module.versions import Release

# The name that classes are registered under, which is in files.
PACKAGE = "bridge"
_CURE = "pip install jax, or load a model that was saved where it is installed"
_SEED = "seed_generator_state"
_OWN_KEYWORDS = frozenset({"mask", "training"})


class InitialValues:
    """The initial values of a layer's weights, which clones of it get, and files do not."""

    def __init__(self, computation: LayerComputation | None = None) -> None:
        """Take over values; a layer from a file has none."""
        self.computation = computation

    def get_config(self) -> dict[str, Any]:
        """Return an empty config: a file has the values of the weights."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> InitialValues:
        """Return an object without values."""
        del config
        return cls()


@exempt_from_autograph  # a `tf.function` of a layer itself asks its class
class LayerBase:
    """A layer that calls a `LayerComputation`, but for what its framework has."""

    built: bool
    name: str
    trainable: bool
    compute_dtype: str
    variable_dtype: str
    _computation: LayerComputation
    _held: list[Any]  # the checkpoints of TensorFlow have this name
    _constants: list[Any]
    _seeds: Any

    @abstractmethod
    def _shape_and_dtype(self, leaf: Any) -> tuple[StaticShape | None, str]:
        """Return the shape of an input, None where its rank is not known, and its dtype."""

    @abstractmethod
    def _make_weight(self, weight: LayerWeight, value: Any, *, name: str, is_state: bool) -> Any:
        """Return a variable with an initial value, or with zeros where that is None."""

    @abstractmethod
    def _make_constant(self, constant: LayerWeight, value: Any) -> Any:
        """Return a variable for a constant, whose value is remembered."""

    @abstractmethod
    def _value(self, variable: Any) -> Any:
        """Return the value of a variable, as a function takes it."""

    @abstractmethod
    def _stop_gradient(self, value: Any) -> Any:
        """Return the value without its gradient."""

    @abstractmethod
    def _read(self, variables: Sequence[Any]) -> list[Array]:
        """Return the values of variables, also where a graph is built."""

    @abstractmethod
    def _make_run(self) -> MakeRun:
        """Return the function that makes a `Run` for the backend."""

    @abstractmethod
    def _installed(self) -> Release | None:
        """Return the imported TensorFlow; None where the backend is another one."""

    @abstractmethod
    def _draw(self, shape: Sequence[int]) -> Any:
        """Return new data of PRNG keys, uint32 of a shape."""

    @abstractmethod
    def _seed_state(self) -> Any:
        """Return the variable that the keys are drawn from."""

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs for inputs, as any layer does."""
        self._export_for(args, kwargs)
        self._remember_constants()
        layer: Any = super()  # the framework's own class comes next
        return layer.__call__(*args, **kwargs)

    @property
    def params(self) -> Any:
        """The pytree of the parameters as variables; a named tuple is a tuple there.

        Passed as `params` to another layer, the two share them.
        """
        return self._computation.params(self._held)

    @property
    def state(self) -> Any:
        """The pytree of the state as variables."""
        return self._computation.state(self._held)

    def _set_up(
        self,
        exported: Any,
        *,
        gradient_order: int,
        tensorflow: str | None,
        operations: OperationsOption,
        **given: Any,
    ) -> None:
        """Make the weights of the layer."""
        if not isinstance(exported, LayerComputation):
            try:
                from bridge.layers.layer_export import to_computation
                from bridge.layers.layer_functions import LayerTarget
            except ModuleNotFoundError as error:
                raise MissingDependencyError(
                    f"Making an ExportedLayer needs JAX, which is not installed. To do: {_CURE}."
                ) from error

            target = LayerTarget(gradient_order, tensorflow, self._installed(), operations)
            dtypes = (self.compute_dtype, self.variable_dtype)
            exported = to_computation(exported, dtypes=dtypes, target=target, **given)
        self._computation = exported
        values, first_state = exported.values, exported.parameters
        names = scope_names(weight.name for weight in exported.weights)
        self._held = [
            exported.shared[index]
            if index in exported.shared
            else self._make_weight(
                weight,
                None if values is None else values[index],
                name=names[index],
                is_state=index >= first_state,
            )
            for index, weight in enumerate(exported.weights)
        ]
        self._track(exported.weights, self._held)
        self._constants = self._make_constants() if exported.is_ready else []

    def _make_constants(self) -> list[Any]:
        known, constants = self._computation.constants, self._computation.artifact.constants
        made = [self._make_constant(one, known.get(one.name)) for one in constants]
        self._track(constants, made)
        return made

    def _track(self, weights: Sequence[LayerWeight], variables: Sequence[Any]) -> None:
        """Have checkpoints find variables, where the framework does not look for them in lists."""

    def _export_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Export the function for the arguments of the layer, unless it is exported."""
        if self._computation.is_ready:
            return
        from jax import tree_util

        from bridge.exporting.specifications import ArgumentSpec

        def describe(leaf: Any) -> ArgumentSpec:
            shape, dtype = self._shape_and_dtype(leaf)
            is_float = dtype in ("bfloat16", "float16", "float32", "float64")
            return ArgumentSpec("an input", shape, self.compute_dtype if is_float else dtype, None)

        passes_mask = self._computation.takes_mask and kwargs.get("mask") is not None
        own = _OWN_KEYWORDS - {"mask"} if passes_mask else _OWN_KEYWORDS
        named = {key: value for key, value in kwargs.items() if key not in own}
        self._computation.prepare(*tree_util.tree_map(describe, (tuple(args), named)))
        self._constants = self._make_constants()

    def _inputs(
        self, function: LayerFunction, args: Sequence[Any], named: Mapping[str, Any]
    ) -> list[Any]:
        """Return the leaves of the inputs, whose dtypes can be cast to those of the function."""
        leaves = function.flatten_inputs(self.name, args, named)
        described = list(map(self._shape_and_dtype, leaves))
        specs = function.specs[function.first_input :]
        for (_, dtype), spec in zip(described, specs, strict=True):
            check_cast(spec, dtype, self.name)
        function.bind([shape for shape, _ in described])
        return leaves

    def _compute(self, args: Sequence[Any], named: Mapping[str, Any], training: Any) -> Any:
        """Return the outputs for inputs that are tensors; the state is updated in training."""
        training = is_training(training, self.name)
        function, run = self._computation.runner(self._make_run(), training=training)
        leaves = self._inputs(function, args, named)
        arguments = self._held[: function.parameters + function.state]
        keys = [self._draw(spec.static_shape or ()) for spec in function.key_specs]  # type: ignore[arg-type]  # keys have static shapes
        results = run([*(self._operand(function, x) for x in arguments), *keys, *leaves])
        if training:
            states = self._held[function.parameters :]
            for variable, index in zip(states, function.new_state, strict=False):
                variable.assign(results[index])
        return function.unflatten_outputs(results)

    def _operand(self, function: LayerFunction, variable: Any) -> Any:
        """Return the value of a variable as a function takes it, without a gradient if need be.

        TensorFlow goes back through all that its tape has watched, frozen variables too, and would
        meet the refusal of a function without a gradient.
        """
        value = self._value(variable)
        frozen = not (self.trainable and variable.trainable)
        return self._stop_gradient(value) if frozen and len(function.chain) == 1 else value

    def _remember_constants(self) -> None:
        """Keep the values of the weights that are constants, unless they are known."""
        if self._computation.constants_are_known:
            return
        values = self._read(self._constants)
        for constant, value in zip(self._computation.artifact.constants, values, strict=True):
            self._computation.remember(constant, value)

    def _masks(self, inputs: Any, leaves: Sequence[Any], masks: Sequence[Any]) -> Any:
        """Return the mask of the first masked input for the outputs that have its leading axes."""
        pairs = {id(leaf): mask for leaf, mask in zip(leaves, masks, strict=False)}
        function = self._computation.artifact.inference
        if self._computation.takes_mask and "mask" not in function.keywords:
            raise StructureError(
                f"The input of the layer {self.name} has a mask, and {function.name} takes one, "
                "but the layer was first called without it. To do: pass it, as in layer(x, "
                "mask=embedding.compute_mask(tokens)), or leave the parameter out."
            )
        return function.output_masks(self.name, inputs, lambda leaf: pairs.get(id(leaf)))

    def save_own_variables(self, store: Any) -> None:
        """Put the weights under their pytree paths, the constants under their hashes."""
        for weight, variable in self._named_weights():
            store[quote(weight.name, safe="")] = variable
        if self._seeds is not None:
            store[_SEED] = self._seed_state()

    def load_own_variables(self, store: Any) -> None:
        """Take the weights from where `save_own_variables` put them.

        Raises:
            FormatError: one is missing, or of another shape.
        """
        keys = set(store.keys())
        for weight, variable in self._named_weights():
            key = quote(weight.name, safe="")
            if key not in keys:
                raise FormatError(
                    f"The file has no weight {weight.name} for the layer {self.name}. To do: load "
                    "it into the model that it was saved from."
                )
            value = np.asarray(store[key])
            if value.dtype.kind == "V":  # HDF5 has no name for the dtype, and the bits alone
                value = value.view(weight.dtype.numpy)
            if value.shape != weight.shape:
                raise FormatError(
                    f"The weight {weight.name} of the layer {self.name} has the shape "
                    f"{value.shape} in the file; expected {weight.shape}."
                )
            variable.assign(value)
        self._remember_constants()
        if self._seeds is not None and _SEED in keys:
            self._seed_state().assign(np.asarray(store[_SEED]))

    def _named_weights(self) -> list[tuple[LayerWeight, Any]]:
        artifact = self._computation.artifact
        weights = (*artifact.weights, *artifact.constants)
        return list(zip(weights, [*self._held, *self._constants], strict=True))

    def _own_config(self, values: InitialValues) -> dict[str, Any]:
        """Return the part of the config that `_read_config` reads."""
        return {"artifact": encode_artifact(self._computation.artifact), "values": values}

    @staticmethod
    def _read_config(config: Mapping[str, Any]) -> tuple[LayerComputation, dict[str, Any]]:
        """Return the computation of a config, and its other entries.

        The weights are those that the layer began with if it is a clone in the same process. A
        layer from a file gets the file's; until then they are zeros.
        """
        rest = dict(config)
        artifact = decode_artifact(rest.pop("artifact", None))
        values = rest.pop("values", None)
        known = values.computation if isinstance(values, InitialValues) else None
        computation = LayerComputation(
            weights=artifact.weights,
            values=None if known is None else known.values,
            artifact=artifact,
            constants=None if known is None else known.constants,
        )
        return computation, rest


def is_training(training: Any, layer: str) -> bool:
    """Return whether a layer is called for training."""
    try:
        return bool(training)
    except TypeError as error:  # a symbolic tensor, or what JAX traces
        raise ArgumentError(
            f"The argument training of {layer} is {type(training).__name__}, whose value is not "
            "known while a function is traced; expected True or False. To do: pass a bool, or "
            "choose between two calls with tf.cond or jax.lax.cond."
        ) from error
