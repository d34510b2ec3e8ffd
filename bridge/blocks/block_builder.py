"""Blocks in normal form: calls written out, constants folded, equal operations once."""

from __future__ import annotations

import dataclasses
import itertools
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend import core

from bridge.blocks.block import Block, Operation, Value
from bridge.blocks.constant_folding import fold
from bridge.blocks.equations import parameters_of, type_of
from xla_call_module.dtypes import Array
from xla_call_module.size_polynomials import Dim, Shape, broadcast

Type = tuple[Shape, np.dtype[Any]]

_CALLS = frozenset({
    "checkpoint", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "custom_vmap_call", "jit", "pjit", "remat", "remat2",
})  # fmt: skip
_OF_A_CALL = ("jaxpr", "call", "call_jaxpr", "fun_jaxpr")
_IDENTITIES = frozenset({"copy", "copy_p", "optimization_barrier", "pvary", "stop_gradient"})
_SPELLINGS = {"add_any": "add", "expand_dims": "reshape", "squeeze": "reshape"}
# Operations on each element, of operands of one shape.
ELEMENTWISE = frozenset({
    "add", "and", "atan2", "div", "eq", "ge", "gt", "le", "lt", "max", "min", "mul", "ne", "or",
    "pow", "rem", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sub",
    "xor",
})  # fmt: skip
OF_EACH = frozenset({
    "abs", "ceil", "convert_element_type", "cos", "exp", "floor", "log", "logistic", "neg", "not",
    "round", "rsqrt", "sin", "sqrt", "tanh",
})  # fmt: skip
# Those that leave one operand as it is, by what the other one is then.
_NEUTRAL = {"div": 1, "mul": 1, "sub": 0}
_ABSORBING = {"and": False, "or": True}
# Bytes of a constant that is looked up by what it is, not by which array it is.
_MAX_COMPARED = 1 << 20


@dataclass(frozen=True, slots=True)
class BlockTarget:
    """What blocks are made for.

    Attributes:
        broadcasts: whether the kernel of an operation broadcasts operands of a dtype to a shape.
        composites: the operations that stand for composites, by the names of these.
        fuse: the result of an operation that is made with those before it; None where it is none.
    """

    broadcasts: Callable[[str, np.dtype[Any], Shape], bool] = lambda *_: False
    composites: Mapping[str, str] = field(default_factory=dict)
    fuse: Callable[[BlockBuilder, Operation], Value | None] = lambda *_: None


