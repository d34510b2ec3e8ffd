"""`python -m tests.distributed.worker SCENARIO PORT SIZE RANK OUT`: one of several processes.

Each has two devices of the CPU, and they are connected by `jax.distributed`.
"""

from __future__ import annotations

import gc
import itertools
import os
import pathlib
import re
import signal
import sys
import time

import google_crc32c
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge
from bridge.saving import array_parts, processes
from savedmodel.variables import tensor_parts
from xla_call_module.errors import InteropError

DEVICES = 2
HEARTBEAT_SECONDS = 10


def values():
    """Return what all processes together hold."""
    numbers = np.random.default_rng(7)
    return {
        "rows": numbers.normal(size=(16, 6)).astype(np.float32),
        "columns": numbers.normal(size=(5, 16)).astype(jax.numpy.bfloat16),
        "grid": numbers.integers(0, 99, (8, 4, 2), np.int32),
        "partly": numbers.normal(size=(8, 3)).astype(np.float32),
        "turned": numbers.normal(size=(3, 8)).astype(np.float32),
        "halves": numbers.normal(size=(4, 6)).astype(np.float16),
        "replicated": numbers.normal(size=(7,)).astype(np.float32),
        "flags": numbers.integers(0, 2, (8,)).astype(bool),
        "empty": np.zeros((0, 8), np.float32),
        "local": numbers.normal(size=(3, 3)).astype(np.float32),
        "number": np.float32(2.5),
    }


SPECS = {
    "rows": P(("host", "device")),
    "columns": P(None, ("host", "device")),
    "grid": P("host", "device"),
    "partly": P("host"),
    "turned": P(None, "device"),
    "halves": P(None, "device"),
    "replicated": P(),
    "flags": P(("device", "host")),
    "empty": P(None, "host"),
}


def predict(params, x):
    """Something of each parameter."""
    total = sum(jax.numpy.sum(leaf.astype(np.float32)) for leaf in params.values())
    return x @ params["rows"] + total


def export():
    """The function, for one device, as every process has it."""
    specs = {
        name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in values().items()
    }
    x = jax.ShapeDtypeStruct((2, 16), np.float32)
    return jax.export.export(jax.jit(predict), platforms=["cpu"])(specs, x)


def spread(mesh, value, spec):
    """The array of which each process holds a part."""
    return jax.make_array_from_callback(
        value.shape, NamedSharding(mesh, spec), lambda index: value[index]
    )


def the_mesh():
    """Hosts and their devices."""
    return Mesh(np.array(jax.devices()).reshape(-1, DEVICES), ("host", "device"))


def params():
    """The parameters, spread by `SPECS`."""
    mesh = the_mesh()
    return {
        name: spread(mesh, value, SPECS[name]) if name in SPECS else value
        for name, value in values().items()
    }


def save(out, **options):
    """All of them save, and get the same."""
    written = bridge.save(export(), out, params=params(), **options)
    assert written.bytes == sum(file.stat().st_size for file in pathlib.Path(out).rglob("*.*"))


def step(params, x):
    """Two of the parameters, moved, and something of each."""
    return {"rows": params["rows"] + x.sum(), "number": params["number"] * 2}, predict(params, x)


def save_step(out):
    """A function that assigns some of the parameters, which are spread over all processes."""
    specs, x = export().in_avals[:-1], export().in_avals[-1]
    specs = jax.tree.unflatten(jax.tree.structure(values()), specs)
    exported = jax.export.export(jax.jit(step), platforms=["cpu"])(specs, x)
    bridge.save(exported, out, params=params(), updates=0)


def save_again(out):
    """Twice in one program, the second time over the first and in several files each."""
    save(out)
    save(out, overwrite=True, num_shards=3)


def update(out):
    """All of them put new values into a file that has others: into a new one, then in place."""
    zeros = {name: np.zeros_like(value) for name, value in values().items()}
    if jax.process_index() == 0:
        bridge.save(export(), f"{out}_zeros", params=zeros, num_shards=3)
    multihost_utils.sync_global_devices("saved")
    # The last one is a part, of which each process has some.
    first = bridge.update(f"{out}_zeros", params(), to=out)
    second = bridge.update(out, {"rows": params()["rows"]})
    size = sum(file.stat().st_size for file in pathlib.Path(out).rglob("*.*"))
    assert (second.updated, second.bytes) == (("rows",), size)
    assert not first.kept
    assert len(second.kept) == len(values()) - 1


def save_neighbours_as_one(out):
    """As with so many devices that the neighbours of one process are one part."""
    array_parts._MAX_PARTS = 1
    save(out)


