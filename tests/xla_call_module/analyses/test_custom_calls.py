"""Custom calls: which targets run where, and what of a module runs on a platform."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax

from xla_call_module.analyses.branches import operations_on
from xla_call_module.analyses.custom_calls import Provider, check_custom_calls, classify
from xla_call_module.checks import parse_checks
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.exported import from_exported
from xla_call_module.passes.pipeline import retarget
from xla_call_module.platforms import PLATFORMS
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo import modules as stablehlo

SQUARE = jax.ShapeDtypeStruct((3, 3), "float32")
MATRIX = np.eye(3, dtype="float32") * 4


def _export(function, *specs, platforms=("cpu",), checks=()):
    allowed = [export.DisabledSafetyCheck.custom_call(target) for target in checks]
    exporter = export.export(jax.jit(function), platforms=platforms, disabled_checks=allowed)
    return exporter(*specs or (SQUARE,))


def _targets(exported, index):
    """The custom calls of a module, on the platform at a position."""
    with stablehlo.open_module(exported.mlir_module_serialized) as module:
        return sorted(set(stablehlo.custom_call_targets(operations_on(module, index))))


def _call(target):
    return lambda x: jax.ffi.ffi_call(target, SQUARE)(x)


class TestTheTable:
    @pytest.mark.parametrize(
        ("target", "provider", "platforms", "stable"),
        [
            ("Eigh", Provider.XLA, PLATFORMS, True),
            ("LuDecomposition", Provider.XLA, ("tpu",), True),
            ("tpu_custom_call", Provider.XLA, ("tpu",), True),
            ("shape_assertion", Provider.TENSORFLOW, PLATFORMS, True),
            ("lapack_zheevd_ffi", Provider.ABSENT, (), True),
            ("cusolver_getrf_ffi", Provider.ABSENT, (), True),
            ("hip_lu_pivots_to_permutation", Provider.ABSENT, (), True),
            ("mhlo.erf", Provider.XLA, PLATFORMS, False),
            ("xla.sdy.GlobalToLocalShape", Provider.XLA, PLATFORMS, False),
            ("__gpu$xla.gpu.triton", Provider.XLA, ("cuda", "rocm"), False),
            ("xla_ffi_python_cpu_callback", Provider.CALLBACK, (), False),
            ("made_up", Provider.ABSENT, (), False),
            ("Eighs", Provider.ABSENT, (), False),
            ("", Provider.ABSENT, (), False),
        ],
    )
    def test_a_target(self, target, provider, platforms, stable):
        found = classify(target)
        assert (found.provider, found.platforms, found.stable) == (provider, platforms, stable)

    def test_everything_that_jax_guarantees_is_in_it(self):
        from jax._src.export import _export

        stable = _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE
        assert len(stable) > 70
        assert [target for target in stable if not classify(target).stable] == []


# Functions that call what the table has, the platform they are lowered for and what they take.
RUNS = {
    "Eigh": (lambda x: jnp.linalg.eigh(x)[0], "tpu", SQUARE),
    "Qr": (lambda x: jnp.linalg.qr(x, mode="r"), "tpu", SQUARE),
    "ApproxTopK": (lambda x: lax.approx_max_k(x, 2)[0], "cpu", SQUARE),
    "stablehlo.dynamic_reduce_window": (
        lambda x: jnp.cumsum(x, 0),
        "cpu",
        jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32"),
    ),
    "LuDecomposition": (lambda x: lax.linalg.lu(x)[0], "tpu", SQUARE),
    "lapack_spotrf_ffi": (lambda x: lax.linalg.cholesky(x), "cpu", SQUARE),
    "cusolver_syevd_ffi": (lambda x: jnp.linalg.eigh(x)[0], "cuda", SQUARE),
    "made_up": (_call("made_up"), "cpu", SQUARE),
}


@pytest.mark.parametrize("target", RUNS)
def test_tensorflow_on_the_cpu_agrees_with_the_table(target):
    function, platform, spec = RUNS[target]
    exported = _export(function, spec, platforms=[platform], checks=["made_up"])
    assert target in _targets(exported, None)
    checks = ["platform", f"custom_call:{target}"]
    run = Op(retarget(from_exported(exported, disabled_checks=checks), "2.21")).run
    if "cpu" in classify(target).platforms:
        assert np.isfinite(run([tf.constant(MATRIX)])[0]).all()
    else:
        with pytest.raises(tf.errors.NotFoundError, match=rf"No .*register.* {target}"):
            run([tf.constant(MATRIX)])


class TestBranches:
    """`lax.linalg.cholesky` is another custom call on each platform."""

    NAMES = {  # noqa: RUF012 - read only
        "cpu": ["lapack_spotrf_ffi"],
        "cuda": ["cusolver_potrf_ffi"],
        "rocm": ["hipsolver_potrf_ffi"],
        "tpu": [],
    }
    FUNCTIONS = {  # noqa: RUF012 - read only
        "plain": lax.linalg.cholesky,
        "in a function": lambda x: jnp.linalg.cholesky(jnp.linalg.cholesky(x) + x),
        "in a loop": lambda x: lax.fori_loop(0, 3, lambda _, y: lax.linalg.cholesky(y), x),
        "in a condition": lambda x: lax.cond(x[0, 0] > 0, lax.linalg.cholesky, lambda y: y, x),
        "in a branch of its own": lambda x: lax.platform_dependent(
            x, default=lambda x: lax.platform_dependent(x, default=lax.linalg.cholesky)
        ),
    }

    @pytest.mark.parametrize("function", FUNCTIONS)
    @pytest.mark.parametrize(
        "platforms", [("cpu", "cuda", "tpu"), ("tpu", "rocm", "cpu"), ("cuda", "tpu")], ids="-".join
    )
    def test_each_platform_has_its_own_calls(self, function, platforms):
        exported = _export(self.FUNCTIONS[function], platforms=platforms)
        found = [_targets(exported, index) for index in range(len(platforms))]
        assert found == [self.NAMES[platform] for platform in platforms]
        assert _targets(exported, None) == sorted(itertools.chain(*found))

    def test_branches_that_share_a_lowering(self):
        exported = _export(
            lambda x: lax.platform_dependent(x, tpu=lax.linalg.cholesky, default=jnp.sin),
            platforms=["cpu", "rocm", "tpu", "cuda"],
        )
        assert [_targets(exported, index) for index in range(4)] == [[]] * 4
        exported = _export(
            lambda x: lax.platform_dependent(x, cpu=lax.linalg.cholesky, default=jnp.sin),
            platforms=["tpu", "cuda", "cpu"],
        )
        assert [_targets(exported, index) for index in range(3)] == [[], [], self.NAMES["cpu"]]

    def test_a_case_that_is_the_users(self):
        """What it depends on is not known before it runs."""
        exported = _export(
            lambda x: lax.switch(x[0, 0].astype(int), [lax.linalg.cholesky, jnp.sin], x),
            platforms=["tpu", "cpu"],
        )
        assert [_targets(exported, index) for index in range(2)] == [[], self.NAMES["cpu"]]

    def test_a_computation_that_a_custom_call_names(self):
        exported = _export(RUNS["ApproxTopK"][0], platforms=["cpu", "tpu"])
        with stablehlo.open_module(exported.mlir_module_serialized) as module:
            named = [
                {
                    str(op.attributes["called_computations"])
                    for op in operations_on(module, index)
                    if "called_computations" in op.attributes
                }
                for index in range(2)
            ]
            compares = [
                sum(op.name == "stablehlo.compare" for op in operations_on(module, index))
                for index in range(2)
            ]
        assert all(named)
        assert all(compares)


def _check(exported, checks=()):
    with stablehlo.open_module(exported.mlir_module_serialized) as module:
        check_custom_calls(exported.fun_name, module, exported.platforms, parse_checks(checks))


def _export_absent(platforms):
    """A function that calls something else on each platform but `tpu`."""
    targets = {"cpu": "on_the_cpu", "cuda": "on_cuda", "rocm": "on_rocm"}

    def function(x):
        branches = {platform: _call(target) for platform, target in targets.items()}
        return lax.platform_dependent(x, **branches, default=jnp.sin)

    return _export(function, platforms=platforms, checks=list(targets.values()))


class TestWhatIsRefused:
    def test_an_absent_target(self):
        def solve(x):
            return lax.linalg.eig(x)[0]

        line = solve.__code__.co_firstlineno + 1
        with pytest.raises(
            InteropError,
            match=rf"^solve calls lapack_sgeev_ffi at \S*test_custom_calls\.py:{line}, a library "
            r"that JAX links and TensorFlow does not, for the primitive eig on cpu: .* To do: "
            r".*custom_call\('lapack_sgeev_ffi'\)\]\.$",
        ):
            _check(_export(solve))

    def test_one_in_what_jax_calls_from_a_function_of_its_own(self):
        """`sqrtm` calls `schur`: both are lowered once, and `schur` has no frame of the user's."""

        def root(x):
            return jax.scipy.linalg.sqrtm(x + 1)

        line = root.__code__.co_firstlineno + 1
        match = rf"^root calls lapack_cgees_ffi at \S*test_custom_calls\.py:{line}, .* schur on cpu"
        with pytest.raises(InteropError, match=match):
            _check(_export(root))

    @pytest.mark.parametrize(
        ("platforms", "refused"),
        [
            (("tpu", "cuda"), "on_cuda at .* on cuda:"),
            (("cpu", "cuda", "tpu"), "on_the_cpu at .* on cpu:"),
            (("rocm", "cpu"), "on_rocm at .* on rocm:"),
        ],
    )
    def test_on_each_platform(self, platforms, refused):
        with pytest.raises(InteropError, match=refused):
            _check(_export_absent(platforms))
        _check(_export_absent(["tpu"]))

    def test_every_platform_has_to_be_allowed(self):
        exported = _export_absent(["cpu", "cuda"])
        with pytest.raises(InteropError, match=r"on_cuda at .* on cuda:"):
            _check(exported, ["custom_call:on_the_cpu"])
        _check(exported, ["custom_call:on_the_cpu", "custom_call:on_cuda"])

    def test_what_has_a_portable_form_passes(self):
        _check(_export(lax.linalg.cholesky, platforms=["cpu", "cuda", "rocm", "tpu"]))

    def test_an_exported(self):
        exported = _export(_call("mosaic_gpu_v2"))
        with pytest.raises(InteropError, match=r"calls mosaic_gpu_v2 at .* primitive ffi_call on"):
            from_exported(exported)
        checks = ["custom_call:mosaic_gpu_v2"]
        assert list(map(str, from_exported(exported, disabled_checks=checks).disabled_checks)) == (
            checks
        )

    def test_a_target_of_another_platform(self):
        function = RUNS["LuDecomposition"][0]
        exported = _export(function, platforms=["tpu"])
        _check(exported)
        with stablehlo.open_module(exported.mlir_module_serialized) as module:
            with pytest.raises(
                InteropError,
                match=r"LuDecomposition at .*, which XLA has on tpu only, .* lu on cuda:",
            ):
                check_custom_calls("f", module, ["cuda"], ())
            check_custom_calls("f", module, ["cuda"], parse_checks("custom_call:LuDecomposition"))

    @pytest.mark.parametrize("allowed", ["made_up", "ALL"])
    def test_an_unknown_target(self, allowed):
        exported = _export(_call("made_up"), checks=["made_up"])
        with stablehlo.open_module(exported.mlir_module_serialized) as module:
            with pytest.raises(
                InteropError,
                match=r"calls made_up at .*, which neither XLA nor TensorFlow",
            ):
                check_custom_calls("f", module, ["cpu"], parse_checks("custom_call:made_down"))
            check_custom_calls("f", module, ["cpu"], parse_checks(f"custom_call:{allowed}"))

    def test_a_callback_cannot_be_allowed(self):
        target = "xla_ffi_python_cpu_callback"
        exported = _export(_call(target), checks=[target])
        with pytest.raises(StructureError, match=rf"calls back to Python at .*{target}"):
            from_exported(exported, disabled_checks=["custom_call:ALL"])