class BlockBuilder:
    """Appends operations to a block; a body's builder knows what the blocks around it have.

    Attributes:
        block: the block.
        target: what it is for.
    """

    def __init__(
        self,
        inputs: Sequence[Value],
        around: BlockBuilder | None = None,
        *,
        target: BlockTarget | None = None,
    ) -> None:
        """Have no operation."""
        self.block = Block(tuple(inputs))
        self.target: BlockTarget = around.target if around else target or BlockTarget()
        self._known: ChainMap[Any, tuple[Value, ...]] = (
            around._known.new_child() if around else ChainMap()
        )
        self._made_by: ChainMap[Value, Operation] = (
            around._made_by.new_child() if around else ChainMap()
        )
        self._repeated: dict[Value, Value] = around._repeated if around else {}
        self._constants: dict[Any, tuple[Value, Any]] = around._constants if around else {}

    def constant(self, array: Any) -> Value:
        """Return a constant, the same one for the same elements."""
        given = np.asarray(array)
        content = given.tobytes() if given.nbytes <= _MAX_COMPARED else id(array)
        key = (given.dtype.name, given.shape, content)
        if key not in self._constants:
            # What is known by its number stays, or another array would have that.
            self._constants[key] = (Value(given.shape, given.dtype, given), array)
        return self._constants[key][0]

    def maker(self, value: Value, name: str) -> Operation | None:
        """Return the operation that makes a value if it has a name."""
        made = self._made_by.get(value)
        return made if made is not None and made.name == name else None

    def any_maker(self, value: Value) -> Operation | None:
        """Return the operation that makes a value; None of an input or a constant."""
        return self._made_by.get(value)

    def add(
        self,
        name: str,
        operands: Sequence[Value],
        parameters: Mapping[str, Any],
        types: Sequence[Type],
        place: str = "",
    ) -> tuple[Value, ...]:
        """Return the results of an operation, which is appended if they are not there already."""
        if name in _IDENTITIES:
            return tuple(operands)
        name = _SPELLINGS.get(name, name)
        if name == "square" or (name == "integer_pow" and parameters["y"] in (2, 3)):
            return self._power(operands[0], parameters.get("y", 2), types, place)
        if len(types) == 1 and not any(map(_has_blocks, parameters.values())):
            if name in ELEMENTWISE:
                operands = self._narrowed(name, operands, types[0][0], place)
            simpler = self._simpler(name, operands, parameters, types[0], place)
            if simpler is not None:
                return (simpler,)
        key = (name, *operands, _frozen(parameters), *((s, d.name) for s, d in types))
        if key not in self._known:
            results = tuple(Value(*one) for one in types)
            operation = Operation(name, tuple(operands), parameters, results, place)
            if len(results) == 1 and (fused := self.target.fuse(self, operation)) is not None:
                results = (fused,)
            else:
                self.block.operations.append(operation)
                self._made_by.update(dict.fromkeys(results, operation))
            self._known[key] = results
        return self._known[key]

    def _power(
        self, value: Value, exponent: int, types: Sequence[Type], place: str
    ) -> tuple[Value, ...]:
        """Return the square or the cube, as products."""
        (square,) = self.add("mul", [value, value], {}, types, place)
        return (square,) if exponent == 2 else self.add("mul", [square, value], {}, types, place)

    def _one(
        self,
        name: str,
        operands: Sequence[Value],
        parameters: Mapping[str, Any],
        shape: Shape,
        place: str,
    ) -> Value:
        (made,) = self.add(name, operands, parameters, [(shape, operands[0].dtype)], place)
        return made

    def _simpler(
        self,
        name: str,
        operands: Sequence[Value],
        parameters: Mapping[str, Any],
        wanted: Type,
        place: str,
    ) -> Value | None:
        """Return what an operation makes without itself, or by a simpler one; None if it stays."""
        shape, dtype = wanted
        array = fold(name, operands, parameters, Value(shape, dtype))
        if array is not None:
            return self.constant(array)
        if name in ELEMENTWISE or name in OF_EACH:
            return self._sunk(name, operands, parameters, wanted, place) or _of_numbers(
                name, operands, shape
            )
        match name:
            case "convert_element_type" if operands[0].dtype == dtype:
                return operands[0]
            case "dim_as_value" if isinstance(parameters["dim"], int):
                return self.constant(np.array(parameters["dim"], dtype))
            case "reshape" | "slice" if operands[0].shape == shape:
                return operands[0]
            case "reshape" if (inner := self.maker(operands[0], name)) is not None:
                return self._one(name, inner.operands, {}, shape, place)
            case "transpose":
                return self._transposed(operands[0], parameters["permutation"], shape, place)
            case "broadcast_in_dim":
                axes = parameters["broadcast_dimensions"]
                return self._broadcast(operands[0], axes, shape, place)
        return None

    def _sunk(
        self,
        name: str,
        operands: Sequence[Value],
        parameters: Mapping[str, Any],
        wanted: Type,
        place: str,
    ) -> Value | None:
        """Return an operation on each element before the transposition of its operands.

        So two transpositions meet, as those around the operations that take channels last.
        """
        shape, dtype = wanted
        makers = [self.maker(operand, "transpose") for operand in operands]
        orders = {made.parameters["permutation"] for made in makers if made is not None}
        if len(orders) != 1 or len(order := orders.pop()) != len(shape):
            return None
        back = tuple(int(axis) for axis in np.argsort(order))
        before = []
        for operand, made in zip(operands, makers, strict=True):
            if made is not None:
                before.append(made.operands[0])
            elif operand.rank == 0:
                before.append(operand)
            elif operand.array is not None:
                padded = (1,) * (len(shape) - operand.rank) + operand.array.shape
                before.append(self.constant(operand.array.reshape(padded).transpose(back)))
            else:
                return None
        types = [(tuple(shape[axis] for axis in back), dtype)]
        (result,) = self.add(name, before, parameters, types, place)
        return self._one("transpose", [result], {"permutation": order}, shape, place)

    def _transposed(
        self, value: Value, order: Sequence[int], shape: Shape, place: str
    ) -> Value | None:
        order = tuple(order)
        if order == tuple(range(len(order))):
            return value
        if (inner := self.maker(value, "transpose")) is not None:
            both = tuple(inner.parameters["permutation"][axis] for axis in order)
            return self._one("transpose", inner.operands, {"permutation": both}, shape, place)
        moving = [axis for axis in order if value.shape[axis] != 1]
        if moving == sorted(moving):  # only dimensions of size 1 move
            return self._one("reshape", [value], {}, shape, place)
        return None

    def _broadcast(
        self, value: Value, axes: Sequence[int], shape: Shape, place: str
    ) -> Value | None:
        if (inner := self.maker(value, "broadcast_in_dim")) is not None:
            both = tuple(axes[axis] for axis in inner.parameters["broadcast_dimensions"])
            parameters = {"broadcast_dimensions": both}
            return self._one("broadcast_in_dim", inner.operands, parameters, shape, place)
        if aligned(value, axes, len(shape)) == shape:
            return self._one("reshape", [value], {}, shape, place)
        return None

    def _narrowed(
        self, name: str, operands: Sequence[Value], shape: Shape, place: str
    ) -> list[Value]:
        """Return operands, without the broadcasts that the kernel does itself."""
        kept = list(operands)
        if not self.target.broadcasts(name, operands[-1].dtype, shape):
            return kept
        for number, value in enumerate(operands):
            small = self._before_broadcast(value)
            if small is None:
                continue
            others = [one.shape for n, one in enumerate(kept) if n != number]
            if broadcast([*others, small[1]]) == shape:
                shape_of = tuple(itertools.dropwhile(lambda size: size == 1, small[1]))
                if small[0].shape[small[0].rank - len(shape_of) :] == shape_of:
                    # Ones in front are there already, or are not needed.
                    shape_of = small[0].shape
                kept[number] = self._one("reshape", [small[0]], {}, shape_of, place)
        return kept

    def _before_broadcast(self, value: Value) -> tuple[Value, Shape] | None:
        """Return what a value repeats, and the shape that it has beside what it is repeated to."""
        if value.array is not None:
            if value not in self._repeated:
                self._repeated[value] = self.constant(_without_repetition(value.array))
            small = self._repeated[value]
            if small.shape == value.shape and value.shape[:1] != (1,):
                return None
            assert small.array is not None, "it is a constant"
            if _is_one(small):
                return self.constant(small.array.reshape(())), ()
            return small, small.shape
        made = self.maker(value, "broadcast_in_dim")
        if made is None:
            return None
        small, axes = made.operands[0], made.parameters["broadcast_dimensions"]
        inner = self._before_broadcast(small) if small.array is not None else None
        if inner is not None and inner[1] == ():
            return inner
        return small, aligned(small, axes, value.rank)

    # --- what JAX traced

    def inline(
        self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Value], place: str = ""
    ) -> tuple[Value, ...]:
        """Return what a jaxpr computes of some arguments."""
        given = [c if isinstance(c, Value) else self.constant(c) for c in constants]
        values = dict(zip(jaxpr.constvars, given, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))

        def read(atom: Any) -> Value:
            if isinstance(atom, core.Literal):
                return self.constant(np.asarray(atom.val, type_of(atom.aval)[1]))
            found: Value = values[atom]
            return found

        for equation in jaxpr.eqns:
            inner = f"{place}/{equation.source_info.name_stack}"
            results = self._equation(equation, [read(atom) for atom in equation.invars], inner)
            values.update(zip(equation.outvars, results, strict=True))
        return tuple(read(atom) for atom in jaxpr.outvars)

    def _equation(self, equation: Any, operands: Sequence[Value], place: str) -> Sequence[Value]:
        name = equation.primitive.name
        types = [type_of(variable.aval) for variable in equation.outvars]
        if name in _CALLS or name == "composite":
            kernel = self.target.composites.get(equation.params.get("name", ""))
            if name == "composite" and kernel is not None:
                return self.add(kernel, operands, {}, types, place)
            return self.inline(*_callee(equation.params), operands, place)
        parameters = parameters_of(equation)
        if name == "while":
            return self._while(parameters, operands, types, place)
        if name == "cond":
            return self._cond(parameters["branches"], operands, types, place)
        return self.add(name, operands, parameters, types, place)

    def _body(
        self, jaxpr: Any, seen: Sequence[Value], inputs: Sequence[Value], place: str
    ) -> Block:
        """Return a block inside this one, of a jaxpr that takes what it sees and its inputs."""
        inner = BlockBuilder(inputs, self)
        inner.block.outputs = inner.inline(*_opened(jaxpr), (*seen, *inputs), place)
        return inner.block

    def _while(
        self, parameters: Mapping[str, Any], operands: Sequence[Value], types: Any, place: str
    ) -> tuple[Value, ...]:
        counts = parameters["cond_nconsts"], parameters["body_nconsts"]
        of_test, of_body = operands[: counts[0]], operands[counts[0] : sum(counts)]
        blocks = {
            key: self._body(jaxpr, seen, [Value(*one) for one in types], place)
            for key, jaxpr, seen in (
                ("test", parameters["cond_jaxpr"], of_test),
                ("body", parameters["body_jaxpr"], of_body),
            )
        }
        return self.add("while", operands[sum(counts) :], blocks, types, place)

    def _cond(
        self, branches: Sequence[Any], operands: Sequence[Value], types: Any, place: str
    ) -> tuple[Value, ...]:
        index, *given = operands
        if index.array is not None or len(branches) == 1:
            number = int(np.clip(0 if index.array is None else index.array, 0, len(branches) - 1))
            return self.inline(*_opened(branches[number]), given, place)
        blocks = tuple(self._body(one, given, (), place) for one in branches)
        return self.add("cond", [index], {"branches": blocks}, types, place)


