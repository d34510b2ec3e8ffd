"""Sizes of dimensions: whole numbers, or polynomials of dimension variables and other sizes.

`jax.export` calls its own symbolic dimensions; here are those of every tensor on the way as well,
with an arithmetic that is exact and knows few simplifications.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symbol:
    """A dimension variable of the exported function; at least 1."""

    name: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A dimension of a tensor that nothing else is known of."""

    name: str
    axis: int


@dataclass(frozen=True, slots=True)
class Element:
    """A size that the program computes in some other way.

    Attributes:
        name: the name of a vector of integers in the graph.
    """

    name: str
    index: int


@dataclass(frozen=True, slots=True)
class Iteration:
    """The number of iterations that a loop has done.

    Attributes:
        limit: the number of all iterations; None where it is dynamic.
    """

    name: str
    limit: Dim | None


@dataclass(frozen=True, slots=True)
class Function:
    """`floordiv`, `mod`, `max` or `min` of two sizes that could not be computed."""

    name: str
    left: Dim
    right: Dim


Atom = Symbol | Measured | Element | Iteration | Function
_Monomial = tuple[Atom, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A polynomial with whole coefficients that is no whole number.

    Attributes:
        terms: products of atoms in one order with their coefficients, none of which is 0.
    """

    terms: tuple[tuple[_Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        """Return the sum."""
        return _sum(_terms(self), _terms(other))

    __radd__ = __add__

    def __neg__(self) -> Dim:
        """Return the negative."""
        return self * -1

    def __sub__(self, other: Dim) -> Dim:
        """Return the difference."""
        return self + other * -1

    def __rsub__(self, other: int) -> Dim:
        """Return the difference from a number."""
        return -self + other

    def __mul__(self, other: Dim) -> Dim:
        """Return the product."""
        products: Counter[_Monomial] = Counter()
        for left, a in _terms(self).items():
            for right, b in _terms(other).items():
                products[tuple(sorted((*left, *right), key=repr))] += a * b
        return _sum(products)

    __rmul__ = __mul__

    def __str__(self) -> str:
        """Return a text as `jax.export` has it, such as `2*b + floordiv(t, 3)`."""
        return " + ".join(
            "*".join([*([str(n)] if n != 1 or not atoms else []), *map(_atom_text, atoms)])
            for atoms, n in self.terms
        )


Dim = int | Size
Shape = tuple[Dim, ...]


def _atom_text(atom: Atom) -> str:
    match atom:
        case Symbol(name):
            return name
        case Measured(name, axis):
            return f"{name}.shape[{axis}]"
        case Element(name, index):
            return f"{name}[{index}]"
        case Iteration(name, _):
            return name
        case Function(name, left, right):
            return f"{name}({left}, {right})"


def _terms(dim: Dim) -> Mapping[_Monomial, int]:
    return dict(dim.terms) if isinstance(dim, Size) else {(): dim}


def _sum(*polynomials: Mapping[_Monomial, int]) -> Dim:
    total: Counter[_Monomial] = Counter()
    for polynomial in polynomials:
        for monomial, coefficient in polynomial.items():
            total[monomial] += coefficient
    terms = {monomial: n for monomial, n in total.items() if n}
    if terms.keys() <= {()}:
        return terms.get((), 0)
    return Size(tuple(sorted(terms.items(), key=lambda term: (-len(term[0]), repr(term[0])))))


def numbers_of(shape: Iterable[Dim]) -> tuple[int, ...]:
    """Return a shape of which all sizes are numbers."""
    numbers = tuple(dim for dim in shape if isinstance(dim, int))
    assert len(numbers) == len(tuple(shape)), "the sizes are static"
    return numbers


def symbol(name: str) -> Size:
    """Return the size that is a dimension variable."""
    return of_atom(Symbol(name))


def of_atom(atom: Atom) -> Size:
    """Return the size that is one atom."""
    return Size((((atom,), 1),))


def is_static(shape: Iterable[Dim]) -> bool:
    """Return whether all sizes are numbers."""
    return all(isinstance(dim, int) for dim in shape)


def product(dims: Iterable[Dim]) -> Dim:
    """Return the product of all; 1 of none.

    >>> str(product([2, symbol("b"), 3]))
    '6*b'
    """
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


def floordiv(left: Dim, right: Dim) -> Dim:
    """Return the quotient, rounded down.

    >>> floordiv(7, 2), str(floordiv(6 * symbol("b") * symbol("t"), 2 * symbol("b")))
    (3, '3*t')
    """
    if isinstance(left, int) and isinstance(right, int):
        return left // right if right else 0
    exact = _exact_quotient(left, right)
    return of_atom(Function("floordiv", left, right)) if exact is None else exact


def mod(left: Dim, right: Dim) -> Dim:
    """Return the remainder of the quotient that is rounded down."""
    if isinstance(left, int) and isinstance(right, int):
        return left % right if right else left
    if _exact_quotient(left, right) is not None:
        return 0
    return of_atom(Function("mod", left, right))


def _exact_quotient(left: Dim, right: Dim) -> Dim | None:
    """Return the quotient by a divisor of one term that divides every term."""
    divisor = list(_terms(right).items())
    if len(divisor) != 1 or divisor[0][1] == 0:
        return 1 if left == right else None
    atoms, coefficient = divisor[0]
    quotient = {}
    for monomial, n in _terms(left).items():
        rest = Counter(monomial)
        rest.subtract(atoms)
        if n % coefficient or any(count < 0 for count in rest.values()):
            return None
        quotient[tuple(sorted(rest.elements(), key=repr))] = n // coefficient
    return _sum(quotient)


def maximum(left: Dim, right: Dim) -> Dim:
    """Return the larger one."""
    return _extreme("max", left, right, operator.ge)


def minimum(left: Dim, right: Dim) -> Dim:
    """Return the smaller one."""
    return _extreme("min", left, right, operator.le)


def _extreme(name: str, left: Dim, right: Dim, is_better: Callable[[int, int], bool]) -> Dim:
    low, high = lower_bound(left - right), lower_bound(right - left)
    if low is not None and low >= 0:  # left is the larger one
        return left if is_better(1, 0) else right
    if high is not None and high >= 0:
        return right if is_better(1, 0) else left
    return of_atom(Function(name, left, right))


def lower_bound(dim: Dim) -> int | None:
    """Return a lower bound of a size; None where none is known.

    >>> lower_bound(2 * symbol("b") - 1), lower_bound(5 - symbol("b"))
    (1, None)
    """
    total = 0
    for monomial, coefficient in _terms(_at_last_round(dim)).items():
        least = 1
        for atom in monomial:
            bound = _least_of_atom(atom)
            if bound is None or bound < 0:
                return None
            least *= bound
        if coefficient < 0 and monomial:
            return None
        total += coefficient * least
    return total


def _at_last_round(dim: Dim) -> Dim:
    """Return the size with the number of the last round for one that is subtracted."""
    for atoms, coefficient in _terms(dim).items():
        match atoms:
            case (Iteration(_, limit),) if coefficient < 0 and limit is not None:
                return _at_last_round(
                    dim - coefficient * of_atom(atoms[0]) + (limit - 1) * coefficient
                )
    return dim


def _least_of_atom(atom: Atom) -> int | None:
    match atom:
        case Symbol():
            return 1
        case Measured() | Element() | Iteration():
            return 0
        case Function("max", left, right):
            bounds = [b for b in map(lower_bound, (left, right)) if b is not None]
            return max(bounds, default=None)
        case Function("min", left, right):
            both = [b for b in map(lower_bound, (left, right)) if b is not None]
            return min(both) if len(both) == 2 else None
        case Function(_, left, right):
            above, below = lower_bound(left), lower_bound(right)
            return 0 if (above or 0) >= 0 and above is not None and (below or 0) > 0 else None


def divide(left: Dim, right: Dim) -> Dim | None:
    """Return the quotient, rounded towards zero; None where a size may be negative.

    That is down for sizes that are known not to be.
    """
    return floordiv(left, right) if _are_natural(left, right) else None


def remainder(left: Dim, right: Dim) -> Dim | None:
    """Return the remainder of `divide`; None where a size may be negative."""
    return mod(left, right) if _are_natural(left, right) else None


def _are_natural(left: Dim, right: Dim) -> bool:
    least, divisor = lower_bound(left), lower_bound(right)
    return least is not None and least >= 0 and divisor is not None and divisor > 0


# The operations of StableHLO on sizes, each None where the result is not known for all sizes.
ARITHMETIC: Mapping[str, Callable[..., Dim | None]] = {
    "add": operator.add, "divide": divide, "maximum": maximum, "minimum": minimum,
    "multiply": operator.mul, "remainder": remainder, "subtract": operator.sub,
}  # fmt: skip


def compare(direction: str, left: Dim, right: Dim) -> bool | None:
    """Return whether a comparison of two sizes holds; None where it depends on the variables."""
    if direction in ("EQ", "NE"):
        equal = _equal(left, right)
        return equal if equal is None else equal == (direction == "EQ")
    if direction in ("LT", "LE"):
        left, right, direction = right, left, {"LT": "GT", "LE": "GE"}[direction]
    margin = 1 if direction == "GT" else 0
    above = lower_bound(left - right)
    below = lower_bound(right - left)
    if above is not None and above >= margin:
        return True
    return False if below is not None and below >= 1 - margin else None


def _equal(left: Dim, right: Dim) -> bool | None:
    if left == right:
        return True
    apart = [lower_bound(left - right), lower_bound(right - left)]
    return False if any(bound is not None and bound > 0 for bound in apart) else None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape of an elementwise operation of tensors that NumPy would broadcast.

    Of two sizes that a program takes to be equal, the one that is known better is taken.
    """
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(_joined(dims) for dims in zip(*padded, strict=True))


def _joined(dims: Sequence[Dim]) -> Dim:
    others = [dim for dim in dims if dim != 1]
    return min(others, key=_vagueness, default=1)


def _vagueness(dim: Dim) -> int:
    if isinstance(dim, int):
        return 0
    atoms = list(atoms_of(dim))
    return (
        3
        if any(isinstance(atom, Measured | Element | Iteration) for atom in atoms)
        else min(len(atoms), 2)
    )


def atoms_of(dim: Dim) -> Iterable[Atom]:
    """Yield all atoms of a size, those inside functions included."""
    if isinstance(dim, Size):
        for monomial, _ in dim.terms:
            for atom in monomial:
                yield atom
                if isinstance(atom, Function):
                    yield from atoms_of(atom.left)
                    yield from atoms_of(atom.right)
