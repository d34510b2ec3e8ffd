"""StableHLO without an `Exported` around it: files of MLIR, and calls of other programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from xla_call_module._jax import (
    failed_legalization,
    ir,
    make_ir_context,
    parse_fault,
    refine_module,
    survive_forks,
)
from xla_call_module.analyses.infer_signature import infer_argument_signature, infer_signature
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.dtypes import DTYPES, NARROW_DTYPES, DType
from xla_call_module.errors import DtypeError, FormatError, StructureError
from xla_call_module.stablehlo.call_graph import check_calls, named_by
from xla_call_module.stablehlo.chlo import define_chlo
from xla_call_module.stablehlo.modules import (
    Main,
    TensorType,
    first_line,
    functions_of,
    open_module,
    parse_module,
    read_main,
    serialize_module,
    walk,
)
from xla_call_module.symbolic_shapes import limited_steps, parse_shape
from xla_call_module.versions import LAST_WITHOUT_SHARDY, NEWEST

_BYTECODE = b"ML\xefR"
_TEXT = b"func.func"


def is_mlir(content: bytes) -> bool:
    """Return whether a file is MLIR: a portable artifact, or a text."""
    return content.startswith(_BYTECODE) or _TEXT in content[: 1 << 20]


def call_of_file(
    path: Path,
    content: bytes,
    *,
    prepare: Callable[[Any], None] | None = None,
    prepared: Collection[str] = (),
    narrow: bool = False,
) -> CallModule:
    """Return the function `main` of a module, or its only entry point, as a call for the CPU."""
    survive_forks()
    with make_ir_context():
        module = _parse(path, content)
        _name_main(path, module)
        module.operation.attributes["sym_name"] = ir.StringAttr.get(path.stem)
        if prepare is not None:
            prepare(module)
        module, main = _with_sizes(path, module)
        if main.has_platform_index:
            raise StructureError(
                f"{path} was exported for several platforms, and does not say for which. To do: "
                "pass the jax.export.Exported that it comes from, or its serialized bytes."
            )
        artifact = _serialize(path, module)
    spec = partial(_spec, prepared=prepared, narrow=narrow)
    args = tuple(spec(t, f"args[{n}]", described=False) for n, t in enumerate(main.args))
    results = tuple(
        spec(type_, f"result[{n}]", described=not args) for n, type_ in enumerate(main.results)
    )
    call = CallModule(
        name=path.stem,
        module=artifact,
        version=LAST_WITHOUT_SHARDY,
        platforms=("cpu",),
        args=args,
        results=results,
        kept=tuple(range(len(args))),
    )
    return with_signature(call)


def with_signature(call: CallModule) -> CallModule:
    """Return a call that says the shapes of its arguments and results.

    A dimension of a result that is no polynomial of the arguments' is a variable of its own, which
    is known when the model runs. So is each where the module does not take all sizes, such as one
    with a dimension among its arguments.
    """
    if call.residual_args or call.residual_results or call.hoisted:
        raise StructureError(
            f"{call.name} shares residuals or constants with other calls of its file. To do: pass "
            "the signature that bridge.load returns."
        )
    if call.exported:
        return call
    with open_module(call.module) as module:
        check_calls(functions_of(module))
    try:
        described = infer_signature(call)
    except StructureError:
        described = infer_argument_signature(call)
    with limited_steps("to read the shapes of a call"):
        return dataclasses.replace(
            described,
            args=tuple(_numbered("args", described.args)),
            results=tuple(_numbered("result", described.results)),
        )


def _numbered(root: str, specs: Sequence[TensorSpec]) -> Iterator[TensorSpec]:
    """Yield the specs with paths by position, and with sizes as JAX writes them."""
    for index, spec in enumerate(specs):
        shape = tuple(n if isinstance(n, int) else str(n) for n in parse_shape(spec.shape or ()))
        yield dataclasses.replace(spec, path=f"{root}[{index}]", shape=shape)


def _name_main(path: Path, module: Any) -> None:
    """Call the function `main` that is the only one which no other function names."""
    functions = functions_of(module)
    if "main" in functions:
        return
    named = {
        name
        for function in functions.values()
        for operation in walk(function)
        for name in named_by(operation)
    }
    entries = [
        name
        for name, function in functions.items()
        if name not in named and (len(functions) == 1 or not _is_private(function))
    ]
    if len(entries) != 1:
        raise StructureError(
            f"{path} has no function 'main', but {', '.join(sorted(functions)) or 'none'}. To do: "
            "call the one main that is to be converted."
        )
    functions[entries[0]].attributes["sym_name"] = ir.StringAttr.get("main")


def _is_private(function: Any) -> bool:
    attributes = function.attributes
    return "sym_visibility" in attributes and "private" in str(attributes["sym_visibility"])


def _with_sizes(path: Path, module: Any) -> tuple[Any, Main]:
    """The module, whose results have sizes where they follow from no argument, and its `main`."""
    main = read_main(module)
    if main.args or all(None not in type_.shape for type_ in main.results):
        return module, main
    try:
        refined = refine_module(module, check_assertions=False)
    except (RuntimeError, ValueError, ir.MLIRError) as error:
        raise StructureError(
            f"{path} returns {', '.join(map(str, main.results))}, of sizes that are not known "
            f"before it runs: {first_line(error)}. To do: return arrays of known sizes."
        ) from error
    return refined, read_main(refined)


def _serialize(path: Path, module: Any) -> bytes:
    """The portable artifact of a module, with composites for CHLO's operations where it can be."""
    version = NEWEST.stablehlo
    try:
        try:
            return serialize_module(module, version)
        except (RuntimeError, ValueError):  # an operation of CHLO with a region, `chlo.scan`
            define_chlo(module)
            return serialize_module(module, version)
    except (RuntimeError, ValueError, ir.MLIRError) as error:
        failed = failed_legalization(error)
        raise FormatError(
            f"{path}: {failed[2] if failed else 'an operation'} has no form in StableHLO "
            f"{'.'.join(map(str, version))}: {first_line(error)}. To do: write it in operations of "
            "StableHLO."
        ) from error


