"""Random programs that are hostile to optimizers, as files of TensorFlow's own operations.

`statements.py` has what an optimizer is tempted to rewrite, `generating.py` draws programs of it
and of all other statements, with special values, empty and single rows, and names of any letters,
and `suite.py` runs their files in a session as a server without XLA does.
"""
