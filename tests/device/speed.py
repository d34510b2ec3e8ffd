"""`python -m tests.device.speed [jax] [linalg] [tensorflow]`: ratios on the device of this machine.

Each line is the median over rounds of ours over the peer's in the same process, after a warm-up.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import bridge
from tests.benchmarks import models
from tests.benchmarks.measure import Ratio, compare, seconds
from tests.bridge.networks import lstm, resnet

KEY = "serving_default"
BATCHES = (1, 64)
_REPEATS = 20
_SIZES = (16, 64, 256, 512)


def _networks(batch: int) -> dict[str, tuple[Callable[..., Any], Any, Any]]:
    """Name -> function of parameters and one input, the parameters, an input."""
    residual, recurrent = resnet(), lstm()
    return {
        "mlp": (models.mlp, *models.mlp_data(batch=batch)),
        "transformer block": (models.transformer_block, *models.transformer_data(batch=batch)),
        "resnet-50": (residual.function, residual.params, residual.inputs(batch)[0]),
        "lstm": (recurrent.function, recurrent.params, recurrent.inputs(batch)[0]),
    }


def _each() -> Iterator[tuple[str, Callable[..., Any], Any, Any]]:
    for dtype in (jnp.float32, jnp.bfloat16):
        for batch in BATCHES:
            for name, (function, params, x) in _networks(batch).items():
                arrays = jax.tree.map(lambda leaf, dtype=dtype: jnp.asarray(leaf, dtype), params)
                label = f"{name}, batch {batch}, {np.dtype(dtype).name}"
                yield label, function, arrays, jnp.asarray(x, dtype)


def _saved(folder: Path, function: Callable[..., Any], params: Any, x: Any) -> Path:
    path = folder / "model"
    spec = jax.ShapeDtypeStruct(x.shape, x.dtype)
    bridge.save(function, path, params=params, args=(spec,), overwrite=True)
    return path


def _timed(function: Callable[..., Any], *arguments: Any) -> Callable[[], float]:
    return lambda: seconds(lambda: jax.block_until_ready(function(*arguments)), repeat=_REPEATS)


def in_jax() -> Iterator[Ratio]:
    """Loaded and lifted functions against `jax.jit` of the original."""
    for label, function, params, x in _each():
        with tempfile.TemporaryDirectory() as folder:
            path = _saved(Path(folder), function, params, x)
            loaded, lifted = bridge.load(path), bridge.to_jax(path)
            original = jax.jit(function)
            ours = {
                "loaded": _timed(loaded, x),
                "loaded in jit": _timed(jax.jit(loaded), x),
                "lifted in jit": _timed(jax.jit(lifted), params, x),
            }
            for way, action in ours.items():
                name = f"{label}: {way} / jax.jit"
                peer = _timed(original, params, x)
                yield compare(name, action, peer, limit=None, unit="µs", scale=1e6)


def in_tensorflow() -> Iterator[Ratio]:
    """First calls of a signature, and later ones against the same operations of TensorFlow."""
    for label, function, params, x in _each():
        with tempfile.TemporaryDirectory() as folder:
            path = _saved(Path(folder), function, params, x)
            yield from _of_a_signature(label, path, params, x)


def _of_a_signature(label: str, path: Path, params: Any, x: Any) -> Iterator[Ratio]:
    import tensorflow as tf

    tensor = tf.constant(np.asarray(x))

    def run(function: Callable[..., Any]) -> float:
        call = lambda: next(iter(function(x=tensor).values())).numpy()  # noqa: E731
        return seconds(call, repeat=_REPEATS)

    started = time.perf_counter()
    model = tf.saved_model.load(str(path))
    loaded = time.perf_counter()
    signature = model.signatures[KEY]
    next(iter(signature(x=tensor).values())).numpy()
    first = time.perf_counter() - loaded
    loading = f"{loaded - started:.2f} s to load"
    yield Ratio(f"{label}: first call", (first,), None, f"{first:.2f} s", loading)
    if not label.startswith("mlp"):
        once = run(signature)
        yield Ratio(f"{label}: signature", (once,), None, f"{once * 1e6:.0f} µs", "")
        return
    plain = tf.function(lambda x: {"y": _mlp_of_tensorflow(tf, params, x)})
    peers = {"plain operations": plain}
    peers["jit_compile"] = tf.function(plain.python_function, jit_compile=True)
    for way, peer in peers.items():
        name = f"{label}: signature / {way}"
        ours, theirs = partial(run, signature), partial(run, peer)
        yield compare(name, ours, theirs, limit=None, unit="µs", scale=1e6)


def _mlp_of_tensorflow(tf: Any, params: Any, x: Any) -> Any:
    for layer in params:
        x = tf.tanh(x @ np.asarray(layer["w"]) + np.asarray(layer["b"]))
    return x


_FACTORIZATIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "qr": lambda a: jnp.abs(jnp.linalg.qr(a)[1]),
    "eigh": jnp.linalg.eigvalsh,
    "svd": lambda a: jnp.linalg.svd(a, compute_uv=False),
}


def in_linear_algebra() -> Iterator[Ratio]:
    """The portable factorizations against the solver of the device, values and gradients too."""
    platform = "cuda" if jax.default_backend() == "gpu" else jax.default_backend()
    for size in _SIZES:
        draw = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
        matrix = jnp.asarray(draw @ draw.T / size + np.eye(size, dtype=np.float32))
        for name, function in _FACTORIZATIONS.items():
            with tempfile.TemporaryDirectory() as folder:
                calls = {}
                for way in ("portable", "lapack"):
                    path = Path(folder, way)
                    spec = jax.ShapeDtypeStruct(matrix.shape, matrix.dtype)
                    options: Any = {"linalg": way, "platforms": [platform]}
                    bridge.save(function, path, args=(spec,), **options)
                    calls[way] = jax.jit(bridge.load(path))
                gradients = {
                    way: jax.jit(jax.grad(lambda a, f=f: f(a).sum())) for way, f in calls.items()
                }
                for what, pair in (("", calls), (", gradient", gradients)):
                    ours, peer = (np.asarray(pair[way](matrix)) for way in ("portable", "lapack"))
                    error = np.abs(ours - peer).max() / np.abs(peer).max()
                    yield compare(
                        f"{name} of {size}{what}: portable / library, {error:.1e} apart",
                        _timed(pair["portable"], matrix),
                        _timed(pair["lapack"], matrix),
                        limit=None,
                        unit="ms",
                        scale=1e3,
                        rounds=3,
                    )


MEASUREMENTS = {"jax": in_jax, "linalg": in_linear_algebra, "tensorflow": in_tensorflow}


def main(names: list[str]) -> None:
    """Print a line for each ratio, as soon as it is measured."""
    print(jax.devices()[0].device_kind, "JAX", jax.__version__, flush=True)
    for name in names or MEASUREMENTS:
        for ratio in MEASUREMENTS[name]():
            print(f"{ratio.median:8.3f}  {ratio.name}  ({ratio.ours}, {ratio.peer})", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
