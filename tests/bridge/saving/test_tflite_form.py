"""Files of `save(tflite=True)`: TensorFlow's converter and loaders make the same of them."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

import bridge
from bridge.cli.main import main
from bridge.diff import diff
from bridge.inspecting.report_facts import signature_facts
from bridge.saving import tflite_form
from xla_call_module.analyses.tflite_conversion import FAULTS
from xla_call_module.errors import (
    DtypeError,
    PlatformError,
    ShardingError,
    StructureError,
    UnsupportedError,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
EDGES = np.array([[np.nan, np.inf, -np.inf, 0], [-0.0, 1, -1, 3e38], [5, -5, 2, -7]], np.float32)


def _integers(x):
    # What is neither NaN nor infinite is an integer of every runtime.
    return (jnp.where(jnp.abs(x) < 100, x, 3) * 10).astype(jnp.int32)


def branch_in_a_loop(x):
    def step(total, row):
        return lax.cond(total.sum() > 1, lambda: total - row, lambda: total + row), row[0]

    return lax.scan(step, jnp.zeros(4), jnp.where(jnp.abs(x) < 100, x, 3))[0]


def branches(x):
    number = jnp.sum(x > 0) % 4

    def loop():
        return lax.while_loop(lambda pair: pair[0] < 3, lambda pair: (pair[0] + 1, pair[1] * 2),
                              (0, x))[1]  # fmt: skip

    return lax.fori_loop(
        0, 3, lambda i, y: lax.switch((number + i) % 3, [lambda: y + x, loop, lambda: 1 - y]), x
    )


def _turns(count, *values):
    def step(_, carried):
        total, *others = carried
        return (total + others[0], *others[1:], others[0])

    return lax.fori_loop(0, count, step, (values[0], *values))


def passed_on(x):
    y = _integers(x)
    return _turns(5, x, x * 2, x + 1), _turns(4, y, y * 2, y + 1), (
        lax.fori_loop(0, 3, lambda _, pair: (pair[1], pair[0]), (x > 0, x > 1))
    )  # fmt: skip


def passed_on_by_another_loop(x):
    def step(_, carried):
        first, second, total = carried
        _, same = lax.while_loop(
            lambda pair: pair[0] < 2, lambda pair: (pair[0] + 1, pair[1]), (0, first)
        )
        return second, same, total + first

    return lax.fori_loop(0, 3, step, (x, x * 2, x * 0))


def scatters(x):
    places = jnp.array([2, 0, 2])
    return (x.at[places].add(x), x.at[places].max(x * 2), x.at[places].multiply(x),
            x.at[places[:2]].set(x[:2]), x.at[places].min(x, mode="drop"))  # fmt: skip


def complex_scatters(x):
    places = jnp.array([2, 0, 2])
    y = (finite(x) * (1 + 2j)).astype(jnp.complex64)
    made = (y.at[places].add(y * 1j), y.at[places].set(y), y.at[places].subtract(y),
            y.at[places[:2]].add(y[:2], unique_indices=True))  # fmt: skip
    return [(one.real, one.imag) for one in made]


def finite(x):
    return jnp.where(jnp.isfinite(x) & (jnp.abs(x) < 1e3), x, 1)


# What converters are known to make something else of; all of it is one file.
FUNCTIONS = {
    "branch_in_a_loop": branch_in_a_loop,
    "branches": branches,
    "comparisons": lambda x: (x == jnp.inf, x > -jnp.inf, jnp.isposinf(x), jnp.nan_to_num(x)),
    "complex_scatters": complex_scatters,
    "differences": lambda x: (1 - x.T, 2 / x.T, jnp.arange(3.0) - x.T, 1 - jnp.sin(x).T * 2),
    "factorization": lambda x: jnp.linalg.cholesky(finite(x) @ finite(x).T + 4 * jnp.eye(3)),
    "infinities": lambda x: (
        jnp.where(x > 0, x, -jnp.inf), jnp.pad(x, 1, constant_values=np.inf),
        jnp.full((2,), np.inf) * x[1, 1], jnp.array([1, np.inf, -np.inf, np.nan]) + x,
        jnp.max(jnp.where(x > 9e9, x, -jnp.inf)), lax.cummax(x * 0 - jnp.inf),
    ),
    "passed_on": passed_on,
    "passed_on_by_another_loop": passed_on_by_another_loop,
    "random": lambda x: jax.random.normal(jax.random.key(_integers(x)[0, 0]), (3,)),
    "remainders": lambda x: (
        lax.rem(_integers(x), jnp.full(x.shape, 7)), lax.rem(x, jnp.full_like(x, 1.5)),
        _integers(x) % 7, x % -3,
    ),
    "scatters": scatters,
    "shifts": lambda x: (
        lax.shift_right_logical(_integers(x), jnp.full(x.shape, 3)), _integers(x) << 2,
        _integers(x) & 12,
    ),
    "sorted": lambda x: (jnp.sort(x), jnp.argsort(x, axis=0), lax.top_k(x, 2)),
    "transposed_broadcast": lambda x: (
        jnp.broadcast_to(x[:, None], (3, 2, 4)).transpose(2, 0, 1),
        (jnp.broadcast_to(x[:, None], (3, 2, 4)) * 1).transpose(2, 1, 0),
    ),
    "zero": lambda x: (x * 0, jnp.zeros(4) * x, (x / 0) * 0),
    "as_it_is": lambda x: (x, x, x + 0),
}  # fmt: skip


def _converted(path, key):
    converter = tf.lite.TFLiteConverter.from_saved_model(str(path), signature_keys=[key])
    return tf.lite.Interpreter(model_content=converter.convert()).get_signature_runner(key)


def _assert_same(found, expected, *, relative=1e-5):
    assert len(found) == len(expected)
    for got, wanted in zip(found, map(np.asarray, expected), strict=True):
        got = np.asarray(got)
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        size = np.max(np.abs(wanted.astype(np.float64)), where=np.isfinite(wanted), initial=0)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=relative * min(size, 1e6))


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A file with a signature for each of the functions."""
    path = tmp_path_factory.mktemp("tflite") / "many"
    bridge.save(FUNCTIONS, path, args="f32[3,4]", tflite=True, gradient_order=0)
    return path


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_converter_makes_the_same(many, name):
    runner = _converted(many, name)
    for x in (X, EDGES):
        results = runner(x=x)
        found = [results[key] for key in sorted(results)]
        _assert_same(found, jax.tree.leaves(jax.jit(FUNCTIONS[name])(x)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_loaders_compute_the_same(many, name):
    expected = jax.tree.leaves(jax.jit(FUNCTIONS[name])(X))
    in_tensorflow = tf.saved_model.load(str(many)).signatures[name](x=tf.constant(X))
    _assert_same([in_tensorflow[key] for key in sorted(in_tensorflow)], expected)
    in_jax = bridge.load(many).signatures[name](jnp.asarray(X))
    _assert_same(jax.tree.leaves(in_jax), expected)


def test_inspect_says_so_and_finds_no_fault(many):
    for signature in bridge.inspect(many).signatures:
        assert signature.orders[0].tflite_faults == ()
        assert signature_facts(signature)["TFLite"] == "written for TensorFlow's converter"
        assert signature.platforms == ("cpu",)


def test_without_it_there_are_faults(tmp_path):
    """Otherwise there would be nothing to write around."""
    path = tmp_path / "plain"
    bridge.save(FUNCTIONS, path, args="f32[3,4]", platforms=["cpu"], gradient_order=0)
    found = {one.key: one.orders[0].tflite_faults for one in bridge.inspect(path).signatures}
    assert "branch in a loop" in found["branches"]
    assert found["passed_on"] == ("swapped values",)
    assert {fault for faults in found.values() for fault in faults} < FAULTS.keys()


PARAMS = {"b": np.arange(2, dtype=np.float32), "w": np.arange(8, dtype=np.float32).reshape(4, 2)}
TABLE = np.linspace(0, 1, 2000, dtype=np.float32)


def network(params, x):
    scores = jnp.sum(TABLE) / 1000 - (x @ params["w"] + params["b"]).T
    return {"score": jax.nn.softmax(jnp.where(scores > 0, scores, -jnp.inf).T)}


def _exported(platforms=("cpu", "cuda", "tpu")):
    x = export.symbolic_args_specs((X,), ("batch, 4",))[0]
    return export.export(jax.jit(network), platforms=platforms)(PARAMS, x)


# Each option of `save`, with what it does here.
OPTIONS = {
    "static": {"args": "f32[3,4]"},
    "symbolic": {"args": "f32[batch,4]"},
    "constrained": {"args": "f32[3*b,4]"},
    "frozen": {"args": "f32[3,4]", "trainable": False},
    "platforms": {"args": "f32[3,4]", "platforms": ["cpu"]},
    "inputs": {"args": "f32[3,4]", "inputs": ["x"], "outputs": ["score"]},
    "gradient_order 0": {"args": "f32[3,4]", "gradient_order": 0},
    "gradient_order 2": {"args": "f32[3,4]", "gradient_order": 2},
    "hoist_constants all": {"args": "f32[batch,4]", "hoist_constants": 0},
    "hoist_constants none": {"args": "f32[batch,4]", "hoist_constants": None},
    "tensorflow": {"args": "f32[batch,4]", "tensorflow": "2.14"},
    "disabled_checks": {"args": "f32[3*b,4]", "disabled_checks": ["platform", "shape_assertions"]},
    "linalg": {"args": "f32[3,4]", "linalg": "lapack"},
    "num_shards": {"args": "f32[3,4]", "num_shards": 2},
    "manifest": {"args": "f32[3,4]", "manifest": True},
    "batch_buckets": {"args": "f32[batch,4]", "batch_buckets": (4, 8)},
    "defaults": {"args": "f32[3,4]", "defaults": {"x": X}},
    "exported": {},
}


def _gradient(loaded):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(loaded(tf.constant(X))["score"]))
    return [np.asarray(one) for one in tape.gradient(loss, [loaded.params[k] for k in ("b", "w")])]


@pytest.mark.parametrize("name", OPTIONS)
def test_options(tmp_path, name):
    options, path = OPTIONS[name], tmp_path / "model"
    model = network if options else _exported()
    bridge.save(model, path, params=PARAMS, tflite=True, **options)
    expected = [np.asarray(network(PARAMS, X)["score"])]
    _assert_same([_converted(path, "serving_default")(x=X)["score"]], expected)
    loaded = tf.saved_model.load(str(path))
    _assert_same([loaded(tf.constant(X))["score"]], expected)
    _assert_same([bridge.load(path)(jnp.asarray(X))["score"]], expected)
    if options.get("trainable", True) and options.get("gradient_order", 1):
        wanted = jax.grad(lambda params: jnp.sum(jnp.sin(network(params, X)["score"])))(PARAMS)
        _assert_same(_gradient(loaded), jax.tree.leaves(wanted))
    (signature,) = bridge.inspect(path).signatures
    assert signature.orders[0].tflite_faults == ()
    assert len(signature.orders) == 1 + options.get("gradient_order", 1)
    is_symbolic = "f32[3,4]" not in options.get("args", "")
    if is_symbolic and "batch" in options.get("args", "batch"):
        two = np.concatenate([X, -X])[:5]
        _assert_same([loaded(tf.constant(two))["score"]], [network(PARAMS, two)["score"]])
        _assert_same(
            [bridge.load(path)(jnp.asarray(two))["score"]], [network(PARAMS, two)["score"]]
        )
    if name == "constrained":
        with pytest.raises(tf.errors.InvalidArgumentError, match="polymorphic shapes"):
            loaded.signatures["serving_default"](x=tf.ones([4, 4]))


def test_infinities_that_follow_from_parameters_stay(tmp_path):
    """The converter would compute with variables and counters, and divide by their inverses."""

    def infinite(params, x):
        number = lax.iota(jnp.float32, 4)
        zero, one = params["zero"], params["one"]
        return {
            "quotients": x / zero + 1 / number + one / zero,
            "tests": jnp.isinf(1 / number) | (jnp.isinf(lax.rsqrt(zero)) & jnp.isinf(zero**-1.5)),
            "logarithms": (jnp.log(number), jnp.log(zero), jnp.log1p(-one), jnp.arctanh(one)),
            "powers": (jnp.exp(100 * one), jnp.expm1(100 * one)),
            "chosen": jnp.where(x > 0, 1 / zero, jnp.log(zero)),
        }

    params = {"zero": np.zeros(4, np.float32), "one": np.ones(4, np.float32)}
    path = tmp_path / "model"
    bridge.save(infinite, path, params=params, args="f32[3,4]", tflite=True)
    found = _converted(path, "serving_default")(x=EDGES)
    expected = jax.jit(infinite)(params, EDGES)
    _assert_same([found[name] for name in ("chosen", "quotients", "tests")],
                 [expected[name] for name in ("chosen", "quotients", "tests")])  # fmt: skip
    for name in ("logarithms", "powers"):
        numbers = [found[f"{name}_{index}"] for index in range(len(expected[name]))]
        _assert_same(numbers, expected[name])


def test_a_normalization_is_folded_into_its_factors(tmp_path):
    def normalize(params, x):
        return (x - params["mean"]) * lax.rsqrt(params["variance"] + 1e-5)

    params = {"mean": np.ones(4, np.float32), "variance": np.full(4, 2, np.float32)}
    bridge.save(normalize, tmp_path / "model", params=params, args="f32[3,4]", tflite=True)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "model"))
    details = tf.lite.Interpreter(model_content=converter.convert())._get_ops_details()
    assert {one["op_name"] for one in details} <= {"SUB", "MUL", "DELEGATE"}


