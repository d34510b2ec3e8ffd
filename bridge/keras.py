"""`ExportedLayer`: what was exported from JAX as a layer of Keras 3, on TensorFlow and on JAX.

The layer is saved as an artifact: StableHLO and its derivatives are in the file, so that the
process that loads it needs this module and nothing of the code that the layer was made of; on
Keras' TensorFlow backend not even JAX.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from bridge.layer_artifact import LayerFunction, LayerWeight
from bridge.layer_computation import LayerComputation, check_cast
from bridge.layer_text import decode_artifact, encode_artifact
from xla_call_module.errors import FormatError, MissingDependencyError, PlatformError

try:
    import keras
except ImportError as error:
    raise MissingDependencyError(
        "bridge.keras needs Keras 3, which is not installed. To do: pip install "
        "'jax-tf-bridge[keras]'."
    ) from error

__all__ = ["ExportedLayer"]

_PACKAGE = "bridge"
_BACKENDS = ("tensorflow", "jax")
_SEED = "seed_generator_state"


@keras.saving.register_keras_serializable(package=_PACKAGE)
class InitialValues:
    """What a layer's weights begin with. It is handed on to clones, and not to files."""

    def __init__(self, computation: LayerComputation | None = None) -> None:
        """Take over values; none in what was read from a file."""
        self.computation = computation

    def get_config(self) -> dict[str, Any]:
        """Nothing: a file has the values of the weights."""
        return {}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> InitialValues:
        """What a file has of it: nothing."""
        del config
        return cls()


