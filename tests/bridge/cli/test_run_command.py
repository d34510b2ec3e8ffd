"""`jax-tf-bridge run`: one call of what is in a file; and `--import`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, export

import bridge
from bridge.cli.main import main
from bridge.core.given_arrays import read_arrays
from bridge.formats import runtime_calls

CLASSES = """
import json
from dataclasses import dataclass

import jax
from jax import export

@jax.tree_util.register_dataclass
@dataclass
class Line:
    slope: object
    start: object

export.register_pytree_node_serialization(
    Line,
    serialized_name="lines.Line",
    serialize_auxdata=lambda _: b"",
    deserialize_auxdata=lambda _: (),
)

def evaluate(line, x):
    return {"y": line.slope * x + line.start}
"""
MAKE = """
import jax
import numpy as np
from jax import export

import bridge
from lines import Line, evaluate

line = Line(np.float32(2), np.float32(1))
x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 2"), "float32")
exported = export.export(jax.jit(evaluate))(line, x)
with open("line.bin", "wb") as file:
    file.write(exported.serialize())
bridge.save(exported, "model", params=line, gradient_order=0)
"""


def _function(x, y):
    # Dtypes that numpy and JSON have, and that they lack.
    return {"sum": x + y.astype(jnp.float32), "half": y * 2, "log": jnp.log(x).astype("complex64")}


@pytest.fixture(scope="module")
def exported():
    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 2"), np.float32)
    y = jax.ShapeDtypeStruct(export.symbolic_shape("b, 1", scope=x.shape[0].scope), jnp.bfloat16)
    return export.export(jax.jit(_function))(x, y)


@pytest.fixture(scope="module")
def files(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    bridge.save(exported, folder / "base" / "3", gradient_order=0)
    bridge.save({"a": exported, "b": exported}, folder / "base" / "12", gradient_order=0)
    (folder / "f.bin").write_bytes(exported.serialize())
    (folder / "f.mlir").write_text(exported.mlir_module())
    bridge.save_onnx(
        export.export(jax.jit(lambda x: {"twice": 2 * x}))(np.ones(3)), folder / "f.onnx"
    )
    np.savez(folder / "both.npz", x=np.ones((2, 2)), y=np.asarray(jnp.ones((2, 1), jnp.bfloat16)))
    np.save(folder / "x.npy", np.full((2, 2), 3))
    (folder / "y.json").write_text("[[0.5], [-0.25]]")
    return folder


def _run(*arguments, capsys):
    assert main(["run", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_inputs_of_every_form(files, capsys):
    model = files / "base" / "3"
    arguments = [model, "--input", f"x={files / 'x.npy'}", "--input", f"y={files / 'y.json'}"]
    shown = _run(*arguments, capsys=capsys)
    assert "serving_default, b=2\n" in shown
    assert "sum: float32[2,2]\n[[3.5  3.5 ]\n [2.75 2.75]]\n" in shown
    same = _run(model, "--input", files / "both.npz", "--json", capsys=capsys)
    found = json.loads(same)
    assert found["sizes"] == {"b": 2}
    assert found["inputs"]["y"] == {"dtype": "bfloat16", "shape": [2, 1]}
    assert found["outputs"]["half"]["value"] == [[2.0], [2.0]]
    mixed = [model, "--input", 'args[0]=[["NaN", 0]]', "--input", f"y={files / 'y.json'}"]
    assert main(["run", *map(str, mixed)]) == 2
    assert "y of serving_default" in (error := capsys.readouterr().err) or "dimension" in error
    mixed[-1] = "y=zeros"
    found = json.loads(_run(*mixed, "--json", capsys=capsys))
    assert found["outputs"]["sum"]["value"] == [["NaN", 0.0]]
    assert found["outputs"]["log"]["value"][0][1] == "-inf+0j"


def test_drawn_inputs_have_sizes(files, capsys):
    model = files / "base" / "3"
    assert "b=1\n" in _run(model, "--input", "random", capsys=capsys)
    first, same, other = (
        _run(model, "--input", "random", "--size", "b=3", "--seed", seed, capsys=capsys)
        for seed in (0, 0, 1)
    )
    assert "sum: float32[3,2]" in first
    assert first == same != other


def test_a_call_with_drawn_inputs_is_ended(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runtime_calls, "_MAX_SECONDS", 10.0)
    path = tmp_path / "grow.bin"
    grow = jax.jit(lambda x: jax.lax.while_loop(lambda v: (v < np.inf).all(), lambda v: v - 1, x))
    path.write_bytes(export.export(grow)(np.ones(2, np.float32)).serialize())
    assert main(["run", str(path), "--input", "random"]) == 2
    assert "it did not answer within 10 seconds" in capsys.readouterr().err
    assert main(["run", str(path), "--input", "x=[1, Infinity]"]) == 0


def test_results_in_a_file_are_inputs_again(files, tmp_path, capsys):
    made = tmp_path / "made.npz"
    arguments = [files / "base" / "3", "--input", files / "both.npz", "--output", made]
    assert _run(*arguments, capsys=capsys).startswith(f"{made}: 3 arrays, ")
    found = read_arrays(made)
    assert found["half"].dtype.itemsize == 2
    again = ["--input", f"x={made}", "--input", f"y={made}"]
    assert main(["run", str(files / "base" / "3"), *again]) == 2
    assert "none is x. To do: pass the whole file" in capsys.readouterr().err
    np.savez(tmp_path / "half.npz", found["half"])
    again = ["--input", "x=ones", "--input", f"y={tmp_path / 'half.npz'}"]
    assert "[[3. 3.]\n [3. 3.]]" in _run(files / "base" / "3", *again, capsys=capsys)


def test_files_of_every_kind(files, capsys):
    both = ["--input", files / "both.npz"]
    assert "[[2. 2.]\n [2. 2.]]" in _run(files / "f.bin", *both, capsys=capsys)
    assert "b=2" in _run(files / "f.mlir", "--input", "random", "--size", "b=2", capsys=capsys)
    shown = _run(files / "base", "--signature", "b", *both, capsys=capsys)  # the newest version
    assert shown.startswith("b, b=2\n")
    pytest.importorskip("onnxruntime")
    (name,) = json.loads(_run(files / "f.onnx", "--input", "ones", "--json", capsys=capsys))[
        "inputs"
    ]
    assert "twice: float32[3]\n[2. 4. 6.]" in _run(
        files / "f.onnx", "--input", f"{name}=[1, 2, 3]", capsys=capsys
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--signature", "c"], "has no signature 'c'. To do: name one of its signatures: a, b"),
        ([], r"Which signature is meant\? .* has 'a', 'b', and no 'serving_default'"),
        (["--signature", "a"], r"takes x: float32\[b,2\] \(args\[0\]\), .*; there is no x, y"),
        (["--signature", "a", "--input", "z=1"], "has no input 'z'"),
        (["--signature", "a", "--input", "x=few"], "--input x=few is not an input"),
        (["--signature", "a", "--input", "x=[1, [2]]"], "is not JSON of numbers in nested lists"),
        (["--signature", "a", "--input", 'x=["one"]'], "has a text that is not a number"),
        (["--signature", "a", "--input", "x=[1]", "--input", "y=[[1]]"], "of rank 1; expected"),
        (
            ["--signature", "a", "--input", "random", "--size", "c=2"],
            "c is not a dimension variable",
        ),
        (["--signature", "a", "--input", "x=1", "--input", "x=zeros"], "gives x twice"),
        (["--input", "nothing.npz"], "No such file"),
    ],
)
def test_what_is_wrong_is_said(files, arguments, message, capsys):
    assert main(["run", str(files / "base"), *arguments]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error


@pytest.mark.parametrize("name", ["f.bin", "f.onnx", "f.mlir"])
def test_damage(files, name, tmp_path, capsys):
    if name == "f.onnx":
        pytest.importorskip("onnxruntime")
    (tmp_path / name).write_bytes(b"func.func nothing" if name == "f.mlir" else b"nothing")
    assert main(["run", str(tmp_path / name), "--input", "random"]) == 2
    assert "To do: " in capsys.readouterr().err


def test_leaves_of_64_bits_by_their_paths(tmp_path, capsys):
    """64 bits and a pytree of arguments, whatever JAX is set to."""

    with enable_x64():
        function = jax.jit(lambda p: p["a"] / 3 + p["b"][0])
        made = export.export(function)({"a": np.float64(1), "b": [np.float64(0)]})
        (tmp_path / "f.bin").write_bytes(made.serialize())
    arguments = ["--input", "args[0]['a']=1", "--input", 'args[0]["b"][0]=0', "--json"]
    found = json.loads(_run(tmp_path / "f.bin", *arguments, capsys=capsys))
    (value,) = found["outputs"].values()
    assert value["value"] == 1 / 3


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Files with a class of a module that lies beside them, and is not imported here."""
    folder = tmp_path_factory.mktemp("classes")
    (folder / "lines.py").write_text(CLASSES)
    path = os.pathsep.join([os.getcwd(), str(folder)])
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", MAKE]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return folder


