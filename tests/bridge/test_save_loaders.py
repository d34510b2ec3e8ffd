"""Files that a process without TensorFlow wrote, in every program that loads SavedModels."""

from __future__ import annotations

import functools
import pickle
import shutil
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from absl.testing import flagsaver
from tensorflow.python.tools import saved_model_cli

import bridge
from tests.bridge.absence import run_without_tensorflow
from tests.bridge.c_programs import build, encode_count, encode_request, encode_text, run_in_c
from tests.bridge.models import BY_NAME, CASES, ROUNDING
from tests.bridge.pytrees import (
    by_path,
    named_inputs,
    named_results,
    physical,
    read_meta_graph,
    read_paths,
    structured,
    tensors,
)
from tests.jax_versions import bits_of
from tests.tensorflow_modes import run_session
from xla_call_module.dtypes import dtype_from_name, dtype_from_tensorflow

pytestmark = pytest.mark.usefixtures("on_the_cpu")

keras = pytest.importorskip("keras")

KEYS = [(case.name, key) for case in CASES for key in case.functions]

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_signature = pytest.mark.parametrize(("name", "key"), KEYS)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The folder with a SavedModel for each case."""
    folder = tmp_path_factory.mktemp("models")
    code = "import sys; from tests.bridge.models import write_all; write_all(sys.argv[1])"
    run_without_tensorflow(code, folder)
    return folder


@pytest.fixture(scope="module")
def load(models):
    """A case as TensorFlow loads it, once for all tests that leave it as it is."""
    return functools.cache(lambda name: tf.saved_model.load(models / name))


def _agree(case, got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if not case.tolerance or want.dtype.kind in "biu":
        assert bits_of(got) == bits_of(want)
        return
    assert case.reason, "a tolerance has a reason"
    bound = case.tolerance * np.abs(want).max(initial=0)
    np.testing.assert_allclose(got, want, rtol=0, atol=bound)


def _all_agree(case, got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        _agree(case, got[name], value)


class TestNames:
    """The flat names and the specs of the signatures, which every other test here goes by."""

    @each_signature
    def test_every_leaf_has_a_name(self, models, name, key):
        case = BY_NAME[name]
        inputs, outputs = read_paths(models / name, key)
        leaves = jax.tree.leaves((case.args, dict(case.kwargs)))
        assert len(set(inputs.values())) == len(inputs) == len(leaves)
        assert set(outputs.values()) == set(by_path("result", case.results(key)))

    @each_signature
    def test_the_signature_definition_has_the_specs(self, models, name, key):
        case, folder = BY_NAME[name], models / name
        definition = read_meta_graph(folder).signature_def[key]
        assert definition.method_name == "tensorflow/serving/predict"
        for infos, arrays in (
            (definition.inputs, named_inputs(case, folder, key)),
            (definition.outputs, named_results(case, folder, key)),
        ):
            assert infos.keys() == arrays.keys()
            for tensor, array in arrays.items():
                dims = [dim.size for dim in infos[tensor].tensor_shape.dim]
                assert dtype_from_tensorflow(infos[tensor].dtype, where=name).numpy == array.dtype
                assert len(dims) == array.ndim
                assert all(dim in (-1, size) for dim, size in zip(dims, array.shape, strict=True))
                assert case.polymorphic is not None or dims == list(array.shape)


def _run_signature(folder, key, feeds):
    loaded = tf.saved_model.load(folder)
    return loaded.signatures[key](**{name: tf.constant(value) for name, value in feeds.items()})


class TestSignatures:
    """The flat functions that serving programs call."""

    @pytest.mark.parametrize("run", [_run_signature, run_session], ids=["eager", "session"])
    @each_signature
    def test_tensorflow(self, models, name, key, run):
        case, folder = BY_NAME[name], models / name
        got = run(folder, key, named_inputs(case, folder, key))
        _all_agree(case, got, named_results(case, folder, key))


def _arguments(case):
    """The arguments as tensors."""
    return tensors(case.args), tensors(case.kwargs)


def _structures_agree(case, got, want):
    """Containers of the same kinds, with agreeing leaves."""
    match want:
        case dict():
            assert isinstance(got, dict)
            assert got.keys() == want.keys()
            pairs = [(got[key], child) for key, child in want.items()]
        case tuple() if hasattr(want, "_fields"):
            assert type(got).__name__ == type(want).__name__
            assert got._fields == want._fields
            pairs = zip(got, want, strict=True)
        case list() | tuple():
            assert type(got) is type(want)
            pairs = zip(got, want, strict=True)
        case None:
            assert got is None
            return
        case _:
            _agree(case, got, want)
            return
    for ours, theirs in pairs:
        _structures_agree(case, ours, theirs)


def _traced(function, **options):
    """A tf.function that calls a loaded one with whatever arguments it gets."""
    call = lambda *args, **kwargs: function(*args, **kwargs)  # noqa: E731
    return tf.function(call, autograph=False, **options)


MODES = {
    "eager": lambda function: function,
    "graph": _traced,
    "compiled": functools.partial(_traced, jit_compile=True),
}


class TestObjects:
    """What tf.saved_model.load returns: functions with pytrees, and variables."""

    @pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
    @each_signature
    def test_functions_take_and_return_pytrees(self, load, name, key, mode):
        case = BY_NAME[name]
        args, kwargs = _arguments(case)
        got = mode(getattr(load(name), key))(*args, **kwargs)
        _structures_agree(case, got, structured(case.results(key)))

    @each_case
    def test_the_root_is_callable(self, load, case):
        args, kwargs = _arguments(case)
        got = load(case.name)(*args, **kwargs)
        _structures_agree(case, got, structured(case.results(case.default)))

    @each_case
    def test_variables(self, load, case):
        loaded = load(case.name)
        with case.context():
            params = [physical(leaf) for leaf in jax.tree.leaves(case.leading())]
        assert len(loaded.variables) == len(params)
        for variable, value in zip(loaded.variables, params, strict=True):
            assert variable.numpy().tobytes() == value.tobytes()
            assert (variable.dtype.as_numpy_dtype, variable.shape) == (value.dtype, value.shape)
            is_float = dtype_from_name(str(value.dtype), where="").differentiable
            assert variable.trainable == is_float
        trainable = [variable for variable in loaded.variables if variable.trainable]
        assert [id(v) for v in loaded.trainable_variables] == [id(v) for v in trainable]

    def test_params_are_the_pytree(self, load):
        case = BY_NAME["containers"]
        loaded = load(case.name)
        params = loaded.params
        (expected,) = case.leading()
        assert set(params) == set(expected)
        assert params["layers"][1]["bias"].numpy().tolist() == [-3, -2]
        assert (params["pair"][0].numpy(), params["point"].y.numpy()) == (0.5, 3)
        assert (params["ordered"]["a"].numpy(), params["numbers"]["10"].numpy()) == (2, 10)
        assert params["a/b.c"].numpy() == 7
        assert params["a/b.c"] is loaded.variables[0]

    def test_signatures_share_the_variables(self, models):
        case = BY_NAME["two_signatures"]
        loaded = tf.saved_model.load(models / case.name)
        (x,), _ = _arguments(case)
        loaded.params["w"].assign(tf.zeros((3, 2)))
        assert loaded.loss(x)["loss"].numpy() == 0
        assert loaded.signatures["loss"](x=x)["loss"].numpy() == 0
        _agree(case, loaded.predict(x), np.tanh([[0.5, -0.5]] * 4, dtype=np.float32))

    @each_case
    def test_tensorflow_saves_it_again(self, models, load, case, tmp_path):
        loaded = load(case.name)
        tf.saved_model.save(loaded, tmp_path / "again", signatures=loaded.signatures)
        again = tf.saved_model.load(tmp_path / "again")
        args, kwargs = _arguments(case)
        for key in case.functions:
            want = case.results(key)
            _structures_agree(case, getattr(again, key)(*args, **kwargs), structured(want))
            arrays = named_inputs(case, models / case.name, key)
            results = named_results(case, models / case.name, key)
            for run in (_run_signature, run_session):
                _all_agree(case, run(tmp_path / "again", key, arrays), results)


@pytest.fixture(scope="module")
def c_program(tmp_path_factory):
    return build("load_and_run", tmp_path_factory.mktemp("c_api"))


def _encode_run(folder, key, feeds, *, again=False):
    """A run of a file; again in the session of the run before."""
    definition = read_meta_graph(folder).signature_def[key]
    return encode_text("" if again else str(folder)) + encode_request(definition, feeds)


@pytest.fixture(scope="module")
def c_answers(c_program, models, tmp_path_factory):
    """For each signature the results that the C program got, or its error."""
    folder = tmp_path_factory.mktemp("c_api")
    runs = [
        _encode_run(models / name, key, named_inputs(BY_NAME[name], models / name, key))
        for name, key in KEYS
    ]
    names = [sorted(read_paths(models / name, key)[1]) for name, key in KEYS]
    return dict(zip(KEYS, run_in_c(c_program, folder, runs, names), strict=True))


class TestCApi:
    """TF_LoadSessionFromSavedModel, as TensorFlow Serving loads a file."""

    @each_signature
    def test_run(self, c_answers, models, name, key):
        error, results = c_answers[name, key]
        assert error == ""
        _all_agree(BY_NAME[name], results, named_results(BY_NAME[name], models / name, key))

    def test_an_error_is_seen(self, c_program, models, tmp_path):
        (tmp_path / "requests").write_bytes(
            encode_count(1) + _encode_run(models / "unused", "serving_default", {})
        )
        subprocess.run([c_program, tmp_path / "requests", tmp_path / "answers"], check=True)
        assert b"must feed a value for placeholder" in (tmp_path / "answers").read_bytes()


def _command_line(*arguments):
    """`saved_model_cli`, in this process."""
    with flagsaver.flagsaver():
        saved_model_cli.create_parser().parse_args(list(map(str, arguments))).func()


def _read_npy(path, like):
    """An array of known dtype and shape: `np.load` does not know the dtypes of ml_dtypes."""
    head, _, data = path.read_bytes().partition(b"\n")
    assert f"'shape': {like.shape}".encode() in head
    return np.frombuffer(data, like.dtype).reshape(like.shape)


class TestCommandLine:
    """saved_model_cli show and run."""

    @each_case
    def test_show(self, models, case, capsys):
        _command_line("show", "--dir", models / case.name, "--all")
        text = capsys.readouterr().out
        for key in case.functions:
            assert f"signature_def['{key}']" in text
            assert f"Function Name: '{key}'" in text
        for key in case.functions:
            for name in (
                *named_inputs(case, models / case.name, key),
                *read_paths(models / case.name, key)[1],
            ):
                assert f"['{name}'] tensor_info" in text

    @each_signature
    def test_run(self, models, name, key, tmp_path):
        case, folder = BY_NAME[name], models / name
        inputs = []
        for tensor, array in named_inputs(case, folder, key).items():
            # A pickle, since the format of `np.save` has no dtypes but numpy's own.
            (tmp_path / f"{tensor}.pickle").write_bytes(pickle.dumps(array))
            inputs.append(f"{tensor}={tmp_path / tensor}.pickle")
        command = ["run", "--dir", folder, "--tag_set", "serve", "--signature_def", key]
        command += ["--inputs", ";".join(inputs), "--outdir", tmp_path / "out"]
        if not inputs:
            with pytest.raises(AttributeError, match="At least one of --inputs"):
                _command_line(*command)
            return
        _command_line(*command)
        want = named_results(case, folder, key)
        for tensor, array in want.items():
            _agree(case, _read_npy(tmp_path / "out" / f"{tensor}.npy", array), array)

    def test_the_command_itself(self, models, preloaded_python):
        command = [preloaded_python, "-m", "tensorflow.python.tools.saved_model_cli", "run"]
        command += ["--dir", str(models / "no_parameters"), "--tag_set", "serve"]
        command += ["--signature_def", "serving_default"]
        command += ["--input_exprs", "x=[1.0, 2.0, 3.0];y=[4.0, 5.0, 6.0]"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "output_0:\n[5. 7. 9.]" in done.stdout
        assert "output_1:\n[ 4. 10. 18.]" in done.stdout


class _Layer(keras.layers.TFSMLayer):
    """Keras's own passes one positional argument on, and says to subclass it for several."""

    def call(self, *args, **kwargs):
        return self.call_endpoint_fn(*args, **kwargs)


