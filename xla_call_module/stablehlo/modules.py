"""StableHLO portable artifacts, parsed: the functions of a module, and what its `main` takes."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xla_call_module._jax import (
    ir,
    make_ir_context,
    parse_artifact,
    serialize_artifact,
    stablehlo_versions,
    survive_forks,
)
from xla_call_module.call import read_artifact_version
from xla_call_module.errors import FormatError, StructureError, VersionError
from xla_call_module.stablehlo.attributes import (
    callee_of,
    comparison_direction,
    dictionary,
    symbol_name,
    value_attributes,
)
from xla_call_module.stablehlo.call_graph import check_calls
from xla_call_module.stablehlo.operation_locations import argument_name
from xla_call_module.versions import (
    JAXLIBS,
    StablehloVersion,
    jaxlib_for,
    parse_stablehlo_version,
    promised_until,
)


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of an argument or result.

    Attributes:
        shape: the size of each dimension; None for `?`.
        element: the element type as StableHLO writes it, such as `bf16`.
    """

    shape: tuple[int | None, ...]
    element: str

    def __str__(self) -> str:
        """The type as StableHLO writes it."""
        dims = "".join(f"{'?' if dim is None else dim}x" for dim in self.shape)
        return f"tensor<{dims}{self.element}>"


@dataclass(frozen=True, slots=True)
class Main:
    """The public function of a module.

    Attributes:
        args: the types of the array arguments, without the platform index.
        names: the names that the Python function has for them, from the source locations; or empty.
        zeros: for each result whether it is a constant zero, broadcast or reshaped at most.
        has_platform_index: whether argument 0 is the platform index.
    """

    args: tuple[TensorType, ...]
    names: tuple[str, ...]
    results: tuple[TensorType, ...]
    zeros: tuple[bool, ...]
    has_platform_index: bool


@contextmanager
def open_module(artifact: bytes) -> Iterator[Any]:
    """Return the parsed MLIR module, for as long as its context lasts."""
    with open_context(len(artifact)):
        yield parse_module(artifact)


@contextmanager
def open_context(size: int) -> Iterator[None]:
    """Make an MLIR context the current one, for modules of some bytes."""
    survive_forks()
    with _contexts().take(size):
        yield


class _Contexts:
    """The MLIR context of the main thread, which costs more than it takes to parse a small module.

    A context keeps every attribute that it has seen, so it is used for small modules only, and not
    for ever. Other threads have none: Python may forget one of TensorFlow's threads between two
    calls, and the process ends where a context is taken apart then.
    """

    _LARGE = 1 << 16
    _USES = 64

    def __init__(self) -> None:
        self._context: Any = None
        self._uses = 0

    def take(self, size: int) -> Any:
        """Return a context for a module of some bytes."""
        if size >= self._LARGE or threading.current_thread() is not threading.main_thread():
            return make_ir_context()
        if self._context is None or self._uses >= self._USES:
            self._context, self._uses = make_ir_context(), 0
        self._uses += 1
        return self._context


@functools.cache
def _contexts() -> _Contexts:
    return _Contexts()


def parse_module(artifact: bytes) -> Any:
    """Return the parsed MLIR module, in the context that is entered."""
    version = read_artifact_version(artifact)  # MLIR would take a text, too
    try:
        return parse_artifact(artifact)
    except (RuntimeError, ValueError, MemoryError) as error:
        _check_version(version, error)
        raise FormatError(
            f"The module's {len(artifact)} bytes are not a StableHLO portable artifact that this "
            f"jaxlib reads: {first_line(error)}. To do: write it again."
        ) from error


def is_readable(artifact: bytes) -> bool:
    """Return whether this jaxlib reads artifacts of that version, whatever is in them.

    It may read a newer one, too, where all operations in it are older.
    """
    oldest, newest = map(parse_stablehlo_version, stablehlo_versions())
    return oldest <= read_artifact_version(artifact) <= newest


