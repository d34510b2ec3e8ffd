"""`bridge.verify`: it passes what is right, and finds what is not."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import bridge
from bridge.cli.main import main
from bridge.core.probes import EDGES, choose_sizes, draw
from bridge.load import load
from bridge.verifying import tensorflow_process
from bridge.verifying.comparison import Tolerance
from bridge.verifying.reference import make_trials
from bridge.verifying.trial_request import TrialRequest
from bridge.verifying.trials import read_trials, write_trials
from savedmodel.rewrite import rewrite_nodes
from tests.bridge.absence import run_without_tensorflow
from xla_call_module import from_exported, retarget
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import (
    FormatError,
    MissingDependencyError,
    ShardingError,
    StructureError,
)

# The fixture `report` is of a Python that imports TensorFlow for itself, all others are quick.
pytestmark = pytest.mark.usefixtures("preloaded")

PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), "n": np.int32(3)}
B = "b"


def _predict(params, x, flags):
    z = x[:, 0] * jnp.exp(1j * x[:, 1])
    return {"y": lax.erf(x) @ params["w"] * params["n"], "z": z.conj() * z[0], "n": ~flags}


def _spec(shape, dtype, scope):
    return jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), dtype)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("verify") / "model"
    scope = export.SymbolicScope()
    x, flags = _spec("b, 3", np.float32, scope), _spec("2*b", np.bool_, scope)
    exported = export.export(jax.jit(_predict))(PARAMS, x, flags)
    bridge.save(exported, path, params=PARAMS, gradient_order=2)
    return path


@pytest.fixture(scope="module")
def record(folder):
    return folder.with_name("record.npz")


@pytest.fixture(scope="module")
def report(folder, record):
    return bridge.verify(folder, record=record, seed=3)


def _wrong(report):
    return {(row.inputs, row.order): row.problem for row in report.rows if row.problem}


def test_what_is_right_passes(report):
    assert report.passed
    assert _wrong(report) == {}
    kinds = {row.inputs for row in report.rows}
    assert kinds == {f"random, b={b}" for b in (1, 3, 17)} | {f"{kind}, b=3" for kind in EDGES}
    orders = {row.order for row in report.rows if row.inputs == "random, b=3"}
    assert orders == {0, 1, 2}
    assert all(row.error < 1e-5 for row in report.rows)


def test_what_is_recorded(report, record, folder):
    trials = {trial.title: trial for trial in read_trials(record)}
    for trial in make_trials(load(folder), seed=3):
        np.testing.assert_array_equal(trials[trial.title].inputs["x"], trial.inputs["x"])
    trial = trials["random, b=17"]
    assert {name: value.shape for name, value in trial.inputs.items()} == {
        "x": (17, 3),
        "flags": (34,),
    }
    expected = _predict(PARAMS, *trial.inputs.values())
    assert trial.expected[0].keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(trial.expected[0][name], value, rtol=1e-5, atol=1e-6)
    assert trials["random, b=3"].variables == ("w",)
    assert trials["random, b=3"].expected[2].keys() == {"input/x", "variable/w"}
    assert np.isnan(trials["nan, b=3"].inputs["x"]).sum() == 1
    assert np.isneginf(trials["inf, b=3"].inputs["x"]).sum() == 0


def test_a_record_is_compared_with_another_file(folder, record, report, tmp_path):
    """The function with another constant, under the same names."""

    def change(call):
        if len(call.results) != 3:  # a gradient
            return call
        other = export.export(jax.jit(lambda *args: _other(*args)))
        scope = export.SymbolicScope()
        x, flags = _spec("b, 3", np.float32, scope), _spec("2*b", np.bool_, scope)
        module = retarget(from_exported(other(PARAMS, x, flags))).module
        return dataclasses.replace(call, module=module)

    def _other(params, x, flags):
        results = _predict(params, x, flags)
        return results | {"y": results["y"] * (1 + 3e-3 * (x[:, :2] != 0))}

    rewrite_nodes(folder, tmp_path / "other", change)
    found = bridge.verify(tmp_path / "other", against=record)
    assert not found.passed
    assert {order for _, order in _wrong(found)} == {0}
    match = r"y at index \(\d+, \d\) is .* elements of float32\[3,2\] differ\."
    assert re.fullmatch(match, _wrong(found)["random, b=3", 0])
    assert ("zeros, b=3", 0) not in _wrong(found)
    (row,) = (row for row in found.rows if (row.inputs, row.order) == ("random, b=3", 0))
    assert 1e-4 < row.error < 3.1e-3
    loose = Tolerance(rtol=1e-2)
    assert bridge.verify(
        tmp_path / "other", against=record, tolerance=loose, python=sys.executable
    ).passed


def test_a_wrong_gradient_is_found(folder, record, report, tmp_path):
    trials = list(read_trials(record))
    chosen = next(i for i, trial in enumerate(trials) if trial.title == "random, b=3")
    trial = trials[chosen]
    gradients = dict(trial.expected[2])
    gradients["variable/w"] = gradients["variable/w"] + np.float32(0.1)
    trials = [
        dataclasses.replace(trial, expected=(*trial.expected[:2], gradients)),
        dataclasses.replace(trials[0], signature="missing"),
    ]
    write_trials(tmp_path / "record.npz", trials)
    found = bridge.verify(folder, against=tmp_path / "record.npz")
    wrong = _wrong(found)
    assert set(wrong) == {("random, b=3", 2), ("random, b=1", 0)}
    assert wrong["random, b=3", 2].startswith("variable/w at index")
    assert "KeyError: 'missing'" in wrong["random, b=1", 0]


def test_what_tensorflow_cannot_run(tmp_path, capsys):
    exported = export.export(jax.jit(jnp.linalg.cholesky))(np.eye(3, dtype=np.float32))
    bridge.save(exported, tmp_path / "model", linalg="lapack", gradient_order=0)
    assert main(["verify", str(tmp_path / "model"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["passed"]
    assert found["failure"] == ""
    for row in found["rows"]:
        assert "lapack_spotrf_ffi" in row["problem"]
        assert row["error"] is None


def test_the_command(folder, report, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bridge.cli.main.verify", lambda *args, **kwargs: report)
    assert main(["verify", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"{len(report.rows)} comparisons with TensorFlow {report.tensorflow}: all as" in shown
    wrong = dataclasses.replace(report.rows[0], error=0.5, problem="y at index (0,) is 1.")
    monkeypatch.setattr(
        "bridge.cli.main.verify", lambda *args, **kwargs: dataclasses.replace(report, rows=(wrong,))
    )
    assert main(["verify", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert re.search(r"random, b=1 +0 +5\.0e-01 +differs", shown)
    assert "serving_default, random, b=1, order 0:\ny at index (0,) is 1.\n" in shown


def _mixed(w, x):
    narrow = x.astype(jnp.bfloat16)
    product = narrow @ w.astype(jnp.bfloat16)
    return {"y": product.astype(jnp.float32), "plain": jnp.tanh(x @ w)}


def _normalized(x):
    narrow = x.astype(jnp.float16)
    mean = narrow.mean(-1, keepdims=True)
    return ((narrow - mean) / jnp.sqrt(narrow.var(-1, keepdims=True) + 1e-3)).astype(jnp.float32)


MIXED = {
    "bfloat16": (_mixed, {"params": np.random.default_rng(0).normal(size=(64, 8)).astype("f")}),
    "float16": (_normalized, {}),
    "softmax": (lambda x: jax.nn.softmax(x.astype(jnp.float16)).astype(jnp.float32), {}),
}


@pytest.mark.parametrize("operations", ["xla", "tensorflow"])
@pytest.mark.parametrize("name", MIXED)
def test_half_precision_inside_of_float32(name, operations, tmp_path):
    """XLA leaves out roundings to half precision, of one size and not of another."""
    function, options = MIXED[name]
    bridge.save(function, tmp_path / "m", args="f32[b,64]", operations=operations, **options)
    assert _wrong(bridge.verify(tmp_path / "m")) == {}


def test_the_tolerance_is_of_the_least_precise_dtype_of_each_result(tmp_path):
    function, options = MIXED["bfloat16"]
    options |= {"args": "f32[b,64]", "gradient_order": 0}
    bridge.save(function, tmp_path / "right", **options)
    bridge.verify(tmp_path / "right", record=tmp_path / "record")

    def off(factor):
        def changed(w, x):
            results = function(w, x)
            return results | {wrong: results[wrong] * factor}

        bridge.save(changed, tmp_path / "m", overwrite=True, **options)
        return bridge.verify(tmp_path / "m", against=tmp_path / "record")

    wrong = "y"
    assert off(1.005).passed
    assert "rtol=0.0625" in _wrong(off(1.3))["random, b=3", 0]
    wrong = "plain"
    assert "rtol=0.0001" in _wrong(off(1.005))["random, b=3", 0]


def test_trouble(folder, tmp_path, capsys):
    assert main(["verify", str(tmp_path / "nothing")]) == 2
    assert "has no saved_model.pb" in capsys.readouterr().err
    assert main(["verify", str(folder), "--record", "a", "--against", "b"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_what_jax_cannot_run_here(tmp_path, capsys):
    exported = export.export(jax.jit(jnp.sin), platforms=["tpu"])(np.float32(1))
    bridge.save(exported, tmp_path / "model", gradient_order=0)
    assert main(["verify", str(tmp_path / "model")]) == 2
    message = capsys.readouterr().err
    assert "JAX does not run order 0 of serving_default, lowered for tpu and 1 device" in message


def _on(*spec):
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, PartitionSpec(*spec))


def test_what_is_for_several_devices_is_computed_on_one(tmp_path):
    split = ({"w": _on(None, "model")}, _on("data"))
    jitted = jax.jit(lambda params, x: jnp.tanh(x @ params["w"]), in_shardings=split)
    params = {"w": PARAMS["w"]}
    exported = export.export(jitted)(params, np.zeros((4, 3), np.float32))
    assert exported.nr_devices == 8
    bridge.save(exported, tmp_path / "model", params=params)
    found = bridge.verify(tmp_path / "model")
    assert found.passed
    assert {row.order for row in found.rows} == {0, 1}


def test_what_needs_several_devices_is_refused(tmp_path):
    split = _on("data")
    summed = jax.shard_map(
        lambda x: lax.psum(x, "data"), mesh=split.mesh, in_specs=split.spec, out_specs=_on().spec
    )
    exported = export.export(jax.jit(summed, in_shardings=split))(np.zeros(8, np.float32))
    with pytest.warns(UserWarning, match="TensorFlow cannot run on one device"):
        bridge.save(exported, tmp_path / "model")
    with pytest.raises(ShardingError, match=r"runs on each device by itself: jax\.shard_map"):
        bridge.verify(tmp_path / "model")


def test_a_foreign_file(foreign, tmp_path):
    bridge.retarget(foreign("jax2tf").folder, "2.16", to=tmp_path / "new")
    found = bridge.verify(tmp_path / "new", record=tmp_path / "record")
    assert found.passed
    assert {(row.signature, row.order) for row in found.rows} == {
        (key, order) for key in ("serving_default", "norm") for order in (0, 1)
    }
    compared = {name for trial in read_trials(tmp_path / "record") for name in trial.variables}
    shapes = ("4,3", "3", "3,2", "2")
    assert compared == {f"Variable float32[{shape}]" for shape in shapes}


def test_jax_cannot_be_imported_where_tensorflow_runs(
    folder, record, report, tmp_path, monkeypatch, capsys
):
    """A TensorFlow that tries to when it loads."""
    here = Path(tensorflow_process.__file__)
    text = here.with_name("tensorflow_run.py").read_text()
    changed = text.replace("tf.saved_model.load(model)", "__import__('jax')")
    assert changed != text
    (tmp_path / "tensorflow_run.py").write_text(changed)
    shutil.copy(here.with_name("tensorflow_probes.py"), tmp_path)
    monkeypatch.setattr(tensorflow_process, "__file__", str(tmp_path / here.name))
    assert main(["verify", str(folder), "--against", str(record)]) == 1
    shown = capsys.readouterr().out
    assert f"TensorFlow {report.tensorflow} does not run it" in shown
    assert re.search(r"cannot be loaded\. ModuleNotFoundError: .*jax", shown)


FAKE = """#!{python}
import json, os, sys, time
print(json.dumps({{"tensorflow": "2.99"}}), flush=True)
print(json.dumps({{"begun": 7}}), flush=True)
print("last words", file=sys.stderr, flush=True)
{end}
"""


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("os.kill(os.getpid(), 11)", "ended with SIGSEGV in trial 7. last words"),
        ("sys.exit(3)", "ended with exit status 3 in trial 7. last words"),
        ("time.sleep(600)", "ended with SIGKILL in trial 7. last words"),
    ],
)
def test_a_process_that_ends(folder, tmp_path, end, message):
    fake = tmp_path / "python"
    fake.write_text(FAKE.format(python=sys.executable, end=end))
    fake.chmod(0o755)
    run = tensorflow_process.run_trials(folder, [], python=fake, silence=1.0)
    assert (run.tensorflow, run.results) == ("2.99", {})
    assert message in run.failure


def test_a_python_without_tensorflow(folder, tmp_path):
    fake = tmp_path / "python"
    fake.write_text(f"#!{sys.executable}\nimport not_installed\n")
    fake.chmod(0o755)
    with pytest.raises(
        MissingDependencyError, match=r"python: Mod.*'not_installed'\. To do: pip in"
    ):
        tensorflow_process.run_trials(folder, [], python=fake)


@pytest.mark.parametrize("text", [b"", b"PK\x03\x04 nothing", b"\x80\x04."])
def test_a_damaged_record(folder, tmp_path, text):
    (tmp_path / "record.npz").write_bytes(text)
    with pytest.raises(FormatError, match=r"record\.npz is not a file of trials"):
        bridge.verify(folder, against=tmp_path / "record.npz")


def test_another_archive(folder, tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(FormatError, match=r"other\.npz is not a file of trials"):
        bridge.verify(folder, against=tmp_path / "other.npz")
    np.savez(tmp_path / "pickle.npz", header=np.array({"a": 1}, object))
    with pytest.raises(FormatError, match=r"pickle\.npz is not a file of trials"):
        bridge.verify(folder, against=tmp_path / "pickle.npz")


def test_a_folder_in_the_place_of_a_record(folder):
    with pytest.raises(StructureError, match=r"a folder; .*bridge\.verify\('.*', record='trials"):
        bridge.verify(folder, against=folder)


def test_the_parent_needs_no_tensorflow(folder):
    code = """
