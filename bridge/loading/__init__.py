"""From the calls in a file to JAX functions on a mesh: the parts of `bridge.load`.

From the folder to a function, with the module that does each step:

1. `savedmodel.read` makes a `SavedModel` value of the folder; no value of a variable is read.
2. `loaded_model.LoadedModel` has one `LoadedSignature` for each signature. Nothing is parsed yet.
3. When a signature is first used, `binding.bind` makes a `BoundExported` of it: an `Exported`, and
   which of its arguments are variables of the file. A call that describes itself is the `Exported`
   that was saved: `restore` puts its constants and its VJPs back. Calls of other programs, and what
   TensorFlow has put around calls, become JAX operations, which are exported once more
   (`exported_from_call`). `exported_on_mesh.remesh` brings either onto the mesh.

From a call of a signature to its results:

1. `arguments.Arguments.flatten` makes leaves of the arguments, in the order of the `Exported`, and
   checks their structure, shapes, dtypes and platform.
2. The parameters come from the file, once, and lie on the device. On a mesh they and the arguments
   are put where they belong (`placing`).
3. `calling.call_flat` is the function of all leaves, under `jax.jit`: `Exported.call`, as a
   primitive (`derivative_primitives`) whose VJPs are those that were saved, and which is otherwise
   differentiated and batched as the lifted function (`lifted_exported`).
4. The leaves of the results get the structure that was exported.

So between folder and call there are the `SavedModel`, the `LoadedSignature`, its `BoundExported`
and the function of leaves; each is made once, the last two at the first call.

`signature_calls` says what a signature takes, calls and returns, for those who only look at a file.

To load what another program writes, have `savedmodel.read` make functions of a signature of it; if
their calls carry what an `Exported` has to know, extend `binding`, else `exported_from_call`.
"""
