"""The files that a model server is started with, read as the server reads them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from google.protobuf import text_format

import bridge
import savedmodel
from bridge.serving import Batching, ModelConfig, publish, write_configs
from bridge.serving.messages import BatchingParameters, MonitoringConfig
from bridge.serving.signatures import read_signatures
from savedmodel.files.records import record_sizes
from tests.bridge.serving.conftest import PARAMS, export
from tests.bridge.serving.test_warmup import _requests, _saved, _specs
from xla_call_module.analyses.constraints import SizeConstraint
from xla_call_module.errors import StructureError
from xla_call_module.stablehlo.refining import refine_results

model_server_config_pb2 = pytest.importorskip("tensorflow_serving.config.model_server_config_pb2")


def _batching(text):
    return text_format.Parse(text, BatchingParameters())


def _models(path):
    config = model_server_config_pb2.ModelServerConfig()
    return text_format.Parse(Path(path).read_text(), config).model_config_list.config


def _monitoring(path):
    return text_format.Parse(Path(path).read_text(), MonitoringConfig()).prometheus_config


def test_publish_writes_what_a_server_is_started_with(exported, tmp_path):
    base = tmp_path / "sine"
    warmed = {"warmup": (8, 1, 32), "batching": True, "operations": "xla"}
    published = publish(exported, base, params=PARAMS, **warmed)
    configs = published.configs
    parameters = _batching(Path(configs.batching).read_text())
    assert list(parameters.allowed_batch_sizes) == [1, 8, 32]
    assert parameters.max_batch_size.value == 32
    (model,) = _models(configs.models)
    assert (model.name, model.base_path, model.model_platform) == ("sine", str(base), "tensorflow")
    assert model.model_version_policy.latest.num_versions == 1
    assert _monitoring(configs.monitoring).enable
    assert _monitoring(configs.monitoring).path == "/monitoring/prometheus/metrics"
    assert configs.options == (
        f"--model_config_file={base}/models.config",
        f"--monitoring_config_file={base}/monitoring.config",
        "--enable_batching=true",
        f"--batching_parameters_file={base}/batching_parameters.txt",
        "--xla_cpu_compilation_enabled=true",
    )
    first = Path(configs.models).read_text().splitlines()[0]
    assert first == f"# For TensorFlow Serving 2.14 or later on cpu: {configs.options[-1]}"
    # A server with --enable_per_model_batching_parameters reads those of the version.
    own = Path(published, "batching_params.pbtxt").read_text()
    assert _batching(own) == parameters


def test_what_a_user_has_edited_stays(saved, tmp_path):
    for name in ("models.config", "monitoring.config", "batching_parameters.txt"):
        (tmp_path / name).write_text("")
    publish(saved, tmp_path, batching=(2, 4))
    assert (tmp_path / "models.config").read_text() == ""
    assert (tmp_path / "monitoring.config").read_text() == ""
    sizes = _batching((tmp_path / "batching_parameters.txt").read_text()).allowed_batch_sizes
    assert list(sizes) == [2, 4]


def test_all_batching_parameters(saved, tmp_path):
    given = {
        "allowed_batch_sizes": [4, 16],
        "batch_timeout_micros": np.int32(2000),
        "max_enqueued_batches": 64,
        "num_batch_threads": 2,
        "thread_pool_name": "sine",
        "pad_variable_length_inputs": True,
    }
    publish(saved, tmp_path, batching=given)
    found = _batching((tmp_path / "batching_parameters.txt").read_text())
    assert found.max_batch_size.value == 16
    assert found.batch_timeout_micros.value == 2000
    assert found.max_enqueued_batches.value == 64
    assert found.num_batch_threads.value == 2
    assert found.thread_pool_name.value == "sine"
    assert found.pad_variable_length_inputs
    publish(saved, tmp_path, batching=replace(Batching(**given), thread_pool_name=None))
    found = _batching((tmp_path / "batching_parameters.txt").read_text())
    assert not found.HasField("thread_pool_name")


def test_parameters_without_sizes_allow_those_of_warmup(saved, tmp_path):
    publish(saved, tmp_path, warmup=(4, 2), batching={"batch_timeout_micros": 0})
    found = _batching((tmp_path / "batching_parameters.txt").read_text())
    assert list(found.allowed_batch_sizes) == [2, 4]
    assert found.batch_timeout_micros.value == 0
    publish(saved, tmp_path, warmup=(4, 2), batching={"max_batch_size": 64})
    found = _batching((tmp_path / "batching_parameters.txt").read_text())
    assert (list(found.allowed_batch_sizes), found.max_batch_size.value) == ([], 64)


@pytest.mark.parametrize(
    ("batching", "message"),
    [
        ((8, 1), r"allowed_batch_sizes=\(8, 1\): expected whole numbers that increase"),
        ((0, 1), "0 among the batch sizes"),
        ({"allowed_batch_sizes": (1, 8), "max_batch_size": 16}, "max_batch_size=16, and the last"),
        ({"max_batch": 8}, "'max_batch', which is not a batching parameter"),
        ({"num_batch_threads": 0}, "num_batch_threads=0; expected a whole number from 1"),
        ({"batch_timeout_micros": -1}, "batch_timeout_micros=-1"),
        ({"max_enqueued_batches": 1.5}, r"max_enqueued_batches=1\.5"),
        ({"max_enqueued_batches": True}, "max_enqueued_batches=True"),
        ({"thread_pool_name": 3}, "thread_pool_name=3; expected some text"),
        (3.5, r"batching=3\.5; expected allowed batch sizes"),
    ],
)
def test_parameters_that_a_server_refuses(saved, tmp_path, batching, message):
    with pytest.raises(StructureError, match=message):
        publish(saved, tmp_path, batching=batching)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shape", "constraints", "bad", "good", "message"),
    [
        ("b, 3", ("b>=8",), (1, 8), (8, 32), "The batch size 1 .*constraint b>=8"),
        ("b, 3", ("mod(b, 4)==0",), (4, 6), (4, 8), r"size 6 .*constraint mod\(b, 4\) == 0"),
        ("b, 3", ("b>=2", "b<=16"), (2, 17), (2, 16), "The batch size 17 .*constraint b<=16"),
        ("16, 3", (), (8, 16), (16,), "its only batch size is 16"),
        ("4*b, 3", (), (2,), (4, 8), r"size 2 .*no value of its dimension variables"),
        # Without allowed sizes the server runs any size up to the largest.
        ("b, 3", ("b>=2",), {"max_batch_size": 8}, (2,), "The batch size 1 .*constraint b>=2"),
        ("b, 3", ("b<=999",), {"batch_timeout_micros": 5}, (2,), "The batch size 1000 .*b<=999"),
        ("b, 3", ("b<=9999",), {"max_batch_size": 10000}, (2,), "The batch size 10000 .*b<=9999"),
    ],
)
def test_allowed_sizes_are_those_of_the_module(tmp_path, shape, constraints, bad, good, message):
    exported = export(shape, constraints)
    options = {"params": PARAMS, "gradient_order": 0}
    with pytest.raises(StructureError, match=message):
        publish(exported, tmp_path, batching=bad, **options)
    assert list(tmp_path.iterdir()) == []
    assert publish(exported, tmp_path, batching=good, **options).version == 1


def _scaled(x, scale):
    return x * scale


def _total(x):
    return x.sum()


def _halves(x):
    return x[: x.shape[0] // 2]


def _none():
    return np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("function", "shapes", "message"),
    [
        (_scaled, ["b, 3", ""], r"its input scale of shape \(\) has no dimension 0"),
        (_scaled, ["b, 3", "3"], r"its input scale of shape \(3\) has no dimension 0"),
        (_scaled, ["2, 3", "3"], r"its inputs \(scale of shape \(3\), x of shape \(2, 3\)\)"),
        (_total, ["b, 3"], r"its output output_0 of shape \(\) has no dimension 0"),
        (_halves, ["2*b"], "its output output_0 of shape .*, of 4 rows at batch size 8,"),
        (_none, [], r"its inputs \(none\) has no dimension 0"),
    ],
)
def test_what_serving_cannot_batch(tmp_path, function, shapes, message):
    folder = _saved(tmp_path, function, *_specs(*shapes))
    with pytest.raises(StructureError, match=message):
        publish(folder, tmp_path / "base", batching=(8,))
    assert publish(folder, tmp_path / "base").version == 1


def test_images_of_different_sizes_have_a_warning(tmp_path):
    def mean(x):
        return x.mean((1, 2))

    several = (
        r"serving_default, input x of shape \(b, h, w, 3\) may have other sizes in each request"
    )
    for fields, what in (
        ({}, "fails all requests of a batch with several sizes"),
        ({"pad_variable_length_inputs": True}, "pads all of a batch .* with the first element"),
    ):
        batching = {"allowed_batch_sizes": (1, 8), **fields}
        with pytest.warns(UserWarning, match=rf"{several}.*{what}.*To do: bring them to one size"):
            publish(mean, tmp_path, args="f32[b,h,w,3]", batching=batching)
    publish(mean, tmp_path, args="f32[b,8,8,3]", batching=(1, 8))
    publish(lambda x: x, tmp_path, args="f32[b,2*b]", batching=(1, 8))


def test_examples_are_repeated_to_each_allowed_size(saved, tmp_path):
    rows = np.arange(9, dtype=np.float32).reshape(3, 3)
    published = publish(saved, tmp_path, warmup=[rows, rows[:1]], batching=(1, 2, 8))
    found = {len(r): r for request in _requests(Path(published)) for r in _arrays(request)}
    assert sorted(found) == [1, 2, 3, 8]
    assert np.array_equal(found[8], np.concatenate([rows, rows, rows[:2]]))
    assert np.array_equal(found[2], rows[:2])


def _arrays(request):
    import tensorflow as tf

    return [tf.make_ndarray(proto) for proto in request.inputs.values()]


def test_a_request_larger_than_a_batch_would_fail(saved, tmp_path):
    with pytest.raises(StructureError, match=r"has 9 rows, and the largest allowed.* is 8"):
        publish(saved, tmp_path, warmup=(1, 9), batching=(1, 8))
    assert list(tmp_path.iterdir()) == []


def test_configurations_of_several_models(tmp_path):
    models = [
        ModelConfig("all", "/models/all", "all"),
        ModelConfig("few", "gs://bucket/few", 3),
        ModelConfig("pinned", "/models/pinned", [3, 4], {"stable": 3, "canary": 4}),
        ModelConfig("newest", "/models/newest", labels={"stable": 7}),
    ]
    batching = Batching((1, 2))
    configs = write_configs(tmp_path / "new", models, batching=batching)
    found = {model.name: model for model in _models(configs.models)}
    policies = {name: model.model_version_policy for name, model in found.items()}
    assert {name: policy.WhichOneof("policy_choice") for name, policy in policies.items()} == {
        "all": "all",
        "few": "latest",
        "pinned": "specific",
        "newest": "latest",
    }
    assert policies["few"].latest.num_versions == 3
    assert list(policies["pinned"].specific.versions) == [3, 4]
    assert dict(found["pinned"].version_labels) == {"stable": 3, "canary": 4}
    assert dict(found["newest"].version_labels) == {"stable": 7}
    assert {model.model_platform for model in found.values()} == {"tensorflow"}
    assert _monitoring(configs.monitoring).enable
    assert Path(configs.batching).read_text() == batching.to_text()
    # The files are replaced, and nothing is left beside them.
    again = write_configs(tmp_path / "new", models[:1], platforms=["cuda"])
    assert again.batching is None
    assert again.options[-1] == "--xla_gpu_compilation_enabled=true"
    first = Path(again.models).read_text().splitlines()[0]
    assert first == f"# For TensorFlow Serving 2.18 or later on cuda: {again.options[-1]}"
    assert write_configs(tmp_path / "new", models[:1], platforms=()).options == again.options[:2]
    assert "#" not in Path(again.models).read_text()
    assert len(_models(again.models)) == 1
    assert len(list((tmp_path / "new").iterdir())) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", "/m"), "has the name ''"),
        (("m", "models/m"), r"base_path 'models/m', and TensorFlow Serving takes absolute"),
        (("m", "/m", 0), "versions=0; expected None for the newest"),
        (("m", "/m", "latest"), "versions='latest'"),
        (("m", "/m", []), r"versions=\[\]"),
        (("m", "/m", [1, "2"]), r"versions=\[1, '2'\]"),
        (("m", "/m", [1, 2], {"stable": 3}), r"label 'stable' for the version 3"),
        (("m", "/m", None, {"stable": "3"}), "label 'stable' for the version '3'"),
        (("m", "/m", None, {"": 3}), "label '' for the version 3"),
    ],
)
def test_models_that_a_server_refuses(arguments, message):
    with pytest.raises(StructureError, match=message):
        ModelConfig(*arguments)


@pytest.mark.parametrize("models", [[], [ModelConfig("m", "/a"), ModelConfig("m", "/b")]])
def test_models_need_names_of_their_own(tmp_path, models):
    with pytest.raises(StructureError, match="at least one, each with a name of its own"):
        write_configs(tmp_path, models)


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("b>=8", {"b": 8}, True),
        ("b>=8", {"b": 7}, False),
        ("a + b <= 2*c", {"a": 1, "b": 1, "c": 1}, True),
        ("a + b <= 2*c", {"a": 2, "b": 1, "c": 1}, False),
        ("4*floordiv(b, 4) == b", {"b": 6}, False),
        ("b>=8", {"a": 1}, None),
        ("something else", {}, None),
    ],
)
def test_constraints(text, values, holds):
    assert SizeConstraint(text).holds(values) is holds


def _accepts(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except StructureError:
        return False
    return True


@pytest.mark.parametrize(
    ("shape", "constraints"),
    [
        ("b, 3", ("b>=3", "b<=9")),
        ("b, 3", ("mod(b, 3)==1",)),
        ("b, 3", ("floordiv(b, 2)>=2", "b>=4")),
        ("2*b, 3", ("b>=2",)),
        ("3*b+1, 3", ()),
        ("5, 3", ()),
    ],
)
def test_sizes_are_taken_as_the_module_takes_them(tmp_path, shape, constraints):
    bridge.save(export(shape, constraints), tmp_path / "m", params=PARAMS, gradient_order=0)
    (signature,) = read_signatures(tmp_path / "m")
    call = savedmodel.read(tmp_path / "m").default.function.call
    sizes = range(1, 12)
    ours = [size for size in sizes if _accepts(signature.sizes_at, size)]
    theirs = [
        size
        for size in sizes
        if _accepts(refine_results, call, [(3, 2), (size, 3)], check_assertions=True)
    ]
    assert ours == theirs != []
    examples = [size for size in sizes if _accepts(signature.check_shapes, {"x": (size, 3)})]
    if shape != "5, 3":  # static sizes are compared before
        assert examples == ours


def test_constraints_of_several_platforms(tmp_path):
    dims = jax.export.symbolic_shape("b, 3", constraints=("b>=8",))
    spec = jax.ShapeDtypeStruct(dims, "float32")
    exported = jax.export.export(jax.jit(lambda x: -x), platforms=["cpu", "tpu"])(spec)
    with pytest.raises(StructureError, match="constraint b>=8"):
        publish(exported, tmp_path, gradient_order=0, warmup=(1,))


def test_a_published_folder_is_inspected_whole(exported, tmp_path):
    published = publish(exported, tmp_path, params=PARAMS, warmup=(1, 8), batching=True)
    report = bridge.inspect(published)
    assert report.warmup.records == 2
    assert list(record_sizes(Path(published, report.warmup.path)))
    assert {file.path for file in report.files} >= {report.warmup.path, "saved_model.pb"}
    bridge.save(exported, published, params=PARAMS, overwrite=True)
    assert bridge.inspect(published).warmup is None


@pytest.mark.parametrize("buckets", [(4, 1), {"rows": (4, 1)}])
def test_batching_by_the_buckets_of_a_file_or_of_one_signature(tmp_path, buckets):
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 3"), "float32")
    rows = {"rows": jax.export.export(jax.jit(jax.numpy.sin))(x)}
    form = {"batch_buckets": buckets, "operations": "xla"}
    saved = publish(rows, tmp_path / "new", warmup=True, batching=True, **form)
    copied = publish(saved, tmp_path / "copied", warmup=True, batching={"num_batch_threads": 2})
    for published in (saved, copied):
        text = Path(published.configs.batching).read_text()
        assert list(_batching(text).allowed_batch_sizes) == [1, 4]
        assert published.warmup == 2


@pytest.mark.parametrize(
    ("models", "options", "message"),
    [
        ({"digits": "/models/digits"}, {}, r"The models are .*; expected a sequence of ModelConf"),
        (ModelConfig("digits", "/models/digits"), {}, "expected a sequence of ModelConfigs"),
        ("digits", {}, "expected a sequence of ModelConfigs"),
        ([ModelConfig("digits", "/d")], {"batching": (1, 8)}, r"\(1, 8\); expected a Batching"),
    ],
)
def test_what_is_no_configuration(tmp_path, models, options, message):
    with pytest.raises(StructureError, match=message):
        write_configs(tmp_path / "c", models, **options)
    assert not (tmp_path / "c").exists()


def test_a_file_is_replaced_and_not_written_over(tmp_path):
    """A server that reads it meanwhile has the old one or the new one, and no half of either."""
    write_configs(tmp_path / "new", [ModelConfig("one", "/models/one")])
    os.link(tmp_path / "new" / "models.config", tmp_path / "old")
    before = (tmp_path / "old").read_text()
    write_configs(tmp_path / "new", [ModelConfig("two", "/models/two")])
    assert (tmp_path / "old").read_text() == before
    assert '"two"' in (tmp_path / "new" / "models.config").read_text()
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "models.config", "monitoring.config",
    ]  # fmt: skip
