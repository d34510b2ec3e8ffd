"""From exported functions and parameters to the values of a file: what `bridge.save` is made of."""
