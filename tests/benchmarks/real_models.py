"""`save` of models of other libraries, beyond what JAX itself does, as a share of their export.

The libraries come with the extra `bench`; what is not installed is said and left out.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import bridge
from tests.benchmarks.measure import ROUNDS, Ratio

_PLATFORMS = ("cpu", "cuda", "tpu")
_LIMIT = 0.5
_BODY = """<body pos="{n} 0 1"><freejoint/><geom type="capsule" size=".1 .3"/>
<body pos="0 0 .5"><joint name="hinge{n}" axis="0 1 0"/><geom type="capsule" size=".08 .2"/></body>
</body>"""
_WORLD = """<mujoco><option iterations="4" ls_iterations="4"/>
<worldbody><geom type="plane" size="5 5 .1"/>{bodies}</worldbody>
<actuator>{motors}</actuator></mujoco>"""

_Model = tuple[Callable[..., Any], tuple[Any, ...]]


def real_models() -> Iterator[Ratio]:
    """The share of each model that can be made here.

    Each is in a process of its own, as Keras has one backend in a process.
    """
    # Equinox raises by a callback otherwise, which cannot be exported.
    environment = os.environ | {"KERAS_BACKEND": "jax", "EQX_ON_ERROR": "nan"}
    for name in _MODELS:
        command = [sys.executable, "-W", "ignore", "-m", __name__, name]
        told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout
        for fields in json.loads(told.splitlines()[-1]):  # libraries print in front of it
            yield Ratio(**fields)


def _measure(name: str) -> Iterator[Ratio]:
    module, make = _MODELS[name]
    try:
        importlib.import_module(module)
    except ImportError as error:
        yield Ratio(f"save of {name}: not measured", (0.0,), None, "", str(error)[:40])
    else:
        yield from _share(name, *make())


def _share(name: str, function: Callable[..., Any], specs: tuple[Any, ...]) -> Iterator[Ratio]:
    """CPU seconds of `save` without those of what JAX does in it, to those of JAX."""
    size, _ = _round(function, specs)
    rounds = [_round(function, specs)[1] for _ in range(ROUNDS)]
    exporting, differentiating, saving, whole = (
        statistics.median(times) for times in zip(*rounds, strict=True)
    )
    yield Ratio(
        f"save of {name} ({size / 1e3:.0f} kB), no gradients, to its export",
        tuple(saving / exporting for exporting, _, saving, _ in rounds),
        _LIMIT,
        f"{saving:.3g} s",
        f"{exporting:.3g} s",
    )
    yield Ratio(
        f"{name}: save with its gradient, less JAX's export of it, to both exports",
        tuple((whole - vjp) / (once + vjp) for once, vjp, _, whole in rounds),
        _LIMIT,
        f"{whole - differentiating:.3g} s",
        f"{exporting + differentiating:.3g} s",
    )


def _round(
    function: Callable[..., Any], specs: tuple[Any, ...]
) -> tuple[int, tuple[float, float, float, float]]:
    """The bytes of the module, and CPU seconds: of the export, of that of the VJP, of two `save`s.

    JAX keeps what it traced of a function, so its VJP is measured when that has been made once.
    """
    jax.clear_caches()

    def renewed(*args: Any) -> Any:
        return function(*args)

    export = jax.export.export(jax.jit(renewed), platforms=_PLATFORMS)
    exported, exporting = _timed(lambda: export(*specs))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"):
        _vjp(exported)
        _, saving = _timed(lambda: bridge.save(exported, f"{folder}/0", gradient_order=0))
        _, differentiating = _timed(lambda: _vjp(exported))
        _, whole = _timed(lambda: bridge.save(exported, f"{folder}/1"))
    size = len(exported.mlir_module_serialized)
    return size, (exporting, differentiating, saving, whole)


def _vjp(exported: jax.export.Exported) -> None:
    """Make the VJP that `save` asks JAX for; loops without a known number of steps have none."""
    try:
        exported.vjp()
    except ValueError:
        return


def _timed(action: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    result = action()
    return result, time.process_time() - started


def _mjx_step() -> _Model:
    import mujoco
    from mujoco import mjx

    numbers = range(4)
    xml = _WORLD.format(
        bodies="".join(_BODY.format(n=n) for n in numbers),
        motors="".join(f'<motor joint="hinge{n}"/>' for n in numbers),
    )
    model = mjx.put_model(mujoco.MjModel.from_xml_string(xml))
    data = mjx.make_data(model)

    def step(qpos: Any, qvel: Any, ctrl: Any) -> Any:
        after = mjx.step(model, data.replace(qpos=qpos, qvel=qvel, ctrl=ctrl))
        return after.qpos, after.qvel

    return step, tuple(map(_spec, (data.qpos, data.qvel, data.ctrl)))


def _diffrax_solve() -> _Model:
    import diffrax

    def solve(params: Any, start: Any) -> Any:
        return diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, args: jnp.tanh(args["w"] @ y) + args["b"]),
            diffrax.Tsit5(),
            0.0,
            1.0,
            0.1,
            start,
            args=params,
            stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
            saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 1.0, 10)),
        ).ys

    return solve, ({"w": _spec(jnp.eye(4)), "b": _spec(jnp.ones(4))}, _spec(jnp.ones(4)))


def _mobile_net() -> _Model:
    import keras

    model = keras.applications.MobileNetV2(weights=None)
    return _stateless(model, jax.ShapeDtypeStruct((1, 224, 224, 3), "float32"))


def _llama_block() -> _Model:
    import keras
    from keras_hub.models import LlamaBackbone

    del keras
    model = LlamaBackbone(
        vocabulary_size=1000,
        num_layers=1,
        num_query_heads=8,
        hidden_dim=256,
        intermediate_dim=512,
        num_key_value_heads=4,
    )
    tokens = jax.ShapeDtypeStruct((1, 64), "int32")
    return _stateless(model, {"token_ids": tokens, "padding_mask": tokens})


def _stateless(model: Any, inputs: Any) -> _Model:
    """A Keras model as a function of its variables."""

    def predict(trained: Any, others: Any, inputs: Any) -> Any:
        return model.stateless_call(trained, others, inputs, training=False)[0]

    variables = (model.trainable_variables, model.non_trainable_variables)
    return predict, (*([_spec(v.value) for v in some] for some in variables), inputs)


def _spec(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


_MODELS: dict[str, tuple[str, Callable[[], _Model]]] = {
    "a step of MuJoCo (mjx)": ("mujoco.mjx", _mjx_step),
    "a solve of diffrax": ("diffrax", _diffrax_solve),
    "MobileNetV2 of Keras": ("keras", _mobile_net),
    "a Llama block of Keras Hub": ("keras_hub", _llama_block),
}

if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(ratio) for ratio in _measure(sys.argv[1])]))
