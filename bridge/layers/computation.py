"""`LayerComputation`: the functions of a Keras layer, ready to run in TensorFlow or in JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bridge.layers.artifact import LayerArtifact, LayerFunction, LayerWeight
from bridge.layers.layer_structures import fill
from savedmodel.protos.structures import NONE, Structure, leaves
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import Array
from xla_call_module.errors import DtypeError, FormatError, StructureError
from xla_call_module.passes.constants import key_of

# A function of flat tensors.
Run = Callable[[Sequence[Any]], list[Any]]
# Makes a `Run` of a function of a layer, with the values of its constants.
MakeRun = Callable[[LayerFunction, Mapping[str, Array]], Run]


class LayerComputation:
    """The functions of a layer, and the initial values of its variables.

    Attributes:
        weights: the variables that the layer has from the beginning.
        values: the initial value of each of them; None in a layer that was read, whose values come
            afterwards.
        shared: the weights that are variables of another layer, by their index.
        takes_mask: whether the function that waits for the inputs has a parameter `mask`.
    """

    weights: tuple[LayerWeight, ...]
    values: tuple[Array, ...] | None
    shared: Mapping[int, Any]
    takes_mask: bool

    def __init__(
        self,
        *,
        weights: tuple[LayerWeight, ...],
        values: tuple[Array, ...] | None,
        artifact: LayerArtifact | None = None,
        constants: Mapping[str, Array] | None = None,
        export: Callable[[Sequence[Any], Mapping[str, Any]], Any] | None = None,
        shared: Mapping[int, Any] | None = None,
        trees: tuple[Structure, Structure] = (NONE, NONE),
        takes_mask: bool = False,
    ) -> None:
        """Take over functions and initial values, which are documented above."""
        self.weights = weights
        self.shared = dict(shared or {})
        self.values = values
        self.takes_mask = takes_mask
        self._artifact = artifact
        self._constants: dict[str, Array] = dict(constants or {})
        self._export = export
        self._runs: dict[bool, Run] = {}
        self._trees = trees if artifact is None else (artifact.params, artifact.state)

    @property
    def is_ready(self) -> bool:
        """Return whether the functions are exported."""
        return self._artifact is not None

    @property
    def artifact(self) -> LayerArtifact:
        """The functions and variables of the layer."""
        if self._artifact is None:
            raise StructureError(
                "The function of an ExportedLayer is exported when the layer is first called, "
                "and it has not been. To do: call it, or the model, before it is saved."
            )
        return self._artifact

    @property
    def parameters(self) -> int:
        """The number of weights that are parameters; the others are state."""
        return sum(1 for _ in leaves(self._trees[0]))

    def params(self, variables: Sequence[Any]) -> Any:
        """Return the pytree of the parameters, of the variables for `weights`."""
        return fill(self._trees[0], variables.__getitem__)

    def state(self, variables: Sequence[Any]) -> Any:
        """Return the pytree of the state, of the variables for `weights`."""
        return fill(self._trees[1], variables.__getitem__)

    @property
    def constants_are_known(self) -> bool:
        """Return whether the values of all constants are known."""
        return len(self._constants) == len(self.artifact.constants)

    @property
    def constants(self) -> Mapping[str, Array]:
        """The constants whose values are known, by their hashes."""
        return self._constants

    def prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Export the functions for inputs, whose leaves are `ArgumentSpec`s."""
        assert self._export is not None
        self._artifact, constants = self._export(args, kwargs)
        self._constants.update(constants)

    def remember(self, constant: LayerWeight, value: Array) -> bool:
        """Keep the value of a constant if it is the right one."""
        if constant.name not in self._constants:
            value = np.asarray(value).astype(constant.dtype.numpy, copy=False)
            if key_of(value) != constant.name:
                return False
            self._constants[constant.name] = value
        return True

    def runner(self, make_run: MakeRun, *, training: bool) -> tuple[LayerFunction, Run]:
        """Return the function for training or inference, and the `Run` of it."""
        function = self.artifact.function(training=training)
        key = training and self.artifact.training is not None
        if key not in self._runs:
            wanted = {name for call in function.chain for name in call.hoisted}
            if missing := sorted(wanted - self._constants.keys()):
                raise FormatError(
                    f"The weight constants/{missing[0][:12]}… of the layer, a constant of "
                    f"{function.name}, has another value than the one that was written. To do: "
                    "load the weights from the file that the layer comes from."
                )
            self._runs[key] = make_run(function, self._constants)
        return function, self._runs[key]


def check_cast(spec: TensorSpec, dtype: str, name: str) -> None:
    """Refuse an input of another kind than the function takes."""
    if _kind(spec.dtype.name) != _kind(dtype):
        raise DtypeError(
            f"{spec.path} of {name} arrived as {dtype}, and the function was exported for {spec}. "
            "To do: cast the input, or say so in its keras.Input(dtype=...)."
        )


def _kind(dtype: str) -> str:
    if dtype in ("bool", "complex64", "complex128"):
        return dtype.rstrip("0123456789")
    return "float" if "float" in dtype else "int"
