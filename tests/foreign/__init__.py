"""SavedModels that other programs write.

Each `write_*.py` is a small program of its own; `python -m tests.foreign OUT NAME ...` runs several
in one process.
"""
