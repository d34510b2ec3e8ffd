"""`inspect`, as a value and as a command."""

from __future__ import annotations

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bridge
from bridge.cli import main
from xla_call_module.errors import FormatError

PARAMS = {"dense": [np.ones((3, 4), np.float32), np.zeros(4, np.float32)], "step": np.int32(7)}

# What `erf` is lowered to: JAX 0.8 and older call one of MLIR's own operations, which TensorFlow
# knows from 2.16 on; newer ones make a composite, which it knows from 2.18 on, and, with symbolic
# shapes, nothing special.
SYMBOLIC, STATIC = ("2.16", "2.16") if jax.__version_info__ < (0, 9) else ("2.14", "2.18")


def predict(params, x, unused, *, key):
    kernel, bias = params["dense"]
    noise = jax.random.normal(key, (4,))
    return {"y": jax.scipy.special.erf(x["a"] @ kernel + bias + noise), "n": params["step"] + 1}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    (b,) = jax.export.symbolic_shape("b")
    spec = jax.ShapeDtypeStruct
    exported = jax.export.export(
        jax.jit(predict),
        platforms=["cpu", "cuda"],
        disabled_checks=[jax.export.DisabledSafetyCheck.platform()],
    )(
        PARAMS,
        {"a": spec((b, 3), jnp.float32)},
        spec((2 * b,), jnp.int8),
        key=spec((), jax.random.key(0).dtype),
    )
    static = jax.export.export(jax.jit(lambda params, x: jax.lax.erf(x)))(
        PARAMS, spec((2,), jnp.float32)
    )
    folder = tmp_path_factory.mktemp("inspect") / "model"
    bridge.save(
        {"serving_default": exported, "static": static},
        folder,
        params=PARAMS,
        trainable={"dense": [True, False], "step": False},
    )
    return folder


@pytest.fixture(scope="module")
def report(file):
    return bridge.inspect(file)


def test_signatures(report):
    assert [signature.key for signature in report.signatures] == ["serving_default", "static"]
    signature = report.signatures[0]
    inputs = {tensor.name: (tensor.dtype, tensor.shape, tensor.path) for tensor in signature.inputs}
    assert inputs == {
        "x_a": ("float32", ("b", 3), "args[1]['a']"),
        "unused": ("int8", ("2*b",), "args[2]"),
        "key": ("uint32", (2,), "kwargs['key']"),
    }
    assert {tensor.name: tensor.element for tensor in signature.inputs}["key"] == "key<fry>"
    outputs = {tensor.name: (tensor.dtype, tensor.shape) for tensor in signature.outputs}
    assert outputs == {"n": ("int32", ()), "y": ("float32", ("b", 4))}


def test_the_module(report):
    signature = report.signatures[0]
    assert signature.function == "predict"
    assert signature.platforms == ("cpu", "cuda")
    assert signature.disabled_checks == ("platform",)
    assert "shape_assertion" in signature.custom_calls
    assert signature.gradient_order == 1
    assert signature.tensorflow == SYMBOLIC
    assert report.signatures[1].tensorflow == STATIC
    assert report.tensorflow == STATIC


def test_parameters(report):
    found = [(p.name, p.dtype, p.shape, p.bytes, p.trainable) for p in report.parameters]
    assert found == [
        ("dense/0", "float32", (3, 4), 48, True),
        ("dense/1", "float32", (4,), 16, False),
        ("step", "int32", (), 4, False),
    ]


def test_the_target_is_what_was_asked_for(tmp_path):
    exported = jax.export.export(jax.jit(jnp.sin))(np.zeros(3, np.float32))
    bridge.save(exported, tmp_path / "m", tensorflow="2.20")
    signature = bridge.inspect(tmp_path / "m").signatures[0]
    assert (signature.stablehlo, signature.tensorflow) == ("1.12.1", "2.20")


def test_after_tensorflow_has_saved_it_again(file, report, tmp_path):
    import tensorflow as tf

    model = tf.saved_model.load(str(file))
    model.params["step"].assign(8)
    tf.saved_model.save(model, str(tmp_path / "again"), signatures=model.signatures)
    again = bridge.inspect(tmp_path / "again")
    assert again.metadata == {}
    before, after = report.signatures[0], again.signatures[0]
    # `unused` is no operand of the call, and what named it was in the metadata
    known = {tensor.name: tensor for tensor in before.inputs if tensor.used}
    assert {tensor.name: tensor for tensor in after.inputs} == known
    assert after.outputs == before.outputs
    assert (after.platforms, after.gradient_order) == (before.platforms, before.gradient_order)
    assert again.parameters == report.parameters


def test_command(file, report, capsys):
    assert main(["inspect", str(file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(json.dumps(report.to_json()))
    assert main(["inspect", str(file)]) == 0
    text = capsys.readouterr().out
    for part in (
        "float32[b,3]",
        f"readable from TensorFlow {STATIC} on",
        "cpu, cuda",
        "dense/0",
        "fixed",
    ):
        assert part in text


def test_command_without_tensorflow(file):
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        f"from bridge.cli import main; sys.exit(main(['inspect', {str(file)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Signature serving_default" in done.stdout


def test_module_is_the_command(tmp_path):
    command = [sys.executable, "-m", "bridge", "inspect", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "has no saved_model.pb" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_other_operations(tmp_path):
    import tensorflow as tf

    module = tf.Module()
    module.f = tf.function(lambda x: x + 1, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, str(tmp_path / "m"), signatures=module.f)
    with pytest.raises(FormatError, match="expected the results of one XlaCallModule"):
        bridge.inspect(tmp_path / "m")


@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_a_damaged_file(file, tmp_path, damage):
    data = (file / "saved_model.pb").read_bytes()
    (tmp_path / "saved_model.pb").write_bytes(
        {"cut": data[: len(data) // 2], "noise": b"\xff" * 100, "empty": b""}[damage]
    )
    with pytest.raises(FormatError, match=r"saved_model\.pb"):
        bridge.inspect(tmp_path)
