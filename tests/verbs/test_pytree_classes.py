"""Pytree classes that nobody registered for serialization: in files, in TensorFlow, and back."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

import bridge
from tests.bridge.absence import run_without_tensorflow
from xla_call_module.errors import StructureError, UnsupportedError

nn = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
freeze = pytest.importorskip("flax.core").freeze
TrainState = pytest.importorskip("flax.training.train_state").TrainState
eqx = pytest.importorskip("equinox")
hk = pytest.importorskip("haiku")
optax = pytest.importorskip("optax")
classes = pytest.importorskip("tests.verbs.pytree_classes")
Attributes, Config, Data, Keyed = (
    classes.Attributes, classes.Config, classes.Data, classes.Keyed,
)  # fmt: skip
Label, Pair, Struct, Weight = classes.Label, classes.Pair, classes.Struct, classes.Weight
X = np.linspace(-1, 1, 4, dtype=np.float32).reshape(2, 2) + np.eye(2, dtype=np.float32)
DENSE = nn.Dense(2)
STATE = TrainState.create(
    apply_fn=DENSE.apply,
    params=DENSE.init(jax.random.key(0), X)["params"],
    tx=optax.chain(optax.clip(1.0), optax.adam(1e-3)),
)


class Network(nnx.Module):
    """Its state has integer keys."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(2, 2, rngs=rngs), nnx.BatchNorm(2, rngs=rngs)])

    def __call__(self, x):
        return self.layers[1](self.layers[0](x))


def step(state, x):
    def loss(params):
        return (state.apply_fn({"params": params}, x) ** 2).sum()

    return state.apply_gradients(grads=jax.grad(loss)(state.params)), loss(state.params)


def _of_network():
    network = Network()
    network.eval()
    definition, state = nnx.split(network)
    return (lambda state, x: (nnx.merge(definition, state)(x), state)), (state, X)


ADAM = optax.adam(1e-3)
MASKED = optax.multi_transform({"a": ADAM, "b": optax.set_to_zero()}, {"x": "a", "y": "b"})
# For each name a function and its arguments.
FUNCTIONS: dict[str, Any] = {
    "qr": (jnp.linalg.qr, (X,)),
    "slogdet": (jnp.linalg.slogdet, (X,)),
    "named tuple": (lambda p: Pair(p.y * 2, {"z": Pair(p.x, None)}), (Pair(X, X + 1),)),
    "attributes": (lambda p: Attributes(p.bias, p.weight * 2, p.kind), (Attributes(X, X + 1),)),
    "keys": (lambda p: Keyed({"b": p.parts["a"]}), (Keyed({"b": X, "a": X + 1}),)),
    "dataclass": (lambda p: Data(p.a**p.power, p.b, p.power + 1), (Data(X, X + 1),)),
    "static": (lambda c, label, x: (c, label, x * c.scale), (Config(3), Label("l"), X)),
    "flax": (lambda s: Struct(s.a * 2, {"p": [s.apply]}), (Struct(X, "text"),)),
    "equinox": (lambda w: Weight(w.w * 2), (Weight(X),)),
    "linear": (lambda f, x: (f, jax.vmap(f)(x)), (eqx.nn.Linear(2, 2, key=jax.random.key(0)), X)),
    "frozen": (lambda d: freeze({"b": d["a"]["c"]}), (freeze({"a": {"c": X}}),)),
    "haiku": (lambda s: hk.LSTMState(s.cell, s.hidden), (hk.LSTMState(X, X + 1),)),
    "adam": (lambda s: ADAM.update({"w": X}, s), (ADAM.init({"w": X}),)),
    "masked": (lambda s: s, (MASKED.init({"x": X, "y": X + 1}),)),
    "train": (step, (STATE.replace(step=jnp.zeros((), jnp.int32)), X)),
    "nnx": _of_network(),
    "numbers": (lambda d: {10: d[9], 9: d[10]}, ({9: X, 10: X + 1},)),
    "other keys": (
        lambda d, e: (d, e),
        ({("a", 2): X, ("a", 1): X + 1}, {True: X, False: X + 1}),
    ),
    "ordered": (lambda d: OrderedDict(z=d["a"], a=d["z"]), (OrderedDict(z=X, a=X + 1),)),
    "default": (lambda d: d, (defaultdict(list, a=X),)),
    "empty": (lambda x: ({}, [], (), None, optax.EmptyState(), OrderedDict(), x), (X,)),
}
each = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """For each function the folder of a file."""
    folder = tmp_path_factory.mktemp("files")
    for name, (function, args) in FUNCTIONS.items():
        exported = jax.export.export(jax.jit(function))(*args)
        bridge.save(exported, folder / name)
    return folder


