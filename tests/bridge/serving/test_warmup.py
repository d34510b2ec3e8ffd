"""Warmup records, read by TensorFlow's reader and run as TensorFlow Serving runs them."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64

import bridge
from bridge.batching.batch_sizes import parse_sizes
from bridge.serving import add_warmup, publish
from bridge.serving.warmup import MAX_RECORDS, WARMUP_FILE
from tests.bridge.serving.conftest import PARAMS, export
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import DtypeError, FormatError, StructureError

prediction_log_pb2 = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")


def _requests(folder):
    """Each request, as TensorFlow Serving reads it."""
    records = tf.data.TFRecordDataset(str(folder / WARMUP_FILE))
    logs = [
        prediction_log_pb2.PredictionLog.FromString(record)
        for record in records.as_numpy_iterator()
    ]
    assert {log.WhichOneof("log_type") for log in logs} == {"predict_log"}
    return [log.predict_log.request for log in logs]


def _inputs(request):
    return {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}


def _replay(folder):
    """The results of each request by the session loader, which is Serving's."""
    found, requests = [], _requests(folder)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
        for request in requests:
            signature = graph.signature_def[request.model_spec.signature_name]
            feeds = {signature.inputs[name].name: value for name, value in _inputs(request).items()}
            fetches = {name: info.name for name, info in signature.outputs.items()}
            found.append((request, session.run(fetches, feeds)))
    return found


def _saved(tmp_path, function, *specs, **options):
    exported = jax.export.export(jax.jit(function))(*specs)
    bridge.save(exported, tmp_path / "model", gradient_order=0, **options)
    return tmp_path / "model"


def _spec(shape, dtype="float32"):
    return jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), dtype)


def _specs(*shapes):
    """Specs with the same dimension variables."""
    scope = jax.export.SymbolicScope()
    dims = [jax.export.symbolic_shape(shape, scope=scope) for shape in shapes]
    return [jax.ShapeDtypeStruct(shape, "float32") for shape in dims]


def test_a_request_for_each_batch_size_runs(exported, tmp_path):
    published = publish(exported, tmp_path / "sine", params=PARAMS, warmup=(1, 8, 32))
    replayed = _replay(tmp_path / "sine" / "1")
    assert published.warmup == 3
    assert [len(_inputs(request)["x"]) for request, _ in replayed] == [1, 8, 32]
    for request, results in replayed:
        assert request.model_spec.name == "sine"
        assert request.model_spec.signature_name == "serving_default"
        assert not request.model_spec.WhichOneof("version_choice")
        x = _inputs(request)["x"]
        assert np.std(x) > 0.3
        np.testing.assert_allclose(results["output_0"], x @ PARAMS["w"], rtol=1e-5)


def test_every_signature_gets_requests(tmp_path):
    def scaled(params, scale, x):
        return {"y": x * scale * params["w"][0, 1]}

    one = jax.ShapeDtypeStruct((), "float32")
    signatures = {
        "serving_default": export("b, 3"),
        "scaled": jax.export.export(jax.jit(scaled))(PARAMS, one, _spec("n, 2")),
        "fixed": jax.export.export(jax.jit(scaled))(PARAMS, one, np.ones(3, np.float32)),
    }
    publish(signatures, tmp_path, params=PARAMS, gradient_order=0, warmup=(2, 4))
    replayed = _replay(tmp_path / "1")
    assert [
        (request.model_spec.signature_name, *(np.shape(result) for result in results.values()))
        for request, results in replayed
        # Nothing of `fixed` depends on a batch size.
    ] == [
        ("fixed", (3,)),
        ("scaled", (2, 2)),
        ("scaled", (4, 2)),
        ("serving_default", (2, 2)),
        ("serving_default", (4, 2)),
    ]
    by_key = {"scaled": (3,), "serving_default": {"x": np.ones((1, 3), np.float32)}}
    assert add_warmup(tmp_path / "1", by_key) == 2


@pytest.mark.parametrize("dtype", [dtype.name for dtype in DTYPES])
def test_inputs_of_every_dtype(tmp_path, dtype):
    with enable_x64(True):
        folder = _saved(tmp_path, lambda x: jnp.reshape(x, (-1,)), _spec("b, 2", dtype))
    add_warmup(folder, (3,))
    (request,) = _requests(folder)
    (value,) = _inputs(request).values()
    assert value.shape == (3, 2)
    assert value.dtype.name == dtype
    if value.dtype.kind in "iu":
        assert not value.any()
    x = np.array([[0, 1]], getattr(ml_dtypes, dtype, dtype))
    add_warmup(folder, x)
    (request,) = _requests(folder)
    assert np.array_equal(_inputs(request)["x"], x)