def _parse(path: Path, content: bytes) -> Any:
    try:
        if content.startswith(_BYTECODE):  # MLIR ends the process at some damage in plain bytecode
            return parse_module(content)
        return ir.Module.parse(content.decode())
    except (ir.MLIRError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise FormatError(
            f"{path} is not StableHLO that this jaxlib reads: {text[:300]}. To do: "
            f"{_cure(error, content)}."
        ) from error


def _cure(error: Exception, content: bytes) -> str:
    """Return the remedy for a text that cannot be parsed."""
    match parse_fault(error):
        case "quantization", _:
            return (
                "write out what its quantized types mean, which are not in jaxlib: integers, with "
                "the scale and the zero point as operations"
            )
        case "dialect", name:
            return f"leave out the operations of the dialect {name}, which is not StableHLO's"
        case "redefinition", _:
            return (
                "keep one of its programs; lines of // ----- are between them in files of several"
            )
        case "operation", line:
            lines = content.decode().splitlines()
            text = lines[int(line) - 1].strip() if line and int(line) <= len(lines) else ""
            return f"leave out the operations of other dialects than StableHLO's: {text[:80]}"
    return (
        "write it with a jaxlib of about this version, or serialize it as a portable artifact with "
        "that of its time, which later ones read"
    )


def _spec(
    type_: TensorType, path: str, *, described: bool, prepared: Collection[str], narrow: bool
) -> TensorSpec:
    """Return the spec of an argument or result, without a shape if that can be inferred."""
    shape = tuple(dim or 0 for dim in type_.shape) if described else None
    return TensorSpec(shape, _dtype_of(type_, path, prepared, narrow=narrow), path)


def _dtype_of(type_: TensorType, path: str, prepared: Collection[str], *, narrow: bool) -> DType:
    allowed = (*DTYPES, *NARROW_DTYPES) if narrow else DTYPES
    for dtype in allowed:
        if dtype.mlir == type_.element:
            return dtype
    known = ", ".join([*(dtype.mlir for dtype in allowed), *prepared])
    raise DtypeError(
        f"{path} is {type_}; elements that go through are {known}. To do: convert it to one of "
        "these."
    )
