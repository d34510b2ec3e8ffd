"""Rules for operations that compute: elementwise, bits, conversions, reductions, normalizations."""
