"""A user's TensorFlow functions around a call, as one signature."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge
import bridge.serving
from bridge.cli.main import main
from tests.tensorflow_modes import run_session
from xla_call_module.errors import DtypeError, InteropError, StructureError, installing


def compose(*args, **options):
    """The folder of a composed model."""
    made = bridge.serving.compose(*args, **options)
    assert isinstance(made, str)
    return Path(made)


WORDS = ("a", "bad", "day", "good", "night")
CLASSES = ("no", "maybe", "yes")


def network(params, ids, scale):
    """Scores of rows of token numbers."""
    return jax.nn.softmax(params["embedding"][ids].mean(1) @ params["w"] * scale)


def weights():
    random = np.random.default_rng(0)
    return {
        "embedding": random.normal(size=(8, 4)).astype("float32"),
        "w": random.normal(size=(4, 3)).astype("float32"),
    }


jitted = jax.jit(network)


@pytest.fixture(scope="module")
def exported():
    (b,) = export.symbolic_shape("b")
    return export.export(jax.jit(network))(
        weights(),
        jax.ShapeDtypeStruct((b, 4), "int32"),
        jax.ShapeDtypeStruct((), "float32"),
    )


@pytest.fixture(scope="module")
def plain(exported, tmp_path_factory):
    """A SavedModel whose input `scale` has a default."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    bridge.save(exported, folder, params=weights(), batch_buckets=(2, 8), defaults={"scale": 2.0})
    return folder


def tokenizer(folder):
    """A function of strings with a lookup table over an asset file."""
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("\n".join(WORDS))
    index = tf.lookup.TextFileIndex
    table = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            str(vocabulary), tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
        ),
        num_oov_buckets=2,
    )

    def tokenize(text):
        ids = table.lookup(tf.strings.split(text)).to_tensor(shape=[None, 4])
        return {"ids": tf.cast(ids, tf.int32)}

    return tokenize


TEXT = ("good day", "a bad night", "good", "day night a bad", "night")
IDS = np.array([[3, 2, 0, 0], [0, 1, 4, 0], [3, 0, 0, 0], [2, 4, 0, 1], [4, 0, 0, 0]], np.int32)
REQUEST = {"text": tf.TensorSpec([None], tf.string)}


def run_python(folder, key, feeds):
    call = tf.saved_model.load(folder).signatures[key]
    return call(**{name: tf.constant(value) for name, value in feeds.items()})


def definition_of(folder, key="serving_default"):
    from savedmodel.read import read_proto

    return read_proto(folder).meta_graphs[0].signature_def[key]


def test_composed_and_published_in_one_call(tmp_path, plain, exported):
    """The sizes of batches are those of the examples, since strings cannot be made up."""
    options = {
        "preprocess": tokenizer(tmp_path),
        "postprocess": lambda output_0: {"best": tf.gather(CLASSES, tf.argmax(output_0, 1))},
        "request": {**REQUEST},
    }
    examples = [{"text": list(TEXT[:1])}, {"text": list(TEXT)}]
    published = bridge.serving.publish(
        exported, tmp_path / "words", params=weights(), defaults={"scale": 2.0}, warmup=examples,
        **options,
    )  # fmt: skip
    want = [CLASSES[n].encode() for n in np.argmax(jitted(weights(), IDS, np.float32(2)), 1)]
    feeds = {"text": TEXT, "scale": np.float32(2)}
    for path, warmup in ((published.path, 2), (_publish_folder(plain, tmp_path, options), 0)):
        assert bridge.inspect(path).warmup.records == warmup if warmup else True
        assert run_python(path, "serving_default", feeds)["best"].numpy().tolist() == want
    with pytest.raises(
        StructureError, match="weights= are put into the newest version, so postprocess="
    ):
        bridge.serving.publish(None, tmp_path / "words", weights=weights(), **options)


def _publish_folder(plain, tmp_path, options):
    return bridge.serving.publish(plain, tmp_path / "copies", **options).path


