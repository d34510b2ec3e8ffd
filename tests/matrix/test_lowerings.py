"""Every function of the matrix is lowered for every platform, and calls nothing that it lacks.

Only the lowering is checked: of the platforms, the CPU alone is where these tests run.
"""

import dataclasses

import pytest
from jax import enable_x64

from tests.matrix import files
from tests.matrix.functions import CASES
from xla_call_module.analyses.custom_calls import check_custom_calls
from xla_call_module.platforms import PLATFORMS
from xla_call_module.stablehlo.modules import open_module, read_main


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: getattr(case, "name", case))
def test_each_function_on_each_platform(case):
    case = CASES[case] if isinstance(case, str) else case
    with enable_x64(case.x64):
        exported = files._export(dataclasses.replace(case, platforms=PLATFORMS))
        chain = [exported, exported.vjp()] if case.gradient else [exported]
    for order in chain:
        with open_module(order.mlir_module_serialized) as module:
            assert read_main(module).has_platform_index
            check_custom_calls(case.name, module, PLATFORMS, ())
