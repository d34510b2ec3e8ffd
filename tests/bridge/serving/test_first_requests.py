"""The first requests to a version: how long they compile, which warmup covers them, and bounds."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import pytest
import tensorflow as tf

from bridge.cli.main import main
from bridge.serving import publish, rollback
from bridge.serving.first_requests import FirstRequest
from tests.bridge.serving.conftest import PARAMS, predict
from xla_call_module.errors import MissingDependencyError, StructureError

ARGS = {"params": PARAMS, "args": "f32[b,3]", "gradient_order": 0, "operations": "xla"}
REPORT = "assets.extra/jax_tf_bridge_first_requests.json"
KEY = "serving_default"


def _sizes(published):
    return [(size.batch, size.warmed) for size in published.first_requests.sizes]


def test_a_batch_that_nothing_bounds_is_named(tmp_path):
    found = publish(predict, tmp_path, **ARGS).first_requests
    assert (found.sizes, found.unbounded) == ((), {KEY: ("x of shape (b, 3)",)})
    warmed = publish(predict, tmp_path, warmup=(1, 8), **ARGS)
    assert _sizes(warmed) == [(1, True), (8, True)]
    assert warmed.first_requests.unbounded == found.unbounded
    lines = str(warmed).splitlines()
    assert f"{KEY} compiles for batches of 1, 8; warmup covers all" in lines
    assert any(f"{KEY} compiles again for each new size of x of shape (b, 3)." in x for x in lines)
    # Without a call of a module nothing is compiled.
    double = tf.function(lambda x: 2 * x, input_signature=[tf.TensorSpec([None, 3], name="x")])
    tf.saved_model.save(tf.Module(), str(tmp_path / "plain"), signatures={KEY: double})
    plain = publish(tmp_path / "plain", tmp_path / "copy").first_requests
    assert (plain.sizes, plain.unbounded, plain.lines()) == ((), {}, [])


@pytest.mark.parametrize("options", [{"batching": (1, 8, 32)}, {"batch_buckets": (1, 8, 32)}])
def test_padded_batches_are_bounded_and_warmed_as_padded(options, tmp_path):
    published = publish(predict, tmp_path, warmup=(1, 5), **options, **ARGS)
    assert _sizes(published) == [(1, True), (8, True), (32, False)]
    assert published.first_requests.unbounded == {}
    assert published.first_requests.lines() == [
        f"{KEY} compiles for batches of 1, 8, 32; warmup covers all but 32"
    ]
    # New weights and a copy of any writer's have the records that came along.
    again = publish(None, tmp_path, weights=PARAMS)
    assert [place for place in _sizes(again) if place[1]] == [
        (place, True) for place in ((1, 8) if "batch_buckets" in options else (1, 5))
    ]


def test_other_dimensions_are_not_bounded_by_a_batch(tmp_path):
    tokens = {"args": "i32[b,s], f32[4]", "batch_buckets": (1, 2), "operations": "xla"}
    found = publish(lambda x, y: x[:, :1] * y[0], tmp_path, **tokens).first_requests
    assert found.unbounded == {KEY: ("x of shape (b, s)",)}
    fixed = publish(jnp.sin, tmp_path, args="f32[4]", operations="xla")
    assert (_sizes(fixed), fixed.first_requests.unbounded) == ([(4, False)], {})
    assert fixed.first_requests.lines() == [f"{KEY} compiles for batches of 4; warmup covers none"]
    scalar = publish(jnp.sin, tmp_path, args="f32[]", warmup=(1,), operations="xla")
    assert _sizes(scalar) == [(0, True)]


def test_what_is_measured_is_returned_printed_and_written(tmp_path, preloaded, capsys):
    base = tmp_path / "base"
    published = publish(predict, base, measure=120, warmup=(1,), batching=(1, 4), **ARGS)
    found = published.first_requests
    assert found.problem == ""
    assert [(each.batch, each.warmed) for each in found.sizes] == [(1, True), (4, False)]
    # A size that is called again takes less than a millisecond.
    assert all(1e-3 < each.seconds < 60 for each in found.sizes)
    written = json.loads(Path(published, REPORT).read_text())
    assert [FirstRequest(**each) for each in written["sizes"]] == [*found.sizes]
    seconds = [f"{each.seconds:.2g} s" for each in found.sizes]
    line = (
        f"{KEY} compiles for batches of 1 ({seconds[0]}), 4 ({seconds[1]}); warmup covers all but 4"
    )
    assert line in str(published).splitlines()
    assert json.loads(Path(rollback(base, to=1), REPORT).read_text()) == written
    arguments = ["publish", published.path, str(tmp_path / "other"), "--measure", "120", "--json"]
    arguments += ["--operations", "xla"]
    assert main(arguments) == 0
    (size,) = json.loads(capsys.readouterr().out)["first_requests"]["sizes"]
    assert (size["batch"], size["warmed"]) == (1, True)
    assert 1e-3 < size["seconds"] < 60


def test_measuring_is_ended(tmp_path, preloaded):
    published = publish(predict, tmp_path, measure=1e-3, warmup=(1, 2), **ARGS)
    assert published.version == 1
    assert [each.seconds for each in published.first_requests.sizes] == [None, None]
    problem = r"2 of 2 were not measured within 0.001 s: The process ended with SIGKILL"
    assert problem in published.first_requests.problem
    assert f"first requests: {problem}" in str(published)


def test_without_tensorflow_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(MissingDependencyError, match="TensorFlow does not start in /bin/false"):
        publish(predict, tmp_path, measure=5, **ARGS)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StructureError, match=r"measure=0; expected a number of seconds"):
        publish(predict, tmp_path, measure=0, **ARGS)
