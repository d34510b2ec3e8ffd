"""Arrays of files that are read one at a time."""

from __future__ import annotations

import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.exporting import stored_arrays
from bridge.exporting.parameter_files import open_parameters
from bridge.exporting.stored_arrays import StoredArray
from tests.policy.source import ROOT
from xla_call_module.errors import DtypeError, FormatError

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float64", "complex64"]
ARRAYS = {name: np.array([[1, 0, 1], [0, 1, 1]], name) for name in DTYPES}
ARRAYS |= {"scalar": np.float32(3), "empty": np.zeros((0, 2), np.float32)}
SMALL = {name: np.array([1.5, -2], name) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}


def _write(kind, place, arrays):
    path = place / f"p.{kind}"
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "safetensors":
        save = pytest.importorskip("safetensors.numpy").save_file
        save({key: np.asarray(value) for key, value in arrays.items()}, path)
    else:
        checkpoint = pytest.importorskip("orbax.checkpoint")
        checkpoint.PyTreeCheckpointer().save(path, arrays)
    return path


@pytest.fixture(params=["npz", "safetensors", "orbax"])
def kind(request):
    return request.param


@pytest.mark.parametrize("group", [1, 30, 1 << 26])
def test_each_array_is_as_it_was_written(kind, tmp_path, monkeypatch, group):
    monkeypatch.setattr(stored_arrays, "_GROUP_BYTES", group)
    arrays = ARRAYS | (SMALL if kind == "orbax" else {})
    # TensorStore has no arrays without elements.
    written = {key: value for key, value in arrays.items() if value.size or kind != "orbax"}
    with open_parameters(_write(kind, tmp_path, written)) as found:
        assert found.keys() == written.keys()
        for key in [*sorted(found), *sorted(found, reverse=True)]:
            stored, want = found[key], np.asarray(written[key])
            assert isinstance(stored, StoredArray)
            assert (stored.shape, stored.dtype) == (want.shape, want.dtype)
            got = np.asarray(stored)
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
        assert np.asarray(found["scalar"], np.float64).dtype == np.float64


def test_small_floats_of_safetensors(tmp_path):
    path = tmp_path / "p.safetensors"
    arrays = {name: jnp.asarray(value) for name, value in SMALL.items()}
    pytest.importorskip("safetensors.flax").save_file(arrays, path)
    with open_parameters(path) as found:
        for name, want in SMALL.items():
            assert found[name].dtype == want.dtype
            np.testing.assert_array_equal(np.asarray(found[name]), want)


def test_what_jax_would_narrow_is_refused_where_a_value_is_lost(tmp_path, kind):
    params = {"n": np.int32(0), "x": np.zeros(2, np.float32)}
    bridge.save(lambda p, x: p["x"] * x + p["n"], tmp_path / "m", params=params, args="f32[]")
    (tmp_path / "good").mkdir()
    good = _write(kind, tmp_path / "good", {"n": np.int64(7), "x": np.array([1.0, 2.0])})
    bridge.update(tmp_path / "m", good)
    assert bridge.load(tmp_path / "m").params["n"] == 7
    bad = _write(kind, tmp_path, {"n": np.array(2**40 + 5)})
    with pytest.raises(DtypeError, match=r"The parameter n .*1099511627781"):
        bridge.update(tmp_path / "m", bad)
    assert bridge.load(tmp_path / "m").params["n"] == 7


def test_damage_that_is_found_late_leaves_the_old_values(tmp_path):
    params = {"a": np.zeros(4, np.float32), "b": np.zeros(3000, np.float32)}
    bridge.save(lambda p, x: p["a"] * x, tmp_path / "m", params=params, args="f32[]")
    before = (tmp_path / "m" / "variables" / "variables.index").read_bytes()
    path = _write("npz", tmp_path, {key: value + 1 for key, value in params.items()})
    data = bytearray(path.read_bytes())
    data[data.index(b"b.npy") + 2000] ^= 1  # zip has a checksum of each member
    path.write_bytes(data)
    with pytest.raises(
        FormatError, match=r"p\.npz is not a \.npz file.*Bad CRC-32.*To do: write it"
    ):
        bridge.update(tmp_path / "m", path)
    assert (tmp_path / "m" / "variables" / "variables.index").read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"m", "p.npz"}


def test_a_bool_and_a_dtype_of_safetensors_that_are_none(tmp_path):
    path = _write("safetensors", tmp_path, {"a": np.array([True, False])})
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"\2")
    with open_parameters(path) as found, pytest.raises(FormatError, match=r"'a' of .* neither 0"):
        np.asarray(found["a"])
    path.write_bytes(data.replace(b'"BOOL"', b'"F8_E8M0"'.ljust(9)))
    size = int.from_bytes(data[:8], "little") + 3
    path.write_bytes(size.to_bytes(8, "little") + path.read_bytes()[8:])
    with (
        pytest.raises((DtypeError, FormatError), match=re.escape("p.safetensors")),
        open_parameters(path),
    ):
        pass


PEAK = """
import re, sys, types
from pathlib import Path
import jax, numpy as np, bridge
try:
    import orbax.checkpoint
except ImportError:
    pass

model, source = sys.argv[1:]
bridge.update(model, {"w0": np.ones((1 << 22,), np.float32)}, to=model + ".warm")


def resident(field):
    return int(re.search(field + r":\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) << 10


Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from now on
before = resident("VmRSS")
bridge.update(model, source, to=model + ".new")
print(resident("VmHWM") - before)
"""


def test_no_more_than_a_few_arrays_are_in_memory(kind, tmp_path):
    arrays = {f"w{number}": np.full(1 << 22, number, np.float32) for number in range(20)}
    zeros = {key: np.broadcast_to(np.float32(0), value.shape) for key, value in arrays.items()}
    bridge.save(lambda p, x: p["w0"][0] * x, tmp_path / "m", params=zeros, args="f32[]")
    path = _write(kind, tmp_path, arrays)
    code = [sys.executable, "-W", "ignore", "-c", PEAK, tmp_path / "m", path]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # All of them have 320 MiB, one has 16; TensorStore, which orbax reads with, caches 100.
    assert int(done.stdout) < (40 if kind != "orbax" else 220) << 20
    found = bridge.load(tmp_path / "m.new").params
    assert {key: float(value[-1]) for key, value in found.items()} == {
        key: float(value[-1]) for key, value in arrays.items()
    }