import sys
from bridge.load import load
from bridge.verifying.reference import make_trials
import bridge.verify
print(len(make_trials(load(sys.argv[1]), seed=0)))
"""
    assert run_without_tensorflow(code, folder).strip() == "9"


def test_the_seed_decides(tmp_path):
    exported = export.export(jax.jit(lambda x, k: (x + 1, jax.random.bits(k))))(
        jax.ShapeDtypeStruct((2,), jnp.bfloat16), jax.eval_shape(lambda: jax.random.key(0))
    )
    bridge.save(exported, tmp_path / "model", gradient_order=0)
    model = load(tmp_path / "model")
    first, same, other = (make_trials(model, seed=seed) for seed in (0, 0, 1))
    for a, b, c in zip(first, same, other, strict=True):
        assert a.inputs["x"].dtype == jnp.bfloat16
        assert (a.inputs["k"].shape, a.inputs["k"].dtype) == ((2,), np.uint32)
        assert str(a) == str(b)
        assert str(a) != str(c)
    write_trials(tmp_path / "record", first)
    assert str(read_trials(tmp_path / "record")) == str(tuple(first))


@pytest.mark.parametrize(
    ("constraints", "expected"),
    [
        ((), [{"a": 1, "b": 2}, {"a": 3, "b": 4}, {"a": 17, "b": 18}]),
        (("a >= 2", "b == a"), [{"a": 2, "b": 2}, {"a": 3, "b": 3}, {"a": 17, "b": 17}]),
        (("mod(a, 4) == 0", "b <= 2"), [{"a": 4, "b": 1}, {"a": 4, "b": 2}, {"a": 16, "b": 2}]),
    ],
)
def test_sizes_meet_constraints(constraints, expected):
    def accepts(sizes):
        a, b = sizes["a"], sizes["b"]
        meanings = {
            "a >= 2": a >= 2, "b == a": b == a, "mod(a, 4) == 0": a % 4 == 0, "b <= 2": b <= 2,
        }  # fmt: skip
        return all(meanings[constraint] for constraint in constraints)

    for wanted, found in zip((1, 3, 17), expected, strict=True):
        assert choose_sizes(["a", "b"], wanted, accepts) == found


def test_no_sizes():
    with pytest.raises(StructureError, match="No sizes were found that the constraints on a, b"):
        choose_sizes(["a", "b"], 3, lambda sizes: False)


def test_constraints_of_the_file_are_met(tmp_path):
    shape = export.symbolic_shape("a, 2*b", constraints=["a >= b", "mod(b, 4) == 0"])
    exported = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct(shape, np.float32))
    bridge.save(exported, tmp_path / "model", gradient_order=0)
    for trial in make_trials(load(tmp_path / "model"), seed=0):
        assert trial.sizes["a"] >= trial.sizes["b"]
        assert trial.sizes["b"] % 4 == 0


DTYPES = ("bool", "int8", "uint8", "int64", "float16", "bfloat16", "float8_e4m3fn", "complex64")


@pytest.mark.parametrize("kind", ["random", *EDGES])
@pytest.mark.parametrize("name", DTYPES)
def test_inputs(name, kind):
    spec = TensorSpec((B, f"2*{B}"), dtype_from_name(name, where="a test"), "x")
    array = draw(spec, kind, {B: 3}, np.random.default_rng(0))
    assert (array.shape, array.dtype) == ((3, 6), spec.dtype.numpy)
    wide = array.astype(np.complex128)
    assert np.isnan(wide).any() == (kind == "nan" and spec.dtype.numpy.kind not in "bui")
    assert np.isinf(wide).any() == (kind == "inf" and name not in (*DTYPES[:4], "float8_e4m3fn"))
    if kind in ("zeros", "ones"):
        assert (wide == int(kind == "ones")).all()
    elif kind == "negative" and name not in ("bool", "uint8"):
        assert (wide.real < 0).all()
    elif kind == "huge" and name != "bool":
        assert np.abs(wide).min() > 90
    elif kind == "random":
        assert len(np.unique(wide)) > 1


def _step(params, x):
    new = {"w": params["w"] * 0.5 + x.mean(0), "n": params["n"] + 1}
    return new, {"loss": jnp.sin(params["w"]).sum() * x.sum(1), "n": params["n"]}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A signature that assigns variables, one that reads them, and one without input or output."""
    path = tmp_path_factory.mktemp("trained") / "model"
    model = {
        "train": _step,
        "read": lambda params, x: x @ params["w"] * params["n"],
        "reset": lambda params: {"n": jnp.int32(0)},
    }
    args, updates = {"train": "f32[b,3]", "read": "f32[b,3]", "reset": ()}, {"train": 0, "reset": 0}
    params = {"w": np.linspace(-1, 1, 3, dtype=np.float32), "n": np.int32(3)}
    bridge.save(model, path, params=params, args=args, updates=updates, gradient_order=2)
    return path