def assert_same(found: Any, expected: Any) -> None:
    """The same classes, with the same static data, and the same numbers."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@each
def test_jax_has_the_classes_again(files, name):
    function, args = FUNCTIONS[name]
    model = bridge.load(files / name)
    expected = function(*args)
    assert_same(model(*args), expected)
    assert_same(model.default.exported.call(*args), expected)
    if name not in ("train", "adam"):  # what has functions as static data differs
        assert model.default.exported.in_tree == jax.tree.structure((args, {}))


@each
def test_tensorflow_has_named_tuples_and_dicts(files, name):
    function, args = FUNCTIONS[name]
    loaded = tf.saved_model.load(files / name)
    inputs = loaded.signatures["serving_default"].structured_input_signature[1]
    model = bridge.load(files / name)
    leaves = dict(zip(model.default.inputs, jax.tree.leaves(args), strict=True))
    given = {name: tf.constant(leaves[name]) for name in inputs}
    found = loaded.signatures["serving_default"](**given)
    expected = dict(zip(model.default.outputs, jax.tree.leaves(function(*args)), strict=True))
    assert found.keys() == expected.keys()
    for key, tensor in found.items():
        np.testing.assert_allclose(tensor, expected[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "args", "names"),
    [
        ("qr", (X,), ("Q", "R")),
        ("haiku", (hk.LSTMState(X, X + 1),), ("hidden", "cell")),
        ("attributes", ({"weight": X, "bias": X + 1},), {"weight", "bias"}),
        ("dataclass", ({"a": X, "b": X + 1},), {"a", "b"}),
        ("numbers", ({"9": X, "10": X + 1},), {"9", "10"}),
        ("frozen", ({"a": {"c": X}},), {"b"}),
    ],
)
def test_structures_in_tensorflow(files, name, args, names):
    found = tf.saved_model.load(files / name)(*jax.tree.map(tf.constant, args))
    assert (found._fields if isinstance(names, tuple) else found.keys()) == names


@each
def test_what_tensorflow_saves(files, name, tmp_path):
    """The classes are in the node, which TensorFlow keeps."""
    function, args = FUNCTIONS[name]
    loaded = tf.saved_model.load(files / name)
    tf.saved_model.save(loaded, tmp_path / "m", signatures=loaded.signatures)
    assert_same(bridge.load(tmp_path / "m")(*args), function(*args))


@pytest.mark.parametrize("name", ["named tuple", "dataclass", "nnx", "numbers"])
def test_gradients(files, name):
    _, args = FUNCTIONS[name]
    call = bridge.load(files / name).default.exported.call

    def loss(call):
        return lambda *args: sum(
            (leaf**2).sum()
            for leaf in jax.tree.leaves(call(*args))
            if jnp.issubdtype(leaf.dtype, np.floating)
        )

    assert_same(jax.grad(loss(call))(*args), jax.grad(loss(FUNCTIONS[name][0]))(*args))


def test_functions_are_those_that_are_passed(files):
    """A file holds none, so results have those of the arguments."""
    model = bridge.load(files / "train")
    _, (state, x) = FUNCTIONS["train"]
    other = state.replace(tx=optax.chain(optax.clip(1.0), optax.adam(1e-3)))
    new, _ = model(other, x)
    assert new.tx == other.tx
    assert new.apply_fn == DENSE.apply
    again, _ = model(new, x)
    assert int(again.step) == 2
    with pytest.raises(StructureError, match="was called with 2 arguments of the structure"):
        model(state.replace(apply_fn=jnp.sin), x)


def test_a_new_state_as_an_example(tmp_path):
    """Its step is a Python number."""
    assert STATE.step == 0
    bridge.save(step, tmp_path / "m", args=(STATE, X), gradient_order=0)
    new, loss = bridge.load(tmp_path / "m")(STATE, X)
    want, its_loss = jax.jit(step)(STATE, X)
    assert int(new.step) == 1
    np.testing.assert_allclose(loss, its_loss, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), new, want)


def test_functions_that_nobody_passes(tmp_path):
    exported = jax.export.export(jax.jit(lambda x: STATE.replace(params=x)))(X)
    bridge.save(exported, tmp_path / "m")
    found = bridge.load(tmp_path / "m")(X)
    assert isinstance(found, TrainState)
    with pytest.raises(
        StructureError, match=r"Module\.apply was a function in an exported pytree.*apply_fn="
    ):
        found.apply_fn({}, X)


def test_static_data_is_compared(files):
    model = bridge.load(files / "static")
    with pytest.raises(StructureError, match=r"takes \(Config\(scale=3\).*was called .*scale=4"):
        model(Config(4), Label("l"), X)
    model = bridge.load(files / "dataclass")
    with pytest.raises(StructureError, match=r"takes \(Data\(.*was called with .*power=3"):
        model(Data(X, X, power=3))


def test_a_class_of_a_function(tmp_path):
    class Local(NamedTuple):
        u: Any

    bridge.save(jax.export.export(jax.jit(lambda p: Local(p.u + 1)))(Local(X)), tmp_path / "m")
    assert type(bridge.load(tmp_path / "m")(Local(X))) is Local


def test_a_file_of_what_was_loaded(files, tmp_path):
    exported = bridge.load(files / "train").default.exported
    bridge.save(exported, tmp_path / "m")
    function, args = FUNCTIONS["train"]
    assert_same(bridge.load(tmp_path / "m")(*args), function(*args))


def test_parameters_keep_their_class(tmp_path):
    bridge.save(lambda p, x: x @ p.w, tmp_path / "m", params=Weight(X), args=(X,))
    model = bridge.load(tmp_path / "m")
    assert isinstance(model.params, Weight)
    np.testing.assert_allclose(model(X), X @ X)
    loaded = tf.saved_model.load(tmp_path / "m")
    assert {v.name for v in loaded.variables} == {"w:0"}


WITHOUT = """
import sys, warnings, bridge, numpy as np
x = np.eye(2, dtype=np.float32)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    pair = bridge.load(sys.argv[1] + "/named tuple")
    found = pair(*[{"x": x, "y": x + 1}])
    assert found._fields == ("x", "y") and found.x[0, 1] == 2, found
    assert pair(type(found)(x, x + 1)).x[0, 1] == 2
    assert [str(w.message).split("imported, ")[0] for w in caught] == [
        "The pytrees of <lambda> have classes that this process has not "
    ], caught
