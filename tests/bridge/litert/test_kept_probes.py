"""Models carry the probes that they were verified with, and are verified again without JAX."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.cli.main import main
from bridge.litert.kept_probes import (
    MAX_KEPT_BYTES,
    keep_probes,
    kept_error,
    kept_probes,
    probe_bytes,
)
from bridge.verifying.trials import Trial
from xla_call_module.errors import FormatError, StructureError, UnsupportedError

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


def test_half_precision_inside_of_float32(tmp_path):
    def mixed(w, x):
        return (x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32)

    w = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    path = tmp_path / "mixed.tflite"
    bridge.save_litert(mixed, path, params=w, args="f32[b,64]")
    assert bridge.verify(path).passed
    softmax = bridge.to_litert(lambda x: jax.nn.softmax(x * 2), args="bf16[b,16]")
    (precisions,) = {*(tuple(one.precisions.items()) for one in kept_probes(softmax, "it"))}
    assert precisions == (("output_0", "bfloat16"),)


def test_a_tolerance_is_kept(tmp_path):
    options = {"params": PARAMS, "args": "f32[4,5]"}
    with pytest.raises(UnsupportedError, match=r"rtol=0, atol=0.*tolerance= allows more"):
        bridge.to_litert(FUNCTIONS["one"], tolerance=(0.0, 0.0), **options)
    with pytest.raises(StructureError, match="tolerance= is for the comparison"):
        bridge.to_litert(FUNCTIONS["one"], tolerance=0.1, verify=False, **options)
    saved, path = str(tmp_path / "saved"), tmp_path / "model.tflite"
    bridge.save(FUNCTIONS["one"], saved, **options)
    assert main(["litert", saved, str(path), "--tolerance", "0.4,0.5"]) == 0
    other = damaged(path, tmp_path)
    assert not bridge.verify(other).passed
    lenient = tmp_path / "lenient.tflite"
    bridge.save_litert(FUNCTIONS["one"], lenient, tolerance=(0.0, 8.0), **options)
    assert bridge.verify(damaged(lenient, tmp_path)).passed
    assert not bridge.verify(damaged(lenient, tmp_path), tolerance=1e-4).passed


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


def test_steps_stay_together_and_are_bounded():
    def trials(elements):
        array = np.zeros(elements, np.float32)
        steps = [Trial("f", "random", {}, {"x": array}, (), (), ("y",), (), ({"y": array},), step=n)
                 for n in (1, 2, 3, 4)]  # fmt: skip
        return [*steps, dataclasses.replace(steps[0], kind="zeros")]

    model = bridge.to_litert(jnp.sin, args="f32[2]", verify=False)

    def kept(elements):
        found = kept_probes(keep_probes(model, trials(elements)), "it")
        return [(one.kind, one.step) for one in found]

    # Far beyond an eighth of the model; the other probe has no room left.
    assert kept(1 << 11) == [("random", n) for n in (1, 2, 3, 4)]
    assert kept(MAX_KEPT_BYTES // 4 // 6) == [("random", n) for n in (1, 2)]


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
