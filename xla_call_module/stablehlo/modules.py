"""StableHLO portable artifacts: what a module's `main` takes and which targets it calls."""

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
    survive_forks,
)
from xla_call_module.call import read_artifact_version
from xla_call_module.errors import FormatError, StructureError
from xla_call_module.stablehlo.call_graph import check_calls
from xla_call_module.versions import StablehloVersion

__all__ = [
    "Main",
    "TensorType",
    "custom_call_target",
    "custom_call_targets",
    "describe_location",
    "describe_primitive",
    "find_main",
    "first_line",
    "functions_of",
    "is_shape_assertion",
    "open_context",
    "open_module",
    "parse_module",
    "print_constant",
    "read_main",
    "result_number",
    "serialize_module",
    "splat",
    "tensor_type",
    "uses_shardy",
    "walk",
]


@dataclass(frozen=True, slots=True)
class TensorType:
    """One argument or result of `main`: the shape with None for `?`, the element type's text."""

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
        args: types of the array arguments, without the platform index.
        names: what the Python function calls each of them, from the source locations; or empty.
        results: types of the results.
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
    """The parsed MLIR module, for as long as its context lasts.

    Raises:
        FormatError: the bytes are damaged, or newer than this jaxlib reads.
    """
    with open_context(len(artifact)):
        yield parse_module(artifact)


@contextmanager
def open_context(size: int) -> Iterator[None]:
    """The current MLIR context, for modules of some bytes."""
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
        """A context for a module of some bytes."""
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
    """The parsed MLIR module, in the context that is entered.

    Raises:
        FormatError: the bytes are damaged, or newer than this jaxlib reads.
    """
    read_artifact_version(artifact)  # MLIR would take a text, too
    try:
        return parse_artifact(artifact)
    except (RuntimeError, ValueError, MemoryError) as error:
        raise FormatError(
            f"The module's {len(artifact)} bytes are no StableHLO portable artifact that this "
            f"jaxlib reads: {first_line(error)}. To do: write it again, or take a newer jaxlib."
        ) from error


def serialize_module(module: Any, version: StablehloVersion, *, mixed: bool = False) -> bytes:
    """The portable artifact of a parsed module.

    Args:
        module: any.
        version: of StableHLO.
        mixed: whether Shardy's operations stay, as in what JAX exports; otherwise they become
            StableHLO's attributes.

    Raises:
        RuntimeError, ValueError: an operation has no form in that version of StableHLO.
    """
    return serialize_artifact(module, ".".join(map(str, version)), mixed=mixed)


def first_line(error: Exception) -> str:
    """The first line of an MLIR error with content, without a full stop at its end."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line.removesuffix(".") for line in lines if line), "no message")


def read_main(module: Any) -> Main:
    """The signature of a parsed module's `main`.

    Raises:
        StructureError: there is no `main`, it takes something that is no tensor, or functions call
            themselves, or one another too often.
    """
    functions, main = functions_of(module), find_main(module)
    check_calls(functions)
    returned: dict[str, list[Any]] = {}
    arguments = list(main.regions[0].blocks[0].arguments)
    attributes = list(main.attributes["arg_attrs"]) if "arg_attrs" in main.attributes else []
    has_platform_index = bool(attributes) and "_platform_index" in str(attributes[0])
    arguments = arguments[int(has_platform_index) :]
    return Main(
        args=tuple(tensor_type(str(argument.type)) for argument in arguments),
        names=tuple(_argument_name(argument, functions) for argument in arguments),
        results=tuple(tensor_type(str(result)) for result in main.type.results),
        zeros=tuple(_is_zero(value, functions, returned) for value in _returned(main)),
        has_platform_index=has_platform_index,
    )


def find_main(module: Any) -> Any:
    """The public function of a parsed module.

    Raises:
        StructureError: there is none.
    """
    functions = functions_of(module)
    if "main" not in functions:
        raise StructureError(f"The module has no function 'main', only {sorted(functions)}.")
    return functions["main"]


def is_shape_assertion(operation: Any) -> bool:
    """Whether an operation is a call by which JAX asserts something of sizes."""
    return custom_call_target(operation) == "shape_assertion"


def custom_call_target(operation: Any) -> str:
    """The target of a `stablehlo.custom_call`; empty for any other operation."""
    if operation.name != "stablehlo.custom_call":
        return ""
    return str(operation.attributes["call_target_name"]).strip('"')


def custom_call_targets(operations: Iterable[Any]) -> list[str]:
    """The targets of the custom calls among operations, in their order."""
    return [target for op in operations if (target := custom_call_target(op))]


def describe_primitive(operation: Any) -> str:
    """The last part of the scope in an operation's location, such as `jit(f)/jit(g)/cholesky`.

    In what JAX lowers once and calls from many places it is all that there is, `cholesky`, or has
    one of those places behind it. A name in front of a file's is that of a Python function.
    """
    found = re.match(
        r'loc\("(?:[^"]*/(\w+)"|(\w+)"(?:\)$|\((?!"[^"]*":\d)))', str(operation.location)
    )
    return (found[1] or found[2]) if found else ""


# Operations of which the result is zero where operand 0 is.
_KEEP_ZERO = frozenset({
    "stablehlo.broadcast_in_dim", "stablehlo.convert", "stablehlo.dynamic_broadcast_in_dim",
    "stablehlo.dynamic_reshape", "stablehlo.reshape", "stablehlo.transpose",
})  # fmt: skip


def _is_zero(value: Any, functions: dict[str, Any], returned: dict[str, list[Any]]) -> bool:
    """Whether a value is a constant zero; what functions return is kept in `returned`."""
    while True:
        owner = value.owner
        if not hasattr(owner, "name"):  # the block of which it is an argument
            return False
        if owner.name == "func.call":
            name = str(owner.attributes["callee"]).strip('@"')
            if name not in returned:
                returned[name] = _returned(functions[name])
            value = returned[name][result_number(value)]
        elif owner.name in _KEEP_ZERO:
            value = owner.operands[0]
        else:
            return owner.name == "stablehlo.constant" and _is_zero_splat(owner)


def splat(constant: Any) -> str | None:
    """The text of the one element that a `stablehlo.constant` repeats; None where it has several.

    It is taken from the printed operation, since jaxlib has no Python class for complex elements.
    """
    text = print_constant(constant, large_elements_limit=8)
    element = re.search(r"dense<([^\[\"<>]*)>", text)
    return element[1] if element is not None and element[1] != "__elided__" else None


def print_constant(constant: Any, **options: Any) -> str:
    """The text of a `stablehlo.constant`, with options of MLIR's `get_asm`.

    A copy outside the module is printed: MLIR numbers all values of the function around what it
    prints, which takes far longer where that is large.
    """
    return str(constant.operation.clone(ip=False).get_asm(**options))


def _is_zero_splat(constant: Any) -> bool:
    element = splat(constant)
    parts = [] if element is None else element.strip("()").split(",")
    return bool(parts) and all(part in ("0", "false", "0.000000e+00") for part in parts)


def result_number(value: Any) -> int:
    """Which of its operation's results a value is."""
    number: int = ir.OpResult(value).result_number
    return number


