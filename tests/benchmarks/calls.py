"""Calling converted functions, eagerly and in tf.function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks import models
from tests.benchmarks.measure import Ratio, compare, seconds


def eager() -> Iterator[Ratio]:
    import jax
    import tensorflow as tf
    from jax.experimental import jax2tf

    import bridge
    from xla_call_module import from_exported, retarget
    from xla_call_module.runtime.op import Op

    exported = jax.export.export(jax.jit(models.tiny))(models.TINY_INPUT)
    x = tf.constant(models.TINY_INPUT)
    converted = bridge.convert(exported)
    bare = _bare_op(Op(retarget(from_exported(exported), "2.21")), x)
    peer = jax2tf.convert(models.tiny)
    _agree(converted(x), bare()[0], peer(x))

    def timed(action: Callable[[], object], repeat: int) -> Callable[[], float]:
        return lambda: seconds(action, repeat=repeat)

    ours = timed(lambda: converted(x), 500)
    yield compare(
        "eager, tiny: convert / bare op",
        ours,
        timed(bare, 500),
        limit=0.7,
        unit="us",
        scale=1e6,
        rounds=21,
    )
    yield compare(
        "eager, tiny: convert / jax2tf",
        ours,
        timed(lambda: peer(x), 20),
        limit=1 / 100,
        unit="us",
        scale=1e6,
    )


def eager_network() -> Iterator[Ratio]:
    import jax
    import tensorflow as tf

    import bridge

    arguments = models.mlp_data()
    tensors = tf.nest.map_structure(tf.constant, arguments)
    arrays = jax.device_put(arguments)
    converted, jitted = bridge.convert(models.mlp), jax.jit(models.mlp)
    _agree(converted(*tensors), tf.constant(jitted(*arrays)))
    yield compare(
        "eager, MLP: convert / jax.jit",
        lambda: seconds(lambda: converted(*tensors), repeat=20),
        lambda: seconds(lambda: jax.block_until_ready(jitted(*arrays)), repeat=20),
        limit=1.1,
        unit="ms",
        scale=1e3,
        rounds=21,
    )


def conversions() -> Iterator[Ratio]:
    """A hundred small functions, each converted and called once."""
    import jax.numpy as jnp
    import tensorflow as tf
    from jax.experimental import jax2tf

    import bridge

    x = tf.constant(models.TINY_INPUT)

    def make(index: int) -> Callable[[Any], Any]:
        return lambda x: jnp.sin(x * index) + jnp.cos(x) @ jnp.ones((4, 4))

    def eagerly(convert: Any) -> Callable[[], float]:
        return lambda: sum(seconds(lambda i=i: convert(make(i))(x)) for i in range(100))

    def in_functions(convert: Any) -> Callable[[], float]:
        def trace(index: int) -> None:
            tf.function(convert(make(index)), autograph=False).get_concrete_function(x)

        return lambda: sum(seconds(lambda i=i: trace(i)) for i in range(100))

    for name, run in (("eager", eagerly), ("tf.function", in_functions)):
        yield compare(
            f"100 functions, {name}: convert / jax2tf",
            run(bridge.convert),
            run(jax2tf.convert),
            limit=1.0,
            unit="s",
        )


def _bare_op(op: Any, x: Any) -> Callable[[], Any]:
    """The op as TensorFlow's own Python function calls it, with nothing around it."""
    from xla_call_module._tf import eager_call_module

    endpoint, call = eager_call_module(), op.call
    shapes = [spec.static_shape for spec in call.results]

    def run() -> Any:
        return endpoint(
            [x],
            version=call.version,
            module=call.module,
            Sout=shapes,
            Tout=[x.dtype],
            platforms=["CPU"],
            dim_args_spec=[],
            function_list=[],
            has_token_input_output=False,
            disabled_checks=[],
        )

    return run


def in_function() -> Iterator[Ratio]:
    import tensorflow as tf
    from jax.experimental import jax2tf

    import bridge

    cases = (
        ("tiny", models.tiny, (models.TINY_INPUT,), 500, 21),
        ("MLP", models.mlp, models.mlp_data(), 20, 15),
        ("transformer block", models.transformer_block, models.transformer_data(), 3, 15),
    )
    for name, function, arguments, repeat, rounds in cases:
        tensors = tf.nest.map_structure(tf.constant, arguments)
        ours = tf.function(bridge.convert(function))
        peer = tf.function(jax2tf.convert(function), autograph=False)
        _agree(ours(*tensors), peer(*tensors))
        # A tenth is what two runs of the same function differ by on these machines.
        yield compare(
            f"tf.function, {name}: convert / jax2tf",
            lambda f=ours, t=tensors, n=repeat: seconds(lambda: f(*t), repeat=n),
            lambda f=peer, t=tensors, n=repeat: seconds(lambda: f(*t), repeat=n),
            limit=1.1,
            unit="us",
            scale=1e6,
            rounds=rounds,
        )


def _agree(*values: Any) -> None:
    """A comparison of two different computations would mean nothing."""
    import numpy as np

    for value in values[1:]:
        np.testing.assert_allclose(values[0].numpy(), value.numpy(), rtol=1e-4, atol=1e-4)
