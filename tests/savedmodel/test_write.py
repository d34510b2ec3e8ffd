"""A model that is written, besides the parts that have tests of their own."""

from __future__ import annotations

import dataclasses

import numpy as np

import bridge
import savedmodel
from savedmodel.model import VariablePart

W = np.arange(24, dtype=np.float32).reshape(4, 6)


def test_parts_of_a_variable_are_slices_of_the_whole(tmp_path):
    """They are of several processes as a rule; a part may begin and end anywhere."""
    bridge.save(lambda w, x: w * x, tmp_path / "whole", params=W, args="f32[]")
    model = savedmodel.read(tmp_path / "whole")
    extents = [((0, 1), (0, 6)), ((1, 4), (0, 2)), ((1, 3), (2, 6)), ((3, 4), (2, 6))]
    shards = [
        VariablePart(extent, lambda part=W[tuple(slice(*e) for e in extent)]: iter([part.copy()]))
        for extent in extents
    ]
    (variable,) = model.variables
    variable = dataclasses.replace(variable, chunks=None, shards=tuple(shards))
    savedmodel.write(dataclasses.replace(model, variables=(variable,)), tmp_path / "parts")
    (read,) = savedmodel.read(tmp_path / "parts").variables
    np.testing.assert_array_equal(read.to_numpy(), W)
    np.testing.assert_array_equal(read.part((slice(2, 4), slice(1, 3))), W[2:4, 1:3])
    np.testing.assert_array_equal(bridge.load(tmp_path / "parts")(np.float32(2)), 2 * W)
