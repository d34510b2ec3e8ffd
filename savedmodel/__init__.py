"""TensorFlow's SavedModel format, written and read without TensorFlow and without JAX."""

from __future__ import annotations

from savedmodel.model import Function, SavedModel, Signature, Variable
from savedmodel.read import read
from savedmodel.write import write

__all__ = ["Function", "SavedModel", "Signature", "Variable", "read", "write"]
