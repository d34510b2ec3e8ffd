"""Every option of the public verbs, in pairs with every other one, against JAX."""

from __future__ import annotations

import contextlib

import jax
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge
from tests.verbs.option_functions import (
    CHECKS,
    FUNCTIONS,
    HOISTED,
    TABLE,
    N,
    W,
    X,
    Y,
    assert_same,
    expected,
    jax_gradients,
    of_arguments,
    of_origin,
    of_parameters,
    specs,
    tensorflow_gradients,
)
from tests.verbs.option_tables import CALL_TF, CONVERT, LAYER, ONNX, SAVE
from xla_call_module.errors import StructureError

PLATFORMS = {"default": None, "one": ("cpu",), "cpu last": ("tpu", "cuda", "cpu")}


def _rows(table):
    rows = table.rows()
    ids = [f"{i}-{row.get('function', '')}" for i, row in enumerate(rows)]
    return pytest.mark.parametrize("row", rows, ids=ids)


def _shared(row):
    """The options that `save` and `convert` have both."""
    return {
        "gradient_order": int(row["gradient_order"]),
        "residuals": row["residuals"] == "yes",
        "linalg": row["linalg"],
        "operations": row["operations"],
        "disabled_checks": CHECKS[row["disabled_checks"]],
        **HOISTED[row["hoist_constants"]],
    }


def _exported(function, args, row):
    jitted, platforms = jax.jit(function), PLATFORMS[row["platforms"]]
    return export.export(jitted, platforms=platforms or ("cpu", "cuda", "tpu"))(*args)


class Saved:
    """A file of a row of `SAVE`, and how it is called."""

    def __init__(self, row, folder):
        self.row, self.order = row, int(row["gradient_order"])
        self.has_params = row["params"] != "none"
        self.names = {"x": "x", "y": "y", "n": "n"}
        if row["names"] != "default":
            self.names = {"x": "rows", "y": "scale", "n": "counted"}
        self.path = folder / "written"
        self._save()
        self.path = of_origin(row, self.path)

    def _save(self):
        row = self.row
        make = of_parameters if self.has_params else of_arguments
        function, args = make(row["function"]), specs(row["sizes"])
        options = _shared(row)
        if self.has_params:
            trained = {"trainable": True, "frozen": False, "partly": {"w": False, "v": True}}
            options |= {
                "params": {"v": np.ones(2, np.float32), "w": W},
                "trainable": trained[row["params"]],
            }
        model = function
        if row["model"] == "function":
            options |= {"args": args, "platforms": PLATFORMS[row["platforms"]]}
        else:
            leading = (options["params"],) if self.has_params else ()
            model = _exported(function, (*leading, *args), row)
        if row["model"] == "two signatures":
            model = {"serving_default": model, "other": model}
        if row["names"] == "mapping":
            options |= {"inputs": self.names, "outputs": {"count": "numbers", "z": "results"}}
        if row["names"] == "sequence":
            options |= {"inputs": tuple(self.names.values()), "outputs": ("numbers", "results")}
        if row["defaults"] == "given":
            given = {self.names["y"]: Y}
            options["defaults"] = (
                {"serving_default": given} if row["model"] == "two signatures" else given
            )
        if row["batch_buckets"] == "given":
            options["batch_buckets"] = (3, 8)
        if row["tensorflow"] != "newest":
            options["tensorflow"] = row["tensorflow"]
        files = {"default": {}, "shards": {"num_shards": 2}, "manifest": {"manifest": True}}
        bridge.save(model, self.path, **options, **files[row["files"]])

    def inputs(self, x, y, n):
        """The inputs of the signature by their names."""
        return {self.names["x"]: x, self.names["y"]: y, self.names["n"]: n}


@pytest.fixture(scope="module")
def saved_of(tmp_path_factory):
    """The file of a row; the tests of TensorFlow and of JAX share it."""
    made = {}

    def get(row):
        key = tuple(row.items())
        if key not in made:
            made[key] = Saved(row, tmp_path_factory.mktemp("row"))
        return made[key]

    return get


@pytest.fixture
def saved(row, saved_of):
    return saved_of(row)