class TestKeras:
    """keras.layers.TFSMLayer, as a layer on its own and in a model."""

    @each_signature
    def test_a_layer_with_any_arguments(self, models, name, key):
        case = BY_NAME[name]
        args, kwargs = _arguments(case)
        layer = _Layer(models / name, call_endpoint=key)
        # Keras casts floating-point arguments to the layer's dtype otherwise.
        layer.autocast = False
        _structures_agree(case, layer(*args, **kwargs), structured(case.results(key)))

    @pytest.mark.parametrize(
        "name", ["composites", "many_variables", "scan", "top_k", "while_loop"]
    )
    def test_a_layer_with_one_argument(self, models, name):
        case = BY_NAME[name]
        (x,), _ = _arguments(case)
        layer = keras.layers.TFSMLayer(models / name, call_endpoint=case.default)
        assert len(layer.weights) == len(jax.tree.leaves(case.leading()))
        _structures_agree(case, layer(x), structured(case.results()))

    def test_keras_casts_to_the_dtype_of_the_layer(self, models):
        case = BY_NAME["bfloat16"]
        (x,), _ = _arguments(case)
        layer = keras.layers.TFSMLayer(models / case.name, call_endpoint="serving_default")
        with pytest.raises(ValueError, match="Could not find matching concrete function"):
            layer(x)
        layer = keras.layers.TFSMLayer(
            models / case.name, call_endpoint="serving_default", dtype="bfloat16"
        )
        _structures_agree(case, layer(x), structured(case.results()))

    def test_a_layer_has_one_argument(self, models):
        args, _ = _arguments(BY_NAME["no_parameters"])
        layer = keras.layers.TFSMLayer(models / "no_parameters", call_endpoint="serving_default")
        with pytest.raises(TypeError, match="missing a required argument"):
            layer(args[0])

    def test_a_model_is_trained(self, models):
        case = BY_NAME["two_signatures"]
        (x,), (params,) = case.args, case.leading()
        y = np.full((4, 2), 0.25, np.float32)
        layer = keras.layers.TFSMLayer(models / case.name, call_endpoint="predict")
        model = keras.Sequential([keras.Input((3,)), layer])
        model.compile(keras.optimizers.SGD(0.5), "mse")
        model.fit(x, y, batch_size=4, epochs=1, verbose=0)

        predict = case.functions["predict"]
        gradient = jax.grad(lambda params: ((predict(params, x) - y) ** 2).mean())(params)
        for weight, old, slope in zip(
            layer.weights, *map(jax.tree.leaves, (params, gradient)), strict=True
        ):
            want = old - 0.5 * slope
            assert not np.array_equal(want, old)
            np.testing.assert_allclose(weight.numpy(), want, rtol=0, atol=1e-6, err_msg=ROUNDING)


