"""StableHLO without an `Exported` around it: files of MLIR, and calls, as an `Exported`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
from jax import export

from bridge.loading.adopting import adopt
from xla_call_module._jax import ir, make_ir_context
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.describing import describe_arguments
from xla_call_module.dtypes import DTYPES, DType
from xla_call_module.errors import DtypeError, FormatError, StructureError
from xla_call_module.exported import to_exported
from xla_call_module.stablehlo import (
    TensorType,
    first_line,
    functions_of,
    parse_module,
    read_main,
    serialize_module,
)
from xla_call_module.versions import CONVENTIONS, RELEASES

__all__ = ["exported_of_call", "exported_of_file", "is_module"]

_BYTECODE = b"ML\xefR"
_TEXT = b"func.func"


def is_module(content: bytes) -> bool:
    """Whether a file is MLIR: a portable artifact, or a text."""
    return content.startswith(_BYTECODE) or _TEXT in content[: 1 << 20]


def exported_of_call(call: CallModule) -> export.Exported:
    """The `Exported` that a call came from, or one of its operands as a flat tuple."""
    return to_exported(call) if call.exported else adopt(call)


def exported_of_file(path: Path, content: bytes) -> export.Exported:
    """The function `main` of a module, or its only one, which is for the CPU.

    Args:
        path: of the file, for messages.
        content: of it.

    Raises:
        FormatError: it is damaged, or newer than the installed jaxlib.
        StructureError: it has several functions, and none is `main`.
        DtypeError: an argument or result has elements that JAX does not have.
    """
    with make_ir_context():
        module = _parse(path, content)
        functions = list(functions_of(module).values())
        if len(functions) == 1:
            functions[0].attributes["sym_name"] = ir.StringAttr.get("main")
        module.operation.attributes["sym_name"] = ir.StringAttr.get(path.stem)
        main = read_main(module)
        try:
            artifact = serialize_module(module, RELEASES[-1].stablehlo)
        except (RuntimeError, ValueError) as error:
            raise FormatError(
                f"{path}: an operation has no form in StableHLO "
                f"{'.'.join(map(str, RELEASES[-1].stablehlo))}: {first_line(error)}."
            ) from error
    args = tuple(_spec(t, f"args[{n}]", described=False) for n, t in enumerate(main.args))
    results = tuple(_spec(t, f"result[{n}]", described=not args)
                    for n, t in enumerate(main.results))  # fmt: skip
    return _adopt(
        CallModule(
            name=path.stem,
            module=artifact,
            version=CONVENTIONS[-2],
            platforms=("cpu",),
            args=args,
            results=results,
            kept=tuple(range(len(args))),
        )
    )


def _adopt(call: CallModule) -> export.Exported:
    """The `Exported` of a module, whatever can be found out of the shapes of its results.

    An unknown dimension of a result that is no polynomial of the arguments' is a variable of its
    own, which only a run knows. So is each where the module does not take all sizes, such as one
    with a dimension among its arguments.
    """
    try:
        return adopt(call)
    except StructureError:
        described = describe_arguments(call)
    scalars = [dataclasses.replace(spec, shape=()) for spec in described.results]
    exported = adopt(dataclasses.replace(described, results=tuple(scalars)))
    return dataclasses.replace(exported, out_avals=tuple(map(_aval, described.results)))


def _aval(spec: TensorSpec) -> jax.core.ShapedArray:
    text = ", ".join(map(str, spec.shape or ()))
    shape = export.symbolic_shape(f"({text},)" if text else "()")
    return jax.core.ShapedArray(shape, spec.dtype.numpy)


def _parse(path: Path, content: bytes) -> Any:
    try:
        if content.startswith(_BYTECODE):  # MLIR ends the process at some damage in plain bytecode
            return parse_module(content)
        return ir.Module.parse(content.decode())
    except (ir.MLIRError, UnicodeDecodeError) as error:
        raise FormatError(
            f"{path} is no StableHLO that this jaxlib reads: {' '.join(str(error).split())[:300]}. "
            "To do: write it with a jaxlib of about this version, or serialize it as a portable "
            "artifact with that of its time, which later ones read."
        ) from error


def _spec(type_: TensorType, path: str, *, described: bool) -> TensorSpec:
    """With a shape only where there is no argument from which it could be found out."""
    shape = tuple(dim or 0 for dim in type_.shape) if described else None
    return TensorSpec(shape, _dtype_of(type_, path), path)


def _dtype_of(type_: TensorType, path: str) -> DType:
    for dtype in DTYPES:
        if dtype.mlir == type_.element:
            return dtype
    raise DtypeError(
        f"{path} is {type_}; elements that go through are "
        f"{', '.join(dtype.mlir for dtype in DTYPES)}. To do: convert it to one of these."
    )
