"""Apache Beam's RunInference, on Beam's own local runner."""

from __future__ import annotations

import gc
import io
import os
import pickle
import re
import sys
import tempfile

import jax
import numpy as np
import pytest

import bridge
from xla_call_module.errors import FormatError, MissingDependencyError, StructureError, installing

beam = pytest.importorskip("apache_beam")

from apache_beam.io.filesystem import BeamIOError, FileMetadata, FileSystem  # noqa: E402
from apache_beam.ml.inference.base import (  # noqa: E402
    KeyedModelHandler,
    KeyModelMapping,
    ModelMetadata,
    RunInference,
)
from apache_beam.options.pipeline_options import PipelineOptions  # noqa: E402
from apache_beam.testing.util import assert_that, equal_to  # noqa: E402

from bridge.beam import ModelHandler  # noqa: E402


def _save(folder, weight, *, batch="b"):
    """`x * weight`, its sum with `shift`, and a second signature with the negative."""
    (x,) = jax.export.symbolic_args_specs((np.zeros((2, 3), np.float32),), (f"{batch}, 3",))
    shift = jax.ShapeDtypeStruct((), np.float32)
    weight = np.float32(weight)
    functions = {
        "serving_default": jax.jit(lambda weight, x: x * weight),
        "sums": jax.jit(lambda weight, x, shift: {"sum": x.sum(axis=1) * weight + shift}),
    }
    exported = {
        "serving_default": jax.export.export(functions["serving_default"])(weight, x),
        "sums": jax.export.export(functions["sums"])(weight, x, shift),
    }
    bridge.save(exported, folder, params=weight)


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """A folder with the versions 2, 9 and 10 of a model, whose weights are their numbers."""
    folder = tmp_path_factory.mktemp("versions") / "base"
    for version in (2, 9, 10):
        _save(folder / str(version), version)
    (folder / "11").mkdir()  # still being copied
    (folder / "notes").mkdir()
    return folder


@pytest.fixture
def model(versions):
    return str(versions / "2")


def _rows(count):
    return [np.full(3, n, np.float32) for n in range(count)]


def _values(result):
    return np.asarray(result.inference).tolist()


class TestPipelines:
    """What comes out of a pipeline."""

    def test_results(self, model):
        with beam.Pipeline() as pipeline:
            results = pipeline | beam.Create(_rows(7)) | RunInference(ModelHandler(model))
            found = results | beam.Map(
                lambda r: (r.example.tolist(), r.inference.tolist(), r.model_id)
            )
            wanted = [([float(n)] * 3, [2.0 * n] * 3, model) for n in range(7)]
            assert_that(found, equal_to(wanted))
        assert _counters(pipeline)["BeamML_JAX", "num_inferences"] == 7

    def test_a_signature_with_shared_inputs(self, model):
        handler = ModelHandler(model, signature="sums", max_batch_size=4)
        with beam.Pipeline() as pipeline:
            results = (
                pipeline
                | beam.Create([{"x": row} for row in _rows(5)])
                | RunInference(handler, inference_args={"shift": 100.0})
            )
            sums = results | beam.Map(lambda result: float(result.inference["sum"]))
            assert_that(sums, equal_to([100.0 + 6 * n for n in range(5)]))

    def test_keys(self, model):
        keyed = KeyedModelHandler(ModelHandler(model))
        with beam.Pipeline() as pipeline:
            results = pipeline | beam.Create(list(enumerate(_rows(4)))) | RunInference(keyed)
            found = results | beam.MapTuple(lambda key, result: (key, _values(result)))
            assert_that(found, equal_to([(n, [2.0 * n] * 3) for n in range(4)]))

    def test_a_model_for_each_key(self, versions):
        keyed = KeyedModelHandler(
            [KeyModelMapping([str(n)], ModelHandler(versions / str(n))) for n in (2, 9)]
        )
        rows = [(str(key), row) for key in (2, 9) for row in _rows(2)]
        with beam.Pipeline() as pipeline:
            results = pipeline | beam.Create(rows) | RunInference(keyed)
            found = results | beam.MapTuple(lambda key, r: (key, r.inference.tolist()))
            wanted = [(str(key), [float(key * n)] * 3) for key in (2, 9) for n in range(2)]
            assert_that(found, equal_to(wanted))

    def test_one_model_for_all_processes(self, model):
        """The elements and the results go to the model's process and come back."""
        handler = ModelHandler(model, model_copies=2)
        with beam.Pipeline() as pipeline:
            results = pipeline | beam.Create(_rows(3)) | RunInference(handler)
            found = results | beam.Map(_values)
            assert_that(found, equal_to([[2.0 * n] * 3 for n in range(3)]))

    def test_worker_processes(self, model):
        """The handler goes to them, and each loads the model for itself."""
        workers = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
        options = PipelineOptions(["--runner=FnApiRunner", *workers])
        with beam.Pipeline(options=options) as pipeline:
            results = pipeline | beam.Create(_rows(6)) | RunInference(ModelHandler(model))
            assert_that(results | beam.Map(_values), equal_to([[2.0 * n] * 3 for n in range(6)]))

    def test_another_model_takes_over(self, versions):
        """As Beam says where a file is that it watches."""
        other = str(versions / "9" / "saved_model.pb")
        with beam.Pipeline() as pipeline:
            news = pipeline | "news" >> beam.Create([ModelMetadata(other, "nine")])
            results = (
                pipeline
                | beam.Create(_rows(3))
                | RunInference(ModelHandler(versions / "2"), model_metadata_pcoll=news)
            )
            found = results | beam.Map(lambda result: (result.inference.tolist(), result.model_id))
            wanted = [([9.0 * n] * 3, str(versions / "9")) for n in range(3)]
            assert_that(found, equal_to(wanted))
        assert _counters(pipeline)["BeamML_JAX", "nine_num_inferences"] == 3

    def test_a_bad_element_is_put_aside(self, model):
        handler = ModelHandler(model, max_batch_size=1)
        rows = [*_rows(2), np.zeros(4, np.float32)]
        with beam.Pipeline() as pipeline:
            results, others = (
                pipeline | beam.Create(rows) | RunInference(handler).with_exception_handling()
            )
            assert_that(results | "values" >> beam.Map(_values), equal_to([[0.0] * 3, [2.0] * 3]))
            reasons = others.failed_inferences | beam.MapTuple(
                lambda _, why: "float32[b,3]" in why[1]
            )
            assert_that(reasons, equal_to([True]), label="reasons")