def _returned(function: Any) -> list[Any]:
    operations = function.regions[0].blocks[0].operations
    return list(operations[len(operations) - 1].operands)


def functions_of(module: Any) -> dict[str, Any]:
    """The functions of a parsed module by name."""
    return {
        str(op.attributes["sym_name"]).strip('"'): op
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def walk(module: Any) -> Iterator[Any]:
    """Every operation of a parsed module or function, outer ones first."""
    pending = [module.operation]
    while pending:
        operation = pending.pop()
        yield operation
        if len(regions := operation.regions):
            inner = [op.operation for region in regions for block in region for op in block]
            pending.extend(reversed(inner))


def describe_location(operation: Any) -> str:
    """Where an operation comes from: the innermost user frame, as `file.py:12`, or its scope.

    What JAX lowers once and calls from many places, such as `jnp.linalg.cholesky`, has no frame of
    its own; the function around it has that of its first call, or else that call has it.
    """
    place: Any = operation
    seen: set[str] = set()
    while place is not None:
        function = ancestor = place
        while ancestor is not None:
            if (frame := re.search(r'"([^"]+)":(\d+):\d+', str(ancestor.location))) is not None:
                return f"{frame[1]}:{frame[2]}"
            if ancestor.name == "func.func":
                function = ancestor
            ancestor = ancestor.parent
        place = _first_call(function, seen)
    scope = re.search(r'loc\("([^"]*)"', str(operation.location))
    return scope[1] if scope else "an unknown place"


def _first_call(function: Any, seen: set[str]) -> Any:
    """The first call of a function in its module; None where there is none, or it was `seen`."""
    if function.name != "func.func":
        return None
    name = ir.StringAttr(function.attributes["sym_name"]).value
    if name in seen:
        return None
    seen.add(name)
    if name == "main":  # which nothing in the module calls
        return None
    calls = (op for op in walk(function.parent) if op.name == "func.call")
    return next((op for op in calls if str(op.attributes["callee"]) == f"@{name}"), None)


_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)([^,>]+>?)(?:, .*)?>")


def tensor_type(text: str) -> TensorType:
    """The value of a tensor type's text.

    Raises:
        StructureError: it is the type of something else, such as a token.
    """
    if (match := _TENSOR.fullmatch(text)) is None:
        raise StructureError(
            f"The module has an argument or result of type {text}; only tensors can cross."
        )
    dims = tuple(None if dim == "?" else int(dim) for dim in match[1].split("x")[:-1])
    return TensorType(dims, match[2])


def _argument_name(argument: Any, functions: dict[str, Any]) -> str:
    """The name in an argument's location, or in that of the function it is handed on to.

    With symbolic shapes JAX wraps the lowered function in a new `main`, whose own arguments have
    no locations.
    """
    if (own := re.match(r'loc\("([^"]*)"\)', str(argument.location))) is not None:
        return own[1]
    for use in argument.uses:
        caller = use.owner
        if caller.operation.name == "func.call":
            callee = functions[str(caller.attributes["callee"]).strip('@"')]
            inner = callee.regions[0].blocks[0].arguments[use.operand_number]
            if (handed := re.match(r'loc\("([^"]*)"\)', str(inner.location))) is not None:
                return handed[1]
    return ""


def uses_shardy(module: Any) -> bool:
    """Whether a parsed module declares a Shardy mesh, as an operation or, serialized, as text."""
    if any(op.operation.name == "sdy.mesh" for op in module.body.operations):
        return True
    attributes = module.operation.attributes
    name = "mhlo.frontend_attributes"
    return name in attributes and "xla.sdy.meshes" in ir.DictAttr(attributes[name])
