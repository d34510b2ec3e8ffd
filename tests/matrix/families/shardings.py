"""Functions over eight devices, on the one that TensorFlow has, with either partitioner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from tests.matrix.case import Case, floats

_MESH = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
_PARAMS = {"w": floats(6, 4), "b": floats(4), "v": floats(4, 2)}
_SPLIT = {"w": PartitionSpec(None, "model"), "b": PartitionSpec(), "v": PartitionSpec("model")}

_ROWS = PartitionSpec("data")
_SYMBOLIC: Mapping[str, Any] = {"shapes": ("4*b, 6",), "more": ((floats(16, 6),),)}
_STATIC: Mapping[str, Any] = {}


def _on_mesh(spec: PartitionSpec) -> NamedSharding:
    return NamedSharding(_MESH, spec)


def _layers(params: Any, x: Any, constrain: Callable[[Any], Any] = lambda x: x) -> Any:
    hidden = constrain(jax.nn.relu(x @ params["w"] + params["b"]))
    return hidden @ params["v"], {"mean": hidden.mean(0)}


def _sharded(function: Callable[..., Any]) -> Any:
    shardings = ({key: _on_mesh(spec) for key, spec in _SPLIT.items()}, _on_mesh(_ROWS))
    return jax.jit(function, in_shardings=shardings)


def _constrained(function: Callable[..., Any]) -> Any:
    split = _on_mesh(PartitionSpec("data", "model"))

    def constrained(params: Any, x: Any) -> Any:
        return function(params, x, lambda hidden: lax.with_sharding_constraint(hidden, split))

    return _sharded(constrained)


CASES = tuple(
    Case(
        f"{name}_{'shardy' if shardy else 'gspmd'}",
        _layers,
        (floats(8, 6),),
        params=_PARAMS,
        jit=jit,
        shardy=shardy,
        **more,
    )
    for name, jit, more in (
        ("sharded", _sharded, _STATIC),
        ("sharding_constraint", _constrained, _STATIC),
        ("symbolic_sharded", _sharded, _SYMBOLIC),
        ("symbolic_sharding_constraint", _constrained, _SYMBOLIC),
    )
    for shardy in (True, False)
)
