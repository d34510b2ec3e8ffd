"""Faults on purpose: small wrong changes of the packages, each of which a test has to notice.

`faults.toml` has them by rooms. `python -m tests.mutants` applies one after the other in a copy of
the tree, whose environment imports the copy, and says which ones no test of `make affected`
notices.
"""
