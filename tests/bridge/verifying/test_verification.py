"""Models of ONNX Runtime and LiteRT are compared with JAX: when they are written, and later."""

from __future__ import annotations

import importlib.util

import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.cli.main import main
from xla_call_module.errors import StructureError, UnsupportedError

# The sum of the weights is no rounding error.
PARAMS = {"w": np.linspace(-1, 2, 15, dtype=np.float32).reshape(5, 3)}
FUNCTIONS = {"one": lambda p, x: jnp.tanh(x @ p["w"]), "two": lambda p, x: x.sum() + p["w"].sum()}
OPTIONS = {"params": PARAMS, "args": "f32[b,5]"}
# The package of each, what converts, what saves, its name, and what a model is of.
KINDS = {
    "onnx": ("onnxruntime", bridge.to_onnx, bridge.save_onnx, "ONNX Runtime", FUNCTIONS["one"]),
    "litert": ("ai_edge_litert", bridge.to_litert, bridge.save_litert, "LiteRT", FUNCTIONS),
}
RUN = [kind for kind, (package, *_) in KINDS.items() if importlib.util.find_spec(package)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A SavedModel of both functions, and what `verify` records of it."""
    folder = tmp_path_factory.mktemp("against")
    bridge.save(FUNCTIONS, folder / "saved", **OPTIONS)
    assert bridge.verify(folder / "saved", record=folder / "truth.npz").passed
    return folder


def _damaged(path):
    """Another file, which has another number in a weight."""
    content, weight = path.read_bytes(), PARAMS["w"][0, 0].tobytes()
    assert content.count(weight) > 0
    other = path.with_stem("other")
    other.write_bytes(content.replace(weight, np.float32(7).tobytes()))
    return other


@pytest.mark.parametrize("kind", RUN)
def test_a_model_is_compared_with_what_was_recorded(kind, folder, tmp_path, capsys):
    _, _, save, runtime, function = KINDS[kind]
    path, record = tmp_path / f"model.{kind.replace('litert', 'tflite')}", folder / "truth.npz"
    save(function, path, verify=True, **OPTIONS)
    report = bridge.verify(path, against=record)
    assert report.passed
    assert report.runtime.startswith(runtime)
    keys = FUNCTIONS if function is FUNCTIONS else ("one",)
    assert {(row.signature, row.order) for row in report.rows} == {(key, 0) for key in keys}
    assert {"random, b=17", "nan, b=3", "inf, b=3"} <= {row.inputs for row in report.rows}
    assert not bridge.verify(path, against=record, tolerance=(0.0, 0.0)).passed
    other = _damaged(path)
    (first, *_) = bridge.verify(other, against=record).rows
    assert first.problem.startswith("output_0 at index")
    assert bridge.verify(other, against=record, tolerance=(0.0, 99.0)).passed
    assert main(["verify", str(path), "--against", str(record)]) == 0
    assert f"comparisons with {runtime}" in capsys.readouterr().out


@pytest.mark.parametrize("kind", RUN)
def test_without_a_record_the_message_names_it(kind, folder, tmp_path, capsys):
    _, _, save, _, function = KINDS[kind]
    path = tmp_path / f"model.{kind.replace('litert', 'tflite')}"
    save(function, path, verify=False, **OPTIONS)
    with pytest.raises(StructureError, match=r"no results of JAX.*--against.*--record"):
        bridge.verify(path)
    assert main(["verify", str(path)]) == 2
    assert "--against" in capsys.readouterr().err
    for options in ({"quick": True}, {"record": folder / "r.npz"}, {"python": "python"}):
        with pytest.raises(StructureError, match="pass against= alone"):
            bridge.verify(path, **options)


@pytest.mark.parametrize("kind", RUN)
def test_a_conversion_is_refused_where_it_differs(kind, folder, tmp_path, capsys):
    _, convert, save, runtime, function = KINDS[kind]
    path, strict = tmp_path / "model", {"verify": True, "tolerance": (0.0, 0.0), **OPTIONS}
    message = rf"{runtime} computes something else than JAX.*rtol=0, atol=0.*verify=False"
    with pytest.raises(UnsupportedError, match=message):
        convert(function, **strict)
    with pytest.raises(UnsupportedError, match=message):
        save(function, path, **strict)
    assert not path.exists()
    with pytest.raises(StructureError, match="tolerance= is for the comparison"):
        convert(function, tolerance=0.1, verify=False, **OPTIONS)
    model = convert(function, verify=True, tolerance=1e-3, **OPTIONS)
    assert model == convert(function, verify=False, **OPTIONS)
    call = [kind, str(folder / "saved"), str(path), "--signature", "one"]
    call += ["--verify"] if kind == "onnx" else []
    assert main([*call, "--tolerance", "0,0"]) == 2
    assert f"{runtime} computes something else" in capsys.readouterr().err
    assert main([*call, "--tolerance", "0.001,1e-4"]) == 0
