"""Calls that assign variables: atomic, in every way to call them."""

from __future__ import annotations

import threading

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge

THREADS, STEPS = 8, 50


def step(state, x):
    return {name: value + 1 for name, value in state.items()}, jnp.sum(x)


def look(state):
    return state


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state") / "model"
    params = {"a": jnp.zeros(50_000), "b": jnp.zeros(50_000)}
    args = {"step": "f32[b]", "look": ()}
    model = {"step": step, "look": look}
    bridge.save(model, folder, params=params, args=args, updates={"step": 0})
    return folder


def _eager(loaded):
    return lambda: loaded.step(tf.ones(2)), loaded.look


def _signatures(loaded):
    return lambda: loaded.signatures["step"](x=tf.ones(2)), loaded.signatures["look"]


def _compiled(loaded):
    return tf.function(lambda: loaded.step(tf.ones(2)), jit_compile=True), loaded.look


def _taped(loaded):
    def taped():
        with tf.GradientTape():
            return loaded.step(tf.ones(2))

    return taped, loaded.look


@pytest.mark.parametrize("way", [_eager, _signatures, _compiled, _taped])
def test_threads_lose_no_step_and_see_no_half_of_one(written, way):
    run, read = way(tf.saved_model.load(written))
    run(), read()
    torn: list[object] = []

    def work():
        for _ in range(STEPS):
            run()
            state = {name: np.unique(value) for name, value in read().items()}
            if len(state["a"]) > 1 or not np.array_equal(state["a"], state["b"]):
                torn.append(state)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not torn
    assert read()["a"].numpy()[0] == 1 + THREADS * STEPS


def test_a_session_runs_the_steps_one_after_another(written):
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        definitions = tf.compat.v1.saved_model.load(session, ["serve"], str(written)).signature_def
        placeholder = definitions["step"].inputs["x"].name
        total = definitions["step"].outputs["output_0"].name
        outputs = {key: info.name for key, info in definitions["look"].outputs.items()}
        for _ in range(5):
            assert session.run(total, {placeholder: [1, 2]}) == 3
        state = session.run(outputs)
    for value in state.values():
        np.testing.assert_array_equal(value, np.full(50_000, 5))
