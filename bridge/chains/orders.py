"""`Order`: one order of a differentiable function, and where the next one comes from.

The option `gradient_order` says how many of them there are after the function itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from bridge.core.operations_option import OperationsOption, parse_operations
from xla_call_module.call import CallModule
from xla_call_module.checks import DisabledCheck, parse_checks
from xla_call_module.dtypes import Array
from xla_call_module.errors import ArgumentError, InteropError, StructureError
from xla_call_module.linalg.linalg_option import LinalgOption, parse_linalg
from xla_call_module.passes.constants import HOISTED_FROM, check_hoisting
from xla_call_module.passes.module_pass import UnparsedCall
from xla_call_module.passes.pipeline import Artifact, Target
from xla_call_module.shape_checks import ShapeCheck
from xla_call_module.versions import Release

if TYPE_CHECKING:
    from jax import export

    from xla_call_module.exported import Check


# What is raised where a function has no derivative: by JAX, by its rules, and by this package.
NOT_DIFFERENTIABLE = (InteropError, ValueError, NotImplementedError, TypeError, LookupError)


def check_order(order: object, *, least: int = 0, cure: str = "") -> None:
    """Refuse a `gradient_order` that is no number of orders."""
    said = f"gradient_order is {order!r}; expected a whole number from {least} on."
    if not isinstance(order, int) or isinstance(order, bool):
        raise ArgumentError(said)
    if order < least:
        raise StructureError(f"{said} To do: {cure}." if cure else said)


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """The options of the passes over a chain.

    Attributes:
        disabled_checks: the checks that every order leaves out besides those of its `Exported`.
        portable_linalg: whether calls of linear algebra libraries are replaced.
        residuals: whether the function hands values on to its first gradient, which otherwise
            computes them again.
        hoist_constants: from how many bytes on a constant is taken out of the modules; None for
            never.
        plain_operations: whether the orders run as TensorFlow's own operations, without XLA.
        for_converters: whether these are to be read by converters.
        exact: whether they have NaN, signs of zeros and integers divided by 0 as JAX.
    """

    disabled_checks: tuple[DisabledCheck, ...] = ()
    portable_linalg: bool = True
    residuals: bool = False
    hoist_constants: int | None = HOISTED_FROM
    plain_operations: bool = False
    for_converters: bool = False
    exact: bool = True

    def __post_init__(self) -> None:
        """Refuse a size that no constant can have."""
        check_hoisting(self.hoist_constants)

    @classmethod
    def parse(
        cls,
        *,
        disabled_checks: Sequence[Check],
        linalg: LinalgOption,
        residuals: bool,
        hoist_constants: int | None,
        operations: OperationsOption,
        for_converters: bool = False,
        exact: bool = True,
    ) -> ChainOptions:
        """Return the options that the verbs take under the same names.

        Raises:
            StructureError: one of them is none of its kind.
        """
        return cls(
            parse_checks(disabled_checks),
            parse_linalg(linalg),
            residuals,
            hoist_constants,
            parse_operations(operations, for_converters=for_converters, exact=exact),
            for_converters,
            exact,
        )

    def target(self, tensorflow: Release | None, artifact: Artifact) -> Target:
        """Return what the pipeline makes each order for."""
        return Target(
            tensorflow,
            artifact,
            portable_linalg=self.portable_linalg,
            hoist_from=self.hoist_constants,
        )


class Order(Protocol):
    """The function itself, or the VJP of the order below.

    Attributes:
        call: the call of this order; its arguments are those of the order below and its
            cotangents.
        constants: the values of what the calls of all orders have hoisted, by their keys.
        exported: the `Exported` that the call was made of; None where a file had the call.
        shape_check: what the call asserts of sizes beside its module, where it is known to run as
            it stands.
    """

    @property
    def call(self) -> CallModule:
        """See above."""

    @property
    def constants(self) -> Mapping[str, Array]:
        """See above."""

    @property
    def exported(self) -> export.Exported | None:
        """See above."""

    @property
    def shape_check(self) -> ShapeCheck | None:
        """See above."""

    def whole(self) -> CallModule | UnparsedCall:
        """Return the call, parsed or not, with all that its node says of itself."""

    def runs_on(self, release: Release) -> bool:
        """Return whether a release of TensorFlow is known to run the call as it stands."""

    def vjp(self) -> Order:
        """Return the next order."""


class WrittenOrder:
    """One order of a chain that is there as a whole, as a file has it. It needs no JAX.

    Where the imported TensorFlow runs it as it stands, it needs no jaxlib, either.
    """

    __slots__ = ("_chain", "_check", "_order", "_since", "constants", "exported")

    constants: Mapping[str, Array]
    exported: None

    def __init__(
        self,
        chain: Sequence[CallModule],
        constants: Mapping[str, Array],
        *,
        since: Sequence[tuple[int, int] | None] = (),
        shape_check: ShapeCheck | None = None,
        order: int = 0,
    ) -> None:
        """Take over a chain."""
        self._chain = chain
        self._since = since
        self._check = shape_check
        self._order = order
        self.constants = constants
        self.exported = None

    @property
    def call(self) -> CallModule:
        """The call of this order."""
        return self._chain[self._order]

    def whole(self) -> CallModule:
        """Return the call, which has all that the file says of it."""
        return self.call

    @property
    def shape_check(self) -> ShapeCheck | None:
        """The sizes that it asserts; None for a VJP, whose function has run with the same."""
        return None if self._order else self._check

    def runs_on(self, release: Release) -> bool:
        """Return whether a release of TensorFlow is known to run the call as it stands."""
        since = self._since[self._order] if self._since else None
        return since is not None and since <= release.tensorflow

    def vjp(self) -> WrittenOrder:
        """Return the next order."""
        if self._order + 1 == len(self._chain):
            raise StructureError(
                f"{self._chain[0].name} was written with gradients up to order {self._order}. To "
                f"do: make it with gradient_order={self._order + 1} or more (forward mode needs "
                "one more than reverse mode)."
            )
        return WrittenOrder(
            self._chain,
            self.constants,
            since=self._since,
            shape_check=self._check,
            order=self._order + 1,
        )