COMMANDS = {
    "run": ["run", "line.bin", "--input", "ones"],
    "run of a file": ["run", "model", "--input", "ones"],
    "onnx": ["onnx", "line.bin", "line.onnx", "--overwrite"],
    "onnx of a file": ["onnx", "model", "model.onnx", "--overwrite"],
    "verify": ["verify", "model", "--quick", "--record", "trials.npz"],
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.usefixtures("preloaded")
def test_a_class_that_is_not_imported_has_its_children_by_name(classes, name, monkeypatch, capsys):
    monkeypatch.chdir(classes)
    with pytest.warns(UserWarning, match=r"lines[.:]Line.*--import"):
        assert main(COMMANDS[name]) == 0
    if name == "run of a file":
        assert "[[3. 3.]]" in capsys.readouterr().out
    assert "lines" not in sys.modules


def test_import_from_the_working_directory(classes):
    """In processes of their own, since a class is registered once in each."""
    code = "import sys; from bridge.cli.main import main; sys.exit(main(sys.argv[1:]))"
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    for name in ("run", "onnx of a file"):
        command = [sys.executable, "-W", "error", "-c", code, *COMMANDS[name], "--import", "lines"]
        done = subprocess.run(
            command, cwd=classes, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    command = [*command[:5], *COMMANDS["run"], "--import", "circles"]
    done = subprocess.run(
        command, cwd=classes, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "There is no module 'circles' in " in done.stderr


def test_onnx_asks_which_signature(files, tmp_path, capsys):
    folder, target = str(tmp_path / "two"), str(tmp_path / "f.onnx")
    real = export.export(jax.jit(lambda x: {"twice": 2 * x}))(np.ones(3))
    bridge.save({"a": real, "b": real}, folder)
    assert main(["onnx", folder, target]) == 2
    match = r"has 'a', 'b', and no 'serving_default'\. To do: name one, .* by --signature"
    assert re.search(match, capsys.readouterr().err)
    assert main(["onnx", folder, target, "--signature", "b"]) == 0
    with pytest.raises(bridge.InteropError, match=match):
        bridge.to_onnx(bridge.load(folder))
