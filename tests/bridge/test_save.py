"""`bridge.save`: what it takes, names, refuses and writes, as TensorFlow sees it afterwards."""

from __future__ import annotations

import dataclasses
import json
import shutil
from importlib import import_module

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64

import bridge
import savedmodel
from tests.bridge.absence import run_without_tensorflow
from tests.bridge.models import BY_NAME, bit_patterns
from tests.bridge.pytrees import read_meta_graph, read_paths
from tests.exports import export_of
from tests.jax_versions import bits_of
from tests.work import times_called
from tests.xla_flags import with_xla_flags
from xla_call_module._jax import parse_artifact, serialize_artifact
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import DtypeError, FormatError, StructureError, VersionError

pytestmark = pytest.mark.usefixtures("on_the_cpu")

SPEC = jax.ShapeDtypeStruct((3,), np.float32)


def _files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class TestDefaultNames:
    """Inputs are called after the arguments, outputs after the results' pytree paths."""

    @pytest.mark.parametrize(
        ("function", "args", "kwargs", "inputs"),
        [
            (lambda x, y: x + y, (SPEC, SPEC), {}, ["x", "y"]),
            (lambda x, *, y: x + y, (SPEC,), {"y": SPEC}, ["x", "y"]),
            (lambda tree: tree["a"][0] + tree["b"], ({"a": [SPEC], "b": SPEC},), {},
             ["tree_a_0", "tree_b"]),
            (lambda *xs, **options: xs[0] + options["y"], (SPEC,), {"y": SPEC}, ["xs_0", "y"]),
            (lambda x, unused, *, flag: x, (SPEC, SPEC), {"flag": SPEC}, ["x", "args_1", "flag"]),
            (lambda tree: tree["a"], ({"a": SPEC, "b": SPEC},), {}, ["tree_a", "tree_b"]),
            (lambda tree: tree[10] + tree[9], ({9: SPEC, 10: SPEC},), {}, ["tree_9", "tree_10"]),
            (lambda a, a_b: a["b"] + a_b, ({"b": SPEC}, SPEC), {}, ["a_b", "a_b_1"]),
            (lambda x, X: x + X, (SPEC, SPEC), {}, ["x", "X_1"]),  # noqa: N803
            (lambda self, x: self + x, (SPEC, SPEC), {}, ["self_", "x"]),
            (lambda tree: tree["a b!"], ({"a b!": SPEC},), {}, ["tree_a_b"]),
            (lambda _x: _x, (SPEC,), {}, ["x"]),
            (lambda identityn, xlacallmodule: identityn - xlacallmodule, (SPEC, SPEC), {},
             ["identityn", "xlacallmodule"]),
        ],
    )  # fmt: skip
    def test_inputs(self, tmp_path, function, args, kwargs, inputs):
        bridge.save(export_of(function, *args, **kwargs), tmp_path / "model")
        assert list(read_paths(tmp_path / "model", "serving_default")[0]) == sorted(inputs)
        (by_name,) = tf.saved_model.load(tmp_path / "model").signatures.values()
        _, found = by_name.structured_input_signature
        assert found.keys() == set(inputs)
        assert by_name(**{name: tf.ones(3) for name in inputs})["output_0"].shape == (3,)

    @pytest.mark.parametrize(
        ("function", "outputs"),
        [
            (lambda x: x, {"output_0": "result"}),
            (lambda x: (x, [x]), {"output_0": "result[0]", "output_1_0": "result[1][0]"}),
            (lambda x: {"y": [x]}, {"y_0": "result['y'][0]"}),
            (lambda x: {"Y": x, "y": x}, {"Y": "result['Y']", "y": "result['y']"}),
            (lambda x: {7: x}, {"output_7": "result[7]"}),
            (lambda x: {"self": x}, {"self": "result['self']"}),
        ],
    )
    def test_outputs(self, tmp_path, function, outputs):
        bridge.save(export_of(function, SPEC), tmp_path / "model")
        assert read_paths(tmp_path / "model", "serving_default")[1] == outputs
        signature = tf.saved_model.load(tmp_path / "model").signatures["serving_default"]
        assert signature(x=tf.ones(3)).keys() == outputs.keys()

    def test_tensorflow_keeps_them_when_it_saves_again(self, tmp_path):
        exported = export_of(lambda X, x, self: {"Y": X - x, "y": x - self}, *[SPEC] * 3)  # noqa: N803
        bridge.save(exported, tmp_path / "model")
        loaded = tf.saved_model.load(tmp_path / "model")
        tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
        signature = tf.saved_model.load(tmp_path / "again").signatures["serving_default"]
        found = signature(X=tf.fill(3, 5.0), x_1=tf.fill(3, 2.0), self_=tf.fill(3, 1.0))
        assert {name: tensor.numpy().tolist() for name, tensor in found.items()} == {
            "Y": [3, 3, 3],
            "y": [1, 1, 1],
        }

    def test_the_python_signature(self, tmp_path):
        exported = export_of(lambda p, self, *rest, key: self, 1.0, SPEC, SPEC, None, key=SPEC)
        bridge.save(exported, tmp_path / "model", params=1.0)
        loaded = tf.saved_model.load(tmp_path / "model")
        x = tf.ones(3)
        assert loaded(self_=x, args_2=x, args_3=None, key=x).shape == (3,)
        assert loaded(x, x, None, key=x).shape == (3,)