@_rows(SAVE)
def test_save(row, saved):
    value, gradients = expected(row["function"], of_weights=saved.has_params)
    loaded = tf.saved_model.load(saved.path)
    weights = [loaded.params["w"]] if saved.has_params else []
    if weights:
        assert weights[0].trainable == (row["params"] == "trainable")
    found = tensorflow_gradients(loaded, row["mode"], saved.order, weights)
    assert_same(found, (value, gradients[: saved.order]))
    with tf.device("/CPU:0"):
        given = saved.inputs(*map(tf.constant, (X, Y, N)))
        results = loaded.signatures["serving_default"](**given)
    assert_same([r for r in results.values() if r.dtype.is_floating], [value])
    if row["function"] != "unused":  # whose gradient TensorFlow has None for
        with pytest.raises(LookupError, match="To do: save it with gradient_order="):
            tensorflow_gradients(loaded, "eager", saved.order + 1, weights)


@_rows(SAVE)
def test_load(row, saved):
    model = bridge.load(saved.path)
    given = saved.inputs(X, Y, N)
    if row["defaults"] == "given" and row["origin"] != "saved again":
        del given[saved.names["y"]]
    assert_same(_z_of(model(**given)), expected(row["function"], of_weights=False)[0])

    def call(x, y):
        return _z_of(model(**saved.inputs(x, y, N)))

    def call_with_weights(x, y, w):
        return _z_of(model.default.exported.call({**model.params, "w": w}, x, y, N))

    _check_gradients_in_jax(call, row["function"], (X, Y), saved.order)
    if saved.has_params and row["origin"] != "saved again":
        order = min(saved.order, 1)
        _check_gradients_in_jax(call_with_weights, row["function"], (X, Y, W), order)
    _check_next_order(call, row["function"], (X, Y), saved.order)


def test_parameters_that_the_gradient_alone_takes(tmp_path):
    params = {"w": W}
    bridge.save(of_parameters("written"), tmp_path / "m", params=params, args=specs("static"))
    model = bridge.load(tmp_path / "m")
    _check_gradients_in_jax(lambda x, y: _z_of(model(x, y, N)), "written", (X, Y), 1)


def _check_gradients_in_jax(call, name, floats, order):
    value, gradients = expected(name, of_weights=len(floats) > 2)
    assert_same(call(*floats), value)
    assert_same(list(jax_gradients(call, floats, order)), gradients[:order])


def _check_next_order(call, name, floats, order):
    """Check an order that is not in the file: made of operations, without the author's VJP."""
    if name == "factored":
        with contextlib.suppress(StructureError):
            list(jax_gradients(call, floats, order + 1))
        return
    found = list(jax_gradients(call, floats, order + 1))
    if name != "written":
        known = expected(name, of_weights=len(floats) > 2)[1]
        assert_same(found[: len(known)], known[: len(found)])


class Converted(tf.Module):
    """The function that a row of `CONVERT` makes, with its weights."""

    def __init__(self, row):
        super().__init__()
        self.params = {"w": tf.Variable(W)}
        function, options = of_parameters(row["function"]), _shared(row)
        if row["fun"] == "exported":
            args = ({"w": W}, *specs(row["sizes"]))
            function = _exported(function, args, row)
        else:
            symbolic = (None, "b, _", None, "b")
            shapes = {"static": None, "auto": "auto"}.get(row["sizes"], symbolic)
            constraints = ["b >= 2"] if row["sizes"] == "constrained" else []
            options |= {
                "platforms": PLATFORMS[row["platforms"]],
                "polymorphic_shapes": shapes,
                "polymorphic_constraints": constraints,
            }
        with_gradient = row["with_gradient"] == "yes"
        self.converted = bridge.convert(function, with_gradient=with_gradient, **options)
        rows = 4 if row["sizes"] == "static" else None
        signature = [
            tf.TensorSpec([rows, 3], tf.float32, "x"),
            tf.TensorSpec([], tf.float32, "y"),
            tf.TensorSpec([rows], tf.int32, "n"),
        ]
        self.call = tf.function(self.live, input_signature=signature, autograph=False)

    def live(self, x, y, n):
        return self.converted(self.params, x, y, n)


