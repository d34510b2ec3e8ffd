"""`LayerArtifact`: what a Keras layer computes, as a value that needs neither JAX nor Keras."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from savedmodel.protos.structures import NONE, Structure
from xla_call_module.call import CallModule, TensorSpec, bind_symbols
from xla_call_module.dimensions import evaluate_shape
from xla_call_module.dtypes import DType

__all__ = ["LayerArtifact", "LayerFunction", "LayerWeight", "StaticShape"]

StaticShape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class LayerWeight:
    """One variable of the layer.

    Attributes:
        name: its pytree path with slashes, such as `dense/kernel`; unique in the layer.
        dtype: the element type of the variable.
        shape: the shape.
        trainable: whether it is trained while the layer is trainable.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    trainable: bool = False


@dataclass(frozen=True, slots=True)
class LayerFunction:
    """One of the functions of a layer: that for inference, or that for training.

    The flat arguments of `chain[0]` are the parameters, the state if it is taken, the PRNG keys if
    any are, then the inputs.

    Attributes:
        chain: the function, its VJP, the VJP of that, …; constants are hoisted.
        parameters: how many leaves the parameters have.
        state: how many leaves of the state it takes: all or none.
        keys: how many arrays of PRNG keys it takes.
        inputs: the other arguments, as a pair of positional and keyword arguments; the leaves are
            indices into `chain[0].args`.
        outputs: what it returns, without the new state; the leaves are indices into
            `chain[0].results`.
        new_state: for each leaf of the state the index of the result that replaces it; empty where
            it returns none.
    """

    chain: tuple[CallModule, ...]
    parameters: int
    state: int
    keys: int
    inputs: Structure
    outputs: Structure
    new_state: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name of the Python function."""
        return self.chain[0].name

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The flat arguments, without the constants."""
        return self.chain[0].own_args

    @property
    def key_specs(self) -> tuple[TensorSpec, ...]:
        """Those that are PRNG keys."""
        first = self.parameters + self.state
        return self.specs[first : first + self.keys]

    @property
    def first_input(self) -> int:
        """The index of the first input in `specs`."""
        return self.parameters + self.state + self.keys

    def bind(self, sizes: Sequence[StaticShape | None]) -> dict[str, int]:
        """The dimension variables that follow from what is known of the inputs' shapes.

        Args:
            sizes: for each input, in the order of `specs`, what is known of its shape.

        Raises:
            StructureError: the shapes contradict what the function was exported for.
        """
        own = [spec.static_shape for spec in self.specs[: self.first_input]]
        checks = self.chain[0].disabled_checks
        return bind_symbols(self.name, self.specs, [*own, *sizes], disabled_checks=checks)

    def result_shapes(self, sizes: Sequence[StaticShape | None]) -> list[StaticShape]:
        """The shapes of the results, with None for what does not follow from those of the inputs.

        Args:
            sizes: as of `bind`.

        Raises:
            StructureError: as of `bind`.
        """
        symbols = self.bind(sizes)
        results = self.chain[0].own_results
        return [tuple(evaluate_shape(spec.shape or (), symbols) or ()) for spec in results]


@dataclass(frozen=True, slots=True)
class LayerArtifact:
    """All that a layer computes and holds, but for the values of its variables.

    Attributes:
        weights: of the parameters, in the order of their pytree, then of the state.
        params: the pytree of the parameters; the leaves are indices into `weights`.
        state: the pytree of the state; the leaves are indices into `weights`.
        inference: the function that is called unless the layer is training.
        training: the one that is called when it is; None where that is the same.
        constants: what was taken out of the modules; the names are the hashes of the values.
    """

    weights: tuple[LayerWeight, ...]
    params: Structure
    inference: LayerFunction
    training: LayerFunction | None = None
    state: Structure = NONE
    constants: tuple[LayerWeight, ...] = field(default=())

    @property
    def parameters(self) -> int:
        """How many of the weights are parameters; the others are state."""
        return self.inference.parameters

    @property
    def takes_keys(self) -> bool:
        """Whether a function takes PRNG keys."""
        return bool(self.inference.keys or (self.training is not None and self.training.keys))

    def function(self, *, training: bool) -> LayerFunction:
        """The function that is called."""
        return self.training if training and self.training is not None else self.inference