def test_made_up_inputs_are_the_same_in_each_run(saved, tmp_path):
    files = []
    for seed in (0, 0, 1):
        publish(saved, tmp_path, warmup=(2, 4), seed=seed, name="m", force=True)
        files.append((tmp_path / str(len(files) + 1) / WARMUP_FILE).read_bytes())
    assert files[0] == files[1] != files[2]


def _two(batch, scale):
    return batch["image"] * scale + batch["mask"][:, None]


IMAGE, MASK = np.ones((2, 3), np.float32), np.zeros(2, np.float32)
SMALL = {"batch_image": IMAGE[:1], "batch_mask": MASK[:1], "scale": 1}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    image, mask = _specs("b, 3", "b")
    batch = {"image": image, "mask": mask}
    one = jax.ShapeDtypeStruct((), "float32")
    return _saved(tmp_path_factory.mktemp("two"), _two, batch, one)


@pytest.mark.parametrize(
    ("warmup", "count"),
    [
        ({"batch_image": IMAGE, "batch_mask": MASK, "scale": 2.0}, 1),
        (({"image": IMAGE, "mask": MASK}, 2.0), 1),
        ({"batch": {"image": IMAGE, "mask": MASK}, "scale": np.float32(2)}, 1),
        ([({"image": IMAGE, "mask": MASK}, 2.0), SMALL], 2),
        ({"serving_default": [({"image": IMAGE, "mask": MASK}, 2.0)]}, 1),
    ],
    ids=["named", "arguments", "keywords", "list", "by signature"],
)  # fmt: skip
def test_example_inputs(two, warmup, count):
    assert add_warmup(two, warmup) == count
    request, results = _replay(two)[0]
    inputs = _inputs(request)
    assert inputs["scale"] == 2
    assert np.array_equal(inputs["batch_image"], IMAGE)
    assert np.array_equal(results["output_0"], 2 * IMAGE)


@pytest.mark.parametrize(
    ("warmup", "error", "message"),
    [
        (
            {"image": IMAGE},
            StructureError,
            r"found \['image'\], and its inputs are \['batch_image'",
        ),
        ([1.5], StructureError, r"found float, and its inputs are \['batch_image'"),
        ("text", StructureError, "found str, and its inputs"),
        ([], StructureError, "warmup is empty"),
        ((1, -8), StructureError, "-8 among the batch sizes"),
        ((1, 2.5), StructureError, "found int, and its inputs"),
        (({"image": IMAGE.astype("float64"), "mask": MASK}, 1.0), DtypeError, "has dtype float64"),
        (({"image": IMAGE[0], "mask": MASK}, 1.0), StructureError, r"has shape \(3,\)"),
        (({"image": IMAGE[:, :2], "mask": MASK}, 1.0), StructureError, r"has shape \(2, 2\)"),
        (({"image": IMAGE[:0], "mask": MASK[:0]}, 1.0), StructureError, "does not fit .*image"),
        (({"image": IMAGE, "mask": MASK[:1]}, 1.0), StructureError, "example does not fit .*mask"),
        ({"serving_default": {"scale": 1}}, StructureError, r"found \['scale'\]"),
        ({"unknown": (1, 2)}, StructureError, r"found \['unknown'\]"),
    ],
)
def test_wrong_examples(two, warmup, error, message):
    with pytest.raises(error, match=message):
        add_warmup(two, warmup)


def test_no_more_records_than_serving_takes(saved, tmp_path):
    publish(saved, tmp_path)
    assert add_warmup(tmp_path / "1", range(1, MAX_RECORDS + 1)) == MAX_RECORDS
    with pytest.raises(StructureError, match=r"1001 warmup records.*refuses a model with more"):
        add_warmup(tmp_path / "1", range(1, MAX_RECORDS + 2))
    # What was there is still there, and nothing besides.
    assert len(_requests(tmp_path / "1")) == MAX_RECORDS
    assert len(list((tmp_path / "1" / WARMUP_FILE).parent.iterdir())) == 1


