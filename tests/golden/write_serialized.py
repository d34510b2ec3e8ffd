"""`python write_serialized.py OUT`: what `Exported.serialize` writes in the JAX at hand.

Each file in `OUT/VERSION` is one `Exported` of `CASES`, with its VJPs up to order 1. It needs no
other package than JAX, of any version.
"""

from __future__ import annotations

import collections
import functools
import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec

Pair = collections.namedtuple("Pair", "x y")
_ARRAY = jax.ShapeDtypeStruct((4, 4), np.float32)


def _plain(params, x):
    return {"y": x @ params["w"] + params["b"], "n": x.shape[0] * jnp.ones(2, jnp.int32)}


def _on_mesh(x, y):
    return x * 2 + y


def _specs():
    scope = export.SymbolicScope(("b >= 4", "mod(b, 2) == 0", "c <= 2*b"))
    b, c = export.symbolic_shape("b, c", scope=scope)
    params = {"w": _ARRAY, "b": jax.ShapeDtypeStruct((4,), np.float32)}
    symbolic = jax.ShapeDtypeStruct((b, 3), np.float32), jax.ShapeDtypeStruct((c, b), np.float32)
    return {
        "plain": (jax.jit(_plain), (params, _ARRAY)),
        "platforms": (jax.jit(jnp.tanh), (_ARRAY,)),
        "symbolic": (jax.jit(lambda x, y: (x * 2, y.sum())), symbolic),
        "registered": (jax.jit(lambda pair: Pair(pair.y, {"x": pair.x})), (Pair(_ARRAY, _ARRAY),)),
        "keys": (jax.jit(lambda key: key), (jax.random.key(0),)),
        "sharded": (None, (_ARRAY, _ARRAY)),
    }


CASES = tuple(_specs())


def export_case(name):
    """Return the `Exported` of a case."""
    function, specs = _specs()[name]
    if function is None:
        mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
        one, other = (
            NamedSharding(mesh, PartitionSpec(*spec)) for spec in (("data",), (None, "model"))
        )
        function = jax.jit(_on_mesh, in_shardings=(one, other), out_shardings=one)
    platforms = ["cuda", "cpu"] if name == "platforms" else ["cpu"]
    checks = [export.DisabledSafetyCheck.custom_call("mine"), export.DisabledSafetyCheck.platform()]
    disabled = checks if name == "platforms" else []
    return export.export(function, platforms=platforms, disabled_checks=disabled)(*specs)


@functools.cache
def register_pair():
    """Have JAX serialize `Pair`."""
    export.register_namedtuple_serialization(Pair, serialized_name="golden.Pair")


def main(out):
    """Write every case."""
    register_pair()
    # Modules say where their operations come from; folders of a machine are nobody's business.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")
    folder = out / jax.__version__
    folder.mkdir(parents=True)
    for name in CASES:
        orders = 0 if name == "keys" else 1
        data = export_case(name).serialize(vjp_order=orders)
        (folder / f"{name}.bin").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
