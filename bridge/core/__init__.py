"""The base of the bridge: pytrees, names, keys, backends, progress, and the gates.

- `trees`, `tree_matching` and `names`: pytrees, whether one is that which a function takes, and the
  names of its leaves in a file. `keys` unwraps typed PRNG keys, and `containers` knows what
  TensorFlow puts in the place of Python's containers.
- `narrowing`: the dtypes that JAX has without `jax_enable_x64`, and whether values survive them.
- `backend`, `progress`, `npz_file`, `mesh_text`, `probes`: the platform that runs, bars on a
  terminal, files of arrays, meshes as text, and inputs to try a function with.
- `explaining` puts a sentence with the cure before what tracing a user's function raises.
- `_jax` and `_tf` are the only modules of the bridge that touch private parts of both frameworks.

To use a private name, write a function in a gate that says why, where upstream documents it and
which feature ends without it; `tests/policy/test_gates.py` then takes the name away and looks.
"""
