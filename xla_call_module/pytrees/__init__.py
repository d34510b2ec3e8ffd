"""The structure of arguments and results: JAX's treedefs as values, as JSON, and back.

`tree_description` makes a `tree_nodes.TreeNode` of a treedef, which goes into a file as JSON and is
read from it without JAX's registry; `tree_restoring` makes a treedef of it again. `node_classes`
finds the classes by their public names among those that the process has imported, and has what
stands for a class that it has not.

To add a kind of node, add it to `tree_nodes.Kind` with its JSON, describe it in `_Describer`, and
restore it in `_Restorer`; the round trips are in `tests/xla_call_module/pytrees/test_pytrees.py`.
"""