@pytest.mark.parametrize("noise", [0.0, 1e3])
def test_verify_finds_what_is_around_the_call(tmp_path, noise, preloaded):
    """A request that is another one each time is one that JAX is not asked."""

    def scaled(x, offset):
        return x.astype(jnp.float32) * 2 + offset

    def preprocess(x):
        now = tf.cast(tf.math.floormod(noise * tf.timestamp(), 97), tf.float32)
        return {"x": tf.cast(x + now, tf.bfloat16)}

    folder = compose(
        scaled, tmp_path / "m", args="bf16[b,3], f32[]", preprocess=preprocess,
        postprocess=lambda output_0, x: {"sum": tf.reduce_sum(output_0, 1), "x": x},
        request={"x": tf.TensorSpec([None, 3], tf.float32)},
    )  # fmt: skip
    report = bridge.verify(folder, quick=True)
    (row,) = [row for row in report.rows if row.signature == "serving_default"]
    assert row.inputs.startswith("random, around JAX")
    assert report.passed == (noise == 0)
    assert row.problem == "" or row.problem.startswith("sum ")


def test_batches_have_the_sizes_of_examples(tmp_path):
    def lengths(text):
        return tf.strings.length(text)[:, None]

    examples = [{"text": ["a"]}, {"text": ["a", "bb", "ccc", "d"]}]
    for batching in (True, {"num_batch_threads": 2}):
        bridge.serving.publish(
            lambda x: x * 2, tmp_path, args="i32[b,1]", preprocess=lengths, request=REQUEST,
            warmup=examples, batching=batching,
        )  # fmt: skip
        text = (tmp_path / "batching_parameters.txt").read_text()
        assert "allowed_batch_sizes: 1\nallowed_batch_sizes: 4\n" in text


@pytest.fixture(scope="module")
def folder(plain, tmp_path_factory):
    """A composed model that was moved, without what it was made of."""
    place = tmp_path_factory.mktemp("tokenizer")
    made = compose(
        plain,
        place / "made",
        preprocess=tokenizer(place),
        postprocess=lambda output_0: {
            "scores": output_0,
            "best": tf.gather(tf.constant(CLASSES), tf.argmax(output_0, 1)),
        },
        request=REQUEST,
    )
    (place / "elsewhere").mkdir()
    made.rename(place / "elsewhere" / "1")
    (place / "vocabulary.txt").unlink()
    return place / "elsewhere" / "1"


