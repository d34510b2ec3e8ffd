"""Signatures that assign their parameters: the cost of a step of a decoder, and of its memory.

A token of the decoder takes about twice as long as in JAX 0.10, of which a profile says (TensorFlow
2.21, a token in 8.1 ms, in JAX 3.6 ms): 7.2 ms are the compiled code, 0.9 ms dispatch, locks and
the thread that waits. The XLA in TensorFlow's wheel fuses the slice of a layer into the product
with it (`bitcast_dot_fusion`, 1.3 ms for each product with the values of a cache), which newer ones
do not (a slice and a product, 0.3 and 0.1 ms). Nothing is copied: the new cache has the memory of
the old one.

What is ours is at most what `variables_of_steps` compares: a step through the file, against a
function that TensorFlow compiles with as many variables.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.measure import Ratio, compare

_LAYERS, _LENGTH, _WIDTH, _WORDS = 4, 2048, 512, 1000
_STEPS = 30
# A training step with momentum; its state has the size in bytes that the process is given.
_ROWS = 16_384
_TRAINING = """
import sys
import numpy as np
import jax, jax.numpy as jnp

way, folder, rows, columns, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])


def step(state, x):
    grads = jax.grad(lambda w: jnp.mean((x @ w) ** 2))(state["w"])
    m = 0.9 * state["m"] + grads
    return {"w": state["w"] - 0.1 * m, "m": m}, jnp.sum(m[0])


shape = (rows, columns)
if way == "save":
    import bridge
    state = {"w": np.full(shape, 0.5, np.float32), "m": np.zeros(shape, np.float32)}
    bridge.save(step, folder, params=state, args=f"f32[1,{rows}]", updates=0, platforms=["cpu"],
                gradient_order=0)
elif way == "tensorflow":
    import tensorflow as tf
    call = tf.saved_model.load(folder).signatures["serving_default"]
    for _ in range(steps):
        call(x=tf.ones((1, rows)))["output_0"].numpy()
else:
    call = jax.jit(step, donate_argnums=0)
    state = {"w": jnp.full(shape, 0.5), "m": jnp.zeros(shape)}
    for _ in range(steps):
        state, out = call(state, np.ones((1, rows), np.float32))
        out.block_until_ready()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) * 1024)
"""


def decoding() -> Iterator[Ratio]:
    """A token, with the cache in variables, in JAX with donation, and through a signature."""
    import jax
    import numpy as np
    import tensorflow as tf

    import bridge

    weights, cache = _decoder()
    state, token = {"weights": weights, "cache": cache}, np.int32(1)
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"platforms": ["cpu"], "gradient_order": 0}
        assigning = bridge.save(
            _decode, f"{folder}/ours", params=state, args="i32[]", updates={"cache": 1}, **options
        )
        specs = dict.fromkeys(("k", "v"), f"f32[{_LAYERS},{_LENGTH},{_WIDTH}]") | {"at": "i32[]"}
        passing = bridge.save(
            lambda weights, cache, token: _decode({"weights": weights, "cache": cache}, token),
            f"{folder}/passing",
            params=weights,
            args=(specs, "i32[]"),
            **options,
        )
        ours = tf.saved_model.load(assigning.path)
        peer = tf.saved_model.load(passing.path)

        def in_variables() -> None:
            ours(tf.constant(token)).numpy()

        held = {"tf": jax.tree.map(tf.constant, cache), "jax": cache}

        def passed() -> None:
            out, held["tf"] = peer(held["tf"], tf.constant(token))
            out.numpy()

        jitted = jax.jit(
            lambda cache, weights, token: _decode({"weights": weights, "cache": cache}, token),
            donate_argnums=0,
        )

        def in_jax() -> None:
            out, held["jax"] = jitted(held["jax"], weights, token)
            out.block_until_ready()

        what = "a token of a decoder with 32 MB of cache: updates="
        for name, other, limit in (("passed in and out", passed, 1.0), ("jax.jit", in_jax, None)):
            yield compare(
                f"{what} / {name}", _timed(in_variables), _timed(other),
                limit=limit, unit="ms", scale=1e3,
            )  # fmt: skip


def variables_of_steps() -> Iterator[Ratio]:
    """A step that adds to a number of small variables, against TensorFlow's own function."""
    import jax.numpy as jnp
    import tensorflow as tf

    import bridge

    def step(state: Any, x: Any) -> Any:
        return {name: value + x for name, value in state.items()}, x * 2

    for count in (1, 100, 400):
        state = {f"v{number:03}": jnp.zeros(4) for number in range(count)}
        with tempfile.TemporaryDirectory() as folder:
            bridge.save(
                step, folder, params=state, args="f32[]", updates=0, platforms=["cpu"],
                gradient_order=0, overwrite=True,
            )  # fmt: skip
            ours = tf.saved_model.load(folder)
            variables = [tf.Variable(tf.zeros(4)) for _ in range(count)]
            peer = _tensorflow_step(variables)
            x = tf.constant(1.0)
            yield compare(
                f"a step that assigns {count} small variables: updates= / tf.function, jit_compile",
                _timed(lambda ours=ours, x=x: ours(x).numpy()),
                _timed(lambda peer=peer, x=x: peer(x).numpy()),
                limit=None, unit="us", scale=1e6,
            )  # fmt: skip


