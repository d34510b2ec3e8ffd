"""Models in ONNX Runtime, against `jax.jit` and against what jax2onnx makes of the same functions.

A process of its own for each number of threads: XLA has as many as the process may use processors.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.measure import Ratio, compare, seconds

_THREADS = (1, 2)
_ROUNDS = 11
_BATCHES = (1, 4)  # of ResNet-50, beside the same network drawn by hand


@dataclasses.dataclass(frozen=True)
class _Case:
    """One measurement.

    Attributes:
        name: of the model.
        function: of parameters and one input.
        params: the parameters.
        x: the input.
        limit: what the ratio to `jax.jit` must not exceed.
        repeat: how many calls a time is averaged over.
        conversion: how many seconds a conversion may take; None where nothing is claimed.
        drawn: whether it is the network that somebody has drawn in ONNX.
    """

    name: str
    function: Callable[[Any, Any], Any]
    params: Any
    x: Any
    limit: float
    repeat: int
    conversion: float | None = None
    drawn: bool = False


def onnx_models() -> Iterator[Ratio]:
    """The ratios of all models, on one thread and on two."""
    for threads in _THREADS:
        command = [sys.executable, "-W", "ignore", "-m", __name__, str(threads)]
        child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        for fields in json.loads(child.stdout.splitlines()[-1]):
            yield Ratio(**fields | {"ratios": tuple(fields["ratios"])})


def _cases() -> Iterator[_Case]:
    from tests.benchmarks import models
    from tests.bridge import networks as onnx_models

    params, x = models.mlp_data(width=512, batch=32)
    yield _Case("MLP", models.mlp, params, x, 1.0, 20, 0.05)
    params, x = models.transformer_data(batch=2)
    yield _Case("transformer block", models.transformer_block, params, x, 1.5, 5)
    lstm = onnx_models.lstm(200, 64, 128)
    (x,) = lstm.inputs(8)
    yield _Case("LSTM of 200 steps", lstm.function, lstm.params, x, 3.0, 3)
    resnet = onnx_models.resnet()
    for batch in _BATCHES:
        (x,) = resnet.inputs(batch)
        name, conversion = f"ResNet-50, batch {batch}", 3.0 if batch == 1 else None
        yield _Case(name, resnet.function, resnet.params, x, 0.5, 1, conversion, drawn=True)


def _measured(case: _Case, threads: int) -> Iterator[Ratio]:
    import jax

    import bridge
    from tests.benchmarks.drawn_resnet import draw_resnet

    name = f"{case.name}, threads: {threads}"
    exported = jax.export.export(jax.jit(case.function))(case.params, case.x)
    model = bridge.to_onnx(exported, params=case.params)
    ours = _session(model, case.x, threads)
    jitted = jax.jit(case.function)
    params, x = jax.device_put((case.params, case.x))
    expected = jax.tree.leaves(jitted(params, x))
    _agree(ours(), expected)
    yield compare(
        f"{name}: ONNX Runtime / jax.jit",
        lambda: seconds(ours, repeat=case.repeat),
        lambda: seconds(lambda: jax.block_until_ready(jitted(params, x)), repeat=case.repeat),
        limit=case.limit,
        unit="ms",
        scale=1e3,
        rounds=_ROUNDS,
    )
    yield _against_jax2onnx(case, name, ours, expected, threads)
    if case.drawn:
        drawn = _session(draw_resnet(case.params, case.x), case.x, threads)
        _agree(drawn(), expected)
        yield compare(
            f"{name}: ours / drawn by hand",
            lambda: seconds(ours, repeat=case.repeat),
            lambda: seconds(drawn, repeat=case.repeat),
            limit=1.05,
            unit="ms",
            scale=1e3,
            rounds=_ROUNDS,
        )
    if threads == 1 and case.conversion is not None:
        times = [seconds(lambda: bridge.to_onnx(exported, params=case.params)) for _ in range(5)]
        text = f"{sorted(times)[2]:.3g} s"
        yield Ratio(f"{case.name}: seconds to convert", tuple(times), case.conversion, text, "")


def _against_jax2onnx(
    case: _Case, name: str, ours: Callable[[], Any], expected: Any, threads: int
) -> Ratio:
    import jax

    name = f"{name}: ours / jax2onnx's"
    try:
        import jax2onnx
    except ImportError:
        return Ratio(f"{name}: jax2onnx is not installed", (float("nan"),), None, "", "")
    try:
        spec = [jax.ShapeDtypeStruct(case.x.shape, case.x.dtype)]
        model = jax2onnx.to_onnx(lambda x: case.function(case.params, x), spec)
        peer = _session(model, case.x, threads)
        _agree(peer(), expected)
    except Exception as error:  # noqa: BLE001 - whatever it is, the peer has no model of this
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:60]
        return Ratio(f"{name}: jax2onnx fails, {reason}", (float("nan"),), None, "", "")
    return compare(
        name,
        lambda: seconds(ours, repeat=case.repeat),
        lambda: seconds(peer, repeat=case.repeat),
        limit=1.0,
        unit="ms",
        scale=1e3,
        rounds=_ROUNDS,
    )


def _session(model: Any, x: Any, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feed = {session.get_inputs()[0].name: x}
    return lambda: session.run(None, feed)


def _agree(found: list[Any], expected: list[Any]) -> None:
    """A comparison of two different computations would mean nothing."""
    import numpy as np

    for one, other in zip(found, map(np.asarray, expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-3 * float(np.abs(other).max()))


def _main(threads: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    results = [ratio for case in _cases() for ratio in _measured(case, threads)]
    print(json.dumps([dataclasses.asdict(result) for result in results]))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
