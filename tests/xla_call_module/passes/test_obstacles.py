"""The reasons why a release does not run a call as it stands."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from jax import export

from xla_call_module import from_exported, retarget
from xla_call_module.errors import VersionError
from xla_call_module.passes.obstacles import find_obstacles, oldest_release
from xla_call_module.runtime.op import Op
from xla_call_module.stablehlo.modules import open_module
from xla_call_module.versions import RELEASES, parse_release

X = np.ones((4, 4), np.float32)


def _dot(x):
    return jax.lax.dot_general(
        x, x, (((1,), (0,)), ((), ())), precision=jax.lax.DotAlgorithmPreset.BF16_BF16_F32
    )


def _call(function, tensorflow=None):
    call = from_exported(jax.export.export(jax.jit(function))(X))
    return retarget(call, tensorflow) if tensorflow else call


def _obstacles(call):
    with open_module(call.module) as module:
        return find_obstacles(call, module)


@pytest.mark.parametrize("tensorflow", [None, *(release.name for release in RELEASES)])
@pytest.mark.parametrize("function", [jnp.sin, jax.lax.erf])
def test_the_others_are_those_that_run_it(function, tensorflow):
    call = _call(function, tensorflow)
    oldest = oldest_release(call)
    older = RELEASES if oldest is None else RELEASES[: RELEASES.index(oldest)]
    assert [obstacle.release for obstacle in _obstacles(call)] == list(older)


def test_what_takes_nothing_and_is_for_several_platforms_needs_a_newer_one():
    def exported(*platforms):
        return export.export(jax.jit(lambda: jnp.ones(3)), platforms=platforms)()

    call = from_exported(exported("cpu", "tpu"))
    assert oldest_release(retarget(call, "2.16")) == parse_release("2.16")
    with pytest.raises(VersionError, match=r"function for several platforms that takes nothing"):
        retarget(call, "2.15")
    single = retarget(from_exported(exported("cpu")), "2.14")
    assert oldest_release(single) == parse_release("2.14")


def test_only_the_version_is_in_the_way():
    *_, last = _obstacles(_call(jnp.sin, "2.19"))
    assert (last.release.name, last.removable) == ("2.18", True)
    assert last.operation == ""
    assert last.reason == "it reads StableHLO up to 1.7.3, and the module is 1.9.1"


def test_only_the_convention_is_in_the_way():
    *_, last = _obstacles(_call(jnp.sin, "2.16"))
    assert last.reason == "it reads StableHLO up to 0.14.24, and the module is 0.17.7"
    *_, last = _obstacles(_relabelled(_call(jnp.sin, "2.14")))
    assert last.reason == "it takes calling conventions up to 9, not 10"


def _relabelled(call):
    return dataclasses.replace(call, version=10)


def test_an_operation_that_a_release_refuses():
    *_, last = _obstacles(_call(_dot, "2.19"))
    line = _dot.__code__.co_firstlineno + 1
    what = f"stablehlo.dot_general with an explicit algorithm at {__file__}:{line}"
    assert (last.release.name, last.operation) == ("2.18", what)
    assert last.reason == f"{what} runs from TensorFlow 2.19 on"
    assert last.removable is False


def test_an_operation_without_an_older_form():
    def accurate(x):
        return jax.lax.exp(x, accuracy=jax.lax.AccuracyMode.HIGHEST)

    *_, last = _obstacles(_call(accurate, "2.19"))
    line = accurate.__code__.co_firstlineno + 1
    assert last.operation.startswith(
        f"vhlo.exponential_v2 with result_accuracy HIGHEST at {__file__}:{line}"
    )
    assert (last.release.name, last.removable) == ("2.18", False)
    assert last.reason == "it reads StableHLO up to 1.7.3, and the module is 1.9.1"


@pytest.mark.skipif(jax.__version_info__ < (0, 10), reason="its StableHLO is not newer")
def test_what_is_newer_than_a_release_in_name_alone():
    """TensorFlow 2.21 reads StableHLO 1.13.7, and runs this; see test_tensorflow_agrees."""
    call = _call(jnp.sin)
    assert call.stablehlo_version > RELEASES[-1].stablehlo
    *_, last = _obstacles(call)
    assert last.release.name == "2.19"
    *_, last = _obstacles(_call(lambda x: jax.lax.erf(x)))  # a trace of its own
    assert (last.release.name, last.removable) == ("2.21", True)
    assert last.operation.startswith(f"vhlo.composite_v2 at {__file__}:")


@pytest.mark.parametrize(
    "function", [jnp.sin, jnp.tanh, jnp.exp, jnp.sort, jax.lax.erf, jnp.arcsin, _dot]
)
def test_tensorflow_agrees(function, capfd):
    release = parse_release(tf.__version__)
    call = _call(function)
    oldest = oldest_release(call)
    if oldest is not None and oldest.tensorflow <= release.tensorflow:
        assert Op(call).run([tf.constant(X)])[0].shape == X.shape
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="Cannot deserialize"):
            Op(call).run([tf.constant(X)])
    capfd.readouterr()  # MLIR says at length what it does not know


def test_the_module_stays_as_it_is():
    call = _call(jax.lax.erf)
    with open_module(call.module) as module:
        before = str(module)
        find_obstacles(call, module)
        assert str(module) == before
