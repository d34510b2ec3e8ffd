"""A written file is read back: signatures, calls, gradients, values."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

import bridge
import savedmodel
from savedmodel.model import Cast
from savedmodel.read import read_proto
from savedmodel.write import write_proto
from xla_call_module import from_exported, retarget
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import StructureError
from xla_call_module.passes.exported_form import DROP_LOCATIONS
from xla_call_module.passes.module_pass import run_passes

PARAMS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.zeros((0, 4), np.complex64)}


@pytest.fixture
def exported():
    (b,) = jax.export.symbolic_shape("b")
    return jax.export.export(jax.jit(lambda params, x: (x @ params["w"], x.sum())))(
        PARAMS, jax.ShapeDtypeStruct((b, 2), np.float32)
    )


@pytest.fixture
def folder(exported, tmp_path):
    bridge.save(exported, tmp_path / "model", params=PARAMS)
    return tmp_path / "model"


def test_calls_are_equal(folder, exported):
    function = savedmodel.read(folder).default.function
    call, vjp = (retarget(from_exported(order)) for order in (exported, exported.vjp()))
    assert function.chain == (call, run_passes(vjp, [DROP_LOCATIONS]))
    assert function.bound == {index: index for index in exported.module_kept_var_idx if index < 2}


def test_a_copy_has_the_same_variables(folder, tmp_path):
    savedmodel.write(savedmodel.read(folder), tmp_path / "copy")
    name = "variables/variables.data-00000-of-00001"
    assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()
    assert savedmodel.read(tmp_path / "copy").default.inputs == {"x": 2}


def test_a_session_graph_has_the_sizes_of_the_inputs(tmp_path):
    """As TensorFlow 1 writes it; a size of zero is none that is unknown."""
    folder = tmp_path / "model"
    bridge.save(lambda x, y: (x.sum(), y), folder, args="f32[0,b], f32[3]")
    proto = read_proto(folder)
    proto.meta_graphs[0].ClearField("object_graph_def")
    write_proto(folder, proto.SerializeToString())
    specs = savedmodel.read(folder).default.input_specs
    assert {name: spec.shape for name, spec in specs.items()} == {"x": (0, "x_1"), "y": (3,)}


def test_what_only_runs_before_a_call_is_no_operand(tmp_path):
    """Sizes that belong together are compared before, and the call waits for that."""
    folder = tmp_path / "model"
    bridge.save(lambda x, y: x[:, 0] + y, folder, args="f32[b,2], f32[b]", gradient_order=0)
    nodes = [n for f in read_proto(folder).meta_graphs[0].graph_def.library.function
             for n in f.node_def if n.op == "XlaCallModule"]  # fmt: skip
    assert any(name.startswith("^") for node in nodes for name in node.input)
    assert savedmodel.read(folder).default.inputs == {"x": 0, "y": 1}


def test_no_value_to_write(folder, tmp_path):
    model = savedmodel.read(folder)
    bare = [dataclasses.replace(variable, chunks=None) for variable in model.variables]
    with pytest.raises(StructureError, match="The variable a has no value"):
        savedmodel.write(dataclasses.replace(model, variables=tuple(bare)), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_what_is_around_a_call_is_not_dropped(folder, tmp_path):
    model = savedmodel.read(folder)
    outputs = {
        name: Cast(value, dtype_from_name("float16", where="the test"))
        for name, value in model.default.output_values.items()
    }
    changed = dataclasses.replace(model.default, output_values=outputs)
    with pytest.raises(StructureError, match="serving_default computes something besides calls"):
        savedmodel.write(dataclasses.replace(model, signatures=(changed,)), tmp_path / "m")
    assert not (tmp_path / "m").exists()
