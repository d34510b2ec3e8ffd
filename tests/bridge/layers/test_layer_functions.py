"""The releases of TensorFlow that the functions of a layer are made for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bridge.layers.layer_functions import LayerTarget, to_artifact
from bridge.layers.layer_state import to_layer_state
from tests.bridge.models import exponential
from xla_call_module.errors import ArgumentError, StructureError, VersionError
from xla_call_module.versions import RELEASES, parse_release

NOTHING = to_layer_state(None, None, None, True)
SHAPE = jax.ShapeDtypeStruct((3, 3), "float32")


def make(function, shape=SHAPE, **options):
    exported = jax.export.export(jax.jit(function))(shape)
    artifact, _ = to_artifact(exported, None, NOTHING, LayerTarget(**options))
    return artifact.inference


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.name)
def test_the_installed_tensorflow_runs_every_order_as_it_stands(release):
    made = make(lambda x: exponential(x) @ x, gradient_order=2, installed=release)
    assert len(made.since) == len(made.chain) == 3
    assert max(made.since) <= release.tensorflow
    for call in made.chain:
        assert call.stablehlo_version <= release.stablehlo


def test_a_composite_is_kept_where_none_is_installed_that_lacks_it():
    assert make(exponential).since == ((2, 18), (2, 18))
    assert make(exponential, installed=parse_release("2.18")).since == ((2, 18), (2, 18))
    assert make(exponential, tensorflow="2.17").since == ((2, 17), (2, 17))


def test_what_is_for_any_release_stays_so_where_a_new_one_is_installed():
    any_release = make(jnp.tanh)
    installed = make(jnp.tanh, installed=RELEASES[-1])
    assert any_release.since == installed.since == ((2, 14), (2, 14))
    assert installed == any_release


def test_the_sizes_are_compared_in_the_form_of_the_release():
    shape = jax.ShapeDtypeStruct(
        jax.export.symbolic_shape("b, 3", constraints=["mod(b, 2) == 0"]), "float32"
    )
    oldest = parse_release("2.14")
    made = make(jax.scipy.special.erf, shape, gradient_order=0, installed=oldest)
    assert made.since == ((2, 14),)
    assert made.shape_check.call.stablehlo_version <= oldest.stablehlo
    assert made.shape_check.kept == (0,)


def test_an_order_that_the_installed_tensorflow_cannot_run_stays_as_it_is():
    """It is refused where that TensorFlow is to run it, and runs elsewhere."""

    def accurate(x):
        return jax.lax.dot(x, x, precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32)

    made = make(accurate, installed=parse_release("2.18"))
    assert min(made.since) == (2, 19)
    with pytest.raises(VersionError, match=r"The oldest TensorFlow that runs it is 2\.19"):
        make(accurate, tensorflow="2.18")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tensorflow": "new"}, VersionError, "'new' is not a TensorFlow version"),
        ({"tensorflow": "1.15"}, VersionError, "1.15 is older than 2.14"),
        ({"gradient_order": "2"}, ArgumentError, "gradient_order is '2'"),
        ({"gradient_order": -1}, StructureError, "gradient_order is -1"),
    ],
)
def test_wrong_targets(options, error, message):
    with pytest.raises(error, match=message):
        LayerTarget(**options)


def test_a_constant_is_known_after_a_translation():
    table = np.arange(3 * 8192, dtype="float32").reshape(3, 8192)
    exported = jax.export.export(jax.jit(lambda x: exponential(x @ table)))(SHAPE)
    target = LayerTarget(installed=parse_release("2.14"))
    artifact, constants = to_artifact(exported, None, NOTHING, target)
    assert [constant.name for constant in artifact.constants] == list(constants)
    assert {key for call in artifact.inference.chain for key in call.hoisted} == set(constants)
