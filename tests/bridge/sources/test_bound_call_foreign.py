"""ONNX models of SavedModels that other programs wrote."""

from __future__ import annotations

import jax
import numpy as np
import onnx
import pytest

import bridge
from tests.bridge.onnx.checking import assert_same, check_whole, evaluate, run
from tests.foreign.files import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_signatures(foreign, name):
    written = foreign(name)
    model = bridge.load(written.folder)
    both = model.signatures.keys() & written.values.keys()
    assert both
    for key in both:
        values = written.values[key]
        converted = bridge.to_onnx(model.signatures[key])
        check_whole(converted)
        arrays = [np.asarray(values["input"][i.name]) for i in converted.graph.input]
        expected = [values["output"][o.name] for o in converted.graph.output]
        for compute in (run, evaluate):
            assert_same(compute(converted, arrays), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["jax2tf", "keras", "orbax"])
def test_gradients(foreign, name, tmp_path):
    """Of those that have them in the file; the numbers are known of one."""
    written = foreign(name)
    path = tmp_path / "gradient.onnx"
    bridge.save_onnx(written.folder, path, gradient_order=1)
    converted = onnx.load(path)
    check_whole(converted)
    values = written.values["serving_default"]
    given = dict(values["input"])
    for output in values["output"]:
        cotangent = values.get("cotangent", values["output"])[output]
        given[f"{output}_cotangent"] = cotangent
    arrays = [np.asarray(given[value.name]) for value in converted.graph.input]
    names = [value.name for value in converted.graph.output]
    found, other = (dict(zip(names, f(converted, arrays), strict=True)) for f in (run, evaluate))
    assert_same([*other.values()], [*found.values()], rtol=1e-4, atol=1e-5)
    for argument, expected in values.get("gradient", {}).items():
        assert_same([found[f"{argument}_gradient"]], [expected], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bare_graph", "session_graph"])
def test_gradients_of_files_that_have_none(foreign, name, tmp_path):
    """They are made of the operations."""
    folder, path = foreign(name).folder, tmp_path / "gradient.onnx"
    bridge.save_onnx(folder, path, gradient_order=1)
    converted = onnx.load(path)
    check_whole(converted)
    model, values = bridge.load(folder).default, foreign(name).values["serving_default"]
    assert model.gradient_source() == "lifted"
    floats = {k: v for k, v in values["input"].items() if v.dtype.kind == "f"}
    call = lambda floats: model(**{**values["input"], **floats})  # noqa: E731
    results, pull_back = jax.vjp(call, floats)
    chosen = lambda dtype: jax.tree.map(  # noqa: E731
        lambda leaf: leaf if leaf.dtype.kind == "f" else np.zeros(leaf.shape, dtype), results
    )
    (of_inputs,) = pull_back(chosen(jax.dtypes.float0))
    cotangents = map(np.asarray, jax.tree.leaves(chosen(bool)))
    names = [value.name for value in converted.graph.input]
    arrays = [next(cotangents) if n.endswith("cotangent") else values["input"][n] for n in names]
    outputs = [value.name for value in converted.graph.output]
    found = dict(zip(outputs, run(converted, arrays), strict=True))
    for key, expected in of_inputs.items():
        assert_same([found[f"{key}_gradient"]], [np.asarray(expected)], rtol=1e-4, atol=1e-5)


def test_what_has_no_gradient_is_refused(tmp_path):
    loop = jax.jit(lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: x * 2, x))
    made = jax.export.export(loop)(np.float32(1))
    read = jax.export.deserialize(made.serialize())
    with pytest.raises(bridge.InteropError, match="has no gradient of that order"):
        bridge.save_onnx(read, tmp_path / "gradient.onnx", gradient_order=1)
    assert list(tmp_path.iterdir()) == []


def test_the_gradient_of_stablehlo(tmp_path):
    """A module has no `Exported`; its gradient is made of its operations, too."""
    x = np.linspace(0, 1, 3, dtype=np.float32)
    text = jax.jit(lambda x: jax.numpy.sin(x) * x).lower(x).as_text()
    (tmp_path / "m.mlir").write_text(text)
    bridge.save_onnx(tmp_path / "m.mlir", tmp_path / "m.onnx", gradient_order=1)
    (found,) = run(onnx.load(tmp_path / "m.onnx"), [x, np.ones_like(x)])
    np.testing.assert_allclose(found, np.cos(x) * x + np.sin(x), rtol=1e-5)
