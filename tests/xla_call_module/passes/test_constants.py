"""Constants that make a module large are named, and taken out."""

from __future__ import annotations

from importlib import import_module

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import enable_x64

import bridge
from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.passes.constants import HOISTED_FROM, largest_constants, restore_constants
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.pipeline import Artifact, Target, prepare, retarget
from xla_call_module.runtime.op import Op

LARGE = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
SMALL = np.arange(8, dtype=np.int8)


@pytest.fixture
def exported():
    # the ones are stored as a single element
    function = lambda x: jnp.sum(LARGE) * x + jnp.sum(SMALL) + jnp.ones((500, 500)).sum()  # noqa: E731
    return jax.export.export(jax.jit(function))(1.0)


def test_largest_constants(exported):
    first, second = largest_constants(exported.mlir_module_serialized, 2)
    assert (first.type, first.bytes) == ("tensor<40x30xf32>", 4800)
    assert (second.type, second.bytes) == ("tensor<8xi8>", 8)
    assert "test_constants.py:" in first.location


def test_a_file_that_would_be_too_large(exported, tmp_path, monkeypatch):
    # `bridge.save` is the function; the module of the same name is behind it
    monkeypatch.setattr(import_module("bridge.save"), "MAX_PROTO_BYTES", 10_000)
    with pytest.raises(StructureError, match=r"tensor<40x30xf32> \(4,800 bytes\).*as params"):
        bridge.save(exported, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def _hoist(call, from_bytes=HOISTED_FROM, known=()):
    target = Target(artifact=Artifact.UNCHANGED, hoist_from=from_bytes)
    prepared = prepare(call, target, known=known)
    return prepared.calls[0], prepared.constants


DTYPES = (
    "bool", "int8", "uint8", "int16", "int32", "uint32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip


@pytest.mark.parametrize("name", DTYPES)
def test_hoisting_keeps_every_bit(name):
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    value = (np.arange(240) % 7 - 3).reshape(12, 20).astype(dtype)
    with enable_x64(True):
        exported = jax.export.export(jax.jit(lambda x: (x, jnp.asarray(value))))(np.float32(1))
        call = from_exported(exported)
    hoisted, values = _hoist(call, from_bytes=200)
    (found,) = values.values()
    assert found.dtype == dtype
    assert found.tobytes() == value.tobytes()
    assert hoisted.args[-1].shape == (12, 20)
    assert hoisted.constants == {1: next(iter(values))}
    assert hoisted.own_args == call.args
    assert len(largest_constants(hoisted.module, 1)) == 0
    restored = run_passes(hoisted, [restore_constants(values.__getitem__)])
    assert (restored.args, restored.kept, restored.hoisted) == (call.args, call.kept, ())
    again, others = _hoist(restored, from_bytes=200)
    assert again.hoisted == hoisted.hoisted
    assert others.keys() == values.keys()  # which are made of the bytes


def test_hoisting_out_of_loops_and_functions():
    @jax.jit
    def inner(x):
        return x @ LARGE.T

    def function(x):
        looped = jax.lax.fori_loop(0, 3, lambda i, c: jnp.sin(inner(c) @ LARGE), x @ LARGE)
        return looped + jax.lax.platform_dependent(
            x, cpu=lambda x: x @ LARGE, default=lambda x: x @ LARGE * 2
        )

    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b, 40"), np.float32)
    exported = jax.export.export(jax.jit(function), platforms=("cuda", "cpu"))(spec)
    hoisted, values = _hoist(from_exported(exported), from_bytes=1000)
    assert sorted(value.shape for value in values.values()) == [(30, 40), (40, 30)]
    assert not [c for c in largest_constants(hoisted.module, 9) if c.bytes >= 1000]
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    with tf.device("/CPU:0"):
        operands = [tf.constant(x), *map(tf.constant, values.values())]
        (found,) = Op(retarget(hoisted, "2.21")).run(operands)
    np.testing.assert_allclose(found, jax.jit(function)(x), rtol=1e-5)


def test_small_constants_stay(exported):
    call = from_exported(exported)
    assert _hoist(call) == (call, {})
    assert _hoist(call, from_bytes=4801) == (call, {})


def test_values_that_are_known_are_not_read_again(exported):
    call = from_exported(exported)
    first, values = _hoist(call, from_bytes=4800)
    assert [value.nbytes for value in values.values()] == [4800]
    second, none = _hoist(call, from_bytes=4800, known=values)
    assert (second, none) == (first, {})


def test_a_constant_of_another_shape_is_not_put_back():
    call = from_exported(jax.export.export(jax.jit(lambda x: x + LARGE))(LARGE))
    hoisted, values = _hoist(call, from_bytes=100)
    with pytest.raises(
        StructureError, match=r"float32\[30, 40\]; the module takes float32\[40,30\]"
    ):
        run_passes(hoisted, [restore_constants(lambda key: values[key].T)])
