"""An `Exported` that JAX has just made is described as if its module had been read."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

import bridge
import xla_call_module.exported
from bridge.chains.exported_order import carried_by
from bridge.exporting.lowering import argument_names
from xla_call_module.analyses.readable import is_plain
from xla_call_module.errors import PlatformError
from xla_call_module.exported import from_exported
from xla_call_module.node import decode_node

X = jax.ShapeDtypeStruct((4,), np.float32)
MATRIX = jax.ShapeDtypeStruct((3, 3), np.float32)
KEY = jax.eval_shape(jax.random.key, 0)
B = jax.ShapeDtypeStruct(export.symbolic_shape("b"), np.float32)
EVERYWHERE = ("cpu", "cuda", "tpu")

FUNCTIONS = {
    "plain": (lambda x, y: jnp.sin(x) + y, (X, X), {}),
    "by keyword": (lambda x, *, scale: x * scale["a"], (X,), {"scale": {"b": X, "a": X}}),
    "pytree": (lambda params, x: params["w"][1] * x, ({"w": [X, X], "b": X}, X), {}),
    "variadic": (lambda *rest, **more: rest[1] - more["z"], (X, X), {"z": X}),
    "jitted": (jax.jit(lambda first, second: first @ second), (X, X), {}),
    "bound": (jax.tree_util.Partial(lambda a, b, c: a + b * c, 2.0), (X, X), {}),
    "symbolic": (lambda x, unused: x * x.shape[0], (B, B), {}),
    "random": (lambda key, x: x + jax.random.normal(key, (4,)), (KEY, X), {}),
    "linear algebra": (lambda a: jnp.linalg.cholesky(a), (MATRIX,), {}),
    "nothing": (lambda: jnp.ones(3), (), {}),
}
# Modules of a StableHLO that is newer than the listed operations are always read.
KNOWN = pytest.mark.skipif(
    jax.__version_info__ >= (0, 12), reason="its StableHLO is newer than what is known to be plain"
)


def _export(function, args, kwargs):
    jitted = jax.jit(function)
    exported = export.export(jitted, platforms=EVERYWHERE)(*args, **kwargs)
    return exported, argument_names(jitted, args, kwargs)


@pytest.fixture
def read(monkeypatch):
    """The modules that `from_exported` reads."""
    found = []
    opened = xla_call_module.exported.open_module
    monkeypatch.setattr(
        xla_call_module.exported,
        "open_module",
        lambda artifact: (found.append(artifact), opened(artifact))[1],
    )
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_what_its_module_says(name):
    exported, names = _export(*FUNCTIONS[name])
    assert from_exported(exported, names=names) == from_exported(exported)


def test_its_arguments_have_the_names_of_the_function():
    exported, names = _export(*FUNCTIONS["pytree"])
    assert names == ("params['b']", "params['w'][0]", "params['w'][1]", "x")
    assert [spec.name for spec in from_exported(exported, names=names).args] == [
        "", "", "params['w'][1]", "x"
    ]  # fmt: skip


@KNOWN
@pytest.mark.parametrize("name", ["plain", "pytree", "jitted", "nothing"])
def test_a_plain_module_is_not_read(read, name):
    exported, names = _export(*FUNCTIONS[name])
    assert is_plain(exported.mlir_module_serialized)
    from_exported(exported, names=names)
    assert not read
    from_exported(exported)
    assert len(read) == 1


@pytest.mark.parametrize("name", ["symbolic", "linear algebra"])
def test_one_with_custom_calls_is_read(read, name):
    exported, names = _export(*FUNCTIONS[name])
    assert not is_plain(exported.mlir_module_serialized)
    from_exported(exported, names=names)
    assert len(read) == 1


def test_what_runs_on_several_devices_only_is_refused_at_the_first_call():
    def gathered(x):
        return jax.shard_map(
            lambda x: lax.all_gather(x, "i", tiled=True),
            mesh=jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,)),
            in_specs=jax.P(),
            out_specs=jax.P(),
            check_vma=False,
        )(x)

    with pytest.raises(PlatformError, match=r"gathered computes all_gather with .*all_gather"):
        bridge.convert(gathered)(tf.ones(4))


@pytest.mark.parametrize("wrapped", [True, False])
def test_the_function_is_traced_once(wrapped):
    traced = []

    def counted(x):
        traced.append(x)
        return x + 1

    converted = bridge.convert(jax.jit(counted) if wrapped else counted)
    converted(tf.ones(3))
    tf.function(converted, autograph=False).get_concrete_function(tf.ones(3))
    assert len(traced) == 1


def test_a_file_of_tensorflow_has_the_names_of_the_arguments(tmp_path):
    module = tf.Module()
    module.call = tf.function(
        bridge.convert(lambda image, scale: image * scale), autograph=False
    ).get_concrete_function(tf.ones(3), tf.ones(3))
    tf.saved_model.save(module, str(tmp_path))
    graph = tf.saved_model.load(str(tmp_path)).call.graph
    nodes = [op.node_def for op in graph.get_operations() if op.type == "XlaCallModule"]
    assert [spec.name for node in nodes for spec in decode_node(node).args] == ["image", "scale"]


def _carried(function, *args):
    return carried_by(export.export(jax.jit(function), platforms=EVERYWHERE)(*args))


def test_a_tree_that_is_registered_later_is_carried():
    class Pair:
        def __init__(self, left, right):
            self.parts = left, right

    def total(pair):
        return pair.parts[0] + pair.parts[1]

    kind = object()  # which no file holds
    jax.tree_util.register_pytree_node(Pair, lambda pair: (pair.parts, kind), lambda _, p: Pair(*p))
    before = _carried(total, Pair(X, X))
    export.register_pytree_node_serialization(
        Pair,
        serialized_name="tests.fresh_exports.Pair",
        serialize_auxdata=lambda _: b"",
        deserialize_auxdata=lambda _: kind,
    )
    assert _carried(total, Pair(X, X)) != before


def test_a_calling_convention_that_jax_refuses():
    before = jax.config.jax_export_calling_convention_version
    jax.config.update("jax_export_calling_convention_version", 3)
    try:
        with pytest.raises(ValueError, match="calling convention version 3 is outside the range"):
            bridge.convert(lambda x: x * 7)(tf.ones(4))
    finally:
        jax.config.update("jax_export_calling_convention_version", before)
