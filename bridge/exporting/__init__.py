"""From a function, or a module of a framework, to an `Exported`.

1. `framework_modules` makes a function of its parameters of a module of Flax, Haiku, Equinox or
   Keras (`parametric`, `plain_parameters`; `trained` says which arrays its framework trains).
2. `argument_specs` makes the specs of its arguments of texts such as `f32[b,3]` (`argument_text`)
   and of values; `specifications` does that for the arguments of `convert` as they arrive.
3. `export_model.export_model` traces it, and `lowering` exports it for several platforms and says
   what to do where one of them cannot. `stages` takes what JAX has traced already.

For a whole job from a shell, `parameter_files` reads parameters, and `environment`, `revision` and
`source_locations` say what a file was made of, whatever folder that happened in.

To support another framework, add its class to `framework_modules`, with a function of the
parameters and inputs; `tests/bridge/exporting/test_framework_modules.py` tries each.
"""
