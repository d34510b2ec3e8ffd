"""Models carry the probes that they were verified with, and are verified again without JAX."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.litert.kept_probes import (
    MAX_KEPT_BYTES,
    keep_probes,
    kept_error,
    kept_probes,
    probe_bytes,
)
from xla_call_module.errors import FormatError, StructureError

pytest.importorskip("litert_converter")
pytest.importorskip("ai_edge_litert")
PARAMS = {"w": np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)}
FUNCTIONS = {"one": lambda p, x: jnp.tanh(x @ p["w"]), "two": lambda p, x: x.sum() + p["w"].sum()}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "model.tflite"
    bridge.save_litert(FUNCTIONS, path, params=PARAMS, args="f32[4,5]")
    return path


def damaged(path, folder):
    """The file with another number in a weight."""
    content = path.read_bytes()
    weight = np.float32(PARAMS["w"][0, 0]).tobytes()
    assert content.count(weight) > 0
    other = folder / "other.tflite"
    other.write_bytes(content.replace(weight, np.float32(7).tobytes()))
    return other


def test_a_model_is_verified_again(path, tmp_path):
    report = bridge.verify(path)
    assert report.passed
    assert {row.signature for row in report.rows} == {"one", "two"}
    assert report.runtime.startswith("LiteRT 2")
    assert not bridge.verify(damaged(path, tmp_path)).passed


def test_records_and_tolerances(path, tmp_path):
    record = tmp_path / "probes.npz"
    bridge.verify(path, record=record)
    plain = tmp_path / "plain.tflite"
    bridge.save_litert(FUNCTIONS, plain, params=PARAMS, args="f32[4,5]", verify=False)
    with pytest.raises(StructureError, match=r"has no probes.*To do: pass against="):
        bridge.verify(plain)
    assert bridge.verify(plain, against=record).passed
    assert not bridge.verify(damaged(path, tmp_path), against=record).passed
    assert not bridge.verify(path, tolerance=(0.0, 0.0)).passed


def test_what_a_file_does_not_take_is_refused(path, tmp_path):
    with pytest.raises(StructureError, match="compared by the probes in it"):
        bridge.verify(path, quick=True)
    text = tmp_path / "text.tflite"
    text.write_text("no model at all")
    with pytest.raises(FormatError, match="no LiteRT model"):
        bridge.verify(text)


def test_probes_are_bounded(path):
    model = path.read_bytes()
    trials = kept_probes(model, "it")
    large = [t for t in trials if t.signature == "one"] * (MAX_KEPT_BYTES // 100)
    other = [t for t in trials if t.signature == "two"][:1]
    kept = kept_probes(keep_probes(model, [*large, *other]), "it")
    assert kept[1].signature == "two"
    arrays = [a for t in kept for a in (*t.inputs.values(), *t.expected[0].values())]
    assert sum(array.nbytes for array in arrays) <= MAX_KEPT_BYTES
    assert 0 < probe_bytes(keep_probes(model, trials)) <= max(9000, len(model) // 7)
    assert kept_error(model) is None
    assert kept_error(keep_probes(model, other, error=0.25)) == 0.25


def test_the_only_probe_of_a_small_model_may_be_larger(path):
    model, (first, *_) = path.read_bytes(), kept_probes(path.read_bytes(), "it")
    wide = {name: np.zeros(1 << 16, np.float32) for name in first.inputs}
    assert (
        len(kept_probes(keep_probes(model, [dataclasses.replace(first, inputs=wide)]), "it")) == 1
    )


def test_what_is_written_counts_them(tmp_path):
    written = bridge.save_litert(jnp.sin, tmp_path / "sine.tflite", args="f32[2,3]")
    assert written.probe_bytes == probe_bytes((tmp_path / "sine.tflite").read_bytes()) > 0
    assert f"{written.probe_bytes:,} of them probes for verify" in str(written)
    bare = bridge.save_litert(jnp.sin, tmp_path / "bare.tflite", args="f32[2,3]", verify=False)
    assert bare.probe_bytes == 0


def test_nothing_is_said_of_nan(recwarn):
    bridge.to_litert(lambda x: jnp.maximum(x, 0).max(), args="f32[4,3]")
    assert not [warning for warning in recwarn if "differs from JAX" in str(warning.message)]