def _check_version(version: StablehloVersion, error: Exception) -> None:
    """Refuse a version that this jaxlib does not read, and say which one does."""
    oldest, newest = map(parse_stablehlo_version, stablehlo_versions())
    if oldest <= version <= newest:
        return
    texts = [".".join(map(str, known)) for known in (version, oldest, newest)]
    until = promised_until(version)
    past = (
        f"jaxlib {list(JAXLIBS)[-1]}, and lift the file with it: bridge.retarget(…, lift=True)"
        f"{f'. It was promised to be readable until {until.isoformat()}' if until else ''}"
    )
    cure = f"jaxlib {jaxlib_for(version)}" if version > newest else past
    raise VersionError(
        f"The module is a portable artifact of StableHLO {texts[0]}, and the installed jaxlib "
        f"reads {texts[1]} to {texts[2]}: {first_line(error)}. To do: take {cure}."
    ) from error


def copy_module(module: Any) -> Any:
    """Return a copy of a parsed module, in its context."""
    with module.context, ir.Location.unknown():
        copy = ir.Module.create()
        attributes = module.operation.attributes
        for named in (attributes[index] for index in range(len(attributes))):
            copy.operation.attributes[named.name] = named.attr
        for operation in module.body.operations:
            copy.body.append(operation.operation.clone(ip=False))
    return copy


def serialize_module(module: Any, version: StablehloVersion, *, mixed: bool = False) -> bytes:
    """Return the portable artifact of a parsed module."""
    return serialize_artifact(module, ".".join(map(str, version)), mixed=mixed)


def first_line(error: Exception) -> str:
    """Return the first line of an MLIR error that has content, without a full stop at its end."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line.removesuffix(".") for line in lines if line), "no message")


def read_main(module: Any) -> Main:
    """Return the signature of a parsed module's `main`."""
    functions, main = functions_of(module), find_main(module)
    check_calls(functions)
    returned: dict[str, list[Any]] = {}
    arguments = list(main.regions[0].blocks[0].arguments)
    is_indexed = has_platform_index(main)
    arguments = arguments[int(is_indexed) :]
    return Main(
        args=tuple(tensor_type(str(argument.type)) for argument in arguments),
        names=tuple(argument_name(argument, functions) for argument in arguments),
        results=tuple(tensor_type(str(result)) for result in main.type.results),
        zeros=tuple(_is_zero(value, functions, returned) for value in _returned(main)),
        has_platform_index=is_indexed,
    )


def has_platform_index(main: Any) -> bool:
    """Return whether argument 0 of `main` is the index of the platform.

    https://docs.jax.dev/en/latest/export/export.html#module-calling-convention
    """
    for attributes in value_attributes(main, "arg_attrs")[:1]:
        if "jax.global_constant" in attributes:
            name: str = ir.StringAttr(attributes["jax.global_constant"]).value
            return name == "_platform_index"
    return False


def takes_platform_index_alone(operation: Any) -> bool:
    """Return whether an operation is a function that takes the platform index and nothing else."""
    is_function = operation.name == "func.func" and "arg_attrs" in operation.attributes
    if not is_function or not has_platform_index(operation):
        return False
    return len(operation.regions[0].blocks[0].arguments) == 1


def find_main(module: Any) -> Any:
    """Return the public function of a parsed module."""
    functions = functions_of(module)
    if "main" not in functions:
        raise StructureError(
            f"The module has no function 'main', only {sorted(functions)}. To do: call one of "
            "them main."
        )
    return functions["main"]


def traced_name(module: Any) -> str:
    """Return the name of the function that a parsed module was traced from; empty if unknown."""
    named = module.operation if "sym_name" in module.operation.attributes else None
    return "" if named is None else symbol_name(named).removeprefix("jit_")


def is_shape_assertion(operation: Any) -> bool:
    """Return whether an operation is a call by which JAX asserts something of sizes."""
    return custom_call_target(operation) == "shape_assertion"


def custom_call_target(operation: Any) -> str:
    """Return the target of a `stablehlo.custom_call`; empty for any other operation."""
    if operation.name != "stablehlo.custom_call":
        return ""
    return str(ir.StringAttr(operation.attributes["call_target_name"]).value)


def custom_call_targets(operations: Iterable[Any]) -> list[str]:
    """Return the targets of the custom calls among operations, in their order."""
    return [target for op in operations if (target := custom_call_target(op))]


# Operations of which the result is zero where operand 0 is.
_KEEP_ZERO = frozenset({
    "stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.dynamic_reshape", "stablehlo.reshape", "stablehlo.transpose",
})  # fmt: skip