class TestTokenizer:
    @pytest.mark.parametrize("run", [run_python, run_session])
    def test_has_the_results_of_jax(self, folder, run):
        want = np.asarray(jitted(weights(), IDS, np.float32(0.5)))
        got = run(folder, "serving_default", {"text": TEXT, "scale": np.float32(0.5)})
        assert got.keys() == {"scores", "best"}
        np.testing.assert_allclose(got["scores"], want, rtol=1e-5)
        best = [CLASSES[index].encode() for index in want.argmax(1)]
        assert np.asarray(got["best"]).tolist() == best

    def test_the_default_of_an_input_that_is_left(self, folder):
        got = run_session(folder, "serving_default", {"text": TEXT})
        want = jitted(weights(), IDS, np.float32(2))
        np.testing.assert_allclose(got["scores"], want, rtol=1e-5)
        assert list(definition_of(folder).defaults) == ["scale"]
        assert list(definition_of(folder, "bare").defaults) == ["scale"]

    def test_the_asset_is_in_the_file(self, folder):
        assert (folder / "assets" / "vocabulary.txt").read_text().split() == list(WORDS)
        report = bridge.inspect(folder)
        assert [asset.path for asset in report.assets] == ["assets/vocabulary.txt"]
        assert list(report.others) == ["serving_default"]
        assert [(s.key, s.batch_buckets) for s in report.signatures] == [("bare", (2, 8))]

    def test_the_bare_signature_is_a_jax_function(self, folder):
        model = bridge.load(folder)
        assert list(model.signatures) == ["bare"]
        assert list(model.others) == ["serving_default"]
        got = model.signatures["bare"](ids=IDS)
        np.testing.assert_allclose(got, jitted(weights(), IDS, np.float32(2)), rtol=1e-5)
        with pytest.raises(StructureError, match="Those that are JAX functions are 'bare'"):
            model(ids=IDS)
        with pytest.raises(KeyError, match="other"):
            model.signatures["other"]
        got = run_session(folder, "bare", {"ids": IDS})["output_0"]
        np.testing.assert_allclose(got, jitted(weights(), IDS, np.float32(2)), rtol=1e-5)

    def test_inspect_shows_first_what_clients_call(self, folder, capsys):
        assert main(["inspect", str(folder)]) == 0
        printed = capsys.readouterr().out
        composed, bare = (printed.index(f"Signature {k}") for k in ("serving_default", "bare"))
        assert composed < bare < printed.index("\nGraph")
        assert main(["inspect", str(folder), "--html=-"]) == 0
        page = capsys.readouterr().out
        composed, bare = (page.index(f">Signature {k}") for k in ("serving_default", "bare"))
        assert composed < bare < page.index("<h2>Graph")

    def test_one_name_is_one_function(self, folder):
        """The loaded object and its methods are what the signatures of their names are."""
        loaded = tf.saved_model.load(folder)
        request = {"text": tf.constant(TEXT), "scale": tf.constant(0.5)}
        want = loaded.signatures["serving_default"](**request)
        for function in (loaded, loaded.serving_default):
            np.testing.assert_array_equal(function(**request)["scores"], want["scores"])
        bare = loaded.signatures["bare"](ids=tf.constant(IDS), scale=tf.constant(0.5))
        np.testing.assert_array_equal(loaded.bare(ids=IDS, scale=np.float32(0.5)), bare["output_0"])

    def test_its_parameters_have_gradients(self, folder):
        model = bridge.load(folder)
        bare = model.signatures["bare"]
        found = jax.grad(lambda p: bare.exported.call(p, IDS, np.float32(1))[:, 0].sum())
        names = dict(zip(bare.variable_names, jax.tree.leaves(found(bare.params)), strict=True))
        want = jax.grad(lambda p: network(p, IDS, 1.0)[:, 0].sum())(weights())
        np.testing.assert_allclose(names["w"], want["w"], rtol=1e-4, atol=1e-6)

    def test_verify_says_what_it_does_not_compare(self, folder, preloaded):
        # Where the scale is huge, the order of the products decides what overflows.
        probes = ("random", "zeros", "ones", "negative", "nan", "inf")
        match = "Not compared, since requests with strings .* serving_default.*pass inputs="
        with pytest.warns(UserWarning, match=match):
            assert bridge.verify(folder, probes=probes).passed

    def test_verify_compares_what_clients_call(self, folder, preloaded):
        inputs = {"text": list(TEXT), "scale": np.float32(0.5)}
        report = bridge.verify(folder, inputs=inputs)
        (row,) = report.rows
        assert (row.signature, row.problem) == ("serving_default", "")
        assert row.inputs == "given, around JAX"

    def test_a_process_without_the_functions(self, folder, preloaded_python):
        code = (
            "import sys, tensorflow as tf\n"
            "call = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
            "got = call(text=tf.constant(['good day']), scale=tf.constant(0.5))\n"
            "assert 'bridge' not in sys.modules\n"
            "print(got['scores'].numpy().tolist())\n"
        )
        done = subprocess.run(
            [preloaded_python, "-c", code, folder], capture_output=True, text=True, check=True
        )
        want = jitted(weights(), IDS[:1], np.float32(0.5))
        np.testing.assert_allclose(eval(done.stdout), want, rtol=1e-5)

    def test_published(self, folder, tmp_path):
        published = bridge.serving.publish(folder, tmp_path / "base")
        got = run_session(published.path, "serving_default", {"text": TEXT})
        np.testing.assert_allclose(got["scores"], jitted(weights(), IDS, np.float32(2)), rtol=1e-5)


def test_images(tmp_path):
    """JPEG and PNG files in, the mean brightness of each out."""
    images = np.random.default_rng(0).integers(0, 255, (3, 8, 8, 3), np.uint8)
    (b,) = export.symbolic_shape("b")
    brightness = jax.jit(lambda images: jnp.mean(images, (1, 2, 3)))
    exported = export.export(brightness)(jax.ShapeDtypeStruct((b, 8, 8, 3), "float32"))

    def decode(jpeg):
        one = lambda data: tf.io.decode_jpeg(data, channels=3)  # noqa: E731
        pixels = tf.map_fn(one, jpeg, fn_output_signature=tf.TensorSpec([None, None, 3], tf.uint8))
        return tf.image.resize(tf.cast(pixels, tf.float32) / 255, [8, 8])

    folder = compose(
        exported,
        tmp_path / "model",
        preprocess=decode,
        postprocess=lambda output_0: {"brightness": output_0},
        request={"jpeg": tf.TensorSpec([None], tf.string)},
        batch_buckets=(1, 4),
    )
    files = [tf.io.encode_jpeg(image, quality=100).numpy() for image in images]
    decoded = np.stack([tf.io.decode_jpeg(data).numpy() for data in files]) / np.float32(255)
    for run in (run_python, run_session):
        got = run(folder, "serving_default", {"jpeg": files})["brightness"]
        np.testing.assert_allclose(got, brightness(decoded), rtol=1e-5)


