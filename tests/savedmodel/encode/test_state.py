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


def test_a_session_saves_the_state_of_one_moment_while_steps_run(tmp_path):
    state = {f"v{i:03}": jnp.zeros(5000) for i in range(200)}
    params = {"state": state, "weight": jnp.ones(5000)}

    def advance(params, x):
        return {name: v + params["weight"] for name, v in params["state"].items()}, x

    options = {"args": "f32[]", "updates": {"state": 0}, "platforms": ["cpu"]}
    bridge.save(advance, tmp_path / "model", params=params, gradient_order=0, **options)
    seen = set()
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "model"))
        definition, saver = meta.signature_def["serving_default"], meta.saver_def
        feeds = {info.name: 0 for info in definition.inputs.values()}
        fetches = [info.name for info in definition.outputs.values()]
        session.run(fetches, feeds)
        ends = threading.Event()

        def work():
            while not ends.is_set():
                session.run(fetches, feeds)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        prefix = str(tmp_path / "kept")
        for _ in range(40):
            session.run(saver.save_tensor_name, {saver.filename_tensor_name: prefix})
            reader = tf.train.load_checkpoint(prefix)
            shapes = reader.get_variable_to_shape_map()
            values = {name: reader.get_tensor(name)[0] for name, s in shapes.items() if s}
            assert values.pop("params/weight/.ATTRIBUTES/VARIABLE_VALUE") == 1
            assert len(values) == len(state)
            seen.add(frozenset(values.values()))
        ends.set()
        for thread in threads:
            thread.join()
    assert {len(steps) for steps in seen} == {1}
    assert len(seen) > 1
