"""Functions of JAX decomposed, run by XLA, and compared with JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import export

from bridge.core_ops.decompositions.decomposition import Decomposed, Decomposition, decompose
from bridge.loading.exported_from_call import exported_from_call
from tests.operations.judging import difference
from xla_call_module.call import CallModule
from xla_call_module.exported import from_exported
from xla_call_module.stablehlo.modules import open_module, tensor_type, walk


def contents(call: CallModule) -> tuple[set[str], set[str]]:
    """Return the names of the operations of a module, and its element types."""
    with open_module(call.module) as module:
        operations = list(walk(module))
        values = [value for one in operations for value in one.results]
        blocks = [b for one in operations for region in one.regions for b in region.blocks]
        values += [argument for block in blocks for argument in block.arguments]
        types = [str(value.type) for value in values]
        return {one.name for one in operations}, {
            tensor_type(text).element for text in types if text.startswith("tensor<")
        }


# The element types that the result may have although the module has none of them.
_NEEDED = {
    "Fourier transforms": {"f32", "f64"},
    "complex numbers": {"f32", "f64", "i1"},
    "random bits": {"i1", "ui32", "ui64"},
    "narrow types": {"f32", "f64", "i1", "i8", "i32", "ui8"},
}


def decomposed(
    function: Callable[..., Any], specs: Sequence[Any], *decompositions: Decomposition
) -> Decomposed:
    """Return the decomposed call of a function of arrays or specs, without what is replaced.

    Each decomposition has something to replace.
    """
    exported = export.export(jax.jit(function), platforms=["cpu"])(*specs)
    before = from_exported(exported, carried=False)
    made = decompose(before, decompositions)
    operations, elements = contents(made.call)
    allowed = contents(before)[1].union(
        *(_NEEDED.get(one.name, set()) for one in decompositions), {"i32"}
    )
    for one in decompositions:
        assert not operations & one.operations
        assert not elements & one.elements
        allowed -= one.elements
    assert elements - allowed == set()
    assert list(made.applied) == list(decompositions)
    return made


def stored(made: Decomposed, array: Any) -> Any:
    """Return an array for an argument or result of a function in the form of the decomposed one."""
    array = np.asarray(array)
    for one in made.applied:
        array = one.boundary.store(array)
    return array


def check(
    function: Callable[..., Any],
    *arrays: Any,
    by: Sequence[Decomposition],
    rtol: float = 2e-6,
) -> Decomposed:
    """Fail unless the decomposed function computes what JAX does, and return it.

    Floats may be off by a part of the greatest finite one.
    """
    made = decomposed(function, arrays, *by)
    found = exported_from_call(made.call).call(*(stored(made, x) for x in arrays))
    expected = [stored(made, x) for x in jax.tree.leaves(jax.jit(function)(*arrays))]
    for one, other in zip(found, expected, strict=True):
        one = np.asarray(one)
        name = other.dtype.name
        ulps = rtol / float(ml_dtypes.finfo(other.dtype).eps) if other.dtype.kind in "fc" else 0
        assert not difference(one, other, ulps=ulps, dtype=name, each=False)
    return made
