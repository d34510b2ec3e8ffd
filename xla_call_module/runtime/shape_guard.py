"""Assertions of a call about its dimension variables: sizes that follow from others, constraints.

The module of the call asserts them, too; but where wrong sizes make an operation in it impossible,
TensorFlow's message is about that operation. A graph may be saved, and run where TF_XLA_FLAGS
disable the check: so what refuses sizes is the call of a module here too, and no `Assert`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from xla_call_module.call import CallModule
from xla_call_module.dimensions import linear_form
from xla_call_module.errors import MissingDependencyError, StructureError
from xla_call_module.passes.asserting import to_shape_check
from xla_call_module.runtime.tensorflow_errors import ShapeMismatchError
from xla_call_module.shape_checks import (
    OperandSize,
    ScalarConstant,
    ScalarOperation,
    ShapeCheck,
    Step,
    argument_names,
)
from xla_call_module.stablehlo.refining import refine_results

_INPUTS = {"SelectV2": ("condition", "t", "e")}
# What the comparison of sizes with linear expressions consists of.
_LINEAR = frozenset({"AddV2", "Cast", "Equal", "LogicalAnd", "Mul", "Neg", "Sub"})


def read_check(call: CallModule) -> ShapeCheck | None:
    """Return what a call asserts of sizes, of its module; None where that says as much itself."""
    return to_shape_check(call, argument_names(call))


class ShapeGuard:
    """The assertions of a call, for shapes that arrive."""

    __slots__ = ("_call", "_check")

    def __init__(self, call: CallModule, check: ShapeCheck | None) -> None:
        """Take over a call and what it asserts."""
        self._call = call
        self._check = check

    def refuse(self, shapes: Sequence[Sequence[int]]) -> None:
        """Refuse shapes by what is asserted of them."""
        if self._check is None:
            return
        chosen = [shapes[position] for position in self._positions(self._check)]
        try:
            refine_results(self._check.call, chosen, check_assertions=True)
        except StructureError as error:
            raise ShapeMismatchError(None, None, str(error)) from None

    def before(
        self,
        operands: Sequence[tf.Tensor],
        run: Callable[[CallModule, Sequence[tf.Tensor]], tf.Operation],
    ) -> list[tf.Operation]:
        """Operations of the current graph that fail where the shapes that arrive are wrong."""
        check = self._check
        if check is None:
            return []
        taken = [operands[position] for position in self._positions(check)]

        def asserting() -> tf.Tensor:
            with tf.control_dependencies([run(check.call, taken)]):
                return tf.constant(value=True)

        holds = _values(check.steps, taken)[-1]
        fits = tf.cond(holds, lambda: tf.constant(value=True), asserting, name="shapes_fit")
        return [fits.op]

    def refuse_known(self, operands: Sequence[tf.Tensor]) -> None:
        """`refuse`, where the shapes of symbolic tensors are known and not compared elsewhere.

        Without jaxlib it is left to the module, which asserts as much when it runs.
        """
        check = self._check
        if check is None or self._is_linear(check):
            return
        if all(tensor.shape.is_fully_defined() for tensor in operands):
            with contextlib.suppress(MissingDependencyError):
                self.refuse([tensor.shape.as_list() for tensor in operands])

    def _positions(self, check: ShapeCheck) -> list[int]:
        return [self._call.kept.index(index) for index in check.kept]

    def _is_linear(self, check: ShapeCheck) -> bool:
        used = {step.op for step in check.steps if isinstance(step, ScalarOperation)}
        dims = (dim for spec in self._call.operands for dim in spec.shape or ())
        return used <= _LINEAR and all(
            linear_form(dim) is not None for dim in dims if isinstance(dim, str)
        )


def _values(steps: Sequence[Step], operands: Sequence[tf.Tensor]) -> list[Any]:
    """The scalars in the current graph."""
    shapes = [tf.shape(tensor) for tensor in operands]
    values: list[Any] = []
    for step in steps:
        match step:
            case OperandSize(operand, axis):
                values.append(shapes[operand][axis])
            case ScalarConstant(value, dtype):
                values.append(tf.constant(value, tf.as_dtype(dtype.enum)))
            case ScalarOperation(op, inputs, _, dtype):
                names = _INPUTS.get(op, ("x", "y"))[: len(inputs)]
                given = {n: values[i] for n, i in zip(names, inputs, strict=True)}
                options = {"DstT": tf.as_dtype(dtype.enum)} if op == "Cast" else {}
                values.append(getattr(tf.raw_ops, op)(**given, **options))
    return values
