"""TensorBundle, the checkpoint format of variables: index, data files, slices, checksums.

Out: `bundle_layout` decides which data file has which tensor, and `bundle_writer` streams the
bytes; `bundle_changes` decides it where some tensors of a bundle change. `tensor_bundle` is the
index, both ways. In: `bundle_reader` reads whole tensors from `data_files`, and `tensor_parts` the
part that a device needs. A tensor in slices is that of `tensor_slices`; `extents` has the
arithmetic of parts, and `piece_checksums` lets a part be checked without the rest.

To add what an entry of the index says, extend `BundleEntry` and its codec in `tensor_bundle`, as a
field that TensorFlow does not declare (`piece_checksums` is the example), and check it in
`_flaw_of`.
"""
