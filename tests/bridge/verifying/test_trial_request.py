"""The inputs that `verify` is asked to try."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import bridge
from bridge.cli.main import main
from bridge.load import load
from bridge.verifying.comparison import Tolerance
from bridge.verifying.reference import make_trials
from bridge.verifying.trial_request import request_trials, to_tolerance
from bridge.verifying.trials import read_trials
from xla_call_module.errors import DtypeError, FormatError, StructureError


def _scaled(params, x):
    return {"y": jnp.where(x > 5, x * params["w"] * 1.001, x * params["w"])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("request") / "model"
    params = {"w": np.float32(3)}
    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 2"), np.float32)
    exported = export.export(jax.jit(_scaled))(params, x)
    other = export.export(jax.jit(lambda params, x: x + 1))(
        params, jax.ShapeDtypeStruct((2,), jnp.bfloat16)
    )
    bridge.save({"serving_default": exported, "other": other}, path, params=params)
    return path


def _titles(folder, **options):
    request = request_trials(**({"probes": None, "inputs": None, "quick": False} | options))
    trials = make_trials(load(folder), seed=0, request=request)
    return [(trial.signature, trial.title, trial.variables) for trial in trials]


def test_probes(folder):
    chosen = _titles(folder, probes=["nan", "random"])
    assert [title for key, title, _ in chosen if key == "serving_default"] == [
        "random, b=1", "random, b=3", "random, b=17", "nan, b=3",
    ]  # fmt: skip
    assert [title for _, title, variables in chosen if variables] == ["random, b=3"]
    chosen = _titles(folder, probes=["huge"])
    assert ("serving_default", "huge, b=3", ("w",)) in chosen


def test_quick_is_one_size(folder):
    assert [title for _, title, _ in _titles(folder, quick=True)] == ["random, b=3", "random"]
    both = _titles(folder, quick=True, probes=["random", "inf"])
    assert [title for _, title, _ in both] == ["random, b=3", "inf, b=3", "random", "inf"]


def test_given_inputs_are_tried_in_both(folder, tmp_path, capsys, preloaded):
    x = np.array([[1, 2], [7, np.inf], [3, 4], [0, 0]])
    np.savez(tmp_path / "x.npz", x=x)
    arguments = ["verify", str(folder), "--inputs", str(tmp_path / "x.npz"), "--json"]
    record = tmp_path / "record.npz"
    # Those of the other signature are not there.
    arguments = [*arguments, "--record", str(record), "--tolerance", "1e-6", "--probes", "ones"]
    np.savez(tmp_path / "x.npz", **{"serving_default/x": x})
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    # After an infinite result a gradient may be what a compiler makes of infinity times zero.
    assert [(r["inputs"], r["order"]) for r in rows if r["signature"] == "serving_default"] == [
        ("given, b=4", 0), ("ones, b=3", 0), ("ones, b=3", 1),
    ]  # fmt: skip
    (trial,) = (trial for trial in read_trials(record) if trial.kind == "given")
    np.testing.assert_array_equal(trial.inputs["x"], x.astype(np.float32))
    np.testing.assert_allclose(trial.expected[0]["y"][0], [3, 6])


def test_bytes_of_other_dtypes(folder, tmp_path):
    np.savez(tmp_path / "x.npz", **{"other/x": np.asarray(jnp.ones(2, jnp.bfloat16))})
    request = request_trials(None, tmp_path / "x.npz", quick=False)
    (trial,) = make_trials(load(folder), seed=0, request=request)
    assert (trial.signature, trial.inputs["x"].dtype) == ("other", jnp.bfloat16)
    np.testing.assert_array_equal(trial.inputs["x"], 1)


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        ({"serving_default/x": np.ones((2, 3), np.float32)}, StructureError, "has shape"),
        ({"serving_default/x": np.ones((0, 2), np.float32)}, StructureError, "would be 0"),
        ({"serving_default/x": np.full((1, 2), 1e300)}, DtypeError, "float32 does not hold"),
        ({"serving_default/x": np.ones((1, 2), complex)}, DtypeError, "is complex128; expected"),
        ({"serving_default/x": np.array([["a", "b"]])}, DtypeError, "expected float32"),
        ({"y": np.ones(2)}, StructureError, r"y of no input; .* serving_default: x"),
        ({}, StructureError, "not all inputs of a signature"),
    ],
)
def test_inputs_that_do_not_fit(folder, inputs, error, message):
    with pytest.raises(error, match=message):
        _titles(folder, inputs=inputs)


def test_what_is_no_request(folder, tmp_path, capsys):
    with pytest.raises(StructureError, match="'zero'; expected some of random, zeros"):
        bridge.verify(folder, probes=["zero"])
    with pytest.raises(StructureError, match="probes is empty"):
        bridge.verify(folder, probes=[])
    (tmp_path / "x.npz").write_bytes(b"x")
    with pytest.raises(FormatError, match=r"is not a \.npz file"):
        bridge.verify(folder, inputs=tmp_path / "x.npz")
    assert main(["verify", str(folder), "--against", "a", "--quick"]) == 2
    assert "leave out probes, inputs, quick and steps" in capsys.readouterr().err
    for option in ({"steps": 2}, {"probes": ["ones"]}, {"inputs": {"x": 1}}):
        with pytest.raises(StructureError, match="leave out probes, inputs, quick and steps"):
            bridge.verify(folder, against=tmp_path / "a", **option)
    with pytest.raises(SystemExit, match="2"):
        main(["verify", str(folder), "--tolerance", "small"])
    assert "'small' is neither rtol nor rtol,atol" in capsys.readouterr().err


def test_the_input_of_a_signature_goes_before_one_for_all():
    request = request_trials(None, {"x": 1, "f/x": 2, "y": 3, "g/y": 4}, quick=True)
    assert request.inputs_of("f", ["x", "y"]) == {"x": 2, "y": 3}
    assert request.inputs_of("g", ["x", "y"]) == {"x": 1, "y": 4}
    assert request.inputs_of("g", ["x", "z"]) is None
    assert request.kinds == ()


def test_tolerances():
    assert to_tolerance(0.5) == Tolerance(0.5)
    assert to_tolerance((0.5, 1)) == Tolerance(0.5, 1.0)
    assert to_tolerance((np.float32(0.5), np.int32(1))) == Tolerance(0.5, 1.0)
    assert to_tolerance(Tolerance(atol=1.0)) == Tolerance(atol=1.0)
    for wrong in (-1.0, float("nan"), (), (1, 2, 3), "small"):
        with pytest.raises(StructureError, match=r"expected rtol, or rtol and atol"):
            to_tolerance(wrong)
