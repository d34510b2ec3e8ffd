"""`ExportedLayer`: an exported JAX function as a layer of Keras 3, on TensorFlow and on JAX.

The layer is saved as an artifact: StableHLO and its derivatives are in the file, so that the
process that loads it needs this module and nothing of the code that the layer was made of; on
Keras' TensorFlow backend neither JAX nor jaxlib.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from bridge.core.operations_option import XLA, OperationsOption
from bridge.layers.artifact import LayerWeight, StaticShape
from bridge.layers.computation import MakeRun
from bridge.layers.layer_base import PACKAGE, InitialValues, LayerBase, is_training
from xla_call_module.errors import DtypeError, MissingDependencyError, PlatformError
from xla_call_module.tracebacks import api_boundary
from xla_call_module.versions import Release

try:
    import keras
except ImportError as error:
    raise MissingDependencyError.of("bridge.keras", "Keras 3", extra="keras") from error

__all__ = ["ExportedLayer"]


def __dir__() -> list[str]:
    return __all__


_BACKENDS = ("tensorflow", "jax")

keras.saving.register_keras_serializable(package=PACKAGE)(InitialValues)


@keras.saving.register_keras_serializable(package=PACKAGE)
class ExportedLayer(LayerBase, keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """A JAX function as a layer of Keras 3.

    The function takes the arguments that the layer is given, in the order of JAX's libraries, and
    then the inputs: `f(params, state, rng, *inputs)`, without those that are not given. It returns
    its outputs, or `(outputs, new_state)` if there is a state. If there is another function for
    training, the function for inference may leave out `state` and `rng`, and return only outputs.

    Args:
        exported: a `jax.export.Exported`; a function of JAX arrays, which the layer exports for
            any batch size when it is first called; or the path of a SavedModel that `bridge.save`
            wrote, whose default signature and parameters are taken. A function with a parameter
            `training` is exported with both of its values. A module of Flax, Haiku, Equinox or
            Keras on JAX runs in inference mode, with the same weights as in `bridge.save`.
        params: the pytree of the parameters: arrays, or the variables of another layer, which are
            then shared, in this process; files have them once for each layer. The weights are named
            by their paths in it.
        trainable: whether the layer is trainable, as of any layer; or a prefix of `params` with
            bools. Integers are never trained.
        state: a pytree of arrays that training replaces by those that the function returns, such as
            the statistics of batch normalization.
        rng: a seed, a PRNG key, a pytree of these, or a `keras.random.SeedGenerator`; True for a
            seed that is chosen at random. At each call the function gets keys that a generator of
            seeds draws: typed ones, unless key data is passed here.
        train: the function for `training=True`: another Exported or function; with a
            path also the key of a signature.
        gradient_order: how many times the layer can be differentiated; at 0, a gradient is an
            error. On the JAX backend further gradients are made of the operations.
        tensorflow: the oldest TensorFlow that must run the saved layer without jaxlib, such as
            `"2.16"`; by default as old as the function allows, and the installed one.
        operations: what TensorFlow runs, as for `bridge.save`: `"xla"`, a module, or
            `"tensorflow"`, its own operations, which JAX or jaxlib makes where the layer is.
        kwargs: `name`, `dtype` and others of `keras.layers.Layer`. Under a dtype policy such as
            `mixed_bfloat16` a function is exported for it; an `Exported` for other dtypes is
            refused.

    Raises:
        InteropError: the function does not fit its arguments, or cannot be converted.

    Example:
        >>> import jax, jax.numpy as jnp, keras, numpy as np
        >>> from bridge.keras import ExportedLayer
        >>> params = {"dense": {"kernel": np.ones((3, 2), "float32"), "bias": np.zeros(2)}}
        >>> def dense(params, x):
        ...     return jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"])
        >>> layer = ExportedLayer(dense, params=params, name="mlp")
        >>> model = keras.Sequential([keras.Input((3,)), layer])
        >>> [weight.path for weight in model.weights]
        ['mlp/dense/bias', 'mlp/dense/kernel']
        >>> model.compile("sgd", "mean_squared_error")
        >>> history = model.fit(np.ones((8, 3)), np.zeros((8, 2)), verbose=0)
        >>> model.save("my_model.keras")  # loads wherever bridge.keras is imported
    """

    @api_boundary
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
        tensorflow: str | None = None,
        operations: OperationsOption = XLA,
        **kwargs: Any,
    ) -> None:
        if keras.backend.backend() not in _BACKENDS:
            raise PlatformError(
                f"Keras runs on its {keras.backend.backend()} backend; expected one of "
                f"{', '.join(_BACKENDS)}. To do: set KERAS_BACKEND before Keras is imported."
            )
        as_a_whole = trainable if isinstance(trainable, bool) else True
        super().__init__(trainable=as_a_whole, autocast=False, **kwargs)
        if self.quantization_mode is not None:
            raise DtypeError(
                f"The layer's dtype policy {self.dtype_policy.name} quantizes weights to "
                f"{self.quantization_mode}, and an exported function takes them as it was traced. "
                "To do: pass dtype='float32' to the layer."
            )
        self.supports_masking = True
        self._seeds = _to_generator(rng)
        self._set_up(
            exported,
            params=params,
            state=state,
            rng=True if isinstance(rng, keras.random.SeedGenerator) else rng,
            train=train,
            trainable=True if isinstance(trainable, bool) else trainable,
            gradient_order=gradient_order,
            tensorflow=tensorflow,
            operations=operations,
        )
        if not as_a_whole:
            for variable in self._held:  # they were made after it was said of the layer
                variable.trainable = False
        self.built = True

    @api_boundary
    def build(self, input_shape: Any) -> None:
        """Export the function for inputs of a shape, and of the dtype that the layer computes in.

        A layer that is called exports it for what it is called with.
        """
        make = lambda shape: keras.KerasTensor(shape, self.compute_dtype)  # noqa: E731
        self._export_for((keras.tree.map_shape_structure(make, input_shape),), {})

    def call(self, inputs: Any, *more: Any, training: Any = None, **named: Any) -> Any:
        """Return the outputs for inputs that are tensors."""
        return self._compute((inputs, *more), named, training)

    def compute_output_spec(
        self, inputs: Any, *more: Any, training: Any = None, **named: Any
    ) -> Any:
        """Return the specs of the outputs, from the symbolic shapes alone."""
        function = self._computation.artifact.function(training=is_training(training, self.name))
        leaves = self._inputs(function, (inputs, *more), named)
        return function.output_specs(
            leaves, lambda shape, dtype: keras.KerasTensor(shape, dtype.name)
        )

    @api_boundary
    def compute_output_shape(self, input_shape: Any, *more: Any) -> Any:
        """Return the shapes of the outputs, from the symbolic shapes alone."""
        self.build(input_shape)
        function = self._computation.artifact.inference
        return function.output_shapes(self.name, (input_shape, *more))

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """Return the mask of the first masked input for the outputs that have its leading axes."""
        leaves, masks = keras.tree.flatten(inputs), keras.tree.flatten(previous_mask)
        return self._masks(inputs, leaves, masks)

    def get_config(self) -> dict[str, Any]:
        """Return the config for `from_config`: names, flags, and the artifact as text."""
        seed = None if self._seeds is None else self._seeds.get_config()["seed"]
        own = self._own_config(InitialValues(self._computation))
        return {**super().get_config(), **own, "seed": seed}

    @classmethod
    @api_boundary
    def from_config(cls, config: Mapping[str, Any]) -> ExportedLayer:
        """Return the layer that `get_config` described.

        Its weights begin as those of the described layer did. A config that has been text, as in
        `to_json` or a file, has no values: its weights are zeros until they are loaded or set.

        Raises:
            FormatError: the artifact is damaged.
        """
        computation, rest = cls._read_config(config)
        seed = rest.pop("seed", None)
        generator = keras.random.SeedGenerator(seed) if computation.artifact.takes_keys else None
        return cls(computation, rng=generator, **rest)

    def _shape_and_dtype(self, leaf: Any) -> tuple[StaticShape | None, str]:
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        shape = leaf.shape if hasattr(leaf, "shape") else np.shape(leaf)
        known = getattr(shape, "rank", 0) is not None  # TensorFlow's may be unknown
        return tuple(shape) if known else None, keras.backend.standardize_dtype(dtype)

    def _track(self, weights: Sequence[LayerWeight], variables: Sequence[Any]) -> None:
        """Have `tf.train.Checkpoint` find variables, which Keras shows it as attributes alone."""
        for weight, variable in zip(weights, variables, strict=True):
            setattr(self, f"weight {weight.name}", variable)

    def _make_weight(self, weight: LayerWeight, value: Any, *, name: str, is_state: bool) -> Any:
        average = "mean" if weight.dtype.differentiable else "only_first_replica"
        aggregation = average if is_state else "none"
        return self._make_variable(keras.Variable, weight, value, name, aggregation)

    def _make_constant(self, constant: LayerWeight, value: Any) -> Any:
        variable = self._make_variable(_Constant, constant, value, constant.name, "none")
        variable.listener = partial(self._computation.remember, constant)
        return variable

    def _make_variable(
        self, kind: Any, weight: LayerWeight, value: Any, path: str, aggregation: str
    ) -> Any:
        """Return a variable whose path is that of the layer, and then its own."""

        def initial(shape: Any, dtype: Any = None) -> Any:
            initial_value = np.zeros(shape, weight.dtype.numpy) if value is None else value
            return keras.ops.convert_to_tensor(initial_value, dtype)

        *scopes, name = filter(None, path.split("/"))
        with contextlib.ExitStack() as stack:
            stack.enter_context(keras.name_scope(self.name, caller=self))
            for scope in scopes:
                stack.enter_context(keras.name_scope(scope))
            return kind(
                initial,
                shape=weight.shape,
                dtype=weight.dtype.name,
                trainable=weight.trainable,
                autocast=False,
                aggregation=aggregation,
                name=name,
            )

    def _value(self, variable: Any) -> Any:
        return variable.value

    def _stop_gradient(self, value: Any) -> Any:
        return keras.ops.stop_gradient(value)

    def _read(self, variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        if keras.backend.backend() == "tensorflow":
            from bridge.layers.run_in_tensorflow import read_variables

            return read_variables([variable.value for variable in variables])
        # A scope of its own has the values themselves, and not what JAX traces.
        with keras.StatelessScope():
            return [keras.ops.convert_to_numpy(variable) for variable in variables]

    def _make_run(self) -> MakeRun:
        if keras.backend.backend() == "tensorflow":
            from bridge.layers.run_in_tensorflow import to_tensorflow

            return to_tensorflow
        from bridge.layers.run_in_jax import to_jax

        return to_jax

    def _installed(self) -> Release | None:
        if keras.backend.backend() != "tensorflow":
            return None
        from xla_call_module._tf import imported_release

        return imported_release()

    def _draw(self, shape: Sequence[int]) -> Any:
        """Return the generator's seed and its counter, as often as there are words for."""
        size = int(np.prod(shape))
        pairs = [keras.ops.cast(self._seeds.next(), "uint32") for _ in range((size + 1) // 2)]
        return keras.ops.reshape(keras.ops.concatenate(pairs)[:size], shape)

    def _seed_state(self) -> Any:
        return self._seeds.state


class _Constant(keras.Variable):  # type: ignore[misc]  # Keras is untyped
    """A variable that tells which values are assigned to it.

    While Keras trains or predicts on JAX, the values are in its hands and not in the variables.
    """

    listener: Callable[[Any], Any] | None = None

    def assign(self, value: Any) -> Any:
        """Assign a value, as to any variable; a loader brings an array."""
        assigned = super().assign(value)
        if self.listener is not None and isinstance(value, np.ndarray):
            self.listener(value)
        return assigned


def _to_generator(rng: Any) -> keras.random.SeedGenerator | None:
    """Return the generator that keys are drawn from; None where there are no keys."""
    if rng is None or rng is False or isinstance(rng, keras.random.SeedGenerator):
        return rng or None
    from bridge.layers.layer_state import seed_of

    return keras.random.SeedGenerator(seed_of(rng))
