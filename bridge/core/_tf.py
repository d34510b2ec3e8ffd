"""Private names of TensorFlow that this package uses, each behind a named gate."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from xla_call_module.dtypes import Array
from xla_call_module.errors import private_name


def function_inliner() -> Callable[[Any], tuple[Any, dict[str, str]]] | None:
    """Return what makes a graph of a function's definition, with the names of its tensors there.

    Arguments become placeholders. Outputs have names in functions and numbers in graphs, and only
    tensorflow/python/framework/function_def_to_graph.py knows both. Without the gate, which is
    None then, XLA refuses the gradients of loops over lists. It can go when the gradient of a call
    of a function compiles wherever that of its operations does.
    """
    try:
        from tensorflow.python.framework.function_def_to_graph import function_def_to_graph_def
    except ImportError:
        return None
    return function_def_to_graph_def  # type: ignore[no-any-return]


def eager_mode() -> AbstractContextManager[None]:
    """Return a context in which TensorFlow runs eagerly, wherever it is entered, and tapes watch.

    `tf.init_scope` would stop the tapes, too. Keras takes it from `tf.__internal__` as well, which
    is no public name. The gate can go when there is one.
    """
    with private_name("call_tf", "tensorflow"):
        return tf.__internal__.eager_context.eager_mode()  # type: ignore[no-any-return]


def composite_tensor_classes() -> tuple[type, ...]:
    """Return the classes of tensors that are made of several, such as sparse ones.

    Their base class is public in `tf.__internal__` only, for Keras. Without the gate they are those
    that have public names themselves. It can go when their base class has one.
    """
    try:
        return (tf.__internal__.CompositeTensor,)
    except AttributeError:
        return (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)


def disable_xla() -> None:
    """Let TensorFlow compile nothing by XLA from now on, in the whole process.

    A server that is started without `--xla_cpu_compilation_enabled` calls the same function
    (main in tensorflow_serving/model_servers/main.cc), which has a name in C++ alone
    (tensorflow/compiler/jit/flags.h). The gate can go when Python has one.
    """
    with private_name("jax-tf-bridge serve without --xla", "tensorflow"):
        folder = Path(tf.sysconfig.get_lib())
        libraries = [file for file in folder.glob("libtensorflow_cc.*") if ".2" in file.name]
        if not libraries:
            raise ImportError(f"no libtensorflow_cc in {folder}")
        ctypes.CDLL(str(libraries[0]))._ZN10tensorflow21DisableXlaCompilationEv()


def annotate_sharding(tensor: tf.Tensor, tile_assignment: Array | None) -> tf.Tensor:
    """Return the tensor with an XlaSharding op that says how it is split; None for not at all.

    The op has no public name (tensorflow/compiler/tf2xla/ops/xla_ops.cc), and its attribute is an
    `xla.OpSharding` that only `xla_sharding` makes
    (tensorflow/python/compiler/xla/experimental/xla_sharding.py). The gate can go when
    `tf.distribute` annotates without a strategy.
    """
    with private_name("jax2tf.split_to_logical_devices", "tensorflow"):
        from tensorflow.python.compiler.xla.experimental import xla_sharding

    if tile_assignment is None:
        return xla_sharding.replicate(tensor, use_sharding_op=True)
    return xla_sharding.tile(tensor, tile_assignment, use_sharding_op=True)


def gradients_for_xla() -> AbstractContextManager[None]:
    """Return a context in which the gradients of branches are made of what XLA compiles.

    Outside of a graph that it knows to be compiled TensorFlow hands the values of branches to their
    gradients as optionals (tensorflow/python/ops/cond_v2.py, `_IfGrad`), and the gradient of a
    concrete function is written into a graph of its own. The switch is in
    tensorflow/python/eager/context.py; without the gate XLA refuses such gradients by name. It can
    go when TensorFlow compiles optionals.
    """
    try:
        from tensorflow.python.eager.context import temporarily_disable_optionals_in_gradients
    except ImportError:
        return nullcontext()
    return temporarily_disable_optionals_in_gradients()  # type: ignore[no-any-return]


def gradient_query() -> Callable[[str], bool]:
    """Return a function that says whether TensorFlow has a gradient for a type of operation.

    The public `tf.RegisterGradient` writes to a registry that only private functions read
    (tensorflow/python/framework/ops.py), and a tape takes what is not in it for zero
    (tensorflow/python/eager/backprop.py, `_gradient_function`). Without the gate the answer is
    always yes. It can go when a tape can be told to raise.
    """
    try:
        from tensorflow.python.framework.ops import gradient_registry
    except ImportError:
        return lambda _: True

    def has_gradient(op_type: str) -> bool:
        try:
            return gradient_registry.lookup(op_type) is not None
        except LookupError:
            return False

    return has_gradient


def has_lost_variables(error: AssertionError) -> bool:
    """Return whether an error says that variables which a concrete function captures are gone.

    It is a plain AssertionError, told by its text alone (tensorflow/python/framework/func_graph.py,
    `FuncGraph.variables`). Without the gate the error is TensorFlow's own. It can go when that has
    a class.
    """
    return "variables which have been deleted" in str(error)


def is_binding_error(error: TypeError) -> bool:
    """Return whether an error says that arguments do not fit the signature of a `tf.function`.

    A TypeError of the function itself differs by its text alone
    (tensorflow/python/eager/polymorphic_function/function_type_utils.py, `bind_function_inputs`).
    Without the gate the error is TensorFlow's own. It can go when that has a class.
    """
    return str(error).startswith("Binding inputs to tf.function failed")


def is_of_recompute_grad(error: Exception) -> bool:
    """Return whether an error says that `tf.recompute_grad` has no second gradient.

    It is a plain error, told by its text alone (tensorflow/python/ops/custom_gradient.py,
    `recompute_grad`). Without the gate the cure is a general one. It can go when that has a class.
    """
    return "recompute_grad" in str(error).partition("\n")[0]


@dataclass(frozen=True, slots=True)
class CompilerRefusal:
    """The reasons of TensorFlow's compiler for which it does not compile a function.

    Attributes:
        is_unbounded: whether a loop keeps values of every step, and may have any number of steps.
        kernels: the types of the operations that XLA does not have.
        constant: the number of an input that is no constant, the name of its node, and the type of
            the operation; None where that is not the reason.
    """

    is_unbounded: bool
    kernels: tuple[str, ...]
    constant: tuple[str, str, str] | None


def compiler_refusal(error: Exception) -> CompilerRefusal:
    """Return the reasons that an error of TensorFlow's compiler has.

    It raises one class for all of them, told by the text alone (tensorflow/compiler/tf2xla/
    xla_compiler.cc and const_analysis.cc, tensorflow/compiler/tf2xla/kernels/tensor_list_ops.cc).
    Without the gate the message is TensorFlow's own. It can go when the errors have payloads.
    """
    text = str(error)
    constant = re.search(r"Input (\d+) to node `([^`]*)` with op (\w+) must be", text)
    return CompilerRefusal(
        is_unbounded="fixed tensor list size" in text,
        kernels=tuple(dict.fromkeys(re.findall(r"(\w+) \(No registered '", text))),
        constant=None if constant is None else (constant[1], constant[2], constant[3]),
    )