def test_a_gradient_is_that_of_the_function_where_the_file_has_none(tmp_path):
    """An `Exported` that was serialized without one has it made of its own operations."""
    serialized = _exported().serialize(vjp_order=0)
    restored = export.deserialize(serialized)
    bridge.save(restored, tmp_path / "model", params=PARAMS, tflite=True)
    wanted = jax.grad(lambda params: jnp.sum(jnp.sin(network(params, X)["score"])))(PARAMS)
    loaded = tf.saved_model.load(str(tmp_path / "model"))
    _assert_same(_gradient(loaded), jax.tree.leaves(wanted))


def test_the_same_input_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        bridge.save(network, tmp_path / name, params=PARAMS, args="f32[b,4]", tflite=True)
    one, two = ((tmp_path / name / "saved_model.pb").read_bytes() for name in ("one", "two"))
    assert one == two
    assert str(tmp_path).encode() not in one


def _infinite(params, x):
    return x + params["b"][0]


REFUSED = {
    "platforms": ({"platforms": ["cpu", "tpu"]}, PlatformError, "platforms is cpu, tpu"),
    "residuals": ({"residuals": True}, StructureError, "residuals=True has the function"),
    "updates": ({"updates": 0}, StructureError, "updates= assigns variables"),
    "params": (
        {"params": {"b": np.array([1, -np.inf])}}, UnsupportedError,
        r"params\['b'\] has infinite elements",
    ),
    "bfloat16": ({"args": "bf16[3]"}, DtypeError, r"args\[1\] of .* is bfloat16"),
    "complex": ({"args": "c64[3]"}, DtypeError, "complex64, and TFLite takes and returns no"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(tmp_path, name):
    options, error, message = REFUSED[name]
    given = {"params": PARAMS, "args": "f32[3]", **options}
    with pytest.raises(error, match=message):
        bridge.save(_infinite, tmp_path / "model", tflite=True, **given)
    assert not list(tmp_path.iterdir())


def test_an_operation_is_refused_with_its_place(tmp_path):
    def unlike(x):
        return lax.rng_uniform(x[0, 0], x[0, 1], (3,))

    with pytest.raises(
        UnsupportedError, match=r"stablehlo.rng at .*test_tflite_form.py:\d+.*To do"
    ):
        bridge.save(unlike, tmp_path / "model", args="f32[3,4]", tflite=True)


def test_a_fault_that_is_left_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tflite_form, "prevent_misreadings", lambda *_: None)
    with pytest.raises(UnsupportedError, match="pass values on to each other overwrite them"):
        bridge.save(passed_on, tmp_path / "model", args="f32[3,4]", tflite=True)


def test_other_platforms_and_devices_are_refused(tmp_path):
    with pytest.raises(PlatformError, match="was exported for tpu, and TFLite"):
        bridge.save(_exported(["tpu"]), tmp_path / "model", params=PARAMS, tflite=True)
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    x = jax.ShapeDtypeStruct((4, 4), np.float32, sharding=sharding)
    several = export.export(jax.jit(jnp.sin), platforms=["cpu"])(x)
    with pytest.raises(ShardingError, match="for 2 devices, and TFLite runs on one"):
        bridge.save(several, tmp_path / "model", tflite=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("tflite") / "model"
    bridge.save(network, path, params=PARAMS, args="f32[batch,4]", tflite=True)
    return path


def test_what_other_verbs_make_of_it(model, tmp_path):
    expected = [np.asarray(network(PARAMS, X)["score"])]
    older = bridge.retarget(model, "2.15", to=tmp_path / "older")
    new = {name: array + 1 for name, array in PARAMS.items()}
    newer = bridge.update(model, new, to=tmp_path / "newer")
    published = bridge.serving.publish(model, tmp_path / "models" / "scores")
    for written, params in ((older, PARAMS), (newer, new), (published, PARAMS)):
        (signature,) = bridge.inspect(written.path).signatures
        assert signature_facts(signature)["TFLite"] == "written for TensorFlow's converter"
        wanted = [network(params, X)["score"]]
        _assert_same([_converted(written.path, "serving_default")(x=X)["score"]], wanted)
    assert bridge.verify(model).passed
    in_tensorflow = bridge.convert(bridge.load(model).default.exported)
    _assert_same([in_tensorflow(PARAMS, tf.constant(X))["score"]], expected)


@pytest.mark.parametrize("stored", [False, True])
def test_new_values_are_finite_where_those_of_the_file_must_be(model, tmp_path, stored):
    new = {"b": np.full_like(PARAMS["b"], -np.inf)}
    np.savez(tmp_path / "new.npz", **new)
    params = tmp_path / "new.npz" if stored else new
    with pytest.raises(UnsupportedError, match=r"params\['b'\] has infinite elements"):
        bridge.update(model, params, to=tmp_path / "newer")
    with pytest.raises(UnsupportedError, match=r"params\['b'\] has infinite elements"):
        bridge.serving.publish(model, tmp_path / "models", weights=params)
    assert not (tmp_path / "newer").exists()
    bridge.save(network, tmp_path / "plain", params=PARAMS, args="f32[batch,4]")
    assert bridge.update(tmp_path / "plain", params).updated == ("b",)


def test_a_difference_from_another_file_is_seen(model, tmp_path):
    options = {"params": PARAMS, "args": "f32[batch,4]"}
    bridge.save(network, tmp_path / "plain", platforms=["cpu"], **options)
    bridge.save(network, tmp_path / "same", tflite=True, **options)
    kinds = {one.kind for one in diff(tmp_path / "plain", model).differences}
    assert kinds >= {"operations", "modules"}
    assert diff(tmp_path / "same", model).equal


def test_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "module_for_tflite.py").write_text(
        "import jax.numpy as jnp\n\ndef f(x):\n    return jnp.where(x > 0, x, -jnp.inf)\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["export", "module_for_tflite:f", "--args", "f32[b,4]", "--tflite", "--json"]
    assert main([*arguments, "--out", "model"]) == 0
    assert json.loads(capsys.readouterr().out)["signatures"][0]["platforms"] == ["cpu"]
    (found,) = _converted(tmp_path / "model", "serving_default")(x=X).values()
    _assert_same([found], [np.where(X > 0, X, -np.inf)])
    assert main([*arguments, "--out", "other", "--platforms", "cpu,cuda"]) == 2
    assert "--tflite writes a file for cpu" in capsys.readouterr().err