# Why TensorFlow 2.21's TFLite converter refuses a file, or its interpreter a model.
TFLITE_CONVERTER = {
    "all_dtypes": "failed to legalize operation 'tfl.reverse_v2'",
    "bfloat16": "failed to legalize operation 'tfl.batch_matmul'",
    "bytes": "failed to legalize operation 'tfl.div'",
    "complex": "'tf.Complex' op is neither a custom op nor a flex op",
    "float8": "Failed to convert element type 'f8E.*': Unsupported type",
    "keys": "failed to legalize operation 'tfl.right_shift'",
    "buckets_of_all_dtypes": "failed to legalize operation .tfl.broadcast_to|tf.ConcatV2",
}
TFLITE_INTERPRETER = {"empty": "Invalid tensor size"}


class TestTfLite:
    """The TFLite converter and its interpreter."""

    @each_case
    def test_convert_and_run(self, models, case):
        folder = models / case.name
        converter = tf.lite.TFLiteConverter.from_saved_model(
            str(folder), signature_keys=list(case.functions)
        )
        if case.name in TFLITE_CONVERTER:
            with pytest.raises(Exception, match=TFLITE_CONVERTER[case.name]):
                converter.convert()
            return
        model = converter.convert()
        for key in case.functions:
            if case.name in TFLITE_INTERPRETER:
                with pytest.raises(ValueError, match=TFLITE_INTERPRETER[case.name]):
                    _run_tflite(model, key, named_inputs(case, folder, key))
                continue
            got = _run_tflite(model, key, named_inputs(case, folder, key))
            _all_agree(case, got, named_results(case, folder, key))


