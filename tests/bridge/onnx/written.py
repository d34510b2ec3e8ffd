"""Programs written as StableHLO, for operations and forms that JAX does not write itself."""

from __future__ import annotations

from pathlib import Path

from bridge.loading.exported_from_call import exported_from_call
from xla_call_module.dtypes import DTYPES, NARROW_DTYPES
from xla_call_module.mlir_files import call_of_file

_ELEMENTS = {dtype.name: dtype.mlir for dtype in (*DTYPES, *NARROW_DTYPES)}


def type_of(array):
    """The type of an array, such as `tensor<2x3xf32>`."""
    dims = "".join(f"{dim}x" for dim in array.shape)
    return f"tensor<{dims}{_ELEMENTS[array.dtype.name]}>"


def exported_of(text):
    """The `Exported` of a module's text, whose `main` has static shapes."""
    return exported_from_call(call_of_file(Path("written.mlir"), text.encode(), narrow=True))


def exported(body, arrays, results):
    """The `Exported` of a program.

    Args:
        body: operations of the arguments `%a`, `%b`, … that say what `%r0`, `%r1`, … are.
        arrays: what is passed.
        results: arrays of the shapes and dtypes of the results.
    """
    takes = ", ".join(f"%{chr(ord('a') + n)}: {type_of(array)}" for n, array in enumerate(arrays))
    types = ", ".join(map(type_of, results))
    names = ", ".join(f"%r{n}" for n in range(len(results)))
    return exported_of(
        f"func.func @main({takes}) -> ({types}) {{ {body}\n return {names} : {types} }}"
    )
