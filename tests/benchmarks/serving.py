"""The cold start of a served model: from the start of loading to the first answer."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio

# A process of its own for each, since what is compiled stays in the process. The import of
# TensorFlow is not counted: a model server has none.
_LOAD_AND_ASK = """
import sys, time
import numpy as np
from bridge.local_server.servable import Servable, to_proto
x = to_proto(np.load(sys.argv[2]))
started = time.perf_counter()
servable = Servable(sys.argv[1], 1)
ready = time.perf_counter()
servable.predict("", {"x": x})
answered = time.perf_counter()
servable.predict("", {"x": x})
print(ready - started, answered - ready, time.perf_counter() - answered)
"""
_ROUNDS = 5
_WARMUP = (1, 2)
_CACHED = ("compilation cache", "compilation cache, other weights")


@dataclass(frozen=True)
class _Start:
    """Seconds.

    Attributes:
        load: until the model can be called, warmup included.
        first: of the first request.
        second: of the same request once more.
    """

    load: float
    first: float
    second: float

    @property
    def whole(self) -> float:
        return self.load + self.first


def cold_start() -> Iterator[Ratio]:
    """The first answer of 12 layers with warmup records and with a compilation cache.

    What the cache has was compiled for other weights, too.
    """
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        _publish(folder)
        kinds = {
            "plain": (folder / "plain/1", None),
            "warmup records": (folder / "warm/1", None),
            "compilation cache": (folder / "plain/1", folder / "cache"),
            "compilation cache, other weights": (folder / "plain/2", folder / "cache"),
            "both": (folder / "warm/1", folder / "warm_cache"),
        }
        for name in kinds:  # what fills the caches is not counted
            _start(*kinds[name], folder / "x.npy")
        filled = sorted(folder.glob("*cache/*"))
        rounds = [
            {name: _start(*kind, folder / "x.npy") for name, kind in kinds.items()}
            for _ in range(_ROUNDS)
        ]
        assert sorted(folder.glob("*cache/*")) == filled, "something was compiled again"
    limits = {"warmup records": 0.2, "both": 0.2} | dict.fromkeys(_CACHED, 0.7)
    for name, limit in limits.items():
        yield _ratio(f"cold start, first request: {name} / none", rounds, name, "first", limit)
    for name in limits:
        yield _ratio(f"cold start, load and first request: {name} / none", rounds, name, "whole")
    yield _ratio("cold start, load: warmup records / none", rounds, "warmup records", "load")
    firsts = tuple(found["warmup records"].first for found in rounds)
    seconds = tuple(found["warmup records"].second for found in rounds)
    yield Ratio(
        "cold start, with warmup records: first request / second",
        tuple(a / b for a, b in zip(firsts, seconds, strict=True)),
        None,
        _text(firsts),
        _text(seconds),
    )


def _ratio(
    what: str,
    rounds: list[dict[str, _Start]],
    name: str,
    field: str,
    limit: float | None = None,
) -> Ratio:
    ours = tuple(getattr(found[name], field) for found in rounds)
    peer = tuple(getattr(found["plain"], field) for found in rounds)
    ratios = tuple(a / b for a, b in zip(ours, peer, strict=True))
    return Ratio(what, ratios, limit, _text(ours), _text(peer))


def _text(seconds: tuple[float, ...]) -> str:
    return f"{statistics.median(seconds) * 1e3:.3g} ms"


def _publish(folder: Path) -> None:
    import jax

    import bridge

    params, x = models.transformer_layers()
    batch = jax.ShapeDtypeStruct(
        jax.export.symbolic_shape(f"b, {x.shape[1]}, {x.shape[2]}"), x.dtype
    )
    exported = jax.export.export(jax.jit(models.transformer))(params, batch)
    bridge.serving.publish(exported, folder / "plain", params=params, operations="xla")
    other = jax.tree.map(lambda weights: weights * 1.01, params)
    bridge.serving.publish(None, folder / "plain", weights=other)
    form = {"operations": "xla"}
    bridge.serving.publish(exported, folder / "warm", params=params, warmup=_WARMUP, **form)
    np.save(folder / "x.npy", np.resize(x, (max(_WARMUP), *x.shape[1:])))


def _start(version: Path, cache: Path | None, x: Path) -> _Start:
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    if cache is not None:
        environment["TF_XLA_FLAGS"] = f"--tf_xla_persistent_cache_directory={cache}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LOAD_AND_ASK, str(version), str(x)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    return _Start(*map(float, done.stdout.split()))