def _pair(x, y):
    return x - y, x + y


class TestGivenNames:
    """`inputs=` and `outputs=` in every form."""

    @pytest.mark.parametrize(
        ("inputs", "outputs"),
        [
            (["left", "right"], ["difference", "sum"]),
            (("left", "right"), ("difference", "sum")),
            ({"x": "left", "y": "right"}, {"output_0": "difference", "output_1": "sum"}),
            ({"serving_default": ["left", "right"]}, {"serving_default": ["difference", "sum"]}),
            (
                {"serving_default": {"x": "left", "y": "right"}},
                {"serving_default": {"output_0": "difference", "output_1": "sum"}},
            ),
        ],
    )
    def test_forms(self, tmp_path, inputs, outputs):
        bridge.save(export_of(_pair, SPEC, SPEC), tmp_path / "m", inputs=inputs, outputs=outputs)
        signature = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
        found = signature(left=tf.fill(3, 5.0), right=tf.fill(3, 2.0))
        assert {name: tensor[0].numpy() for name, tensor in found.items()} == {
            "difference": 3,
            "sum": 7,
        }
        assert read_paths(tmp_path / "m", "serving_default") == (
            {"left": "args[0]", "right": "args[1]"},
            {"difference": "result[0]", "sum": "result[1]"},
        )

    def test_swapped_names(self, tmp_path):
        exported = export_of(_pair, SPEC, SPEC)
        bridge.save(exported, tmp_path / "m", inputs={"x": "y", "y": "x"})
        signature = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
        found = signature(y=tf.fill(3, 5.0), x=tf.fill(3, 2.0))
        assert found["output_0"].numpy().tolist() == [3, 3, 3]

    def test_one_name_is_a_string(self, tmp_path):
        bridge.save(export_of(jnp.sin, SPEC), tmp_path / "m", inputs="angle", outputs="sine")
        assert read_paths(tmp_path / "m", "serving_default") == (
            {"angle": "args[0]"},
            {"sine": "result"},
        )

    def test_of_several_signatures(self, tmp_path):
        models = {"pair": export_of(_pair, SPEC, SPEC), "sine": export_of(jnp.sin, SPEC)}
        bridge.save(
            models, tmp_path / "m", inputs={"pair": {"y": "z"}}, outputs={"sine": ["value"]}
        )
        assert read_paths(tmp_path / "m", "pair")[0] == {"x": "args[0]", "z": "args[1]"}
        assert read_paths(tmp_path / "m", "pair")[1].keys() == {"output_0", "output_1"}
        assert read_paths(tmp_path / "m", "sine")[0] == {"x": "args[0]"}
        assert read_paths(tmp_path / "m", "sine")[1] == {"value": "result"}

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"inputs": ["a"]}, "1 names are given for the inputs of serving_default, which are 2"),
            ({"inputs": ["a", "b", "c"]}, r"3 names .* which are 2: \['x', 'y'\]"),
            ({"inputs": ["a", "a"]}, "inputs of serving_default are not unique.* upper and lower"),
            ({"inputs": ["a", "A"]}, "inputs of serving_default are not unique.* upper and lower"),
            ({"inputs": {"x": "y"}}, r"not unique.*\['y', 'y'\]"),
            ({"inputs": {"z": "a"}}, r"are \['x', 'y'\]; there is no 'z' to rename"),
            ({"inputs": {"serving_defaul": ["a", "b"]}}, "there is no 'serving_defaul' to rename"),
            (
                {"inputs": ["1a", "b"]},
                "'1a' among the inputs of serving_default is not a valid name",
            ),
            (
                {"inputs": ["_a", "b"]},
                "'_a' among the inputs of serving_default is not a valid name",
            ),
            ({"inputs": ["a-b", "b"]}, "'a-b' among the inputs"),
            ({"inputs": ["é", "b"]}, "'é' among the inputs"),
            ({"inputs": ["née", "b"]}, "'née' among the inputs"),
            ({"inputs": ["", "b"]}, "'' among the inputs"),
            ({"inputs": [None, "b"]}, "None among the inputs"),
            ({"inputs": ["a", "self"]}, "input of serving_default is called 'self'"),
            ({"outputs": ["a"]}, "1 names are given for the outputs of serving_default"),
            ({"outputs": ["a", "a"]}, r"outputs of serving_default are not unique: \['a', 'a'\]"),
            ({"outputs": ["a b", "c"]}, "'a b' among the outputs"),
            ({"outputs": {"sum": "a"}}, "there is no 'sum' to rename"),
        ],
    )
    def test_wrong_names(self, tmp_path, options, message):
        with pytest.raises(StructureError, match=message):
            bridge.save(export_of(_pair, SPEC, SPEC), tmp_path / "m", **options)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("key", ["", "a-b", "1a", "_a", "params", "variables", "signatures"])
    def test_wrong_signature_keys(self, tmp_path, key):
        with pytest.raises(StructureError, match=f"'{key}' cannot be a signature key"):
            bridge.save({key: export_of(jnp.sin, SPEC)}, tmp_path / "m")
        assert list(tmp_path.iterdir()) == []


