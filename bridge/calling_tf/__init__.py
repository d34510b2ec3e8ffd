"""A TensorFlow function as a JAX function: the parts of `bridge.call_tf`.

From a call to its results, with the module that does each step:

1. `calls.CalledFunction` makes JAX's arrays of the leaves of the arguments, and traces the function
   once for each structure, shape and dtype.
2. `concrete_functions.trace` is `tf.function`'s tracing: a `TracedFunction` has the concrete
   function, its shapes and what it has captured (`variables`). Shapes of results that TensorFlow
   does not know are declared (`results`).
3. `derivatives.CompiledFunction` is the JAX function of a `TracedFunction`. Its derivatives are
   functions that TensorFlow's tape writes (`tape_gradients`), traced and compiled likewise; so they
   have some, too.
   `differentiability` refuses those that TensorFlow would get wrong, `graph_inlining` makes
   gradients of loops that XLA compiles, and `linear_calls` has JAX's rules for transposes.
4. By default `xla_lowering` makes an `Exported` of the function, of which JAX inlines the module.
   Sizes inside of it may depend on data (`data_dependent_sizes`); symbolic ones it has none.
5. With `compiled=False`, TensorFlow is called back when the program runs (`callbacks`). With
   `graph=True` the function stays TensorFlow's in what is exported, also for symbolic shapes
   (`embedding`).

`eager_calls` are those of `bridge.jax2tf.call_tf` outside of JAX's transformations; `graph_nodes`
reads the nodes of TensorFlow's graphs.

To say that an operation has an effect, extend the patterns of `graph_nodes`.
"""
