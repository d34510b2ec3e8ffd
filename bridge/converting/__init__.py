"""The parts of `bridge.convert`: TensorFlow arguments, eager calls, differentiable functions.

From a call of a converted function to its results, hop by hop:

1. The plain function that `convert` returns leaves out Python defaults (`signature`) and calls its
   `converted_function.ConvertedFunction`.
2. `tensors.read_arguments` makes flat tensors of the arguments, with a key of what each of them is.
   The key finds the bound call of an earlier call with the same structure, shapes and dtypes.
3. For a new key a `CallSource` has the call: `ExportedSource` that of the one `Exported`, and
   `FunctionSource` one that it exports for these specs (`bridge.exporting`). Each is the first
   order of a chain (`bridge.chains`).
4. The bound call casts tensors to the dtypes of the call, and gives the results their structure.
5. `gradient.DifferentiableCall` runs one order as the op of `xla_call_module.runtime`: the pipeline
   of `xla_call_module.passes` prepares the op at its first use, and a tape, a graph or a file that
   asks for the gradient gets the next order.

Outside of tapes and graphs, on a CPU, `eager` runs the module in JAX, on TensorFlow's memory, in
place of steps 2 to 5; `ModuleCall` is the module as one operation of JAX.

To take another kind of argument, extend `tensors`; to add an option of the passes, see
`bridge.chains`.
"""
