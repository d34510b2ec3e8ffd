"""`bridge.save` in several real processes, which JAX connects over the loopback address."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
import tensorflow as tf

import bridge
import savedmodel
from savedmodel.variables.tensor_bundle import read_index
from tests.distributed import worker
from tests.policy.source import ROOT

X = np.linspace(-1, 1, 32, dtype=np.float32).reshape(2, 16)
FAILED, KILLED = 3, -signal.SIGKILL
# How JAX's runtime ends a process when another one has died.
ENDED = -signal.SIGABRT
PREFIX = "variables/variables"


def _run(scenario, size, out, seconds=90):
    """Return what each process returned and printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.distributed.worker", scenario, str(port), str(size)]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(out)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    end = time.monotonic() + seconds
    try:
        outputs = [p.communicate(timeout=max(1, end - time.monotonic()))[0] for p in started]
    finally:
        for process in started:
            process.kill()
    return [(p.returncode, output) for p, output in zip(started, outputs, strict=True)]


def _succeed(scenario, size, out):
    results = _run(scenario, size, out)
    assert [code for code, _ in results] == [0] * size, results
    return [output for _, output in results]


def _files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder that two processes wrote."""
    folder = tmp_path_factory.mktemp("two") / "m"
    _succeed("save", 2, folder)
    return folder


def _check_values(params):
    expected = worker.values()
    assert params.keys() == expected.keys()
    for name, value in expected.items():
        found = np.asarray(params[name])
        assert (found.dtype, found.shape) == (value.dtype, value.shape)
        assert found.tobytes() == value.tobytes()


def _result():
    return np.asarray(worker.predict(worker.values(), X))


def test_tensorflow_loads_it_whole(two):
    loaded = tf.saved_model.load(two)
    _check_values({name: variable.numpy() for name, variable in loaded.params.items()})
    np.testing.assert_allclose(
        loaded.signatures["serving_default"](x=X)["output_0"], _result(), 1e-5
    )


def test_new_values_of_all_processes(tmp_path):
    _succeed("update", 2, tmp_path / "m")
    _check_values(bridge.load(tmp_path / "m").params)
    loaded = tf.saved_model.load(tmp_path / "m")
    _check_values({name: variable.numpy() for name, variable in loaded.params.items()})
    zeros, new = (tmp_path / name / "saved_model.pb" for name in ("m_zeros", "m"))
    assert os.path.samefile(zeros, new)
    assert {path.name for path in tmp_path.iterdir()} == {"m", "m_zeros"}


def test_a_session_loads_it_whole(two):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(two))
        signature = graph.signature_def["serving_default"]
        result = session.run(signature.outputs["output_0"].name, {signature.inputs["x"].name: X})
    np.testing.assert_allclose(result, _result(), 1e-5)


def test_it_is_loaded_here(two):
    _check_values(bridge.load(two).params)
    np.testing.assert_allclose(bridge.load(two)(X), _result(), 1e-5)
    _check_values({variable.name: variable.shared() for variable in savedmodel.read(two).variables})


def test_tensorflow_saves_it_again(two, tmp_path):
    loaded = tf.saved_model.load(two)
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    _check_values(bridge.load(tmp_path / "again").params)


def test_what_several_hold_is_assigned(tmp_path):
    _succeed("save_step", 2, tmp_path / "m")
    loaded = tf.saved_model.load(tmp_path / "m")
    state = worker.values()
    for _ in range(2):
        result = loaded.signatures["serving_default"](x=X)["output_0"]
        new, want = worker.step(state, X)
        np.testing.assert_allclose(result, want, 1e-4)
        state |= {name: np.asarray(value) for name, value in new.items()}
    for name, value in state.items():
        np.testing.assert_allclose(
            np.float32(loaded.params[name].numpy()), np.float32(value), 1e-5, 1e-5, err_msg=name
        )
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    new, _ = bridge.load(tmp_path / "again").default(X)
    assert {name: value.shape for name, value in new.items()} == {"number": (), "rows": (16, 6)}
    np.testing.assert_allclose(new["number"], 8 * worker.values()["number"])


def test_each_process_writes_what_it_holds_and_replicas_once(two):
    index = read_index(two / PREFIX)
    assert index.num_shards == 2
    holders: dict[str, list[int]] = {}
    for key, entry in index.entries.items():
        if not entry.slices:
            found = re.search(r"params/(\w+)/", key)
            holders.setdefault(found[1] if found else "", []).append(entry.shard_id)
    holders = {name: sorted(ids) for name, ids in holders.items()}
    assert holders == {
        "": [0],
        "rows": [0, 0, 1, 1],
        "columns": [0, 0, 1, 1],
        "grid": [0, 0, 1, 1],
        "partly": [0, 1],
        "turned": [0, 0],
        "flags": [0, 0, 1, 1],
        "halves": [0],
        "replicated": [0],
        "empty": [0],
        "local": [0],
        "number": [0],
    }
    size = sum(entry.size for entry in index.entries.values())
    strings = index.entries["_CHECKPOINTABLE_OBJECT_GRAPH"].size
    assert size - strings == sum(value.nbytes for value in worker.values().values())


def test_what_is_saved_together_is_loaded_together(tmp_path):
    for output in _succeed("save_and_load", 2, tmp_path / "m"):
        assert "read 128000 of 256000" in output
    index = read_index(tmp_path / "m" / PREFIX)
    assert sorted(entry.shard_id for entry in index.entries.values() if entry.size > 20_000) == [
        *(0, 0, 1, 1)
    ]


def test_neighbours_of_one_process_are_one_slice_where_there_are_many(tmp_path):
    _succeed("save_neighbours_as_one", 2, tmp_path / "m")
    index = read_index(tmp_path / "m" / PREFIX)
    slices = {
        re.search(r"params/(\w+)/", key)[1]: entry.slices
        for key, entry in index.entries.items()
        if entry.slices
    }
    assert slices == {
        "rows": (((0, 8), (0, None)), ((8, 8), (0, None))),
        "columns": (((0, None), (0, 8)), ((0, None), (8, 8))),
        "grid": (((0, 4), (0, None), (0, None)), ((4, 4), (0, None), (0, None))),
        "partly": (((0, 4), (0, None)), ((4, 4), (0, None))),
        "flags": (((0, 2),), ((2, 2),), ((4, 2),), ((6, 2),)),
    }
    _check_values(bridge.load(tmp_path / "m").params)
    loaded = tf.saved_model.load(tmp_path / "m")
    _check_values({name: variable.numpy() for name, variable in loaded.params.items()})


def test_shards_of_one_process_are_slices_of_one_data_file(tmp_path):
    _succeed("save", 1, tmp_path / "m")
    index = read_index(tmp_path / "m" / PREFIX)
    assert index.num_shards == 1
    slices = {
        re.search(r"params/(\w+)/", key)[1]: entry.slices
        for key, entry in index.entries.items()
        if entry.slices
    }
    assert slices == {
        "rows": (((0, 8), (0, None)), ((8, 8), (0, None))),
        "columns": (((0, None), (0, 8)), ((0, None), (8, 8))),
        "grid": (((0, None), (0, 2), (0, None)), ((0, None), (2, 2), (0, None))),
        "turned": (((0, None), (0, 4)), ((0, None), (4, 4))),
        "flags": (((0, 4),), ((4, 4),)),
    }
    loaded = tf.saved_model.load(tmp_path / "m")
    _check_values({name: variable.numpy() for name, variable in loaded.params.items()})
    _check_values(bridge.load(tmp_path / "m").params)


def test_nothing_else_is_left(two):
    assert sorted(_files(two)) == [
        "saved_model.pb",
        f"{PREFIX}.data-00000-of-00002",
        f"{PREFIX}.data-00001-of-00002",
        f"{PREFIX}.index",
    ]
    assert [path.name for path in two.parent.iterdir()] == ["m"]


def test_a_part_is_read_out_of_the_slices_that_it_meets(two):
    variables = {variable.name: variable for variable in savedmodel.read(two).variables}
    for name, value in worker.values().items():
        index = tuple(slice(size // 3, size) for size in value.shape)
        np.testing.assert_array_equal(variables[name].part(index), value[index])


def test_four_processes_and_the_same_again_give_the_same_bytes(two, tmp_path):
    _succeed("save", 4, tmp_path / "four")
    assert read_index(tmp_path / "four" / PREFIX).num_shards == 4
    loaded = tf.saved_model.load(tmp_path / "four")
    _check_values({name: variable.numpy() for name, variable in loaded.params.items()})
    _succeed("save", 2, tmp_path / "again")
    assert _files(tmp_path / "again") == _files(two)


def test_twice_in_one_program(tmp_path):
    _succeed("save_again", 2, tmp_path / "m")
    assert read_index(tmp_path / "m" / PREFIX).num_shards == 6
    _check_values(bridge.load(tmp_path / "m").params)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_the_others_wait_while_process_0_writes(tmp_path):
    _succeed("with_a_slow_leader", 2, tmp_path / "m")
    _check_values(bridge.load(tmp_path / "m").params)


def test_what_tensorflow_would_not_put_together_is_refused(tmp_path):
    out = tmp_path / "m"
    results = _run("without_slices", 2, out)
    match = r"DtypeError: The parameter halves is float16 and spread over several processes, and"
    for code, output in results:
        assert code == FAILED, output
        assert re.search(match, output), output
    assert not out.exists()


@pytest.mark.parametrize(
    ("scenario", "messages"),
    [
        (
            "with_other_arguments",
            [
                r"StructureError: Process 1 was called with another path than .*/m_elsewhere, and",
                r"Process 0 has failed: StructureError: Process 1 was called with another path",
            ],
        ),
        (
            "where_one_is",
            [
                r"StructureError: .*/m exists\. To do: pass overwrite=True",
                r"Process 0 has failed: StructureError: .*/m exists",
            ],
        ),
        (
            "with_a_failure",
            [
                r"Process 1 has failed: OSError: \[Errno 28\] No space left .* older one is as",
                r"OSError: \[Errno 28\] No space left on device",
            ],
        ),
        (
            "without_one",
            [
                r"InteropError: Process 0 has waited 2 seconds, in which process 1 has not called",
                "done",
            ],
        ),
    ],
)
def test_a_failure_ends_in_an_error_everywhere(two, tmp_path, scenario, messages):
    _copy(two, tmp_path / "m")
    before = _files(tmp_path)
    start = time.monotonic()
    for (code, output), message in zip(_run(scenario, 2, tmp_path / "m"), messages, strict=True):
        assert re.search(message, output), output
        assert code == (0 if message == "done" else FAILED)
    assert time.monotonic() - start < 60
    assert _files(tmp_path) == before


def _copy(folder, target):
    subprocess.run(["cp", "-r", folder, target], check=True)


@pytest.mark.parametrize(("scenario", "killed"), [("with_a_death", 1), ("with_a_dead_leader", 0)])
def test_a_death_leaves_the_old_version(two, tmp_path, scenario, killed):
    _copy(two, tmp_path / "m")
    before = _files(tmp_path / "m")
    results = _run(scenario, 2, tmp_path / "m")
    assert results[killed][0] == KILLED
    code, output = results[1 - killed]
    assert code in (FAILED, ENDED), output
    assert "another task died" in output
    assert _files(tmp_path / "m") == before
    (left,) = set(tmp_path.iterdir()) - {tmp_path / "m"}
    assert left.name.startswith(".m.jax-tf-bridge-")
    os.utime(left, (0, 0))
    bridge.save(worker.export(), tmp_path / "m", params=worker.values(), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("size", [1, 2])
def test_the_memory_of_each_process_is_what_it_holds(tmp_path, size):
    outputs = _succeed("large", size, tmp_path / "m")
    for output in outputs:
        assert int(re.search(r"grown (-?\d+)", output)[1]) <= 64
    variable = savedmodel.read(tmp_path / "m").variables[0]
    assert variable.shape == (128 * size, 1 << 19)
    for row in range(0, 128 * size, 13):
        part = variable.part((slice(row, row + 1), slice(0, None)))
        assert part.min() == part.max() == row // 64 * 64


def test_an_address_is_refused(two, tmp_path):
    from savedmodel.write import write_together
    from xla_call_module.errors import StructureError

    class Alone:
        rank, size = 0, 2

        def fail(self, error):
            self.error = error

    group = Alone()
    with pytest.raises(StructureError, match="gs://bucket/m is an address, and several processes"):
        write_together(savedmodel.read(two), "gs://bucket/m", group=group)
    assert "address" in str(group.error)


def test_a_process_that_is_not_connected(monkeypatch):
    from bridge.saving import processes
    from xla_call_module.errors import StructureError

    monkeypatch.setattr(processes, "coordination_client", lambda: None)
    with pytest.raises(StructureError, match=r"call jax\.distributed\.initialize\(\) in each"):
        processes.JaxProcesses()
    assert not processes.is_multi_process(jax.numpy.ones(3))
