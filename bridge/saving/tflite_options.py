"""The checks of other options, platforms and parameters that `tflite=True` of `save` makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import tree_util

from bridge.core.keys import to_physical
from bridge.exporting.export_model import is_exported
from bridge.saving.processes import is_multi_process
from xla_call_module.errors import PlatformError, ShardingError, StructureError, UnsupportedError
from xla_call_module.platforms import parse_platforms

__all__ = ["TFLITE_PLATFORM", "check_tflite_options", "check_tflite_params", "tflite_platforms"]

TFLITE_PLATFORM = "cpu"


def check_tflite_options(*, residuals: bool, updates: Any) -> None:
    """Refuse options that change what a signature runs.

    Raises:
        StructureError: one of them is on.
    """
    if residuals:
        raise StructureError(
            "residuals=True has the function compute what its gradient needs, which is nothing for "
            "TFLite. To do: leave out residuals=True, or tflite=True."
        )
    if updates is not None:
        raise StructureError(
            "updates= assigns variables, which the converter to TFLite in TensorFlow makes "
            "constants. To do: leave out updates=, so that the state is an argument and a result; "
            "or leave out tflite=True."
        )


def tflite_platforms(model: Any, platforms: Sequence[str] | None) -> Sequence[str] | None:
    """Return what a function is exported for: TFLite runs what is for a CPU.

    Args:
        model: as for `bridge.save`.
        platforms: those that were asked for.

    Raises:
        PlatformError: there are others among them.
    """
    if platforms is not None and parse_platforms(platforms) != (TFLITE_PLATFORM,):
        raise PlatformError(
            f"platforms is {', '.join(platforms)}, and tflite=True writes a file for cpu. To do: "
            "leave out platforms, and save a file for the others without tflite=True."
        )
    models = model.values() if isinstance(model, Mapping) else [model]
    return platforms if all(map(is_exported, models)) else [TFLITE_PLATFORM]


def check_tflite_params(params: Any) -> None:
    """Refuse parameters that the converter makes others of.

    Raises:
        UnsupportedError: there is an infinity in one.
        ShardingError: one is on devices of several processes.
    """
    if is_multi_process(params):
        raise ShardingError(
            "Several processes hold the parameters, and TFLite has them in one file. To do: gather "
            "them in one process first, or leave out tflite=True."
        )
    for path, leaf in tree_util.tree_leaves_with_path(params):
        array = np.asarray(to_physical(leaf))
        if jnp.issubdtype(array.dtype, jnp.floating) and np.isinf(array).any():
            raise UnsupportedError(
                f"The parameter params{tree_util.keystr(path)} has infinite elements, of which the "
                "converter to TFLite in TensorFlow makes the greatest numbers. To do: make them in "
                "the function, such as jnp.where(mask, 0, -jnp.inf)."
            )