def _counters(pipeline):
    counters = pipeline.result.metrics().query()["counters"]
    return {(c.key.metric.namespace, c.key.metric.name): c.committed for c in counters}


class TestHandler:
    """The handler itself, as Beam calls it."""

    def test_it_holds_no_model(self, model):
        handler = ModelHandler(model, batch_buckets=(2, 8))
        handler.run_inference(_rows(3), handler.load_model())
        again = pickle.loads(pickle.dumps(handler))
        assert len(pickle.dumps(handler)) < 1000
        results = again.run_inference(_rows(3), again.load_model())
        assert [_values(result) for result in results] == [[2.0 * n] * 3 for n in range(3)]

    def test_options_are_what_beam_asks_for(self, model):
        handler = ModelHandler(
            model,
            min_batch_size=2,
            max_batch_size=64,
            max_batch_duration_secs=3,
            element_size_fn=len,
            batch_length_fn=len,
            batch_bucket_boundaries=(16, 32),
            env_vars={"A": "b"},
        )
        assert handler.batch_elements_kwargs() == {
            "min_batch_size": 2,
            "max_batch_size": 64,
            "max_batch_duration_secs": 3,
            "element_size_fn": len,
            "length_fn": len,
            "bucket_boundaries": [16, 32],
        }
        beam.BatchElements(**handler.batch_elements_kwargs())
        assert ModelHandler(model).batch_elements_kwargs() == {}
        buckets = ModelHandler(model, batch_buckets=(8, 32))
        assert buckets.batch_elements_kwargs() == {"max_batch_size": 32}

    def test_environment_variables(self, model, monkeypatch):
        monkeypatch.setenv("TESTED_BEAM", "before")
        ModelHandler(model, env_vars={"TESTED_BEAM": "after"}).set_environment_vars()
        assert os.environ["TESTED_BEAM"] == "after"

    @pytest.mark.parametrize(
        ("options", "shared", "copies"),
        [({}, False, 1), ({"large_model": True}, True, 1), ({"model_copies": 3}, True, 3)],
    )
    def test_sharing(self, model, options, shared, copies):
        handler = ModelHandler(model, **options)
        assert (handler.share_model_across_processes(), handler.model_copies()) == (shared, copies)

    def test_bytes(self, model):
        handler = ModelHandler(model)
        assert handler.get_num_bytes(_rows(3)) == 36
        assert handler.get_num_bytes([{"x": _rows(1)[0], "pair": (np.int8(1), np.zeros(2))}]) == 29

    def test_updates(self, versions):
        handler = ModelHandler(versions / "2")
        handler.update_model_path(None)
        handler.update_model_path("")
        assert handler.load_model().run(_rows(1))[0] == str(versions / "2")
        handler.update_model_path(str(versions / "9"))
        assert handler.load_model().run(_rows(1))[0] == str(versions / "9")

    def test_the_newest_version(self, versions):
        handler = ModelHandler(f"{versions}/")
        folder, (result,) = handler.load_model().run([np.ones(3, np.float32)])
        assert (folder, result.tolist()) == (str(versions / "10"), [10, 10, 10])

    @pytest.mark.parametrize("arguments", [[1], {1: 2}, "shift"])
    def test_what_are_no_inference_args(self, model, arguments):
        with pytest.raises(StructureError, match=r"inference_args is .*; expected a dict"):
            _ = [1] | RunInference(ModelHandler(model), inference_args=arguments)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_buckets": ()}, r"batch_buckets=\(\); expected different sizes"),
            ({"model_copies": 0}, "model_copies is 0; expected 1 or more"),
        ],
    )
    def test_what_are_no_options(self, model, options, message):
        with pytest.raises(StructureError, match=message):
            ModelHandler(model, **options)

    def test_no_model(self, tmp_path, model):
        with pytest.raises(FormatError, match=r"has no saved_model.pb, and no numbered folders"):
            ModelHandler(tmp_path).load_model()
        with pytest.raises(StructureError, match="no signature 'x'; it has serving_default, sums"):
            ModelHandler(model, signature="x").load_model()

    def test_without_beam(self, monkeypatch):
        monkeypatch.delitem(sys.modules, "bridge.beam")
        monkeypatch.delattr(bridge, "beam")
        monkeypatch.setitem(sys.modules, "apache_beam.ml.inference", None)
        with pytest.raises(MissingDependencyError, match=re.escape(installing("beam"))):
            bridge.beam  # noqa: B018


