"""The value of a SavedModel -> the protos of saved_model.pb.

`functions` writes two FunctionDefs for each signature: the function itself and its wrapper with
flat names. Inside, `gradients` writes the calls with their gradient functions, `padding` the
batches that are padded to buckets, and `shape_check_nodes` what compares sizes before a call; all
of them write into a `body.Body`. `graph_functions` writes the graphs of plain operations that run
in the place of modules, and `mutexes` what functions that assign hold then. `graph` writes the
session graph around the wrappers, and `objects` the object graph that `tf.saved_model.load` makes
objects of. The modules of `savedmodel.decode` that have the same names read these parts again.

To write something new into functions, add a module that writes into a `Body`, call it in
`functions`, and teach the module of the same name in `savedmodel.decode` to know it again.
"""
