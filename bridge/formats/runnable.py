"""`Runnable`: a function in a file of any format, that is called with arrays by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from savedmodel.model import DEFAULT_SIGNATURE
from xla_call_module.call import TensorSpec
from xla_call_module.dimensions import symbols
from xla_call_module.dtypes import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """A function that can be called with arrays by name.

    Attributes:
        name: the key of the signature, or the name of the function.
        inputs: the spec of each input; its path is that of the argument.
        bind: returns a function that calls it with these inputs, and returns the results in the
            order of the outputs, as arrays of the runtime.
        defaults: the values of inputs that need not be passed.
        accepts: returns whether the function takes arrays with these sizes of its dimension
            variables; by default it asserts nothing of them.
        signature: the key of the signature; the default one for a file of one function.
    """

    name: str
    inputs: Mapping[str, TensorSpec]
    outputs: tuple[str, ...]
    bind: Callable[[Mapping[str, Array]], Callable[[], Any]]
    defaults: Mapping[str, Array]
    accepts: Callable[[Mapping[str, int]], bool] = lambda _: True
    signature: str = DEFAULT_SIGNATURE

    @property
    def symbols(self) -> tuple[str, ...]:
        """The names of the dimension variables of the inputs, in their order."""
        dims = (dim for spec in self.inputs.values() for dim in spec.shape or ())
        return tuple(dict.fromkeys(name for dim in dims for name in sorted(symbols(dim))))

    def call(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by their names."""
        return dict(zip(self.outputs, map(np.asarray, self.bind(arrays)()), strict=True))
