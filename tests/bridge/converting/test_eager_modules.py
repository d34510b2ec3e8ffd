"""A StableHLO module as one operation of a JAX program."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.converting.eager import to_module_call
from xla_call_module import from_exported

X = np.arange(3, dtype=np.float32)
P = jax.sharding.PartitionSpec


def _call(function, *args, platforms=("cpu",)):
    return from_exported(jax.export.export(jax.jit(function), platforms=platforms)(*args))


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "tpu"), ("tpu", "cuda", "cpu")])
def test_it_runs_what_is_for_its_platform(platforms):
    def function(x):
        return jax.lax.platform_dependent(
            x, cpu=lambda x: x + 1, default=lambda x: x + 2
        ), jnp.linalg.norm(x)

    call = to_module_call(_call(function, X, platforms=platforms), "cpu")
    for run in (jax.jit(lambda x: call(x)), lambda x: jax.jit(call)(x)):
        moved, norm = run(X)
        assert moved.tolist() == [1.0, 2.0, 3.0]
        assert norm.dtype == np.float32
        np.testing.assert_allclose(norm, np.sqrt(5.0), rtol=1e-6)


def test_two_modules_in_one_program_keep_their_functions_apart():
    calls = [to_module_call(_call(lambda x, n=n: jax.nn.relu(x - n), X), "cpu") for n in (1.0, 2.0)]
    first, second = jax.jit(lambda x: [call(x)[0] for call in calls])(X)
    assert (first.tolist(), second.tolist()) == ([0.0, 0.0, 1.0], [0.0, 0.0, 0.0])


def test_it_takes_what_the_module_takes():
    call = _call(lambda x, unused, y: x * y, X, X, X + 1)
    assert call.kept == (0, 2)
    found = jax.jit(lambda *args: to_module_call(call, "cpu")(*args))(X, X + 1)
    np.testing.assert_array_equal(found[0], X * (X + 1))


def test_symbolic_shapes_and_meshes_are_left_to_jax():
    symbolic = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), np.float32)
    assert to_module_call(_call(jnp.sin, symbolic), "cpu") is None
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    inside = jax.shard_map(jnp.sin, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    assert to_module_call(_call(inside, X), "cpu") is None