def test_no_request_is_larger_than_a_message(saved, tmp_path):
    publish(saved, tmp_path)
    with pytest.raises(StructureError, match=r"has 12,000,000,000 bytes, and a message can have"):
        add_warmup(tmp_path / "1", (1, 10**9))
    assert not (tmp_path / "1" / "assets.extra").exists()


@pytest.mark.parametrize(
    ("shape", "constraints", "sizes", "message"),
    [
        ("b, 3", ("b>=8",), (1, 8), r"The batch size 1 .*constraint b>=8.*\(b, 3\)"),
        ("b, 3", ("b<=16",), (16, 17), r"The batch size 17 .*constraint b<=16"),
        ("b, 3", ("mod(b, 4)==0",), (4, 6), r"The batch size 6 .*constraint mod\(b, 4\) == 0"),
        ("2*b, 3", (), (4, 7), r"The batch size 7 .*no value.*\(2\*b, 3\)"),
        ("16, 3", (), (1, 8), r"The batch size 1 .*\(16, 3\), so its only batch size is 16"),
    ],
)
def test_sizes_that_the_module_does_not_take(tmp_path, shape, constraints, sizes, message):
    exported = export(shape, constraints)
    options = {"params": PARAMS, "gradient_order": 0}
    with pytest.raises(StructureError, match=message):
        publish(exported, tmp_path, warmup=sizes, **options)
    bad = int(re.search(r"The batch size (\d+)", message)[1])
    with pytest.raises(StructureError, match=r"The example.* (shape \(1, 3\)|does not fit)"):
        publish(exported, tmp_path, warmup=[np.ones((bad, 3), np.float32)], **options)
    # Those that it takes really run.
    good = [size for size in (8, 16) if shape != "16, 3" or size == 16]
    publish(exported, tmp_path, warmup=good, **options)
    assert [len(results["output_0"]) for _, results in _replay(tmp_path / "1")] == good


def test_sizes_inside_of_buckets(tmp_path):
    exported = export("b, 3", ("b>=8",))
    options = {"params": PARAMS, "gradient_order": 0, "batch_buckets": (8, 32)}
    options["operations"] = "xla"
    publish(exported, tmp_path, warmup=(1, 8), **options)
    assert [len(results["output_0"]) for _, results in _replay(tmp_path / "1")] == [1, 8]
    row = np.ones((1, 3), np.float32)
    assert publish(exported, tmp_path, warmup=row, **options).warmup == 1
    (tmp_path / "2").rename(tmp_path / "old")
    # True is for the programs that there are.
    published = publish(exported, tmp_path, warmup=True, batching=True, **options)
    assert [len(results["output_0"]) for _, results in _replay(tmp_path / "2")] == [8, 32]
    assert "allowed_batch_sizes: 32" in Path(published.configs.batching).read_text()


def test_sizes_that_nothing_says(saved, tmp_path):
    with pytest.raises(StructureError, match="neither batching nor batch_buckets has any"):
        publish(saved, tmp_path, warmup=True)
    publish(saved, tmp_path, warmup=True, batching=(2, 4))
    assert [len(_inputs(request)["x"]) for request in _requests(tmp_path / "1")] == [2, 4]


def test_other_dimensions_follow_from_the_batch_or_are_given(tmp_path):
    folder = _saved(tmp_path, lambda x, y: (x, y), *_specs("b, 2*b", "b+1"))
    with pytest.raises(StructureError, match=r"The batch size 2 does not fit.*b \+ 1"):
        add_warmup(folder, (2,))
    (tmp_path / "other").mkdir()
    folder = _saved(tmp_path / "other", lambda x: x, _spec("b, 2*b"))
    add_warmup(folder, (3,))
    assert _inputs(_requests(folder)[0])["x"].shape == (3, 6)
    (tmp_path / "open").mkdir()
    folder = _saved(tmp_path / "open", lambda x: x, _spec("b, t"))
    with pytest.raises(StructureError, match=r"dimension 1 is at batch size 3.*pass example"):
        add_warmup(folder, (3,))
    assert add_warmup(folder, [np.ones((2, 5), np.float32)]) == 1


