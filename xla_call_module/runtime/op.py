"""`CallModule` -> the XlaCallModule op of the imported TensorFlow, eager and in graphs."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from xla_call_module._tf import (
    device_query,
    eager_call_module,
    flags_in_force,
    foreign_platform,
    graph_operation_maker,
    is_refinement_failure,
    register_function,
)
from xla_call_module.analyses.several_devices import check_one_device
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import PLATFORM, SHAPE_ASSERTIONS, unite
from xla_call_module.errors import MissingDependencyError, ShardingError
from xla_call_module.flags import VARIABLE
from xla_call_module.node import OP, SHARDING_OP, encode_node, encode_sharding_node
from xla_call_module.platforms import platform_hint, platform_to_tensorflow
from xla_call_module.runtime.shape_guard import ShapeGuard, read_check
from xla_call_module.runtime.tensorflow_errors import ForeignPlatformError
from xla_call_module.shape_checks import ShapeCheck, open_assertions
from xla_call_module.tracebacks import warn

_GPU = "rocm" if tf.test.is_built_with_rocm() else "cuda"
# What runs on TensorFlow's kinds of device; on any other, TensorFlow decides.
_PLATFORM_OF_DEVICE = {"CPU": "cpu", "GPU": _GPU, "TPU": "tpu"}


class Op:
    """One call, ready to be run on tensors again and again.

    The attributes are prepared once, as plain lists and numbers: a TensorShape and a DType are
    taken apart at every eager call, at a tenth of its cost.
    """

    __slots__ = (
        "_admitted",
        "_asked_device",
        "_attributes",
        "_endpoint",
        "_function",
        "_read_check",
        "_shapes",
        "call",
        "disabled_checks",
    )

    def __init__(
        self,
        call: CallModule,
        *,
        read_check: Callable[[CallModule], ShapeCheck | None] = read_check,
    ) -> None:
        """Prepare a call."""
        self.call = call
        self._read_check = read_check
        self.disabled_checks = unite(call.disabled_checks, flags_in_force().disabled_checks)
        self._asked_device = device_query()
        # The devices, as `tf.device` names them, of which it is known that the call may run there.
        self._admitted: set[str | None] = set()
        self._endpoint: Callable[..., Any] | None = None
        self._function: Any = None
        self._shapes: ShapeGuard | None = None
        self._attributes: dict[str, Any] = {
            "version": call.version,
            "module": call.module,
            "Sout": [_plain_shape(spec) for spec in call.results],
            "Tout": [spec.dtype.enum for spec in call.results],
            "dim_args_spec": [],
            "platforms": [platform_to_tensorflow(name) for name in call.platforms],
            "function_list": list(call.function_list),
            "has_token_input_output": False,
            "disabled_checks": [check.name for check in call.disabled_checks],
        }
        if call.uses_shardy:
            self._attributes["use_shardy_partitioner"] = True

    def run(self, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The results in eager mode."""
        device = self._asked_device()
        if device not in self._admitted:
            self._admit(device)
        if self.call.functions:
            return self._run_as_function(operands)
        if self._endpoint is None:
            self._endpoint = eager_call_module()
        try:
            results = self._endpoint(list(operands), **self._attributes)
        except tf.errors.NotFoundError as error:
            # Device or flags were not what they seemed to be.
            if (refusal := foreign_platform(error)) is not None:
                said, platform = refusal
                raise self._refuse(f"TensorFlow says: {said}", platform) from error
            raise
        except tf.errors.InvalidArgumentError as error:
            self._refuse_shapes(operands, error)
            raise
        return list(results) if isinstance(results, (list, tuple)) else []

    def _run_as_function(self, operands: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The results of a graph, which has the functions that the module calls."""
        if self._function is None:
            shapes = [spec.static_shape for spec in self.call.results]
            self._function = tf.function(
                lambda *tensors: self.add_to_graph(tensors, shapes), autograph=False
            )
        results: list[tf.Tensor] = self._function(*operands)
        return results

    def _admit(self, device: str | None) -> None:
        """Decide once for a device whether the module may run there."""
        kind = _device_kind(device)
        platform = _PLATFORM_OF_DEVICE.get(kind)
        foreign = platform not in self.call.platforms
        if platform is not None and foreign and PLATFORM not in self.disabled_checks:
            reason = f"it would run on {device or kind}, whose platform is {platform}"
            raise self._refuse(reason, platform)
        check_one_device(self.call)
        self._admitted.add(device)

    def _warn_of_platforms(self) -> str:
        """Return the part of the node's name about platforms; empty where all devices have one."""
        kinds = {device.device_type for device in tf.config.list_logical_devices()}
        here = sorted(_PLATFORM_OF_DEVICE.get(kind, kind) for kind in kinds)
        foreign = kinds <= _PLATFORM_OF_DEVICE.keys() and not {*here} & {*self.call.platforms}
        if PLATFORM in self.disabled_checks:
            return ""
        if foreign:
            reason = f"the devices of this process are of the platform {here[0]}"
            refusal = self._refuse(reason, here[0])
            warn(f"A graph that cannot run here: {refusal}")
        return "" if {*here} <= {*self.call.platforms} else platform_hint(self.call.platforms)

    def _warn_of_devices(self) -> None:
        """TensorFlow spreads one computation over the cores of a TPU, and over nothing else."""
        kinds = {device.device_type for device in tf.config.list_logical_devices()}
        if not kinds <= {"CPU", "GPU"}:
            return
        try:
            check_one_device(self.call)
        except ShardingError as refusal:
            warn(f"A graph that cannot run here: {refusal}")

    def _refuse(self, reason: str, platform: str) -> ForeignPlatformError:
        return ForeignPlatformError(
            None,
            None,
            f"{self.call.name} was exported for {', '.join(self.call.platforms)}, and {reason}. To "
            f"do: export it again with platforms={[*self.call.platforms, platform]}; or, if all "
            f"that it computes exists on {platform}, disable the check: "
            f"disabled_checks=['platform'], or {VARIABLE}=--tf_xla_call_module_disabled_checks="
            "platform before the process first uses TensorFlow.",
        )

    def add_to_graph(
        self,
        operands: Sequence[tf.Tensor],
        result_shapes: Sequence[Sequence[int | None] | None],
        *,
        assert_shapes: bool = True,
    ) -> list[tf.Tensor]:
        """The results as tensors of the current graph."""
        hint = self._warn_of_platforms()
        self._warn_of_devices()
        _add_functions(self.call.functions)
        node = encode_node(
            self.call, name=OP, inputs=[""] * len(operands), new_node=tf.compat.v1.NodeDef
        )
        with tf.control_dependencies(self._checks(operands) if assert_shapes else []):
            graph = tf.compat.v1.get_default_graph()
            operation = graph_operation_maker()(
                graph,
                OP,
                list(map(self._show_sharding, operands, self.call.operands)),
                [tf.as_dtype(enum) for enum in self._attributes["Tout"]],
                attrs=dict(node.attr),
                name=f"{scope_name(self.call.name)}{hint}",
            )
        for tensor, shape in zip(operation.outputs, result_shapes, strict=True):
            tensor.set_shape(shape)
        return list(map(self._show_sharding, operation.outputs, self.call.results))

    def _checks(self, operands: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Return the operations that run before the call in the current graph."""
        if SHAPE_ASSERTIONS in self.disabled_checks:
            return []
        self._guard.refuse_known(operands)
        assertions = self.size_assertions(operands)
        if all(tensor.shape.is_fully_defined() for tensor in operands):
            return assertions
        with tf.control_dependencies(assertions):  # without which the others are not readable
            return [*assertions, *self._guard.before(operands, self._add_assertions)]

    @property
    def _guard(self) -> ShapeGuard:
        if self._shapes is None:
            self._shapes = ShapeGuard(self.call, self._read_check(self.call))
        return self._shapes

    def _refuse_shapes(self, operands: Sequence[tf.Tensor], error: Exception) -> None:
        """Say what TensorFlow's message does not where the shapes of arguments are wrong."""
        if is_refinement_failure(error) and SHAPE_ASSERTIONS not in self.disabled_checks:
            with contextlib.suppress(MissingDependencyError):  # TensorFlow's message stays
                self._guard.refuse([tensor.shape.as_list() for tensor in operands])

    def _show_sharding(self, tensor: tf.Tensor, spec: TensorSpec) -> tf.Tensor:
        """The same tensor of the current graph, with a node that says how it lies on devices."""
        node = encode_sharding_node(
            self.call, spec, name=SHARDING_OP, input="", new_node=tf.compat.v1.NodeDef
        )
        if node is None:
            return tensor
        shown = (
            tf.compat.v1.get_default_graph()
            .create_op(SHARDING_OP, [tensor], [tensor.dtype], attrs=dict(node.attr))
            .outputs[0]
        )
        shown.set_shape(tensor.shape)
        return shown

    def size_assertions(self, operands: Sequence[tf.Tensor]) -> list[tf.Operation]:
        """Operations of the current graph that fail where a fixed size is another."""
        if SHAPE_ASSERTIONS in self.disabled_checks:
            return []
        sizes = [static_shape(operand) for operand in operands]
        made = []
        for wanted in open_assertions(self.call, sizes):
            spec = self.call.operands[wanted.operand]
            shape = tf.shape(operands[wanted.operand])
            size = tf.constant(wanted.size)
            if wanted.axis is None:
                arrived, what = tf.size(shape), "rank"
            else:
                arrived, what = shape[wanted.axis], f"dimension {wanted.axis}"
            argument = f"{spec.path} of {self.call.name} has the shape"
            said = [argument, shape, f"expected {spec}, whose {what} is", size]
            made.append(
                tf.raw_ops.Assert(condition=tf.equal(arrived, size), data=said, summarize=64)
            )
        return made

    def _add_assertions(self, call: CallModule, operands: Sequence[tf.Tensor]) -> tf.Operation:
        """A call of the current graph that only asserts."""
        node = encode_node(
            call, name=OP, inputs=[""] * len(operands), new_node=tf.compat.v1.NodeDef
        )
        graph = tf.compat.v1.get_default_graph()
        name = f"shapes_of_{scope_name(self.call.name)}"
        return graph.create_op(OP, list(operands), [], attrs=dict(node.attr), name=name)


def _add_functions(definitions: Sequence[bytes]) -> None:
    """Make functions known to the current graph, and to those that it calls."""
    if definitions:
        graph = tf.compat.v1.GraphDef()
        for definition in definitions:
            function = graph.library.function.add()
            function.ParseFromString(definition)
            register_function(function)
        tf.graph_util.import_graph_def(graph, name="")


def _device_kind(asked: str | None) -> str:
    """The kind of device on which TensorFlow runs an eager op; empty where only it knows.

    Unless a device is asked for, and has been found, that is a GPU where there is one.
    """
    wanted = tf.DeviceSpec.from_string(asked).device_type if asked else None
    kinds = {device.device_type for device in tf.config.list_logical_devices()}
    if wanted in kinds:
        return str(wanted)
    if not kinds <= {"CPU", "GPU"}:
        return ""
    return "GPU" if "GPU" in kinds else "CPU"


def static_shape(tensor: tf.Tensor) -> tuple[int | None, ...] | None:
    """Return the static shape of a tensor: None for an unknown dimension, or an unknown rank."""
    return None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _plain_shape(spec: TensorSpec) -> list[int] | None:
    if spec.static_shape is None:
        return None
    return [-1 if size is None else size for size in spec.static_shape]


def scope_name(name: str) -> str:
    """Return a name that TensorFlow allows: letters, digits and `_.-`, a letter or digit first."""
    return re.sub(r"[^A-Za-z0-9_.-]", "", name).lstrip("_.-") or OP