def _tensorflow_step(variables: Any) -> Any:
    import tensorflow as tf

    @tf.function(jit_compile=True)
    def step(x: Any) -> Any:
        for variable in variables:
            variable.assign_add(x * tf.ones(4))
        return x * 2

    return step


def training_memory() -> Iterator[Ratio]:
    """The peak of memory of a training step whose state has 1 GiB, over that of a small one."""
    with tempfile.TemporaryDirectory() as folder:
        peaks: dict[tuple[str, int], float] = {}
        for columns in (64, 8192):
            path = f"{folder}/{columns}"
            _run("save", path, columns)
            for way in ("tensorflow", "jax"):
                peaks[way, columns] = _run(way, path, columns)
    ours, peer = (peaks[way, 8192] - peaks[way, 64] for way in ("tensorflow", "jax"))
    yield Ratio(
        "memory of a training step with a state of 1 GiB: updates= / jax.jit with donation",
        (ours / peer,),
        1.1,
        f"{ours / 2**20:.0f} MB",
        f"{peer / 2**20:.0f} MB",
    )


def _run(way: str, path: str, columns: int) -> float:
    command = [sys.executable, "-W", "ignore", "-c", _TRAINING, way, path, str(_ROWS), str(columns)]
    done = subprocess.run([*command, "5"], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def _timed(call: Callable[[], None]) -> Callable[[], float]:
    """Return a function that returns the seconds that a call takes."""

    def run() -> float:
        call()
        started = time.perf_counter()
        for _ in range(_STEPS):
            call()
        return (time.perf_counter() - started) / _STEPS

    return run


def _decoder() -> tuple[Any, Any]:
    import jax.numpy as jnp
    import numpy as np

    draw = np.random.default_rng(0).standard_normal
    layers, width = _LAYERS, _WIDTH
    shapes = {"embed": (_WORDS, width), "qkv": (layers, width, 3 * width), "out": (width, _WORDS)}
    weights = {name: jnp.asarray(draw(s, np.float32) / width**0.5) for name, s in shapes.items()}
    empty = {name: jnp.zeros((layers, _LENGTH, width)) for name in ("k", "v")}
    return weights, {**empty, "at": jnp.int32(0)}


def _decode(state: Any, token: Any) -> Any:
    import jax
    import jax.numpy as jnp

    weights, cache = state["weights"], state["cache"]
    k, v, at, x = cache["k"], cache["v"], cache["at"], weights["embed"][token]
    seen = jnp.arange(_LENGTH) <= at
    for layer in range(_LAYERS):
        q, new_k, new_v = jnp.split(x @ weights["qkv"][layer], 3)
        k = jax.lax.dynamic_update_slice(k, new_k[None, None], (layer, at, 0))
        v = jax.lax.dynamic_update_slice(v, new_v[None, None], (layer, at, 0))
        scores = jnp.where(seen, k[layer] @ q / _WIDTH**0.5, -jnp.inf)
        x = x + jax.nn.softmax(scores) @ v[layer]
    token = jnp.argmax(x @ weights["out"]).astype("int32")
    return token, {"k": k, "v": v, "at": at + 1}
