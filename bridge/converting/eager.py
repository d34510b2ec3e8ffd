"""Eager calls that JAX runs itself, in this process and on TensorFlow's memory.

On the CPU a call of a small function takes JAX less than half of the time that it takes
TensorFlow's op. The arguments are read where they lie, and the results are handed over by DLPack;
graphs and files hold the op as ever. The module is the same one, so the numbers are those that
the op computes, up to what two releases of XLA round differently.

Memory is safe. An argument that JAX reads is kept by the view of it, and TensorFlow writes to the
memory of a variable only while nothing else has it. JAX sees the module as one opaque operation,
so what it returns is never an argument nor one array twice, and belongs to the tensor alone.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export, tree_util
from jax.extend.core import Primitive
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import func, stablehlo
from jax.interpreters import mlir

from bridge.core._jax import cut_vjp, dlpack_exporter, transformation_query
from bridge.core.narrowing import is_narrowed
from xla_call_module._jax import dense_elements
from xla_call_module._tf import device_query, flags_in_force, recording_query
from xla_call_module.call import CallModule
from xla_call_module.checks import SHAPE_ASSERTIONS
from xla_call_module.dtypes import Array
from xla_call_module.errors import VersionError
from xla_call_module.exported import with_flat_trees
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import find_main, parse_module


@dataclass(frozen=True, slots=True, weakref_slot=True)  # JAX refers to parameters weakly
class ModuleCall:
    """A module of fixed shapes for one device, as one operation of a JAX program.

    `jax.export.Exported.call` is that, too. It also has gradients and takes other shapes, for which
    it traces more, and where a module was lowered for several platforms JAX looks for symbolic
    shapes in all of the program: more than a tenth of what compiling a small function takes.

    Attributes:
        platform_index: the index of the platform among those of the module; None where the module
            takes no platform index.
    """

    module: bytes
    platform_index: int | None
    results: tuple[jax.ShapeDtypeStruct, ...]

    def __call__(self, *operands: Any) -> list[Any]:
        """Return the results; the operands come in the order of the module."""
        results: list[Any] = _CALL.bind(*operands, call=self)
        return results


def to_module_call(call: CallModule, platform: str) -> ModuleCall | None:
    """Return the call on a platform; None where shapes are symbolic or there is a mesh."""
    shapes = [spec.shape for spec in (*call.args, *call.results)]
    if not all(shape is not None and all(isinstance(d, int) for d in shape) for shape in shapes):
        return None
    if mentions(call.module, [b"mesh"]):  # the symbol of a mesh
        return None
    results: Any = ((spec.shape, spec.dtype.numpy) for spec in call.results)
    return ModuleCall(
        call.module,
        call.platforms.index(platform) if call.has_platform_index else None,
        tuple(jax.ShapeDtypeStruct(*result) for result in results),
    )


def _results_of(*_: Any, call: ModuleCall) -> Sequence[Any]:
    return [jax.core.ShapedArray(result.shape, result.dtype) for result in call.results]


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, call: ModuleCall) -> Sequence[Any]:
    into: Any = ctx.module_context
    with into.module.context:
        module = parse_module(call.module)
    type_ = find_main(module).type
    name = mlir.merge_mlir_modules(into.module, "exported", module, dst_symtab=into.symbol_table)
    given = list(operands)
    if call.platform_index is not None:
        int32 = ir.IntegerType.get_signless(32)
        index = dense_elements(np.asarray(call.platform_index, np.int32), int32)
        given.insert(0, stablehlo.ConstantOp(index).result)
    return list(func.CallOp(type_.results, ir.FlatSymbolRefAttr.get(name), given).results)


def _define() -> Primitive:
    """Return the primitive, with the rules that JAX needs to compile it."""
    primitive = Primitive("stablehlo_module")
    primitive.multiple_results = True
    primitive.def_abstract_eval(_results_of)
    mlir.register_lowering(primitive, _lower)
    return primitive


_CALL = _define()


# A function that runs a call in JAX on views of its arguments, and returns TensorFlow's tensors.
Runner = Callable[[Sequence[Array]], list[Any]]

# The arguments of a call as numpy arrays of the same memory, and what two calls share that need the
# same module.
Views = tuple[list[Array], list[Hashable]]

# What both sides have in DLPack, but for what JAX has only with x64.
_INTEGERS = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32")
_DTYPES = (*_INTEGERS, "float16", "bfloat16", "float32", "complex64")


class EagerCalls:
    """The state that decides which calls JAX may run itself."""

    __slots__ = ("_asked_device", "_is_eager", "_is_free", "_may_record", "_tensor")

    def __init__(self) -> None:
        """Look up the queries that each call makes."""
        self._asked_device = device_query()
        self._may_record = recording_query()
        self._is_eager, self._is_free = tf.executing_eagerly, transformation_query()
        self._tensor = _eager_tensor_class()

    def view(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Views | None:
        """Return views of the arguments where JAX may run the call; otherwise None.

        It may not where an argument is neither a tensor nor a variable, a graph is built, a tape
        watches, JAX is tracing, or another device than the CPU is asked for.
        """
        if not self._is_eager() or self._may_record() or not self._is_free():
            return None
        if (device := self._asked_device()) and not device.endswith("CPU:0"):
            return None
        try:
            leaves, tree = tree_util.tree_flatten((args, kwargs))
        except ValueError:  # refused where tensors are made of them
            return None
        arrays: list[Array] = []
        key: list[Hashable] = [tree]
        for leaf in leaves:
            if type(leaf) is not self._tensor:
                if not isinstance(leaf, tf.Variable):
                    return None
                leaf = leaf.read_value()
            try:
                array = np.asarray(leaf)
            except (TypeError, ValueError, tf.errors.OpError):  # a resource, or bfloat16[]
                return None
            if array.dtype.itemsize > 4 and is_narrowed(array.dtype):
                return None  # so that its values are checked
            arrays.append(array)
            key += array.shape, array.dtype
        return arrays, key


@functools.cache
def _eager_tensor_class() -> type:
    with tf.init_scope():
        return type(tf.constant(0))


def to_runner(exported: export.Exported, call: CallModule) -> Runner | None:
    """Return a function that runs a call in JAX; None where only TensorFlow can."""
    if not _is_supported(call) or flags_in_force().given:
        return None
    kinds = [device.device_type for device in tf.config.list_logical_devices()]
    if kinds != ["CPU"]:
        return None
    try:
        device = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was told to run elsewhere
        return None
    try:
        run = _compiled(_Computation(exported, call), device)
    except VersionError:  # the gate: the user's function would be kept
        return None
    to_dlpack, from_dlpack = dlpack_exporter(), tf.experimental.dlpack.from_dlpack
    return lambda arrays: [from_dlpack(to_dlpack(result)) for result in run(*arrays)]


class _Computation:
    """The compiled part of a call, equal to others with the same module."""

    def __init__(self, exported: export.Exported, call: CallModule) -> None:
        """Compile nothing yet."""
        self._call = to_module_call(call, "cpu")
        self._key = (call.module, call.kept, str(exported.in_avals), str(exported.out_avals))
        self._exported = cut_vjp(exported, 0)  # which would keep the user's function

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Computation) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def to_function(self) -> Callable[..., Sequence[jax.Array]]:
        """Return the function of the flat arguments, whole and opaque to JAX."""
        module, kept, *_ = self._key
        if (call := self._call) is not None:
            return lambda *args: call(*(args[index] for index in kept))
        exported = self._exported
        flat = dataclasses.replace(
            with_flat_trees(exported), mlir_module_serialized=module, module_kept_var_idx=kept
        )
        return flat.call


@functools.lru_cache(maxsize=256)
def _compiled(computation: _Computation, device: jax.Device) -> Any:
    """Return the compiled module; a function that is converted twice is compiled once."""
    here = jax.sharding.SingleDeviceSharding(device)
    return jax.jit(computation.to_function(), in_shardings=here, out_shardings=here)


def _is_supported(call: CallModule) -> bool:
    """Return whether JAX runs a call like TensorFlow, with the same checks in force."""
    return (
        "cpu" in call.platforms
        and call.nr_devices == 1
        and not call.function_list
        and SHAPE_ASSERTIONS not in call.disabled_checks
        and all(
            spec.dtype.name in _DTYPES and not spec.element for spec in (*call.args, *call.results)
        )
    )
