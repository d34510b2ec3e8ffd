"""The chain of VJP orders: a function as one call, its VJP as the next, the VJP of that, ….

`save`, `convert` and the layers of Keras take their calls from here, so that the same passes run on
every order, in the same order:

1. An `Exported` is wrapped as an `ExportedOrder`, whose `call` is its `CallModule`, and whose
   `vjp()` is the next order, made on demand.
2. `ChainOptions.target` says what the pipeline of `xla_call_module.passes` makes each order for.
3. `convert` prepares an order when TensorFlow asks for that gradient; `build_chain` walks them to
   the end and prepares all of them for a file. A chain that was read back is walked as
   `WrittenOrder`s, without JAX.

To add an option of the passes: a field of `ChainOptions`, handed on by `target`, and an argument of
`save` and `convert`. The passes themselves are listed in `xla_call_module/passes/pipeline.py`.
"""
