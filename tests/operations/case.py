"""One case of the table: a function of JAX, the arrays that it takes, and the dtypes it has."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.operations.operands import Operand

FLOATS = ("float32", "float16", "bfloat16", "float64")
SIGNED = ("int32", "int8", "int16", "int64")
INTEGERS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, "bool")

# What is made of a case. `static` alone runs of every dtype that an operand may have, the others of
# the first one.
FORMS = ("static", "one row", "empty", "symbolic", "vmap", "gradient", "second gradient")
# Those that targets have which are given what JAX has transformed: another `vmap` or another order
# has no operations that the other cells have not, while lifting has rules for each.
FORMS_OF_FILES = tuple(form for form in FORMS if form not in ("vmap", "second gradient"))
# The functions that only a newer JAX has, which have no cases.
UNKNOWN: list[str] = []


# The names of the cases that took long, by `python -m tests.operations --alone --times`, such as
# linear algebra, series and random numbers. The quick part has some of each kind.
LONG = Path(__file__).with_name("long.txt")


@functools.cache
def _names_of_long() -> frozenset[str]:
    return frozenset(LONG.read_text().splitlines())


@dataclass(frozen=True, slots=True)
class Case:
    """A function, and what it is called with.

    Attributes:
        name: the public name of the function, with what is particular of the call in parentheses.
        subject: the public name alone.
        function: of one array for each operand; returns a pytree of arrays.
        operands: the arrays.
        dtypes: those that operands without a dtype have in turn; the first one is the quick one.
        elementwise: whether each element of a result is of those at its place in the operands, so
            that it runs on all combinations of edges, and is compared for itself alone. Otherwise
            results are compared relative to their largest element.
        loose: by how much the allowed difference is multiplied.
        without: the forms that there are not, since JAX has none.
    """

    name: str
    subject: str
    function: Callable[..., Any]
    operands: tuple[Operand, ...]
    dtypes: tuple[str, ...] = FLOATS
    elementwise: bool = False
    loose: float = 1.0
    without: tuple[str, ...] = ()

    @property
    def long(self) -> bool:
        """Whether it takes long to convert, so that the quick part leaves it out."""
        return self.name in _names_of_long()

    def has(self, form: str, dtype: str) -> bool:
        """Return whether there is such a form of such a dtype."""
        if dtype not in self.dtypes or form in self.without:
            return False
        is_first = dtype == self.dtypes[0]
        if form == "static":
            return is_first or any(operand.dtype is None for operand in self.operands)
        if not is_first or not self.operands:
            return False
        if form in ("one row", "empty", "symbolic"):
            return self.elementwise or any(operand.rows for operand in self.operands)
        is_float = dtype.startswith(("float", "bfloat", "complex"))
        return form == "vmap" or any(
            is_float if operand.dtype is None else operand.dtype.startswith("float")
            for operand in self.operands
        )


@dataclass(frozen=True)
class Lines:
    """What some lines of a table have in common."""

    module: str
    dtypes: tuple[str, ...] = FLOATS
    elementwise: bool = False
    loose: float = 1.0
    without: tuple[str, ...] = field(default=())

    def __call__(
        self,
        names: str,
        *operands: Operand,
        by: Callable[..., Any] | None = None,
        note: str = "",
        **keywords: Any,
    ) -> Iterator[Case]:
        """Yield a case for each of some functions that this JAX has.

        Args:
            names: of the functions, with spaces between.
            operands: what each is called with.
            by: calls the function, its first argument, with the arrays.
            note: what is particular, for the name of the case.
            keywords: further arguments of the functions.
        """
        said = note or ", ".join(f"{name}={value}" for name, value in keywords.items())
        for name in names.split():
            subject = f"{self.module}.{name}"
            function = public_function(subject)
            if function is None:
                UNKNOWN.append(subject)
                continue
            called = functools.partial(function, **keywords)
            function = called if by is None else functools.partial(by, called)
            yield Case(
                f"{subject}({said})" if said else subject, subject, function, operands,
                self.dtypes, self.elementwise, self.loose, self.without,
            )  # fmt: skip


def public_function(name: str) -> Any:
    """Return what has a public name; None where this JAX has not."""
    module, _, last = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), last, None)
    except ModuleNotFoundError:
        return getattr(public_function(module), last, None)
