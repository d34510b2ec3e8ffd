"""Models that change go the same way in TensorFlow and in JAX, and from one to the other."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
import tensorflow as tf

import bridge
from savedmodel.read import read

pytest.importorskip("flax.nnx")
pytest.importorskip("equinox")
pytest.importorskip("haiku")
pytest.importorskip("optax")
models = pytest.importorskip("tests.verbs.updating_models")

STEPS = 100
# Where TensorFlow saves and loads, where JAX goes on, and where TensorFlow does again.
SAVED, TO_JAX, BACK = 30, 50, 70


class Run:
    """A model in JAX, one call after another, and its file.

    Attributes:
        path: the file as it was in the beginning.
        states: the arrays of the state after each call.
        outputs: those of each call.
    """

    def __init__(self, idiom, folder):
        self.idiom, self.path = idiom, folder / "written"
        self.save(
            idiom.model, idiom.state, self.path, platforms=["cpu"], args=idiom.options["args"]
        )
        jitted = {key: idiom.jit(function) for key, function in idiom.functions.items()}
        state, self.states, self.outputs = idiom.state, [], []
        for i in range(STEPS):
            key, args = idiom.calls(i)
            state, outputs = idiom.merge(state, jitted[key](state, *args))
            self.states.append(_arrays(state))
            self.outputs.append(outputs)

    def save(self, model, state, path, **options):
        updates = self.idiom.options["updates"]
        bridge.save(model, path, params=state, updates=updates, **options)

    def check(self, i, outputs, state):
        """Compare what a call has returned, and the arrays of the state after it."""
        same = np.testing.assert_allclose
        tolerance = {"rtol": 0} if self.idiom.is_exact else {"rtol": 2e-4, "atol": 2e-5}
        wanted = jax.tree.leaves(self.outputs[i])
        if wanted:
            for got, want in zip(jax.tree.leaves(outputs), wanted, strict=True):
                same(got, want, **tolerance)
        for got, want in zip(state, self.states[i], strict=True):
            assert got.dtype == want.dtype
            same(got, want, **tolerance)

    def run_in_tensorflow(self, loaded, numbers):
        for i in numbers:
            self.check(i, self.call(loaded, i), _variables(loaded))

    def call(self, loaded, i):
        key, args = self.idiom.calls(i)
        function = loaded if key == models.DEFAULT else getattr(loaded, key)
        return function(*map(tf.constant, args))


def _arrays(state):
    """The arrays of a state, in the order of their paths as TensorFlow has them."""
    by_path = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if isinstance(leaf, (jax.Array, np.ndarray)):
            is_key = jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
            name = jax.tree_util.keystr(path, simple=True, separator="/").replace("~", "_")
            by_path[name] = np.asarray(jax.random.key_data(leaf) if is_key else leaf)
    return [by_path[path] for path in sorted(by_path)]


def _variables(loaded):
    by_name = {variable.name: variable for variable in loaded.variables}
    return [by_name[name].numpy() for name in sorted(by_name)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By the name of an idiom its run in JAX, done once."""
    return functools.cache(
        lambda name: Run(models.IDIOMS[name](), tmp_path_factory.mktemp("updates"))
    )


@pytest.fixture(params=models.IDIOMS)
def run(request, runs):
    return runs(request.param)


def test_a_hundred_steps_from_one_framework_to_the_other(run, tmp_path):
    loaded = tf.saved_model.load(run.path)
    run.run_in_tensorflow(loaded, range(SAVED))
    tf.saved_model.save(loaded, tmp_path / "saved", signatures=loaded.signatures)
    loaded = tf.saved_model.load(tmp_path / "saved")
    run.run_in_tensorflow(loaded, range(SAVED, TO_JAX))
    tf.saved_model.save(loaded, tmp_path / "to_jax", signatures=loaded.signatures)

    signatures = bridge.load(tmp_path / "to_jax").signatures
    exporteds = {key: signatures[key].exported for key in run.idiom.functions}
    state = next(iter(signatures.values())).params
    for i in range(TO_JAX, BACK):
        key, args = run.idiom.calls(i)
        state, outputs = run.idiom.merge(state, exporteds[key].call(state, *args))
        run.check(i, outputs, _arrays(state))

    run.save(exporteds, state, tmp_path / "back")
    run.run_in_tensorflow(tf.saved_model.load(tmp_path / "back"), range(BACK, STEPS))