def example(**features):
    """A serialized `tf.Example`."""
    made = {}
    for name, value in features.items():
        if isinstance(value, str):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
        elif np.asarray(value).dtype.kind == "f":
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=value))
        else:
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=value))
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


class TestExamples:
    def test_features_of_the_inputs(self, plain, tmp_path):
        folder = compose(plain, tmp_path / "m", examples=True)
        definition = definition_of(folder)
        assert definition.inputs.keys() == {"examples", "scale"}
        assert definition.method_name == "tensorflow/serving/predict"
        requests = [example(ids=row) for row in IDS]
        got = run_session(folder, "serving_default", {"examples": requests})["output_0"]
        np.testing.assert_allclose(got, jitted(weights(), IDS, np.float32(2)), rtol=1e-5)

    def test_dtypes_that_features_do_not_have(self, tmp_path):
        def function(x, flag, i):
            return {"x": x * 2, "flag": ~flag, "i": i + 1}

        (b,) = export.symbolic_shape("b")
        dtypes = ("bfloat16", "bool", "uint8")
        specs = [jax.ShapeDtypeStruct((b, 2), dtype) for dtype in dtypes]
        exported = export.export(jax.jit(function))(*specs)
        folder = compose(exported, tmp_path / "m", examples=True)
        requests = [example(x=[0.5, n], flag=[n, 0], i=[n, 200]) for n in (0, 1)]
        got = run_python(folder, "serving_default", {"examples": requests})
        assert {name: value.dtype.name for name, value in got.items()} == dict(
            zip(("x", "flag", "i"), dtypes, strict=True)
        )
        assert got["x"].numpy().tolist() == [[1, 0], [1, 2]]
        assert got["flag"].numpy().tolist() == [[True, True], [False, True]]
        assert got["i"].numpy().tolist() == [[1, 201], [2, 201]]

    def test_features_for_preprocess(self, plain, tmp_path):
        tokenize = tokenizer(tmp_path)
        folder = compose(
            plain,
            tmp_path / "m",
            preprocess=lambda words: tokenize(tf.squeeze(words, 1)),
            examples={"words": tf.io.FixedLenFeature([1], tf.string)},
        )
        requests = [example(words=text) for text in TEXT]
        got = run_session(folder, "serving_default", {"examples": requests})["output_0"]
        np.testing.assert_allclose(got, jitted(weights(), IDS, np.float32(2)), rtol=1e-5)

    def test_ragged_features(self, plain, tmp_path):
        folder = compose(
            plain,
            tmp_path / "m",
            preprocess=lambda ids: {"ids": tf.cast(ids.to_tensor(shape=[None, 4]), tf.int32)},
            examples={"ids": tf.io.RaggedFeature(tf.int64)},
        )
        requests = [example(ids=row[row > 0]) for row in IDS[2:]]
        want = jitted(weights(), np.array([[3, 0, 0, 0], [2, 4, 1, 0], [4, 0, 0, 0]]), 2.0)
        for run in (run_session, run_python):
            feeds = {"examples": requests, "scale": np.float32(2)}
            got = run(folder, "serving_default", feeds)["output_0"]
            np.testing.assert_allclose(got, want, rtol=1e-5)