def test_steps_are_compared_with_the_state_after_each(trained, tmp_path):
    found = bridge.verify(trained, steps=4, record=tmp_path / "record.npz")
    assert _wrong(found) == {}
    rows = {(row.signature, row.inputs): [] for row in found.rows}
    for row in found.rows:
        rows[row.signature, row.inputs].append(row.order)
    steps = {("train", f"random, b={b}, step {n}") for b in (1, 3, 17) for n in range(1, 5)}
    steps |= {("reset", f"random, step {n}") for n in range(1, 5)}
    steps |= {("train", f"{kind}, b=3, step 1") for kind in EDGES}
    assert {place for place in rows if "step" in place[1]} == steps
    assert rows["train", "random, b=3, step 1"] == [0, 1, 2]
    assert rows["train", "random, b=3, step 2"] == [0]
    trials = {(t.signature, t.title): t for t in read_trials(tmp_path / "record.npz")}
    # Each kind begins with the values of the file, which the signatures that read have, too.
    for step in range(1, 5):
        trial = trials["train", f"random, b=17, step {step}"]
        assert (trial.expected[0]["n"], trial.expected[0]["variable/n"]) == (2 + step, 3 + step)
    read = trials["read", "random, b=1"]
    w = np.linspace(-1, 1, 3, dtype=np.float32)
    np.testing.assert_allclose(read.expected[0]["output_0"], read.inputs["x"] @ w * 3, rtol=1e-5)
    assert trials["reset", "random, step 2"].expected == ({"variable/n": 0},)