def build_block(closed: Any, target: BlockTarget | None = None) -> Block:
    """Return the block of a closed jaxpr, without what nobody reads; its inputs are all of those.

    Example:
        >>> import jax
        >>> block = build_block(jax.make_jaxpr(lambda x, y: 2 * x + 0 * y)(1.0, 2.0))
        >>> [operation.name for operation in block.operations]
        ['mul', 'mul', 'add']
    """
    inputs = [Value(*type_of(variable.aval)) for variable in closed.jaxpr.invars]
    builder = BlockBuilder(inputs, target=target)
    builder.block.outputs = builder.inline(closed.jaxpr, closed.consts, inputs)
    return without_unused(builder.block)


def aligned(value: Value, axes: Sequence[int], rank: int) -> Shape:
    """Return the shape of a value that is broadcast, with ones for the dimensions it has not."""
    shape: list[Dim] = [1] * rank
    for axis, size in zip(axes, value.shape, strict=True):
        shape[axis] = size
    return tuple(shape)


def _is_one(value: Value) -> bool:
    return all(size == 1 for size in value.shape)


def _without_repetition(array: Array) -> Array:
    """Return an array with size 1 along the dimensions in which its elements have equal bits."""
    words = np.ascontiguousarray(array).reshape(array.shape).view(f"V{array.dtype.itemsize}")
    for axis in range(array.ndim):
        first = words.take([0], axis) if words.shape[axis] else words
        if words.shape[axis] > 1 and bool((words == first).all()):
            words = first
    return np.ascontiguousarray(words).view(array.dtype)