@keras.saving.register_keras_serializable(package=_PACKAGE)
class ExportedLayer(keras.layers.Layer):  # type: ignore[misc]  # Keras has no type information
    """A JAX function as a layer of Keras 3.

    The function takes what the layer is given, in the order of JAX's own libraries, and then the
    inputs: `f(params, state, rng, *inputs)`, without those that are not given. It returns its
    outputs; where there is a state, `(outputs, new_state)`. A function for inference that has one
    for training beside it may leave out `state` and `rng`, and return the outputs alone.

    Args:
        exported: a `jax.export.Exported`; a function of JAX arrays, which the layer exports for
            any batch size when it is first called; or the path of a SavedModel that `bridge.save`
            wrote, whose default signature and parameters are taken. A function with a parameter
            `training` is exported with both of its values.
        params: the pytree of the parameters: arrays, or the variables of another layer, which are
            then shared. The weights are named by their paths in it.
        trainable: whether the layer is trainable, as of any layer; or a prefix of `params` with
            bools. Integers are never trained.
        state: a pytree of arrays that training replaces by those that the function returns, such as
            the statistics of batch normalization.
        rng: a seed, a PRNG key, a pytree of these, or a `keras.random.SeedGenerator`; True for a
            seed that is chosen at random. At each call the function gets keys that a generator of
            seeds draws: typed ones, unless key data is passed here.
        train: what the layer calls with `training=True`: another Exported or function; with a
            path also the key of a signature.
        gradient_order: how many times the layer can be differentiated.
        kwargs: `name`, `dtype` and others of `keras.layers.Layer`. Under a dtype policy such as
            `mixed_bfloat16` a function is exported for it; what is exported already for other
            dtypes is refused.

    Raises:
        InteropError: the function does not fit what it is given, or cannot cross.

    Example:
        >>> import jax, jax.numpy as jnp, keras, numpy as np
        >>> from bridge.keras import ExportedLayer
        >>> params = {"dense": {"kernel": np.ones((3, 2), "float32"), "bias": np.zeros(2)}}
        >>> def dense(params, x):
        ...     return jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"])
        >>> model = keras.Sequential([keras.Input((3,)), ExportedLayer(dense, params=params)])
        >>> [weight.path for weight in model.weights]
        ['exported_layer/dense/bias', 'exported_layer/dense/kernel']
        >>> model.compile("sgd", "mean_squared_error")
        >>> history = model.fit(np.ones((8, 3)), np.zeros((8, 2)), verbose=0)
        >>> model.save("my_model.keras")  # loads wherever bridge.keras is imported
    """

    def __init__(
        self,
        exported: Any,
        *,
        params: Any = None,
        trainable: Any = True,
        state: Any = None,
        rng: Any = None,
        train: Any = None,
        gradient_order: int = 1,
        **kwargs: Any,
    ) -> None:
        if keras.backend.backend() not in _BACKENDS:
            raise PlatformError(
                f"Keras runs on its {keras.backend.backend()} backend; expected one of "
                f"{', '.join(_BACKENDS)}. To do: set KERAS_BACKEND before Keras is imported."
            )
        as_a_whole = trainable if isinstance(trainable, bool) else True
        super().__init__(trainable=as_a_whole, autocast=False, **kwargs)
        self.supports_masking = True
        seeds = rng if isinstance(rng, keras.random.SeedGenerator) else None
        if isinstance(exported, LayerComputation):
            self._computation = exported
        else:
            from bridge.layer_export import seed_of, to_computation

            self._computation = to_computation(
                exported,
                params=params,
                state=state,
                rng=rng if seeds is None else True,
                train=train,
                trainable=True if isinstance(trainable, bool) else trainable,
                dtypes=(self.compute_dtype, self.variable_dtype),
                gradient_order=gradient_order,
            )
            if rng is not None and rng is not False and seeds is None:
                seeds = keras.random.SeedGenerator(seed_of(rng))
        self._seeds = seeds
        self._held = self._make_weights()
        self._constants: list[Any] = []
        if self._computation.is_ready:
            self._constants = self._make_constants()
        self.built = True

    @property
    def params(self) -> Any:
        """The pytree of the parameters as Keras variables; a named tuple is a tuple there."""
        return self._computation.params(self._held)

    @property
    def state(self) -> Any:
        """The pytree of the state as Keras variables."""
        return self._computation.state(self._held)

    def build(self, input_shape: Any) -> None:
        """Export the function for inputs of a shape, and of the dtype that the layer computes in.

        A layer that is called exports it for what it is called with.
        """
        if not self._computation.is_ready:
            leaf = keras.tree.map_shape_structure(
                lambda shape: keras.KerasTensor(shape, self.compute_dtype), input_shape
            )
            self._prepare((leaf,), {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for inputs, as of any layer."""
        if not self._computation.is_ready:
            named = {k: v for k, v in kwargs.items() if k not in ("training", "mask")}
            self._prepare(args, named)
        if keras.backend.backend() == "jax":
            self._remember_constants()
        return super().__call__(*args, **kwargs)

    def call(self, inputs: Any, *more: Any, training: Any = None, **named: Any) -> Any:
        """The outputs for inputs that are tensors."""
        if not self._computation.constants_are_known:
            self._remember_constants()
        training = bool(training)
        function, run = self._computation.runner(_to_run(), training=training)
        leaves = self._inputs(function, inputs, more, named)
        held = self._held[: function.parameters + function.state]
        operands = [variable.value for variable in held]
        operands += [self._draw(spec.shape) for spec in function.key_specs]
        results = run([*operands, *leaves])
        if training:
            states = self._held[function.parameters :]
            for variable, index in zip(states, function.new_state, strict=False):
                variable.assign(results[index])
        return self._computation.outputs(function, results)

    def compute_output_spec(
        self, inputs: Any, *more: Any, training: Any = None, **named: Any
    ) -> Any:
        """What is known of the outputs, from the symbolic shapes alone."""
        function = self._computation.artifact.function(training=bool(training))
        leaves = self._inputs(function, inputs, more, named)
        return self._computation.result_specs(
            function, leaves, lambda shape, dtype: keras.KerasTensor(shape, dtype.name)
        )

    def compute_output_shape(self, input_shape: Any, *more: Any) -> Any:
        """The shapes of the outputs, from the symbolic shapes alone."""
        self.build(input_shape)
        function = self._computation.artifact.function(training=False)
        return self._computation.output_shapes(self.name, function, (input_shape, *more))

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """The mask of the first masked input, for those outputs whose leading axes are its own."""
        masks = keras.tree.flatten(previous_mask)
        leaves = keras.tree.flatten(inputs)
        pairs = {id(leaf): mask for leaf, mask in zip(leaves, masks, strict=False)}
        function = self._computation.artifact.inference
        return self._computation.masks(
            self.name, function, inputs, lambda leaf: pairs.get(id(leaf)), lambda m: len(m.shape)
        )

    def save_own_variables(self, store: Any) -> None:
        """Put the weights under their pytree paths, the constants under their hashes."""
        for weight, variable in self._named_weights():
            store[quote(weight.name, safe="")] = variable
        if self._seeds is not None:
            store[_SEED] = self._seeds.state

    def load_own_variables(self, store: Any) -> None:
        """Take the weights from where `save_own_variables` put them.

        Raises:
            FormatError: one is missing, or of another shape.
        """
        for weight, variable in self._named_weights():
            key = quote(weight.name, safe="")
            if key not in store.keys():  # noqa: SIM118 - a store is no mapping
                raise FormatError(
                    f"The file has no weight {weight.name} of the layer {self.name}. To do: load "
                    "it into the model that it was saved from."
                )
            value = np.asarray(store[key])
            if value.shape != weight.shape:
                raise FormatError(
                    f"The weight {weight.name} of the layer {self.name} has the shape "
                    f"{value.shape} in the file; expected {weight.shape}."
                )
            variable.assign(value)
        if self._seeds is not None and _SEED in store.keys():  # noqa: SIM118
            self._seeds.state.assign(store[_SEED])

    def get_config(self) -> dict[str, Any]:
        """What `from_config` makes the layer of: names, flags, and the artifact as text."""
        seed = None if self._seeds is None else self._seeds.get_config()["seed"]
        return {
            **super().get_config(),
            "artifact": encode_artifact(self._computation.artifact),
            "seed": seed,
            "values": InitialValues(self._computation),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ExportedLayer:
        """The layer that `get_config` described.

        Its weights are those that the layer began with if it is a clone in the same process. A
        layer from a file gets the file's; until then they are zeros.

        Raises:
            FormatError: the artifact is damaged.
        """
        config = dict(config)
        artifact = decode_artifact(config.pop("artifact", None))
        values, seed = config.pop("values", None), config.pop("seed", None)
        known = values.computation if isinstance(values, InitialValues) else None
        functions = (artifact.inference, artifact.training)
        takes_keys = any(function is not None and function.keys for function in functions)
        return cls(
            LayerComputation(
                weights=artifact.weights,
                values=None if known is None else known.values,
                artifact=artifact,
                constants=None if known is None else known.constants,
            ),
            rng=keras.random.SeedGenerator(seed) if takes_keys else None,
            **config,
        )

    def _prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Export the function for what the layer is called with."""
        from bridge.specifications import ArgumentSpec

        def describe(leaf: Any) -> ArgumentSpec:
            dtype = keras.backend.standardize_dtype(getattr(leaf, "dtype", type(leaf).__name__))
            if keras.backend.is_float_dtype(dtype):
                dtype = self.compute_dtype
            return ArgumentSpec("inputs", tuple(np.shape(leaf)), dtype, None)

        described = keras.tree.map_structure(describe, (tuple(args), dict(kwargs)))
        self._computation.prepare(*described)
        self._constants = self._make_constants()

    def _make_weights(self) -> list[Any]:
        computation = self._computation
        made = []
        for index, weight in enumerate(computation.weights):
            if (shared := computation.shared.get(index)) is not None:
                made.append(shared)
                continue
            value = None if computation.values is None else computation.values[index]
            is_state = index >= computation.parameters
            made.append(self._make_weight(weight, value, is_state=is_state))
        return made

    def _make_constants(self) -> list[Any]:
        known = self._computation.constants
        return [
            self._make_weight(constant, known.get(constant.name), is_state=False)
            for constant in self._computation.artifact.constants
        ]

    def _make_weight(self, weight: LayerWeight, value: Any, *, is_state: bool) -> Any:
        """A variable, whose path is that of the layer and its own path in the pytree."""

        def initial(shape: Any, dtype: Any = None) -> Any:
            found = np.zeros(shape, weight.dtype.numpy) if value is None else value
            return keras.ops.convert_to_tensor(found, dtype)

        *scopes, name = weight.name.split("/")
        average = "mean" if weight.dtype.differentiable else "only_first_replica"
        with contextlib.ExitStack() as stack:
            stack.enter_context(keras.name_scope(self.name, caller=self))
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            return keras.Variable(
                initial,
                shape=weight.shape,
                dtype=weight.dtype.name,
                trainable=weight.trainable,
                autocast=False,
                aggregation=average if is_state else "none",
                name=name,
            )

    def _named_weights(self) -> list[tuple[LayerWeight, Any]]:
        artifact = self._computation.artifact
        weights = (*artifact.weights, *artifact.constants)
        return list(zip(weights, [*self._held, *self._constants], strict=True))

    def _inputs(
        self, function: LayerFunction, inputs: Any, more: Sequence[Any], named: Mapping[str, Any]
    ) -> list[Any]:
        leaves = self._computation.inputs(self.name, function, (inputs, *more), named)
        for leaf, spec in zip(leaves, function.specs[function.first_input :], strict=True):
            check_cast(spec, keras.backend.standardize_dtype(leaf.dtype), self.name)
        return leaves

    def _draw(self, shape: Any) -> Any:
        """The data of PRNG keys: the generator's seed and a counter, as uint32."""
        size, seeds = int(np.prod(shape)), self._seeds
        assert seeds is not None, "a function that takes keys was given some"
        pairs = [keras.ops.cast(seeds.next(), "uint32") for _ in range((size + 1) // 2)]
        return keras.ops.reshape(keras.ops.concatenate(pairs)[:size], shape)

    def _remember_constants(self) -> None:
        """Keep the values of constants, which cannot be had where JAX traces."""
        computation = self._computation
        if not computation.is_ready or computation.constants_are_known:
            return
        with keras.StatelessScope():
            for constant, variable in zip(
                computation.artifact.constants, self._constants, strict=True
            ):
                computation.remember(constant, np.asarray(variable.value))


def _to_run() -> Any:
    """What runs a function on the backend of this process."""
    if keras.backend.backend() == "tensorflow":
        from bridge.layer_tensorflow import to_tensorflow

        return to_tensorflow
    from bridge.layer_jax import to_jax

    return to_jax
