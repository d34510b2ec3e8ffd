"""The dtype table says what JAX, numpy, StableHLO and TensorFlow say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from jax import export

from xla_call_module.dtypes import DTYPES, dtype_from_name, dtype_from_tensorflow
from xla_call_module.errors import DtypeError
from xla_call_module.stablehlo.modules import open_module, read_main

pytestmark = pytest.mark.usefixtures("x64")

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)


@each_dtype
def test_numpy_and_jax_agree(dtype):
    assert dtype.numpy == jnp.dtype(dtype.name) == jnp.zeros((), dtype.name).dtype
    assert dtype.numpy.name == dtype.name
    assert dtype.itemsize == jnp.zeros((), dtype.name).nbytes


@each_dtype
def test_tensorflow_agrees(dtype):
    theirs = tf.as_dtype(dtype.enum)
    assert (theirs.name, theirs.as_numpy_dtype) == (dtype.name, dtype.numpy.type)
    assert theirs.is_complex == dtype.is_complex
    assert dtype_from_tensorflow(theirs.as_datatype_enum, where="x") is dtype
    assert dtype_from_name(dtype.name, where="x") is dtype


@each_dtype
def test_stablehlo_agrees(dtype):
    exported = export.export(jax.jit(lambda x: x))(jax.ShapeDtypeStruct((2,), dtype.name))
    with open_module(exported.mlir_module_serialized) as module:
        main = read_main(module)
    assert [main.args[0].element, main.results[0].element] == [dtype.mlir] * 2


@each_dtype
def test_tensorflow_differentiates_the_same(dtype):
    x = tf.constant(np.zeros(2, dtype.numpy))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.identity(x)
    assert (tape.gradient(y, x) is not None) == dtype.differentiable


REFUSED = [
    name
    for name in dir(ml_dtypes)
    if isinstance(getattr(jnp, name, None), type(jnp.bfloat16))
    and name not in [dtype.name for dtype in DTYPES]
]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_has_a_dtype_that_holds_its_values(name):
    """A dtype that JAX gains is decided on, not forgotten."""
    with pytest.raises(DtypeError, match=rf"x has dtype {name}, .*To do: convert it to") as caught:
        dtype_from_name(name, where="x")
    wider = dtype_from_name(str(caught.value).split("convert it to ")[1].split()[0], where="x")
    own = np.dtype(getattr(ml_dtypes, name))
    if "int" in name:
        every = np.arange(-8, 16).astype(own)
    else:
        every = np.arange(1 << ml_dtypes.finfo(own).bits, dtype=np.uint8).view(own)
    np.testing.assert_array_equal(every.astype(wider.numpy).astype(float), every.astype(float))


@pytest.mark.parametrize("name", ["object", "str_", "datetime64", "float128", ""])
def test_another_dtype_is_refused(name):
    with pytest.raises(DtypeError, match=rf"args\[0\] has dtype {name}.* go through: bool, int8"):
        dtype_from_name(name, where="args[0]")


@pytest.mark.parametrize("name", ["string", "resource", "variant", "qint8", "int4", "bfloat16_ref"])
def test_another_tensorflow_dtype_is_refused(name):
    enum = tf.as_dtype(name.removesuffix("_ref")).as_datatype_enum + 100 * name.endswith("_ref")
    with pytest.raises(DtypeError, match=rf"x has TensorFlow dtype number {enum}; those that JAX"):
        dtype_from_tensorflow(enum, where="x")
