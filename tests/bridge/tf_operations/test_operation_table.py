"""Every function of the matrix by TensorFlow's own operations: right, or refused by name."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from bridge.tf_operations.lowering import lower_call
from tests.bridge.tf_operations.checking import check_call
from tests.matrix import files
from tests.matrix.functions import CASES
from xla_call_module.errors import UnsupportedError
from xla_call_module.exported import from_exported

_BY_NAME = {case.name: case for case in CASES}
# Those that are fast, and of every kind.
_QUICK = ("matmul", "where", "scan", "cholesky", "rfft", "threefry", "top_k", "layer_norm", "cond")
_REFUSED_GRADIENTS = ("median", "quantile")  # of an unstable sort


def _check(case, *, order):
    with files.case_settings(case):
        exported = files._export(case)
        if exported.nr_devices > 1:
            lower_call(from_exported(exported))
            return
        params = () if case.params is None else (case.params,)
        for args in (case.args, *case.more):
            flat = jax.tree.leaves((params, files.logical_arguments(case, args)))
            call = exported
            for _ in range(order):
                call, flat = _differentiated(call, flat)
            rtol = max(case.tolerance.relative, 1e-5)
            check_call(call, *flat, rtol=rtol, of_largest=True)


def _differentiated(exported, flat):
    args, kwargs = jax.tree.unflatten(exported.in_tree, flat)
    results = jax.tree.leaves(exported.call(*args, **kwargs))
    made = exported.vjp()
    avals = made.in_avals[len(flat) :]
    pairs = zip(results, avals, strict=True)
    return made, [*flat, *(_cotangent(result, aval.dtype) for result, aval in pairs)]


def _cotangent(result, dtype):
    if dtype == jax.dtypes.float0:
        return np.zeros(result.shape, dtype)
    return files.cotangent_of(result).astype(dtype)


@pytest.mark.parametrize("name", [name for name in _QUICK if name in _BY_NAME])
def test_some_functions_of_the_matrix(name):
    _check(_BY_NAME[name], order=0)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: getattr(case, "name", case))
def test_each_function_of_the_matrix(case):
    _check(_BY_NAME[case] if isinstance(case, str) else case, order=0)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: getattr(case, "name", case))
def test_each_gradient_of_the_matrix(case):
    case = _BY_NAME[case] if isinstance(case, str) else case
    if not case.gradient:
        return
    if case.name in _REFUSED_GRADIENTS:
        with pytest.raises(UnsupportedError, match="it is unstable"):
            _check(case, order=1)
        return
    _check(case, order=1)
