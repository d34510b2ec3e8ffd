"""Lifted functions against the functions that were exported: time, compilation, size, batching."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.interpreters import partial_eval

import bridge
from tests.benchmarks import models
from tests.benchmarks.measure import ROUNDS, Ratio, compare
from xla_call_module.stablehlo.modules import open_module, walk

_MIN_RATIO_ROUNDS = 15
_LARGE_MODULE_LAYERS = 544  # 20 MB
_DEEP_NETWORK_LAYERS = 48
_MAX_SECONDS_TO_TRACE = 10.0


def _networks() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...], int]]:
    """Yield the name, function and arguments of each network, and calls in a round."""
    from tests.bridge import networks as drawn

    yield "MLP", models.mlp, models.mlp_data(), 4
    yield "transformer block", models.transformer_block, models.transformer_data(), 1
    for name, model, batch, repeat in (
        ("ResNet-50", drawn.resnet(), 1, 1),
        ("LSTM of 200 steps", drawn.lstm(width=64), 8, 4),
        ("U-Net step", drawn.unet(), 4, 8),
    ):
        yield name, model.function, (model.params, *model.inputs(batch)), repeat


def lifted_run_time() -> Iterator[Ratio]:
    """The ratio of run times, forward and with the gradient, and of compile times."""
    for name, function, arguments, repeat in _networks():
        arguments = jax.tree.map(jnp.asarray, arguments)
        lifted = bridge.to_jax(export.export(jax.jit(function))(*arguments))
        kinds: tuple[tuple[str, Callable[..., Any]], ...] = (
            ("forward", jax.jit),
            ("gradient", lambda f: jax.jit(jax.grad(_loss(f)))),
        )
        for kind, transform in kinds:
            ours, mine = _compile(transform(lifted), arguments)
            peer, theirs = _compile(transform(function), arguments)
            yield compare(
                f"{name}, {kind}: lifted / jax.jit of the original",
                lambda f=ours, a=arguments, n=repeat: _seconds(f, a, n),
                lambda f=peer, a=arguments, n=repeat: _seconds(f, a, n),
                limit=1.05,
                unit="ms",
                scale=1e3,
                rounds=_MIN_RATIO_ROUNDS,
            )
            yield Ratio(
                f"{name}, {kind}, compilation: lifted / the original",
                (mine / theirs,),
                1.3,
                f"{mine:.3g} s",
                f"{theirs:.3g} s",
            )


def lifted_batches() -> Iterator[Ratio]:
    """`vmap` of 64: lifted, and of the sealed artifact, against that of the original."""
    model = {name: rest for name, *rest in _networks()}
    for name in ("MLP", "LSTM of 200 steps"):
        function, arguments, _ = model[name]
        params, x = jax.tree.map(jnp.asarray, tuple(arguments))
        exported = export.export(jax.jit(function))(params, x)
        batch = jnp.stack([x + i * 0.01 for i in range(64)])

        def mapped(f: Callable[..., Any], data: Any = (params, batch)) -> Callable[[], float]:
            compiled, _ = _compile(jax.jit(jax.vmap(f, (None, 0))), data)
            return lambda: _seconds(compiled, data, 1)

        original = mapped(function)
        for what, ours, limit in (
            ("lifted", mapped(bridge.to_jax(exported)), 1.1),
            ("one call after another", _one_by_one(exported, (params, batch)), None),
        ):
            yield compare(
                f"{name}, vmap of 64: {what} / the original",
                ours,
                original,
                limit=limit,
                unit="ms",
                scale=1e3,
                rounds=_MIN_RATIO_ROUNDS,
            )


def lifted_size() -> Iterator[Ratio]:
    """Equations of the jaxprs, and how long a large module takes to be traced."""
    for name, function, arguments, _ in _networks():
        lifted = bridge.to_jax(export.export(jax.jit(function))(*arguments))
        ours, peer = (_equations(f, arguments) for f in (lifted, jax.jit(function)))
        ratio = (ours / peer,)
        yield Ratio(f"{name}, equations: lifted / original", ratio, 1.5, str(ours), str(peer))
    large, deep = _large_module(), _deep_network()
    size, count = len(large.mlir_module_serialized) / 1e6, _operations(deep)
    yield _tracing(f"a lifted module of {size:.0f} MB", large)
    yield _tracing(f"a lifted network of {count} operations", deep)


def _tracing(name: str, exported: export.Exported) -> Ratio:
    """Return how long a lifted function takes to be traced, in parts of the time that it may."""
    args, kwargs = jax.tree.unflatten(exported.in_tree, exported.in_avals)
    times = []
    for _ in range(ROUNDS):
        lifted = bridge.to_jax(exported)
        started = time.perf_counter()
        jax.make_jaxpr(lifted)(*args, **kwargs)
        times.append(time.perf_counter() - started)
    return Ratio(
        f"make_jaxpr of {name}, to {_MAX_SECONDS_TO_TRACE:.0f} s",
        tuple(seconds / _MAX_SECONDS_TO_TRACE for seconds in times),
        1.0,
        f"{statistics.median(times):.3g} s",
        f"{_MAX_SECONDS_TO_TRACE:.0f} s",
    )


def _operations(exported: export.Exported) -> int:
    with open_module(exported.mlir_module_serialized) as module:
        return sum(1 for _ in walk(module))


def _deep_network() -> export.Exported:
    """Return the gradient of a deep transformer, layer by layer, with its weights as arguments."""
    layers, x = models.transformer_layers(depth=1)
    data = layers * _DEEP_NETWORK_LAYERS, x
    specs = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), data)
    return export.export(jax.jit(jax.grad(_loss(models.transformer))))(*specs)


def _large_module() -> export.Exported:
    """Return a module of 20 MB: many different layers, each with a small constant of its own."""
    draw = iter(jax.random.normal(jax.random.key(0), (_LARGE_MODULE_LAYERS, 16, 16)))
    weights = [jnp.kron(w, jnp.ones((6, 6))) + 0.01 * i for i, w in enumerate(draw)]

    def function(x: Any) -> Any:
        for number, weight in enumerate(weights):
            x = jnp.tanh(x @ weight) * (number + 1) + jnp.roll(x, number % 7, axis=-1)
        return x

    return export.export(jax.jit(function))(jax.ShapeDtypeStruct((8, 96), "float32"))


def _one_by_one(exported: export.Exported, data: Any) -> Callable[[], float]:
    from jax import lax

    def function(params: Any, batch: Any) -> Any:
        return lax.map(lambda x: exported.call(params, x), batch)

    compiled, _ = _compile(jax.jit(function), data)
    return lambda: _seconds(compiled, data, 1)


def _loss(function: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*arguments: Any) -> Any:
        leaves = jax.tree.leaves(function(*arguments))
        return sum(jnp.sum(leaf**2) for leaf in leaves)

    return loss


def _compile(function: Any, arguments: Any) -> tuple[Callable[..., Any], float]:
    started = time.perf_counter()
    compiled = function.lower(*arguments).compile()
    return compiled, time.perf_counter() - started


def _seconds(function: Callable[..., Any], arguments: Any, repeat: int) -> float:
    started = time.perf_counter()
    for _ in range(repeat):
        jax.block_until_ready(function(*arguments))
    return (time.perf_counter() - started) / repeat


def _equations(function: Callable[..., Any], arguments: Any) -> int:
    """Return the number of equations, those of inner jaxprs included, that the results need."""
    closed = jax.make_jaxpr(function)(*arguments)
    needed, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return _count(needed)


def _count(jaxpr: Any) -> int:
    return sum(1 + sum(_count(inner) for inner in _inner(eqn.params)) for eqn in jaxpr.eqns)


def _inner(params: Any) -> Iterator[Any]:
    for leaf in jax.tree.leaves(list(params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
        inner = getattr(leaf, "jaxpr", leaf)
        if hasattr(inner, "eqns"):
            yield inner