def test_a_model_of_another_writer_with_strings(tmp_path):
    module = tf.Module()
    module.run = tf.function(
        lambda text, count: {"length": tf.strings.length(text) * count},
        input_signature=[tf.TensorSpec([None], tf.string), tf.TensorSpec([], tf.int32)],
    )
    tf.saved_model.save(module, str(tmp_path / "foreign"), signatures=module.run)
    example = {"text": ["ab", b"\xff"], "count": 3}
    published = publish(tmp_path / "foreign", tmp_path / "base", warmup=[example])
    ((_, results),) = _replay(tmp_path / "base" / "1")
    assert results["length"].tolist() == [6, 3]
    assert published.warmup == 1
    with pytest.raises(StructureError, match=r"it takes strings. To do: pass example inputs"):
        publish(tmp_path / "foreign", tmp_path / "base", warmup=(1, 8))
    with pytest.raises(DtypeError, match="has to be strings or bytes"):
        publish(tmp_path / "foreign", tmp_path / "base", warmup={"text": [1], "count": 1})


def test_a_typed_key_is_an_input(tmp_path):
    folder = _saved(
        tmp_path, lambda key, x: x + jax.random.uniform(key), jax.random.key(0), _spec("b")
    )
    add_warmup(folder, {"key": jax.random.key(3), "x": np.ones(2, np.float32)})
    (request,) = _requests(folder)
    assert np.array_equal(_inputs(request)["key"], jax.random.key_data(jax.random.key(3)))
    add_warmup(folder, (2,))
    ((request, results),) = _replay(folder)
    assert _inputs(request)["key"].any()
    assert results["output_0"].shape == (2,)


def test_what_is_no_model(tmp_path):
    with pytest.raises(FormatError, match="has no saved_model.pb".replace(".", r"\.")):
        add_warmup(tmp_path, (1,))


@pytest.mark.parametrize(
    ("value", "sizes"),
    [(8, (8,)), ([8, 1, 8], (8, 1)), (range(1, 3), (1, 2)), ((np.int64(4),), (4,)), (True, None),
     ((True,), None), ("18", None), ((), None), (np.arange(3), None)],
)  # fmt: skip
def test_what_is_a_batch_size(value, sizes):
    assert parse_sizes(value) == sizes


def _train(params, x):
    return {"w": params["w"] + x.mean()}, {"rows": x.sum(1)}


@pytest.fixture(scope="module")
def trainable(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainable") / "model"
    model = {"predict": lambda params, x: x @ params["w"], "train": _train}
    bridge.save(model, folder, params=PARAMS, args="f32[b,3]", updates={"train": 0})
    return folder


@pytest.mark.parametrize("warmup", [(1, 8), [{"x": np.ones((2, 3), np.float32)}] * 2])
def test_a_warmup_request_trains_only_where_asked(trainable, warmup):
    assert add_warmup(trainable, warmup) == 2
    assert {request.model_spec.signature_name for request in _requests(trainable)} == {"predict"}
    assert add_warmup(trainable, {"train": warmup, "predict": warmup}) == 4
    steps = [request.model_spec.signature_name for request, _ in _replay(trainable)]
    assert sorted(steps) == ["predict", "predict", "train", "train"]


def test_what_another_writer_assigns_is_not_warmed_up(trainable, tmp_path):
    """TensorFlow's own layers around a step, and a counter of TensorFlow alone."""
    loaded = tf.saved_model.load(trainable)
    spec = tf.TensorSpec([None, 3], tf.float32)
    loaded.counter = tf.Variable(0)

    def count(x):
        loaded.counter.assign_add(1)
        return {"y": x}

    signatures = {
        "count": tf.function(count).get_concrete_function(spec),
        "halve": tf.function(lambda x: {"y": x / 2}).get_concrete_function(spec),
        "step": tf.function(lambda x: loaded.train(x * 2)).get_concrete_function(spec),
    }
    tf.saved_model.save(loaded, tmp_path / "m", signatures=signatures)
    assert add_warmup(tmp_path / "m", (1,)) == 1
    assert _requests(tmp_path / "m")[0].model_spec.signature_name == "halve"


def test_a_model_that_only_trains_is_warmed_up_by_name(tmp_path):
    options = {"params": PARAMS, "args": "f32[b,3]", "updates": 0}
    published = publish(_train, tmp_path / "base", warmup={"serving_default": (1,)}, **options)
    assert published.warmup == 1
    with pytest.raises(StructureError, match=r"assigns variables \(serving_default\).*warmup="):
        publish(_train, tmp_path / "base", warmup=(1, 8), **options)
    with pytest.raises(StructureError, match="assigns variables and cannot be batched"):
        publish(_train, tmp_path / "base", batching=(1, 8), **options)
    assert [path.name for path in (tmp_path / "base").iterdir()] == ["1"]
