"""ONNX models of SavedModels that other programs wrote."""

from __future__ import annotations

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
def test_what_has_no_gradient_is_refused(foreign, name, tmp_path):
    with pytest.raises(bridge.InteropError, match="has no gradient of that order"):
        bridge.save_onnx(foreign(name).folder, tmp_path / "gradient.onnx", gradient_order=1)
    assert list(tmp_path.iterdir()) == []
