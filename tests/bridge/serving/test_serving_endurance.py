"""Eight threads call one loaded model, as TensorFlow Serving's do, for as long as it is told."""

from __future__ import annotations

import subprocess

import pytest
import tensorflow as tf

import bridge
from tests.bridge.c_programs import (
    build,
    decode_tensor,
    encode_count,
    encode_request,
    encode_text,
)
from tests.bridge.pytrees import read_meta_graph
from tests.bridge.serving import served
from tests.bridge.serving.callers import BATCHES, GROWTH, REQUESTS, THREADS, Callers, agree

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


def test_the_file_has_gradients_and_variables(model):
    loaded = tf.saved_model.load(model)
    assert len(loaded.variables) == 3
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded(served.inputs(2))["norm"] * loaded.params["b"][0])
    assert tape.gradient(loss, loaded.params["b"]) is not None


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


@for_a_while
def test_the_c_api(serve, model, tmp_path, seconds):
    definitions = read_meta_graph(model).signature_def
    requests = [
        encode_request(definitions[key], {"x": served.inputs(batch)}) for key, batch in REQUESTS
    ]
    head = encode_text(str(model)) + encode_count(len(requests))
    (tmp_path / "requests").write_bytes(head + b"".join(requests))
    command = [serve, tmp_path / "requests", tmp_path / "answers"]
    done = subprocess.run(
        [*command, str(THREADS), str(seconds)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answered, failed, differing, before, after = map(int, done.stdout.split())
    assert (failed, differing) == (0, 0), done.stderr
    assert answered >= 20 * seconds
    with open(tmp_path / "answers", "rb") as file:
        answers = {
            (key, batch): {name: decode_tensor(file) for name in sorted(definitions[key].outputs)}
            for key, batch in REQUESTS
        }
    agree(answers)
    assert after - before < GROWTH, f"{after - before} bytes in {answered} requests"