@pytest.mark.parametrize("changed", ["variable/w", "variable/n", "loss"])
def test_a_wrong_step_is_found(trained, tmp_path, changed):
    request = TrialRequest(("random",), (3,), steps=2)
    made = make_trials(load(trained), seed=0, request=request)
    trials = [trial for trial in made if trial.signature == "train"]
    second = trials[1].expected[0]
    wrong = dataclasses.replace(
        trials[1], expected=({**second, changed: second[changed] + second[changed].dtype.type(1)},)
    )
    write_trials(tmp_path / "record.npz", [trials[0], wrong])
    problems = _wrong(bridge.verify(trained, against=tmp_path / "record.npz"))
    assert [*problems] == [("random, b=3, step 2", 0)]
    assert problems["random, b=3, step 2", 0].startswith(changed)


def test_given_inputs_take_steps(trained):
    found = bridge.verify(trained, inputs={"train/x": np.ones((2, 3), np.float32)}, steps=2)
    assert found.passed
    assert {row.inputs for row in found.rows} == {"given, b=2, step 1", "given, b=2, step 2"}
    for wrong in (0, True, 1.5):
        with pytest.raises(StructureError, match=r"steps is .*; expected a whole number"):
            bridge.verify(trained, steps=wrong)


def test_nan_that_jax_loses_in_what_it_compiles(tmp_path):
    """XLA in JAX has a number where XLA in TensorFlow keeps the NaN, and the other way round."""

    def network(params, x):
        for kernel in params:
            x = jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return x.mean((1, 2))

    draw = np.random.default_rng(0).standard_normal
    params = [draw(shape).astype(np.float32) / 3 for shape in ((3, 3, 1, 8), (3, 3, 8, 16))]
    saved = bridge.save(network, tmp_path / "m", params=params, args="f32[b,28,28,1]")
    report = bridge.verify(saved, probes=["nan", "inf", "random"])
    assert report.passed
    assert not [row for row in report.rows if row.known and row.inputs.startswith("random")]