def _is_zero(value: Any, functions: dict[str, Any], returned: dict[str, list[Any]]) -> bool:
    """Return whether a value is a constant zero; what functions return is kept in `returned`."""
    while True:
        owner = value.owner
        if not hasattr(owner, "name"):  # the block of which it is an argument
            return False
        if owner.name == "func.call":
            name = callee_of(owner)
            if name not in returned:
                returned[name] = _returned(functions[name])
            value = returned[name][result_number(value)]
        elif owner.name in _KEEP_ZERO:
            value = owner.operands[0]
        else:
            return owner.name == "stablehlo.constant" and _is_zero_splat(owner)


def splat(constant: Any) -> str | None:
    """Return the text of the one element that a `stablehlo.constant` repeats; None for several.

    It is taken from the printed operation, since jaxlib has no Python class for complex elements.
    """
    text = print_constant(constant, large_elements_limit=8)
    element = re.search(r"dense<([^\[\"<>]*)>", text)
    return element[1] if element is not None and element[1] != "__elided__" else None


def print_constant(constant: Any, **options: Any) -> str:
    """Return the text of a `stablehlo.constant`, with options of MLIR's `get_asm`.

    A copy outside the module is printed: MLIR numbers all values of the function around what it
    prints, which takes far longer where that is large.
    """
    return str(constant.operation.clone(ip=False).get_asm(**options))


def _is_zero_splat(constant: Any) -> bool:
    element = splat(constant)
    parts = [] if element is None else element.strip("()").split(",")
    return bool(parts) and all(part in ("0", "false", "0.000000e+00") for part in parts)


def result_number(value: Any) -> int:
    """Return the position of a value among the results of its operation."""
    number: int = ir.OpResult(value).result_number
    return number


def read_counter(condition: Any, body: Any) -> tuple[int, Any, Any] | None:
    """Return which carried value of a `stablehlo.while` counts, its limit, and its step.

    None unless the loop goes on while that value is less than the limit, and adds the step to it.
    """
    compared = list(condition.operations)[-1].operands[0].owner
    if getattr(compared, "name", "") != "stablehlo.compare":
        return None
    left, right = compared.operands
    carried = list(condition.arguments)
    if comparison_direction(compared) != "LT" or left not in carried:
        return None
    index = carried.index(left)
    added = list(body.operations)[-1].operands[index].owner
    terms = list(added.operands) if getattr(added, "name", "") == "stablehlo.add" else []
    if body.arguments[index] not in terms:
        return None
    return index, right, terms[1 - terms.index(body.arguments[index])]


def _returned(function: Any) -> list[Any]:
    operations = function.regions[0].blocks[0].operations
    return list(operations[len(operations) - 1].operands)


def functions_of(module: Any) -> dict[str, Any]:
    """Return the functions of a parsed module by name."""
    return {
        symbol_name(op): op for op in module.body.operations if op.operation.name == "func.func"
    }


def walk(module: Any) -> Iterator[Any]:
    """Yield every operation of a parsed module or function, outer ones first."""
    pending = [module.operation]
    while pending:
        operation = pending.pop()
        yield operation
        if len(regions := operation.regions):
            inner = [op.operation for region in regions for block in region for op in block]
            pending.extend(reversed(inner))


_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^,>]+>?)(?:, .*)?>")


def tensor_type(text: str) -> TensorType:
    """Return the value of a tensor type's text, which may be kept when its MLIR context is gone."""
    if (match := _TENSOR.fullmatch(text)) is None:
        raise StructureError(
            f"The module has an argument or result of type {text}; only tensors can cross. To do: "
            "leave it out."
        )
    dims = tuple(None if dim == "?" else int(dim) for dim in match[1].split("x")[:-1])
    return TensorType(dims, match[2])


def uses_shardy(module: Any) -> bool:
    """Return whether a parsed module declares a mesh of Shardy's, as an operation or as text."""
    if any(op.operation.name == "sdy.mesh" for op in module.body.operations):
        return True
    attributes = module.operation.attributes
    name = "mhlo.frontend_attributes"
    return name in attributes and "xla.sdy.meshes" in dictionary(attributes[name])
