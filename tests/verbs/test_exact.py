"""`exact=False`: smaller files with the same numbers, which leave NaN and traps to the runtime."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from jax import lax

import bridge
from bridge.cli.main import main
from bridge.litert.runtime import Runtime
from bridge.litert.worker.model_execution import describe_model
from savedmodel.read import read_proto
from tests.bridge.onnx.checking import run
from xla_call_module.errors import StructureError, UnsupportedError

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(6, 8)).astype(np.float32)
NUMBERS = RANDOM.integers(1, 9, (6, 8)).astype(np.int32)
IMAGE = RANDOM.normal(size=(1, 6, 6, 2)).astype(np.float32)
FILTER = RANDOM.normal(size=(2, 2, 2, 3)).astype(np.float32)
WEIGHTS = RANDOM.normal(size=(8, 8)).astype(np.float32)


def pooled(x):
    numbers = ("NHWC", "HWIO", "NHWC")
    made = lax.conv_general_dilated(x, FILTER, (1, 1), "SAME", dimension_numbers=numbers)
    return lax.reduce_window(made, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


# The function, its inputs, and the targets in which it is smaller.
FUNCTIONS = {
    "argmax": (lambda x: jnp.argmax(x, 1), [ROWS], "ONNX LiteRT TensorFlow"),
    "clip": (lambda x: jnp.clip(x, -0.5, 0.5), [ROWS], "LiteRT"),
    "exp": (jnp.exp, [ROWS], "LiteRT"),
    "gelu": (lambda x: jax.nn.gelu(x, approximate=False), [ROWS], "LiteRT"),
    "gradient of a pool": (
        jax.grad(lambda x: (pooled(jnp.sin(x)) ** 2).sum()), [IMAGE], "TensorFlow"
    ),
    "integers": (lax.div, [NUMBERS * 3, NUMBERS], "ONNX LiteRT TensorFlow"),
    "max": (lambda x: jnp.max(x, 1), [ROWS], "ONNX LiteRT"),
    "maximum": (jnp.maximum, [ROWS, ROWS[::-1].copy()], "LiteRT"),
    "negative": (lambda x: -jnp.abs(x), [ROWS], ""),
    "pool": (pooled, [IMAGE], "ONNX LiteRT TensorFlow"),
    "remainder": (lax.rem, [NUMBERS * 3, NUMBERS], "ONNX LiteRT TensorFlow"),
    "round": (jnp.round, [ROWS], "LiteRT"),
    "scatter": (lambda x: x.at[jnp.array([1, 1])].max(-x[:2]), [ROWS], "ONNX TensorFlow"),
    "sigmoid": (jax.nn.sigmoid, [ROWS], "ONNX LiteRT"),
    "sign": (jnp.sign, [ROWS], "ONNX TensorFlow"),
    "softmax": (jax.nn.softmax, [ROWS], "TensorFlow"),
    "sort": (jnp.sort, [ROWS], "ONNX TensorFlow"),
    "sum with an activation": (lambda x: jax.nn.relu(x @ WEIGHTS + x), [ROWS], "LiteRT"),
    "to integers": (lambda x: (9 * x).astype(np.int32), [ROWS], "ONNX TensorFlow"),
}  # fmt: skip


def in_onnx(function, arrays, folder, *, exact):
    model = bridge.to_onnx(function, args=tuple(arrays), exact=exact)
    return len(model.graph.node), run(model, arrays)


def in_litert(function, arrays, folder, *, exact):
    model = bridge.to_litert(function, args=tuple(arrays), exact=exact, verify=False)
    with Runtime(model) as runtime:
        (signature,) = runtime.contents.signatures
        names = [tensor.name for tensor in signature.inputs]
        results = runtime.run(dict(zip(names, arrays, strict=True)))
    return sum(describe_model(model)["operators"].values()), list(results.values())


def in_tensorflow(function, arrays, folder, *, exact):
    path = folder / str(exact)
    bridge.save(function, path, args=tuple(arrays), operations="tensorflow", exact=exact)
    loaded = tf.saved_model.load(path)
    functions = loaded.signatures["serving_default"].graph.as_graph_def().library.function
    return sum(len(each.node_def) for each in functions), [loaded(*arrays).numpy()]


TARGETS = {"ONNX": in_onnx, "LiteRT": in_litert, "TensorFlow": in_tensorflow}
CASES = [(name, target) for name, (*_, found) in FUNCTIONS.items() for target in found.split()]


@pytest.mark.parametrize(("name", "target"), CASES)
def test_fewer_nodes_have_the_same_numbers(name, target, tmp_path):
    function, arrays, _ = FUNCTIONS[name]
    count, exact = TARGETS[target](function, arrays, tmp_path, exact=True)
    fewer, inexact = TARGETS[target](function, arrays, tmp_path, exact=False)
    assert fewer < count
    expected = np.asarray(jax.jit(function)(*arrays))
    for (results,) in (exact, inexact):
        np.testing.assert_allclose(results, expected, rtol=1e-5, atol=1e-5)


def loses_nan(x):
    return {
        "most": jnp.max(jnp.log(x), 1),
        "place": jnp.argmax(x, 1),
        "rate": 1 / (1 + jnp.exp(-x)),
    }


def test_verification_allows_for_it(tmp_path, recwarn):
    """Of random numbers some logarithms are NaN, which the kernels of maxima pass over."""
    bridge.to_onnx(loses_nan, args="f32[4,9]", exact=False, verify=True)
    bridge.to_litert(loses_nan, args="f32[4,9]", exact=False)
    bridge.save(loses_nan, tmp_path / "m", args="f32[4,9]", operations="tensorflow", exact=False)
    report = bridge.verify(tmp_path / "m")
    assert report.passed
    assert any("exact=False" in row.known for row in report.rows)
    loaded = tf.saved_model.load(tmp_path / "m")
    tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
    assert bridge.verify(tmp_path / "again").passed
    bridge.retarget(tmp_path / "m", to=tmp_path / "module", operations="xla")
    report = bridge.verify(tmp_path / "module")
    assert report.passed
    assert not any("exact=False" in row.known for row in report.rows)
    assert not [one for one in recwarn if "differs from JAX" in str(one.message)]


def test_refused_of_a_module():
    with pytest.raises(StructureError, match="exact=False is for a file of TensorFlow's own"):
        bridge.save(jnp.sin, "m", args="f32[3]", exact=False)


def test_files_and_commands(tmp_path):
    """The same file, of each verb and each command."""
    function, args = FUNCTIONS["sigmoid"][0], "f32[4]"
    serialized = tmp_path / "function.jax"
    exported = jax.export.export(jax.jit(function))(jax.ShapeDtypeStruct((4,), np.float32))
    serialized.write_bytes(exported.serialize())
    bridge.save_onnx(exported, tmp_path / "verb.onnx", exact=False)
    bridge.save_litert(exported, tmp_path / "verb.tflite", exact=False)
    for kind, suffix in (("onnx", ".onnx"), ("litert", ".tflite")):
        made = tmp_path / f"command{suffix}"
        assert main([kind, str(serialized), str(made), "--inexact"]) == 0
        assert made.read_bytes() == (tmp_path / f"verb{suffix}").read_bytes()
    options = ["--operations", "tensorflow", "--inexact", "--args", args]
    assert main(["export", "jax.nn:sigmoid", "--out", str(tmp_path / "m"), *options]) == 0
    assert not bridge.load(tmp_path / "m").default.is_exact


DIVISIONS = {
    "by an input": lambda x, y: (x // y, x % y),
    "by what is 0 at an edge": lambda x, y: x // (10_000 - y),
}


@pytest.mark.parametrize("name", DIVISIONS)
def test_verify_leaves_integers_divided_by_zero_to_the_runtime(name, tmp_path):
    options = {"args": "i32[4], i32[4]", "exact": False}
    bridge.to_onnx(DIVISIONS[name], **options, verify=True)
    bridge.to_litert(DIVISIONS[name], **options)
    bridge.save(DIVISIONS[name], tmp_path / "model", **options, operations="tensorflow")
    report = bridge.verify(tmp_path / "model")
    assert report.passed
    assert any("divided by 0" in row.known for row in report.rows) == (name != "by an input")


def test_verify_reports_a_division_by_zero_of_ordinary_integers():
    with pytest.raises(UnsupportedError, match="inputs that are random"):
        bridge.to_onnx(lambda x: x // (x - x), args="i32[4]", exact=False, verify=True)


def network(params, x):
    """Of all that is less exact: windows, activations, an order, places and whole quotients."""
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(x, params["filter"], (1, 1), "SAME", dimension_numbers=numbers)
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    y = jax.nn.sigmoid(y) + jnp.clip(y, -0.5, 0.5) + jax.nn.gelu(y, approximate=False)
    scores = jnp.max(y, (1, 2)) @ params["weights"]
    return {
        "order": jnp.sort(scores, -1),
        "place": jnp.argmax(scores, -1),
        "rest": jnp.int32(scores * 7) // 3,
        "score": jax.nn.softmax(scores),
    }


PARAMS = {"filter": FILTER, "weights": WEIGHTS[:3, :5]}
IMAGES = [RANDOM.normal(size=(size, 4, 4, 2)).astype(np.float32) for size in (1, 3)]


def loss(params, x):
    made = network(params, x)
    return (made["score"] ** 2).sum() + made["order"][:, 0].sum()


def step(params, x):
    value, slopes = jax.value_and_grad(loss)(params, x)
    return jax.tree.map(lambda one, slope: one - 0.1 * slope, params, slopes), value


def assert_near(results, expected):
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, 1e-4, 1e-5), results, expected)


@pytest.mark.parametrize("order", [0, 1])
def test_symbolic_sizes_and_gradients(order):
    """The batch of ONNX and LiteRT is any; the VJP takes a cotangent for each float result."""

    def function(x):
        made = network(PARAMS, x)
        return made["score"], made["order"]

    def expected(x):
        results, pull = jax.vjp(function, x)
        return pull(tuple(map(jnp.ones_like, results))) if order else results

    onnx = bridge.to_onnx(function, args="f32[b,4,4,2]", gradient_order=order, exact=False)
    lite = bridge.to_litert(
        function, args="f32[b,4,4,2]", gradient_order=order, exact=False, verify=False
    )
    ones = np.ones((3, 5), np.float32)
    with Runtime(lite) as runtime:
        (signature,) = runtime.contents.signatures
        names = [tensor.name for tensor in signature.inputs]
        for x in IMAGES:
            arrays = [x, ones[: len(x)], ones[: len(x)]][: 1 + 2 * order]
            assert_near(run(onnx, arrays), list(expected(x)))
            results = runtime.run(dict(zip(names, arrays, strict=True)))
            assert_near([*results.values()], list(expected(x)))


def test_gradients_of_a_file(tmp_path):
    """Those of both orders, in TensorFlow and in JAX."""
    path = tmp_path / "m"
    bridge.save(
        network, path, params=PARAMS, args="f32[b,4,4,2]", operations="tensorflow", exact=False,
        gradient_order=2,
    )  # fmt: skip
    loaded, back = tf.saved_model.load(path), bridge.load(path)
    for x in IMAGES:
        with tf.GradientTape() as outer, tf.GradientTape() as tape:
            given = tf.constant(x)
            tape.watch(given), outer.watch(given)
            made = loaded(given)
            total = tf.reduce_sum(made["score"] ** 2) + tf.reduce_sum(made["order"][:, 0])
            found = tape.gradient(total, [loaded.params["filter"], given])
        slopes, slope = jax.grad(loss, (0, 1))(PARAMS, x)
        assert_near([each.numpy() for each in found], [slopes["filter"], slope])
        curved = jax.jit(jax.grad(lambda x: jax.grad(loss, 1)(PARAMS, x).sum()))(x)
        assert_near(outer.gradient(found[1], given).numpy(), curved)
    assert_near(jax.grad(lambda x: (back(x)["score"] ** 2).sum())(x),
                jax.grad(lambda x: (network(PARAMS, x)["score"] ** 2).sum())(x))  # fmt: skip


def test_signatures_that_assign(tmp_path):
    """Steps of training, beside a signature that reads."""
    path, params = tmp_path / "m", PARAMS
    bridge.save(
        {"step": step, "read": network}, path, params=PARAMS,
        args={"step": "f32[b,4,4,2]", "read": "f32[b,4,4,2]"}, updates={"step": 0},
        operations="tensorflow", exact=False,
    )  # fmt: skip
    loaded = tf.saved_model.load(path)
    for x in IMAGES:
        params, value = step(params, x)
        np.testing.assert_allclose(loaded.step(x), value, rtol=1e-4)
        assert_near({k: v.numpy() for k, v in loaded.read(x).items()}, network(params, x))


def test_what_is_written_anew_is_as_exact_as_the_file(tmp_path):
    options = {"args": "f32[b,9]", "operations": "tensorflow"}
    bridge.save(lambda x: jnp.max(x, 1), tmp_path / "m", **options, exact=False)
    for name, change in (
        ("left", {"platforms": ["cpu"]}),
        ("checks", {"disabled_checks": ["platform"]}),
        ("open", {"operations": "tensorflow", "for_converters": True}),
    ):
        bridge.retarget(tmp_path / "m", to=tmp_path / name, **change)
        assert not bridge.load(tmp_path / name).default.is_exact
    assert node_types(tmp_path / "checks") == node_types(tmp_path / "m")
    bridge.retarget(tmp_path / "m", to=tmp_path / "module", operations="xla")
    bridge.retarget(tmp_path / "module", to=tmp_path / "exact", operations="tensorflow")
    assert bridge.load(tmp_path / "exact").default.is_exact


def node_types(path):
    graph = tf.saved_model.load(path).signatures["serving_default"].graph.as_graph_def()
    return sorted(node.op for each in graph.library.function for node in each.node_def)


def test_verification_of_a_file_against_what_was_recorded(tmp_path):
    """What is recorded is of an exact file, and the file says that it is not."""
    record = tmp_path / "record.npz"
    bridge.save(loses_nan, tmp_path / "m", args="f32[4,9]")
    assert bridge.verify(tmp_path / "m", record=record, quick=True).passed
    for save, suffix in ((bridge.save_onnx, "onnx"), (bridge.save_litert, "tflite")):
        path = tmp_path / f"model.{suffix}"
        save(loses_nan, path, args="f32[4,9]", exact=False)
        assert bridge.verify(path, against=record).passed
    bridge.save(
        loses_nan, tmp_path / "plain", args="f32[4,9]", operations="tensorflow", exact=False
    )
    assert bridge.verify(tmp_path / "plain", against=record).passed
    binary = tmp_path / "m" / "saved_model.pb"
    read = read_proto(tmp_path / "m")
    binary.with_suffix(".pbtxt").write_text(text_format.MessageToString(read))
    binary.unlink()  # TensorFlow reads the text
    assert bridge.verify(tmp_path / "m", against=record).passed
