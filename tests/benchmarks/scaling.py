"""Growth of the cost of each verb with leaves, signatures, bytes of a module, and calls.

What is ten times as large may cost ten times as much, and what is kept in caches of the machine
some more. CPU seconds, of all threads.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

import bridge
from bridge.diff import diff
from bridge.keras import ExportedLayer
from bridge.retarget import retarget
from tests.benchmarks.measure import Ratio, compare

_PLATFORMS = ("cpu", "cuda", "tpu")
_LEAVES = (1, 1_000, 10_000)
_LIMIT = 15.0
_ROUNDS = 3

_Action = Callable[[], object]


def scaling() -> Iterator[Ratio]:
    """All of it; ours is the larger one, the peer the one that is a tenth as large."""
    with tempfile.TemporaryDirectory() as folder:
        files = _Files(folder)
        for name, make in _VERBS.items():
            yield _grown(f"{name}, 10,000 leaves to 1,000", make, files, _LEAVES)
        yield _call(files)
        # XLA compiles the layer before it runs, which is most of it.
        yield _grown("a Keras layer, 1,000 leaves to 100", _layer, files, (1, 100, 1_000))
        yield _grown(
            "verify, in this process, 1,000 leaves to 100", _verify, files, (1, 100, 1_000)
        )
        yield _grown("save, 200 signatures to 20", _save_signatures, files, (20, 200))
        yield _grown("load, 200 signatures to 20", _load_signatures, files, (20, 200))
        yield _grown("save, a module of 20 MB to 2 MB", _save_bytes, files, (2, 20))
        yield _grown("load, a module of 20 MB to 2 MB", _load_bytes, files, (2, 20))
        yield _grown("load, a file with 1,000 calls to 100", _load_calls, files, (100, 1_000))
        yield _grown("1,000 calls of a loaded function to 100", _call_often, files, (100, 1_000))


def _grown(
    name: str, make: Callable[[_Files, int], _Action], files: _Files, sizes: tuple[int, ...]
) -> Ratio:
    """The costs at the last size and at the one before, round by round."""
    *first, smaller, larger = (make(files, size) for size in sizes)
    alone = "".join(f"; {n}: {_cpu(action):.2g} s" for n, action in zip(sizes, first, strict=False))
    _cpu(smaller)
    rounds = [(_cpu(larger), _cpu(smaller)) for _ in range(_ROUNDS)]
    ours, peer = (statistics.median(side) for side in zip(*rounds, strict=True))
    ratios = tuple(mine / theirs for mine, theirs in rounds)
    return Ratio(name, ratios, _LIMIT, f"{ours:.3g} s", f"{peer:.3g} s{alone}")


def _cpu(action: _Action) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def _params(leaves: int, first: float = 0.0) -> dict[str, Any]:
    """A pytree of that many leaves, the same names again and again."""
    layers = [{"w": np.full(2, first + n, np.float32)} for n in range((leaves + 1) // 2)]
    return {"layers": layers, "biases": [np.full(2, n, np.float32) for n in range(leaves // 2)]}


def _predict(params: Any, x: Any) -> Any:
    """A result for each leaf: computed, zeros, handed on."""
    layers = [layer["w"] * x for layer in params["layers"]]
    half = len(params["biases"]) // 2
    return layers, [jnp.zeros(3) for _ in range(half)], params["biases"][half:]


class _Files:
    """The exports and files that several of the verbs share."""

    def __init__(self, folder: str) -> None:
        self._exported: dict[int, jax.export.Exported] = {}
        self._saved: dict[tuple[int, float], str] = {}
        self._paths = (f"{folder}/{number}" for number in itertools.count())

    def new(self) -> str:
        return next(self._paths)

    def exported(self, leaves: int) -> jax.export.Exported:
        if leaves not in self._exported:
            x = jax.ShapeDtypeStruct((2,), "float32")
            export = jax.export.export(jax.jit(_predict), platforms=_PLATFORMS)
            self._exported[leaves] = export(_params(leaves), x)
        return self._exported[leaves]

    def saved(self, leaves: int, first: float = 0.0) -> str:
        if (leaves, first) not in self._saved:
            path = self._saved[leaves, first] = self.new()
            bridge.save(self.exported(leaves), path, params=_params(leaves, first))
        return self._saved[leaves, first]


def _save(files: _Files, leaves: int) -> _Action:
    exported, params = files.exported(leaves), _params(leaves)
    return lambda: bridge.save(exported, files.new(), params=params)


def _load(files: _Files, leaves: int) -> _Action:
    path = files.saved(leaves)
    return lambda: bridge.load(path)


def _call(files: _Files) -> Ratio:
    """JAX's own dispatch takes twice the time for each of ten times as many arrays."""
    leaves, x = _LEAVES[-1], jnp.ones(2)
    model, params = bridge.load(files.saved(leaves)), jax.tree.map(jnp.asarray, _params(leaves))
    jitted = jax.jit(files.exported(leaves).call)
    return compare(
        "a call of what is loaded, 10,000 leaves, to jax.jit of the same",
        lambda: _cpu(lambda: model(x)),
        lambda: _cpu(lambda: jitted(params, x)),
        limit=1.3,
        unit="ms",
        scale=1e3,
    )


