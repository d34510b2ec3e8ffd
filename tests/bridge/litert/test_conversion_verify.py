"""What the comparison of LiteRT models has of its own; `tests/bridge/verifying` has the rest."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.cli.main import main
from bridge.verifying.trials import read_trials, write_trials
from xla_call_module.errors import FormatError, StructureError

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
# The sum of the weights is no rounding error.
PARAMS = {"w": np.linspace(-1, 2, 15, dtype=np.float32).reshape(5, 3)}
FUNCTIONS = {"one": lambda p, x: jnp.tanh(x @ p["w"]), "two": lambda p, x: x.sum() + p["w"].sum()}
# bridge.save_litert(jnp.sin, path, args="f32[2]", tolerance=1e-3), when models kept their probes.
WITH_PROBES = Path(__file__).with_name("model_with_probes.tflite")


def recorded(folder, functions, **options):
    """The SavedModel of functions, and what `verify` records of it."""
    saved, record = folder / "saved", folder / "truth.npz"
    bridge.save(functions, saved, **options)
    assert bridge.verify(saved, record=record).passed
    return saved, record


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("against")
    saved, record = recorded(folder, FUNCTIONS, params=PARAMS, args="f32[b,5]")
    bridge.save_litert(saved, folder / "model.tflite")
    return folder / "model.tflite", record


def test_a_model_of_some_signatures(files, tmp_path):
    _, record = files
    path = tmp_path / "two.tflite"
    bridge.save_litert(FUNCTIONS["two"], path, params=PARAMS, args="f32[b,5]", signatures="two")
    assert {row.signature for row in bridge.verify(path, against=record).rows} == {"two"}
    bridge.save_litert(FUNCTIONS["two"], path, params=PARAMS, args="f32[b,5]", overwrite=True)
    with pytest.raises(StructureError, match=r"are of one, two, and the file has .* serving_def"):
        bridge.verify(path, against=record)
    outputs = {"signatures": "two", "outputs": ["z"], "overwrite": True}
    bridge.save_litert(FUNCTIONS["two"], path, params=PARAMS, args="f32[b,5]", **outputs)
    (first, *_) = bridge.verify(path, against=record).rows
    assert first.problem == "There is no output output_0; there are z."


def test_dtypes_that_models_take_as_others(tmp_path):
    def several(z, h, n):
        return {"m": jnp.abs(z), "p": z + 2, "h": h + 1, "n": n + 1}

    saved, record = recorded(tmp_path, several, args="c64[b,3], bf16[2], u8[2]")
    bridge.save_litert(saved, tmp_path / "model.tflite")
    report = bridge.verify(tmp_path / "model.tflite", against=record)
    assert report.passed, [row for row in report.rows if row.problem]
    (first, *_) = read_trials(record)
    assert (first.inputs["h"].dtype.name, first.inputs["z"].shape) == ("bfloat16", (1, 3))


def test_steps_follow_one_another(tmp_path):
    def count(state, x):
        return {"y": x * state["n"]}, {"n": state["n"] + 1}

    options = {"params": {"n": np.float32(2)}, "args": "f32[3]", "updates": 1}
    saved, record = recorded(tmp_path, count, **options)
    bridge.save_litert(saved, tmp_path / "model.tflite")
    report = bridge.verify(tmp_path / "model.tflite", against=record)
    assert report.passed
    assert [row.inputs for row in report.rows][:3] == [f"random, step {n}" for n in (1, 2, 3)]
    # One that does not keep what it assigns is right in its first steps alone.
    forgets = tmp_path / "forgets.tflite"
    bridge.save_litert(lambda p, x: {"y": x * p["n"]}, forgets, **{**options, "updates": None})
    problems = [bool(row.problem) for row in bridge.verify(forgets, against=record).rows]
    assert problems[:3] == [False, True, True]


def test_what_a_conversion_does_not_refuse_is_known(tmp_path, capsys):
    """Fourier transforms are products with matrices."""
    saved, record = recorded(tmp_path, jnp.fft.fft, args="f32[3,3]")
    path = tmp_path / "model.tflite"
    with pytest.warns(UserWarning, match="differs from JAX where inputs are inf") as warned:
        bridge.save_litert(saved, path)
    assert not [one for one in warned if "inputs are nan" in str(one.message)]
    report = bridge.verify(path, against=record)
    assert report.passed
    assert [row.inputs for row in report.rows if row.known] == ["nan", "inf"]
    assert main(["verify", str(path), "--against", str(record)]) == 0
    assert "Known differences of LiteRT 2" in (shown := capsys.readouterr().out)
    assert "at NaN, at infinities" in shown


def test_a_model_has_no_test_data(files):
    path, _ = files
    assert b"jax_tf_bridge.probes" not in path.read_bytes()
    bare = bridge.to_litert(jnp.sin, args="f32[2]")
    assert len(bare) < WITH_PROBES.stat().st_size / 2
    assert bare == bridge.to_litert(jnp.sin, args="f32[2]", verify=False)


def test_an_older_model_has_probes_and_runs(tmp_path, capsys):
    content = WITH_PROBES.read_bytes()
    assert b"jax_tf_bridge.probes" in content
    x = np.float32([1, 2])
    run = interpreter.Interpreter(model_content=content).get_signature_runner()
    np.testing.assert_allclose(run(x=x)["output_0"], np.sin(x), rtol=1e-6)
    assert main(["run", str(WITH_PROBES), "--input", "x=[1, 2]"]) == 0
    assert "output_0: float32[2]" in capsys.readouterr().out
    assert [one.key for one in bridge.inspect(WITH_PROBES).graph.signatures] == ["serving_default"]
    _, record = recorded(tmp_path, jnp.sin, args="f32[2]")
    assert bridge.verify(WITH_PROBES, against=record).passed
    with pytest.raises(StructureError, match="--against"):
        bridge.verify(WITH_PROBES)


def test_what_is_no_model_is_refused(files, tmp_path):
    text = tmp_path / "text.tflite"
    text.write_text("no model at all")
    with pytest.raises(FormatError, match=r"text\.tflite cannot be read; it is no LiteRT model"):
        bridge.verify(text, against=files[1])
    with pytest.raises(FormatError, match="is not a file of trials"):
        bridge.verify(files[0], against=text)
    write_trials(tmp_path / "none.npz", [])
    with pytest.raises(StructureError, match="are of no signature, and the file has"):
        bridge.verify(files[0], against=tmp_path / "none.npz")
