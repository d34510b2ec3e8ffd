"""What a file holds for TPUs is the module that JAX makes there, which can be read on a CPU."""

from __future__ import annotations

import os
import re

import jax
import pytest

import bridge
from tests.device import IN_FULL
from tests.device.writing import BY_NAME, settings_of
from tests.matrix.files import logical_arguments

NAMES = tuple(BY_NAME) if os.environ.get(IN_FULL) else tuple(BY_NAME)[::24]
# What is written otherwise, for older releases of TensorFlow or for each size.
_BRANCH = "the branch of the platform is taken, since there is one platform"
_COMPOSITE = "TensorFlow does not refine sizes in a composite, so it is a call"
WRITTEN_OTHERWISE = {
    **dict.fromkeys(("corrcoef", "det", "platforms", "platforms_last", "slogdet"), _BRANCH),
    **dict.fromkeys(("symbolic_gelu", "symbolic_sinh", "symbolic_top_k"), _COMPOSITE),
    "indexing": "TensorFlow 2.17 does not run gathers with batching dimensions",
    "rank": "TensorFlow 2.17 does not run gathers with batching dimensions",
    "cauchy": "tan is a quotient, which TensorFlow 2.14 reads",
    "elementary": "tan is a quotient, which TensorFlow 2.14 reads",
    "platforms_symbolic": "the sizes come from the arguments, and assertions are calls",
}
_DROPPED = re.compile(
    r" loc\((?:[^()]|\([^()]*\))*\)|^#loc.*\n|^ *sdy\.mesh @empty_mesh .*\n"
    r"|\{?(?:jax\.result_info|jax\.arg_info|jax\.global_constant|mhlo\.\w+"
    r"|jax\.uses_shape_polymorphism)[^,}]*,? ?\}?",
    re.M,
)


def _text(exported):
    """The module without locations, names and what describes arguments and results.

    That a key is whole on each device is said in the older partitioner's words or in Shardy's.
    """
    text = _DROPPED.sub("", exported.mlir_module())
    text = re.sub(r"(sdy\.sharding_constraint|stablehlo\.custom_call @Sharding).*", "whole", text)
    return re.sub(r"module @\S+ ", "module ", text)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WRITTEN_OTHERWISE])
def test_the_module_is_that_of_jax(name, tmp_path):
    case = BY_NAME[name]
    params = () if case.params is None else (case.params,)
    with settings_of(case):
        args = tuple(
            jax.ShapeDtypeStruct(arg.shape, arg.dtype) for arg in logical_arguments(case, case.args)
        )
        if case.shapes is not None:
            args = jax.export.symbolic_args_specs(args, tuple(case.shapes))
        function = case.function if hasattr(case.function, "trace") else jax.jit(case.function)
        expected = jax.export.export(function, platforms=["tpu"])(*params, *args)
        bridge.save(
            case.function,
            tmp_path / "m",
            params=case.params,
            args=args,
            platforms=["tpu"],
            gradient_order=0,
            hoist_constants=None,
        )
        found = bridge.load(tmp_path / "m").signatures["serving_default"].exported
    assert _text(found) == _text(expected)
