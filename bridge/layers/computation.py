"""`LayerComputation`: what both Keras layers do alike, whichever framework runs it.

It knows no Keras: a layer tells it what its variables and tensors are like, and gets back what to
make of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.layers.artifact import LayerArtifact, LayerFunction, LayerWeight, StaticShape
from bridge.layers.layer_structures import fill, match_first, match_inputs, match_shapes
from savedmodel.protos.structures import NONE, Structure, leaves
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import DType
from xla_call_module.errors import DtypeError, FormatError, StructureError
from xla_call_module.passes.constants import key_of

__all__ = ["LayerComputation", "Run", "Runs", "check_cast"]

# Runs a function on flat tensors.
Run = Callable[[Sequence[Any]], list[Any]]
Runs = Callable[[LayerFunction, Mapping[str, np.ndarray[Any, Any]]], Run]


class LayerComputation:
    """The functions of a layer, and what it begins with.

    Attributes:
        weights: the variables that the layer has from the beginning.
        values: for each of them what it begins with; None in a layer that was read, whose values
            come afterwards.
        shared: those that are variables already, by their index.
    """

    weights: tuple[LayerWeight, ...]
    values: tuple[np.ndarray[Any, Any], ...] | None
    shared: Mapping[int, Any]

    def __init__(
        self,
        *,
        weights: tuple[LayerWeight, ...],
        values: tuple[np.ndarray[Any, Any], ...] | None,
        artifact: LayerArtifact | None = None,
        constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
        export: Callable[[Sequence[Any], Mapping[str, Any]], Any] | None = None,
        shared: Mapping[int, Any] | None = None,
        trees: tuple[Structure, Structure] = (NONE, NONE),
    ) -> None:
        """Take over what was made.

        Args:
            weights: see above.
            values: see above.
            artifact: what it computes; None where that waits for the inputs.
            constants: the values of the artifact's constants, as far as they are known.
            export: makes the artifact and its constants for inputs, whose leaves are
                `ArgumentSpec`s.
            shared: see above.
            trees: where the artifact is not there, the pytrees of parameters and state.
        """
        self.weights = weights
        self.shared = dict(shared or {})
        self.values = values
        self._artifact = artifact
        self._constants: dict[str, np.ndarray[Any, Any]] = dict(constants or {})
        self._export = export
        self._runs: dict[bool, Run] = {}
        self._trees = trees if artifact is None else (artifact.params, artifact.state)

    @property
    def is_ready(self) -> bool:
        """Whether the functions are exported."""
        return self._artifact is not None

    @property
    def artifact(self) -> LayerArtifact:
        """What the layer computes.

        Raises:
            StructureError: that waits for the first inputs.
        """
        if self._artifact is None:
            raise StructureError(
                "The function of an ExportedLayer is exported when the layer is first called, "
                "and it has not been. To do: call it, or the model, before it is saved."
            )
        return self._artifact

    @property
    def parameters(self) -> int:
        """How many of the weights are parameters; the others are state."""
        return sum(1 for _ in leaves(self._trees[0]))

    def params(self, variables: Sequence[Any]) -> Any:
        """The pytree of the parameters, of the variables for `weights`."""
        return fill(self._trees[0], variables.__getitem__)

    def state(self, variables: Sequence[Any]) -> Any:
        """The pytree of the state, of the variables for `weights`."""
        return fill(self._trees[1], variables.__getitem__)

    @property
    def constants_are_known(self) -> bool:
        """Whether the values of all constants are known."""
        return len(self._constants) == len(self.artifact.constants)

    @property
    def constants(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """The constants whose values are known, by their hashes."""
        return self._constants

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Export the functions for inputs, whose leaves are `ArgumentSpec`s.

        Raises:
            InteropError: they cannot be exported, or do not fit what the layer holds.
        """
        assert self._export is not None
        self._artifact, constants = self._export(args, kwargs)
        self._constants.update(constants)

    def remember(self, constant: LayerWeight, value: np.ndarray[Any, Any]) -> bool:
        """Keep the value of a constant if it is the right one.

        Returns:
            Whether it is.
        """
        if constant.name not in self._constants:
            value = np.asarray(value).astype(constant.dtype.numpy, copy=False)
            if key_of(value) != constant.name:
                return False
            self._constants[constant.name] = value
        return True

    def runner(self, to_run: Runs, *, training: bool) -> tuple[LayerFunction, Run]:
        """The function to call, and what runs it.

        Args:
            to_run: makes what runs a function.
            training: which function.

        Raises:
            FormatError: constants have not the values that they were written with.
            InteropError: the framework does not run it.
        """
        function = self.artifact.function(training=training)
        key = training and self.artifact.training is not None
        if key not in self._runs:
            wanted = {name for call in function.chain for name in call.hoisted}
            if missing := sorted(wanted - self._constants.keys()):
                raise FormatError(
                    f"{function.name} has a constant that is a weight of the layer, "
                    f"constants/{missing[0][:12]}…, and its value is not the one that was written. "
                    "To do: load the weights from the file that the layer comes from."
                )
            self._runs[key] = to_run(function, self._constants)
        return function, self._runs[key]

    def result_specs(
        self,
        function: LayerFunction,
        inputs: Sequence[Any],
        make: Callable[[StaticShape, DType], Any],
    ) -> Any:
        """The outputs, as `make` makes them of what is known of the inputs.

        Args:
            function: that would be called.
            inputs: the leaves; they have a `shape`.
            make: makes a leaf of its shape and dtype.
        """
        shapes = function.result_shapes([tuple(leaf.shape) for leaf in inputs])
        specs = function.chain[0].own_results
        return fill(function.outputs, lambda index: make(shapes[index], specs[index].dtype))

    def output_shapes(self, name: str, function: LayerFunction, shapes: Sequence[Any]) -> Any:
        """The shapes of the outputs for shapes of the inputs.

        Raises:
            StructureError: they do not fit.
        """
        found = function.result_shapes(match_shapes(name, function.inputs, shapes))
        return fill(function.outputs, found.__getitem__)

    def outputs(self, function: LayerFunction, results: Sequence[Any]) -> Any:
        """The outputs in their structure."""
        return fill(function.outputs, results.__getitem__)

    def masks(
        self,
        name: str,
        function: LayerFunction,
        first: Any,
        mask_of: Callable[[Any], Any],
        rank_of: Callable[[Any], int],
    ) -> Any:
        """The masks of the outputs, which is that of the first input that has one.

        An output has it whose leading axes are those of that input.

        Args:
            name: of the layer.
            function: which is called.
            first: the first input, which may be nested.
            mask_of: the mask of a leaf, or None.
            rank_of: the rank of a mask.
        """
        indexed = match_first(name, function.inputs, first)
        masked = [(i, mask) for i, leaf in indexed if (mask := mask_of(leaf)) is not None]
        if not masked:
            return None
        index, mask = masked[0]
        axes = (function.specs[index].shape or ())[: rank_of(mask)]
        results = function.chain[0].own_results

        def of_output(index: int) -> Any:
            return mask if (results[index].shape or ())[: len(axes)] == axes else None

        return fill(function.outputs, of_output)

    def inputs(
        self,
        name: str,
        function: LayerFunction,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> list[Any]:
        """The leaves of the inputs.

        Raises:
            StructureError: they have another structure.
        """
        return match_inputs(name, function.inputs, args, kwargs)


def check_cast(spec: TensorSpec, dtype: str, name: str) -> None:
    """Refuse an input that is of another kind than what the function takes.

    Args:
        spec: what it takes.
        dtype: what arrived, which is cast where only the size differs.
        name: of the layer.

    Raises:
        DtypeError: it is of another kind, and how to cast it is for the user to say.
    """
    if _kind(spec.dtype.name) != _kind(dtype):
        raise DtypeError(
            f"{spec.path} of {name} arrived as {dtype}, and the function was exported for {spec}. "
            "To do: cast the input, or say so in its keras.Input(dtype=...)."
        )


def _kind(dtype: str) -> str:
    if dtype in ("bool", "complex64", "complex128"):
        return dtype.rstrip("0123456789")
    return "float" if "float" in dtype else "int"
