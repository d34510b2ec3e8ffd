"""`from_exported`: what an `Exported` says of itself must be true, and must run in TensorFlow."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.experimental import io_callback
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from tests.exports import export_of
from xla_call_module import DisabledCheck, InteropError, from_exported
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    PlatformError,
    StructureError,
    UnsupportedError,
    VersionError,
)
from xla_call_module.exported import deserialize_exported, to_exported
from xla_call_module.stablehlo.modules import open_module

X = jax.ShapeDtypeStruct((2, 3), "float32")
N = jax.ShapeDtypeStruct((), "int32")


def _dot(params, x, *, scale):
    return {"y": x @ params["w"] * scale, "n": (jnp.int32(x.shape[0]),)}


def _export_dot(shape):
    params = {"unused": N, "w": jax.ShapeDtypeStruct((3, 2), "float32")}
    scale = jax.ShapeDtypeStruct((), "float32")
    return export_of(_dot, params, jax.ShapeDtypeStruct(shape, "float32"), scale=scale)


@pytest.fixture(scope="module")
def exported():
    return _export_dot((4, 3))


@pytest.fixture(scope="module")
def polymorphic():
    return _export_dot(export.symbolic_shape("batch, 3"))


class TestWhatItSays:
    def test_arguments_and_results(self, exported):
        call = from_exported(exported)
        assert [(spec.path, spec.name, str(spec)) for spec in call.args] == [
            ("args[0]['unused']", "", "int32[]"),
            ("args[0]['w']", "params['w']", "float32[3,2]"),
            ("args[1]", "x", "float32[4,3]"),
            ("kwargs['scale']", "scale", "float32[]"),
        ]
        assert [(spec.path, str(spec)) for spec in call.results] == [
            ("result['n'][0]", "int32[]"),
            ("result['y']", "float32[4,2]"),
        ]
        assert (call.kept, call.symbols, call.name) == ((1, 2, 3), (), "_dot")

    def test_symbolic_dimensions(self, polymorphic):
        """JAX wraps the lowered function, which takes all arguments, in another one."""
        call = from_exported(polymorphic)
        assert [(spec.name, str(spec)) for spec in call.args] == [
            ("params['unused']", "int32[]"),
            ("params['w']", "float32[3,2]"),
            ("x", "float32[batch,3]"),
            ("scale", "float32[]"),
        ]
        assert [str(spec) for spec in call.results] == ["int32[]", "float32[batch,2]"]
        assert (call.kept, call.symbols) == ((0, 1, 2, 3), ("batch",))

    def test_checks_and_platforms(self):
        checks = [
            export.DisabledSafetyCheck.platform(),
            export.DisabledSafetyCheck.custom_call("lapack_spotrf_ffi"),
        ]
        call = from_exported(export_of(jnp.linalg.cholesky, jnp.eye(2), checks=checks))
        assert set(call.disabled_checks) == {
            DisabledCheck("platform"),
            DisabledCheck("custom_call:lapack_spotrf_ffi"),
        }
        call = from_exported(export_of(jnp.sin, X, platforms=["tpu", "cuda", "cpu", "rocm"]))
        assert call.platforms == ("tpu", "cuda", "cpu", "rocm")
        assert call.has_platform_index

    def test_it_carries_the_exported_without_its_module(self, polymorphic):
        call = from_exported(polymorphic)
        assert len(call.exported) < 4000
        again = to_exported(call)
        w, x = jnp.arange(6.0).reshape(3, 2), jnp.ones((4, 3))
        got = again.call({"unused": 0, "w": w}, x, scale=2.0)
        np.testing.assert_array_equal(got["y"], x @ w * 2)
        assert from_exported(again) == call

    def test_a_vjp(self, exported):
        call = from_exported(exported.vjp())
        assert [spec.element for spec in call.args] == ["", "", "", "", "float0", ""]
        assert [str(spec) for spec in call.args[4:]] == ["bool[]", "float32[4,2]"]
        assert [(spec.element, str(spec)) for spec in call.results] == [
            ("float0", "bool[]"),
            ("", "float32[3,2]"),
            ("", "float32[4,3]"),
            ("", "float32[]"),
        ]
        assert [spec.is_zero for spec in call.results] == [True, False, False, False]

    @pytest.mark.parametrize(("devices", "shardy"), [(1, False), (2, True)])
    def test_shardings(self, devices, shardy):
        """On one device every sharding is replication, whatever the partitioner."""
        sharding = NamedSharding(AbstractMesh((devices,), ("x",)), PartitionSpec("x"))
        exported = export_of(jnp.sin, jax.ShapeDtypeStruct((4,), "float32", sharding=sharding))
        call = from_exported(exported)
        assert (call.nr_devices, call.uses_shardy) == (devices, shardy)

    def test_typed_keys(self):
        call = from_exported(export_of(jax.random.split, jax.random.key(0)))
        assert (call.args[0].element, str(call.args[0])) == ("key<fry>", "uint32[2]")
        assert (call.results[0].element, str(call.results[0])) == ("key<fry>", "uint32[2,2]")
        keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
        assert str(from_exported(export_of(lambda k: k, keys)).args[0]) == "uint32[3,4]"


class TestWhatCannotRun:
    def test_another_object(self):
        with pytest.raises(StructureError, match=r"Expected a jax\.export\.Exported, got function"):
            from_exported(lambda x: x)

    @pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e4m3", "float8_e4m3b11fnuz"])
    def test_a_dtype_in_the_arguments(self, dtype):
        tree = {"a": [X, jax.ShapeDtypeStruct((2,), dtype)]}
        exported = export_of(lambda tree: tree["a"][1].astype("float32"), tree)
        with pytest.raises(DtypeError, match=rf"args\[0\]\['a'\]\[1\] has dtype {dtype}"):
            from_exported(exported)

    def test_a_dtype_in_the_results(self):
        exported = export_of(lambda x: (x, {"low": x.astype("int4")}), X)
        with pytest.raises(DtypeError, match=r"result\[1\]\['low'\] has dtype int4.*int8 before"):
            from_exported(exported)

    @pytest.mark.parametrize("effect", ["print", "debug.print"])
    def test_ordered_effects(self, exported, effect):
        with pytest.raises(
            StructureError, match=rf"ordered effects \({effect}\).* takes and retur"
        ):
            from_exported(dataclasses.replace(exported, ordered_effects=(effect,)))

    @pytest.mark.parametrize("target", ["xla_ffi_python_cpu_callback", "xla_python_gpu_callback"])
    def test_a_host_callback(self, target):
        exported = export_of(lambda x: jax.ffi.ffi_call(target, X)(x), X, checks=_allowing(target))
        with pytest.raises(
            StructureError, match=rf"calls back to Python at .*test_exported\.py:\d+ .*{target}"
        ):
            from_exported(exported)

    def test_jax_does_not_export_callbacks(self):
        """Where it does, one day, `test_a_host_callback` has to be true of what it exports."""
        with pytest.raises(NotImplementedError, match="host_callbacks"):
            export_of(lambda x: io_callback(np.sin, X, x), X)

    def test_a_library_that_tensorflow_lacks(self):
        def spectrum(x):
            return jnp.linalg.eigvals(x)

        line = spectrum.__code__.co_firstlineno + 1
        with pytest.raises(
            InteropError,
            match=rf"spectrum calls lapack_sgeev_ffi at .*test_exported\.py:{line}, a library that "
            r".*for the primitive eig on cpu.*To do: compute .*custom_call\('lapack_sgeev_ffi'\)\]",
        ):
            from_exported(export_of(spectrum, jnp.eye(2)))
        checks = _allowing("lapack_sgeev_ffi")
        assert from_exported(export_of(spectrum, jnp.eye(2), checks=checks)).name == "spectrum"

    def test_static_data_that_cannot_be_written(self):
        class Pair:
            def __init__(self, x, y, kind):
                self.x, self.y, self.kind = x, y, kind

        jax.tree_util.register_pytree_node(
            Pair, lambda p: ((p.x, p.y), p.kind), lambda kind, parts: Pair(*parts, kind)
        )
        exported = export_of(lambda pair: pair.x + pair.y, Pair(X, X, object()))
        with pytest.raises(
            UnsupportedError,
            match=r"lambda>: the argument args\[0\] \(static data of Pair\).*To do",
        ):
            from_exported(exported)
        call = from_exported(exported, allow_flat_trees=True)
        flat = to_exported(call)
        assert flat.in_tree == jax.tree.structure(((0, 0), {}))


def _allowing(target):
    return [export.DisabledSafetyCheck.custom_call(target)]


class TestContradictions:
    """An `Exported` is a dataclass, so its parts can be put together wrongly."""

    @pytest.mark.parametrize("version", [3, 5, 11, 99])
    def test_the_calling_convention(self, exported, version):
        with pytest.raises(VersionError, match=rf"_dot has calling convention {version}; underst"):
            from_exported(dataclasses.replace(exported, calling_convention_version=version))

    @pytest.mark.parametrize("platforms", [("cpu", "tpu"), ("cpu", "cuda", "rocm")])
    def test_more_platforms(self, exported, platforms):
        wrong = dataclasses.replace(exported, platforms=platforms)
        with pytest.raises(StructureError, match=r"for \d platform\(s\), but its module does not"):
            from_exported(wrong)

    def test_fewer_platforms(self):
        exported = export_of(jnp.sin, X, platforms=["cpu", "tpu"])
        with pytest.raises(StructureError, match=r"for 1 platform\(s\), but its module takes a"):
            from_exported(dataclasses.replace(exported, platforms=("cpu",)))

    @pytest.mark.parametrize("platforms", [(), ("metal",)])
    def test_no_platform(self, exported, platforms):
        with pytest.raises(PlatformError, match=r"_dot was exported for .*To do: export again"):
            from_exported(dataclasses.replace(exported, platforms=platforms))

    @pytest.mark.parametrize(
        ("kept", "match"),
        [
            ((0, 1, 2, 3), "has 4 kept arguments, but its module takes 3"),
            ((1, 2), "has 2 kept arguments"),
            ((), "has 0 kept arguments"),
            ((0, 2, 3), r"args\[0\]\['unused'\] of _dot is int32\[\], but the module has tensor<"),
            ((0, 1, 2), r"args\[0\]\['unused'\] of _dot is int32\[\]"),
            ((2, 1, 3), "are not ascending indices of its 4 arguments"),
            ((1, 2, 4), "are not ascending indices"),
        ],
    )
    def test_kept_arguments(self, exported, kept, match):
        with pytest.raises(StructureError, match=match):
            from_exported(dataclasses.replace(exported, module_kept_var_idx=kept))

    @pytest.mark.parametrize(
        ("index", "aval", "match"),
        [
            (1, ((2, 3), "float32"), r"args\[0\]\['w'\] of _dot is float32\[2,3\], but .*3x2xf32"),
            (1, ((3, 2), "int32"), r"is int32\[3,2\], but the module has tensor<3x2xf32>"),
            (1, ((3, 2), "uint32"), r"is uint32\[3,2\], but the module has tensor<3x2xf32>"),
            (1, ((3, 2, 1), "float32"), r"is float32\[3,2,1\], but the module"),
            (3, ((1,), "float32"), r"kwargs\['scale'\] of _dot is float32\[1\]"),
        ],
    )
    def test_arguments(self, exported, index, aval, match):
        avals = list(exported.in_avals)
        avals[index] = jax.core.ShapedArray(aval[0], np.dtype(aval[1]))
        with pytest.raises(StructureError, match=match):
            from_exported(dataclasses.replace(exported, in_avals=tuple(avals)))

    @pytest.mark.parametrize("dtype", ["float32", "uint32", "int16"])
    def test_results(self, exported, dtype):
        avals = (jax.core.ShapedArray((), np.dtype(dtype)), exported.out_avals[1])
        with pytest.raises(
            StructureError, match=rf"result\['n'\]\[0\] of _dot is {dtype}\[\], but"
        ):
            from_exported(dataclasses.replace(exported, out_avals=avals))

    def test_the_number_of_arguments(self, exported):
        wrong = dataclasses.replace(exported, in_avals=exported.in_avals[:-1])
        with pytest.raises(StructureError, match="has 3 arguments, but its pytree has 4"):
            from_exported(wrong)

    @pytest.mark.parametrize("nr", [1, 3])
    def test_the_number_of_results(self, exported, nr):
        avals = (exported.out_avals * 2)[:nr]
        with pytest.raises(StructureError, match=f"has {nr} results, but its pytree has 2"):
            from_exported(dataclasses.replace(exported, out_avals=avals))
        tree = jax.tree.structure((0,) * nr)
        wrong = dataclasses.replace(exported, out_avals=avals, out_tree=tree)
        with pytest.raises(
            StructureError, match=f"_dot has {nr} results, but its module returns 2"
        ):
            from_exported(wrong)


class TestDamage:
    @pytest.mark.parametrize("module", [b"", b"garbage", b"ML\xefR"])
    def test_no_module(self, exported, module):
        wrong = dataclasses.replace(exported, mlir_module_serialized=module)
        with pytest.raises(FormatError, match=r"a StableHLO portable artifact begins with"):
            from_exported(wrong)

    def test_a_cut_module(self, exported):
        whole = exported.mlir_module_serialized
        for length in range(0, len(whole), 97):
            wrong = dataclasses.replace(exported, mlir_module_serialized=whole[:length])
            with pytest.raises(FormatError, match=rf"The module's {length} bytes"):
                from_exported(wrong)

    def test_a_module_without_main(self, exported):
        wrong = exported.mlir_module_serialized.replace(b"\x00main\x00", b"\x00mine\x00")
        assert wrong != exported.mlir_module_serialized
        with pytest.raises(StructureError, match=r"has no function 'main', only \[.*'mine'"):
            from_exported(dataclasses.replace(exported, mlir_module_serialized=wrong))

    @pytest.mark.parametrize(
        ("version", "match"),
        [
            (
                "9.9.9",
                r"StableHLO 9\.9\.9, and .* reads 0\.9\.0 to .*To do: take jaxlib newer than",
            ),
            (
                "0.8.9",
                r"StableHLO 0\.8\.9, .*To do: take jaxlib .*bridge\.retarget\(…, lift=True\)",
            ),
        ],
    )
    def test_a_module_that_this_jaxlib_does_not_read(self, exported, version, match):
        own = ".".join(map(str, from_exported(exported).stablehlo_version))
        module = exported.mlir_module_serialized.replace(own.encode(), version.encode(), 1)
        module = module.replace(b"_v1", b"_v0")  # operations that no jaxlib has
        wrong = dataclasses.replace(exported, mlir_module_serialized=module)
        with pytest.raises(VersionError, match=match):
            from_exported(wrong)
        with pytest.raises(VersionError, match=match):
            deserialize_exported(bytes(wrong.serialize()))

    def test_open_module_says_what_is_wrong(self):
        with (
            pytest.raises(VersionError, match="To do: take jaxlib newer than"),
            open_module(b"ML\xefR\rStableHLO_v9.9.9\x00"),
        ):
            pass
