"""A model server: TensorFlow Serving's own where it is installed, and the stand-in everywhere."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow_serving")
pytest.importorskip("grpc")

import bridge
from tests.serving import served
from tests.serving.clients import RequestError
from tests.serving.servers import COMMANDS, running

# Two XLA versions, of which the second one has other polynomials for tanh and exp.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}


def _publish(base, scale, **options):
    params = served.parameters(scale)
    published = bridge.serving.publish(served.exported(), base, params=params, **options)
    return published.version


@pytest.fixture(scope="module", params=COMMANDS)
def command(request):
    found = COMMANDS[request.param]()
    if found is None:
        pytest.skip(f"there is no {request.param} on the PATH")
    return found


@pytest.fixture(scope="module")
def server(command, tmp_path_factory):
    """A server of version 1, with warmup records."""
    folder = tmp_path_factory.mktemp("server")
    assert _publish(folder / "base", 1.0, warmup=(1, 4)) == 1
    with running(command, folder / "base", folder / "log") as server:
        server.wait_for(1)
        yield server


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


def test_a_new_version_takes_over_and_goes_back(command, tmp_path):
    base = tmp_path / "base"
    _publish(base, 1.0)
    with running(command, base, tmp_path / "log") as server:
        server.wait_for(1)
        assert _publish(base, 3.0, warmup=(2,)) == 2
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
