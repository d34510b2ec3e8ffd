"""Constants in the fields where TensorFlow writes and looks for them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from savedmodel.protos.schema import TensorProto
from savedmodel.protos.tensor_values import decode_tensor
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import FormatError


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("value", [0, 1, [1, 0, 1], [[1], [1]]])
def test_what_tensorflow_writes(dtype, value):
    array = np.asarray(value).astype(dtype.numpy)
    written = tf.make_tensor_proto(array, dtype.name).SerializeToString()
    found = decode_tensor(TensorProto.FromString(written))
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


def test_values_of_another_dtype():
    # TensorFlow looks into int_val alone, and takes it for zeros.
    tensor = TensorProto(dtype=tf.int32.as_datatype_enum)
    tensor.float_val.append(1.0)
    with pytest.raises(FormatError, match="has 0 values"):
        decode_tensor(tensor)
