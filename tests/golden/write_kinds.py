"""`python -m tests.golden.write_kinds OUT [KIND ...]`: golden files of the running JAX.

Each folder in OUT has `model`, a SavedModel; `exported.bin`, the `Exported` of its first signature
as JAX serializes it with its VJPs; and `values.npz`: `KEY/argument/I`, `KEY/result/I`, and
`KEY/gradient/I`, the gradients of the sum of the floating results with respect to the floating
leaves of the arguments, and for order 2 `KEY/second/I`, those of the sum of these gradients.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Before JAX is imported: the sharded kinds are for two devices.
if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import bridge

DEVICES = 2
X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(2, 4)
W = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


class Pair:
    """A pytree node of a class that is registered."""

    __module__ = "tests.golden.write_kinds"  # also where this file is the program

    def __init__(self, left: Any, right: Any, scale: int) -> None:
        self.left, self.right, self.scale = left, right, scale


jax.tree_util.register_pytree_with_keys(
    Pair,
    lambda pair: (
        (
            (jax.tree_util.GetAttrKey("left"), pair.left),
            (jax.tree_util.GetAttrKey("right"), pair.right),
        ),
        pair.scale,
    ),
    lambda scale, children: Pair(*children, scale),
)
jax.export.register_pytree_node_serialization(
    Pair,
    serialized_name="tests.golden.Pair",
    serialize_auxdata=lambda scale: str(scale).encode(),
    deserialize_auxdata=lambda data: int(data.decode()),
)


@dataclass(frozen=True)
class Kind:
    """The content of a file: jitted functions by key, and the arguments of each.

    Attributes:
        make: returns by key a jitted function, the specs that it is exported for, and arguments.
        order: of the gradients that are saved.
        devices: how many it runs on.
        options: of `bridge.save`.
    """

    make: Callable[[], Mapping[str, tuple[Any, tuple[Any, ...], tuple[Any, ...]]]]
    order: int = 1
    devices: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)


def _specs(*arrays: Any) -> tuple[Any, ...]:
    return tuple(jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), a) for a in arrays)


def _layer(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w) * 2


def _plain() -> Any:
    return {"f": (jax.jit(_layer), _specs(W, X), (W, X))}


def _symbolic() -> Any:
    rows, columns = jax.export.symbolic_shape(
        "b, c", constraints=["b >= 2", "mod(b, 2) == 0", "c <= 8"]
    )

    def f(x: Any, y: Any) -> Any:
        return {"sum": jnp.sin(x) + y.reshape(-1)[: x.shape[1]], "twice": jnp.concatenate([x, x])}

    specs = (
        jax.ShapeDtypeStruct((rows, columns), np.float32),
        jax.ShapeDtypeStruct((2 * columns,), np.float32),
    )
    return {"f": (jax.jit(f), specs, (X, np.arange(8, dtype=np.float32)))}


def _pytrees() -> Any:
    def f(tree: Any, x: Any) -> Any:
        pair = tree["pair"]
        scores = pair.left @ pair.right * pair.scale + x
        return {"pair": Pair(scores, jnp.sum(scores), 3), "none": None, "list": [(x,), ()]}

    tree = {"pair": Pair(X, W, 2), "empty": {}, "none": None}
    x = np.ones((2, 3), np.float32)
    return {"f": (jax.jit(f), _specs(tree, x), (tree, x))}


def _mesh() -> Any:
    """Return a mesh of devices; an abstract one in a process that only reads the arguments."""
    if len(jax.devices()) < DEVICES:
        return jax.sharding.AbstractMesh((DEVICES,), ("rows",))
    return jax.make_mesh((DEVICES,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))


def _sharded() -> Any:
    mesh = _mesh()
    rows, whole = (NamedSharding(mesh, PartitionSpec(*names)) for names in (("rows",), ()))
    jitted = jax.jit(_layer, in_shardings=(whole, rows), out_shardings=rows)
    return {"f": (jitted, _specs(W, X), (W, X))}


def _gspmd() -> Any:
    return _sharded()


def _shard_map() -> Any:
    mesh = _mesh()
    names = PartitionSpec("rows")

    def f(x: Any) -> Any:
        return jnp.sin(x) * jax.lax.psum(jnp.cos(x), "rows")

    jitted = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=names, out_specs=names))
    return {"f": (jitted, _specs(X), (X,))}


def _linear_algebra() -> Any:
    def f(a: Any) -> Any:
        a = a @ a.T + 3 * jnp.eye(4)
        return jnp.linalg.cholesky(a), jnp.linalg.inv(a), jnp.linalg.slogdet(a)[1]

    a = np.cos(np.arange(16, dtype=np.float32)).reshape(4, 4)
    return {"f": (jax.jit(f), _specs(a), (a,))}


def _keys() -> Any:
    def f(key: Any, x: Any) -> Any:
        key, other = jax.random.split(key)
        return jax.random.key_data(key), jax.random.normal(other, x.shape) * x

    key = jax.random.key(7)
    return {"f": (jax.jit(f), (jax.ShapeDtypeStruct(key.shape, key.dtype), *_specs(X)), (key, X))}


def _several() -> Any:
    def classify(x: Any) -> Any:
        return {"best": jnp.argmax(x, axis=-1), "scores": jax.nn.softmax(x)}

    def embed(x: Any) -> Any:
        return jax.lax.erf(x)

    return {
        name: (jax.jit(f), _specs(X), (X,))
        for name, f in (("classify", classify), ("embed", embed))
    }


SEVERAL_DEVICES = ("sharded_gspmd", "sharded_shardy", "shard_map")
KINDS: Mapping[str, Kind] = {
    "plain": Kind(_plain),
    "symbolic": Kind(_symbolic),
    "pytrees": Kind(_pytrees),
    "sharded_gspmd": Kind(_gspmd, devices=DEVICES),
    "sharded_shardy": Kind(_sharded, devices=DEVICES),
    "shard_map": Kind(_shard_map, devices=DEVICES),
    "order_2": Kind(_plain, order=2),
    "linear_algebra": Kind(_linear_algebra),
    "keys": Kind(_keys),
    "several": Kind(_several),
}


def values(function: Any, arguments: tuple[Any, ...], order: int) -> Mapping[str, list[Any]]:
    """Return arguments, results and gradients, the leaves of each in their order."""
    leaves, tree = jax.tree.flatten(arguments)
    places = [i for i, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, np.floating)]

    def total(*floats: Any) -> Any:
        given = list(leaves)
        for place, leaf in zip(places, floats, strict=True):
            given[place] = leaf
        results = jax.tree.leaves(function(*jax.tree.unflatten(tree, given)))
        return sum(jnp.sum(leaf) for leaf in results if jnp.issubdtype(leaf.dtype, np.floating))

    def first(*floats: Any) -> Any:
        return jax.grad(total, argnums=tuple(range(len(floats))))(*floats)

    def second(*floats: Any) -> Any:
        whole = jax.grad(lambda *f: sum(map(jnp.sum, first(*f))), argnums=tuple(range(len(floats))))
        return whole(*floats)

    floats = [leaves[place] for place in places]
    made = {
        "argument": arrays_of(leaves),
        "result": arrays_of(jax.tree.leaves(function(*arguments))),
    }
    for kind, gradient in (("gradient", first), ("second", second))[:order]:
        made[kind] = arrays_of(gradient(*floats))
    return made


def arrays_of(leaves: Any) -> list[Any]:
    """Return the leaves as arrays of NumPy; a random key is its data."""
    is_key = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in leaves]
    return [
        np.asarray(jax.random.key_data(leaf) if key else leaf)
        for leaf, key in zip(leaves, is_key, strict=True)
    ]


def main(out: Path, names: Sequence[str]) -> None:
    """Write these kinds, or all."""
    # The names of files alone, so that the place of the checkout is in no file.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    for name in names or KINDS:
        kind = KINDS[name]
        if name == "sharded_gspmd":
            jax.config.update("jax_use_shardy_partitioner", False)
        made = kind.make()
        exported = {
            key: jax.export.export(function, platforms=["cpu", "cuda", "tpu"])(*specs)
            for key, (function, specs, _) in made.items()
        }
        bridge.save(exported, out / name / "model", gradient_order=kind.order, **kind.options)
        first = next(iter(exported.values()))
        (out / name / "exported.bin").write_bytes(first.serialize(vjp_order=kind.order))
        arrays = {
            f"{key}/{what}/{index}": leaf
            for key, (function, _, arguments) in made.items()
            for what, leaves in values(function, arguments, kind.order).items()
            for index, leaf in enumerate(leaves)
        }
        np.savez_compressed(out / name / "values.npz", **arrays)
        if name == "sharded_gspmd":
            jax.config.update("jax_use_shardy_partitioner", True)
        print(f"{name}: {len(arrays)} arrays")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
