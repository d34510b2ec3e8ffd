"""Platforms are left out, and what stays does the same on those that stay."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64, export, lax

from xla_call_module import from_exported
from xla_call_module.descriptions.description_json import read_description
from xla_call_module.errors import FormatError, PlatformError
from xla_call_module.passes.module_pass import run_passes
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.stablehlo.modules import open_module

PLATFORMS = ("cpu", "cuda", "tpu")
X = np.arange(1, 4, dtype=np.float32)


def _function(x):
    first = lax.platform_dependent(
        x, cpu=lambda x: x + 1, cuda=lambda x: x + 2, tpu=lambda x: x + 3
    )

    def step(_, c):
        return lax.platform_dependent(c, cpu=lambda c: c * 2, default=lambda c: c * 5)

    return lax.fori_loop(0, 3, step, first)


EXPECTED = {"cpu": (X + 1) * 8, "cuda": (X + 2) * 125, "tpu": (X + 3) * 125}


def _export(symbolic, function=_function):
    shape = export.symbolic_shape("b,") if symbolic else (3,)
    spec = jax.ShapeDtypeStruct(shape, np.float32)
    return export.export(jax.jit(function), platforms=PLATFORMS)(spec)


def _as_if_on(exported, call, platform):
    """Return what the module computes with the index of a platform that this machine has not."""
    others = (name for name in ("rocm", "cuda", "tpu"))
    named = tuple("cpu" if name == platform else next(others) for name in call.platforms)
    changed = dataclasses.replace(exported, mlir_module_serialized=call.module, platforms=named)
    from_exported(changed)  # refuses a module that is not what the Exported says
    return changed.call(X)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize(
    "platforms",
    [["cpu"], ["cuda"], ["tpu"], ["cpu", "cuda"], ["tpu", "cpu"], ["tpu", "cuda", "cpu"]],
)
def test_each_platform_keeps_its_branches(platforms, symbolic, x64):
    with enable_x64(x64):
        exported = _export(symbolic)
        call = run_passes(from_exported(exported), [select_platforms(platforms)])
        assert call.platforms == tuple(platforms)
        for platform in platforms:
            found = _as_if_on(exported, call, platform)
            np.testing.assert_array_equal(found, EXPECTED[platform])
    with open_module(call.module) as module:
        assert ("stablehlo.case" in str(module)) == (len(platforms) > 1)


def test_all_platforms_in_their_order_are_no_change():
    call = from_exported(_export(symbolic=False))
    assert run_passes(call, [select_platforms(PLATFORMS)]) is call


def test_what_only_another_platform_runs_goes():
    spec = jax.ShapeDtypeStruct((3, 3), np.float32)
    exported = export.export(jax.jit(lambda x: tuple(jnp.linalg.qr(x))), platforms=PLATFORMS)(spec)
    call = from_exported(exported)
    assert b"lapack_sgeqrf_ffi" in call.module
    assert b"cusolver" in call.module
    chosen = run_passes(call, [select_platforms(["cuda"])])
    assert b"lapack_sgeqrf_ffi" not in chosen.module
    assert b"cusolver" in chosen.module
    chosen = run_passes(call, [select_platforms(["tpu"])])
    assert b"lapack_sgeqrf_ffi" not in chosen.module
    assert b"cusolver" not in chosen.module
    assert chosen.stablehlo_version == call.stablehlo_version
    assert read_description(chosen.exported, where="f").platforms == ("tpu",)


def test_a_call_that_describes_nothing():
    call = dataclasses.replace(from_exported(_export(symbolic=True)), exported=b"")
    assert run_passes(call, [select_platforms(["cuda"])]).exported == b""


def test_a_platform_that_is_not_there():
    call = from_exported(_export(symbolic=False))
    with pytest.raises(PlatformError, match=r"_function was lowered for cpu, cuda, tpu, and not"):
        run_passes(call, [select_platforms(["cpu", "rocm"])])
    with pytest.raises(PlatformError, match="'vulkan' is unknown"):
        run_passes(call, [select_platforms(["vulkan"])])


def test_a_damaged_description():
    call = dataclasses.replace(from_exported(_export(symbolic=False)), exported=b"nothing")
    with pytest.raises(FormatError, match="A FlatBuffer of 7 bytes has an object"):
        run_passes(call, [select_platforms(["cpu"])])
