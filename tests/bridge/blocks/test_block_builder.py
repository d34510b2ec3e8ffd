"""Blocks are in normal form: calls written out, equal operations once, constants computed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bridge.blocks.block import Block, Operation, Value
from bridge.blocks.block_builder import ELEMENTWISE, BlockBuilder, BlockTarget, build_block
from xla_call_module.errors import UnsupportedError


def block_of(
    function: Callable[..., Any], args: str = "f32[3,4]", target: BlockTarget | None = None
) -> Block:
    """The block of a function of arrays, whose types are as `f32[b,4] f32[4]`."""
    scope = jax.export.SymbolicScope()
    specs = [
        jax.ShapeDtypeStruct(
            jax.export.symbolic_shape(sizes[:-1], scope=scope),
            {"f32": np.float32, "i32": np.int32, "b": np.bool_}[kind],
        )
        for kind, sizes in (one.split("[") for one in args.split())
    ]
    return build_block(jax.make_jaxpr(function)(*specs), target)


def all_operations(block: Block) -> Iterator[Operation]:
    for operation in block.operations:
        yield operation
        for body in operation.bodies:
            yield from all_operations(body)


def names(block: Block) -> list[str]:
    return [operation.name for operation in all_operations(block)]


def _with_tangent(function: Callable[..., Any]) -> Callable[..., Any]:
    made = jax.custom_jvp(function)
    made.defjvps(lambda tangent, _, x: tangent)
    return made


def _with_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    made = jax.custom_batching.custom_vmap(function)
    made.def_vmap(lambda size, _, x: (function(x), True))
    return made


@pytest.mark.parametrize(
    "call",
    [jax.jit, jax.checkpoint, _with_tangent, _with_rows, lambda f: jax.jit(jax.jit(f)),
     lambda f: lax.composite(f, "of.nobody")],
)  # fmt: skip
def test_calls_are_written_out(call):
    assert names(block_of(lambda x: call(lax.sin)(x))) == ["sin"]


def test_a_composite_that_is_known_is_one_operation():
    kernel = lax.composite(lambda x: jnp.sin(x) * 2, "of.sines")
    block = block_of(kernel, target=BlockTarget(composites={"of.sines": "twice"}))
    assert names(block) == ["twice"]
    assert block.operations[0].operands == block.inputs


def test_equal_operations_are_there_once():
    block = block_of(lambda x: (jnp.sin(x) + 1, jnp.sin(x) + 1, jnp.sin(x) + 2))
    assert names(block) == ["sin", "add", "add"]
    assert block.outputs[0] is block.outputs[1] is not block.outputs[2]


def test_operations_of_other_parameters_are_others():
    block = block_of(lambda x: (x.sum(0), x.sum(0, keepdims=True), x.sum(1), x[1:], x[:2]))
    assert names(block) == ["reduce_sum", "reshape", "reduce_sum", "slice", "slice"]


def test_a_body_sees_what_is_before_it_and_not_what_is_in_another():
    def looped(x: Any) -> Any:
        y = jnp.sin(x)
        one = lax.while_loop(lambda v: v.sum() < 9, lambda v: v + jnp.sin(x) + jnp.cos(x), y)
        return lax.while_loop(lambda v: v.sum() < 9, lambda v: v * jnp.cos(x), one)

    block = block_of(looped)
    assert names(block).count("sin") == 1
    assert names(block).count("cos") == 2
    (first, second) = (one for one in block.operations if one.name == "while")
    assert [*first.parameters] == ["test", "body"]
    assert block.operations[0].result in first.parameters["body"].operations[0].operands
    assert second.operands == first.results


def test_branches_are_blocks_and_a_known_one_is_written_out():
    def chosen(x: Any, which: Any) -> Any:
        return lax.switch(which, [jnp.sin, jnp.cos, jnp.tanh], x)

    block = block_of(chosen, "f32[3] i32[]")
    (branches,) = [one.parameters["branches"] for one in block.operations if one.name == "cond"]
    assert [names(branch) for branch in branches] == [["sin"], ["cos"], ["tanh"]]
    assert all(not branch.inputs for branch in branches)
    for number, name in ((-3, "sin"), (1, "cos"), (7, "tanh")):
        assert names(block_of(functools.partial(chosen, which=np.int32(number)))) == [name]


@pytest.mark.parametrize(
    ("function", "left"),
    [
        pytest.param(lambda x: x * 1 / 1 - 0, [], id="neutral"),
        pytest.param(lambda x: 1 * x, [], id="neutral first"),
        pytest.param(lambda x: 1 / x, ["div"], id="no quotient of one"),
        pytest.param(lambda x: 0 - x, ["sub"], id="no difference from zero"),
        pytest.param(lambda x: x + 0, ["add"], id="minus zero plus zero"),
        pytest.param(lambda x: x - -0.0, ["sub"], id="minus zero minus zero"),
        pytest.param(lambda x: x * 0, ["mul"], id="infinity times zero"),
        pytest.param(lambda x: jnp.ones((3, 4)) * jnp.ones(4) * x, [], id="neutral arrays"),
        pytest.param(lambda x: x.reshape(4, 3).reshape(2, 6), ["reshape"], id="reshapes"),
        pytest.param(lambda x: x.reshape(4, 3).reshape(3, 4), [], id="reshaped back"),
        pytest.param(lambda x: x.T.T, [], id="transposed twice"),
        pytest.param(lambda x: x[None].transpose(1, 0, 2), ["reshape"], id="ones moved"),
        pytest.param(lambda x: lax.slice(x, (0, 0), (3, 4)), [], id="all of it"),
        pytest.param(lambda x: x.astype(np.float32), [], id="its own dtype"),
        pytest.param(lambda x: jnp.broadcast_to(x, (1, 3, 4)), ["reshape"], id="broadcast by one"),
        pytest.param(
            lambda x: lax.broadcast_in_dim(jnp.broadcast_to(x[:, None], (3, 2, 4)), (3, 2, 5, 4),
                                           (0, 1, 3)),
            ["reshape", "broadcast_in_dim"], id="broadcast twice"),
        pytest.param(lambda x: jnp.where(np.True_, x, -x), [], id="chosen"),
        pytest.param(lambda x: jnp.where(x > 0, x, x), [], id="the same in both"),
        pytest.param(lambda x: (x > 0) & True, ["gt"], id="and true"),
        pytest.param(lambda x: (x > 0) | jnp.full((3, 4), True), [], id="or true"),
        pytest.param(lambda x: lax.stop_gradient(lax.optimization_barrier(x)), [], id="identities"),
    ],
)  # fmt: skip
def test_what_does_nothing_is_left_out(function, left):
    assert names(block_of(function)) == left


def test_what_is_left_out_leaves_the_value():
    ones = jnp.ones((3, 4), bool)
    block = block_of(lambda x: (x * 1, x.T.T, (x > 0) | ones, jnp.where(np.False_, -x, x)))
    first, second, third, fourth = block.outputs
    assert first is second is fourth is block.inputs[0]
    np.testing.assert_array_equal(third.array, ones)


def test_what_nothing_reads_is_left_out():
    def unread(x: Any) -> Any:
        jnp.tanh(x)
        return lax.cond(x[0, 0] > 0, lambda: (jnp.sin(x), jnp.exp(x))[0], lambda: jnp.cos(x))

    assert {"tanh", "exp"}.isdisjoint(names(block_of(unread)))
    # What a branch alone reads stays in the block around it.
    block = block_of(lambda x: (lambda y: lax.cond(x[0, 0] > 0, lambda: y, lambda: x))(jnp.sin(x)))
    assert "sin" in [one.name for one in block.operations]


TARGET = BlockTarget(
    broadcasts=lambda name, dtype, shape: (
        name in ELEMENTWISE and dtype == np.float32 and len(shape) < 4
    )
)


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        pytest.param(lambda x: x + x[:1], [(3, 4), (1, 4)], id="row"),
        pytest.param(
            lambda x: x + lax.broadcast_in_dim(x[0], (3, 4), (1,)), [(3, 4), (4,)], id="vector"
        ),
        pytest.param(lambda x: x[:, :1] * x, [(3, 1), (3, 4)], id="column"),
        pytest.param(lambda x: x + jnp.full((3, 4), 2.5), [(3, 4), ()], id="one number"),
        pytest.param(lambda x: x[:1] + x[:, :1], [(1, 4), (3, 1)], id="both"),
    ],
)
def test_kernels_broadcast_their_operands(function, shapes):
    block = block_of(function, target=TARGET)
    (operation,) = (one for one in block.operations if one.name in ("add", "mul"))
    assert [operand.shape for operand in operation.operands] == shapes
    assert operation.result.shape == (3, 4)


def test_other_operands_are_broadcast_before():
    def of(shape: tuple[int, ...], args: str) -> list[str]:
        def added(x: Any, y: Any) -> Any:
            return x + lax.broadcast_in_dim(y, shape, (len(shape) - 1,))

        return names(block_of(added, args, target=TARGET))

    assert of((3, 4), "f32[3,4] f32[4]") == ["add"]
    assert of((3, 4), "i32[3,4] i32[4]") == ["broadcast_in_dim", "add"]
    assert of((1, 2, 3, 4), "f32[1,2,3,4] f32[4]") == ["broadcast_in_dim", "add"]
    assert of((3, 4), "f32[1,4] f32[4]") == ["broadcast_in_dim", "add"]  # or nothing has the size


def test_symbolic_sizes_are_compared_by_what_they_are():
    block = block_of(
        lambda x, y: (x.reshape(-1), jnp.arange(x.shape[0] * 2) + (x.shape[0] + 1), x + y[:, None]),
        "f32[b,4] f32[b]",
    )
    assert [str(size) for size in block.outputs[0].shape] == ["4*b"]
    assert [str(size) for size in block.outputs[1].shape] == ["2*b"]
    assert block.outputs[2].shape == block.inputs[0].shape
    assert "dim_as_value" in names(block)
    again = block_of(lambda x: x.reshape(-1).reshape(x.shape), "f32[b,4]")
    assert again.outputs == again.inputs


def test_an_operation_may_be_made_with_those_before_it():
    def fuse(builder: BlockBuilder, operation: Operation) -> Value | None:
        if (
            operation.name != "add"
            or (product := builder.maker(operation.operands[0], "mul")) is None
        ):
            return None
        operands = [*product.operands, operation.operands[1]]
        types = [(operation.result.shape, operation.result.dtype)]
        return builder.add("fma", operands, {}, types, operation.place)[0]

    block = block_of(lambda x: (x * 3 + x, x * x + 1, x + 1), target=BlockTarget(fuse=fuse))
    assert names(block) == ["fma", "fma", "add"]
    assert names(block_of(lambda x: (x * 3 + x, x * 3), target=BlockTarget(fuse=fuse))) == [
        "mul", "fma"
    ]  # fmt: skip


def test_transpositions_meet_over_operations_on_each_element():
    """As around convolutions, whose channels come last in one framework and not in the other."""
    block = block_of(lambda x: jnp.maximum(x.T * 2 + jnp.arange(4.0)[:, None], 0).T)
    assert names(block) == ["mul", "add", "max"]
    assert block.operations[1].operands[1].array.shape == (1, 4)


def test_places_are_the_name_stacks():
    def scoped(x: Any) -> Any:
        with jax.named_scope("outer"):
            return jax.jit(lambda y: jnp.sin(y))(x)

    (operation,) = block_of(scoped).operations
    assert "outer" in operation.place.split("/")


def test_a_parameter_that_nobody_knows_is_refused():
    def dilated(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID", (2, 1))

    with pytest.raises(UnsupportedError, match=r"reduce_window_max .*base_dilation=\(2, 1\)"):
        block_of(dilated)


def test_hints_are_no_difference():
    def products(x: Any) -> Any:
        return x @ x.T, jnp.matmul(x, x.T, precision="highest"), lax.dot(x, x.T)

    block = block_of(products)
    assert names(block) == ["transpose", "dot_general"]
