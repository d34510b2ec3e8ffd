"""The one front door: from whatever a user hands over to an `Exported`, its parameters and names.

1. `framework_modules` makes a `ModelFunction` of a module of Flax, Haiku, Equinox or Keras, or of
   any function: its parameters are the first argument (`model_function`), and those of classes
   that no file holds become dicts (`plain_parameters`).
2. `argument_specs` makes the specs of its arguments of texts such as `f32[b,3]` (`argument_text`)
   and of values; `specifications` does that for the arguments of `convert` as they arrive.
3. `export_model.export_model` traces it, which makes an `ExportedModel`: the same pair of function
   and parameters. `lowering` exports it for several platforms, and says what to do where one of
   them cannot. `trace_errors` says what a function was traced for that JAX refuses.
   `stages` takes what JAX has traced already.

4. `source` opens what is exported already: an `Exported` in a file or bytes (`exported_file`),
   StableHLO, a SavedModel. `read_source` makes one value of it, or of a function: a `Source`.

From there on each verb binds the parameters in the way of its own target: `save` as variables of a
`savedmodel.Function`, a layer as weights of a `LayerFunction`, `to_onnx` as initializers.

For a whole job from a shell, `parameter_files` reads parameters, one array after another where
`update` asks for them (`stored_arrays`), and `environment` says what a file was made
of, whatever folder that happened in.

To support another framework, add its class to `framework_modules`, with a function of the
parameters and inputs; `tests/bridge/exporting/test_framework_modules.py` tries each.
"""
