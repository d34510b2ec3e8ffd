"""The only places that touch what TensorFlow keeps private, each as a named gate."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from xla_call_module.errors import private_name
from xla_call_module.flags import XlaFlags, read_flags
from xla_call_module.tracebacks import warn
from xla_call_module.versions import Release, parse_release, parse_stablehlo_version


def register_function(definition: Any) -> None:
    """Make a FunctionDef known to every graph and to eager mode, if its name is not known yet.

    `tf.graph_util.import_graph_def` gives functions to one graph, and a `tf.function` around it
    hands on those only that its own operations name (tensorflow/python/eager/context.py,
    `add_function_def`). Without the gate functions of another process are not found when the graph
    runs. It can go when TensorFlow has a public way to add a function.
    """
    try:
        from tensorflow.python.eager.context import context
    except ImportError:
        return
    if not context().has_function(definition.signature.name):
        context().add_function_def(definition)


def function_body(definition: Any) -> Any:
    """Return the graph of a FunctionDef, with its `inputs` and `outputs`.

    The functions that it calls are to be registered. `tf.graph_util.import_graph_def` takes nodes
    that refer to the outputs of others by number, and a FunctionDef has their names, which only the
    definitions of operations tell (tensorflow/python/framework/function_def_to_graph.py). The gate
    can go when TensorFlow has a public way to trace a FunctionDef.
    """
    from tensorflow.python.framework.function_def_to_graph import function_def_to_graph

    return function_def_to_graph(definition)


def eager_call_module() -> Callable[..., Any]:
    """Return the eager endpoint of the op.

    `tf.raw_ops.XlaCallModule` is missing from every wheel, because the op's registration is hidden
    from the public API (tensorflow/core/api_def/base_api/api_def_XlaCallModule.pbtxt, "visibility:
    HIDDEN"); `tf.Graph.create_op` reaches it in graphs only. This gate can go when TensorFlow
    makes the op visible.
    """
    with private_name("an eager call of a converted function", "tensorflow"):
        from tensorflow.compiler.tf2xla.ops import gen_xla_ops

        return gen_xla_ops.xla_call_module  # type: ignore[no-any-return]


@functools.cache
def graph_operation_maker() -> Callable[..., Any]:
    """Return `tf.Graph.create_op` without what TensorFlow has put around it.

    That warns of an old argument, and takes longer than the method. It is told by `__wrapped__`,
    which is no part of the documented method; without it this is the method as it is. The gate can
    go when the argument does.
    """
    return inspect.unwrap(tf.Graph.create_op)  # type: ignore[no-any-return]


def imported_release() -> Release:
    """Return the release of the imported TensorFlow, with the versions that it reads.

    The two queries are private (tensorflow/compiler/tf2xla/python/xla.py and
    tensorflow/compiler/mlir/stablehlo/stablehlo.py) and exist since TensorFlow 2.14. They can go
    when a public one exists; until then a release without them falls back to the table.
    """
    known = parse_release(tf.__version__)
    try:
        from tensorflow.compiler.mlir.stablehlo import stablehlo
        from tensorflow.compiler.tf2xla.python import xla

        convention = int(xla.call_module_maximum_supported_version())
        version = parse_stablehlo_version(stablehlo.get_current_version())
    except (ImportError, AttributeError):
        return known
    return dataclasses.replace(known, convention=convention, stablehlo=version)


@functools.cache
def flags_in_force() -> XlaFlags:
    """Return TF_XLA_FLAGS as the imported TensorFlow reads it; warn once of ignored parts.

    TensorFlow reads the variable when it first looks for its devices and does not tell what it has
    read, so it is read once here, too, when the first call is made ready. The cache can go when
    TensorFlow can be asked.
    """
    flags = read_flags()
    for sentence in flags.ignored:
        warn(sentence)
    return flags


_PLATFORM_REFUSAL = re.compile(
    r"The current platform (\S+) is not among the platforms required by the module"
)


def foreign_platform(error: Exception) -> tuple[str, str] | None:
    """Return what the op says of a device that it refuses, and JAX's name of the platform there.

    It is None for any other error. All that the op cannot find is a NotFoundError, and only the
    text tells what that is (tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc). Without
    the gate the user gets TensorFlow's message. It can go when the error says the platform.
    """
    refusal = _PLATFORM_REFUSAL.search(str(error))
    return None if refusal is None else (refusal[0], refusal[1].lower())


def is_refinement_failure(error: Exception) -> bool:
    """Return whether the op refuses the shapes of its operands.

    All arguments that it refuses are an InvalidArgumentError, and only the text tells more
    (tensorflow/compiler/tf2xla/kernels/xla_call_module_loader.cc, `RefineDynamicShapes`). Without
    the gate the user gets TensorFlow's message. It can go when the error says what is wrong.
    """
    return "Module shape refinement failed" in str(error)


def device_query() -> Callable[[], str | None]:
    """Return a function that says which device `tf.device` asks for here; None or empty for none.

    No public one tells it in eager mode without making a tensor, at the cost of a whole call
    (tensorflow/python/eager/context.py). Without the gate no device is ever asked for. It can
    go when TensorFlow says it.
    """
    try:
        from tensorflow.python.eager.context import context
    except ImportError:
        return lambda: None
    return lambda: context().device_name


def recording_query() -> Callable[[], bool]:
    """Return a function that says whether a gradient tape may be watching.

    `tf.custom_gradient` costs several times the op itself, so in eager mode it is only entered when
    it is of use; TensorFlow's own operations ask the same before they record
    (tensorflow/python/eager/record.py). Without the gate the answer is always yes. It can
    go when there is a public one.
    """
    try:
        from tensorflow.python.eager.record import could_possibly_record
    except ImportError:
        return lambda: True
    return could_possibly_record  # type: ignore[no-any-return]


def stop_recording() -> AbstractContextManager[None]:
    """Return a context in which no tape and no forward accumulator records what is run.

    The op has no gradient of its own; the one of the call is recorded around it. A tape tolerates
    the op inside, an accumulator differentiates it at once and fails. TensorFlow's own functions
    use this (tensorflow/python/eager/record.py). The gate can go when `tf.custom_gradient` stops
    recording by itself.
    """
    with private_name("the gradient of a converted function in eager mode", "tensorflow"):
        from tensorflow.python.eager import record

        return record.stop_recording()  # type: ignore[no-any-return]
