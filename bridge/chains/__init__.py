"""The chain of VJP orders: a function as one call, its VJP as the next, the VJP of that, ….

`save`, `convert` and the layers of Keras take their calls from here, so that the same passes run on
every order, in the same order:

1. `vjp_of` makes the VJP of an `Exported`, which is the next order; of its operations
   (`lifted_export`) where it was serialized without one.
2. `ChainOptions.target` says what the pipeline of `xla_call_module.passes` makes each order for.
3. For a file, `build_chain` makes all orders and hands them to the pipeline, which parses each
   once.
   With `operations="tensorflow"` `plain_operations` makes a graph of TensorFlow's own operations of
   each, by `bridge.tf_operations`.
4. With `residuals=True` `split_at_residuals` puts a forward and a backward pass in the place of the
   first two orders. `export_both` exports the two at once where JAX has traced the function.
5. `convert` walks `Order`s, and prepares one when TensorFlow asks for that gradient: an
   `ExportedOrder` has the VJP of JAX as the next; a chain that was read back is walked as
   `WrittenOrder`s, without JAX.

To add an option of the passes: a field of `ChainOptions`, handed on by `target`, and an argument of
`save` and `convert`. The passes themselves are listed in `xla_call_module/passes/pipeline.py`.
"""
