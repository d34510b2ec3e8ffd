"""The gate by which equations of JAX come in: which parameters say something, and which do not.

A parameter that nobody reads, with a value that is not its default, is refused, so that what a new
release of JAX adds is not overlooked.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from jax import export

from xla_call_module.dimensions import parse_size
from xla_call_module.errors import UnsupportedError
from xla_call_module.size_polynomials import Dim, Shape

# The parameters that emitters read, by primitives.
_READ = {
    name: frozenset(parameters.split())
    for names, parameters in {
        "argmax argmin": "axes",
        "bitcast_convert_type": "",
        "broadcast_in_dim": "broadcast_dimensions",
        "concatenate": "dimension",
        "cond": "branches",
        "conv_general_dilated": "window_strides padding rhs_dilation dimension_numbers "
        "feature_group_count",
        "convert_element_type": "",
        "cumsum": "axis reverse",
        "dim_as_value": "dim",
        "dot_general": "dimension_numbers",
        "dynamic_slice": "slice_sizes",
        "gather": "dimension_numbers slice_sizes mode",
        "integer_pow": "y",
        "iota": "dimension",
        "pad": "padding_config",
        "reduce_and reduce_max reduce_min reduce_or reduce_prod reduce_sum": "axes",
        "reduce_window_max": "window_dimensions window_strides padding",
        "rev": "dimensions",
        "round": "rounding_method",
        "scatter scatter-add scatter-max scatter-min scatter-mul": "dimension_numbers mode",
        "slice": "start_indices limit_indices strides",
        "split": "sizes axis",
        "stack": "axis",
        "top_k": "k axis",
        "tile": "reps",
        "transpose": "permutation",
        "unstack": "axis",
        "while": "cond_jaxpr body_jaxpr cond_nconsts body_nconsts",
    }.items()
    for name in names.split()
}
# What says nothing of the numbers, or what the types of the results say, too.
_HINTS = frozenset({
    "accuracy", "dtype", "index_dtype", "indices_are_sorted", "is_stable", "linear", "new_dtype",
    "new_sizes", "out_sharding", "precision", "preferred_element_type", "shape", "sharding",
    "unique_indices", "update_consts", "update_jaxpr", "weak_type",
})  # fmt: skip
# What nobody reads, and may only be one of these.
_NEUTRAL: Mapping[str, Any] = {
    "base_dilation": 1, "batch_group_count": 1, "dimensions": None, "fill_value": None,
    "lhs_dilation": 1, "mode": None, "operand": None, "out_dtype": None, "window_dilation": 1,
}  # fmt: skip
_DEFAULTS: Mapping[str, Any] = {"axis": -1}


def parameters_of(equation: Any) -> dict[str, Any]:
    """Return the parameters of an equation that say something of its results."""
    name = equation.primitive.name
    read = _READ.get(name, frozenset())
    found = {key: _DEFAULTS[key] for key in read & _DEFAULTS.keys()}
    for key, value in equation.params.items():
        if key in read:
            found[key] = _with_sizes(value)
        elif key not in _HINTS and not _is_neutral(name, key, value):
            raise UnsupportedError(
                f"JAX's operation {name} has the parameter {key}={value!r}, which is not known. To "
                "do: use a release of JAX that this one was tested with, or report it."
            )
    return found


def _with_sizes(value: Any) -> Any:
    """Return a parameter with the sizes in it as they are in blocks."""
    if type(value) is tuple:
        return tuple(map(_with_sizes, value))
    is_size = isinstance(value, np.integer) or export.is_symbolic_dim(value)
    return size_of(value) if is_size else value


def _is_neutral(name: str, key: str, value: Any) -> bool:
    if key == "dimensions" and name in ("squeeze", "expand_dims"):
        return True
    if key == "fill_value" or key not in _NEUTRAL:
        return key in _NEUTRAL
    return all(part == _NEUTRAL[key] for part in (value if isinstance(value, tuple) else (value,)))


def type_of(aval: Any) -> tuple[Shape, np.dtype[Any]]:
    """Return the shape and the dtype of what JAX traces."""
    return shape_of(aval.shape), np.dtype(aval.dtype)


def shape_of(shape: Any) -> Shape:
    """Return a shape with the sizes that JAX has as symbolic ones."""
    return tuple(map(size_of, shape))


def size_of(size: Any) -> Dim:
    """Return a size that JAX may have as a symbolic one."""
    return int(size) if isinstance(size, (int, np.integer)) else _parsed(str(size))


@cache
def _parsed(text: str) -> Dim:
    return parse_size(text)
