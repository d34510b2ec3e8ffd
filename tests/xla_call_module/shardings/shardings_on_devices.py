"""Compare shardings with JAX's on eight devices of a CPU; the number of comparisons is printed."""

from __future__ import annotations

import itertools

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.xla_call_module.sharding_strategies import device_indices, shard_shape
from xla_call_module.shardings.sharding_jax import sharding_from_jax, sharding_to_jax

SHAPE = (16, 8, 8)
ENTRIES = (None, "a", "b", "c", ("a", "b"), ("c", "a"), ("b", "c", "a"))


def _numbered(sharding, shape):
    """`devices_indices_map` with the places of the devices in the mesh instead of these."""
    devices = list(sharding._device_assignment)
    return {devices.index(d): i for d, i in sharding.devices_indices_map(shape).items()}


def _all_shardings():
    for devices in (jax.devices(), jax.devices()[::-1]):
        mesh = Mesh(np.array(devices).reshape(2, 2, 2), ("a", "b", "c"))
        for entries in itertools.product(ENTRIES, repeat=3):
            used = [n for e in entries if e for n in (e if isinstance(e, tuple) else (e,))]
            if len(set(used)) == len(used):
                yield NamedSharding(mesh, PartitionSpec(*entries))


def main() -> None:
    """Compare all."""
    jax.config.update("jax_num_cpu_devices", 8)
    done = 0
    named = list(_all_shardings())
    for sharding in named:
        found = sharding_from_jax(sharding, 3)
        assert device_indices(found, SHAPE) == _numbered(sharding, SHAPE), sharding
        assert shard_shape(found, SHAPE) == sharding.shard_shape(SHAPE), sharding
        assert sharding_to_jax(found).spec == sharding.spec
        done += 1
    for left, right in itertools.pairwise(named):
        if left.mesh == right.mesh:
            both = (sharding_from_jax(sharding, 3) for sharding in (left, right))
            assert next(both).is_equivalent_to(next(both)) == left.is_equivalent_to(right, 3)
    print(done)


if __name__ == "__main__":
    main()