def test_runs_of_a_compiled_step_are_alike_bit_for_bit(run):
    results = []
    for compiled in (False, True, True):
        loaded = tf.saved_model.load(run.path)
        functions = {}
        for i in range(STEPS):
            key, args = run.idiom.calls(i)
            if key not in functions:
                call = loaded.signatures[key]
                functions[key] = tf.function(lambda _c=call, **kw: _c(**kw), jit_compile=compiled)
            names = sorted(loaded.signatures[key].structured_input_signature[1])
            outputs = functions[key](**dict(zip(names, map(tf.constant, args), strict=True)))
        results.append([*_variables(loaded), *(outputs[name].numpy() for name in sorted(outputs))])
    for other in results[1:]:
        for got, want in zip(other, results[0], strict=True):
            np.testing.assert_array_equal(got, want)


# Not here: what no framework tells apart, which `trainable=` is for.
TRAINED = {
    "flax TrainState": "params/b params/w",
    "dataclass": "params/b params/w",
    "named tuple": "params/b params/w",
    "tuple": "0/b 0/w",
    "nnx training": "0/norm/bias/value 0/norm/scale/value 0/out/bias/value 0/out/kernel/value",
    "equinox state": "0/norm/bias 0/norm/weight 0/out/bias 0/out/weight",
    "typed key": "",
}


@pytest.mark.parametrize("name", TRAINED)
def test_states_of_optimizers_and_modules_are_not_trainable(name, tmp_path):
    idiom = models.IDIOMS[name]()
    options = {"platforms": ["cpu"], "gradient_order": 0, **idiom.options}
    bridge.save(idiom.model, tmp_path / "model", params=idiom.state, **options)
    variables = read(tmp_path / "model").variables
    trained = sorted(variable.name for variable in variables if variable.trainable)
    assert trained == TRAINED[name].split()


def test_the_same_in_a_session(run):
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(run.path))
        handles = [op for op in session.graph.get_operations() if op.type == "VarHandleOp"]
        variables = [
            tf.raw_ops.ReadVariableOp(resource=op.outputs[0], dtype=op.get_attr("dtype"))
            for op in sorted(handles, key=lambda op: op.get_attr("shared_name"))
        ]
        for i in range(STEPS):
            key, args = run.idiom.calls(i)
            definition = meta.signature_def[key]
            names = sorted(definition.inputs)
            feed = {definition.inputs[n].name: value for n, value in zip(names, args, strict=True)}
            got = session.run({k: info.name for k, info in definition.outputs.items()}, feed)
            run.check(i, got, session.run(variables))


def test_a_greedy_decode_has_the_tokens_of_jax(tmp_path):
    state = {"weights": models.decoder_weights(16), "cache": models.empty_cache(80, 16)}
    functions, options = (
        {"prefill": models.prefill, "decode": models.decode},
        models.decoder().options,
    )
    bridge.save(functions, tmp_path / "decoder", params=state, platforms=["cpu"], **options)
    loaded = tf.saved_model.load(tmp_path / "decoder")
    got = [loaded.prefill(tf.constant([3, 1]))]
    token, cache = jax.jit(models.prefill)(state, np.array([3, 1], np.int32))
    want, decode = [token], jax.jit(models.decode)
    for _ in range(64):
        got.append(loaded.decode(got[-1]))
        token, cache = decode({**state, "cache": cache}, token)
        want.append(token)
    assert list(map(int, got)) == list(map(int, want))
    assert len(set(map(int, want))) > 2
    for name, weight in state["weights"].items():
        np.testing.assert_array_equal(loaded.params["weights"][name], weight)
