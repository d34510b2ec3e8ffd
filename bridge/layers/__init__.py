"""The parts of the Keras layers `bridge.keras.ExportedLayer` and `bridge.tf_keras.ExportedLayer`.

From the arguments of a layer to its outputs, with the module that does each step:

1. `layer_arguments.read_arguments` makes `LayerArguments` of whatever was passed (an `Exported`, a
   function, a module of Flax and the like, the path of a SavedModel): the functions for inference
   and for training, and the parameters. `layer_state.LayerState` has all pytrees of the layer.
2. `layer_export.to_computation` makes a `LayerComputation` of them. A function is exported when the
   layer is first called; `layer_functions.to_artifact` makes chains of calls of the `Exported`s.
3. The `LayerArtifact` (`artifact`) is all that the layer computes, as a value without JAX and
   Keras. `config_text` writes it into the config of the layer, with what it records of its modules
   (`shape_check_json`), and reads it in a process that may have neither JAX nor jaxlib.
4. `layer_base.LayerBase`, the part of a layer that both frameworks share, makes variables of the
   weights, and calls a function of the artifact: inputs become leaves (`layer_structures`), which
   `run_in_tensorflow` or `run_in_jax` runs with the variables, and results become outputs.

To have layers for another framework, write a class with the abstract methods of `LayerBase`, as
`bridge/keras.py` is one; to have layers run by something else, write a `MakeRun`.
"""
