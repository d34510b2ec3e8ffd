"""`python -m tests.distributed.load_worker PORT SIZE RANK FOLDER`: one of several processes.

It loads the models in a folder on a mesh of all processes' devices, and writes what it found to the
file `said_RANK` there.
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import bridge
from bridge.meshes import mesh_of
from xla_call_module.errors import FormatError

DEVICES = 4
ROWS = 16
COLUMNS = 1 << 18


def values():
    """A parameter of 16 MiB, of which each of eight devices has two rows."""
    return {"w": np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)}


def x():
    return np.linspace(0, 1, ROWS, dtype=np.float32)


def main() -> None:
    port, size, rank = map(int, sys.argv[1:4])
    folder = Path(sys.argv[4])
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    mesh = mesh_of(folder / "good")
    assert mesh.size == size * DEVICES

    model = bridge.load(folder / "good", mesh=mesh)
    (w,) = model.params.values()
    for shard in w.addressable_shards:
        assert np.array_equal(shard.data, values()["w"][shard.index])
    rows = sorted({row for s in w.addressable_shards for row in range(ROWS)[s.index[0]]})
    said = [f"rows {' '.join(map(str, rows))}"]
    given = jax.make_array_from_callback(
        (ROWS,), NamedSharding(mesh, PartitionSpec("data")), lambda index: x()[index]
    )
    for argument in (x(), jax.numpy.asarray(x()), given):
        found = model(argument)
        assert found.is_fully_replicated
        assert np.allclose(found.addressable_shards[0].data, x() @ values()["w"], rtol=1e-5)
    said.append("called")

    # The last rows of this one are damaged, and no device of process 0 has any of them.
    damaged = bridge.load(folder / "damaged", mesh=mesh)
    try:
        (w,) = damaged.params.values()
    except FormatError as error:
        said.append(f"refused {error}")
    else:
        for shard in w.addressable_shards:
            assert np.array_equal(shard.data, values()["w"][shard.index])
        said.append("loaded")
    (folder / f"said_{rank}").write_text("\n".join(said))


if __name__ == "__main__":
    main()
