"""Models that change, as their authors write them: each is saved by one line with `updates=`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import flax.struct
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState

DRAW = np.random.default_rng(0).standard_normal
X, Y = DRAW((4, 3), np.float32), DRAW((4, 2), np.float32)
DEFAULT = "serving_default"
BATCH = "f32[b,3], f32[b,2]"
WEIGHTS = {"w": jnp.asarray(DRAW((3, 2), np.float32)), "b": jnp.zeros(2)}
ADAM = optax.adam(1e-2)


def _default_calls(i: int) -> tuple[str, tuple[Any, ...]]:
    return DEFAULT, (X * (1 + i % 3), Y)


def _calls_of_x(i: int) -> tuple[str, tuple[Any, ...]]:
    return DEFAULT, (X * (1 + i % 3),)


def state_first(state: Any, results: Any) -> tuple[Any, Any]:
    return results


def state_second(state: Any, results: Any) -> tuple[Any, Any]:
    return results[1], results[0]


def dict_second(state: Any, results: Any) -> tuple[Any, Any]:
    return {**state, **results[1]}, results[0]


@dataclass(frozen=True)
class Idiom:
    """A model that changes, and what its author does with it in JAX.

    Attributes:
        model: what is saved: a function, or several by the keys of their signatures.
        state: what it begins with.
        options: args and updates of `bridge.save`.
        merge: the state and what a function returned -> the new state and the outputs.
        calls: for the number of a call the key of the signature and its arguments.
        jit: what the author compiles a function with.
        is_exact: whether TensorFlow and JAX compute the same bits.
    """

    model: Any
    state: Any
    options: Mapping[str, Any]
    merge: Callable[[Any, Any], tuple[Any, Any]] = state_first
    calls: Callable[[int], tuple[str, tuple[Any, ...]]] = _default_calls
    jit: Callable[[Any], Any] = jax.jit
    is_exact: bool = False

    @property
    def functions(self) -> Mapping[str, Any]:
        return self.model if isinstance(self.model, dict) else {DEFAULT: self.model}


def squared(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["w"]) + params["b"] - y) ** 2)


def train_state() -> Idiom:
    state = TrainState.create(apply_fn=squared, params=WEIGHTS, tx=ADAM)

    def train_step(state, x, y):
        loss, grads = jax.value_and_grad(state.apply_fn)(state.params, x, y)
        return state.apply_gradients(grads=grads), {"loss": loss}

    return Idiom(train_step, state, {"args": BATCH, "updates": 0})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class DataclassState:
    params: Any
    opt_state: Any
    step: Any


@flax.struct.dataclass
class StructState:
    params: Any
    opt_state: Any
    step: Any = 0
    name: str = flax.struct.field(pytree_node=False, default="adam")


class TupleState(NamedTuple):
    params: Any
    opt_state: Any
    step: Any


def optax_state(make: Any) -> Idiom:
    def train_step(state, x, y):
        loss, grads = jax.value_and_grad(squared)(state.params, x, y)
        updates, opt_state = ADAM.update(grads, state.opt_state, state.params)
        return make(optax.apply_updates(state.params, updates), opt_state, state.step + 1), loss

    state = make(WEIGHTS, ADAM.init(WEIGHTS), 0)
    return Idiom(train_step, state, {"args": BATCH, "updates": 0})


def optax_tuple() -> Idiom:
    def train_step(state, x, y):
        params, opt_state = state
        loss, grads = jax.value_and_grad(squared)(params, x, y)
        updates, opt_state = ADAM.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    state = (WEIGHTS, ADAM.init(WEIGHTS))
    return Idiom(train_step, state, {"args": BATCH, "updates": 0})


def linen_batch_stats() -> Idiom:
    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(2)(nn.BatchNorm(use_running_average=False, momentum=0.9)(x))

    model = Model()
    variables = model.init(jax.random.key(0), X)
    apply = functools.partial(model.apply, mutable=["batch_stats"])

    return Idiom(apply, variables, {"args": "f32[b,3]", "updates": 1}, dict_second, _calls_of_x)


class NnxModel(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.out = nnx.Linear(3, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(self.norm(x))


def nnx_training() -> Idiom:
    model = NnxModel(nnx.Rngs(0))
    graph, state = nnx.split((model, nnx.Optimizer(model, ADAM, wrt=nnx.Param)))

    def train_step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean((m(x) - y) ** 2))(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), loss

    return Idiom(train_step, state, {"args": BATCH, "updates": 0})


def nnx_part() -> Idiom:
    graph, state = nnx.split(NnxModel(nnx.Rngs(0)))

    def apply(state, x):
        model = nnx.merge(graph, state)
        return model(x), nnx.state(model, nnx.BatchStat)

    def merge(state, results):
        return nnx.merge_state(state, results[1]), results[0]

    return Idiom(apply, state, {"args": "f32[b,3]", "updates": 1}, merge, _calls_of_x)


def haiku_state() -> Idiom:
    def forward(x):
        return hk.Linear(2)(hk.BatchNorm(True, True, 0.9)(x, is_training=True))

    transformed = hk.without_apply_rng(hk.transform_with_state(forward))
    params, state = transformed.init(jax.random.key(0), X)

    def apply(variables, x):
        outputs, state = transformed.apply(*variables, x)
        return outputs, (variables[0], state)

    options = {"args": "f32[b,3]", "updates": 1}
    return Idiom(apply, (params, state), options, state_second, _calls_of_x)


class EquinoxModel(eqx.Module):
    norm: eqx.nn.BatchNorm
    out: eqx.nn.Linear

    def __init__(self, key):
        self.norm = eqx.nn.BatchNorm(3, axis_name="batch", mode="batch")
        self.out = eqx.nn.Linear(3, 2, key=key)

    def __call__(self, x, state):
        x, state = self.norm(x, state)
        return self.out(x), state


def equinox_state() -> Idiom:
    both = eqx.nn.make_with_state(EquinoxModel)(jax.random.key(0))

    def apply(both, x):
        model, state = both
        call = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
        outputs, state = call(x, state)
        return (model, state), outputs

    options = {"args": "f32[4,3]", "updates": 0}
    return Idiom(apply, both, options, calls=_calls_of_x, jit=eqx.filter_jit)


def equinox_training() -> Idiom:
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    state = (model, ADAM.init(eqx.filter(model, eqx.is_array)))

    def train_step(state, x, y):
        model, opt_state = state
        loss, grads = eqx.filter_value_and_grad(lambda m: jnp.mean((jax.vmap(m)(x) - y) ** 2))(
            model
        )
        updates, opt_state = ADAM.update(grads, opt_state, model)
        return (eqx.apply_updates(model, updates), opt_state), loss

    return Idiom(train_step, state, {"args": BATCH, "updates": 0}, jit=eqx.filter_jit)


LENGTH, WIDTH, WORDS = 8, 4, 11


def decoder_weights(width: int = WIDTH) -> dict[str, Any]:
    draw = np.random.default_rng(1).standard_normal
    shapes = {"embed": (WORDS, width), "qkv": (width, 3 * width), "out": (width, WORDS)}
    return {name: jnp.asarray(draw(shape, np.float32)) for name, shape in shapes.items()}


def empty_cache(length: int = LENGTH, width: int = WIDTH) -> dict[str, Any]:
    zeros = jnp.zeros((length, width))
    return {"k": zeros, "v": zeros, "at": jnp.int32(0)}


def prefill(state, tokens):
    """Tokens of a prompt -> the next one, and the cache."""
    cache = empty_cache(*state["cache"]["k"].shape)
    return attend(state["weights"], cache, tokens)


def decode(state, token):
    """A token -> the next one, and the cache with one position more."""
    token, cache = attend(state["weights"], state["cache"], token[None])
    return token, cache


def attend(weights, cache, tokens):
    places = cache["at"] + jnp.arange(tokens.shape[0])
    angles = places[:, None] / (1 + jnp.arange(weights["embed"].shape[1]))
    x = weights["embed"][tokens] + jnp.sin(angles)
    q, k, v = jnp.split(x @ weights["qkv"], 3, axis=-1)
    at, write = cache["at"], jax.lax.dynamic_update_slice_in_dim
    k, v = write(cache["k"], k, at, 0), write(cache["v"], v, at, 0)
    is_seen = jnp.arange(k.shape[0]) <= places[:, None]
    scores = jnp.where(is_seen, q @ k.T / np.sqrt(k.shape[1]), -jnp.inf)
    logits = (jax.nn.softmax(scores) @ v + x) @ weights["out"]
    new = {"k": k, "v": v, "at": at + tokens.shape[0]}
    return jnp.argmax(logits[-1]).astype("int32"), new


def decoder() -> Idiom:
    state = {"weights": decoder_weights(), "cache": empty_cache()}

    def merge(state, results):
        return {**state, "cache": results[1]}, results[0]

    def calls(i):
        if i % 7 == 0:
            return "prefill", (np.array([1, 2 + i // 7 % 5], np.int32),)
        return "decode", (np.int32(i % WORDS),)

    options = {
        "args": {"prefill": "i32[2]", "decode": "i32[]"},
        "updates": {"prefill": {"cache": 1}, "decode": {"cache": 1}},
    }
    return Idiom({"prefill": prefill, "decode": decode}, state, options, merge, calls)


def random_key(key: Any) -> Idiom:
    def draw(key, low):
        key, own = jax.random.split(key)
        return key, jax.random.uniform(own, (2,), minval=low)

    def calls(i):
        return DEFAULT, (np.float32(i % 2 / 2),)

    return Idiom(draw, key, {"args": "f32[]", "updates": 0}, calls=calls, is_exact=True)


def resetting() -> Idiom:
    state = {"total": jnp.zeros(2), "count": 0}

    def add(state, x):
        return {"total": state["total"] + x, "count": state["count"] + 1}, state["count"]

    def reset(state):
        return jax.tree.map(jnp.zeros_like, state)

    def merge(state, results):
        return results if isinstance(results, tuple) else (results, ())

    def calls(i):
        return ("add", (X[0, :2],)) if i % 5 else ("reset", ())

    options = {"args": {"add": "f32[2]", "reset": ()}, "updates": {"add": 0, "reset": 0}}
    return Idiom({"add": add, "reset": reset}, state, options, merge, calls)


IDIOMS: Mapping[str, Callable[[], Idiom]] = {
    "flax TrainState": train_state,
    "dataclass": functools.partial(optax_state, DataclassState),
    "flax.struct": functools.partial(optax_state, StructState),
    "named tuple": functools.partial(optax_state, TupleState),
    "tuple": optax_tuple,
    "linen batch_stats": linen_batch_stats,
    "nnx training": nnx_training,
    "nnx part": nnx_part,
    "haiku state": haiku_state,
    "equinox state": equinox_state,
    "equinox training": equinox_training,
    "decoder": decoder,
    "raw key": lambda: random_key(jax.random.PRNGKey(0)),
    "typed key": lambda: random_key(jax.random.key(0)),
    "reset": resetting,
}
