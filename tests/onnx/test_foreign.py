"""ONNX models of SavedModels that other programs wrote."""

from __future__ import annotations

import numpy as np
import pytest

import bridge
from tests.foreign.files import NAMES
from tests.onnx.checking import assert_same, check_whole, evaluate, run


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
