"""`ExportedLayer`: an exported JAX function as a layer of tf-keras, TensorFlow's Keras 2.

It is that of `bridge.keras` for models that have stayed with the older Keras: saved as an
artifact, in `.keras`, `.h5` and SavedModel files, and loaded where this module is imported, without
the code that it was made of and without JAX and jaxlib.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bridge.core.operations_option import XLA, OperationsOption
from bridge.layers.artifact import LayerWeight, StaticShape
from bridge.layers.computation import MakeRun
from bridge.layers.layer_base import PACKAGE, InitialValues, LayerBase
from xla_call_module.errors import MissingDependencyError

try:
    import tensorflow as tf
    import tf_keras
except ImportError as error:
    raise MissingDependencyError.of("bridge.tf_keras", "tf-keras", extra="tf-keras") from error

from bridge.layers.run_in_tensorflow import read_variables, to_tensorflow
from xla_call_module._autograph import exempt_from_autograph
from xla_call_module._tf import imported_release
from xla_call_module.tracebacks import api_boundary
from xla_call_module.versions import Release

__all__ = ["ExportedLayer"]


def __dir__() -> list[str]:
    return __all__


_MAX_SEED = 1 << 31

tf_keras.saving.register_keras_serializable(package=PACKAGE)(InitialValues)


@tf_keras.saving.register_keras_serializable(package=PACKAGE)
class ExportedLayer(LayerBase, tf_keras.layers.Layer):  # type: ignore[misc]  # Keras is untyped
    """A JAX function as a layer of tf-keras (Keras 2).

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
        state: a pytree of arrays that training replaces by those that the function returns, such
            as the statistics of batch normalization.
        rng: a seed, a PRNG key, a pytree of these; or True for a seed that is chosen at random. At
            each call the function gets other keys, drawn from the seed and a counter: typed ones,
            unless key data is passed here.
        train: the function for `training=True`: another Exported or function; with a
            path also the key of a signature.
        gradient_order: how many times the layer can be differentiated; at 0, a gradient is an
            error.
        tensorflow: the oldest TensorFlow that must run the saved layer without jaxlib, such as
            `"2.16"`; by default as old as the function allows, and the installed one.
        operations: what TensorFlow runs, as for `bridge.save`: `"xla"`, a module, or
            `"tensorflow"`, its own operations, which JAX or jaxlib makes where the layer is.
        kwargs: `name`, `dtype` and others of `tf_keras.layers.Layer`. Under a dtype policy such as
            `mixed_bfloat16` a function is exported for it; an `Exported` for other dtypes is
            refused.

    Raises:
        InteropError: the function does not fit its arguments, or cannot be converted.

    Example:
        >>> import jax.numpy as jnp, numpy as np, tf_keras
        >>> from bridge.tf_keras import ExportedLayer
        >>> params = {"dense": {"kernel": np.ones((3, 2), "float32"), "bias": np.zeros(2)}}
        >>> def dense(params, x):
        ...     return jnp.tanh(x @ params["dense"]["kernel"] + params["dense"]["bias"])
        >>> layer = ExportedLayer(dense, params=params, name="mlp")
        >>> model = tf_keras.Sequential([tf_keras.Input((3,)), layer])
        >>> [weight.name for weight in model.weights]
        ['mlp/dense/bias:0', 'mlp/dense/kernel:0']
        >>> model.predict(np.zeros((1, 3)), verbose=0)
        array([[0., 0.]], dtype=float32)
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
        as_a_whole = trainable if isinstance(trainable, bool) else True
        seed = kwargs.pop("seed", None)
        super().__init__(trainable=as_a_whole, autocast=False, **kwargs)
        self.supports_masking = True
        self._seeds = None
        self._set_up(
            exported,
            params=params,
            state=state,
            rng=rng,
            train=train,
            trainable=True if isinstance(trainable, bool) else trainable,
            gradient_order=gradient_order,
            tensorflow=tensorflow,
            operations=operations,
        )
        if rng is not None and rng is not False:
            self._seed = _first_seed(rng) if seed is None else int(seed)
            self._seeds = self._make_seeds(self._seed)
        self.built = True

    @api_boundary
    def build(self, input_shape: Any) -> None:
        """Export the function for inputs of a shape, and of the dtype that the layer computes in.

        A layer that is called exports it for what it is called with.
        """
        self._export_for((_specs(input_shape, self.compute_dtype),), {})

    @exempt_from_autograph
    def call(self, inputs: Any, *more: Any, training: Any = None, **named: Any) -> Any:
        """Return the outputs for inputs that are tensors."""
        if not self._computation.constants_are_known and _is_being_built():
            function = self._computation.artifact.inference
            leaves = self._inputs(function, (inputs, *more), named)
            return function.output_specs(
                leaves, lambda shape, dtype: tf.compat.v1.placeholder(dtype.name, shape)
            )
        return self._compute((inputs, *more), named, training)

    @api_boundary
    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shapes of the outputs, from the symbolic shapes alone."""
        shapes = _plain(input_shape)
        self.build(shapes)
        function = self._computation.artifact.inference
        shapes_of_outputs = function.output_shapes(self.name, (shapes,))
        return _map_shapes(tf.TensorShape, shapes_of_outputs)

    def compute_output_signature(self, input_signature: Any) -> Any:
        """Return the specs of the outputs, from the symbolic shapes alone."""
        self._export_for((input_signature,), {})
        function = self._computation.artifact.inference
        leaves = self._inputs(function, (input_signature,), {})
        return function.output_specs(leaves, lambda shape, dtype: tf.TensorSpec(shape, dtype.name))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the mask of the first masked input for the outputs that have its leading axes."""
        if mask is None:
            return None
        return self._masks(inputs, tf.nest.flatten(inputs), tf.nest.flatten(mask))

    def get_config(self) -> dict[str, Any]:
        """Return the config for `from_config`: names, flags, and the artifact as text."""
        seed = None if self._seeds is None else self._seed
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
        return cls(computation, rng=computation.artifact.takes_keys, **rest)

    def _shape_and_dtype(self, leaf: Any) -> tuple[StaticShape | None, str]:
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        shape = tf.TensorShape(leaf.shape if hasattr(leaf, "shape") else np.shape(leaf))
        return None if shape.rank is None else tuple(shape), tf.as_dtype(dtype).name

    def _make_weight(self, weight: LayerWeight, value: Any, *, name: str, is_state: bool) -> Any:
        """Return a variable whose name is that of the layer, and then its own."""

        def initial(shape: Any, dtype: Any = None, **_: Any) -> Any:
            initial_value = np.zeros(shape, weight.dtype.numpy) if value is None else value
            return tf.convert_to_tensor(initial_value, dtype)

        first, mean = tf.VariableAggregation.ONLY_FIRST_REPLICA, tf.VariableAggregation.MEAN
        average = mean if weight.dtype.differentiable else first
        with tf.name_scope(self.name):
            return self.add_weight(
                name=name,
                shape=weight.shape,
                dtype=weight.dtype.name,
                initializer=initial,
                trainable=weight.trainable,
                experimental_autocast=False,
                aggregation=average if is_state else tf.VariableAggregation.NONE,
            )

    def _make_constant(self, constant: LayerWeight, value: Any) -> Any:
        return self._make_weight(constant, value, name=constant.name, is_state=False)

    def _make_seeds(self, seed: int) -> Any:
        """Return a variable that has the seed and a counter."""
        with tf.name_scope(self.name):
            return self.add_weight(
                name="seed_generator_state",
                shape=(2,),
                dtype="int64",
                initializer=lambda shape, dtype=None, **_: tf.constant([seed, 0], dtype, shape),
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            )

    def _value(self, variable: Any) -> Any:
        return variable

    def _stop_gradient(self, value: Any) -> Any:
        return tf.stop_gradient(value)

    def _read(self, variables: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        return read_variables(variables)

    def _make_run(self) -> MakeRun:
        return to_tensorflow

    def _installed(self) -> Release:
        return imported_release()

    def _draw(self, shape: Sequence[int]) -> Any:
        """Return the seed and the counter, as often as there are words for."""
        size, pairs = int(np.prod(shape)), []
        for _ in range((size + 1) // 2):
            pairs.append(tf.cast(tf.identity(self._seeds), tf.uint32))
            self._seeds.assign_add([0, 1])
        return tf.reshape(tf.concat(pairs, 0)[:size], shape)

    def _seed_state(self) -> Any:
        return self._seeds


def _is_being_built() -> bool:
    """Return whether TF-Keras calls a layer for the shapes of its outputs alone.

    It does so in a graph of this name (tf_keras/src/engine/base_layer.py,
    `_infer_output_signature`), for a model from a file before the weights are there.
    """
    graph = tf.compat.v1.get_default_graph()
    return not tf.executing_eagerly() and str(graph.name).endswith("_scratch_graph")


def _first_seed(rng: Any) -> int:
    if rng is True:
        return random.randrange(_MAX_SEED)
    from bridge.layers.layer_state import seed_of

    return seed_of(rng) or 0


def _plain(shape: Any) -> Any:
    """Return a nested structure of shapes as tuples."""
    return _map_shapes(lambda one: tuple(tf.TensorShape(one).as_list()), shape)


def _map_shapes(change: Any, shape: Any) -> Any:
    is_shape = isinstance(shape, (list, tuple)) and all(
        size is None or isinstance(size, int) for size in shape
    )
    if is_shape or isinstance(shape, tf.TensorShape):
        return change(shape)
    if isinstance(shape, Mapping):
        return {key: _map_shapes(change, one) for key, one in shape.items()}
    return type(shape)(_map_shapes(change, one) for one in shape)


def _specs(shape: Any, dtype: str) -> Any:
    return _map_shapes(lambda one: tf.TensorSpec(one, dtype), _plain(shape))