def _repeats(array: Array) -> bool:
    """Return whether all elements have the bits of the first one."""
    words = np.ascontiguousarray(array).reshape(-1).view(f"V{array.dtype.itemsize}")
    return bool((words == words[0]).all())


def number_of(value: Value) -> Any:
    """Return the number that a constant is, or repeats; None of any other value."""
    if value.array is None or not value.array.size or not _repeats(value.array):
        return None
    return value.array.reshape(-1)[0]


def _of_numbers(name: str, operands: Sequence[Value], shape: Shape) -> Value | None:
    """Return the operand that the others leave as it is; None if there is none."""
    if name == "select_n" and len(operands) == 3:
        return _chosen(operands, shape)
    if name in _ABSORBING:
        return _absorbed(name, operands, shape)
    return _unchanged(name, operands, shape) if name in _NEUTRAL else None


def _has_blocks(parameter: Any) -> bool:
    parts = parameter if type(parameter) is tuple else (parameter,)
    return any(isinstance(part, Block) for part in parts)


def _chosen(operands: Sequence[Value], shape: Shape) -> Value | None:
    which, no, yes = operands
    number = number_of(which)
    if no is yes:
        return no if no.shape == shape else None
    if number is None or which.dtype != np.bool_:
        return None
    chosen = yes if number else no
    return chosen if chosen.shape == shape else None