def test_the_first_signature_is_the_default_one(tmp_path):
    sine, cosine = export_of(jnp.sin, SPEC), export_of(jnp.cos, SPEC)
    bridge.save({"b": cosine, "a": sine}, tmp_path / "first")
    bridge.save({"b": cosine, "serving_default": sine}, tmp_path / "named")
    for name, value in (("first", 1), ("named", 0)):
        loaded = tf.saved_model.load(tmp_path / name)
        assert loaded(tf.zeros(3)).numpy().tolist() == [value] * 3


class TestParameters:
    """What `params` may hold, and what is refused."""

    @pytest.mark.parametrize(
        "array",
        [
            np.arange(24, dtype=np.float32).reshape(2, 3, 4).T,
            np.arange(24, dtype=np.float32)[::-2],
            np.asfortranarray(np.arange(24, dtype=np.float32).reshape(4, 6)),
            np.broadcast_to(np.float32(3), (5, 2)),
            np.arange(6, dtype=">f4").reshape(2, 3),
            np.arange(6, dtype=">i4")[::2],
            np.arange(6, dtype=np.float64),
            np.arange(6, dtype=np.int64)[::2],
            np.zeros((0, 4), np.float32),
            np.float32(2.5),
            np.ones((), np.bool_),
            jnp.arange(24.0).reshape(4, 6).T[1:],
            jnp.ones((2, 2), jnp.bfloat16),
            3.5,
            7,
            True,
            2 - 1j,
        ],
        ids=lambda array: f"{type(array).__name__}-{getattr(array, 'dtype', '')}",
    )
    def test_values(self, tmp_path, array):
        native = np.asarray(array).astype(np.asarray(array).dtype.newbyteorder("="))
        want = np.asarray(jnp.asarray(native))
        exported = export_of(lambda params, x: params["w"] + x, {"w": want}, 0)
        bridge.save(exported, tmp_path / "m", params={"w": array})
        (variable,) = tf.saved_model.load(tmp_path / "m").variables
        assert (variable.dtype.as_numpy_dtype, tuple(variable.shape)) == (want.dtype, want.shape)
        assert variable.numpy().tobytes() == want.tobytes()

    def test_arrays_larger_than_a_piece(self, tmp_path):
        """They are written in several, along their leading axes."""
        params = {
            "rows": np.arange(6 << 20, dtype=np.float32).reshape(3, -1).T,
            "planes": np.arange(5 << 20, dtype=np.float32).reshape(1 << 20, 5).T[::-1],
            "narrowed": np.arange(2 << 20, dtype=np.float64).reshape(2, -1),
        }
        exported = export_of(lambda params: sum(value[0, 0] for value in params.values()), params)
        bridge.save(exported, tmp_path / "m", params=params)
        loaded = tf.saved_model.load(tmp_path / "m")
        for name, value in params.items():
            np.testing.assert_array_equal(loaded.params[name].numpy(), value.astype(np.float32))

    def test_containers_with_gaps(self, tmp_path):
        params = {"list": [np.float32(2), None, np.float32(3)], "tuple": (None, np.float32(4))}
        exported = export_of(
            lambda params, x: (params["list"][0] - params["list"][2]) * params["tuple"][1] * x,
            params,
            1.0,
        )
        bridge.save(exported, tmp_path / "m", params=params)
        loaded = tf.saved_model.load(tmp_path / "m")
        assert loaded(tf.constant(2.0)).numpy() == -8
        assert loaded.params["list"][1] is None
        assert loaded.params["tuple"][1].numpy() == 4

    def test_no_leaves(self, tmp_path):
        bridge.save(export_of(lambda params, x: x * 2, {}, SPEC), tmp_path / "m", params={})
        loaded = tf.saved_model.load(tmp_path / "m")
        assert loaded(tf.ones(3)).numpy().tolist() == [2, 2, 2]
        assert len(loaded.variables) == 0

    def test_several_devices(self, tmp_path):
        """A sharded parameter is written shard by shard; it takes a process of its own."""
        code = """
import sys
import jax, jax.export, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import bridge, savedmodel
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
value = np.arange(4 << 20, dtype=np.float32).reshape(1024, -1)
for spec in (P("a", "b"), P("b"), P(None, "a"), P()):
    params = jax.device_put(value, NamedSharding(mesh, spec))
    assert len(params.devices()) == 4
    exported = jax.export.export(jax.jit(lambda p, x: p[0, 1] * x))(value, 1.0)
    bridge.save(exported, sys.argv[1], params=params, overwrite=True)
    (variable,) = savedmodel.read(sys.argv[1]).variables
    assert variable.to_numpy().tobytes() == value.tobytes(), spec
"""
        flags = "--xla_force_host_platform_device_count=4"
        run_without_tensorflow(code, tmp_path / "m", XLA_FLAGS=with_xla_flags(flags))

    @pytest.mark.parametrize(
        ("params", "error", "message"),
        [
            ({"w": np.ones(3)}, StructureError, "has the structure"),
            ([np.ones(3), 1.0], StructureError, "has the structure"),
            ({"w": np.ones(4), "b": 1.0}, StructureError, r"w has shape \(4,\).*float32\[3\]"),
            ({"w": np.ones(3), "b": [1.0]}, StructureError, "has the structure"),
            ({"w": np.ones(3, np.int32), "b": 1.0}, DtypeError, "w is int32.*float32"),
            ({"w": np.ones(3, np.float16), "b": 1.0}, DtypeError, "w is float16.*float32"),
            ({"w": jnp.ones(3, jnp.bfloat16), "b": 1.0}, DtypeError, "w is bfloat16.*float32"),
            ({"w": np.ones(3, object), "b": 1.0}, DtypeError, "parameter w has dtype object"),
            ({"w": np.array("abc"), "b": 1.0}, DtypeError, "parameter w has dtype <U3"),
            ({"w": "abc", "b": 1.0}, StructureError, "parameter w is a str; expected a JAX or num"),
            ({"w": np.ones(3), "b": b"x"}, StructureError, "parameter b is a bytes"),
        ],
    )
    def test_refused(self, tmp_path, params, error, message):
        good = {"w": np.ones(3, np.float32), "b": 1.0}
        exported = export_of(lambda p, x: p["w"] * x + p["b"], good, 1.0)
        with pytest.raises(error, match=message):
            bridge.save(exported, tmp_path / "m", params=params)
        assert list(tmp_path.iterdir()) == []

    def test_every_signature_has_the_same_parameters(self, tmp_path):
        models = {
            "a": export_of(lambda p, x: p * x, np.ones(3, np.float32), 1.0),
            "b": export_of(lambda p, x: p * x, np.ones(4, np.float32), 1.0),
        }
        with pytest.raises(StructureError, match=r"has shape \(3,\).*float32\[4\]"):
            bridge.save(models, tmp_path / "m", params=np.ones(3, np.float32))

    def test_parameters_must_be_the_first_argument(self, tmp_path):
        with pytest.raises(StructureError, match=r"first positional argument of .* has none"):
            bridge.save(export_of(lambda *, x: x, x=1.0), tmp_path / "m", params=1.0)


