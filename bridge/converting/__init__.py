"""The parts of `bridge.convert`: TensorFlow arguments, eager calls, differentiable functions.

From a call of a converted function to its results, with the module that does each step:

1. `tensors.read_arguments` makes flat tensors of the arguments, with what each of them was; Python
   defaults and parameters are those of `signature`.
2. For each set of shapes and dtypes, `convert` exports the function (`bridge.exporting`), or takes
   the `Exported` that it was given, and wraps it as the first order of a chain (`bridge.chains`).
3. `gradient.DifferentiableCall` runs one order as the op of `xla_call_module.runtime`, and
   makes the next order when a tape, a graph or a file asks for it.
4. Outside of tapes and graphs, on a CPU, `eager.EagerCalls` runs the module in JAX, on TensorFlow's
   memory; `module_call` is the module as one operation of JAX.
5. The tensors of the results get the structure of the function's results.

To take another kind of argument, extend `tensors`; to add an option of the passes, see
`bridge.chains`.
"""