class TestWarmup:
    """Batch sizes where a request is serialized `tf.Example`s."""

    @pytest.mark.parametrize("features", [None, {"ids": tf.io.RaggedFeature(tf.int64)}])
    def test_features_are_made_up(self, plain, tmp_path, features):
        options = {"examples": True}
        if features is not None:

            def dense(ids):
                return {"ids": tf.cast(ids.to_tensor(shape=[None, 4]), tf.int32)}

            options = {"preprocess": dense, "examples": features}
        folder = compose(plain, tmp_path / "m", **options)
        published = bridge.serving.publish(folder, tmp_path / "base", warmup=(1, 3))
        requests = [r for r in _requests(published.path) if r[0] == "serving_default"]
        assert [len(feeds["examples"]) for _, feeds in requests] == [1, 3]
        assert published.warmup == 4
        for key, feeds in requests:
            assert run_session(published.path, key, feeds)["output_0"].shape[1] == 3

    def test_floats_are_random(self, tmp_path):
        exported = _two_inputs()
        folder = compose(exported, tmp_path / "m", examples=True, method="regress")
        assert bridge.serving.add_warmup(folder, {"serving_default": (2,)}) == 1
        ((_, feeds),) = _requests(folder)
        described = {
            "x": tf.io.FixedLenFeature([300], tf.float32),
            "n": tf.io.FixedLenFeature([], tf.int64),
        }
        parsed = tf.io.parse_example(feeds["inputs"], described)
        assert len(np.unique(parsed["x"])) == 600
        assert parsed["n"].numpy().tolist() == [0, 0]

    def test_strings_are_not(self, plain, tmp_path):
        tokenize = tokenizer(tmp_path)
        words = {"words": tf.io.FixedLenFeature([1], tf.string)}
        folder = compose(
            plain,
            tmp_path / "m",
            preprocess=lambda words: tokenize(tf.squeeze(words, 1)),
            examples=words,
        )
        with pytest.raises(
            StructureError, match=r"tf.Examples with strings in words\. To do: pass"
        ):
            bridge.serving.add_warmup(folder, (1,))


def _two_inputs():
    scope = export.SymbolicScope()
    x, n = (
        jax.ShapeDtypeStruct(export.symbolic_shape(shape, scope=scope), dtype)
        for shape, dtype in (("b, 300", "float32"), ("b", "int32"))
    )
    return export.export(jax.jit(lambda x, n: x.sum(1) + n))(x, n)


def _requests(folder):
    """The warmup requests as TensorFlow reads them."""
    from bridge.serving.messages import PredictionLog

    file = Path(folder) / "assets.extra" / "tf_serving_warmup_requests"
    found = []
    for record in tf.data.TFRecordDataset(str(file)):
        request = PredictionLog.FromString(record.numpy()).predict_log.request
        feeds = {
            name: tf.make_ndarray(tf.make_tensor_proto(0).FromString(t.SerializeToString()))
            for name, t in request.inputs.items()
        }
        found.append((request.model_spec.signature_name, feeds))
    return found


