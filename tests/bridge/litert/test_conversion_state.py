"""State that the interpreter keeps: steps against JAX, what is shared, and what is refused."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.litert.litert_model import bind_signatures
from bridge.litert.runtime import Runtime, compare_model
from bridge.verifying.bound_trials import make_trials
from tests.bridge.litert.signatures import run_compiled
from xla_call_module.errors import StructureError, UnsupportedError

interpreter = pytest.importorskip("ai_edge_litert.interpreter")

PARAMS = {"w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2), "n": np.int32(3)}
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
Y = np.ones((2, 2), np.float32)


def train(state, x, y):
    def loss(w):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    value, gradient = jax.value_and_grad(loss)(state["w"])
    return {"loss": value, "old": state["n"]}, {"w": state["w"] - gradient, "n": state["n"] + 1}


def predict(state, x):
    return {"score": jnp.tanh(x @ state["w"])}


def reset(state):
    return {"n": jnp.int32(0), "w": jnp.zeros_like(state["w"])}


FUNCTIONS = {"train": train, "predict": predict, "reset": reset}
OPTIONS = {
    "params": PARAMS,
    "args": {"train": "f32[b,3], f32[b,2]", "predict": "f32[b,3]", "reset": ()},
    "updates": {"train": 1, "reset": 0},
}
CALLS = ["train", "predict", "train", "train", "predict", "reset", "predict", "train", "predict"]
GIVEN = {"train": {"x": X, "y": Y}, "predict": {"x": X}, "reset": {}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("state") / "model.tflite"
    written = bridge.save_litert(FUNCTIONS, path, **OPTIONS)
    assert [one.assigned for one in written.signatures] == [("n", "w"), (), ("n", "w")]
    assert "train(x: float32[b,3], y: float32[b,2]) -> " in str(written)
    assert "assigns 2 variables" in str(written)
    return path


def expected():
    state, results = PARAMS, []
    for key in CALLS:
        if key == "train":
            returned, state = train(state, X, Y)
        elif key == "predict":
            returned = predict(state, X)
        else:
            returned, state = {"updated": True}, reset(state)
        results.append(returned)
    return results


def check(found):
    for got, wanted in zip(found, expected(), strict=True):
        assert got.keys() == wanted.keys()
        for name, array in wanted.items():
            np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernels", ["delegate", "builtin", "reference"])
def test_signatures_share_what_is_kept(path, kernels, litert_process):
    with Runtime(path, kernels=kernels, process=litert_process) as runtime:
        for _ in range(2):
            check([runtime.run(GIVEN[key], signature=key) for key in CALLS])
            runtime.restart()


def test_a_compiled_model_keeps_it_too(tmp_path):
    path = tmp_path / "model.tflite"
    fixed = {"train": "f32[2,3], f32[2,2]", "predict": "f32[2,3]"}
    functions = {key: FUNCTIONS[key] for key in fixed}
    options = {**OPTIONS, "args": fixed, "updates": {"train": 1}}
    bridge.save_litert(functions, path, **options, verify=False)
    calls = ["train", "predict", "train", "train", "predict"]
    found = run_compiled(path, {"x": X, "y": Y}, {"loss": 1, "score": 4}, calls)
    for got, wanted in zip(found, expected(), strict=False):
        for name, value in got.items():
            np.testing.assert_allclose(value, np.ravel(wanted[name]), rtol=1e-5)
    assert [[*got] for got in found] == [["loss" if c == "train" else "score"] for c in calls]


@pytest.fixture(scope="module")
def trials():
    bound = bind_signatures(
        FUNCTIONS, signatures=None, platform="cpu", order=0, inputs=None, outputs=None, **OPTIONS
    )
    return list(make_trials(bound))


def test_steps_are_verified_one_after_the_other(path, trials, tmp_path, litert_process):
    def problems(path):
        rows = compare_model(str(path), trials, process=litert_process)
        return [row.inputs for row in rows if row.problem]

    assert [trial.step for trial in trials][:9] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    titles = [(trial.signature, trial.title) for trial in trials]
    assert ("train", "random, b=1, step 1") in titles
    assert ("predict", "random, b=17, step 8") in titles
    assert not problems(path)
    first = np.float32(PARAMS["w"][0, 0]).tobytes()
    other = tmp_path / "other.tflite"
    content = path.read_bytes()
    assert content.count(PARAMS["w"].tobytes()) == 1
    at = content.index(PARAMS["w"].tobytes())
    other.write_bytes(content[:at] + np.float32(7).tobytes() + content[at + len(first) :])
    assert problems(other)


def advanced(state):
    """Return a state of which every leaf is another one, whatever its dtype."""
    key = jax.random.split(state["key"])[0]
    rest = {name: a for name, a in state.items() if name not in ("key", "a", "b")}
    new = {n: ~a if a.dtype == bool else (a + a.astype(a.dtype)) for n, a in rest.items()}
    return {**new, "key": key, "a": state["b"], "b": state["a"]}


def test_every_dtype_and_what_changes_places(litert_process):
    dtypes = ["float32", "float16", "bfloat16", "int32", "int8", "uint8", "int16", "uint32", "bool"]
    arrays = {name: np.arange(2).astype(jnp.dtype(name)) for name in dtypes}
    state = {**arrays, "scalar": np.float32(2), "empty": np.zeros((0, 3), np.float32)}
    state |= {"a": np.float32([1, 2]), "b": np.float32([3, 4])}
    state["key"] = jax.random.key_data(jax.random.key(3))

    def step(state):
        return state, advanced(state)

    model = bridge.to_litert(step, params=state, args=(), updates=1)
    with Runtime(model, process=litert_process) as runtime:
        assert {variable.name for variable in runtime.contents.variables} == set(state)
        runs = [runtime.run({}) for _ in range(4)]
    for found in runs:
        for name, array in jax.jit(lambda state: state)(state).items():
            np.testing.assert_array_equal(found[name], np.asarray(array).astype(found[name].dtype))
        state = jax.jit(advanced)(state)


def turned(state, x):
    return x, {"z": state["z"] * state["z"].dtype.type(1j)}


def test_a_complex_variable_is_its_parts(litert_process):
    state = {"z": np.complex64([1 + 2j, 3])}
    model = bridge.to_litert(
        lambda state, x: ({"z": state["z"], "x": x}, turned(state, x)[1]),
        params=state, args="f32[2]", updates=1,
    )  # fmt: skip
    with Runtime(model, process=litert_process) as runtime:
        found = [runtime.run({"x": X[0, :2]})["z"] for _ in range(3)]
    wanted = [state["z"] * 1j**step for step in range(3)]
    np.testing.assert_array_equal(found, [np.stack([z.real, z.imag], -1) for z in wanted])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    bridge.save(FUNCTIONS, folder, **OPTIONS)
    return folder


@pytest.mark.parametrize("source", ["path", "loaded", "signatures"])
def test_a_savedmodel_says_what_it_assigns(saved, source, litert_process):
    model = {
        "path": lambda: saved,
        "loaded": lambda: bridge.load(saved),
        "signatures": lambda: dict(bridge.load(saved).signatures),
    }[source]()
    with Runtime(bridge.to_litert(model), process=litert_process) as runtime:
        check([runtime.run(GIVEN[key], signature=key) for key in CALLS])


def test_an_exported_function_says_it_by_updates(litert_process):
    x, y = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (X, Y))
    exported = jax.export.export(jax.jit(train))(PARAMS, x, y)
    model = bridge.to_litert(exported, params=PARAMS, updates=1, outputs={"loss": "error"})
    with Runtime(model, process=litert_process) as runtime:
        state = PARAMS
        for _ in range(3):
            returned, state = train(state, X, Y)
            (signature,) = runtime.contents.signatures
            names = [tensor.name for tensor in signature.inputs]
            found = runtime.run(dict(zip(names, (X, Y), strict=True)))
            np.testing.assert_allclose(found["error"], returned["loss"], rtol=1e-5)


# Where XLA optimizes nothing, JAX has NaN there.
@pytest.mark.filterwarnings("ignore:LiteRT differs from JAX where inputs are huge")
def test_state_as_arguments(saved, litert_process):
    model = bridge.to_litert(saved, state="arguments", signatures=["train", "predict"])
    with Runtime(model, process=litert_process) as runtime:
        assert not runtime.contents.variables
        step, _ = runtime.contents.signatures
        assert [t.name for t in step.inputs] == ["n", "w", "x", "y"]
        assert [t.name for t in step.outputs] == ["loss", "old", "new_n", "new_w"]
        state = PARAMS
        for _ in range(2):
            _, new = train(state, X, Y)
            found = runtime.run({**state, "x": X, "y": Y}, signature="train")
            state = {name: found[f"new_{name}"] for name in state}
            np.testing.assert_allclose(state["w"], new["w"], rtol=1e-5)


def test_what_nothing_assigns_is_constant(saved, litert_process):
    with Runtime(bridge.to_litert(saved, signatures="predict"), process=litert_process) as runtime:
        assert not runtime.contents.variables
    gradient = bridge.to_litert(saved, signatures="train", gradient_order=1)
    with Runtime(gradient, process=litert_process) as runtime:
        assert not runtime.contents.variables


@pytest.mark.parametrize("quantize", ["float16", "dynamic_int8"])
def test_quantized_models_keep_it(quantize, tmp_path, litert_process):
    pytest.importorskip("ai_edge_quantizer")
    options = {**OPTIONS, "args": {**OPTIONS["args"], "train": "f32[2,3], f32[2,2]"}}
    path = tmp_path / "model.tflite"
    calls = {"train": [GIVEN["train"]] * 3, "predict": [GIVEN["predict"]] * 3}
    bridge.save_litert(FUNCTIONS, path, quantize=quantize, calibration=calls, **options)
    with Runtime(path, process=litert_process) as runtime:
        before = runtime.run({"x": X}, signature="predict")["score"]
        runtime.run(GIVEN["train"], signature="train")
        assert np.abs(runtime.run({"x": X}, signature="predict")["score"] - before).max() > 1e-3


def test_wrong_options(saved):
    with pytest.raises(StructureError, match="state is 'kept'; expected 'variables' or 'argum"):
        bridge.to_litert(saved, state="kept")
    with pytest.raises(StructureError, match="a SavedModel says itself what it assigns"):
        bridge.to_litert(bridge.load(saved).signatures["train"], updates=1)
    with pytest.raises(StructureError, match="updates has 'other'; the signatures are train"):
        bridge.to_litert(FUNCTIONS, **{**OPTIONS, "updates": {"other": 0}})
    with pytest.raises(StructureError, match="updates has position 2"):
        bridge.to_litert(train, params=PARAMS, args="f32[2,3], f32[2,2]", updates=2)
    with pytest.raises(
        UnsupportedError, match=r"train, reset assigns variables.*state='arguments'"
    ):
        bridge.to_litert(saved, quantize="int8", calibration={"predict": [X]})
    both = [bridge.load(saved).signatures["train"] for _ in range(2)]
    with pytest.raises(StructureError, match=r"Several of the files .*state='arguments'"):
        bridge.to_litert({"one": both[0], "two": both[1]})
