"""`bridge.exported_from_stage`: a jitted, traced or lowered function becomes an `Exported`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import enable_x64
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import bridge
from bridge.exporting.stages import signature_of
from xla_call_module import from_exported
from xla_call_module.errors import PlatformError, ShardingError, StructureError

X = np.linspace(0, 1, 3, dtype=np.float32)
PARAMS = {"w": X + 1}


def function(params, x, unused, *, scale):
    return {"y": params["w"] * jnp.sin(x) * scale}


ARGS, KWARGS = (PARAMS, X, np.int32(3)), {"scale": np.float32(2)}
EXPECTED = function(*ARGS, **KWARGS)["y"]


def test_a_jitted_function():
    exported = bridge.exported_from_stage(jax.jit(function), *ARGS, **KWARGS)
    assert exported.platforms == ("cpu", "cuda", "tpu")
    np.testing.assert_allclose(exported.call(*ARGS, **KWARGS)["y"], EXPECTED, rtol=1e-6)


@pytest.mark.parametrize("platforms", [["cpu"], ["cuda", "cpu"]])
def test_a_traced_function(platforms):
    traced = jax.jit(function).trace(*ARGS, **KWARGS)
    exported = bridge.exported_from_stage(traced, platforms=platforms)
    assert exported.fun_name == "function"
    np.testing.assert_allclose(exported.call(*ARGS, **KWARGS)["y"], EXPECTED, rtol=1e-6)
    gradient = jax.grad(lambda x: exported.call(PARAMS, x, ARGS[2], **KWARGS)["y"].sum())(X)
    np.testing.assert_allclose(gradient, PARAMS["w"] * np.cos(X) * 2, rtol=1e-5)


NAMED = {
    "pytree": (
        lambda params, x, *, scale: params["w"] * x[0] * scale,
        (PARAMS, (X,)),
        {"scale": X},
    ),
    "positional": (lambda x, /, y: x - y, (X, X), {}),
    "the rest": (lambda x, *rest: x * rest[1], (X, X, X), {}),
    "any": (lambda *args, **kwargs: args[1]["q"] - kwargs["k"], (X, {"q": X}), {"k": X}),
    "leafless": (lambda none, empty, x, key=None: x, (None, (), X), {"key": None}),
    "args twice": (lambda args, *more: args * more[0], (X, X), {}),
}


@pytest.mark.parametrize("name", NAMED)
def test_arguments_of_a_traced_function_keep_their_names(name):
    function, args, kwargs = NAMED[name]
    jitted = jax.jit(function)
    found = bridge.exported_from_stage(jitted.trace(*args, **kwargs), platforms=["cpu"])
    expected = jax.export.export(jitted, platforms=["cpu"])(*args, **kwargs)
    names, theirs = (
        [spec.name for spec in from_exported(exported, allow_flat_trees=True).args]
        for exported in (found, expected)
    )
    assert names == theirs
    assert any(names)
    assert found.in_tree == expected.in_tree
    np.testing.assert_array_equal(found.call(*args, **kwargs), jitted(*args, **kwargs))


@pytest.mark.parametrize(
    ("names", "signature"),
    [
        (("args", "x"), "(args, x, /)"),
        (("args", None), "(args, /, *args_)"),
        (("args", "a b"), "(args, /, *args_)"),
        (("args",), "(*args)"),
        (None, "(*args)"),
    ],
)
def test_arguments_without_names_have_their_positions(names, signature):
    info = jax.jit(lambda args, x: args * x).trace(X, X).args_info
    assert str(signature_of(info, names or ())) == signature


def _on(*spec):
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    return NamedSharding(mesh, PartitionSpec(*spec))


def _product(params, x, *, scale):
    return {"y": x @ params["w"] * scale, "n": jnp.sum(x)}


@pytest.mark.parametrize("said_by", ["jit", "arguments", "results"])
def test_shardings_of_a_traced_function_are_kept(said_by):
    of_params, of_x, of_results = (
        {"w": _on(None, "model")},
        _on("data"),
        {"y": _on("data"), "n": None},
    )
    split = {"sharding": of_x} if said_by == "arguments" else {}
    params = {"w": jax.ShapeDtypeStruct((4, 8), "float32")}
    x = jax.ShapeDtypeStruct((8, 4), "float32", **split)
    jitted, kwargs = {
        "jit": (jax.jit(lambda p, x: _product(p, x, scale=2), in_shardings=(of_params, of_x)), {}),
        "arguments": (jax.jit(_product), {"scale": X[0]}),
        "results": (jax.jit(_product, out_shardings=of_results), {"scale": X[0]}),
    }[said_by]
    found = bridge.exported_from_stage(jitted.trace(params, x, **kwargs), platforms=["cpu"])
    expected = jax.export.export(jitted, platforms=["cpu"])(params, x, **kwargs)
    assert found.nr_devices == expected.nr_devices == found.vjp().nr_devices == 8
    mesh = of_x.mesh
    assert found.in_shardings_jax(mesh) == expected.in_shardings_jax(mesh)
    assert found.out_shardings_jax(mesh) == expected.out_shardings_jax(mesh)


def test_a_traced_function_is_not_run_again():
    runs = []
    traced = jax.jit(lambda x: (runs.append(x), x * 2)[1]).trace(X)
    np.testing.assert_array_equal(bridge.exported_from_stage(traced).call(X), X * 2)
    assert len(runs) == 1


def test_a_lowered_function(tmp_path):
    lowered = jax.jit(function).trace(*ARGS, **KWARGS).lower()
    before = lowered.as_text()
    exported = bridge.exported_from_stage(lowered)
    assert exported.module_kept_var_idx == (0, 1, 3)
    assert exported.platforms == ("cpu",)
    assert exported.fun_name == "function"
    assert not exported.has_vjp()
    np.testing.assert_allclose(exported.call(*ARGS, **KWARGS)["y"], EXPECTED, rtol=1e-6)
    assert lowered.as_text() == before
    np.testing.assert_allclose(lowered.compile()(*ARGS, **KWARGS)["y"], EXPECTED, rtol=1e-6)
    bridge.save(exported, tmp_path / "model", params=PARAMS)
    found = bridge.load(tmp_path / "model")(*ARGS[1:], **KWARGS)
    np.testing.assert_allclose(found["y"], EXPECTED, rtol=1e-6)


def test_a_function_lowered_for_several_platforms():
    fun = jax.jit(lambda x: jax.lax.platform_dependent(x, cpu=lambda x: x + 1, cuda=jnp.negative))
    lowered = fun.trace(X).lower(lowering_platforms=("cuda", "cpu"))
    exported = bridge.exported_from_stage(lowered, platforms=["cuda", "cpu"])
    np.testing.assert_array_equal(exported.call(X), X + 1)
    with pytest.raises(PlatformError, match="lowered for several of the platforms, not for cpu"):
        bridge.exported_from_stage(lowered)


def test_arguments_that_were_left_out():
    lowered = jax.jit(lambda x, y, z: (x, z)).lower(X, X, X)
    with pytest.raises(StructureError, match=r"2 of its 3 arguments.*keep_unused=True"):
        bridge.exported_from_stage(lowered)
    lowered = jax.jit(lambda x, y, z: (x, z), keep_unused=True).lower(X, X + 1, X + 2)
    found = bridge.exported_from_stage(lowered).call(X, X + 1, X + 2)
    np.testing.assert_array_equal(found[1], X + 2)


def test_a_compiled_function():
    compiled = jax.jit(jnp.sin).lower(X).compile()
    with pytest.raises(StructureError, match=r"Compiled is machine code .* the lowered stage"):
        bridge.exported_from_stage(compiled)


def test_something_else():
    with pytest.raises(StructureError, match="function is not a stage of a jitted function"):
        bridge.exported_from_stage(lambda x: x)


def test_arguments_of_a_traced_function():
    traced = jax.jit(jnp.sin).trace(X)
    with pytest.raises(StructureError, match="Traced has its arguments already, and 1 more"):
        bridge.exported_from_stage(traced, X)


def test_several_devices():
    mesh = jax.sharding.AbstractMesh((2,), ("x",))
    spec = jax.ShapeDtypeStruct(
        (4,), np.float32, sharding=jax.sharding.NamedSharding(mesh, jax.P("x"))
    )
    lowered = jax.jit(jnp.sin).trace(spec).lower(lowering_platforms=("cpu",))
    with pytest.raises(ShardingError, match=r"lowered for 2 devices.*jax\.export\.export"):
        bridge.exported_from_stage(lowered)


def test_wide_dtypes_are_those_of_the_trace():
    with enable_x64(True):
        traced = jax.jit(lambda x: x * (1 + 1e-12) - x).trace(jax.ShapeDtypeStruct((2,), "float64"))
        stages = (traced, traced.lower())
        x = np.ones(2)
    for stage in stages:
        exported = bridge.exported_from_stage(stage)
        assert [aval.dtype for aval in exported.in_avals] == [np.float64]
        with enable_x64(True):
            np.testing.assert_allclose(exported.call(x), 1e-12, rtol=1e-3)


def test_a_callback():
    """What it calls is gone when the lowered function is."""
    lowered = jax.jit(lambda x: jax.pure_callback(np.sin, x, x)).lower(X)
    with pytest.raises(StructureError, match="calls back to Python"):
        bridge.exported_from_stage(lowered)


def test_checks_to_leave_out():
    jitted = jax.jit(lambda x: jax.ffi.ffi_call("made_up", jax.ShapeDtypeStruct((3,), x.dtype))(x))
    for stage, args in ((jitted, (X,)), (jitted.trace(X), ())):
        with pytest.raises(StructureError, match=r"calls made_up at .*custom_call:made_up"):
            bridge.exported_from_stage(stage, *args)
        checks = ["custom_call:made_up"]
        exported = bridge.exported_from_stage(stage, *args, disabled_checks=checks)
        assert [str(check) for check in exported.disabled_safety_checks] == checks


def test_a_symbolic_shape():
    spec = jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), np.float32)
    traced = jax.jit(jnp.sin).trace(spec)
    with pytest.raises(StructureError, match=r"of shape \(b,\).*pass the traced function"):
        bridge.exported_from_stage(traced.lower())
    np.testing.assert_allclose(bridge.exported_from_stage(traced).call(X), np.sin(X), rtol=1e-6)
