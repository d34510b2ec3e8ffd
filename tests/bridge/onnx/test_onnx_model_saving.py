"""The sources that can be converted, and the files that come of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from jax import export

import bridge
from bridge.cli.main import main
from tests.bridge.onnx.checking import assert_same, check_whole, operations, run

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


def _predict(params, x):
    return {"y": jnp.tanh(x @ params["w"] + params["b"])}


@pytest.fixture(scope="module")
def params():
    return {"w": np.arange(12, dtype=np.float32).reshape(3, 4) / 12, "b": np.ones(4, np.float32)}


@pytest.fixture(scope="module")
def exported(params):
    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
    return export.export(jax.jit(_predict), platforms=["cpu", "cuda"])(params, x)


@pytest.fixture(scope="module")
def saved(exported, params, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    bridge.save(exported, path, params=params, inputs=["rows"])
    return path


def _run(path, *arrays):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return names, session.run(None, dict(zip(names, arrays, strict=True)))


def _pulled_back(params, cotangent):
    leaves = jax.tree.leaves(jax.vjp(_predict, params, X)[1]({"y": cotangent}))
    return list(map(np.asarray, leaves))


@pytest.mark.parametrize("kind", ["exported", "artifact", "path", "loaded", "signature"])
def test_sources(kind, exported, params, saved, tmp_path):
    artifact = tmp_path / "artifact"
    artifact.write_bytes(exported.serialize())
    loaded = bridge.load(saved)
    source, values = {
        "exported": (exported, params),
        "artifact": (artifact, params),
        "path": (saved, None),
        "loaded": (loaded, None),
        "signature": (loaded.signatures["serving_default"], None),
    }[kind]
    path = tmp_path / "model.onnx"
    bridge.save_onnx(source, path, params=values)
    model = onnx.load(path)
    check_whole(model)
    assert operations(model) == ["MatMul", "Add", "Tanh"]
    assert sorted(tensor.name for tensor in model.graph.initializer) == ["b", "w"]
    names, found = _run(path, X)
    assert names == (["x"] if kind in ("exported", "artifact") else ["rows"])
    assert_same(found, [np.asarray(_predict(params, X)["y"])], rtol=1e-5, atol=1e-6)


def test_a_gradient_of_a_file(saved, params, tmp_path):
    path = tmp_path / "gradient.onnx"
    bridge.save_onnx(saved, path, gradient_order=1)
    cotangent = np.ones((2, 4), np.float32)
    names, found = _run(path, X, cotangent)
    assert names == ["rows", "y_cotangent"]
    assert_same(found, _pulled_back(params, cotangent), rtol=1e-4, atol=1e-5)
    assert [value.name for value in onnx.load(path).graph.output] == [
        "b_gradient", "w_gradient", "rows_gradient",
    ]  # fmt: skip


def test_the_parameters_of_a_vjp_are_its_first_primals(exported, params):
    model = bridge.to_onnx(exported.vjp(), params=params)
    assert [value.name for value in model.graph.input] == ["primal_2", "cotangent_0"]
    assert [value.name for value in model.graph.output] == [f"gradient_{n}" for n in range(3)]
    assert {"b", "w"} <= {tensor.name for tensor in model.graph.initializer}
    cotangent = np.ones((2, 4), np.float32)
    expected = _pulled_back(params, cotangent)
    assert_same(run(model, [X, cotangent]), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(bridge.InteropError, match=r"w is float32\[4\]; .* for float32\[3,4\]"):
        bridge.to_onnx(exported.vjp(), params={"b": params["b"], "w": params["b"]})
    with pytest.raises(bridge.InteropError, match="params has the structure"):
        bridge.to_onnx(exported.vjp(), params=[params["b"]] * 4)


def test_weights_of_an_older_file(exported, params, tmp_path):
    path, weights = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    bridge.save_onnx(exported, path, params=params, external_data=True)
    assert weights.exists()
    path.rename(tmp_path / "older.onnx")
    with pytest.raises(bridge.InteropError, match=r"model\.onnx\.data exists"):
        bridge.save_onnx(exported, path, params=params)
    bridge.save_onnx(exported, path, params=params, overwrite=True)
    assert weights.exists()  # no older model was there that they could have been of
    bridge.save_onnx(exported, path, params=params, overwrite=True)
    assert not weights.exists()


def test_names(exported, params):
    model = bridge.to_onnx(exported, params=params, inputs={"x": "features"}, outputs=["scores"])
    assert [value.name for value in model.graph.input] == ["features"]
    assert [value.name for value in model.graph.output] == ["scores"]
    with pytest.raises(bridge.InteropError, match="'x' is both an input and an output"):
        bridge.to_onnx(exported, params=params, outputs=["x"])


def test_a_parameter_gives_way_to_what_a_user_calls_a_result():
    params = {"y": np.eye(2, dtype=np.float32), "x": np.ones(2, np.float32)}

    def function(params, x):
        return {"y": x @ params["y"] + params["x"]}

    exported = export.export(jax.jit(function))(params, X[:, :2])
    model = bridge.to_onnx(exported, params=params)
    assert [value.name for value in (*model.graph.input, *model.graph.output)] == ["x", "y"]
    assert sorted(tensor.name for tensor in model.graph.initializer) == ["x_1", "y_1"]


def test_gradients_of_gradients_have_names_of_their_own(tmp_path):
    square = export.export(jax.jit(lambda x: x * x * x))(np.float32(2))
    path = tmp_path / "second.onnx"
    bridge.save_onnx(square, path, gradient_order=2)
    names, found = _run(path, *(np.array(n, np.float32) for n in (2, 1, 1)))
    assert names == ["x", "output_0_cotangent", "x_gradient_cotangent"]
    assert_same(found, [np.float32(12), np.float32(12)], rtol=1e-6, atol=0)


def test_a_function_of_no_results_is_refused():
    nothing = export.export(jax.jit(lambda x: ()))(np.float32(2))
    with pytest.raises(bridge.InteropError, match="returns no array"):
        bridge.to_onnx(nothing)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 17}, "opset is 17; expected 18 to 26"),
        ({"opset": "21"}, "opset is '21'; expected 18 to 26"),
        ({"opset": 21.0}, r"opset is 21\.0; expected 18 to 26"),
        ({"platform": 3}, "platform is 3; expected the name of one"),
        ({"platform": "tpu"}, "was lowered for cpu, cuda, and not for tpu"),
        ({"params": {"w": np.ones(3)}}, "params has the structure"),
        ({"params": {"w": np.ones((3, 5), "f"), "b": np.ones(4, "f")}}, "The parameter w is"),
        ({"params": {"w": "text", "b": 1}}, "The parameter b is int64"),
        ({"params": {"w": object(), "b": np.ones(4, "f")}}, "The parameter w is a object"),
        ({"inputs": ["a", "b"], "params": None}, "2 names are given for the inputs"),
        ({"inputs": 3}, "names of the inputs of _predict are 3; expected a sequence"),
        ({"outputs": {"z": "a"}}, "there is no 'z' to rename"),
    ],
)
def test_misuse(exported, options, message):
    with pytest.raises(bridge.InteropError, match=message):
        bridge.to_onnx(exported, **options)


def test_other_misuse(exported, params, tmp_path):
    with pytest.raises(bridge.InteropError, match="args= is missing"):
        bridge.to_onnx(lambda x: x)
    with pytest.raises(bridge.InteropError, match="expected 'auto', True or False"):
        bridge.save_onnx(exported, tmp_path / "m.onnx", params=params, external_data="maybe")
    with pytest.raises(bridge.InteropError, match="expected 'auto', True or False"):
        bridge.save_onnx(exported, tmp_path / "m.onnx", params=params, external_data=np.ones(2))
    with pytest.raises(bridge.InteropError, match="expected a whole number from 0 on"):
        bridge.save_onnx(exported, tmp_path / "m.onnx", params=params, gradient_order=-1)
    (tmp_path / "junk").write_bytes(b"junk")
    with pytest.raises(bridge.InteropError, match="junk is not a serialized Exported"):
        bridge.to_onnx(tmp_path / "junk")


def test_weights_that_do_not_fit_into_one_file(exported, params, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 64)
    with pytest.raises(bridge.InteropError, match="64 bytes of weights, and one file"):
        bridge.save_onnx(exported, tmp_path / "m.onnx", params=params, external_data=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "uint8", "bool"])
def test_weights_of_any_dtype_in_a_file_of_their_own(dtype, tmp_path):
    weights = np.asarray(jnp.arange(3000).astype(dtype))
    exported = export.export(jax.jit(lambda w, x: w[-2:].astype(x.dtype) * x))(weights, X[0, :2])
    path = tmp_path / "models" / "model.onnx"  # a folder that is not there yet
    bridge.save_onnx(exported, path, params=weights, external_data=True)
    assert (tmp_path / "models" / "model.onnx.data").stat().st_size == weights.nbytes
    assert path.stat().st_size < 2000
    expected = weights[-2:].astype(np.float32) * X[0, :2]
    assert_same(_run(path, X[0, :2])[1], [expected], rtol=0, atol=0)


@pytest.mark.parametrize("older", [[], [b"older"]])
def test_what_was_there_is_there_when_it_fails(older, tmp_path):
    path = tmp_path / "random.onnx"
    for content in older:
        path.write_bytes(content)
    random = export.export(jax.jit(lambda x: jax.lax.rng_uniform(x[0], x[1], (3,))))(X[0])
    with pytest.raises(bridge.InteropError, match=r"rng at .*test_onnx_model_saving\.py:\d+"):
        bridge.save_onnx(random, path, overwrite=bool(older))
    assert [path.read_bytes() for path in tmp_path.iterdir()] == older


def test_command(saved, params, tmp_path, capsys):
    target = tmp_path / "model.onnx"
    assert main(["onnx", str(saved), str(target), "--opset", "19"]) == 0
    assert f"{target}: " in capsys.readouterr().out
    assert_same(_run(target, X)[1], [np.asarray(_predict(params, X)["y"])], rtol=1e-5, atol=1e-6)
    assert main(["onnx", str(saved), str(target)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["onnx", str(saved), str(target), "--signature", "other", "--overwrite"]) == 2
    assert "it has 'serving_default'" in capsys.readouterr().err


def test_command_of_an_artifact(exported, params, tmp_path, capsys):
    (tmp_path / "artifact").write_bytes(exported.serialize(vjp_order=1))
    options = ["--gradient-order", "1", "--external-data", "yes"]
    target = tmp_path / "gradient.onnx"
    assert main(["onnx", str(tmp_path / "artifact"), str(target), *options]) == 0
    cotangent = np.ones((2, 4), np.float32)
    names, found = _run(target, params["b"], params["w"], X, cotangent)
    assert names == ["params_b", "params_w", "x", "y_cotangent"]
    assert_same(found, _pulled_back(params, cotangent), rtol=1e-4, atol=1e-5)
    assert main(["onnx", str(tmp_path / "none"), str(target), "--overwrite"]) == 2
    assert "none does not exist" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("gibibytes", [1.1, 2.2])
def test_large_weights(gibibytes, tmp_path):
    rows = int(gibibytes * (1 << 30) / 4 / 4096)
    weights = np.zeros((rows, 4096), np.float32)
    weights[-1, -1] = 3
    spec = jax.ShapeDtypeStruct((4096,), "float32")
    large = export.export(jax.jit(lambda w, x: (w @ x)[-2:]))(
        jax.ShapeDtypeStruct(weights.shape, "float32"), spec
    )
    path = tmp_path / "model.onnx"
    bridge.save_onnx(large, path, params=weights)
    assert path.stat().st_size < 10_000
    assert (tmp_path / "model.onnx.data").stat().st_size == weights.nbytes
    x = np.ones(4096, np.float32)
    assert_same(_run(path, x)[1], [np.float32([0, 3])], rtol=0, atol=0)


def test_a_gradient_in_memory_is_that_of_a_file(tmp_path):
    model = bridge.to_onnx(jnp.sin, args="f32[3]", gradient_order=1)
    bridge.save_onnx(jnp.sin, tmp_path / "m.onnx", args="f32[3]", gradient_order=1)
    assert model == onnx.load(tmp_path / "m.onnx")
