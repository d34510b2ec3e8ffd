"""Batches that are padded to the next of a few sizes inside the signature."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export

import bridge
import savedmodel
from savedmodel.protos.schema import SavedModel as SavedModelProto
from savedmodel.write import write_proto
from tests.bridge.batching.row_functions import convolution
from tests.xla_flags import with_xla_flags
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import StructureError

SIZES = (1, 4, 16)


def network(params, x, lengths, scale):
    """Rows of two inputs, a scalar, and a result that has no batch and depends on none."""
    hidden = jnp.tanh(x @ params["w"])
    return {
        "y": jnp.sqrt(jnp.abs(hidden)).sum(1) * scale,
        "steps": lengths + 1,
        "norm": scale * jnp.sum(params["w"] ** 2),
    }


def weights():
    return {"w": np.random.default_rng(0).normal(size=(3, 4)).astype("float32")}


def exported_of(function, *shapes, constraints=(), dtype="float32", platforms=None):
    scope = export.SymbolicScope(constraints)
    specs = [
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), dtype) for shape in shapes
    ]
    return export.export(jax.jit(function), platforms=platforms)(*specs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("buckets") / "model"
    (b,) = export.symbolic_shape("b")
    exported = export.export(jax.jit(network))(
        weights(),
        jax.ShapeDtypeStruct((b, 3), "float32"),
        jax.ShapeDtypeStruct((b,), "int32"),
        jax.ShapeDtypeStruct((), "float32"),
    )
    bridge.save(exported, place, params=weights(), gradient_order=2, batch_buckets=SIZES)
    return place


@pytest.fixture(scope="module")
def loaded(folder):
    return tf.saved_model.load(folder)


@pytest.fixture(scope="module")
def again(folder, loaded, tmp_path_factory):
    place = tmp_path_factory.mktemp("again") / "model"
    tf.saved_model.save(loaded, place, signatures=loaded.signatures)
    return place


def inputs_of(rows, seed=0):
    random = np.random.default_rng([rows, seed])
    x = random.normal(size=(rows, 3)).astype("float32")
    return x, random.integers(0, 9, rows).astype("int32"), np.float32(1.5)


def assert_agree(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].shape == value.shape
        np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)


jitted = jax.jit(network)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 20), seed=st.integers(0, 5))
def test_any_size_has_the_results_of_jax(loaded, rows, seed):
    x, lengths, scale = inputs_of(rows, seed)
    want = jitted(weights(), x, lengths, scale)
    assert_agree(loaded(x, lengths, scale), want)
    signature = loaded.signatures["serving_default"]
    feeds = {"x": x, "lengths": lengths, "scale": scale}
    assert_agree(signature(**{name: tf.constant(value) for name, value in feeds.items()}), want)


def test_one_row_and_a_batch_as_large_as_a_bucket_or_larger_than_all(loaded):
    for rows in (*SIZES, SIZES[-1] + 3):
        given = inputs_of(rows)
        assert_agree(loaded(*given), jitted(weights(), *given))


@pytest.mark.parametrize("rows", [2, 4, 17])
def test_compiled_by_xla(loaded, rows):
    run = tf.function(lambda *given: loaded(*given), jit_compile=True, autograph=False)
    given = inputs_of(rows)
    assert_agree(run(*given), jitted(weights(), *given))


def test_a_session_and_the_file_that_tensorflow_saved_again(folder, again):
    for place in (folder, again):
        x, lengths, scale = inputs_of(3)
        got = call_in_a_session(place, {"x": x, "lengths": lengths, "scale": scale})
        assert_agree(got, jitted(weights(), x, lengths, scale))


def test_xla_compiles_a_program_for_each_bucket_only(folder, tmp_path, preloaded_python):
    savedmodel.write(_without_buckets(folder), tmp_path / "plain")
    sizes = (2, 3, 5, 9, 10)
    buckets = (4, 16)
    # A process of its own, in which XLA writes down each program.
    code = (
        "import glob, sys, numpy as np, tensorflow as tf\n"
        "for folder in sys.argv[2:4]:\n"
        "    call = tf.saved_model.load(folder).signatures['serving_default']\n"
        "    for rows in map(int, sys.argv[4].split(',')):\n"
        "        x, lengths = np.ones((rows, 3), 'float32'), np.ones(rows, 'int32')\n"
        "        call(x=tf.constant(x), lengths=tf.constant(lengths), scale=tf.constant(1.0))\n"
        "    print(len(glob.glob(sys.argv[1] + '/*XlaCallModule*before_optimizations.txt')))\n"
    )
    dump = tmp_path / "programs"
    done = subprocess.run(
        [preloaded_python, "-c", code, dump, folder, tmp_path / "plain", ",".join(map(str, sizes))],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "XLA_FLAGS": with_xla_flags(f"--xla_dump_to={dump}")},
    )
    assert done.stdout.split() == [str(len(buckets)), str(len(buckets) + len(sizes))]


def _without_buckets(folder):
    model = savedmodel.read(folder)
    (signature,) = model.signatures
    function = dataclasses.replace(signature.function, batch_buckets=None)
    return dataclasses.replace(
        model, signatures=(dataclasses.replace(signature, function=function),)
    )


class TestGradients:
    @staticmethod
    def _loss(outputs, total):
        return total(outputs["y"] * outputs["y"]) + outputs["norm"]

    @pytest.mark.parametrize("rows", [1, 3, 18])
    def test_of_inputs_and_variables(self, loaded, rows):
        x, lengths, scale = inputs_of(rows)
        tensor, factor = tf.constant(x), tf.constant(scale)
        with tf.GradientTape() as tape:
            tape.watch([tensor, factor])
            loss = self._loss(loaded(tensor, lengths, factor), tf.reduce_sum)
        sources = [loaded.params["w"], tensor, factor]
        got = tape.gradient(loss, sources)
        want = jax.jit(
            jax.grad(lambda p, x, s: self._loss(network(p, x, lengths, s), jnp.sum), (0, 1, 2))
        )(weights(), x, scale)
        for ours, theirs in zip(got, (want[0]["w"], *want[1:]), strict=True):
            assert isinstance(ours, tf.Tensor)
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)

    def test_of_the_second_order(self, loaded):
        x, lengths, scale = inputs_of(3)
        tensor = tf.constant(x)
        with tf.GradientTape() as outer:
            outer.watch(tensor)
            with tf.GradientTape() as inner:
                inner.watch(tensor)
                loss = self._loss(loaded(tensor, lengths, scale), tf.reduce_sum)
            first = tf.reduce_sum(inner.gradient(loss, tensor) ** 2)
        got = outer.gradient(first, [tensor, loaded.params["w"]])

        def norm(p, x):
            loss = lambda x: self._loss(network(p, x, lengths, scale), jnp.sum)  # noqa: E731
            return jnp.sum(jax.grad(loss)(x) ** 2)

        want_w, want_x = jax.jit(jax.grad(norm, (0, 1)))(weights(), x)
        np.testing.assert_allclose(got[0], want_x, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(got[1], want_w["w"], rtol=1e-3, atol=1e-3)

    def test_rows_that_are_added_make_no_infinite_gradients(self, tmp_path):
        # At a row of zeros the slope of the root is infinite, and 0 times that is not a number.
        (b,) = export.symbolic_shape("b")
        params = {"w": np.ones(3, "float32")}
        exported = export.export(jax.jit(lambda p, x: jnp.sqrt(x @ p["w"])))(
            params, jax.ShapeDtypeStruct((b, 3), "float32")
        )
        bridge.save(exported, tmp_path / "model", params=params, batch_buckets=(8,))
        model = tf.saved_model.load(tmp_path / "model")
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(np.ones((3, 3), "float32")))
        gradient = tape.gradient(loss, model.params["w"])
        np.testing.assert_allclose(gradient, np.full(3, 3 / (2 * np.sqrt(3))), rtol=1e-6)


class TestReading:
    def test_jax_calls_the_function_itself(self, folder, again):
        for place in (folder, again):
            model = bridge.load(place)
            given = inputs_of(5)
            call = model.signatures["serving_default"]
            got = call(**dict(zip(("x", "lengths", "scale"), given, strict=True)))
            assert_agree(got, jitted(weights(), *given))
            assert savedmodel.read(place).default.function.batch_buckets.sizes == SIZES

    def test_gradients_in_jax(self, folder):
        call = bridge.load(folder).signatures["serving_default"].exported.call
        given = inputs_of(3)
        got = jax.grad(lambda p: call(p, *given)["y"].sum())(weights())
        want = jax.grad(lambda p: network(p, *given)["y"].sum())(weights())
        np.testing.assert_allclose(got["w"], want["w"], rtol=1e-5)

    def test_inspect_shows_them(self, folder, again, capsys):
        from bridge.__main__ import main

        for place in (folder, again):
            assert bridge.inspect(place).signatures[0].batch_buckets == SIZES
        assert main(["inspect", str(folder)]) == 0
        assert "batch buckets    1, 4, 16" in capsys.readouterr().out

    def test_a_copy_has_them(self, folder, tmp_path):
        savedmodel.write(savedmodel.read(folder), tmp_path / "copy")
        assert savedmodel.read(tmp_path / "copy").default.function.batch_buckets.sizes == SIZES

    def test_the_same_bytes_again(self, folder, tmp_path):
        exported = exported_of(jnp.sin, "b, 2")
        for name in ("first", "second"):
            bridge.save(exported, tmp_path / name, batch_buckets=(2, 4))
        first, second = (tmp_path / name / "saved_model.pb" for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes()

    def test_verify(self, folder, preloaded):
        assert bridge.verify(folder).passed

    @pytest.mark.parametrize(
        ("op", "change"),
        [
            ("ConcatV2", lambda node: node.input.__setitem__(2, "batch_constant_1:output:0")),
            ("Tile", lambda node: setattr(node, "op", "Fill")),
            ("StridedSlice", lambda node: setattr(node.attr["begin_mask"], "i", 1)),
            ("Sum", lambda node: setattr(node.attr["keep_dims"], "b", False)),
            ("GatherV2", lambda node: setattr(node.attr["batch_dims"], "i", 1)),
            ("Shape", lambda node: setattr(node, "op", "ZerosLike")),
        ],
    )
    def test_what_is_padded_in_another_way_is_refused(self, folder, tmp_path, op, change):
        place = tmp_path / "changed"
        savedmodel.write(savedmodel.read(folder), place)
        proto = _read(place)
        for function in proto.meta_graphs[0].graph_def.library.function:
            for node in function.node_def:
                if node.op == op and node.name.startswith("batch_"):
                    change(node)
        write_proto(place, proto.SerializeToString())
        with pytest.raises(StructureError, match=r"computes something besides|another way"):
            savedmodel.read(place)

    @pytest.mark.parametrize("is_cut", [True, False])
    def test_what_is_of_another_batch_is_refused(self, tmp_path, is_cut):
        """A batch ends in copies of its own last row, and is cut to the rows that were counted."""
        place = tmp_path / "m"
        bridge.save(
            lambda x, y: (x + 1, y * 2), place, args="f32[b,3], f32[b,3]", batch_buckets=(4, 8),
            gradient_order=0,
        )  # fmt: skip
        proto = _read(place)
        for function in proto.meta_graphs[0].graph_def.library.function:
            nodes = {node.name: node for node in function.node_def}
            if "batch_cut" in nodes and is_cut:
                for name in ("batch_shape", "batch_count"):
                    copy = function.node_def.add()
                    copy.CopyFrom(nodes[name])
                    copy.name = f"{name}_of_y"
                    inputs = {"x_shape:output:0": "y_shape:output:0",
                              "batch_shape:output:0": "batch_shape_of_y:output:0"}  # fmt: skip
                    copy.input[0] = inputs[copy.input[0]]
                nodes["batch_cut"].input[2] = "batch_count_of_y:output:0"
            elif "batch_cut" in nodes:
                nodes["batch_padded_1"].input[1] = nodes["batch_padded"].input[1]
        write_proto(place, proto.SerializeToString())
        with pytest.raises(StructureError, match=r"computes something besides|another way"):
            savedmodel.read(place)

    def test_a_batch_that_is_not_padded_like_the_others_is_refused(self, folder, tmp_path):
        place = tmp_path / "changed"
        savedmodel.write(savedmodel.read(folder), place)
        proto = _read(place)
        for function in proto.meta_graphs[0].graph_def.library.function:
            for node in function.node_def:
                if node.op == "XlaCallModule" and len(node.input) == 4:
                    padded = {n.name: n.input[0] for n in function.node_def if n.op == "ConcatV2"}
                    node.input[1] = padded[node.input[1].split(":")[0]]
        write_proto(place, proto.SerializeToString())
        with pytest.raises(StructureError, match="padded or cut in another way"):
            savedmodel.read(place)


def _read(place):
    from savedmodel.read import read_proto

    proto = read_proto(place)
    assert isinstance(proto, SavedModelProto)
    return proto


class TestRefused:
    @pytest.mark.parametrize(
        ("function", "name"),
        [
            (lambda x: {"y": x, "mean": x.mean(0)}, "mean"),
            (lambda x: {"y": x, "count": jnp.float32(x.shape[0])}, "count"),
            (lambda x: {"y": x, "any": jax.lax.while_loop(
                lambda v: (v < 10).all(), lambda v: v + 1, x).max()}, "any"),
        ],
    )  # fmt: skip
    def test_a_result_without_the_batch_that_depends_on_it(self, tmp_path, function, name):
        with pytest.raises(StructureError, match=f"The output {name} .*without the batch b"):
            bridge.save(
                exported_of(function, "b, 3"),
                tmp_path / "m",
                batch_buckets=(4,),
                gradient_order=0,
            )
        assert not (tmp_path / "m").exists()

    @pytest.mark.parametrize(
        ("function", "reason"),
        [
            (lambda x: x - x.mean(0), "the other rows of the batch"),
            (lambda x: jax.nn.softmax(x, axis=0), "the other rows of the batch"),
            (lambda x: x[::-1], "the other rows of the batch"),
            (lambda x: x / x.shape[0], "the number of rows in the batch"),
            (lambda x: x + jax.random.normal(jax.random.key(0), x.shape[::-1]).T, "the number"),
            (lambda x: x + x.shape[0] % 2, "the number of rows in the batch"),
            (lambda x: jnp.where(x.max() > 50, x - x.mean(0), x), "the other rows of the batch"),
            (lambda x: jnp.where(x > 90, jax.nn.softmax(x, 0), x), "the other rows of the batch"),
        ],
    )
    def test_a_row_that_depends_on_others(self, tmp_path, function, reason):
        with pytest.raises(
            StructureError, match=rf"The output output_0 \(result\) .*depends on {reason}"
        ) as error:
            bridge.save(exported_of(function, "b, 3"), tmp_path / "m", batch_buckets=(8,))
        assert re.search(r"of (random|large|huge) inputs\. .* To do: ", str(error.value))

    @pytest.mark.parametrize(
        ("function", "shapes", "message"),
        [
            (jnp.sin, ("3, b",), "no symbolic dimension leads"),
            (jnp.sin, ("3, 4",), "no symbolic dimension leads"),
            (jnp.sin, ("2*b, 3",), r"2\*b leads"),
            (lambda x, y: (x, y), ("b, 3", "c, 3"), "b and c lead them"),
            (lambda x, y: (x, y), ("b, 3", "4, b"), "The input y .*besides the first one"),
            (lambda x: jnp.concatenate([x, x]), ("b, 3",), r"The output output_0 .*\[2\*b,3\]"),
            (
                lambda x: (x, jnp.zeros(2 * x.shape[0])),
                ("b, 3",),
                r"output_1 .*\[2\*b\]",
            ),
            (lambda x: x.T, ("b, 3",), "The output output_0 .*besides the first one"),
        ],
    )
    def test_where_the_batch_is(self, tmp_path, function, shapes, message):
        with pytest.raises(StructureError, match=message):
            bridge.save(exported_of(function, *shapes), tmp_path / "m", batch_buckets=(4,))

    @pytest.mark.parametrize(
        ("constraint", "size"), [("b <= 16", 32), ("mod(b, 8) == 0", 4), ("b >= 2", 1)]
    )
    @pytest.mark.parametrize("is_read", [False, True])
    def test_a_bucket_that_the_constraints_exclude(self, tmp_path, constraint, size, is_read):
        exported = exported_of(jnp.sin, "b, 3", constraints=[constraint])
        if is_read:  # from bytes, which do not hold the constraints
            exported = export.deserialize(exported.serialize(vjp_order=1))
        with pytest.raises(StructureError, match=f"takes no batch of {size}"):
            bridge.save(exported, tmp_path / "m", batch_buckets=(16, size))

    @pytest.mark.parametrize(
        "sizes", [(), (0, 4), (-1,), (4, 4), (True,), (2.5,), "18", 8, ("8",), (1 << 31,)]
    )
    def test_what_are_no_sizes(self, tmp_path, sizes):
        with pytest.raises(StructureError, match="expected different sizes of batches"):
            bridge.save(exported_of(jnp.sin, "b, 3"), tmp_path / "m", batch_buckets=sizes)

    def test_a_signature_that_is_not_there(self, tmp_path):
        with pytest.raises(StructureError, match="has sizes for 'other'; the signatures are"):
            bridge.save(exported_of(jnp.sin, "b, 3"), tmp_path / "m", batch_buckets={"other": (4,)})


def test_sizes_that_constraints_exclude_are_padded_to_one_that_they_do_not(tmp_path):
    exported = exported_of(jnp.sin, "b, 3", constraints=["mod(b, 8) == 0"])
    bridge.save(exported, tmp_path / "m", batch_buckets=(16, 8))
    x = np.ones((3, 3), "float32")
    np.testing.assert_allclose(tf.saved_model.load(tmp_path / "m")(x), np.sin(x), rtol=1e-6)
    with pytest.raises(StructureError, match=r"mod\(b, 8\) == 0, .* pads batches to 8, 16\."):
        bridge.load(tmp_path / "m")(x)


def test_some_of_several_signatures(tmp_path):
    model = {"rows": exported_of(jnp.sin, "b, 3"), "one": exported_of(jnp.cos, "3, 3")}
    bridge.save(model, tmp_path / "m", batch_buckets={"rows": (4,)})
    found = {s.key: s.batch_buckets for s in bridge.inspect(tmp_path / "m").signatures}
    assert found == {"rows": (4,), "one": ()}


def test_another_dimension_variable_is_any_size(tmp_path):
    exported = exported_of(lambda x: {"s": x.sum(1), "n": jnp.int32(x.shape[1])}, "b, n")
    bridge.save(exported, tmp_path / "m", batch_buckets=(4,))
    got = tf.saved_model.load(tmp_path / "m")(np.ones((3, 5), "float32"))
    assert (got["s"].numpy().tolist(), int(got["n"])) == ([5, 5, 5], 5)


@pytest.mark.parametrize("is_exported", [True, False])
def test_windows_in_images_of_any_size(tmp_path, is_exported):
    """JAX has no rule for mapping a convolution with symbolic padding, but of its operations."""
    model, options = convolution, {"args": "f32[b,h,w,3]"}
    if is_exported:
        model, options = exported_of(convolution, "b, h, w, 3"), {}
    bridge.save(model, tmp_path / "m", batch_buckets=(4,), gradient_order=0, **options)
    x = np.random.default_rng(0).normal(size=(3, 9, 8, 3)).astype("float32")
    got = tf.saved_model.load(tmp_path / "m")(x)
    np.testing.assert_allclose(got, convolution(x), rtol=1e-4, atol=1e-5)


def test_what_does_not_run_here_is_not_tried(tmp_path):
    exported = exported_of(jnp.sin, "b, 3", platforms=["tpu"])
    with pytest.warns(UserWarning, match="was not tried: it was exported for tpu"):
        bridge.save(exported, tmp_path / "m", batch_buckets=(4,))


def test_a_loop_that_would_not_end_for_other_values(tmp_path):
    """Its operations tell that each row is computed for itself, so that it is not run."""
    double = jax.vmap(lambda r: jax.lax.while_loop(lambda v: v < 100, lambda v: v * 2, r))
    bridge.save(exported_of(double, "b"), tmp_path / "m", batch_buckets=(4,), gradient_order=0)
    got = tf.saved_model.load(tmp_path / "m")(np.array([3, 1, 200], "float32"))
    np.testing.assert_array_equal(got, [192, 128, 200])


def test_residuals_and_hoisted_constants(tmp_path):
    table = np.random.default_rng(0).normal(size=(64, 64)).astype("float32")
    exported = exported_of(lambda x: jnp.tanh(x @ table) @ table, "b, 64")
    bridge.save(exported, tmp_path / "m", batch_buckets=(4,), residuals=True, hoist_constants=1000)
    model = tf.saved_model.load(tmp_path / "m")
    x = tf.constant(np.random.default_rng(1).normal(size=(3, 64)).astype("float32"))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(model(x))
    want = jax.grad(lambda x: (jnp.tanh(x @ table) @ table).sum())(jnp.asarray(x.numpy()))
    np.testing.assert_allclose(tape.gradient(loss, x), want, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(bridge.load(tmp_path / "m")(x.numpy()), model(x), rtol=1e-4)


def call_in_a_session(folder, feeds):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        meta_graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        definition = meta_graph.signature_def["serving_default"]
        return session.run(
            {name: info.name for name, info in definition.outputs.items()},
            {definition.inputs[name].name: value for name, value in feeds.items()},
        )


# Numbers of padded batches are said to be that.
INCONSISTENT = r"Found inconsistency between dimension size (.|\n)*are padded to 1, 4, 16 before"


def call_by(by, folder, loaded, feeds):
    tensors = {name: tf.constant(value) for name, value in feeds.items()}
    if by == "object":
        loaded(*tensors.values())
    elif by == "signature":
        loaded.signatures["serving_default"](**tensors)
    elif by == "jit":
        tf.function(lambda *given: loaded(*given), jit_compile=True)(*tensors.values())
    elif by == "session":
        call_in_a_session(folder, feeds)
    else:
        with tf.GradientTape() as tape:
            tape.watch(tensors["x"])
            loss = loaded(*tensors.values())["y"]
        tape.gradient(loss, tensors["x"])


@pytest.mark.parametrize("by", ["object", "signature", "jit", "gradient", "session", "jax"])
@pytest.mark.parametrize(
    ("rows", "lengths", "message"),
    [
        (3, 2, INCONSISTENT),
        (1, 4, INCONSISTENT),
        (17, 16, INCONSISTENT),
        (0, 0, "Expected value >= 1 for dimension variable 'b'"),
    ],
)
def test_sizes_that_differ_are_still_refused(folder, loaded, by, rows, lengths, message):
    feeds = {
        "x": np.ones((rows, 3), "float32"),
        "lengths": np.zeros(lengths, "int32"),
        "scale": np.float32(1.5),
    }
    if by == "jax":
        with pytest.raises(StructureError, match=r"float32\[b\]|int32\[b\]|variable b would be 0"):
            bridge.load(folder)(**feeds)
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call_by(by, folder, loaded, feeds)


def test_a_bucket_leads_what_it_names():
    from savedmodel.model import BatchBuckets

    float32 = dtype_from_name("float32", where="")
    buckets = BatchBuckets("b", (2, 4))
    shapes = {("b", 3): True, (3, "b"): False, (): False, ("2*b",): False, None: False}
    for shape, leads in shapes.items():
        assert buckets.lead(TensorSpec(shape, float32, "x")) is leads
    for sizes in ((), (0,), (4, 2)):
        with pytest.raises(StructureError, match="not sizes of batches"):
            BatchBuckets("b", sizes)


def test_parameters_that_are_typed_keys(tmp_path):
    params = {"key": jax.random.key(3), "scale": np.float32(2)}
    (b,) = export.symbolic_shape("b")
    exported = export.export(
        jax.jit(lambda p, x: x * p["scale"] + jax.random.uniform(p["key"], (3,)))
    )(params, jax.ShapeDtypeStruct((b, 3), "float32"))
    bridge.save(exported, tmp_path / "m", params=params, batch_buckets=(4,))
    got = tf.saved_model.load(tmp_path / "m")(np.ones((2, 3), "float32"))
    want = 2 + jax.random.uniform(params["key"], (3,))
    np.testing.assert_allclose(got, [want, want], rtol=1e-6)


def test_typed_keys_in_the_batch(tmp_path):
    (b,) = export.symbolic_shape("b")
    keys = jax.random.split(jax.random.key(0), 3)
    function = jax.jit(jax.vmap(jax.random.uniform))
    exported = export.export(function)(jax.ShapeDtypeStruct((b,), keys.dtype))
    bridge.save(exported, tmp_path / "m", batch_buckets=(4,))
    got = tf.saved_model.load(tmp_path / "m")(np.asarray(jax.random.key_data(keys)))
    np.testing.assert_allclose(got, function(keys), rtol=1e-6)


def test_published_with_warmup_for_sizes_of_their_own(tmp_path):
    import bridge.serving

    published = bridge.serving.publish(
        exported_of(lambda x, scale: x * scale, "b, 3", ""),
        tmp_path / "base",
        batch_buckets=(1, 4),
        defaults={"scale": 2.0},
        warmup=(1, 4),
        operations="xla",
    )
    (signature,) = bridge.inspect(published.path).signatures
    assert (signature.batch_buckets, published.warmup) == ((1, 4), 2)
    got = bridge.load(published.path)(x=np.ones((3, 3), "float32"))
    np.testing.assert_array_equal(got, np.full((3, 3), 2))


def test_no_warning_where_all_is_tried(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bridge.save(exported_of(jnp.sin, "b, 3"), tmp_path / "m", batch_buckets=(1,))
