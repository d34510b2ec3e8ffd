"""What is exported without JAX's copy of the module is what `jax.export` makes of it."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

import bridge
import xla_call_module.exported
from bridge import jax2tf
from bridge.exporting.direct_export import export_directly
from xla_call_module.stablehlo.modules import open_module

pytestmark = pytest.mark.skipif(
    jax.__version_info__ < (0, 10), reason="what older versions say of a lowering is not known"
)

X = jax.ShapeDtypeStruct((4,), np.float32)
INTEGERS = jax.ShapeDtypeStruct((4,), np.int32)
MATRIX = jax.ShapeDtypeStruct((3, 3), np.float32)
EVERYWHERE = ("cpu", "cuda", "tpu")

FUNCTIONS = {
    "plain": (lambda x, y: jnp.sin(x) + y, (X, X), {}),
    "by keyword": (lambda x, *, scale: x * scale["a"], (X,), {"scale": {"b": X, "a": X}}),
    "integers": (lambda x, i: (x * i, i + 1), (X, INTEGERS), {}),
    "of a platform": (lambda x: jnp.cos(x) @ jnp.ones((4, 4)), (X,), {}),
    "loop": (lambda x: lax.scan(lambda c, y: (c * y, c), 1.0, x), (X,), {}),
    "weak": (lambda x: x * 2, (jax.ShapeDtypeStruct((), np.float32, weak_type=True),), {}),
}


def _fields(exported):
    """All that an `Exported` is, its module as text with locations."""
    found = {
        field.name: getattr(exported, field.name)
        for field in dataclasses.fields(exported)
        if field.name not in ("mlir_module_serialized", "_get_vjp")
    }
    with open_module(exported.mlir_module_serialized) as module:
        return found | {"module": module.operation.get_asm(enable_debug_info=True)}


def _directly(function, args, kwargs, platforms=EVERYWHERE, checks=()):
    return export_directly(function, args, kwargs, platforms=platforms, disabled_checks=checks)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("platforms", [("cpu",), EVERYWHERE])
def test_it_is_what_jax_exports(name, platforms):
    function, args, kwargs = FUNCTIONS[name]
    function = jax.jit(function)
    checks = [export.DisabledSafetyCheck.platform()]
    whole = export.export(function, platforms=platforms, disabled_checks=checks)
    found = _directly(function, args, kwargs, platforms, checks)
    expected = whole(*args, **kwargs)
    assert _fields(found) == _fields(
        dataclasses.replace(expected, disabled_safety_checks=(*checks,))
    )


def _without_places(exported):
    """The VJP is another Python function here, in another file."""
    with open_module(exported.mlir_module_serialized) as module:
        text = module.operation.get_asm(enable_debug_info=False)
    return _fields(exported) | {"module": text}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_so_are_its_vjps(name):
    function, args, kwargs = FUNCTIONS[name]
    function = jax.jit(function)
    found = _directly(function, args, kwargs)
    expected = export.export(function, platforms=EVERYWHERE)(*args, **kwargs)
    for _ in range(2):
        found, expected = found.vjp(), expected.vjp()
        assert _without_places(found) == _without_places(expected)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (jnp.linalg.cholesky, (MATRIX,)),
        (lambda x: x * 2, (jax.ShapeDtypeStruct(export.symbolic_shape("b"), np.float32),)),
        (lambda x: x * 2, (np.ones(4, np.float32),)),
    ],
    ids=["custom call", "symbolic", "array"],
)
def test_what_jax_does_more_with_is_left_to_it(function, args):
    assert _directly(jax.jit(function), args, {}) is None


def test_a_calling_convention_that_jax_refuses_is_left_to_it():
    before = jax.config.jax_export_calling_convention_version
    jax.config.update("jax_export_calling_convention_version", 3)
    try:
        assert _directly(jax.jit(jnp.sin), (X,), {}) is None
        with pytest.raises(ValueError, match="calling convention version 3 is outside the range"):
            bridge.convert(lambda x: x * 7)(tf.ones(4))
    finally:
        jax.config.update("jax_export_calling_convention_version", before)


def test_a_vjp_that_jax_does_more_with_is_left_to_it():
    solve = jax.custom_vjp(lambda x: x * 2)
    solve.defvjp(lambda x: (x * 2, x), lambda x, ct: (jnp.linalg.cholesky(x) @ ct,))
    found = _directly(jax.jit(solve), (MATRIX,), {}, ("cpu",))
    assert b"custom_call" not in found.mlir_module_serialized
    assert b"lapack_spotrf" in found.vjp().mlir_module_serialized


def test_a_converted_function_is_exported_so(monkeypatch):
    monkeypatch.setattr(export, "export", lambda *_, **__: pytest.fail("a copy is made"))
    converted = bridge.convert(lambda x: jnp.sin(x) * 3)
    x = tf.constant([0.5, 1.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = converted(x)
    np.testing.assert_allclose(y, 3 * np.sin(x), rtol=1e-6)
    np.testing.assert_allclose(tape.gradient(y, x), 3 * np.cos(x), rtol=1e-6)


def test_the_drop_in_reads_no_module_of_a_plain_function(monkeypatch):
    def refuse(artifact):
        pytest.fail(f"a module of {len(artifact)} bytes is read")

    monkeypatch.setattr(xla_call_module.exported, "open_module", refuse)
    converted = jax2tf.convert(lambda x, unused: x * x * 5)

    @tf.function(autograph=False)
    def gradients(x, unused):
        return tf.gradients(converted(x, unused), [x, unused])

    found, zeros = gradients(tf.constant(2.0), tf.constant(7.0))
    assert (float(found), float(zeros)) == (20.0, 0.0)
