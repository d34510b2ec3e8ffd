"""Serve a decoder whose cache lives in the model: a request is a token, and so is the answer.

`prefill` takes a prompt and `decode` a token; both write the cache, a part of the parameters, and
leave the weights as they are. The version below FOLDER is called as a server would: by the session
loader, with the signatures' own names, in a process that has TensorFlow alone.

    python examples/decoder_with_cache.py FOLDER
"""

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import bridge.serving

LENGTH, WIDTH, WORDS, TOKENS = 80, 32, 50, 64
PROMPT = [7, 30, 2, 11]

CLIENT = """
import sys
import tensorflow as tf

folder, count, *prompt = sys.argv[1:]
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    loaded = tf.compat.v1.saved_model.load(session, ["serve"], folder)

    def call(key, **inputs):
        signature = loaded.signature_def[key]
        fed = {signature.inputs[name].name: value for name, value in inputs.items()}
        return session.run({k: v.name for k, v in signature.outputs.items()}, fed)

    for _ in range(2):  # conversations, the second of which finds an empty cache
        call("reset")
        tokens = [call("prefill", tokens=list(map(int, prompt)))["token"]]
        while len(tokens) < int(count):
            tokens.append(call("decode", token=tokens[-1])["token"])
        print(*tokens)
assert "bridge" not in sys.modules
"""


def main() -> None:
    folder = Path(sys.argv[1])
    state = {"weights": weights(), "cache": empty_cache()}
    published = bridge.serving.publish(
        {"prefill": prefill, "decode": decode, "reset": reset},
        folder / "models" / "decoder",
        params=state,
        args={"prefill": f"i32[{len(PROMPT)}]", "decode": "i32[]", "reset": ()},
        updates={"prefill": {"cache": 1}, "decode": {"cache": 1}, "reset": 0},
        platforms=["cpu"],
        gradient_order=0,
    )
    print(f"version {published.version}, and {TOKENS} tokens by JAX:")
    print(*generate(state))
    print("by the session loader, in another process:", flush=True)
    command = [sys.executable, "-c", CLIENT, published.path, str(TOKENS), *map(str, PROMPT)]
    subprocess.run(command, check=True)


def prefill(state, tokens):
    return attend(state["weights"], empty_cache(), tokens)


def decode(state, token):
    return attend(state["weights"], state["cache"], token[None])


def reset(state):
    return {"cache": jax.tree.map(jnp.zeros_like, state["cache"])}


def attend(weights, cache, tokens):
    """Tokens -> the one that follows them, and the cache with them."""
    places = cache["at"] + jnp.arange(len(tokens))
    x = weights["embedding"][tokens] + jnp.sin(places[:, None] / (1 + jnp.arange(WIDTH)))
    q, k, v = jnp.split(x @ weights["qkv"], 3, axis=-1)
    write = jax.lax.dynamic_update_slice_in_dim
    k, v = write(cache["k"], k, cache["at"], 0), write(cache["v"], v, cache["at"], 0)
    seen = jnp.arange(LENGTH) <= places[:, None]
    attention = jax.nn.softmax(jnp.where(seen, q @ k.T / WIDTH**0.5, -jnp.inf))
    scores = (attention @ v + x) @ weights["out"]
    token = jnp.argmax(scores[-1]).astype("int32")
    return {"token": token}, {"k": k, "v": v, "at": cache["at"] + len(tokens)}


def empty_cache():
    return {"k": jnp.zeros((LENGTH, WIDTH)), "v": jnp.zeros((LENGTH, WIDTH)), "at": jnp.int32(0)}


def weights():
    draw = np.random.default_rng(0).standard_normal
    shapes = {"embedding": (WORDS, WIDTH), "qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WORDS)}
    return {name: draw(shape, np.float32) / shape[0] ** 0.5 for name, shape in shapes.items()}


def generate(state):
    """The tokens that follow the prompt, by JAX."""
    outputs, cache = jax.jit(prefill)(state, np.array(PROMPT, np.int32))
    tokens, step = [outputs["token"]], jax.jit(decode)
    while len(tokens) < TOKENS:
        outputs, cache = step({**state, "cache": cache}, tokens[-1])
        tokens.append(outputs["token"])
    return tokens


if __name__ == "__main__":
    main()
