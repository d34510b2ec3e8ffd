"""Eight threads call one loaded model, as TensorFlow Serving's do, for as long as it is told."""

from __future__ import annotations

import os
import subprocess
import threading
import time

import numpy as np
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
from tests.serving import served

THREADS = 8
BATCHES = (1, 2, 5, 32)
REQUESTS = [(key, batch) for key in served.KEYS for batch in BATCHES]
# Two XLA versions, of which the second one has other polynomials for tanh and exp.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
# What the resident memory may grow by once all programs are compiled: the C library keeps what
# threads have freed. In a minute there are some hundred thousand requests.
GROWTH = 8 << 20

for_a_while = pytest.mark.parametrize(
    "seconds", [5, pytest.param(60, marks=pytest.mark.slow, id="a_minute")]
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "model"
    bridge.save(served.exported(), folder, params=served.parameters(), gradient_order=1)
    return folder


def _resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def _agree(answers):
    """They are what JAX computes."""
    assert answers.keys() == set(REQUESTS)
    for (key, batch), results in answers.items():
        want = served.expected(key, batch)
        assert results.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_allclose(results[name], value, **TOLERANCE)


def test_the_file_has_gradients_and_variables(model):
    loaded = tf.saved_model.load(model)
    assert len(loaded.variables) == 3
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded(served.inputs(2))["norm"] * loaded.params["b"][0])
    assert tape.gradient(loss, loaded.params["b"]) is not None


class _Callers:
    """Threads that send every request in turn; each answer has to be the first one's bits."""

    def __init__(self, calls):
        self._calls = calls
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.answers = {}
        self.failures = []
        self.answered = 0

    def run(self, seconds):
        """Let them call until all programs are compiled, and `seconds` more; what memory grew."""
        threads = [threading.Thread(target=self._send_all, args=(i,)) for i in range(THREADS)]
        for thread in threads:
            thread.start()
        while len(self.answers) < len(REQUESTS) and not self.failures:
            time.sleep(0.01)
        time.sleep(1)
        warm = _resident()
        self._stop.wait(seconds)
        self._stop.set()
        for thread in threads:
            thread.join()
        return _resident() - warm

    def _send_all(self, first):
        answered = 0
        try:
            while not self._stop.is_set():
                request = REQUESTS[(first + answered) % len(REQUESTS)]
                self._judge(request, self._calls(*request))
                answered += 1
        except BaseException as error:  # noqa: BLE001 - of any kind: the test reports it
            self.failures.append(error)
            self._stop.set()
        with self._lock:
            self.answered += answered

    def _judge(self, request, results):
        with self._lock:
            before = self.answers.setdefault(request, results)
        for name, value in before.items():
            assert value.tobytes() == results[name].tobytes(), (request, name)


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
        callers = _Callers(calls)
        growth = callers.run(seconds)
    assert callers.failures == []
    assert callers.answered >= 20 * seconds
    _agree(callers.answers)
    assert growth < GROWTH, f"{growth} bytes in {callers.answered} requests"


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
    _agree(answers)
    assert after - before < GROWTH, f"{after - before} bytes in {answered} requests"
