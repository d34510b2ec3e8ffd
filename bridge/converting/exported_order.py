"""An `Exported` as the orders of a differentiable TensorFlow function.

`Exported.vjp()` makes the next order without tracing the user's function again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax import export

from bridge.chains.carrying import carried_by
from bridge.chains.orders import Runner
from bridge.chains.vjp import vjp_of
from bridge.converting.eager import to_runner
from bridge.exporting.lowering import explain_gradient
from xla_call_module.call import CallModule, Carried
from xla_call_module.checks import DisabledCheck
from xla_call_module.errors import StructureError
from xla_call_module.exported import from_exported
from xla_call_module.passes.linear_algebra import lower_linalg
from xla_call_module.passes.module_pass import run_passes

__all__ = ["ExportedOrder"]


class ExportedOrder:
    """One order of the chain that begins with an `Exported`."""

    __slots__ = (
        "_disabled_checks", "_exported", "_finds_zeros", "_is_fresh", "_name", "_portable_linalg",
        "call",
    )  # fmt: skip

    call: CallModule

    def __init__(
        self,
        exported: export.Exported,
        *,
        disabled_checks: Sequence[DisabledCheck] = (),
        portable_linalg: bool = True,
        name: str = "",
        argument_names: Sequence[str] | None = None,
        finds_zeros: bool = True,
    ) -> None:
        """Check the `Exported`; its VJP waits for need.

        Args:
            exported: this order.
            disabled_checks: what every order leaves out besides the checks of the `Exported`.
            portable_linalg: whether calls of linear algebra libraries are replaced.
            name: of order 0, for messages; by default its own.
            argument_names: of one that JAX has just made, as `from_exported` takes them.
            finds_zeros: whether it is of use to know which gradients are zeros, for which their
                modules are read.

        Raises:
            InteropError: it cannot be called from TensorFlow.
        """
        call = from_exported(
            exported,
            allow_flat_trees=True,
            disabled_checks=disabled_checks,
            carried=False,  # before TensorFlow needs it
            names=argument_names,
        )
        self.call = run_passes(call, [lower_linalg()]) if portable_linalg else call
        self._exported = exported
        self._disabled_checks = tuple(disabled_checks)
        self._portable_linalg = portable_linalg
        self._name = name or self.call.name
        self._is_fresh = argument_names is not None
        self._finds_zeros = finds_zeros

    @property
    def constants(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """None: they are in the module."""
        return {}

    def carried(self) -> Carried:
        """The `Exported` without its module."""
        return carried_by(self._exported)

    def vjp(self) -> ExportedOrder:
        """The next order.

        Raises:
            StructureError: it was serialized without one.
            LoweringError: it cannot be lowered for a platform.
            Exception: what JAX raises where it cannot differentiate.
        """
        if not self._exported.has_vjp():
            raise StructureError(
                f"{self._name} was serialized without its VJP, so it has no gradient. "
                "To do: serialize it with Exported.serialize(vjp_order=1) or more."
            )
        try:
            vjp = vjp_of(self._exported)
        except NotImplementedError as error:
            explained = explain_gradient(self.call.name, self.call.platforms, error)
            raise (explained or error) from error
        is_read = self._finds_zeros or not self._is_fresh
        return ExportedOrder(
            vjp,
            disabled_checks=self._disabled_checks,
            portable_linalg=self._portable_linalg,
            name=self._name,
            argument_names=None if is_read else ("",) * len(vjp.in_avals),
            finds_zeros=self._finds_zeros,
        )

    def runner(self) -> Runner | None:
        """What runs the call in JAX; None where only TensorFlow can."""
        return to_runner(self._exported, self.call)
