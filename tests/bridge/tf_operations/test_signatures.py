"""The signatures and kernels of operations, beside those that TensorFlow has registered."""

from __future__ import annotations

import numpy as np
import pytest
from tensorflow.python.framework import kernels, op_def_registry

from bridge.tf_operations import signatures
from bridge.tf_operations.signatures import computation_dtype, has_kernel, signature_of
from xla_call_module.dtypes import DTYPES
from xla_call_module.errors import DtypeError

_NAMES = sorted(signatures._signatures())


@pytest.mark.parametrize("name", _NAMES)
def test_inputs_and_outputs_are_those_of_the_operation(name):
    signature = signature_of(name)
    definition = op_def_registry.get(signature.op)
    inputs = [_attribute(each) for each in definition.input_arg]
    assert list(signature.inputs) == inputs
    assert [output for output, _ in signature.outputs] == [o.name for o in definition.output_arg]


def _attribute(argument):
    many = "*" if argument.number_attr or argument.type_list_attr else ""
    fixed = {1: "float32", 3: "int32", 10: "bool", 21: "variant"}.get(argument.type)
    name = argument.type_attr or argument.type_list_attr or f"[{fixed}]"
    return name + many


@pytest.mark.parametrize("name", [name for name in _NAMES if signature_of(name).dtypes is not None])
def test_dtypes_have_kernels(name):
    signature = signature_of(name)
    registered = kernels.get_registered_kernels_for_op(signature.op).kernel
    numbers = {dtype.enum: dtype.name for dtype in DTYPES}
    found = {
        numbers.get(number)
        for kernel in registered
        if kernel.device_type in ("CPU", "DEFAULT")
        for constraint in kernel.constraint
        if constraint.name == "T"
        for number in constraint.allowed_values.list.type
    }
    assert not found or signature.dtypes <= found


def test_an_operation_without_a_kernel_is_computed_in_a_wider_dtype():
    assert has_kernel("Add", np.dtype("uint16"))
    assert computation_dtype("MatMul", np.dtype("uint8")) == np.int32
    assert computation_dtype("MatMul", np.dtype("uint64")) == np.int64
    with pytest.raises(DtypeError, match="no TopK of complex64"):
        computation_dtype("TopK", np.dtype("complex64"))