def _inspect(files: _Files, leaves: int) -> _Action:
    path = files.saved(leaves)
    return lambda: str(bridge.inspect(path))


def _diff(files: _Files, leaves: int) -> _Action:
    first, second = files.saved(leaves), files.saved(leaves, 0.5)
    return lambda: str(diff(first, second))


def _retarget(files: _Files, leaves: int) -> _Action:
    exported = files.exported(leaves)
    return lambda: bridge.retarget(exported, "2.18")


def _retarget_file(files: _Files, leaves: int) -> _Action:
    path = files.saved(leaves)
    return lambda: retarget(path, "2.18", to=files.new())


def _convert(files: _Files, leaves: int) -> _Action:
    exported, x = files.exported(leaves), tf.ones(2)
    params = tf.nest.map_structure(tf.constant, _params(leaves))

    def trace() -> object:
        function = tf.function(bridge.convert(exported), autograph=False)
        return function.get_concrete_function(params, x)

    return trace


def _to_onnx(files: _Files, leaves: int) -> _Action:
    exported, params = files.exported(leaves), _params(leaves)
    return lambda: bridge.to_onnx(exported, params=params)


def _layer(files: _Files, leaves: int) -> _Action:
    def total(params: Any, x: Any) -> Any:
        return sum(array * x for array in jax.tree.leaves(params))

    params, x = _params(leaves), np.ones((3, 2), np.float32)
    return lambda: ExportedLayer(total, params=params)(x)


def _verify(files: _Files, leaves: int) -> _Action:
    path = files.saved(leaves)
    return lambda: bridge.verify(path)


_VERBS: dict[str, Callable[[_Files, int], _Action]] = {
    "save": _save,
    "load": _load,
    "inspect": _inspect,
    "diff": _diff,
    "retarget of an Exported": _retarget,
    "retarget of a file": _retarget_file,
    "convert, traced": _convert,
    "to_onnx": _to_onnx,
}


def _signatures(count: int) -> dict[str, jax.export.Exported]:
    export = jax.export.export(jax.jit(lambda params, x: x * params["w"]), platforms=_PLATFORMS)
    specs = (jax.ShapeDtypeStruct((n + 1,), "float32") for n in range(count))
    return {f"s{n}": export({"w": np.float32(1)}, spec) for n, spec in enumerate(specs)}


def _save_signatures(files: _Files, count: int) -> _Action:
    signatures, params = _signatures(count), {"w": np.float32(1)}
    return lambda: bridge.save(signatures, files.new(), params=params)


def _load_signatures(files: _Files, count: int) -> _Action:
    path = files.new()
    bridge.save(_signatures(count), path, params={"w": np.float32(1)})
    return lambda: bridge.load(path)


def _large(megabytes: int) -> jax.export.Exported:
    """Its module has a hundred different constants for each megabyte."""
    parts = np.arange(megabytes * 250_000, dtype=np.float32).reshape(-1, 2_500)

    def predict(x: Any) -> Any:
        for part in parts:
            x = jnp.sin(x) + part
        return x

    return jax.export.export(jax.jit(predict))(jax.ShapeDtypeStruct((2_500,), "float32"))


def _save_bytes(files: _Files, megabytes: int) -> _Action:
    exported = _large(megabytes)
    return lambda: bridge.save(exported, files.new(), gradient_order=0)


def _load_bytes(files: _Files, megabytes: int) -> _Action:
    path = files.new()
    bridge.save(_large(megabytes), path, gradient_order=0)
    return lambda: bridge.load(path)


def _load_calls(files: _Files, calls: int) -> _Action:
    """One signature that calls a function many times, saved by TensorFlow."""
    sine, path, module = bridge.convert(jnp.sin), files.new(), tf.Module()

    def repeated(x: Any) -> Any:
        for _ in range(calls):
            x = sine(x)
        return x

    module.run = tf.function(repeated, [tf.TensorSpec([3], tf.float32)], autograph=False)
    tf.saved_model.save(module, path)
    return lambda: bridge.load(path)


def _call_often(files: _Files, calls: int) -> _Action:
    model, x = bridge.load(files.saved(10)), jnp.ones(2)
    model(x)
    return lambda: [model(x) for _ in range(calls)]