class _Store(FileSystem):
    """A file system of Beam, over a folder of this machine."""

    root = None

    @classmethod
    def scheme(cls):
        return "store"

    def _local(self, path):
        return self.root / path.removeprefix("store://")

    def join(self, basepath, *paths):
        return "/".join((basepath, *paths))

    def split(self, path):
        return tuple(path.rsplit("/", 1))

    def has_dirs(self):
        return False

    def _list(self, dir_or_prefix):
        for file in sorted(self.root.rglob("*")):
            address = f"store://{file.relative_to(self.root)}"
            if file.is_file() and address.startswith(dir_or_prefix):
                yield FileMetadata(address, file.stat().st_size)

    def open(self, path, mime_type="", compression_type="auto"):
        if not self._local(path).is_file():
            raise BeamIOError(path)
        return io.BytesIO(self._local(path).read_bytes())

    def exists(self, path):
        return self._local(path).exists()

    def metadata(self, path):
        return FileMetadata(path, self._local(path).stat().st_size)

    def _refuse(self, *_, **__):
        raise NotImplementedError

    mkdirs = create = copy = rename = size = last_updated = checksum = delete = _refuse


class TestAddresses:
    """Models that one of Beam's file systems reads."""

    @pytest.fixture(autouse=True)
    def _store(self, versions, monkeypatch):
        monkeypatch.setattr(_Store, "root", versions.parent)

    @pytest.mark.parametrize(
        ("address", "version"),
        [("store://base/9", 9), ("store://base/9/saved_model.pb", 9), ("store://base", 10)],
    )
    def test_load(self, address, version, tmp_path, monkeypatch):
        temporary = tmp_path
        monkeypatch.setattr(tempfile, "tempdir", str(temporary))
        loaded = ModelHandler(address).load_model()
        assert len(list(temporary.iterdir())) == 1
        folder, (result,) = loaded.run([np.ones(3, np.float32)])
        assert (folder, result.tolist()) == (f"store://base/{version}", [version] * 3)
        del loaded
        gc.collect()
        assert list(temporary.iterdir()) == []

    def test_no_model(self):
        with pytest.raises(FormatError, match=r"store://nothing has no saved_model"):
            ModelHandler("store://nothing").load_model()
