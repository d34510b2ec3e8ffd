"""Calls of modules whose variables some signature of the file assigns.

Such a call is a function of its own, which XLA compiles as a whole: it reads the variables, runs
the module, and assigns its results. TensorFlow locks the variables of a compiled function while it
runs (`LockVariables` in tensorflow/compiler/jit/xla_launch_util.cc), so that of two requests at the
same time none sees half of a state and none loses the step of the other; and it lets the new values
have the memory of the old ones. What only reads such variables is compiled in the same way, since
it would otherwise read one variable before a step and another one after it; so is what a session
reads when it saves them. Where plain operations are in the place of the module, a function holds a
mutex meanwhile instead (tensorflow/core/kernels/mutex_ops.cc).

`savedmodel.decode.dataflow` follows such functions again, with what they assign.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from savedmodel.encode.body import RESOURCE, Body, Library, Tensor, set_function_call
from savedmodel.encode.gradients import Sources, needed_arguments, write_call
from savedmodel.encode.mutexes import compile_whole, hold_mutex, lock_nothing
from savedmodel.model import Function, Parameter, Variable
from savedmodel.protos.schema import Proto
from savedmodel.protos.structures import (
    Leaf,
    as_dict,
    as_list,
    as_tuple,
    encode_structure,
    encode_tensor_spec,
)
from xla_call_module.call import TensorSpec

# Whatever number it has: TensorFlow replaces it by that of the function when it loads the file
# (`fix_node_def` in tensorflow/python/saved_model/function_deserialization.py).
_GRADIENT_OF_CALL = b"PartitionedCall-0"


def write_atomic_call(
    body: Body,
    function: Function,
    variables: Sequence[Variable],
    arguments: Mapping[int, Tensor],
    *,
    before: str = "",
) -> dict[int, Tensor]:
    """Write a call of the function's module as a function of its own, and the call of that."""
    call = function.call
    step = Body(body.library, f"{function.name}_step")
    taken = [index for index in needed_arguments(function.chain) if index in arguments]
    given = {index: step.add_input(f"arg_{index}", call.args[index]) for index in taken}

    def argument(index: int) -> Tensor:
        if index in given:
            return given[index]
        value = function.passed[index]
        assert isinstance(value, Parameter)
        return step.read_variable(value.variable, variables[value.variable])

    def constant(key: str) -> Tensor:
        return step.read_variable(function.constants[key], variables[function.constants[key]])

    results = write_call(step, function.chain, Sources(argument, constant), function.no_gradient)
    for index, variable in sorted(function.assigned.items()):
        step.assign_variable(variable, variables[variable], results[index])
    returned = [index for index in range(len(results)) if index not in function.assigned]
    for position, index in enumerate(returned):
        step.add_output(f"output_{position}", call.results[index], results[index])
    is_compiled = not function.operations
    _make_atomic(step, is_compiled=is_compiled)
    concrete = step.finish(
        input_signature=encode_structure(
            as_tuple([as_tuple([*map(Leaf, taken)]), as_dict({})]),
            lambda i: encode_tensor_spec(f"arg_{i}", call.args[i]),
        ),
        output_signature=encode_structure(
            as_list([*map(Leaf, returned)]), lambda i: encode_tensor_spec("", call.results[i])
        ),
    )
    node = body.add_node("StatefulPartitionedCall", "StatefulPartitionedCall")
    node.input.extend(arguments[index].in_function for index in taken)
    handles = [capture.variable for capture in concrete.captures if capture.variable is not None]
    node.input.extend(body.handle(index, variables[index]).in_function for index in handles)
    if before:
        node.input.append(f"^{before}")
    types = [*(call.args[index].dtype.enum for index in taken), *[RESOURCE] * len(handles)]
    set_function_call(
        node, concrete.name, types, [call.results[index].dtype.enum for index in returned]
    )
    if is_compiled:
        compile_whole(node)
    node.attr["_gradient_op_type"].s = _GRADIENT_OF_CALL
    body.add_effect(node.name)
    return {index: Tensor(node.name, "output", n) for n, index in enumerate(returned)}


@dataclass(frozen=True, slots=True)
class StateReader:
    """A function of the library that returns variables as they are at one moment.

    Attributes:
        name: the name of the function, which takes the handles of the variables.
        variables: the indices of the variables, in its order.
        is_compiled: whether XLA compiles it.
    """

    name: str
    variables: tuple[int, ...]
    is_compiled: bool

    def set_call(self, node: Proto, variables: Sequence[Variable]) -> None:
        """Set the attributes of a StatefulPartitionedCall of it."""
        types = [variables[index].dtype.enum for index in self.variables]
        set_function_call(node, self.name, [RESOURCE] * len(types), types)
        if self.is_compiled:
            compile_whole(node)


def _make_atomic(body: Body, *, is_compiled: bool) -> None:
    """Let XLA compile a function as a whole, or let it run while it holds a mutex.

    What converters are to read does neither.
    """
    if is_compiled:
        compile_whole(body.proto)
    elif body.library.for_converters:
        lock_nothing(body.proto)
    else:
        hold_mutex(body.proto, body.library.mutex)


def write_state_reader(
    library: Library, variables: Sequence[Variable], state: Collection[int]
) -> StateReader | None:
    """Write a function that reads all that some signature assigns; None where nothing is."""
    if not state:
        return None
    body = Body(library, "read_state")
    for index in sorted(state):
        variable = variables[index]
        spec = TensorSpec(variable.shape, variable.dtype, variable.name)
        body.add_output(f"state_{index}", spec, body.read_variable(index, variable))
    _make_atomic(body, is_compiled=not library.operations)
    body.finish_shapes()
    return StateReader(body.name, tuple(sorted(state)), is_compiled=not library.operations)
