"""A call with its gradients, order after order, inside FunctionDefs.

All results of a call pass through an IdentityN whose attribute `_gradient_op_type` leads to the
gradient function (tensorflow/python/ops/custom_gradient.py, `_graph_mode_decorator`;
tensorflow/python/saved_model/function_deserialization.py, `load_function_def_library`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from savedmodel.encode.body import Body, Tensor, set_function_call
from savedmodel.protos.structures import (
    NONE,
    Leaf,
    Structure,
    as_dict,
    as_list,
    as_tuple,
    encode_structure,
    encode_tensor_spec,
)
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import PLATFORM
from xla_call_module.node import OP, encode_node
from xla_call_module.platforms import platform_hint


@dataclass(frozen=True, slots=True)
class Sources:
    """The places where a call in some body gets its operands.

    Attributes:
        argument: makes an argument of the call available there.
        constant: makes a constant available there, by its key.
    """

    argument: Callable[[int], Tensor]
    constant: Callable[[str], Tensor]

    def operands(self, call: CallModule) -> list[Tensor]:
        """Return the tensors that the node takes, in its order."""
        keys = call.constants
        return [
            self.constant(keys[index]) if index in keys else self.argument(index)
            for index in call.kept
        ]


def write_call(
    body: Body,
    chain: Sequence[CallModule],
    sources: Sources,
    no_gradient: str,
    *,
    before: str = "",
) -> list[Tensor]:
    """Write the call with its gradients; return the tensors of its own results."""
    call = chain[0]
    is_plain = call in body.library.operations
    name = body.reserve(call.name if is_plain else f"{OP}{_hint(call)}")
    node = encode_node(
        call,
        name=name,
        inputs=[
            body.show_sharding(tensor, call, spec).in_function
            for tensor, spec in zip(sources.operands(call), call.operands, strict=True)
        ],
        new_node=body.new_node,
    )
    body.library.write_call(node, call)
    if before:
        node.input.append(f"^{before}")
    body.library.add_functions(call.functions)
    returned = [
        body.show_sharding(Tensor(name, "output", index), call, spec)
        for index, spec in enumerate(call.results)
    ]
    results, residuals = returned[: len(call.own_results)], returned[len(call.own_results) :]
    if len(chain) == 1:
        return [
            body.prevent_gradient(result, spec, no_gradient)
            for result, spec in zip(results, call.own_results, strict=True)
        ]
    identity = body.add_node("IdentityN", "IdentityN")
    needed = needed_arguments(chain)
    passed = [*results, *map(sources.argument, needed)]
    identity.input.extend(tensor.in_function for tensor in passed)
    specs = [*call.own_results, *(call.args[index] for index in needed)]
    identity.attr["T"].list.type.extend(spec.dtype.enum for spec in specs)
    outputs = [Tensor(identity.name, "output", index) for index in range(len(results))]
    # The gradient of what is handed on is in the next order already.
    handed = [
        body.stop_gradient(residual, spec)
        for residual, spec in zip(residuals, call.results[len(results) :], strict=True)
    ]
    gradient = _write_gradient(body, chain, sources, [*outputs, *handed], no_gradient)
    op_type = f"CustomGradient-{gradient}"
    identity.attr["_gradient_op_type"].s = op_type.encode()
    body.library.proto.registered_gradients.add(gradient_func=gradient, registered_op_type=op_type)
    return outputs


def _hint(call: CallModule) -> str:
    """Return a suffix for the name of a node that cannot run on a CPU, which says so."""
    anywhere = "cpu" in call.platforms or PLATFORM in call.disabled_checks
    return "" if anywhere else platform_hint(call.platforms)


def _write_gradient(
    below: Body,
    chain: Sequence[CallModule],
    sources: Sources,
    outputs: Sequence[Tensor],
    no_gradient: str,
) -> str:
    """Write the gradient function of an IdentityN around `chain[0]`; return its name.

    TensorFlow calls it with a gradient for each output of the IdentityN: the results, then the
    operands. It returns one for each, None for the results.
    """
    primal, vjp = chain[0], chain[1]
    arguments, own = len(primal.own_args), len(primal.own_results)
    passed = needed_arguments(chain)
    upstream_specs = [*primal.own_results, *(primal.args[index] for index in passed)]
    body = Body(below.library, f"gradient_{below.base}")
    upstream = [
        body.add_input(f"result_grads_{index}", spec) for index, spec in enumerate(upstream_specs)
    ]

    def argument(index: int) -> Tensor:
        position = index - arguments
        if position < 0:
            return body.capture(below, sources.argument(index), primal.args[index])
        if position >= own:
            return body.capture(below, outputs[position], primal.results[position])
        if primal.results[position].dtype.differentiable:
            return body.conjugate(upstream[position], vjp.args[index])
        # For the missing gradient of an integer or a float8 TensorFlow passes zeros with ones for
        # unknown sizes (`none_to_zero`), so the shape is taken from the result itself.
        source = body.capture(below, outputs[position], primal.results[position])
        name, cotangent = f"zeros_{position}", vjp.args[index]
        return body.add_zeros(name, source, primal.results[position], cotangent)

    specs = _constant_specs(chain[1:])
    captured = Sources(argument, lambda key: body.capture(below, sources.constant(key), specs[key]))
    results = _write_order(body, chain[1:], captured, no_gradient)
    returned: list[Structure] = [NONE] * own
    for index in passed:
        spec, depends = primal.args[index], _has_gradient(chain, index)
        # TensorFlow's gradient of what a result does not depend on is None, not zero.
        returned.append(Leaf(index) if depends else NONE)
        if depends:
            body.add_output(f"grad_{index}", spec, body.conjugate(results[index], spec))
    concrete = body.finish(
        # TensorFlow passes the op first, which a loaded gradient function takes as None.
        input_signature=encode_structure(
            as_tuple([as_tuple([NONE, *map(Leaf, range(len(upstream)))]), as_dict({})]),
            lambda i: encode_tensor_spec(f"result_grads_{i}", upstream_specs[i]),
        ),
        output_signature=encode_structure(
            as_list(returned), lambda i: encode_tensor_spec("", primal.args[i])
        ),
    )
    return concrete.name


def _write_order(
    body: Body, chain: Sequence[CallModule], sources: Sources, no_gradient: str
) -> list[Tensor]:
    """Write the call of a higher order; return the tensors of its results.

    Where it has a gradient of its own it is put into a function that takes all it needs as
    arguments. What that gradient captures are then the function's arguments; captures of captures
    get lost when TensorFlow saves the file again (`_get_outer_most_capture` in
    tensorflow/python/saved_model/save.py).
    """
    if len(chain) == 1:
        return write_call(body, chain, sources, no_gradient)
    call, needed = chain[0], needed_arguments(chain)
    inner = Body(body.library, f"order_{body.base}")
    inputs = {index: inner.add_input(f"arg_{index}", call.args[index]) for index in needed}
    constants = {
        key: inner.add_input("constant", spec) for key, spec in _constant_specs(chain).items()
    }
    taken = Sources(inputs.__getitem__, constants.__getitem__)
    results = write_call(inner, chain, taken, no_gradient)
    for index, (result, spec) in enumerate(zip(results, call.results, strict=True)):
        inner.add_output(f"output_{index}", spec, result)
    inner.finish_shapes()
    node = body.add_node("StatefulPartitionedCall", "StatefulPartitionedCall")
    node.input.extend(sources.argument(index).in_function for index in needed)
    node.input.extend(sources.constant(key).in_function for key in constants)
    specs = [*(call.args[index] for index in needed), *_constant_specs(chain).values()]
    types = [spec.dtype.enum for spec in specs]
    set_function_call(node, inner.name, types, [spec.dtype.enum for spec in call.results])
    return [Tensor(node.name, "output", index) for index in range(len(call.results))]


def needed_arguments(chain: Sequence[CallModule]) -> list[int]:
    """Arguments of `chain[0]` that it or one of its gradients takes, or that have a gradient.

    A backward pass takes residuals in the place of what the function takes, and depends on it all
    the same. And of a function whose gradient somebody has written (`jax.custom_vjp`) no module
    needs to take what has one.
    """
    needed = set(chain[0].kept) - set(chain[0].constants)
    if len(chain) > 1:
        own = range(len(chain[0].own_args))
        needed.update(index for index in needed_arguments(chain[1:]) if index in own)
        needed.update(index for index in own if _has_gradient(chain, index))
    return sorted(needed)


def _has_gradient(chain: Sequence[CallModule], index: int) -> bool:
    """Return whether TensorFlow's gradient of an argument of `chain[0]` is a tensor, not None."""
    primal, vjp = chain[:2]
    # Not the length of `own_args`, which copies them for each index.
    count = len(primal.args) - primal.residual_args - len(primal.hoisted)
    return (
        index < count and primal.args[index].dtype.differentiable and not vjp.results[index].is_zero
    )


def _constant_specs(chain: Sequence[CallModule]) -> dict[str, TensorSpec]:
    """Return the constants that some call of a chain takes, by their keys."""
    return {key: call.args[index] for call in chain for index, key in call.constants.items()}
