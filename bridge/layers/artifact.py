"""`LayerArtifact`: the functions and weights of a Keras layer, without JAX and without Keras."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.layers.layer_structures import fill, match_first, match_inputs, match_shapes
from savedmodel.protos.structures import NONE, Branch, Structure
from xla_call_module.call import CallModule, TensorSpec, bind_symbols
from xla_call_module.dimensions import evaluate_shape
from xla_call_module.dtypes import DType
from xla_call_module.errors import StructureError
from xla_call_module.passes.asserting import with_names
from xla_call_module.passes.pipeline import Artifact, Prepared, Target, prepare_chain
from xla_call_module.shape_checks import ShapeCheck, argument_names

StaticShape = tuple[int | None, ...]


_OTHER_SIZES = (
    "pass inputs of these sizes; or, for sequences of any length, begin the model with "
    "keras.Input((None,)) or such as keras.Input((None, 3)), before the layer is called, "
    "or make the layer of an Exported with symbolic sizes."
)


@dataclass(frozen=True, slots=True)
class LayerWeight:
    """One variable of the layer.

    Attributes:
        name: its pytree path with slashes, such as `dense/kernel`; unique in the layer.
        trainable: whether it is trained while the layer is trainable.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    trainable: bool = False


@dataclass(frozen=True, slots=True)
class LayerFunction:
    """One of the functions of a layer: that for inference, or that for training.

    It is to a layer what `savedmodel.model.Function` is to a file: a chain of VJP orders with its
    parameters and the structures of its inputs and outputs. There inputs and variables have names;
    here they have places: the flat arguments of `chain[0]` are the parameters, the state if it is
    taken, the PRNG keys if any are, then the inputs.

    Attributes:
        chain: the function, its VJP, the VJP of that, …; constants are hoisted.
        state: the number of leaves of the state that it takes, which is all or none.
        keys: the number of arrays of PRNG keys that it takes.
        inputs: the other arguments, as a pair of positional and keyword arguments; the leaves are
            indices into `chain[0].args`.
        outputs: the results without the new state; the leaves are indices into
            `chain[0].results`.
        new_state: for each leaf of the state the index of the result that replaces it; empty where
            it returns none.
        since: for each order the oldest TensorFlow that runs its call as it stands, such as
            `(2, 18)`, or None for none; empty where that is not known.
        shape_check: what `chain[0]` asserts of sizes, where its module does not say as much itself;
            known where `since` is.
        plain_operations: whether TensorFlow runs its own operations in the place of the modules.
    """

    chain: tuple[CallModule, ...]
    parameters: int
    state: int
    keys: int
    inputs: Structure
    outputs: Structure
    new_state: tuple[int, ...] = ()
    since: tuple[tuple[int, int] | None, ...] = ()
    shape_check: ShapeCheck | None = None
    plain_operations: bool = False

    @property
    def name(self) -> str:
        """The name of the Python function."""
        return self.chain[0].name

    def recorded(self, prepared: Prepared | None = None) -> LayerFunction:
        """Return the function with `since` and `shape_check`, which TensorFlow needs."""
        if prepared is None:
            target = Target(artifact=Artifact.UNCHANGED, for_file=True)
            prepared = prepare_chain(self.chain, target)
        check, call = prepared.shape_check, self.chain[0]
        return replace(
            self,
            since=tuple(None if r is None else r.tensorflow for r in prepared.releases),
            shape_check=check and with_names(check, call, argument_names(call)),
        )

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The flat arguments, without the constants."""
        return self.chain[0].own_args

    @property
    def key_specs(self) -> tuple[TensorSpec, ...]:
        """The flat arguments that are PRNG keys."""
        first = self.parameters + self.state
        return self.specs[first : first + self.keys]

    @property
    def keywords(self) -> frozenset[str]:
        """The names of the inputs that are keyword arguments."""
        assert isinstance(self.inputs, Branch)
        (_, keyword) = (child for _, child in self.inputs.children)
        assert isinstance(keyword, Branch)
        return frozenset(key for key, _ in keyword.children)

    @property
    def first_input(self) -> int:
        """The index of the first input in `specs`."""
        return self.parameters + self.state + self.keys

    def bind(self, sizes: Sequence[StaticShape | None]) -> dict[str, int]:
        """Return the dimension variables that follow from what is known of the inputs' shapes."""
        own = [spec.static_shape for spec in self.specs[: self.first_input]]
        checks = self.chain[0].disabled_checks
        try:
            return bind_symbols(self.name, self.specs, [*own, *sizes], disabled_checks=checks)
        except StructureError as error:
            if "To do: " in str(error):
                raise
            raise StructureError(f"{error} To do: {_OTHER_SIZES}") from None

    def flatten_inputs(
        self, layer: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Any]:
        """Return the leaves of the arguments of a layer, in the order of `specs`."""
        return match_inputs(layer, self.inputs, args, kwargs)

    def unflatten_outputs(self, results: Sequence[Any]) -> Any:
        """Return the outputs in their structure."""
        return fill(self.outputs, results.__getitem__)

    def output_specs(self, inputs: Sequence[Any], make: Callable[[StaticShape, DType], Any]) -> Any:
        """Return what `make` makes of the shape and dtype of each output, in their structure."""
        shapes = self.result_shapes([tuple(leaf.shape) for leaf in inputs])
        results = self.chain[0].own_results
        return fill(self.outputs, lambda index: make(shapes[index], results[index].dtype))

    def output_shapes(self, layer: str, shapes: Sequence[Any]) -> Any:
        """Return the shapes of the outputs for shapes in the structure of the inputs."""
        results = self.result_shapes(match_shapes(layer, self.inputs, shapes))
        return fill(self.outputs, results.__getitem__)

    def output_masks(
        self,
        layer: str,
        first: Any,
        mask_of: Callable[[Any], Any],
    ) -> Any:
        """Return the mask of the first masked input for each output that has its leading axes."""
        indexed = match_first(layer, self.inputs, first)
        masked = [(i, mask) for i, leaf in indexed if (mask := mask_of(leaf)) is not None]
        if not masked:
            return None
        index, mask = masked[0]
        axes = (self.specs[index].shape or ())[: len(mask.shape)]
        results = self.chain[0].own_results

        def of_output(index: int) -> Any:
            return mask if (results[index].shape or ())[: len(axes)] == axes else None

        return fill(self.outputs, of_output)

    def result_shapes(self, sizes: Sequence[StaticShape | None]) -> list[StaticShape]:
        """Return the shapes of the results, with None for what does not follow from the inputs."""
        symbols = self.bind(sizes)
        results = self.chain[0].own_results
        return [tuple(evaluate_shape(spec.shape or (), symbols) or ()) for spec in results]


@dataclass(frozen=True, slots=True)
class LayerArtifact:
    """The functions of a layer, and its variables without their values.

    Attributes:
        weights: the variables of the parameters, in the order of their pytree, then of the state.
        params: the pytree of the parameters; the leaves are indices into `weights`.
        state: the pytree of the state; the leaves are indices into `weights`.
        inference: the function that is called unless the layer is training.
        training: the one that is called when it is; None where that is the same.
        constants: the constants of the modules that are variables; their names are the hashes of
            the values.
    """

    weights: tuple[LayerWeight, ...]
    params: Structure
    inference: LayerFunction
    training: LayerFunction | None = None
    state: Structure = NONE
    constants: tuple[LayerWeight, ...] = field(default=())

    @property
    def parameters(self) -> int:
        """The number of weights that are parameters; the others are state."""
        return self.inference.parameters

    @property
    def takes_keys(self) -> bool:
        """Return whether a function takes PRNG keys."""
        return bool(self.inference.keys or (self.training is not None and self.training.keys))

    def function(self, *, training: bool) -> LayerFunction:
        """Return the function for training or for inference."""
        return self.training if training and self.training is not None else self.inference
