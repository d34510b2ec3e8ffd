"""Inputs of a signature that a request may leave out."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import export
from tensorflow.core.protobuf import saved_model_pb2

import bridge
import savedmodel
from xla_call_module.errors import DtypeError, StructureError


def scaled(x, scale, shift, *, half):
    return {"y": x * scale + shift.sum() + half.astype("float32")}


@pytest.fixture(scope="module")
def exported():
    (b,) = export.symbolic_shape("b")
    return export.export(jax.jit(scaled))(
        jax.ShapeDtypeStruct((b, 2), "float32"),
        jax.ShapeDtypeStruct((), "float32"),
        jax.ShapeDtypeStruct((3,), "int32"),
        half=jax.ShapeDtypeStruct((), "bfloat16"),
    )


DEFAULTS = {"scale": 2.5, "shift": [1, 2, 3], "half": np.array(0.5, ml_dtypes.bfloat16)}


@pytest.fixture(scope="module")
def folder(exported, tmp_path_factory):
    place = tmp_path_factory.mktemp("defaults") / "model"
    bridge.save(exported, place, defaults=DEFAULTS)
    return place


X = np.array([[1, 2], [3, 4]], np.float32)
WANT = X * 2.5 + 6 + 0.5


def _definition(folder):
    proto = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    return proto.meta_graphs[0].signature_def["serving_default"]


def test_tensorflow_reads_what_is_in_the_signature(folder):
    definition = _definition(folder)
    found = {name: tf.make_ndarray(tensor) for name, tensor in definition.defaults.items()}
    assert found.keys() == DEFAULTS.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, np.asarray(DEFAULTS[name], value.dtype))
    assert {name: value.dtype.name for name, value in found.items()} == {
        "scale": "float32", "shift": "int32", "half": "bfloat16",
    }  # fmt: skip


@pytest.mark.parametrize("given", [{}, {"scale": np.float32(1)}], ids=["none", "some"])
def test_a_session_takes_them_for_what_is_not_fed(folder, given):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        definition = meta_graph.signature_def["serving_default"]
        feeds = {definition.inputs[name].name: value for name, value in {"x": X, **given}.items()}
        got = session.run(definition.outputs["y"].name, feeds)
    want = WANT if not given else X + 6.5
    np.testing.assert_array_equal(got, want)


def test_jax_takes_them_for_inputs_by_name(folder):
    model = bridge.load(folder)
    np.testing.assert_array_equal(model(x=X)["y"], WANT)
    np.testing.assert_array_equal(model(x=X, scale=np.float32(1))["y"], X + 6.5)
    np.testing.assert_array_equal(
        jax.jit(lambda x: model(x=x))(X)["y"], np.asarray(scaled_by_default(X))
    )
    with pytest.raises(StructureError, match="x"):
        model(scale=np.float32(1))


def scaled_by_default(x):
    half = jnp.bfloat16(0.5)
    return scaled(x, jnp.float32(2.5), jnp.array([1, 2, 3]), half=half)["y"]


def test_tensorflow_itself_wants_all_inputs_of_its_python_signatures(folder):
    call = tf.saved_model.load(folder).signatures["serving_default"]
    all_given = {name: tf.constant(value) for name, value in {"x": X, **_arrays()}.items()}
    np.testing.assert_array_equal(call(**all_given)["y"], WANT)
    with pytest.raises(TypeError, match="missing"):
        call(x=tf.constant(X))


def _arrays():
    dtypes = {"scale": "float32", "shift": "int32", "half": ml_dtypes.bfloat16}
    return {name: np.asarray(value, dtypes[name]) for name, value in DEFAULTS.items()}


def test_a_copy_and_several_signatures(folder, exported, tmp_path):
    savedmodel.write(savedmodel.read(folder), tmp_path / "copy")
    assert _definition(tmp_path / "copy").defaults.keys() == DEFAULTS.keys()
    bridge.save(
        {"serving_default": exported, "other": exported},
        tmp_path / "two",
        defaults={"other": {"scale": 1}},
    )
    assert not _definition(tmp_path / "two").defaults
    found = {s.key: dict(s.defaults) for s in savedmodel.read(tmp_path / "two").signatures}
    assert found == {"serving_default": {}, "other": {"scale": 1}}
    with pytest.raises(StructureError, match="There are 2 signatures"):
        bridge.save(
            {"serving_default": exported, "other": exported},
            tmp_path / "none",
            defaults={"scale": 1},
        )


def test_names_that_were_chosen(exported, tmp_path):
    bridge.save(exported, tmp_path / "m", inputs={"scale": "factor"}, defaults={"factor": 2})
    assert list(_definition(tmp_path / "m").defaults) == ["factor"]


def test_in_a_padded_signature(exported, tmp_path):
    bridge.save(exported, tmp_path / "m", defaults=DEFAULTS, batch_buckets=(4,))
    np.testing.assert_array_equal(bridge.load(tmp_path / "m")(x=X)["y"], WANT)
    test_a_session_takes_them_for_what_is_not_fed(tmp_path / "m", {})


@pytest.mark.parametrize(
    ("defaults", "error", "message"),
    [
        ({"other": 1}, StructureError, "its inputs are x, scale, shift, half"),
        ({"scale": [1.0]}, StructureError, r"has shape \(1,\); expected float32\[\]"),
        ({"shift": [1, 2]}, StructureError, r"has shape \(2,\); expected int32\[3\]"),
        ({"shift": [1.5, 2, 3]}, DtypeError, r"expected int32\[3\]"),
        ({"shift": [1 << 40, 2, 3]}, DtypeError, "int32|too large"),
        ({"scale": np.ones(())}, DtypeError, r"is float64; expected float32\[\]"),
        ({"scale": "big"}, DtypeError, r"expected float32\[\]"),
        ({"scale": None}, DtypeError, "scale"),
        ([1], StructureError, "expected values by the names of inputs"),
        ({"nowhere": {"scale": 1}}, StructureError, "the signatures are serving_default"),
    ],
)
def test_what_does_not_fit(exported, tmp_path, defaults, error, message):
    with pytest.raises(error, match=message):
        bridge.save(exported, tmp_path / "m", defaults=defaults)
    assert not (tmp_path / "m").exists()


def test_a_size_that_other_inputs_have(tmp_path):
    b, c = export.symbolic_shape("b, c")
    specs = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((b,), (b,), (c,))]
    exported = export.export(jax.jit(lambda x, y, z: (x + y, z)))(*specs)
    bridge.save(exported, tmp_path / "m", defaults={"z": [1.0, 2.0]})
    with pytest.raises(StructureError, match=r"y of .* and b is a size of other"):
        bridge.save(exported, tmp_path / "n", defaults={"y": [1.0]})