class TestTrainable:
    """A prefix of `params`."""

    PARAMS = (np.float32(1), {"b": np.float32(2), "n": np.int32(3), "z": np.complex64(1j)})

    @pytest.mark.parametrize(
        ("trainable", "expected"),
        [
            (True, [True, True, False, True]),
            (False, [False, False, False, False]),
            ((True, False), [True, False, False, False]),
            ((False, True), [False, True, False, True]),
            ((False, {"b": True, "n": True, "z": False}), [False, True, False, False]),
        ],
    )
    def test_prefixes(self, tmp_path, trainable, expected):
        exported = export_of(lambda p, x: p[0] * p[1]["b"] * x, self.PARAMS, 1.0)
        bridge.save(exported, tmp_path / "m", params=self.PARAMS, trainable=trainable)
        loaded = tf.saved_model.load(tmp_path / "m")
        assert [variable.trainable for variable in loaded.variables] == expected
        assert len(loaded.trainable_variables) == sum(expected)
        with tf.GradientTape() as tape:
            loaded(tf.constant(1.0))
        watched = {variable.ref() for variable in tape.watched_variables()}
        used = loaded.variables[:2]
        assert watched == {v.ref() for v in used if v.trainable}

    @pytest.mark.parametrize(
        ("trainable", "message"),
        [
            ((True,), "trainable is not a prefix"),
            ({"b": True}, "trainable is not a prefix"),
            ((True, {"b": True}), "trainable is not a prefix"),
            (1, "trainable has a leaf 1; expected True or False"),
            ((True, "b"), "trainable has a leaf 'b'"),
        ],
    )
    def test_refused(self, tmp_path, trainable, message):
        exported = export_of(lambda p, x: p[0] * x, self.PARAMS, 1.0)
        with pytest.raises(StructureError, match=message):
            bridge.save(exported, tmp_path / "m", params=self.PARAMS, trainable=trainable)
        assert list(tmp_path.iterdir()) == []