for name, fields in [("attributes", {"bias": x, "weight": x + 1}), ("dataclass", {"a": x, "b": x}),
                     ("frozen", {"a": {"c": x}}), ("equinox", {"w": x})]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = bridge.load(sys.argv[1] + "/" + name)
        found = model(fields)
        assert len(caught) == 1, caught
    for key in found.keys():
        assert found[key].shape == (2, 2) and getattr(found, key) is found[key]
others = ("flax", "optax", "equinox", "tests.verbs.pytree_classes")
print(found, [name for name in sys.modules if name in others])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    bridge.save(model.default.exported, sys.argv[2])
"""


def test_without_the_classes(files, tmp_path):
    """Stand-ins have the fields, one warning is given, nothing is imported, nothing is lost."""
    said = run_without_tensorflow(WITHOUT, files, tmp_path / "again")
    assert said.startswith("Weight(w=")
    assert said.endswith(" []\n")
    assert isinstance(bridge.load(tmp_path / "again")(Weight(X)), Weight)


def test_a_class_with_other_fields_has_a_stand_in(files, monkeypatch):
    class Other(NamedTuple):
        x: Any

    monkeypatch.setattr("tests.verbs.pytree_classes.Pair", Other)
    monkeypatch.setattr("tests.verbs.pytree_classes.Data", Attributes)
    with pytest.warns(UserWarning, match=r"other fields here: .*pytree_classes:Pair\. "):
        found = bridge.load(files / "named tuple")(Pair(X, X))
    assert (found._fields, type(found) is Pair) == (("x", "y"), False)
    with pytest.warns(UserWarning, match=r"other fields here: .*pytree_classes:Data\. "):
        bridge.load(files / "dataclass")(Data(X, X))


class Holder:
    """A class whose static data is whatever it is given."""

    def __init__(self, x, static):
        self.x, self.static = x, static


jax.tree_util.register_pytree_node(
    Holder, lambda h: ((h.x,), h.static), lambda static, parts: Holder(*parts, static)
)


@pytest.mark.parametrize("static", [object(), {1, 2}, 1j, [1, (object(),)]])
def test_static_data_that_no_file_holds(static, tmp_path):
    taken = jax.export.export(jax.jit(lambda tree: tree["h"].x))({"h": Holder(X, static)})
    with pytest.raises(UnsupportedError, match=r"the argument args\[0\]\['h'\] .*Holder.*To do"):
        bridge.save(taken, tmp_path / "m")
    returned = jax.export.export(jax.jit(lambda x: [Holder(x, static)]))(X)
    with pytest.raises(UnsupportedError, match=r"the result\[0\] \(static data of Holder\).*To do"):
        bridge.save(returned, tmp_path / "m")