@_rows(CONVERT)
def test_convert(row, tmp_path):
    module = Converted(row)
    call, weights, order = module.live, [module.params["w"]], 2
    if row["origin"] != "live":
        order, path = int(row["gradient_order"]), tmp_path / "saved"
        tf.saved_model.save(module, path, signatures=module.call)
        if row["origin"] == "saved again":
            loaded = tf.saved_model.load(path)
            path = tmp_path / "again"
            tf.saved_model.save(loaded, path, signatures=loaded.signatures)
        loaded = tf.saved_model.load(path)
        call, weights = loaded.call, [loaded.params["w"]]
    value, gradients = expected(row["function"], of_weights=True)
    has_gradient = row["with_gradient"] == "yes"
    order = order if has_gradient else 0
    assert_same(tensorflow_gradients(call, row["mode"], order, weights), (value, gradients[:order]))
    # What depends on no argument has no gradient in TensorFlow, of any order.
    if (row["origin"] != "live" or not has_gradient) and row["function"] != "unused":
        match = "To do: convert it with gradient_order=" if has_gradient else "with_gradient=False"
        with pytest.raises(LookupError, match=match):
            tensorflow_gradients(call, "eager", order + 1, weights)
    if row["origin"] != "live":
        _check_in_jax(bridge.load(path), row, order)


def _check_in_jax(model, row, order):
    def call(x, y):
        given = {"x": x, "y": y, "n": N}
        # TensorFlow's file does not say which argument an input is that no module takes.
        return _z_of(model(**{name: given[name] for name in model.default.inputs}))

    _check_gradients_in_jax(call, row["function"], (X, Y), order)
    if "x" in model.default.inputs:
        _check_next_order(call, row["function"], (X, Y), order)


def _z_of(results):
    (found,) = (leaf for leaf in jax.tree.leaves(results) if leaf.dtype == np.float32)
    return found


def _layer_source(row, folder):
    """Return what a layer is made of, and its other arguments."""
    name, params = row["function"], {"w": W}

    def function(params, x):
        return FUNCTIONS[name](params["w"], x, Y)

    trainable = {"trainable": row["trainable"] == "yes"}
    if row["exported"] == "function":
        return function, {"params": params, **trainable}
    exported = export.export(jax.jit(function), platforms=("cpu", "cuda", "tpu"))(
        params, specs("static")[0]
    )
    if row["exported"] == "exported":
        return exported, {"params": params, **trainable}
    options = {"gradient_order": 2, "residuals": row["exported"] == "file with residuals"}
    bridge.save(exported, folder / "source", params=params, **options, **trainable)
    return folder / "source", trainable


class Layered(tf.Module):
    """The layer that a row of `LAYER` makes."""

    def __init__(self, row, folder):
        super().__init__()
        framework = pytest.importorskip(row["framework"])
        if row["framework"] == "keras" and framework.backend.backend() != "tensorflow":
            pytest.skip("Keras runs on another backend")
        home = bridge.keras if row["framework"] == "keras" else bridge.tf_keras
        source, options = _layer_source(row, folder)
        self.layer = home.ExportedLayer(
            source,
            gradient_order=int(row["gradient_order"]),
            operations=row["operations"],
            **options,
        )
        signature = [tf.TensorSpec([4, 3], tf.float32, "x")]
        self.call = tf.function(self.layer, input_signature=signature, autograph=False)


@_rows(LAYER)
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")
def test_layers(row, tmp_path):
    layered = Layered(row, tmp_path)
    call, order = layered.layer, int(row["gradient_order"])
    (weight,) = layered.layer.variables
    assert bool(layered.layer.trainable_variables) == (row["trainable"] == "yes")
    weights = [getattr(weight, "value", weight)]  # the tf.Variable of one of Keras
    if not isinstance(weights[0], tf.Variable):
        weights = [weight]
    if row["origin"] == "saved":
        tf.saved_model.save(layered, tmp_path / "saved")
        loaded = tf.saved_model.load(tmp_path / "saved")
        call, weights = loaded.call, [_weight_of(loaded)]

    def like_others(x, y, n):
        return {"z": call(x), "count": n + 1}

    found = tensorflow_gradients(like_others, row["mode"], order, weights)
    floats = (X, Y, W)
    wanted = jax_gradients(lambda x, _, w: FUNCTIONS[row["function"]](w, x, Y), floats, order)
    assert_same(found, (FUNCTIONS[row["function"]](W, X, Y), list(wanted)))
    if row["function"] != "unused":
        with pytest.raises((LookupError, StructureError), match=r"To do: .*gradient_order="):
            tensorflow_gradients(like_others, "eager", order + 1, weights)


def _weight_of(loaded):
    """The weight of a layer that was loaded."""
    (found,) = {id(v): v for v in loaded.call.get_concrete_function().variables}.values()
    return found