class TestMethods:
    EXAMPLES = {  # noqa: RUF012 - nobody changes it
        "preprocess": lambda ids: {"ids": ids, "scale": tf.constant(1.0)},
        "request": {"ids": tf.TensorSpec([None, 4], tf.int32)},
        "examples": True,
    }

    def test_classify(self, plain, tmp_path):
        folder = compose(
            plain,
            tmp_path / "m",
            preprocess=lambda ids: {"ids": ids, "scale": tf.constant(1.0)},
            request={"ids": tf.TensorSpec([None, 4], tf.int32)},
            examples=True,
            method="classify",
            classes=CLASSES,
        )
        definition = definition_of(folder)
        assert definition.method_name == tf.saved_model.CLASSIFY_METHOD_NAME
        assert list(definition.inputs) == [tf.saved_model.CLASSIFY_INPUTS]
        assert set(definition.outputs) == {
            tf.saved_model.CLASSIFY_OUTPUT_CLASSES,
            tf.saved_model.CLASSIFY_OUTPUT_SCORES,
        }
        requests = [example(ids=row) for row in IDS]
        got = run_session(folder, "serving_default", {"inputs": requests})
        np.testing.assert_allclose(got["scores"], jitted(weights(), IDS, np.float32(1)), rtol=1e-5)
        assert got["classes"].tolist() == [[name.encode() for name in CLASSES]] * len(IDS)

    def test_regress(self, tmp_path):
        (b,) = export.symbolic_shape("b")
        function = jax.jit(lambda x: jnp.sum(x * x, 1))
        exported = export.export(function)(jax.ShapeDtypeStruct((b, 2), "float32"))
        folder = compose(exported, tmp_path / "m", examples=True, method="regress")
        definition = definition_of(folder)
        assert definition.method_name == tf.saved_model.REGRESS_METHOD_NAME
        assert (list(definition.inputs), list(definition.outputs)) == (["inputs"], ["outputs"])
        x = np.array([[1, 2], [3, 4]], np.float32)
        got = run_session(folder, "serving_default", {"inputs": [example(x=row) for row in x]})
        np.testing.assert_allclose(got["outputs"], function(x), rtol=1e-6)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"method": "guess"}, StructureError, "expected one of predict, classify, regress"),
            ({"method": "classify"}, StructureError, "passes serialized tf.Examples"),
            ({"classes": ("a",)}, StructureError, "expected names of classes, for classify"),
            (
                {"method": "classify", "examples": True},
                StructureError,
                "let preprocess= return the inputs that are not",
            ),
            (
                {"method": "classify", "postprocess": lambda output_0: {"other": output_0,
                 "scores": output_0}},
                StructureError,
                "returns scores or classes",
            ),
            (
                {"method": "classify", "classes": ("a", "b")},
                StructureError,
                "3 scores, and 2 names",
            ),
            (
                {"method": "regress", "postprocess": lambda output_0: output_0},
                StructureError,
                r"returns \(batch,\) or \(batch, 1\)",
            ),
            (
                {"method": "regress", "postprocess": lambda output_0:
                 tf.cast(output_0[:, 0], tf.float64)},
                DtypeError,
                "outputs is float64",
            ),
        ],
    )  # fmt: skip
    def test_what_the_server_would_refuse(self, plain, tmp_path, options, error, message):
        if options.keys() & {"postprocess", "classes"} and "method" in options:
            options = {**self.EXAMPLES, **options}
        with pytest.raises(error, match=message):
            compose(plain, tmp_path / "m", **options)
        assert not (tmp_path / "m").exists()


class _Tokens(tf.Module):
    """A module with a table and a variable, whose method is the preprocessing."""

    def __init__(self, folder):
        super().__init__()
        self.tokenize = tokenizer(folder)
        self.offset = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def __call__(self, text):
        return self.tokenize(text)["ids"] + self.offset

    def with_scale(self, text):
        return {"ids": self(text), "scale": tf.cast(self.offset, tf.float32) + 1.0}


class _Plain:
    """The same in a class that TensorFlow does not know."""

    def __init__(self, folder):
        self.tokenize = tokenizer(folder)

    def method(self, text):
        return self.tokenize(text)


def _module(folder):
    module = _Tokens(folder)
    return module.with_scale


@pytest.mark.parametrize(
    "make",
    [
        tokenizer,
        _module,
        lambda folder: _Plain(folder).method,
        lambda folder: tf.function(tokenizer(folder)),
        lambda folder: functools.partial(tokenizer(folder)),
    ],
    ids=["closure", "module", "object", "tf.function", "partial"],
)
def test_where_a_table_may_be(plain, tmp_path, make):
    folder = compose(plain, tmp_path / "m", preprocess=make(tmp_path), request=REQUEST)
    (tmp_path / "vocabulary.txt").unlink()
    feeds = {"text": TEXT}
    scale = np.float32(1 if make is _module else 2)
    got = run_session(folder, "serving_default", feeds)["output_0"]
    np.testing.assert_allclose(got, jitted(weights(), IDS, scale), rtol=1e-5)


def test_one_input_by_an_input_signature(tmp_path):
    (b,) = export.symbolic_shape("b")
    exported = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((b,), "float32"))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="number")])
    def parse(number):
        return tf.strings.to_number(number)

    folder = compose(exported, tmp_path / "m", preprocess=parse)
    got = run_session(folder, "serving_default", {"number": ["1", "2.5"]})["output_0"]
    np.testing.assert_allclose(got, np.sin(np.float32([1, 2.5])), rtol=1e-6)


def test_nothing_around_it_renames_nothing(plain, tmp_path):
    folder = compose(plain, tmp_path / "m")
    got = run_session(folder, "serving_default", {"ids": IDS})["output_0"]
    np.testing.assert_allclose(got, jitted(weights(), IDS, np.float32(2)), rtol=1e-5)
    assert set(bridge.load(folder).signatures) == {"serving_default", "bare"}


