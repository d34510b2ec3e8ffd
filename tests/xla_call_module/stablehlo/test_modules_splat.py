"""The element that a constant repeats, for every element type and however large the module is."""

from __future__ import annotations

import pytest

from xla_call_module._jax import ir, make_ir_context
from xla_call_module.stablehlo.modules import find_main, splat

ELEMENTS = {
    "i1": ("true", "true"),
    "i2": ("1", "1"),
    "i4": ("-8", "-8"),
    "ui4": ("15", "15"),
    "i32": ("-7", "-7"),
    "ui64": ("18446744073709551615", "18446744073709551615"),
    "bf16": ("1.5", "1.500000e+00"),
    "f16": ("-0.0", "-0.000000e+00"),
    "f32": ("0x7FC00000", "0x7FC00000"),
    "f64": ("0.0", "0.000000e+00"),
    "f8E4M3FN": ("1.0", "1.000000e+00"),
    "f8E5M2": ("0.0", "0.000000e+00"),
    "f8E8M0FNU": ("1.0", "1.000000e+00"),
    "f4E2M1FN": ("1.0", "1.000000e+00"),
    "complex<f32>": ("(0.0, 1.0)", "(0.000000e+00,1.000000e+00)"),
    "complex<f64>": ("(0.0, 0.0)", "(0.000000e+00,0.000000e+00)"),
}


def _constants(*typed):
    """The constants of a module, each of a value as text and a type."""
    lines = (f"%{n} = stablehlo.constant dense<{v}> : {t}" for n, (v, t) in enumerate(typed))
    body = "\n".join(lines)
    module = ir.Module.parse(f"func.func public @main() {{\n{body}\nreturn\n}}")
    *constants, _ = [op.operation for op in find_main(module).regions[0].blocks[0].operations]
    return module, constants


@pytest.mark.parametrize("element", ELEMENTS)
def test_one_element(element):
    value, text = ELEMENTS[element]
    with make_ir_context():
        module, constants = _constants(
            (value, f"tensor<{element}>"), (value, f"tensor<9x{element}>")
        )
        assert [splat(constant) for constant in constants] == [text, text]
        # It is a copy that is printed, and the module stays as it is.
        assert module.operation.verify()
        assert len(find_main(module).regions[0].blocks[0].operations) == 3


def test_several_elements():
    with make_ir_context():
        many = str(list(range(1000)))
        _, constants = _constants(
            ("[1, 2]", "tensor<2xi32>"),
            ("[(1.0, 0.0), (0.0, 0.0)]", "tensor<2xcomplex<f32>>"),
            (many, "tensor<1000xi32>"),
        )
        assert [splat(constant) for constant in constants] == [None, None, None]
