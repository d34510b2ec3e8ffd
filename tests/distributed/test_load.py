"""`bridge.load` in several real processes: each reads only what its devices have."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import bridge
from tests.distributed import load_worker
from tests.policy.source import ROOT


@pytest.fixture
def folder(tmp_path):
    """A model, and the same with one byte of its last row changed."""
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), ()))
    jitted = jax.jit(
        lambda params, x: x @ params["w"], in_shardings=({"w": rows}, rows), out_shardings=whole
    )
    params = load_worker.values()
    exported = jax.export.export(jitted)(params, load_worker.x())
    bridge.save(exported, tmp_path / "good", params=params)
    shutil.copytree(tmp_path / "good", tmp_path / "damaged")
    (data,) = (tmp_path / "damaged" / "variables").glob("*.data-*")
    content = bytearray(data.read_bytes())
    place = content.index(params["w"][-1].tobytes())
    content[place + 1000] ^= 1
    data.write_bytes(content)
    return tmp_path


def _run(folder, size):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", load_worker.__name__, *map(str, (port, size, rank, folder))],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * size, outputs
    # What it prints is mixed with what Gloo does.
    return [(folder / f"said_{rank}").read_text().splitlines() for rank in range(size)]


def test_each_process_reads_only_its_part(folder):
    first, second = _run(folder, 2)
    assert first == ["rows 0 1 2 3 4 5 6 7", "called", "loaded"]
    assert second[:2] == ["rows 8 9 10 11 12 13 14 15", "called"]
    assert second[2].startswith("refused")
    assert "params/w" in second[2]
    with pytest.raises(bridge.InteropError, match="params/w"):
        np.asarray(bridge.load(folder / "damaged").params["w"])
