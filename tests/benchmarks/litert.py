"""LiteRT models of networks, beside TensorFlow's converter, ONNX Runtime and `jax.jit`.

TensorFlow converts what `bridge.save` makes of the same function, in a process of its own, which
may die. Everything is run in one process on one core, and is right to 2e-5 of the largest number,
or the row says that it is not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.measure import Ratio, compare, seconds

if TYPE_CHECKING:
    from tests.bridge.networks import Model

_ROUNDS = 15
_CONVERSIONS = 3
_TOLERANCE = 2e-5
_KEY = "serving_default"
_TENSORFLOW = "TensorFlow's converter"


def _networks() -> dict[str, tuple[Callable[[], Model], int, int]]:
    """Return for each network how it is made, its batch, and calls in a round."""
    from tests.benchmarks import models
    from tests.bridge import networks as drawn

    def of(function: Any, data: Any) -> Model:
        params, x = data
        return drawn.Model(function, params, lambda batch: (x[:batch],), ())

    return {
        "MLP": (lambda: of(models.mlp, models.mlp_data(512)), 32, 100),
        "MobileNetV2": (drawn.mobilenet_v2, 1, 4),
        "ResNet-50": (drawn.resnet, 1, 1),
        "transformer block": (
            lambda: of(models.transformer_block, models.transformer_data()), 1, 5,
        ),
        "LSTM of 200 steps": (lambda: drawn.lstm(200, 64, 128), 8, 3),
        "GPT decode step": (lambda: drawn.gpt_step(4, 256, 512, 1000), 1, 20),
        "U-Net": (lambda: drawn.unet(16, 128), 1, 10),
    }  # fmt: skip


def litert_networks(rounds: int = _ROUNDS, names: Sequence[str] = ()) -> Iterator[Ratio]:
    """The sizes and latencies of all networks, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names or _networks():
            _python("savedmodel", folder, name)
            _python("tensorflow", folder, name, check=False)
        found = _python("compare", folder, str(rounds), *(names or _networks()))
    for fields in json.loads(found.splitlines()[-1]):
        yield Ratio(**fields | {"ratios": tuple(fields["ratios"])})


def litert_conversion(rounds: int = _CONVERSIONS) -> Iterator[Ratio]:
    """Time and memory of the conversion of ResNet-50, imports not counted in the time."""
    name = "ResNet-50"
    with tempfile.TemporaryDirectory() as folder:
        _python("savedmodel", folder, name)
        runs = [
            [json.loads(_python(way, folder, name).splitlines()[-1]) for way in _CONVERTING]
            for _ in range(rounds)
        ]
    for number, how in ((0, ""), (1, ", verified")):
        pairs = [(run[number], run[2]) for run in runs]
        what = f"conversion of {name}{how}"
        for key, unit, scale in (("seconds", "s", 1.0), ("bytes", "MB", 1e-6)):
            mine, worker, theirs = (
                statistics.median(values) * scale
                for values in zip(
                    *((a[key], a.get("worker", 0), b[key]) for a, b in pairs), strict=True
                )
            )
            both = f" + {worker:.3g}" if key == "bytes" else ""
            yield Ratio(
                f"{what}, {_WHAT[key]}: LiteRT / {_TENSORFLOW}",
                tuple(_total(a, key) / b[key] for a, b in pairs),
                None,
                f"{mine:.3g}{both} {unit}",
                f"{theirs:.3g} {unit}",
            )


_WHAT = {"seconds": "time", "bytes": "peak memory with that of its worker"}
_CONVERTING = ("litert", "verified", "tensorflow")


def _total(run: dict[str, float], key: str) -> float:
    """Return what a process has used, with its worker."""
    return run[key] + (run.get("worker", 0) if key == "bytes" else 0)


def _python(*arguments: str, check: bool = True) -> str:
    """Run this module in a process of its own, and return what it prints."""
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, *arguments]
    return subprocess.run(
        command, check=check, stdout=subprocess.PIPE, text=True, env=environment
    ).stdout


def _savedmodel(folder: str, name: str) -> None:
    import bridge

    make, batch, _ = _networks()[name]
    model = make()
    bridge.save(
        model.function, f"{folder}/{name}", params=model.params, args=_specs(model, batch),
        platforms=["cpu"], gradient_order=0,
    )  # fmt: skip


def _specs(model: Model, batch: int) -> Any:
    import jax

    return tuple(jax.ShapeDtypeStruct(array.shape, array.dtype) for array in model.inputs(batch))


def _tensorflow(folder: str, name: str) -> None:
    """Convert by TensorFlow; why it fails is written where the model would be."""
    import tensorflow as tf

    target = Path(folder, f"{name}.tensorflow")
    target.with_suffix(".failed").write_text("it ends the process")
    started = time.perf_counter()
    try:
        made = tf.lite.TFLiteConverter.from_saved_model(f"{folder}/{name}").convert()
    except Exception as error:  # noqa: BLE001 - whatever it is, the peer has no model of this
        reason = re.sub(r"\s+", " ", f"{type(error).__name__}: {error}")[:80]
        target.with_suffix(".failed").write_text(reason)
        return
    taken = time.perf_counter() - started
    target.write_bytes(made)
    target.with_suffix(".failed").unlink()
    print(json.dumps({"seconds": taken, "bytes": _peak("self")}))


