"""Folders and files: how they appear, how they are read, and what shows that they are damaged.

Out: `folder` gives a place to write a SavedModel to, which appears whole; `remote` brings it to an
object store. In: `model_folder` holds a folder open, so that all that is read is of one version and
inside of it. `checksum` is that of saved_model.pb, `sstable` the table of a checkpoint's index,
`records` TFRecord files, `fingerprint` TensorFlow's hashes of a model, and `assets` the files
beside the graph.

To add a kind of file, give it a module with what reads and what writes it. Readers take a
`ModelFolder` and a name, and end in a `FormatError` that has the offset.
"""