def _interpreter(model):
    with pytest.warns(UserWarning, match="tf.lite.Interpreter is deprecated"):
        return tf.lite.Interpreter(model_content=model)


def _run_tflite(model, key, feeds):
    return _interpreter(model).get_signature_runner(key)(**feeds)


STATE = {"w": np.arange(3, dtype=np.float32), "count": np.int32(0)}
BATCH = np.array([[1, 2, 3], [2, 0, 1]], np.float32)


def _train(state, x):
    """A step down the gradient; the loss is that before it."""
    loss, gradient = jax.value_and_grad(lambda w: jnp.tanh(x @ w).mean())(state["w"])
    return {"w": state["w"] - 0.5 * gradient, "count": state["count"] + 1}, {"loss": loss}


def _predict(state, x):
    return {"y": x @ state["w"], "steps": state["count"]}


def _reset(state):
    return {"w": jnp.full(3, 0.25), "count": jnp.zeros((), jnp.int32)}


def _in_jax(keys):
    """The outputs of signatures that are called one after another."""
    state, found = STATE, []
    for key in keys:
        if key == "predict":
            found.append(_predict(state, BATCH))
        elif key == "reset":
            state = _reset(state)
            found.append({"updated": np.True_})
        else:
            state, outputs = jax.jit(_train)(state, BATCH)
            found.append(outputs)
    return found