def _litert(folder: str, name: str, *, verify: bool) -> None:
    import jax  # noqa: F401 - its import is not counted

    import bridge

    peaks = {0: 0}
    is_done = threading.Event()
    watcher = threading.Thread(target=_watch_workers, args=(peaks, is_done))
    watcher.start()
    started = time.perf_counter()
    bridge.to_litert(f"{folder}/{name}", verify=verify)
    taken = time.perf_counter() - started
    is_done.set()
    watcher.join()
    worker = max(peaks.values())
    print(json.dumps({"seconds": taken, "bytes": _peak("self"), "worker": worker}))


def _watch_workers(peaks: dict[int, int], is_done: threading.Event) -> None:
    """Note the peaks of the processes that this one has started."""
    while not is_done.wait(0.02):
        for task in Path("/proc/self/task").iterdir():
            for pid in map(int, _text(task / "children").split()):
                peaks[pid] = max(peaks.get(pid, 0), _peak(pid))


def _text(path: Path) -> str:
    """Return what is in a file of a process; nothing once it has ended."""
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def _peak(process: int | str) -> int:
    found = re.search(r"VmHWM:\s+(\d+)", _text(Path(f"/proc/{process}/status")))
    return int(found[1]) * 1024 if found else 0


def _measured(folder: str, name: str, rounds: int) -> Iterator[Ratio]:
    import jax

    import bridge
    from bridge.litert.runtime import describe

    make, batch, repeat = _networks()[name]
    model = make()
    inputs, specs = model.inputs(batch), _specs(model, batch)
    made = bridge.to_litert(model.function, params=model.params, args=specs, verify=False)
    contents = describe(made)
    (signature,) = contents.signatures
    names = [[tensor.name for tensor in side] for side in (signature.inputs, signature.outputs)]
    params, *arrays = jax.device_put((model.params, *inputs))
    jitted = jax.jit(model.function)
    expected = jax.tree.leaves(jitted(params, *arrays))
    ours = _litert_call(made, names, inputs)
    exported = jax.export.export(jitted)(model.params, *inputs)
    in_onnx = _onnx_call(bridge.to_onnx(exported, params=model.params), inputs)
    for found in (ours(), in_onnx()):
        assert _error(found, expected) <= _TOLERANCE, f"{name}: {_error(found, expected):.3g}"
    peers = {
        "ONNX Runtime": in_onnx,
        "jax.jit": lambda: jax.block_until_ready(jitted(params, *arrays)),
    }
    theirs, problem = _of_tensorflow(f"{folder}/{name}", names, inputs, expected)
    if theirs is None:
        yield _unmeasured(f"{name}, size", f"{len(made) / 1e6:.3g} MB", problem)
        time_taken = statistics.median(seconds(ours, repeat=repeat) for _ in range(rounds))
        yield _unmeasured(f"{name}, latency", f"{time_taken * 1e3:.3g} ms", problem)
    else:
        size = os.path.getsize(f"{folder}/{name}.tensorflow")
        texts = (f"{count / 1e6:.3g} MB" for count in (len(made), size))
        ratio = len(made) / size
        yield Ratio(f"{name}, size: LiteRT / {_TENSORFLOW}", (ratio,), None, *texts)
        peers = {_TENSORFLOW: theirs, **peers}
    for peer, call in peers.items():
        yield compare(
            f"{name}, latency: LiteRT / {peer}",
            lambda: seconds(ours, repeat=repeat),
            lambda call=call: seconds(call, repeat=repeat),  # type: ignore[misc]
            limit=None,
            unit="ms",
            scale=1e3,
            rounds=rounds,
        )


def _unmeasured(what: str, ours: str, problem: str) -> Ratio:
    return Ratio(f"{what}: LiteRT / {_TENSORFLOW}", (float("nan"),), None, ours, problem)


def _of_tensorflow(
    path: str, names: Any, inputs: Any, expected: Any
) -> tuple[Callable[[], Any] | None, str]:
    """Return a call of TensorFlow's model, or why there is none that is right."""
    if not os.path.exists(f"{path}.tensorflow"):
        return None, f"fails: {Path(f'{path}.failed').read_text(encoding='utf-8')}"
    try:
        call = _litert_call(Path(f"{path}.tensorflow").read_bytes(), names, inputs)
        error = _error(call(), expected)
    except (RuntimeError, ValueError) as failure:
        return None, f"fails when it is run: {str(failure).strip().splitlines()[0][:60]}"
    return (call, "") if error <= _TOLERANCE else (None, f"wrong: differs by {error:.2g}")


def _litert_call(model: bytes, names: Any, inputs: Any) -> Callable[[], list[Any]]:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_content=model, num_threads=1).get_signature_runner(_KEY)
    given = dict(zip(names[0], inputs, strict=True))

    def call() -> list[Any]:
        found = runner(**given)
        return [found[name] for name in names[1]]

    return call


def _onnx_call(model: Any, inputs: Any) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {one.name: array for one, array in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feeds)


def _error(found: Any, expected: Any) -> float:
    """Return the greatest difference, relative to the largest number of its result."""
    import numpy as np

    return max(
        float(np.abs(one - other).max() / np.abs(other).max())
        for one, other in zip(found, map(np.asarray, expected), strict=True)
    )


def _compare(folder: str, rounds: str, *names: str) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    results = [ratio for name in names for ratio in _measured(folder, name, int(rounds))]
    print(json.dumps([dataclasses.asdict(result) for result in results]))


if __name__ == "__main__":
    {
        "savedmodel": _savedmodel,
        "tensorflow": _tensorflow,
        "compare": _compare,
        "litert": lambda *where: _litert(*where, verify=False),
        "verified": lambda *where: _litert(*where, verify=True),
    }[sys.argv[1]](*sys.argv[2:])
