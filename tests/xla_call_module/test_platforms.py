"""Platforms: their names, and what may run where."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
import tensorflow as tf
from jax import export

from xla_call_module import _tf
from xla_call_module.checks import PLATFORM, SHAPE_ASSERTIONS
from xla_call_module.errors import PlatformError
from xla_call_module.exported import from_exported
from xla_call_module.flags import XlaFlags
from xla_call_module.passes.pipeline import retarget
from xla_call_module.platforms import (
    PLATFORMS,
    parse_platforms,
    platform_from_tensorflow,
    platform_to_tensorflow,
)
from xla_call_module.runtime import op
from xla_call_module.runtime.op import Op


@pytest.mark.parametrize(
    ("names", "platforms"),
    [
        (["cpu"], ("cpu",)),
        ("cpu", ("cpu",)),
        (["gpu"], ("cuda", "rocm")),
        (["tpu", "CPU", "cpu"], ("tpu", "cpu")),
        (["rocm", "gpu"], ("rocm", "cuda")),
    ],
)
def test_platforms(names, platforms):
    assert parse_platforms(names) == platforms


@pytest.mark.parametrize("names", [["metal"], ["cpu", "xpu"], [""]])
def test_an_unknown_platform(names):
    with pytest.raises(PlatformError, match=r"is unknown; expected some of cpu, cuda, rocm, tpu"):
        parse_platforms(names)


def test_what_is_no_name():
    with pytest.raises(PlatformError, match=r"^1 is not a platform; expected some of cpu"):
        parse_platforms(["cpu", 1])


def test_no_platform():
    with pytest.raises(PlatformError, match="No platform is named"):
        parse_platforms([])


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_platform_round_trips(platform):
    name = platform_to_tensorflow(platform)
    assert name.isupper()
    assert platform_from_tensorflow(name) == platform


@pytest.mark.parametrize("name", ["cpu", "Cuda", "tPU"])
def test_a_platform_that_tensorflow_would_never_match(name):
    with pytest.raises(PlatformError, match="not in upper case, so TensorFlow would never match"):
        platform_from_tensorflow(name)


@pytest.mark.parametrize("name", ["GPU", "METAL", ""])
def test_a_platform_that_tensorflow_does_not_have(name):
    with pytest.raises(PlatformError, match="is unknown"):
        platform_from_tensorflow(name)


@pytest.fixture(scope="module")
def call():
    """A call for two platforms, neither of which is here."""
    exporter = export.export(jax.jit(jnp.sin), platforms=["tpu", "rocm"])
    return retarget(from_exported(exporter(jax.ShapeDtypeStruct((2,), "float32"))), "2.18")


X = tf.ones([2])


@pytest.fixture
def devices(request, monkeypatch):
    """Other devices than those of this machine."""
    found = [tf.config.LogicalDevice(f"/device:{kind}:0", kind) for kind in request.param]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: found)


def _never(*_, **__):
    raise AssertionError("the op ran")


REFUSED = (
    r"^sin was exported for tpu, rocm, and it would run on CPU, whose platform is cpu\. "
    r"To do: .* platforms=\['tpu', 'rocm', 'cpu'\]; .* "
    r"disabled_checks=\['platform'\], or TF_XLA_FLAGS=--tf_xla_call_module_disabled_checks=platform"
)


class TestWhereACallMayRun:
    def test_it_is_refused_before_the_op_runs(self, call):
        operation = Op(call)
        operation._endpoint = _never
        for _ in range(2):
            with pytest.raises(PlatformError, match=REFUSED):
                operation.run([X])

    @pytest.mark.parametrize("device", ["CPU:0", "/device:CPU:*", "/job:localhost/device:cpu:0"])
    def test_the_device_that_is_asked_for(self, call, device):
        with tf.device(device), pytest.raises(PlatformError, match=r"run on \S*(?i:cpu)"):
            Op(call).run([X])

    def test_a_device_that_is_not_there(self, call):
        """TensorFlow takes the CPU instead."""
        with tf.device("GPU:0"), pytest.raises(PlatformError, match="whose platform is cpu"):
            Op(call).run([X])

    @pytest.mark.parametrize("checks", [(PLATFORM,), (SHAPE_ASSERTIONS, PLATFORM)])
    def test_without_the_check(self, call, checks):
        results = Op(dataclasses.replace(call, disabled_checks=checks)).run([X])
        assert results[0].numpy() == pytest.approx(jnp.sin(jnp.ones(2)))

    def test_the_flags_add_to_the_checks_of_the_call(self, call, monkeypatch):
        monkeypatch.setattr(op, "flags_in_force", lambda: XlaFlags((PLATFORM,)))
        operation = Op(dataclasses.replace(call, disabled_checks=(SHAPE_ASSERTIONS,)))
        assert operation.disabled_checks == (SHAPE_ASSERTIONS, PLATFORM)
        # TensorFlow never saw this flag, and its error becomes ours.
        with pytest.raises(
            PlatformError, match=r"TensorFlow says: The current platform CPU is not among .* To do"
        ) as caught:
            operation.run([X])
        assert isinstance(caught.value.__cause__, tf.errors.NotFoundError)

    @pytest.mark.parametrize(
        ("devices", "asked", "kind"),
        [
            (["CPU"], None, "CPU"),
            (["CPU"], "GPU:0", "CPU"),
            (["CPU", "GPU"], None, "GPU"),
            (["CPU", "GPU"], "", "GPU"),
            (["CPU", "GPU"], "/job:localhost/replica:0/task:0/device:CPU:0", "CPU"),
            (["CPU", "TPU"], None, ""),
            (["CPU", "TPU"], "TPU:0", "TPU"),
        ],
        indirect=["devices"],
    )
    def test_the_kind_of_device(self, devices, asked, kind):
        assert op._device_kind(asked) == kind

    @pytest.mark.parametrize(
        ("devices", "asked", "refused"),
        [
            (["CPU", "GPU"], None, True),
            (["CPU", "TPU"], "TPU:0", False),
            (["CPU", "TPU"], "CPU:0", True),
            (["CPU", "TPU"], None, False),
        ],
        indirect=["devices"],
    )
    def test_other_machines(self, call, devices, asked, refused):
        operation = Op(call)
        operation._asked_device = lambda: asked
        operation._endpoint = lambda operands, **_: operands
        if refused:
            with pytest.raises(PlatformError, match=r"whose platform is (cuda|cpu)"):
                operation.run([X])
        else:
            assert operation.run([X]) == [X]

    def test_each_device_is_decided_once(self, call, monkeypatch):
        operation = Op(dataclasses.replace(call, disabled_checks=(PLATFORM,)))
        operation.run([X])
        monkeypatch.setattr(op, "_device_kind", _never)
        operation.run([X])

    def test_other_errors_stay(self, call):
        operation = Op(dataclasses.replace(call, disabled_checks=(PLATFORM,)))

        def missing(*_, **__):
            raise tf.errors.NotFoundError(None, None, "no such file")

        operation._endpoint = missing
        with pytest.raises(tf.errors.NotFoundError, match="no such file"):
            operation.run([X])


class TestFlagsOfTheProcess:
    def test_what_is_ignored_is_told_once(self, monkeypatch):
        flag = "--tf_xla_call_module_disabled_checks=platforms,platform"
        monkeypatch.setenv("TF_XLA_FLAGS", flag)
        _tf.flags_in_force.cache_clear()
        try:
            with pytest.warns(UserWarning, match=r"'platforms' is unknown.*Did you mean"):
                flags = _tf.flags_in_force()
            assert flags.disabled_checks == (PLATFORM,)
            monkeypatch.delenv("TF_XLA_FLAGS")
            assert _tf.flags_in_force() is flags
        finally:
            monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
            _tf.flags_in_force.cache_clear()

    def test_a_tensorflow_without_the_query(self, monkeypatch):
        from tensorflow.python.eager import context

        monkeypatch.delattr(context, "context")
        assert _tf.device_query()() is None
