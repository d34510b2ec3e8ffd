"""Collectives and shardings of a module for one device, inside of what is decomposed."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

from bridge.core_ops.decompositions.complex_pairs import COMPLEX_AS_PAIRS
from bridge.core_ops.decompositions.decomposition import decompose
from tests.bridge.core_ops.decompositions.decomposing import check
from tests.bridge.onnx.written import exported
from xla_call_module.errors import UnsupportedError
from xla_call_module.exported import from_exported

Z = np.array([1 + 2j, -3j], np.complex64)


def test_collectives_of_one_device_return_their_operands():
    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices("cpu")[:1])

    def summed(z):
        return lax.psum(z, "x"), lax.axis_index("x") + z.real

    spec = PartitionSpec()
    mapped = jax.shard_map(summed, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    check(mapped, Z, by=[COMPLEX_AS_PAIRS])


def test_collectives_of_several_devices_are_refused():
    body = """%sum = "stablehlo.all_reduce"(%a) ({ ^bb0(%x: tensor<f32>, %y: tensor<f32>):
        %s = stablehlo.add %x, %y : tensor<f32>
        stablehlo.return %s : tensor<f32> })
        {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>
        %c = stablehlo.complex %sum, %a : tensor<2xcomplex<f32>>
        %r0 = stablehlo.real %c : (tensor<2xcomplex<f32>>) -> tensor<2xf32>"""
    x = np.ones(2, np.float32)
    call = from_exported(exported(body, [x], [x]), carried=False)
    with pytest.raises(UnsupportedError, match="for several devices, and the module is for one"):
        decompose(call, [COMPLEX_AS_PAIRS])
