"""All that TensorFlow's converter to TFLite makes wrong is said before, and only that."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from bridge.inspecting.report_facts import signature_facts
from xla_call_module.analyses.tflite_conversion import FAULTS, conversion_faults
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.modules import open_module

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def branch_in_a_loop(x):
    def step(total, row):
        return lax.cond(total.sum() > 1, lambda: total - row, lambda: total + row), row[0]

    return lax.scan(step, jnp.zeros(4), x)[0]


def swap(x):
    return lax.fori_loop(0, 3, lambda _, pair: (pair[1], pair[0] + 1), (x, x * 2))[0]


def solve(x):
    return jnp.linalg.cholesky(x @ x.T + 4 * jnp.eye(3))


def transposed(x):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
        x.reshape(1, 3, 4, 1), jnp.ones((2, 2, 1, 1)), (1, 1), ((1, 1), (1, 2)),
        lhs_dilation=(2, 2), rhs_dilation=(1, 1), dimension_numbers=numbers,
    )  # fmt: skip


def shift(x):
    return lax.shift_right_logical((x * 100).astype(jnp.int32), jnp.full(x.shape, 3))


_FUNCTIONS = {
    "branch in a loop": branch_in_a_loop,
    "swapped values": swap,
    "factorization": solve,
    "dilated convolution": transposed,
    "infinity": jnp.nan_to_num,
    "remainder": lambda x: lax.rem(x, jnp.full_like(x, 1.5)),
    "logical shift": shift,
}


def faults(exported):
    call = from_exported(exported)
    with open_module(call.module) as module:
        return conversion_faults(call, module)


def test_every_fault_has_a_function():
    assert {*_FUNCTIONS, "platform"} == FAULTS.keys()


@pytest.mark.parametrize("name", [name for name in _FUNCTIONS if name != "factorization"])
def test_faults_are_found(name):
    assert faults(export.export(jax.jit(_FUNCTIONS[name]))(X)) == (name,)


def test_a_factorization_is_found_where_it_was_lowered(tmp_path):
    bridge.save(solve, tmp_path / "model", args="f32[3,4]", platforms=["cpu"], gradient_order=0)
    (signature,) = bridge.inspect(tmp_path / "model").signatures
    assert signature.orders[0].tflite_faults == ("factorization",)
    assert FAULTS["factorization"] in signature_facts(signature)["TFLite"]


def test_a_platform_that_is_not_the_first_is_found():
    def chosen(x):
        return lax.platform_dependent(x, cpu=jnp.sin, default=jnp.cos)

    assert faults(export.export(jax.jit(chosen), platforms=["tpu", "cpu"])(X)) == ("platform",)
    assert faults(export.export(jax.jit(chosen), platforms=["cpu", "tpu"])(X)) == ()


def test_a_branch_outside_of_loops_is_none_in_a_loop():
    (spec,) = export.symbolic_args_specs((jax.ShapeDtypeStruct((2, 4), "float32"),), "b, 4")

    def chosen(x):
        return lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)

    assert faults(export.export(jax.jit(chosen), platforms=["cpu", "cuda", "tpu"])(spec)) == ()


@pytest.mark.parametrize("function", [jnp.tanh, jax.nn.softmax, lambda x: x @ x.T])
def test_nothing_is_said_of_what_converts_rightly(function):
    assert faults(export.export(jax.jit(function))(X)) == ()


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: lax.rem(jnp.abs(x), jnp.full_like(x, 1.5)), ()),
        (lambda x: lax.rem(jnp.abs(x) * 2 + 1, jnp.abs(x) + 1), ()),
        (lambda x: lax.rem(jnp.abs(x), jnp.full_like(x, -1.5)), ("remainder",)),
        (lambda x: lax.rem(-jnp.abs(x), jnp.full_like(x, 1.5)), ("remainder",)),
        (lambda x: lax.rem(jnp.abs(x) - 1, jnp.full_like(x, 1.5)), ("remainder",)),
    ],
)
def test_a_remainder_is_right_where_nothing_is_negative(function, expected):
    assert faults(export.export(jax.jit(function))(X)) == expected


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
@pytest.mark.parametrize("name", ["branch in a loop", "factorization", "remainder"])
def test_the_converter_does_make_them(name, tmp_path):
    tf = pytest.importorskip("tensorflow")
    function = _FUNCTIONS[name]
    path = str(tmp_path / "model")
    bridge.save(function, path, args="f32[3,4]", platforms=["cpu"], gradient_order=0)
    converted = tf.lite.TFLiteConverter.from_saved_model(path).convert()
    runner = tf.lite.Interpreter(model_content=converted).get_signature_runner()
    (found,) = runner(x=X).values()
    assert not np.allclose(found, jax.jit(function)(X), rtol=1e-3)
