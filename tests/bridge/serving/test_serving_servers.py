"""Model servers: `jax-tf-bridge serve`, and TensorFlow Serving's own where it is installed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("tensorflow_serving")
pytest.importorskip("grpc")

import bridge
from tests.bridge.serving import served
from tests.bridge.serving.callers import GROWTH, Callers, agree
from tests.bridge.serving.clients import RequestError
from tests.bridge.serving.servers import COMMANDS, MODEL, running

# Two XLA versions, of which the second one has other polynomials for tanh and exp.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def _publish(base, scale, **options):
    params = served.parameters(scale)
    return bridge.serving.publish(served.exported(), base, params=params, **options)


def _options(published):
    """Return the options of a server on a CPU that `publish` has returned."""
    return next(each.options for each in published.servers if each.platform == "cpu")


@pytest.fixture(scope="module", params=COMMANDS)
def command(request):
    return request.param


@pytest.fixture(scope="module")
def server(command, tmp_path_factory):
    """A server of version 1 of a model with every kind of signature, and warmup records."""
    folder = tmp_path_factory.mktemp("server")
    model = served.composed(folder)
    warmup = {"serving_default": {"x": served.inputs(1)}, "text": {"text": _texts(2)}}
    published = bridge.serving.publish(model, folder / "base", warmup=warmup, name=MODEL)
    assert published.version == 1
    with running(command, folder / "log", _options(published)) as server:
        server.wait_for(1)
        yield server


def _texts(batch):
    return np.array([" ".join(map(str, row)).encode() for row in served.inputs(batch)])


def _examples(batch):
    """The inputs as what a classification and a regression take."""
    examples = []
    for row in served.inputs(batch):
        examples.append(tf.train.Example())
        examples[-1].features.feature["x"].float_list.value.extend(row)
    return examples


@pytest.fixture(params=["grpc", "rest"])
def client(request, server):
    return getattr(server, request.param)


def _agrees(answer, key, batch, scale=1.0):
    want = served.expected(key, batch, scale)
    # REST leaves the name of a single output out.
    outputs = dict(answer.outputs)
    if outputs.keys() == {""}:
        outputs = {next(iter(want)): outputs[""]}
    assert outputs.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(outputs[name], value, **TOLERANCE)


@pytest.mark.parametrize("batch", [1, 3, 4])
@pytest.mark.parametrize("key", served.KEYS)
def test_predict(client, key, batch):
    _agrees(client.predict({"x": served.inputs(batch)}, key), key, batch)


def test_classify(client):
    found = client.classify(_examples(3), "classes")
    scores = served.expected("classes", 3)["output_0"]
    assert [[label for label, _ in row] for row in found] == [list(served.CLASSES)] * 3
    np.testing.assert_allclose([[s for _, s in row] for row in found], scores, **TOLERANCE)


def test_regress(client):
    values = served.expected("value", 3)["output_0"]
    np.testing.assert_allclose(client.regress(_examples(3), "value"), values, **TOLERANCE)


def test_text(server):
    _agrees(server.grpc.predict({"text": _texts(2)}, "text"), "text", 2)
    rows = [{"text": text.decode()} for text in _texts(2)]
    want = served.expected("text", 2)["output_0"]
    np.testing.assert_allclose(server.rest.predict_rows(rows, "text"), want, **TOLERANCE)


@pytest.mark.parametrize("method", ["classify", "regress"])
def test_a_signature_of_another_method(client, method):
    with pytest.raises(RequestError, match=r"INVALID|FAILED_PREC|400"):
        getattr(client, method)(_examples(1), "serving_default")


def test_the_default_signature_and_the_version(client):
    answer = client.predict({"x": served.inputs(2)}, version=1)
    assert answer.version == 1
    _agrees(answer, "serving_default", 2)


def test_rows(server):
    x = served.inputs(3)
    want = served.expected("serving_default", 3)
    for rows in (x.tolist(), [{"x": row} for row in x.tolist()]):
        for index, answer in enumerate(server.rest.predict_rows(rows)):
            assert answer.keys() == want.keys()
            for name, value in want.items():
                np.testing.assert_allclose(answer[name], value[index], **TOLERANCE)


def test_metadata(client):
    found = client.signatures()
    assert found["serving_default"] == {"x", "scores", "norm"}
    assert found["hidden"] == {"x", "output_0"}


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ({"y": np.zeros((1, 8), np.float32)}, {}),
        ({}, {}),
        ({"x": np.zeros((1, 7), np.float32)}, {}),
        ({"x": np.zeros((1, 8), np.float32)}, {"key": "no_such"}),
        ({"x": np.zeros((1, 8), np.float32)}, {"version": 7}),
    ],
)
def test_what_is_refused(client, inputs, options):
    with pytest.raises(RequestError, match=r"INVALID|NOT_FOUND|FAILED_PREC|40[04]"):
        client.predict(inputs, **options)
    _agrees(client.predict({"x": served.inputs(1)}), "serving_default", 1)


@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.slow, id="a_minute")])
def test_eight_threads(server, seconds):
    """Half of them by gRPC, the others by REST."""

    def caller(client):
        def call(key, batch):
            outputs = dict(client.predict({"x": served.inputs(batch)}, key).outputs)
            return {name or "output_0": value for name, value in outputs.items()}

        return call

    callers = Callers([caller(server.grpc), caller(server.rest)], process=server.pid)
    callers.run(seconds)
    assert callers.failures == []
    assert callers.answered >= 5 * seconds
    agree(callers.answers)
    assert callers.growth < GROWTH, f"{callers.growth} bytes in {callers.answered} requests"


@pytest.mark.parametrize("operations", ["xla", "tensorflow"])
def test_a_new_version_takes_over_and_goes_back(command, tmp_path, operations):
    """With the options that `publish` gives: how requests are batched, and whether XLA is on."""
    base = tmp_path / MODEL
    form = {"operations": operations}
    options = _options(_publish(base, 1.0, warmup=(1, 4), batching=True, **form))
    assert any("xla" in option for option in options) == (operations == "xla")
    with running(command, tmp_path / "log", options) as server:
        server.wait_for(1)
        for client in (server.grpc, server.rest):
            for batch in (1, 3, 4):
                _agrees(client.predict({"x": served.inputs(batch)}), "serving_default", batch)
        assert _publish(base, 3.0, warmup=(2,), **form).version == 2
        server.wait_for(2)
        for client in (server.grpc, server.rest):
            answer = client.predict({"x": served.inputs(2)})
            _agrees(answer, "serving_default", 2, scale=3.0)
        assert server.grpc.predict({"x": served.inputs(2)}).version == 2
        back = bridge.serving.rollback(base).version
        server.wait_for(back)
        for client in (server.grpc, server.rest):
            answer = client.predict({"x": served.inputs(2)})
            _agrees(answer, "serving_default", 2)
        assert server.grpc.predict({"x": served.inputs(2)}).version == back


def test_requests_at_the_same_time_lose_no_step(command, tmp_path):
    """The warmup records, which go to the signature that reads, take none."""

    def step(state, x):
        new = {name: value + 1 for name, value in state.items()}
        return new, {"count": new["count"], "total": x.sum()}

    def look(state, x):
        return {"count": state["count"] + 0 * x.sum(), "least": state["w"].min()}

    model, state = {"train": step, "look": look}, {"w": jnp.zeros(1000), "count": jnp.zeros(())}
    options = {"params": state, "args": "f32[b,3]", "updates": {"train": 0}, "warmup": (1, 2)}
    published = bridge.serving.publish(model, tmp_path / MODEL, **options)
    assert published.warmup == 2
    x = {"x": np.ones((2, 3), np.float32)}
    with running(command, tmp_path / "log", _options(published)) as server:
        server.wait_for(1)
        clients = [server.grpc, server.rest]
        assert clients[0].predict(x, "look").outputs["count"] == 0
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda n: clients[n % 2].predict(x, "train"), range(64)))
        found = clients[0].predict(x, "look").outputs
    assert sorted(int(answer.outputs["count"]) for answer in answers) == [*range(1, 65)]
    assert (found["count"], found["least"]) == (64, 64)