def test_defaults_of_the_request(plain, tmp_path):
    tokenize = tokenizer(tmp_path)

    def preprocess(text, shift):
        return {"ids": tokenize(text)["ids"] + shift}

    folder = compose(
        plain,
        tmp_path / "m",
        preprocess=preprocess,
        request={**REQUEST, "shift": tf.TensorSpec([], tf.int32)},
        defaults={"shift": 1, "text": ["good day"], "scale": 0.5},
    )
    got = run_session(folder, "serving_default", {})["output_0"]
    np.testing.assert_allclose(got, jitted(weights(), IDS[:1] + 1, np.float32(0.5)), rtol=1e-5)
    assert definition_of(folder).defaults["text"].string_val == [b"good day"]


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"preprocess": lambda text: text}, StructureError, "To do: pass request="),
            ({"preprocess": 3, "request": REQUEST}, StructureError, "3 is not a function"),
            ({"request": REQUEST}, StructureError, "To do: leave request= out"),
            (
                {"preprocess": lambda text: {"other": text}, "request": REQUEST},
                StructureError,
                "preprocess returns 'other'; the inputs of the signature are ids, scale",
            ),
            (
                {"preprocess": lambda text: {"ids": tf.strings.length(text)}, "request": REQUEST},
                StructureError,
                r"preprocess returns the shape \(None,\) for ids",
            ),
            (
                {"preprocess": lambda text: {"ids": tf.strings.split(text)}, "request": REQUEST},
                StructureError,
                "RaggedTensor for ids",
            ),
            (
                {"preprocess": lambda text: {"ids": tf.zeros([2, 4])}, "request": REQUEST},
                DtypeError,
                "preprocess returns float32 for ids",
            ),
            (
                {"preprocess": lambda text: tf.zeros([2, 4], tf.int32), "request": REQUEST},
                StructureError,
                "returns one tensor, and there are ids, scale",
            ),
            ({"postprocess": lambda output_0: [output_0]}, StructureError, "postprocess returns"),
            ({"postprocess": lambda other: other}, StructureError, "cannot trace the functions"),
            ({"signature": "other"}, StructureError, "has no signature 'other'"),
            ({"bare": "serving_default"}, StructureError, "cannot have the key"),
            ({"bare": "a b"}, StructureError, "cannot have the key"),
            ({"defaults": {"other": 1}}, StructureError, "its inputs are ids, scale"),
            ({"defaults": {"scale": [1.0, 2.0]}}, StructureError, "The default of scale"),
            ({"defaults": {"scale": "big"}}, StructureError, "The default of scale is 'big'"),
            ({"gradient_order": 2}, StructureError, "gradient_order would have no effect"),
            ({"examples": {"x": 3}}, StructureError, "not features of a tf.Example"),
        ],
    )
    def test_what_does_not_fit(self, plain, tmp_path, options, error, message):
        with pytest.raises(error, match=message):
            compose(plain, tmp_path / "m", **options)
        assert list(tmp_path.iterdir()) == []

    def test_an_address(self, plain):
        with pytest.raises(StructureError, match="compose to a folder, and publish"):
            compose(plain, "gs://bucket/model")

    def test_a_folder_that_is_there(self, plain, tmp_path):
        (tmp_path / "m").mkdir()
        with pytest.raises(InteropError, match="exists"):
            compose(plain, tmp_path / "m")
        compose(plain, tmp_path / "m", overwrite=True)
        assert (tmp_path / "m" / "saved_model.pb").is_file()
        with pytest.raises(StructureError, match="which is taken or not a valid name"):
            compose(compose(plain, tmp_path / "n"), tmp_path / "o")


def test_importing_it_imports_no_tensorflow():
    code = "import bridge.serving, sys; assert not {'tensorflow', 'jax'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_tensorflow():
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "import bridge.serving\n"
        "try: bridge.serving.compose\n"
        "except bridge.InteropError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert installing("tensorflow") in done.stdout


