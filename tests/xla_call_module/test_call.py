"""`CallModule` as a value: what no node can say is refused, shapes are matched with arguments."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
from jax import export

from xla_call_module import CallModule, TensorSpec, from_exported
from xla_call_module.call import bind_symbols
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import (
    DtypeError,
    FormatError,
    PlatformError,
    StructureError,
    VersionError,
)

FLOAT = dtype_from_name("float32", where="x")


@pytest.fixture(scope="module")
def call():
    args = jax.ShapeDtypeStruct((2,), "float32"), jax.ShapeDtypeStruct((), "int32")
    return from_exported(export.export(jax.jit(lambda x, n: x * n))(*args))


def _call(module, *shapes):
    specs = [TensorSpec(shape, FLOAT, f"args[{i}]['x']") for i, shape in enumerate(shapes)]
    return CallModule("f", module, 9, ("cpu",), tuple(specs), (), tuple(range(len(specs))))


@pytest.mark.parametrize("kept", [(1, 0), (0, 0), (0, 2), (-1, 0), (-1,), (5,)])
def test_kept_arguments(call, kept):
    with pytest.raises(StructureError, match=r"kept arguments \[.*\] are not ascending indices"):
        dataclasses.replace(call, kept=kept)


@pytest.mark.parametrize("platforms", [(), ("metal",), ("cpu", "CUDA")])
def test_platforms(call, platforms):
    with pytest.raises(
        PlatformError, match=r"expected some of cpu, cuda, rocm, tpu. To do: export"
    ):
        dataclasses.replace(call, platforms=platforms)


@pytest.mark.parametrize("version", [-1, 0, 3, 5, 11, 99])
def test_calling_conventions(call, version):
    with pytest.raises(VersionError, match=rf"convention {version}; understood are 6 to 10"):
        dataclasses.replace(call, version=version)


@pytest.mark.parametrize(
    "module",
    [
        b"",
        b"\x00",
        b"ML\xefR",
        b"func.func @main()",
        b"ML\xefR\rStableHLO_v1.2\x00",
        b"ML\xefR\rMLIR_v1.2.3\x00",
        b"ML\xefR\rStableHLO_v" + b"1" * 90 + b".2.3\x00",
    ],
)
def test_a_module_that_is_no_artifact(call, module):
    with pytest.raises(FormatError, match=rf"The module's {len(module)} bytes begin with"):
        dataclasses.replace(call, module=module)


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((2, "b", "2*b"), FLOAT, "args[0]", "x"),
        TensorSpec((), dtype_from_name("bool", where="x"), "result['é']", element="float0"),
        TensorSpec(None, FLOAT, "", is_zero=True),
        TensorSpec((0,), dtype_from_name("uint32", where="x"), "args[0]", "key", "key<fry>"),
    ],
)
def test_a_spec_round_trips(spec):
    assert TensorSpec.from_json(spec.to_json(), where="here") == spec


@pytest.mark.parametrize(
    ("fields", "error", "match"),
    [
        ({}, FormatError, r"node x: \{\} does not describe a tensor"),
        ({"shape": [1]}, FormatError, "does not describe a tensor"),
        ({"path": "a", "shape": [-1]}, FormatError, "does not describe a tensor"),
        ({"path": "a", "shape": [True]}, FormatError, "does not describe a tensor"),
        ({"path": "a", "shape": [1.0]}, FormatError, "does not describe a tensor"),
        ({"path": "a", "shape": "b"}, FormatError, "does not describe a tensor"),
        ({"path": 3, "shape": []}, FormatError, "does not describe a tensor"),
        ({"path": "a", "shape": ["b +"], "dtype": "int8"}, StructureError, "not a dimension expr"),
        ({"path": "a", "shape": [], "dtype": "int4"}, DtypeError, "a in node x has dtype int4"),
        ({"path": "a", "shape": []}, DtypeError, "a in node x has dtype None"),
    ],
)
def test_a_damaged_spec(fields, error, match):
    with pytest.raises(error, match=match):
        TensorSpec.from_json(fields, where="node x")


@pytest.mark.parametrize(
    ("shapes", "sizes", "values"),
    [
        ([(2, 3)], [(2, 3)], {}),
        ([("b", "2*b + 1")], [(4, 9)], {"b": 4}),
        ([("b", 3), ("b",)], [(None, 3), (7,)], {"b": 7}),
        ([("b", "floordiv(b, 2)")], [(5, 2)], {"b": 5}),
        ([("b", "b*c"), ("c",)], [(2, 6), (3,)], {"b": 2, "c": 3}),
        ([("b",)], [None], {}),
        ([None], [(3, 4)], {}),
        # The rest is left to the module's own assertions.
        ([("b*c",)], [(7,)], {}),
        ([("2*b",)], [(3,)], {}),
        ([("b", "mod(b, 2)")], [(3, None)], {"b": 3}),
    ],
)
def test_symbols_are_bound(call, shapes, sizes, values):
    assert bind_symbols("f", _call(call.module, *shapes).own_args, sizes) == values


@pytest.mark.parametrize(
    ("shapes", "sizes", "message"),
    [
        (
            [(2, 3)],
            [(2, 4)],
            ("args[0]['x'] of f has shape (2, 4); expected float32[2,3], whose dimension 1 is 3."),
        ),
        (
            [(2, 3)],
            [(2, 2)],
            ("args[0]['x'] of f has shape (2, 2); expected float32[2,3], whose dimension 1 is 3."),
        ),
        (
            [("b", "2*b")],
            [(2, 5)],
            (
                "args[0]['x'] of f has shape (2, 5); expected float32[b,2*b], "
                "whose dimension 1 is 4 with b = 2."
            ),
        ),
        (
            [("b",), ("b",)],
            [(2,), (3,)],
            (
                "args[1]['x'] of f has shape (3,); expected float32[b], "
                "whose dimension 0 is 2 with b = 2."
            ),
        ),
        ([("b",)], [(2, 3)], "args[0]['x'] of f has shape (2, 3), of rank 2; expected float32[b]."),
        ([()], [(1,)], "args[0]['x'] of f has shape (1,), of rank 1; expected float32[]."),
        ([("b", 3)], [(0, 3)], "the dimension variable b would be 0; jax.export takes"),
        ([("b + 3",)], [(2,)], "the dimension variable b would be -1"),
    ],
)
def test_shapes_that_do_not_fit(call, shapes, sizes, message):
    with pytest.raises(StructureError, match=re.escape(message)):
        bind_symbols("f", _call(call.module, *shapes).own_args, sizes)


def test_jax_agrees_on_what_does_not_fit():
    """The same contradictions are errors in `Exported.call`."""
    spec = jax.ShapeDtypeStruct(export.symbolic_shape("b, 2*b"), "float32")
    exported = export.export(jax.jit(lambda x: x))(spec)
    call = from_exported(exported)
    for shape in [(2, 5), (0, 0), (3, 6), (1, 2)]:
        try:
            exported.call(jnp.zeros(shape))
        except ValueError:
            with pytest.raises(StructureError, match="dimension"):
                bind_symbols(call.name, call.own_args, [shape])
        else:
            assert bind_symbols(call.name, call.own_args, [shape]) == {"b": shape[0]}
