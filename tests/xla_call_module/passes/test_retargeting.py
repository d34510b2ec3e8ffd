"""A call as an older TensorFlow reads it: still the same computation, or refused by name."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export, lax
from jax.scipy import special

from tests.exports import call_of
from xla_call_module import from_exported, retarget
from xla_call_module.errors import FormatError, StructureError, VersionError
from xla_call_module.passes.obstacles import oldest_release
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.call_graph import COMPOSITE
from xla_call_module.stablehlo.modules import open_module, walk
from xla_call_module.versions import RELEASES, parse_release

# JAX 0.10 exports these at a StableHLO that TensorFlow 2.21 does not read, as composites.
COMPOSITES = {
    "erf": special.erf,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "top_k": functools.partial(lax.top_k, k=3),
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "arcsin": jnp.arcsin,
    "arccos": jnp.arccos,
    "arcsinh": jnp.arcsinh,
    "arccosh": lambda x: jnp.arccosh(1 + jnp.abs(x)),
    "arctanh": jnp.arctanh,
    "ndtr": special.ndtr,
    "log_ndtr": special.log_ndtr,
    "truncated_normal": lambda x: jax.random.truncated_normal(
        jax.random.key(0), -x[:5] - 2, 1 + x[:5]
    ),
}
X = np.linspace(-0.9, 0.9, 11, dtype=np.float32)


def _run(call, *args):
    return [x.numpy() for x in Op(call).run([tf.constant(np.asarray(x)) for x in args])]


@pytest.mark.parametrize("release", ["2.14", "2.18", "2.21"])
@pytest.mark.parametrize("name", COMPOSITES)
def test_what_jax_exports_too_new_runs(name, release):
    """The two XLA versions approximate differently; a few units in the last place."""
    call = retarget(call_of(COMPOSITES[name], X), release)
    if release == "2.14":
        with open_module(call.module) as module:
            assert COMPOSITE not in {operation.name for operation in walk(module)}
    want = jax.tree.leaves(jax.jit(COMPOSITES[name])(X))
    for result, wanted in zip(_run(call, X), want, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=5e-6, atol=1e-6)


def _two(x):
    return jnp.sin(x) @ jnp.cos(x).T


@pytest.fixture(scope="module")
def call():
    return call_of(_two, np.ones((2, 3), np.float32))


class TestVersions:
    @pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
    def test_what_a_release_reads(self, call, release):
        for wanted in (release, release.name, f"{release.name}.1"):
            made = retarget(call, wanted)
            read = (1, 0, 0) if release.name == "2.17" else release.stablehlo
            assert made.stablehlo_version == min(read, call.stablehlo_version)
            assert made.version == min(release.convention, 9)
        kept = ("name", "args", "results", "kept", "platforms", "disabled_checks", "exported")
        assert all(getattr(made, field) == getattr(call, field) for field in kept)
        assert retarget(made, release) == made

    def test_polymorphic_and_multi_platform_modules(self):
        shape = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), "float32")
        call = retarget(call_of(_two, shape, platforms=["tpu", "cpu"]), "2.18")
        assert call.has_platform_index
        np.testing.assert_allclose(
            _run(call, np.ones((4, 3), np.float32))[0], _two(jnp.ones((4, 3))), rtol=1e-6
        )

    def test_an_artifact_is_never_made_newer(self, call):
        old = retarget(call, "2.14")
        assert retarget(old, "2.21").stablehlo_version == old.stablehlo_version
        assert retarget(old, "2.21").version == 8

    def test_a_release_to_come(self, call):
        assert retarget(call, "2.99") == retarget(call, RELEASES[-1])

    def test_the_oldest_by_default(self, call):
        assert retarget(call) == retarget(call, "2.14")
        assert oldest_release(retarget(call)) == RELEASES[0]
        assert oldest_release(call) is None or oldest_release(call).tensorflow >= (2, 20)
        for release in RELEASES:
            if release.stablehlo <= call.stablehlo_version:
                oldest = oldest_release(retarget(call, release))
                # 2.20 reads what is newer in name alone
                assert oldest.tensorflow == min(release.tensorflow, (2, 20))

    @pytest.mark.parametrize("version", ["2.13", "two", "", 2.16])
    def test_no_release(self, call, version):
        with pytest.raises(VersionError, match="TensorFlow"):
            retarget(call, version)

    def test_no_call(self):
        with pytest.raises(StructureError, match=r"Expected a CallModule, got Exported.*bridge"):
            retarget(export.export(jax.jit(jnp.sin))(1.0), "2.18")


class TestShardy:
    """Calling convention 10 brought the flag, with TensorFlow 2.20."""

    @pytest.fixture
    def sharded(self, call):
        return dataclasses.replace(call, uses_shardy=True, version=10, nr_devices=2)

    @pytest.mark.parametrize("release", ["2.18", "2.19"])
    def test_it_is_left_out_below(self, sharded, release):
        made = retarget(sharded, release)
        assert (made.uses_shardy, made.version) == (False, 9)

    @pytest.mark.parametrize("release", ["2.20", "2.21"])
    def test_it_is_kept_above(self, sharded, release):
        made = retarget(sharded, release)
        assert (made.uses_shardy, made.version) == (True, 10)

    def test_the_op_takes_it(self, sharded):
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        np.testing.assert_allclose(
            _run(retarget(sharded, "2.21"), x)[0], jax.jit(_two)(x), rtol=1e-6
        )

    def test_by_default_it_is_kept(self, sharded):
        assert retarget(sharded) == retarget(sharded, "2.20")


def _accurate(x):
    return lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST)


def _tolerant(x):
    return lax.tanh(lax.tanh(x), accuracy=lax.Tolerance(rtol=1e-6))


def _algorithm(x):
    return lax.dot(x, x, precision=lax.DotAlgorithmPreset.F32_F32_F32)


class TestWhatCannotBeExpressed:
    @pytest.mark.parametrize(
        ("function", "operation", "first", "cure"),
        [
            pytest.param(
                _accurate, "vhlo.exponential_v2 with result_accuracy HIGHEST", "2.19",
                "ask for no accuracy= .* gradients of erf .* jax.custom_jvp",
            ),
            pytest.param(
                _tolerant, "vhlo.tanh_v2 with result_accuracy TOLERANCE", "2.20",
                "ask for no accuracy= .* gradients of erf .* jax.custom_jvp",
            ),
            (
                _algorithm, "stablehlo.dot_general with an explicit algorithm", "2.19",
                "leave the operation out",
            ),
        ],
    )  # fmt: skip
    def test_it_is_named_with_its_place(self, function, operation, first, cure):
        call = call_of(function, np.ones((2, 2), np.float32))
        line = function.__code__.co_firstlineno + 1
        for release in RELEASES:
            if release.tensorflow >= parse_release(first).tensorflow:
                retarget(call, release)
                continue
            match = (
                rf"{function.__name__} cannot be expressed for TensorFlow {release.name} .*: "
                rf"{operation} at .*test_retargeting\.py:{line}.* that runs it is {first}\. To do: "
                rf"ask for that version, or {cure}"
            )
            with pytest.raises(VersionError, match=match):
                retarget(call, release)
        assert retarget(call) == retarget(call, first)
        assert oldest_release(retarget(call)).name == first

    def test_what_is_called_from_many_places_has_the_place_of_its_first_call(self):
        """The gradient of a sort of an unknown number of rows has a scatter without a frame."""

        def outer(x):
            return jnp.sort(x, axis=0)

        rows = jax.ShapeDtypeStruct(export.symbolic_shape("b, 3"), np.float32)
        vjp = from_exported(export.export(jax.jit(outer))(rows).vjp())
        match = r"vhlo\.scatter_v2 at \S+\.py:\d+.* that runs it is 2\.18"
        with pytest.raises(VersionError, match=match):
            retarget(vjp, "2.17")

    def test_a_damaged_module(self, call):
        damaged = dataclasses.replace(call, module=call.module[: len(call.module) // 2])
        with pytest.raises(FormatError, match="bytes are not a StableHLO portable artifact"):
            retarget(damaged, "2.18")