class TestDtypes:
    """Each dtype of the table, bit for bit; each other one refused."""

    @pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
    def test_bit_for_bit(self, tmp_path, dtype):
        bits = bit_patterns(dtype)
        functions = {
            "same": lambda p, x: (p, x),
            "moved": lambda p, x: (x[::-1], p.reshape(2, -1).T),
            "joined": lambda p, x: (
                jnp.concatenate([x, p]),
                jnp.where(jnp.arange(512) % 2 == 0, p, x),
            ),
        }
        with enable_x64(True):
            models = {key: export_of(function, bits, bits) for key, function in functions.items()}
            bridge.save(models, tmp_path / "m", params=bits)
            # On NaNs of two dtypes XLA joins by way of float32, which keeps no payloads.
            joined = [np.asarray(array) for array in jax.jit(functions["joined"])(bits, bits)]
        if dtype.name not in ("bfloat16", "float8_e5m2"):
            assert joined[0].tobytes() == bits.tobytes() * 2
            assert joined[1].tobytes() == bits.tobytes()
        want = {
            "same": [bits, bits],
            "moved": [bits[::-1], bits.reshape(2, -1).T],
            "joined": joined,
        }
        loaded = tf.saved_model.load(tmp_path / "m")
        x = tf.constant(bits)
        for key, expected in want.items():
            signature = loaded.signatures[key](x=x)
            for found in (getattr(loaded, key)(x), (signature["output_0"], signature["output_1"])):
                assert [tensor.dtype.as_numpy_dtype for tensor in found] == [dtype.numpy] * 2
                assert [bits_of(tensor.numpy()) for tensor in found] == [
                    bits_of(array) for array in expected
                ]

    @pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
    def test_sizes_are_checked(self, tmp_path, dtype):
        x = np.zeros(3, dtype.numpy)
        with enable_x64(True):
            (b,) = jax.export.symbolic_shape("b")
            spec = jax.ShapeDtypeStruct((b,), dtype.numpy)
            bridge.save(export_of(lambda x, y: (y, x), spec, spec), tmp_path / "m")
        loaded = tf.saved_model.load(tmp_path / "m")
        for run in (loaded, loaded.signatures["serving_default"]):
            assert len(run(x=tf.constant(x), y=tf.constant(x))) == 2
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"args\[1\] is y"):
                run(x=tf.constant(x), y=tf.constant(x[:2]))

    def test_extremes_of_64_bits(self, tmp_path):
        p = np.array([0, 1, 2**63, 2**64 - 1], np.uint64)
        x = np.array([-(2**63), -1, 0, 2**63 - 1], np.int64)
        with enable_x64(True):
            exported = export_of(lambda p, x: (p + 1, x - 1, p // 3), p, x)
            bridge.save(exported, tmp_path / "m", params=p)
        found = tf.saved_model.load(tmp_path / "m")(tf.constant(x))
        for tensor, want in zip(found, (p + np.uint64(1), x - 1, p // np.uint64(3)), strict=True):
            assert tensor.numpy().tolist() == want.tolist()

    REFUSED = (
        "int4", "uint4", "int2", "uint2", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
        "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn",
    )  # fmt: skip

    @pytest.mark.parametrize("name", REFUSED)
    def test_refused(self, tmp_path, name):
        narrow = jnp.zeros(3, getattr(ml_dtypes, name))
        cases = {
            r"args\[0\]\['x'\]\[1\]": (lambda tree: tree["x"][0], {"x": [SPEC, narrow]}),
            r"result\['y'\]": (lambda x: {"y": x.astype(narrow.dtype)}, SPEC),
        }
        for path, (function, arg) in cases.items():
            with pytest.raises(DtypeError, match=f"^{path} has dtype {name}, .*To do: convert"):
                bridge.save(export_of(function, arg), tmp_path / "m")
        params = {"w": narrow}
        exported = export_of(lambda params, x: x + params["w"].astype(jnp.float32), params, SPEC)
        with pytest.raises(DtypeError, match=rf"^args\[0\]\['w'\] has dtype {name}"):
            bridge.save(exported, tmp_path / "m", params=params)
        assert list(tmp_path.iterdir()) == []

    def test_64_bits_are_not_lost_unseen(self, tmp_path):
        """Where JAX computes with 32 bits, so does TensorFlow; a float64 tensor is refused."""
        bridge.save(
            export_of(lambda p, x: p * x, np.ones(3), 2.0), tmp_path / "m", params=np.ones(3)
        )
        loaded = tf.saved_model.load(tmp_path / "m")
        assert loaded.params.dtype == tf.float32
        with pytest.raises(ValueError, match="Could not find matching concrete function"):
            loaded(tf.constant(2.0, tf.float64))


class TestRefused:
    """What cannot become a file."""

    def test_no_exported(self, tmp_path):
        with pytest.raises(StructureError, match="args= is missing"):
            bridge.save(lambda x: x, tmp_path / "m")

    def test_no_signature(self, tmp_path):
        with pytest.raises(StructureError, match="model is an empty mapping"):
            bridge.save({}, tmp_path / "m")

    @pytest.mark.parametrize("nothing", [(), None, {"a": [None]}])
    def test_no_results(self, tmp_path, nothing):
        with pytest.raises(StructureError, match="returns no array"):
            bridge.save(export_of(lambda x: nothing, SPEC), tmp_path / "m")

    def test_a_tensorflow_that_is_too_old(self, tmp_path):
        x = np.eye(2, dtype=np.float32)
        product = lambda x: jax.lax.dot(x, x, precision=jax.lax.DotAlgorithmPreset.F32_F32_F32)  # noqa: E731
        exported = export_of(product, x)
        with pytest.raises(VersionError, match=r"2\.18.*explicit algorithm at .*2\.19"):
            bridge.save(exported, tmp_path / "m", tensorflow="2.18")
        bridge.save(exported, tmp_path / "m", tensorflow="2.19")
        np.testing.assert_array_equal(tf.saved_model.load(tmp_path / "m")(x), x)

    def test_a_tensorflow_that_is_too_old_for_the_gradient_alone(self, tmp_path):
        """A file has no source lines of gradients; the message has them."""
        exact = jax.lax.DotAlgorithmPreset.F32_F32_F32
        double = jax.custom_vjp(lambda x: 2 * x)
        double.defvjp(lambda x: (2 * x, x), lambda x, g: (jax.lax.dot(x, g, precision=exact),))
        exported = export_of(double, np.eye(2, dtype=np.float32))
        with pytest.raises(VersionError, match=r"explicit algorithm at \S+\.py:\d+\. .*2\.19"):
            bridge.save(exported, tmp_path / "m", tensorflow="2.18", gradient_order=1)

    def test_composites_for_an_old_tensorflow(self, tmp_path):
        exported = BY_NAME["composites"].export()["serving_default"]
        bridge.save(exported, tmp_path / "m", tensorflow="2.14", gradient_order=0)
        assert tf.saved_model.load(tmp_path / "m")(tf.zeros(8))["cosh"].numpy().tolist() == [1] * 8

    def test_a_file_over_the_limit(self, tmp_path, monkeypatch):
        table = np.arange(1000, dtype=np.float32)
        exported = export_of(lambda x: x + jnp.asarray(table)[:3].sum() * jnp.asarray(table), 1.0)
        size = len(exported.mlir_module_serialized)
        monkeypatch.setattr(import_module("bridge.save"), "MAX_PROTO_BYTES", size)
        with pytest.raises(
            StructureError, match=r"largest constants of .*1000xf32> \(4,000 bytes\).*as params"
        ):
            bridge.save(exported, tmp_path / "m")
        monkeypatch.undo()
        # All modules fit, and what is around them does not.
        bridge.save(exported, tmp_path / "m")
        whole = (tmp_path / "m" / "saved_model.pb").stat().st_size
        monkeypatch.setattr(import_module("savedmodel.write"), "MAX_PROTO_BYTES", whole)
        bridge.save(exported, tmp_path / "fits")
        monkeypatch.setattr(import_module("savedmodel.write"), "MAX_PROTO_BYTES", whole - 1)
        with pytest.raises(StructureError, match=f"would have {whole:,} bytes"):
            bridge.save(exported, tmp_path / "n")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["fits", "m"]


def test_tensorflow_is_not_needed(tmp_path):
    """Neither by the import nor by the saving, and nobody asks whether it is there."""
    code = """
import sys
import jax
import bridge
bridge.save(jax.export.export(jax.jit(jax.numpy.sin))(1.0), sys.argv[1])
bridge.inspect(sys.argv[1])
assert not {"tensorflow", "keras", "tensorboard"} & sys.modules.keys()
"""
    run_without_tensorflow(code, tmp_path / "m")
    assert tf.saved_model.load(tmp_path / "m")(tf.constant(0.0)).numpy() == 0


class TestBytes:
    """The same input gives the same bytes."""

    def test_in_every_process(self, tmp_path):
        code = """
import sys
from pathlib import Path
from tests.bridge.models import BY_NAME
for name in ("several", "containers", "symbols", "two_signatures", "composites", "keys"):
    BY_NAME[name].save(Path(sys.argv[1], name))
"""
        for seed in ("0", "1"):
            run_without_tensorflow(code, tmp_path / seed, PYTHONHASHSEED=seed)
        first, second = _files(tmp_path / "0"), _files(tmp_path / "1")
        assert first == second
        assert len(first) == 6 * 3

    def test_whatever_holds_the_parameters(self, tmp_path):
        value = np.arange(6, dtype=np.float32).reshape(2, 3)
        exported = export_of(lambda p, x: p * x, value, 1.0)
        held = {"numpy": value, "jax": jnp.asarray(value), "transposed": value.T.copy().T}
        for name, params in held.items():
            bridge.save(exported, tmp_path / name, params=params)
        assert _files(tmp_path / "numpy") == _files(tmp_path / "jax")
        assert _files(tmp_path / "numpy") == _files(tmp_path / "transposed")

    def test_the_metadata(self, tmp_path):
        BY_NAME["two_signatures"].save(tmp_path / "m")
        (text,) = read_meta_graph(tmp_path / "m").collection_def["jax_tf_bridge"].bytes_list.value
        metadata = json.loads(text)
        assert metadata["jax"] == jax.__version__
        assert metadata["writer"].startswith("jax-tf-bridge ")
        assert metadata["signatures"] == {
            "predict": {"inputs": {"x": "args[1]"}, "outputs": {"output_0": "result"}},
            "loss": {"inputs": {"x": "args[1]"}, "outputs": {"loss": "result['loss']"}},
        }


class TestOverwriting:
    """An older file stays as it is until the new one is whole."""

    def test_only_when_asked(self, tmp_path):
        exported = export_of(jnp.sin, SPEC)
        bridge.save(exported, tmp_path / "m")
        before = _files(tmp_path / "m")
        with pytest.raises(StructureError, match=r"m exists\. To do: pass overwrite=True"):
            bridge.save(export_of(jnp.cos, SPEC), tmp_path / "m")
        assert _files(tmp_path / "m") == before
        bridge.save(export_of(jnp.cos, SPEC), tmp_path / "m", overwrite=True)
        assert tf.saved_model.load(tmp_path / "m")(tf.zeros(3)).numpy().tolist() == [1, 1, 1]

    def test_what_keras_and_tensorflow_wrote_is_replaced(self, tmp_path):
        module = tf.Module()
        module.v = tf.Variable(1.0)
        tf.saved_model.save(module, tmp_path / "m")
        bridge.save(export_of(jnp.sin, SPEC), tmp_path / "m", overwrite=True)
        assert tf.saved_model.load(tmp_path / "m")(tf.zeros(3)).numpy().tolist() == [0, 0, 0]

    def test_not_what_is_something_else(self, tmp_path):
        (tmp_path / "m").mkdir()
        (tmp_path / "m" / "thesis.txt").write_text("years of work")
        with pytest.raises(FormatError, match=r"holds thesis\.txt, which is not part"):
            bridge.save(export_of(jnp.sin, SPEC), tmp_path / "m", overwrite=True)
        assert _files(tmp_path / "m") == {"thesis.txt": b"years of work"}

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_a_parameter_that_cannot_be_read(self, tmp_path, overwrite):
        """A donated array is gone."""
        params = {"a": jnp.ones(3), "b": jnp.ones(3)}
        exported = export_of(lambda p, x: p["a"] * p["b"] * x, params, 1.0)
        if overwrite:
            bridge.save(exported, tmp_path / "m", params=params)
        before = _files(tmp_path)
        params["b"].delete()
        with pytest.raises(StructureError, match="The parameter b has been deleted"):
            bridge.save(exported, tmp_path / "m", params=params, overwrite=overwrite)
        assert _files(tmp_path) == before
        assert [path.name for path in tmp_path.iterdir()] == ["m"] * overwrite


class TestLarge:
    """Parameters are streamed."""

    @pytest.mark.parametrize("kind", ["numpy", "jax", "transposed", "every_other", "float64"])
    def test_memory(self, tmp_path, kind):
        """What 300 MB take beside the arrays that the caller holds."""
        code = """
import gc, re, sys
from pathlib import Path
import jax, jax.export, numpy as np
import bridge
make = {
    "numpy": lambda n: np.arange(n, dtype=np.float32).reshape(1000, -1),
    "jax": lambda n: jax.numpy.arange(n, dtype="float32").reshape(1000, -1),
    "transposed": lambda n: np.arange(n, dtype=np.float32).reshape(-1, 1000).T,
    "every_other": lambda n: np.arange(2 * n, dtype=np.float32).reshape(1000, -1)[:, ::2],
    "float64": lambda n: np.arange(n, dtype=np.float64).reshape(1000, -1) % 1000,
}[sys.argv[2]]
def export(params):
    return jax.export.export(jax.jit(lambda p, x: p[0][0, :3] * x))(params, 1.0)

small = [make(3_000)]
bridge.save(export(small), sys.argv[1] + "/small", params=small)
params = [make(25_000_000) for _ in range(3)]
exported = export(params)
gc.collect()

def resident(field):
    return int(re.search(field + r":\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from now on
before = resident("VmRSS")
bridge.save(exported, sys.argv[1] + "/m", params=params)
print(resident("VmHWM") - before)
"""
        over = int(run_without_tensorflow(code, tmp_path, kind))
        size = (tmp_path / "m" / "variables" / "variables.data-00000-of-00001").stat().st_size
        shutil.rmtree(tmp_path / "m")
        assert size > 300_000_000
        assert 0 <= over < 64 << 20

    @pytest.mark.slow
    def test_a_module_that_protobuf_does_not_take(self, tmp_path):
        """All but a few bytes of the limit, so that what is around the module is too much."""
        bridge.save(export_of(jnp.sin, SPEC), tmp_path / "m", gradient_order=0)
        model = savedmodel.read(tmp_path / "m")
        function = model.default.function
        module = function.call.module
        padded = dataclasses.replace(function.call, module=module.ljust(2**31 - 100, b"\0"))
        signature = dataclasses.replace(
            model.default, function=dataclasses.replace(function, chain=(padded,))
        )
        with pytest.raises(StructureError, match=r"saved_model\.pb would have more bytes"):
            savedmodel.write(dataclasses.replace(model, signatures=(signature,)), tmp_path / "n")
        assert [path.name for path in tmp_path.iterdir()] == ["m"]

    @pytest.mark.slow
    @pytest.mark.parametrize("gigabytes", [2, 4])
    def test_variables_of_gigabytes(self, tmp_path, gigabytes):
        """Sizes that an int32 or an uint32 does not hold, with marks at both ends."""
        value = np.zeros((gigabytes << 8) + 1 << 20, np.float32)
        value[0], value[-1] = 3, 7
        assert value.nbytes > gigabytes << 30
        exported = export_of(lambda p, x: p[-1] * x, value, 1.0)
        bridge.save(exported, tmp_path / "m", params=value)
        loaded = tf.saved_model.load(tmp_path / "m")
        assert loaded.params.shape == value.shape
        assert (loaded.params[0].numpy(), loaded.params[-1].numpy()) == (3, 7)
        assert tf.reduce_sum(tf.cast(loaded.params != 0, tf.int32)).numpy() == 2
        assert loaded(tf.constant(2.0)).numpy() == 14
        shutil.rmtree(tmp_path / "m")


def test_a_deleted_parameter(tmp_path):
    params = {"w": jnp.ones(3)}
    exported = jax.export.export(jax.jit(lambda params, x: params["w"] * x))(params, 1.0)
    params["w"].delete()
    with pytest.raises(StructureError, match=r"The parameter w has been deleted.*donate_argnums"):
        bridge.save(exported, tmp_path / "m", params=params)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("options", [{}, {"residuals": True}, {"tensorflow": "2.16"}])
@pytest.mark.parametrize(
    ("shape", "function", "assertions"),
    [
        ("3, 40", lambda x: jnp.tanh(x @ x.T), 0),
        ("b, 40", lambda x: jnp.tanh(x @ x.T), 0),
        ("b, 40", lambda x: x + np.arange(40_000, dtype=np.float32).reshape(1000, 40)[0], 0),
        # They are a module of their own, written once, and once more with the inputs' names.
        ("b, 40", lambda x: jnp.tanh(x[1:]), 1),
    ],
    ids=["static", "symbolic", "constant", "assertions"],
)
def test_each_order_is_parsed_once_and_serialized_once(
    tmp_path, shape, function, assertions, options
):
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), np.float32)
    exported = jax.export.export(jax.jit(function), platforms=["cpu", "cuda"])(spec)

    def save():
        bridge.save(exported, tmp_path / "m", overwrite=True, gradient_order=2, **options)

    # The program that is split into two passes is read, too, and both of them are written.
    split = int("residuals" in options)
    assert times_called(parse_artifact, save) == 3 + split + assertions
    assert times_called(serialize_artifact, save) == 3 + 2 * split + 2 * assertions
