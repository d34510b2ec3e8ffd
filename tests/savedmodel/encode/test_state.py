"""Calls that assign variables: atomic, in every way to call them."""

from __future__ import annotations

import threading

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64

import bridge
from xla_call_module.dtypes import DTYPES, NARROW_DTYPES
from xla_call_module.errors import DtypeError

THREADS, STEPS = 8, 50


def step(state, x):
    return {name: value + 1 for name, value in state.items()}, jnp.sum(x)


def look(state):
    return state


def write(folder, operations):
    params = {"a": jnp.zeros(50_000), "b": jnp.zeros(50_000)}
    args = {"step": "f32[b]", "look": ()}
    model, updates = {"step": step, "look": look}, {"step": 0}
    bridge.save(model, folder, params=params, args=args, updates=updates, operations=operations)
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write(tmp_path_factory.mktemp("state") / "model", "xla")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write(tmp_path_factory.mktemp("plain") / "model", "tensorflow")


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


WAYS = [
    *(("written", way) for way in (_eager, _signatures, _compiled, _taped)),
    # XLA has no mutexes.
    *(("plain", way) for way in (_eager, _signatures, _taped)),
]


@pytest.mark.parametrize(("file", "way"), WAYS)
def test_threads_lose_no_step_and_see_no_half_of_one(request, file, way):
    run, read = way(tf.saved_model.load(request.getfixturevalue(file)))
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


@pytest.mark.parametrize("file", ["written", "plain"])
def test_a_session_runs_the_steps_one_after_another(request, file):
    path = str(request.getfixturevalue(file))
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        definitions = tf.compat.v1.saved_model.load(session, ["serve"], path).signature_def
        placeholder = definitions["step"].inputs["x"].name
        total = definitions["step"].outputs["output_0"].name
        outputs = {key: info.name for key, info in definitions["look"].outputs.items()}
        for _ in range(5):
            assert session.run(total, {placeholder: [1, 2]}) == 3
        state = session.run(outputs)
    for value in state.values():
        np.testing.assert_array_equal(value, np.full(50_000, 5))


def _next(value):
    """The following value of any dtype."""
    return (
        ~value if value.dtype == bool else (value + jnp.ones((), value.dtype)).astype(value.dtype)
    )


def test_state_of_each_dtype_goes_on_in_every_loader(tmp_path):
    names = [dtype.name for dtype in DTYPES]
    with enable_x64():
        state = {name: jnp.asarray([0, 1], name) for name in names}

        def step(state, x):
            return {name: _next(value) for name, value in state.items()}, x

        options = {"args": "f32[]", "updates": 0, "gradient_order": 0}
        bridge.save(step, tmp_path / "model", params=state, **options)
    loaded = tf.saved_model.load(tmp_path / "model")
    loaded(1.0), loaded(1.0)
    tf.saved_model.save(loaded, tmp_path / "saved", signatures=loaded.signatures)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(tmp_path / "saved"))
        definition = meta.signature_def["serving_default"]
        feeds = {info.name: 1 for info in definition.inputs.values()}
        session.run([info.name for info in definition.outputs.values()], feeds)
        handles = [op for op in session.graph.get_operations() if op.type == "VarHandleOp"]
        values = [
            tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=op.get_attr("dtype"))
            for op in handles
        ]
        found = dict(zip([v.dtype.name for v in values], session.run(values), strict=True))
    with enable_x64():
        signature = bridge.load(tmp_path / "saved").default
        in_jax, _ = signature.exported.call(signature.params, np.float32(1))
        want = {name: _next(_next(_next(value))) for name, value in state.items()}
    assert found.keys() == in_jax.keys() == want.keys()
    for name, value in want.items():
        assert found[name].dtype == in_jax[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)
        np.testing.assert_array_equal(in_jax[name], value)


@pytest.mark.parametrize("dtype", NARROW_DTYPES, ids=lambda dtype: dtype.name)
def test_state_that_tensorflow_has_no_dtype_for_is_refused(dtype, tmp_path):
    if not hasattr(jnp, dtype.name):
        pytest.skip(f"this JAX has no {dtype.name}")
    params = {"w": jnp.ones(4, dtype.name)}
    wider = "u?int8" if "int" in dtype.name else "bfloat16"
    with pytest.raises(DtypeError, match=rf"'w'\] has dtype {dtype.name}.*convert it to {wider}"):
        bridge.save(lambda p, x: (p, x), tmp_path / "m", params=params, args="f32[]", updates=0)


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