def test_a_manifest_and_what_a_function_closes_over(tmp_path):
    (b,) = export.symbolic_shape("b")
    exported = export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((b,), "float32"))
    factor = tf.Variable(2.0)
    folder = compose(
        exported,
        tmp_path / "m",
        postprocess=lambda output_0: output_0 * factor,
        manifest=True,
    )
    from savedmodel.manifest import compare_manifest

    assert compare_manifest(folder) == ()
    got = run_session(folder, "serving_default", {"x": np.float32([1, 2])})["output_0"]
    np.testing.assert_allclose(got, 2 * np.sin(np.float32([1, 2])), rtol=1e-6)


def test_a_signature_that_assigns(tmp_path):
    """The composed one assigns too, the others as before, and JAX loads the bare one."""

    def step(state, x):
        return {"w": state["w"] + x.mean(0)}, {"total": x.sum()}

    model = {"train": step, "predict": lambda state, x: x @ state["w"]}
    options = {
        "params": {"w": np.zeros(3, np.float32)},
        "args": "f32[b,3]",
        "updates": {"train": 0},
    }
    compose(
        model, tmp_path / "m", preprocess=lambda x: x / 2, signature="train",
        request={"x": tf.TensorSpec([None, 3], tf.float32)}, **options,
    )  # fmt: skip
    loaded = tf.saved_model.load(tmp_path / "m")
    x = tf.ones((2, 3))
    assert loaded.signatures["train"](x=x)["total"].numpy() == 3
    assert loaded.signatures["predict"](x=x)["output_0"].numpy().tolist() == [1.5, 1.5]
    assert loaded.signatures["bare"](x=x)["total"].numpy() == 6
    assert loaded.signatures["predict"](x=x)["output_0"].numpy().tolist() == [4.5, 4.5]
    new, outputs = bridge.load(tmp_path / "m").signatures["bare"](x.numpy())
    assert (outputs["total"], new["w"].tolist()) == (6, [1, 1, 1])


@pytest.mark.parametrize("examples", [False, True], ids=["tensors", "examples"])
def test_a_request_passes_tensors_by_the_model(tmp_path, examples):
    """Those that `postprocess` has as parameters, whether or not `preprocess` has them, too."""

    def double(x, number):
        return x * 2 + tf.cast(number, tf.float32)[:, None]

    def repeat(output_0, name, number):
        return {"sum": output_0, "name": name, "number": number}

    strings, numbers = tf.TensorSpec([None], tf.string), tf.TensorSpec([None], tf.int64)
    folder = compose(
        lambda x: x.sum(1), tmp_path / "m", args="f32[b,2]", preprocess=double, postprocess=repeat,
        request={"x": tf.TensorSpec([None, 2]), "name": strings, "number": numbers},
        examples=examples,
    )  # fmt: skip
    serve = tf.saved_model.load(folder).signatures["serving_default"]
    feature, int64 = tf.train.Feature, tf.train.Int64List
    features = {
        "x": feature(float_list=tf.train.FloatList(value=[1, 2])),
        "name": feature(bytes_list=tf.train.BytesList(value=[b"a"])),
        "number": feature(int64_list=int64(value=[3])),
    }
    row = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
    whole = {"x": tf.constant([[1.0, 2.0]]), "name": tf.constant(["a"]),
             "number": tf.constant([3], tf.int64)}  # fmt: skip
    answer = serve(examples=tf.constant([row])) if examples else serve(**whole)
    assert {key: value.numpy().tolist() for key, value in answer.items()} == {
        "sum": [12.0], "name": [b"a"], "number": [3],
    }  # fmt: skip


def test_a_request_without_preprocessing_passes_tensors_by_the_model(tmp_path):
    strings = tf.TensorSpec([None], tf.string)
    repeat = lambda output_0, name: {"sum": output_0, "name": name}  # noqa: E731
    options = {"args": "f32[b,2]", "request": {"name": strings}}
    compose(lambda x: x.sum(1), tmp_path / "m", postprocess=repeat, **options)
    serve = tf.saved_model.load(tmp_path / "m").signatures["serving_default"]
    assert serve(x=tf.ones([1, 2]), name=tf.constant(["b"]))["name"].numpy() == [b"b"]
    with pytest.raises(StructureError, match="no function has such parameters"):
        compose(
            lambda x: x.sum(1), tmp_path / "n", postprocess=lambda output_0: output_0, **options
        )
