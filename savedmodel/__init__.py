"""TensorFlow's SavedModel format, written and read without TensorFlow and without JAX.

`model.SavedModel` is the value of a file: variables, and signatures. A `Signature` has named inputs
and outputs and the functions between them; a `Function` is a call of a StableHLO module with its
gradients and with what is bound to its arguments.

- `write`: value -> folder. `encode/` makes the protos, `variables/` the checkpoint, `files/` lets
  the folder appear whole.
- `read`: folder -> value. `decode/` follows the graphs of any writer up to the calls.
- `rewrite`: folder -> folder, with other calls or as it is.
- `manifest`: the hashes of a folder's files. It is beside the rooms because it asks the index of
  the checkpoint how large the data files are.
"""

import typing as _typing

from xla_call_module.lazy_names import load_lazily as _load_lazily

if _typing.TYPE_CHECKING:
    from savedmodel.model import Function, SavedModel, Signature, Variable
    from savedmodel.read import read
    from savedmodel.write import write

__all__ = ["Function", "SavedModel", "Signature", "Variable", "read", "write"]

_HOMES = {
    "Function": "savedmodel.model",
    "SavedModel": "savedmodel.model",
    "Signature": "savedmodel.model",
    "Variable": "savedmodel.model",
    "read": "savedmodel.read",
    "write": "savedmodel.write",
}
_load_lazily(__name__)