def save_and_load(out):
    """All save a module for all devices, and load it on them, each its own slices."""
    mesh = the_mesh()
    rows, whole = NamedSharding(mesh, P(("host", "device"))), NamedSharding(mesh, P())
    value = np.arange(64 * 1000, dtype=np.float32).reshape(64, 1000)
    jitted = jax.jit(
        lambda params, x: x @ params["w"], in_shardings=({"w": rows}, whole), out_shardings=whole
    )
    x = np.linspace(0, 1, 64, dtype=np.float32)
    exported = jax.export.export(jitted)(
        {"w": jax.ShapeDtypeStruct(value.shape, value.dtype)},
        jax.ShapeDtypeStruct(x.shape, x.dtype),
    )
    bridge.save(exported, out, params={"w": spread(mesh, value, rows.spec)})
    read = []
    extend = google_crc32c.extend
    tensor_parts.google_crc32c.extend = lambda crc, data: (
        read.append(len(data)),
        extend(crc, data),
    )[1]
    model = bridge.load(out, mesh=mesh)
    for shard in model.params["w"].addressable_shards:
        assert np.array_equal(shard.data, value[shard.index])
    # The other files are smaller than a slice of one device.
    slices = sum(size for size in read if size >= value.nbytes // mesh.size)
    print("read", slices, "of", value.nbytes)
    result = model(x).addressable_shards[0].data
    assert np.allclose(result, x @ value, rtol=1e-5)


def with_other_arguments(out):
    """Process 1 means another file."""
    save(out if jax.process_index() == 0 else f"{out}_elsewhere", overwrite=True)


def without_slices(out):
    """TensorFlow reads no slices of a parameter that is spread over the processes."""
    SPECS["halves"] = P("host")
    save(out)


def where_one_is(out):
    """Process 0 refuses, as there is something already."""
    save(out, overwrite=False)


def with_a_failure(out):
    """The last process cannot read what it holds."""
    if jax.process_index() == jax.process_count() - 1:
        processes.JaxProcesses.report = _fail
    save(out, overwrite=True)


def _fail(self, written):
    raise OSError(28, "No space left on device")


def with_a_death(out):
    """The last process is killed while it writes."""
    if jax.process_index() == jax.process_count() - 1:
        processes.JaxProcesses.report = _die
    save(out, overwrite=True)


def with_a_slow_leader(out):
    """Process 0 writes for longer than the others would wait for one that does nothing."""
    processes._TIMEOUT_SECONDS = 3.0
    report, pauses = processes.JaxProcesses.report, itertools.repeat(1.1, 5)

    def dawdle(self, written):
        time.sleep(next(pauses, 0))
        return report(self, written)

    if jax.process_index() == 0:
        processes.JaxProcesses.report = dawdle
    save(out)


def with_a_dead_leader(out):
    """Process 0 is killed while it writes."""
    if jax.process_index() == 0:
        processes.JaxProcesses.report = _die
    save(out, overwrite=True)


def _die(self, written):
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def without_one(out):
    """The last process does not call `save`."""
    processes._TIMEOUT_SECONDS = 2.0
    if jax.process_index() < jax.process_count() - 1:
        save(out, overwrite=True)
    else:
        time.sleep(4)
        print("done", flush=True)
        os._exit(0)


def large(out):
    """256 MB in each process; how much more memory than before that takes, in MiB."""
    mesh = the_mesh()
    rows = 64 * mesh.size
    sharding = NamedSharding(mesh, P(("host", "device")))
    held = jax.make_array_from_callback(
        (rows, 1 << 19), sharding, lambda index: np.full((64, 1 << 19), index[0].start, np.float32)
    )
    specs = {"w": jax.ShapeDtypeStruct(held.shape, held.dtype)}
    exported = jax.export.export(jax.jit(lambda params, x: params["w"][0, :2] + x))(
        specs, jax.ShapeDtypeStruct((2,), np.float32)
    )
    # What made the arrays is gone when they are there.
    jax.block_until_ready(held)
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    start = time.perf_counter()
    bridge.save(exported, out, params={"w": held})
    print("seconds", time.perf_counter() - start)
    print("grown", _peak() - before)


def _peak():
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        save,
        save_step,
        save_again,
        update,
        save_neighbours_as_one,
        save_and_load,
        with_other_arguments,
        without_slices,
        where_one_is,
        with_a_failure,
        with_a_death,
        with_a_slow_leader,
        with_a_dead_leader,
        without_one,
        large,
    )
}


def main(scenario, port, size, rank, out):
    """Run one of `SCENARIOS` as one of the processes."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        int(size),
        int(rank),
        heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        shutdown_timeout_seconds=20,
    )
    try:
        SCENARIOS[scenario](out)
    except (InteropError, OSError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        # The end of the program waits for the others, who may be gone.
        os._exit(3)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
