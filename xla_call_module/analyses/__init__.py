"""Questions about a whole module: whether it runs in TensorFlow, and what it says of its signature.

Each takes a parsed module, or a `CallModule` whose module it parses, and returns a value, or
refuses the module with an error that names the operation and the line of the user's program.
Nothing here changes a computation.

| file | question | asked by |
|---|---|---|
| `custom_calls` | does TensorFlow have each target on each platform? | `exported` |
| `operations` | does TensorFlow run each operation on each platform? | `exported` |
| `several_devices` | does the call run on one device? | `runtime`, passes |
| `branches` | what runs on one of several platforms? | the two above, passes |
| `readable` | does a release read the artifact as it is? | passes, `exported` |
| `tensorflow_functions` | which functions of TensorFlow does it call? | `exported`, passes |
| `tflite_conversion` | what may TensorFlow's converter to TFLite make wrong of it? | inspecting |
| `infer_signature` | which shapes, names and paths has a call of another program? | loading |
| `constraints` | which relations of dimension variables does it assert? | loading, inspecting |
| `module_shardings` | how do arguments and results lie on devices? | loading, inspecting |
| `dependence` | which results depend on which arguments or operations? | verifying, calling_tf |

To add an operation or a custom call that TensorFlow lacks, add a record, with the way in which that
is known, to `operations.OPERATIONS` or `custom_calls.TARGETS`. To add a question, write a file that
is named with its subject.
"""