def _absorbed(name: str, operands: Sequence[Value], shape: Shape) -> Value | None:
    left, right = operands
    if left.dtype != np.bool_:
        return None
    for value, other in ((left, right), (right, left)):
        number = number_of(value)
        if number is not None:
            chosen = value if bool(number) == _ABSORBING[name] else other
            return chosen if chosen.shape == shape else None
    return left if left is right else None


def _unchanged(name: str, operands: Sequence[Value], shape: Shape) -> Value | None:
    """Return the operand that a quotient, product or difference leaves as it is."""
    left, right = operands
    pairs = [(left, right), (right, left)] if name == "mul" else [(left, right)]
    for value, other in pairs:
        number = number_of(other)
        if number is not None and number == _NEUTRAL[name] and value.shape == shape:
            return None if name == "sub" and np.signbit(number) else value
    return None


def _callee(parameters: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
    return _opened(next(parameters[key] for key in _OF_A_CALL if key in parameters))


def _opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Return an open jaxpr and its constants, of one that may be either."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def _frozen(value: Any) -> Any:
    """Return what parameters are compared by."""
    if isinstance(value, Mapping):
        return tuple(sorted((key, _frozen(one)) for key, one in value.items()))
    if type(value) in (list, tuple):
        return tuple(map(_frozen, value))
    return id(value) if isinstance(value, Block) else value


def without_unused(block: Block) -> Block:
    """Return a block without the operations of which nothing is read."""
    return _live(block)[0]


def _live(block: Block) -> tuple[Block, set[Value]]:
    """Return the block, and all that it reads, of itself and of the blocks around it."""
    needed = set(block.outputs)
    kept: list[Operation] = []
    for operation in reversed(block.operations):
        if needed.isdisjoint(operation.results):
            continue
        parameters = dict(operation.parameters)
        for key, parameter in operation.parameters.items():
            if isinstance(parameter, Block):
                parameters[key], seen = _live(parameter)
                needed |= seen
            elif type(parameter) is tuple and any(isinstance(one, Block) for one in parameter):
                pairs = [_live(one) for one in parameter]
                parameters[key] = tuple(one for one, _ in pairs)
                needed.update(*(seen for _, seen in pairs))
        needed.update(operation.operands)
        kept.append(dataclasses.replace(operation, parameters=parameters))
    return Block(block.inputs, kept[::-1], block.outputs), needed
