"""The composite of a Fourier transform, which a decomposition makes and a target may know."""

from __future__ import annotations

from xla_call_module.stablehlo.attributes import Attributes, dictionary

# The transform along the dimension before the last, of pairs of real and imaginary part in the
# last one. It divides by the length where the sign is 1. Its last operand is the array; JAX passes
# the constants of the decomposition before.
TRANSFORM = "jax_tf_bridge.dft"


def sign_of(op: Attributes) -> int:
    """Return the sign of the exponents of a transform: 1 of an inverse one, else -1."""
    return int(dictionary(op.raw.attributes["composite_attributes"])["sign"].value)
