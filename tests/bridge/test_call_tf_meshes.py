"""TensorFlow functions on several devices, in a process that has them."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.xla_flags import with_xla_flags

MESH = """
import jax, jax.numpy as jnp, numpy as np, tensorflow as tf
from jax.sharding import NamedSharding, PartitionSpec as P
import bridge

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, P("d")))
w = jnp.ones(1)
inside = lambda w, x: tf.sin(w * x) * x * w
same = lambda w, x: jnp.sin(w * x) * x * w
"""
INSIDE_OF_SHARD_MAP = """
variable = tf.Variable([1.0])
live = bridge.call_tf(lambda w, x: inside(w, x) * variable)
called_back = bridge.call_tf(inside, compiled=False)


def total(f):
    body = lambda w, x: jax.lax.psum(f(w, x).sum(), "d")
    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("d")), out_specs=P())


def transforms(f):
    yield f(w, x)
    yield jax.jit(f)(w, x)
    yield jax.jit(jax.grad(lambda w, x: f(w, x).sum(), (0, 1)))(w, x)
    yield total(f)(w, x)
    yield jax.jit(jax.grad(total(f), (0, 1)))(w, x)
    yield jax.jvp(total(f), (w, x), (w, x))


for called in (bridge.call_tf(inside), live, called_back):
    for found, expected in zip(transforms(called), transforms(same), strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
second = lambda f: jax.grad(lambda w, x: jax.grad(total(f))(w, x).sum())
called = bridge.call_tf(inside)
np.testing.assert_allclose(second(called)(w, x), second(same)(w, x), rtol=1e-5)
assert len(jax.jit(called)(w, x).devices()) == len(jax.devices()) == 4
"""
WITH_EXPLICIT_AXES = """
explicit = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
derivatives = {
    "value": lambda f: f,
    "grad": lambda f: jax.grad(lambda x: f(x).sum()),
    "vmap": jax.vmap,
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()),
    "jacrev": jax.jacrev,
    "jacfwd": jax.jacfwd,
}
alone = bridge.call_tf(lambda x: tf.sin(x) * x)
with jax.set_mesh(explicit):
    for spec in (P("d"), P()):
        given = jax.device_put(jnp.arange(8.0), NamedSharding(explicit, spec))
        for name, derive in derivatives.items():
            for wrap in (lambda f: f, jax.jit):
                expected = wrap(derive(lambda x: jnp.sin(x) * x))(given)
                found = wrap(derive(alone))(given)
                np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)
"""


@pytest.mark.parametrize("program", [INSIDE_OF_SHARD_MAP, WITH_EXPLICIT_AXES], ids=["map", "axes"])
def test_gradients_over_a_mesh_are_those_of_jax(program, preloaded_python):
    flags = "--xla_force_host_platform_device_count=4"
    environment = os.environ | {"XLA_FLAGS": with_xla_flags(flags), "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [preloaded_python, "-c", f"{MESH}{program}print('agree')"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        pytest.fail(ran.stderr[-3000:])
    assert ran.stdout.strip() == "agree"