def _equal(found, keys):
    for got, want in zip(found, _in_jax(keys), strict=True):
        assert got.keys() == want.keys()
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-5, err_msg=f"{ROUNDING} {name}")


STEPS = ["predict", "train", "train", "predict", "reset", "train", "predict"]


@pytest.fixture(scope="module")
def trainable(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state") / "model"
    model = {"train": _train, "predict": _predict, "reset": _reset}
    args = {"train": "f32[b,3]", "predict": "f32[b,3]", "reset": ()}
    bridge.save(model, folder, params=STATE, args=args, updates={"train": 0, "reset": 0})
    return folder


def _feeds(key):
    return {} if key == "reset" else {"x": BATCH}


class TestState:
    """Signatures that assign variables, one after another in each of these programs."""

    def test_a_session_saves_what_every_loader_reads(self, trainable, tmp_path):
        """By the operations of the file, as a program in C has them."""
        place = tmp_path / "trained"
        (place / "variables").mkdir(parents=True)
        shutil.copy(trainable / "saved_model.pb", place)
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            graph = tf.compat.v1.saved_model.load(session, ["serve"], str(trainable))
            saver = graph.saver_def

            def run(key):
                definition = graph.signature_def[key]
                fetches = {name: info.name for name, info in definition.outputs.items()}
                feeds = {definition.inputs[n].name: v for n, v in _feeds(key).items()}
                return session.run(fetches, feeds)

            _equal([run(key) for key in STEPS[:4]], STEPS[:4])
            prefix = {saver.filename_tensor_name: str(place / "variables" / "variables")}
            session.run(saver.save_tensor_name, prefix)
            run("train")
            session.run(saver.restore_op_name, prefix)
            found = run("predict")
        want = _in_jax(STEPS[:4])[-1]
        assert (found["steps"], want["steps"]) == (2, 2)
        np.testing.assert_allclose(found["y"], want["y"], rtol=1e-5)
        loaded = tf.saved_model.load(place)
        np.testing.assert_allclose(loaded.predict(BATCH)["y"], want["y"], rtol=1e-5)
        fresh = tf.saved_model.load(trainable)
        tf.train.Checkpoint(fresh).read(str(place / "variables" / "variables")).assert_consumed()
        assert fresh.params["count"].numpy() == 2
        model = bridge.load(place)
        np.testing.assert_allclose(model.signatures["predict"](BATCH)["y"], want["y"], rtol=1e-5)

    def test_a_checkpoint_of_the_loaded_model(self, trainable, tmp_path):
        loaded = tf.saved_model.load(trainable)
        assert [v.name for v in loaded.variables] == ["count:0", "w:0"]
        assert [v.name for v in loaded.trainable_variables] == ["w:0"]
        loaded.train(BATCH)
        kept = tf.train.Checkpoint(model=loaded).save(tmp_path / "kept")
        loaded.train(BATCH)
        other = tf.saved_model.load(trainable)
        tf.train.Checkpoint(model=other).restore(kept).assert_consumed()
        assert (loaded.params["count"].numpy(), other.params["count"].numpy()) == (2, 1)
        other.train(BATCH)
        np.testing.assert_array_equal(other.params["w"], loaded.params["w"])

    def test_a_program_in_c(self, trainable, c_program, tmp_path):
        runs = [
            _encode_run(trainable, key, _feeds(key), again=number > 0)
            for number, key in enumerate(STEPS)
        ]
        definitions = read_meta_graph(trainable).signature_def
        names = [sorted(definitions[key].outputs) for key in STEPS]
        answers = run_in_c(c_program, tmp_path, runs, names)
        assert [error for error, _ in answers] == [""] * len(STEPS)
        _equal([results for _, results in answers], STEPS)

    def test_the_command_line_begins_anew_each_time(self, trainable, tmp_path):
        np.save(tmp_path / "x.npy", BATCH)
        command = ["run", "--dir", trainable, "--tag_set", "serve", "--signature_def", "train"]
        command += ["--inputs", f"x={tmp_path / 'x.npy'}"]
        for number in range(2):
            _command_line(*command, "--outdir", tmp_path / str(number))
            _equal([{"loss": np.load(tmp_path / str(number) / "loss.npy")}], ["train"])

    def test_a_layer_of_keras(self, trainable, tmp_path):
        layer = keras.layers.TFSMLayer(trainable, call_endpoint="train")
        inputs = keras.Input((3,))
        model = keras.Model(inputs, layer(inputs))
        found = [layer(BATCH), {"loss": model.predict(BATCH, verbose=0)["loss"]}, model(BATCH)]
        _equal(found, ["train"] * 3)
        model.save_weights(tmp_path / "w.weights.h5")
        layer(BATCH)
        model.load_weights(tmp_path / "w.weights.h5")
        _equal([*found, layer(BATCH)], ["train"] * 4)

    @pytest.mark.parametrize("keys", [("predict", "reset", "train"), ("train",)])
    def test_tflite(self, trainable, keys):
        converter = tf.lite.TFLiteConverter.from_saved_model(
            str(trainable), signature_keys=list(keys)
        )
        interpreter = _interpreter(converter.convert())
        runners = {key: interpreter.get_signature_runner(key) for key in keys}
        steps = [key for key in STEPS if key in keys]
        _equal([runners[key](**_feeds(key)) for key in steps], steps)
