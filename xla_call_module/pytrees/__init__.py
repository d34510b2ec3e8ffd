"""The structure of arguments and results: JAX's treedefs as values, as JSON, and back."""
