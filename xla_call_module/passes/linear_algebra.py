"""The pass that replaces the calls of linear algebra libraries by operations that run everywhere.

JAX computes factorizations with the LAPACK that is linked into jaxlib, and on GPUs with cuSOLVER
and its kin. TensorFlow has none of these under JAX's names: it reads such a module and fails when
it runs it. Each call is replaced by a call of functions that are added to the module, which JAX
lowers from `jax.lax` programs with the same operands and results.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

from xla_call_module._jax import PassManager, func, ir
from xla_call_module.errors import InteropError, StructureError
from xla_call_module.linalg.lapack import MARKS, OPERATION_MARKS, parse_target
from xla_call_module.linalg.library_calls import OPERATIONS, array_operands, library_options
from xla_call_module.linalg.replacements import LibraryForm, replacement
from xla_call_module.passes.module_pass import ModulePass, ParsedCall
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import custom_call_target, parse_module, tensor_type, walk
from xla_call_module.stablehlo.operation_locations import describe_location
from xla_call_module.stablehlo.splicing import splice_functions, symbols_of
from xla_call_module.stablehlo.unique_names import UniqueNames

_CUSTOM_CALL = ("stablehlo.custom_call",)


def lower_linalg(*, operations: bool = False, native: Collection[str] = ()) -> ModulePass:
    """Return the pass that replaces calls of LAPACK, cuSOLVER and hipSOLVER.

    Batches are computed together. Their dimensions may be symbolic, and so may the numbers of
    right-hand sides be, but not the dimensions of the matrices.
    Where the library reports a failure, such as a matrix that is not positive definite, the
    replacement reports it too, and JAX's NaNs appear in the same places. Running it raises a
    `StructureError` for a matrix whose own shape is symbolic, and an `InteropError` for a call in a
    form that no known JAX writes.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from xla_call_module import from_exported
        >>> from xla_call_module.passes.module_pass import run_passes
        >>> spec = jax.ShapeDtypeStruct((3, 3), "float32")
        >>> call = from_exported(jax.export.export(jax.jit(jnp.linalg.cholesky))(spec))
        >>> lowered = run_passes(call, [lower_linalg()])
        >>> b"lapack_spotrf_ffi" in call.module, b"lapack_spotrf_ffi" in lowered.module
        (True, False)
    """
    marks = (*MARKS, *OPERATION_MARKS) if operations else MARKS
    kinds = (*_CUSTOM_CALL, *OPERATIONS) if operations else _CUSTOM_CALL
    return ModulePass(
        name="linear_algebra",
        ensures="no linear algebra library is called",
        violation=functools.partial(_violation, kinds=kinds, native=native),
        rewrite=functools.partial(_lower, kinds=kinds, native=native),
        requires=("platforms",),
        may_apply=lambda call: mentions(call.module, marks),
    )


def _violation(parsed: ParsedCall, *, kinds: Sequence[str], native: Collection[str]) -> str:
    targets = (_target(op, kinds) for op in walk(parsed.module))
    first = next((target for target in targets if target and target not in native), "")
    return f"it calls {first}" if first else ""


def _target(operation: Any, kinds: Sequence[str]) -> str:
    """Return the library function or operation to be replaced; empty for any other operation."""
    if operation.name not in kinds:
        return ""
    target = custom_call_target(operation) or operation.name
    return target if parse_target(target) is not None else ""


def _lower(parsed: ParsedCall, *, kinds: Sequence[str], native: Collection[str]) -> ParsedCall:
    module = parsed.module
    operations = [op for op in walk(module) if _target(op, kinds) not in ("", *native)]
    forms = [(op, form) for op in operations if (form := _read_form(parsed.call.name, op))]
    spliced: dict[LibraryForm, Any] = {}
    names = symbols_of(module)
    for operation, form in forms:
        # A function with symbolic shapes is refined to those of its call, so each has its own.
        if not form.is_static or form not in spliced:
            spliced[form] = _splice(module, _replacement(operation, form), names)
        _replace(operation, form, spliced[form])
    return parsed.rewritten("linear algebra in portable operations")


def _read_form(name: str, operation: Any) -> LibraryForm | None:
    is_call = operation.name in _CUSTOM_CALL
    target = custom_call_target(operation) if is_call else operation.name
    if (routine := parse_target(target)) is None:
        return None
    types = tuple(tensor_type(str(operand.type)) for operand in _array_operands(operation))
    if len(types) != len(routine.ranks):
        raise InteropError(
            f"{_place(name, operation)} with {len(types)} operands; expected "
            f"{len(routine.ranks)}, as JAX 0.7.1 and newer have it. To do: export it again "
            "with such a JAX."
        )
    attributes = {**library_options(operation), **_result_sizes(operation)}
    if (matrix := routine.symbolic_matrix(attributes, types)) is not None:
        raise StructureError(
            f"{_place(name, operation)}, on a matrix of type {matrix}: its own shape is symbolic; "
            "only sizes of batches and numbers of right-hand sides may be. To do: export it with "
            "the sizes of the matrix, or with linalg='lapack' for a TensorFlow that has the "
            "library."
        )
    return LibraryForm(target, tuple(sorted(attributes.items())), types)


def _place(name: str, operation: Any) -> str:
    target = custom_call_target(operation) or operation.name
    return f"{name} calls {target} at {describe_location(operation)}"


def _result_sizes(operation: Any) -> dict[str, int]:
    """Return the last two dimensions of each result, where they are known."""
    sizes = {}
    for index, result in enumerate(operation.results):
        shape = tensor_type(str(result.type)).shape
        for name, dim in zip(("columns", "rows"), reversed(shape), strict=False):
            if dim is not None:
                sizes[f"{name}_{index}"] = dim
    return sizes


def _array_operands(operation: Any) -> tuple[Any, ...]:
    """Return the operands without the shapes of results, which follow from the others.

    They are asked for when they are used: a value that was replaced is gone.
    """
    return tuple(operation.operands[index] for index in array_operands(operation))


def _replace(operation: Any, form: LibraryForm, entry: Any) -> None:
    """Put a call of a function of the module in the place of the library call."""
    with operation.context, operation.location, ir.InsertionPoint(operation):
        types = list(entry.type.results)
        symbol = ir.FlatSymbolRefAttr.get(ir.StringAttr(entry.attributes["sym_name"]).value)
        call = func.CallOp(types, symbol, list(_array_operands(operation)))
    for old, new in zip(operation.results, call.results, strict=False):
        # A result that is not asked for may have the type of a placeholder.
        if old.type != new.type and next(iter(old.uses), None) is not None:
            raise InteropError(
                f"{form.target} at {describe_location(operation)} has a result of type {old.type}; "
                f"expected {new.type}. To do: export it again with JAX 0.7.1 or newer."
            )
        if old.type == new.type:
            old.replace_all_uses_with(new)
    operation.erase()


def _replacement(operation: Any, form: LibraryForm) -> bytes:
    try:
        return replacement(form)
    except KeyError as error:
        raise InteropError(
            f"{form.target} at {describe_location(operation)} has no attribute {error}. To do: "
            "export it again with JAX 0.7.1 or newer."
        ) from error


def _splice(module: Any, artifact: bytes, taken: UniqueNames) -> Any:
    """Return the entry of a module whose functions are now functions of another one."""
    helper = parse_module(artifact)
    PassManager.parse("builtin.module(strip-debuginfo)").run(helper.operation)
    return splice_functions(helper, module, prefix="linalg_", taken=taken)
