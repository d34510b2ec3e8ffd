"""Eight threads call one loaded model, as TensorFlow Serving's do, for as long as it is told."""

from __future__ import annotations

import pytest
import tensorflow as tf

import bridge
from tests.bridge.c_programs import (
    build,
)
from tests.bridge.serving import served
from tests.bridge.serving.callers import BATCHES, GROWTH, Callers, agree

for_a_while = pytest.mark.parametrize(
    "seconds", [5, pytest.param(60, marks=pytest.mark.slow, id="a_minute")]
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """One signature takes batches of any size as they are, the other one pads them."""
    folder = tmp_path_factory.mktemp("served") / "model"
    bridge.save(
        served.exported(),
        folder,
        params=served.parameters(),
        gradient_order=1,
        batch_buckets={"hidden": (4, 32)},
    )
    return folder


def _loader_of_sessions(folder, session):
    """`call(key, batch)` of what the TF1 loader has loaded, by the names in the signature."""
    graph = tf.compat.v1.saved_model.load(session, ["serve"], str(folder))
    runs, feeds = {}, {batch: served.inputs(batch) for batch in BATCHES}
    for key in served.KEYS:
        definition = graph.signature_def[key]
        fetches = {name: info.name for name, info in definition.outputs.items()}
        runs[key] = session.make_callable(fetches, [definition.inputs["x"].name])
    return lambda key, batch: runs[key](feeds[batch])


@for_a_while
def test_the_session_loader(model, seconds):
    with tf.device("/CPU:0"), tf.Graph().as_default(), tf.compat.v1.Session() as session:
        calls = _loader_of_sessions(model, session)
        callers = Callers([calls])
        callers.run(seconds)
    assert callers.failures == []
    assert callers.answered >= 20 * seconds
    agree(callers.answers)
    assert callers.growth < GROWTH, f"{callers.growth} bytes in {callers.answered} requests"


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    return build("serve", tmp_path_factory.mktemp("c_api"))
