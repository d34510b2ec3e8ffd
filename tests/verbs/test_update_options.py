"""Every option of `save`, in pairs with every other one, where a signature assigns: against JAX."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

import bridge
from tests.verbs.option_functions import CHECKS, HOISTED, of_origin
from tests.verbs.option_tables import UPDATES

ROWS = UPDATES.rows()
X, Y = np.array([[1, 2], [3, 4], [5, 7]], np.float32), np.float32(0.5)
NARROW = ("bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")
OTHERS = ("uint32", "bool", "complex64")
TABLE = jnp.asarray(np.arange(64, dtype=np.float32) / 64)
PLATFORMS = {"default": ("cpu", "cuda", "tpu"), "one": ("cpu",), "cpu last": ("tpu", "cuda", "cpu")}
SIZES = {"static": "f32[3,2]", "symbolic": "f32[b,2]"}
FILES = {"default": {}, "shards": {"num_shards": 2}, "manifest": {"manifest": True}}


class NamedState(NamedTuple):
    w: Any
    v: Any
    extra: Any


class RegisteredState(NamedTuple):
    w: Any
    v: Any
    extra: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class DataState:
    w: Any
    v: Any
    extra: Any


export.register_namedtuple_serialization(RegisteredState, serialized_name="tests.RegisteredState")


def _tree(kind, w, v, extra):
    """A state of the kind."""
    made = {"named tuple": NamedState, "registered": RegisteredState, "dataclass": DataState}
    if kind in made:
        return made[kind](w, v, extra)
    rest: dict[str, Any] = {"with None": {"none": None, "nothing": ((), {"deep": []})}}.get(
        kind, {}
    )
    return {"w": w, "v": v, "extra": extra, **({"again": extra} if kind == "tied" else rest)}


def _parts(state):
    if not isinstance(state, dict):
        return state.w, state.v, state.extra
    return state["w"], state["v"], state["extra"]


def _initial(row):
    key = jax.random.key(3)
    extra = {
        "float": jnp.asarray([0.0, 1, 0]),
        "key": key,
        "keys": {"fry": jax.random.split(key), "rbg": jax.random.key(1, impl="rbg")},
        "narrow": {name: jnp.asarray([0, 1, 0]).astype(name) for name in NARROW},
        "others": {name: jnp.asarray([0, 1, 0]).astype(name) for name in OTHERS}
        | {"empty": jnp.zeros((0, 3))},
    }[row["extra"]]
    return _tree(
        row["tree"], jnp.asarray([[0.5, 1], [2, 1]]), jnp.asarray([[1.0, 0], [0, 2]]), extra
    )


def _advanced(extra):
    if isinstance(extra, dict):
        return {name: _advanced(leaf) for name, leaf in extra.items()}
    if jax.dtypes.issubdtype(extra.dtype, jax.dtypes.prng_key):
        return jax.random.split(extra, extra.size)[0] if not extra.ndim else extra[::-1]
    if extra.dtype == bool:
        return ~extra
    if extra.dtype == jnp.complex64:
        return extra * 1j + 1
    return (extra.astype("float32") + 1).astype(extra.dtype)


def _computed(function, w, v, x):
    """New values of two parameters."""
    if function == "swapped":
        return v, w
    if function == "chosen":
        return jnp.where(w > v, w, v), v * TABLE[:4].reshape(2, 2)
    if function == "unread":
        return jnp.full((2, 2), 3.0), v + jnp.sum(TABLE)
    if function == "written":
        return jax.lax.dynamic_update_slice(w, v[:1], (1, 0)), v
    if function == "factored":
        return jnp.linalg.cholesky(w @ w.T + jnp.eye(2) * (1 + jnp.mean(x))), v
    if function == "looped":
        return jax.lax.fori_loop(0, 3, lambda i, w: w * 0.5 + i, w), v
    return w * 0.9 + jnp.mean(x), v + 1


def _step_of(row):
    def step(state, x, y):
        w, v, extra = _parts(state)
        new_w, new_v = _computed(row["function"], w, v, x)
        new = _tree(row["tree"], new_w, new_v, _advanced(extra))
        loss = jnp.sum(jnp.tanh(x @ w) * y) + jnp.sum(new_v)
        if row["rest"] == "nothing":
            return _tree(row["tree"], new_w, new_v + y * jnp.sum(x), _advanced(extra))
        return new, {"loss": loss, "old": w} if row["rest"] == "dict" else loss

    return step


def look(state, x, y):
    w, v, _ = _parts(state)
    return x @ w * y + v[0]


def _new_and_rest(row, results):
    return (results, None) if row["rest"] == "nothing" else results


class Saved:
    """A file of a row, and how it is called."""

    def __init__(self, row, folder):
        self.row, self.step, self.state = row, _step_of(row), _initial(row)
        self.path = folder / "written"
        self.names = (
            {"x": "rows", "y": "scale"} if row["names"] == "given" else {"x": "x", "y": "y"}
        )
        self._save()
        self.path = of_origin(row, self.path)

    def _save(self):
        row = self.row
        args, platforms = f"{SIZES[row['sizes']]}, f32[]", PLATFORMS[row["platforms"]]
        options = {
            "params": self.state,
            "trainable": row["trainable"] == "all",
            "gradient_order": int(row["gradient_order"]),
            "residuals": row["residuals"] == "yes",
            "linalg": row["linalg"],
            "disabled_checks": CHECKS[row["disabled_checks"]],
            "updates": {"step": 0},
            "operations": row["operations"],
            **HOISTED[row["hoist_constants"]],
            **FILES[row["files"]],
        }
        step = jax.jit(self.step, donate_argnums=0 if row["model"] == "donated" else ())
        if row["model"] in ("exported", "mixed"):
            symbolic = row["sizes"] == "symbolic"
            rows = export.symbolic_shape("b, 2") if symbolic else (3, 2)
            x = jax.ShapeDtypeStruct(rows, "float32")
            y = jax.ShapeDtypeStruct((), "float32")
            step = export.export(step, platforms=platforms)(self.state, x, y)
        model = {"step": step, "look": look}
        if row["model"] == "exported":
            model["look"] = export.export(jax.jit(look), platforms=platforms)(self.state, x, y)
        else:
            options |= {"args": args, "platforms": platforms}
        if row["names"] == "given":
            options |= {"inputs": self.names, "outputs": {"step": self._outputs()}}
        if row["defaults"] == "given":
            options["defaults"] = {"step": {self.names["y"]: Y}}
        if row["batch_buckets"] != "none":
            options["batch_buckets"] = {"look": (3, 8)}
        if row["tensorflow"] != "newest":
            options["tensorflow"] = row["tensorflow"]
        bridge.save(model, self.path, **options)

    def _outputs(self):
        return {"loss": "cost"} if self.row["rest"] == "dict" else {"output_0": "cost"}

    def inputs(self, x, y):
        return {self.names["x"]: x, self.names["y"]: y}

    def expected_outputs(self, rest):
        """The outputs of the signature by their names."""
        if self.row["rest"] == "nothing":
            return {"updated": True}
        by_name = rest if self.row["rest"] == "dict" else {"output_0": rest}
        given = self._outputs() if self.row["names"] == "given" else {}
        return {given.get(name, name): value for name, value in by_name.items()}


def _bits(leaf):
    """A leaf as what a variable holds."""
    is_key = isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def _leaves(state):
    """The leaves of a state by their paths."""
    flat = jax.tree_util.tree_flatten_with_path(state)[0]
    text = jax.tree_util.keystr
    return {text(path, simple=True, separator="/"): _bits(leaf) for path, leaf in flat}


def _same(got, want):
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype
    if got.dtype.kind not in "biufc":
        got, want = got.astype("float32"), want.astype("float32")
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.fixture(params=range(len(ROWS)), ids=lambda i: f"{i}-{ROWS[i]['function']}", scope="module")
def saved(request, tmp_path_factory):
    return Saved(ROWS[request.param], tmp_path_factory.mktemp("updates"))


def test_every_call_assigns_what_jax_returns(saved):
    row, state = saved.row, saved.state
    if row["mode"] == "session":
        _test_session(saved)
        return
    loaded = tf.saved_model.load(saved.path)
    call = loaded.signatures["step"]
    if row["mode"] != "eager":
        compiled = row["mode"] == "jit"
        call = tf.function(
            lambda **inputs: loaded.signatures["step"](**inputs), jit_compile=compiled
        )
    variables = {v.name.split(":")[0]: v for v in loaded.variables}
    for i in range(3):
        got = call(**saved.inputs(tf.constant(X + i), tf.constant(Y)))
        state, rest = _new_and_rest(row, jax.jit(saved.step)(state, X + i, Y))
        want = saved.expected_outputs(rest)
        assert got.keys() == want.keys()
        for name in want:
            _same(got[name], want[name])
        leaves = _leaves(state)
        for path, leaf in leaves.items():
            _same(variables[path].numpy(), leaf)
    looked = loaded.signatures["look"](**saved.inputs(tf.constant(X), tf.constant(Y)))
    _same(looked["output_0"], jax.jit(look)(state, X, Y))
    if row["mode"] != "jit" or row["origin"] != "written":
        _assert_gradients(saved, loaded, variables, state)


def _assert_gradients(saved, loaded, variables, state):
    row = saved.row
    if row["rest"] == "nothing" or row["gradient_order"] == "0":
        return
    name = next(iter(saved.expected_outputs({"loss": 0, "old": 0} if row["rest"] == "dict" else 0)))
    x, w = tf.constant(X), variables["w"]
    sources = [x, w] if row["trainable"] == "all" else [x]
    is_second = row["gradient_order"] == "2"
    with tf.GradientTape() if is_second else contextlib.nullcontext() as second:
        if is_second:
            second.watch(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loaded.signatures["step"](**saved.inputs(x, tf.constant(Y)))[name]
        grads = tape.gradient(loss, sources)
        total = tf.reduce_sum(grads[0] ** 2)

    def cost(w, x):
        flat, tree = jax.tree.flatten(state)
        position = [*_leaves(state)].index("w")
        with_w = jax.tree.unflatten(tree, [*flat[:position], w, *flat[position + 1 :]])
        rest = saved.step(with_w, x, Y)[1]
        return rest["loss"] if row["rest"] == "dict" else rest

    old = _parts(state)[0]
    wanted = jax.grad(cost, argnums=(1, 0))(old, X)
    for got, want in zip(grads, wanted, strict=False):
        _same(got, want)
    if is_second:
        want = jax.grad(lambda x: jnp.sum(jax.grad(cost, argnums=1)(old, x) ** 2))(jnp.asarray(X))
        _same(second.gradient(total, x), want)


def _test_session(saved):
    row, state = saved.row, saved.state
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], str(saved.path))
        definition = meta.signature_def["step"]
        fed = {definition.inputs[name].name: v for name, v in saved.inputs(X, Y).items()}
        if row["defaults"] == "given" and row["origin"] != "saved again":  # which loses them
            fed.pop(definition.inputs[saved.names["y"]].name)
        fetched = {name: info.name for name, info in definition.outputs.items()}
        for _ in range(3):
            got = session.run(fetched, fed)
            state, rest = _new_and_rest(row, jax.jit(saved.step)(state, X, Y))
            for name, want in saved.expected_outputs(rest).items():
                _same(got[name], want)
        definition = meta.signature_def["look"]
        fed = {definition.inputs[name].name: v for name, v in saved.inputs(X, Y).items()}
        _same(session.run(definition.outputs["output_0"].name, fed), jax.jit(look)(state, X, Y))


def test_jax_has_the_same_function_again(saved):
    loaded, row = bridge.load(saved.path), saved.row
    signature = loaded.signatures["step"]
    got, got_rest = _new_and_rest(row, signature.exported.call(signature.params, X, Y))
    want, want_rest = _new_and_rest(row, jax.jit(saved.step)(saved.state, X, Y))
    jax.tree.map(lambda a, b: _same(_bits(a), _bits(b)), _leaves(got), _leaves(want))
    jax.tree.map(_same, got_rest, want_rest)
