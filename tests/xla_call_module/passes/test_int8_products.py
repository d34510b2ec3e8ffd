"""Products of int8, which XLA computes twice too large on NVIDIA GPUs, are those of int32 there."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import bridge
from xla_call_module import from_exported
from xla_call_module.passes.int8_products import WIDEN_INT8_PRODUCTS
from xla_call_module.passes.module_pass import open_call, run_passes
from xla_call_module.passes.pipeline import Artifact, Target, prepare
from xla_call_module.passes.platform_selection import select_platforms
from xla_call_module.versions import parse_release


def _product(a, b):
    return lax.dot(a, b, preferred_element_type=jnp.int32)


def _looped(a, b):
    inner = jax.jit(_product)
    return lax.fori_loop(0, 2, lambda _, c: c + inner(a, b), inner(a, b))


def _exported(function, platforms, shapes, dtype=np.int8):
    specs = [jax.ShapeDtypeStruct(export.symbolic_shape(shape), dtype) for shape in shapes]
    return export.export(jax.jit(function), platforms=platforms)(*specs)


def _operands(call, platform):
    """Return the element types of the products that run on a platform."""
    widened = run_passes(call, [WIDEN_INT8_PRODUCTS])
    with open_call(run_passes(widened, [select_platforms([platform])])) as parsed:
        parsed.module.operation.verify()
        text = str(parsed.module)
    return set(re.findall(r"stablehlo.dot_general.*: \(tensor<(?:[0-9?]+x)*(u?i\d+)>", text))


@pytest.mark.parametrize("function", [_product, _looped])
def test_only_the_branch_of_nvidia_gpus_is_another_one(function):
    call = from_exported(_exported(function, ["cpu", "cuda", "tpu"], ["3, 5", "5, 7"]))
    found = {platform: _operands(call, platform) for platform in call.platforms}
    assert found == {"cpu": {"i8"}, "cuda": {"i32"}, "tpu": {"i8"}}


@pytest.mark.parametrize(
    ("shapes", "elements"),
    [
        (["4, 8", "8, 16"], "i8"),
        (["b, 8", "8, 16"], "i32"),
        (["4, 8", "8, 6"], "i32"),
        (["4, 6", "6, 8"], "i32"),
        (["8", "8, 4"], "i32"),
    ],
    ids=str,
)
def test_sizes_that_are_multiples_of_four_need_no_padding(shapes, elements):
    assert _operands(from_exported(_exported(_product, ["cuda"], shapes)), "cuda") == {elements}


def test_what_is_right_stays():
    def of(dtype, platforms):
        return from_exported(_exported(_product, platforms, ["3, 5", "5, 7"], dtype))

    for call in (of(np.int8, ["cpu"]), of(np.uint8, ["cuda"]), of(np.int16, ["cuda"])):
        assert run_passes(call, [WIDEN_INT8_PRODUCTS]) is call


def test_a_module_that_is_read_as_it_is_has_it_too():
    call = from_exported(_exported(_product, ["cuda"], ["3, 5", "5, 7"]))
    target = Target(parse_release("2.21"), artifact=Artifact.IF_NEEDED)
    (prepared,) = prepare(call, target).calls
    assert prepared.changes == ("products of int8 in int32 for NVIDIA GPUs",)


def test_files_have_it_and_their_numbers_are_the_same(tmp_path):
    random = np.random.default_rng(0)
    a, b = (random.integers(-128, 128, shape, np.int8) for shape in ((3, 5), (5, 7)))
    path = bridge.save(_product, tmp_path / "m", args=(a, b), platforms=["cpu", "cuda"]).path
    loaded = bridge.load(path)
    np.testing.assert_array_equal(loaded(a, b), a.astype(np.int32) @ b.astype(np.int32))
    call = from_exported(loaded.signatures["serving_default"].exported)
    assert (_operands(call, "cuda"), _operands(call, "cpu")) == ({"i32"}, {"i8"})
    batched = jax.vmap(loaded, (0, None))(a[None], b)
    np.testing.assert_array_equal(batched[0], loaded(a, b))