@_rows(ONNX)
def test_onnx(row, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    name, order = row["function"], int(row["gradient_order"])
    with_params, options = row["params"] == "given", {}

    def function(params, x, y):
        return FUNCTIONS[name](params["w"] if with_params else W, x, y)

    platforms = ("cpu", "cuda", "tpu") if row["platform"] == "default" else ("tpu", "cpu")
    jitted = jax.jit(function if with_params else lambda x, y: function(None, x, y))
    arrays = ({"w": W}, X, Y) if with_params else (X, Y)
    exported = export.export(jitted, platforms=platforms)(*arrays)
    model = exported
    if row["model"] == "file" or row["model"] == "file with residuals":
        model = tmp_path / "model"
        residuals = row["model"] == "file with residuals"
        given = {"params": {"w": W}} if with_params else {}
        bridge.save(exported, model, gradient_order=2, residuals=residuals, **given)
    elif with_params:
        options["params"] = {"w": W}
    rng = np.random.default_rng(0)
    for _ in range(order):
        exported = exported.vjp()
    flat = [np.asarray(leaf) for leaf in jax.tree.leaves(arrays)]
    flat += [
        np.asarray(rng.normal(size=aval.shape), np.float32)
        for aval in exported.in_avals[len(flat) :]
    ]
    wanted = jax.tree.leaves(exported.call(*flat) if order else exported.call(*arrays))
    free = flat[len(flat) - len(exported.in_avals) + with_params :]
    if row["names"] == "given":
        options["inputs"] = [f"input_{i}" for i in range(len(free))]
        options["outputs"] = [f"output_{i}" for i in range(len(wanted))]
    if row["platform"] != "default":
        options["platform"] = row["platform"]
    external = {"auto": {}, "no": {"external_data": False}, "yes": {"external_data": True}}
    path = tmp_path / "model.onnx"
    bridge.save_onnx(model, path, gradient_order=order, **options, **external[row["external_data"]])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    if row["names"] == "given":
        assert names == options["inputs"]
        assert [value.name for value in session.get_outputs()] == options["outputs"]
    assert_same(session.run(None, dict(zip(names, free, strict=True))), wanted)


class Called:
    """The function that a row of `CALL_TF` calls, of x and y."""

    def __init__(self, row, folder):
        self.row = row
        fun_tf = self._fun_tf(folder)
        options = {"graph": row["graph"] == "yes", "compiled": row["compiled"] == "yes"}
        if row["variables"] != "default":
            options["variables"] = row["variables"]
        if row["shapes"] == "given":
            options["shapes"] = jax.ShapeDtypeStruct((4, 3), "float32")
        if row["has_side_effects"] == "no":
            options["has_side_effects"] = False
        self.call_tf = bridge.call_tf(fun_tf, **options)

    def _fun_tf(self, folder):
        if self.row["fun_tf"] == "function":
            weight = tf.Variable(W)
            return lambda x, y: tf.tanh(x @ weight @ TABLE) ** 2 * y
        if self.row["fun_tf"] == "converted":
            converted, weight = bridge.convert(FUNCTIONS["product"]), tf.Variable(W)
            return lambda x, y: converted(weight, x, y)
        residuals = self.row["fun_tf"] == "loaded with residuals"
        bridge.save(
            of_parameters("product"), folder / "model", params={"w": W}, args=specs("static"),
            gradient_order=3, residuals=residuals,
        )  # fmt: skip
        self.loaded = tf.saved_model.load(folder / "model")
        return lambda x, y: self.loaded(x, y, N)["z"]

    def __call__(self, x, y):
        if self.row["variables"] == "argument":
            return self.call_tf(self.call_tf.variables(X, Y), x, y)
        return self.call_tf(x, y)


@_rows(CALL_TF)
def test_call_tf(row, tmp_path):
    called = Called(row, tmp_path)
    value, gradients = expected("product", of_weights=False)
    if row["mode"] != "exported":
        run = jax.jit(called) if row["mode"] == "jit" else called
        assert_same(run(X, Y), value)
        assert_same(list(jax_gradients(run, (X, Y), 2)), gradients)
        return
    exported = export.export(jax.jit(called))(*specs("static")[:2])
    run = bridge.convert(exported)
    found = tensorflow_gradients(lambda x, y, n: {"z": run(x, y), "count": n + 1}, "graph", 1)
    assert_same(found, (value, gradients[:1]))
    if row["graph"] == "no":
        assert_same(list(jax_gradients(exported.call, (X, Y), 1)), gradients[:1])
