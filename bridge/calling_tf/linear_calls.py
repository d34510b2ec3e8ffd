"""Linear calls of TensorFlow whose transpose is given: what JAX asks of them, as primitives.

`jax.custom_derivatives.linear_call` is that, too, but what it closes over cannot be differentiated,
and it cannot be mapped, so there would be no second order of a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

# The values that the map depends on, the values that it is linear in -> its results.
Linear = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
# The operands, with ones for those that it is linear in; the indices of these; one cotangent for
# each result -> one for each of these operands.
Transpose = Callable[[Sequence[Any], tuple[int, ...], Sequence[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class LinearMap:
    """A function of residuals and of linear arguments, and its transpose.

    Attributes:
        forward: the function, which JAX can differentiate and map.
        transpose: the same residuals, and one cotangent for each result -> one for each linear
            argument.
    """

    forward: Linear
    transpose: Linear
    results: tuple[Any, ...]


def apply_linear(
    linear: LinearMap, residuals: Sequence[Any], arguments: Sequence[Any]
) -> list[Any]:
    """Return the results; reverse mode takes the transpose, and does not run the function."""
    bound: list[Any] = _LINEAR.bind(*residuals, *arguments, linear=linear, count=len(residuals))
    return bound


def _run_linear(*operands: Any, linear: LinearMap, count: int) -> Sequence[Any]:
    return linear.forward(operands[:count], operands[count:])


def _jvp_linear(
    primals: Sequence[Any], tangents: Sequence[Any], *, linear: LinearMap, count: int
) -> tuple[Sequence[Any], Sequence[Any]]:
    results = _LINEAR.bind(*primals, linear=linear, count=count)
    moving = [i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    if all(index >= count for index in moving):
        given = [ad.instantiate_zeros(tangent) for tangent in tangents[count:]]
        pushed = _LINEAR.bind(*primals[:count], *given, linear=linear, count=count)
        return results, pushed

    def function(*values: Any) -> Sequence[Any]:
        operands = list(primals)
        for index, value in zip(moving, values, strict=True):
            operands[index] = value
        return _run_linear(*operands, linear=linear, count=count)

    _, pushed = jax.jvp(
        function, [primals[index] for index in moving], [tangents[index] for index in moving]
    )
    return results, pushed


def _transpose_linear(
    cotangents: Sequence[Any], *operands: Any, linear: LinearMap, count: int
) -> list[Any]:
    arguments = [operand.aval for operand in operands[count:] if ad.is_undefined_primal(operand)]
    wanted = [ad.is_undefined_primal(operand) for operand in operands]
    if len(arguments) != len(operands) - count:
        # What is known of the linear arguments is a zero that was written out.
        arguments = [
            operand.aval if ad.is_undefined_primal(operand) else jax.typeof(operand)
            for operand in operands[count:]
        ]
    turned = LinearMap(linear.transpose, linear.forward, tuple(map(_replicated, arguments)))
    given = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    pulled = apply_linear(turned, operands[:count], given)
    cotangents_of_all = [None] * count + list(map(_lay_out, pulled, arguments))
    return [value if want else None for value, want in zip(cotangents_of_all, wanted, strict=True)]


def _batch_linear(
    operands: Sequence[Any], axes: Sequence[int | None], *, linear: LinearMap, count: int
) -> tuple[Sequence[Any], Sequence[int]]:
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)
    moved = [
        x if axis is None else jnp.moveaxis(x, axis, 0)
        for x, axis in zip(operands, axes, strict=True)
    ]
    # A linear argument that all elements share would have the sum of their cotangents.
    arguments = [
        jnp.broadcast_to(x, (size, *x.shape)) if axis is None else x
        for x, axis in zip(moved[count:], axes[count:], strict=True)
    ]
    residual_axes = tuple(None if axis is None else 0 for axis in axes[:count])

    def mapped(function: Linear) -> Linear:
        map_all = jax.vmap(function, in_axes=(residual_axes, 0), axis_size=size)

        def run(residuals: Sequence[Any], given: Sequence[Any]) -> Sequence[Any]:
            alike = _mapped_alike([*residuals, *given], [*residual_axes, *(0,) * len(given)])
            return map_all(tuple(alike[:count]), alike[count:])

        return run

    results = tuple(aval.update(shape=(size, *aval.shape)) for aval in linear.results)
    batched = LinearMap(mapped(linear.forward), mapped(linear.transpose), results)
    mapped_results = apply_linear(batched, moved[:count], arguments)
    return mapped_results, [0] * len(mapped_results)


def _spec_of(aval: Any) -> tuple[Any, ...]:
    """Return the axes of a mesh that each dimension is split over, where JAX's types have them."""
    sharding = getattr(aval, "sharding", None)
    return tuple(getattr(sharding, "spec", ()))


def _replicated(aval: Any) -> Any:
    """Return the aval of a value that is whole on every device, as TensorFlow's program has it."""
    if not any(_spec_of(aval)):
        return aval
    whole = jax.sharding.PartitionSpec(*(None,) * aval.ndim)
    return aval.update(sharding=jax.sharding.NamedSharding(aval.sharding.mesh, whole))


def _lay_out(value: Any, aval: Any) -> Any:
    """Return the value with the sharding of an aval."""
    if _spec_of(jax.typeof(value)) == _spec_of(aval):
        return value
    return jax.sharding.reshard(value, aval.sharding)


def _mapped_alike(values: Sequence[Any], axes: Sequence[int | None]) -> list[Any]:
    """Return the values with the same split of their first dimensions, as `jax.vmap` asks for."""
    specs = [_spec_of(jax.typeof(value)) for value in values]
    mapped = [spec for spec, axis in zip(specs, axes, strict=True) if axis is not None and spec]
    split = next((spec[0] for spec in mapped if spec[0]), None)
    if split is None:
        return list(values)
    return [
        value
        if axis is None or spec[0] == split
        else jax.sharding.reshard(value, jax.sharding.PartitionSpec(split, *spec[1:]))
        for value, axis, spec in zip(values, axes, specs, strict=True)
    ]


def transposable(
    function: Callable[..., Sequence[Any]], transpose: Transpose
) -> Callable[..., list[Any]]:
    """Return a function that `jax.linear_transpose` can transpose, too."""

    def call(*operands: Any) -> list[Any]:
        avals = jax.make_jaxpr(function)(*operands).out_avals
        bound: list[Any] = _TRANSPOSABLE.bind(
            *operands, function=function, transpose=transpose, results=tuple(avals)
        )
        return bound

    return call


def _transpose_transposable(
    cotangents: Sequence[Any], *operands: Any, transpose: Transpose, **_: Any
) -> list[Any]:
    unknown = [ad.is_undefined_primal(operand) for operand in operands]
    active = tuple(index for index, missing in enumerate(unknown) if missing)
    given = [
        jnp.ones(operand.aval.shape, operand.aval.dtype) if missing else operand
        for operand, missing in zip(operands, unknown, strict=True)
    ]
    pulled = iter(transpose(given, active, [ad.instantiate_zeros(ct) for ct in cotangents]))
    return [next(pulled) if missing else None for missing in unknown]


def _batch_transposable(
    operands: Sequence[Any],
    axes: Sequence[int | None],
    *,
    function: Callable[..., Sequence[Any]],
    transpose: Transpose,
    **_: Any,
) -> tuple[Sequence[Any], Sequence[int]]:
    in_axes = tuple(axes)
    size = next(x.shape[axis] for x, axis in zip(operands, axes, strict=True) if axis is not None)

    def map_transpose(
        inputs: Sequence[Any], active: tuple[int, ...], cotangents: Sequence[Any]
    ) -> list[Any]:
        def one(inputs: tuple[Any, ...], cotangents: list[Any]) -> list[Any]:
            return list(transpose(inputs, active, cotangents))

        # An operand that all elements share has the sum of their cotangents.
        out_axes = [0 if axes[index] is None else axes[index] for index in active]
        mapped = jax.vmap(one, (in_axes, 0), out_axes, axis_size=size)
        pulled = mapped(tuple(inputs), list(cotangents))
        return [
            jnp.sum(value, 0) if axes[index] is None else value
            for index, value in zip(active, pulled, strict=True)
        ]

    mapped = transposable(jax.vmap(function, in_axes, axis_size=size), map_transpose)(*operands)
    return mapped, [0] * len(mapped)


def _define(
    name: str,
    run: Callable[..., Sequence[Any]],
    results_of: Callable[..., tuple[Any, ...]],
    transpose: Callable[..., list[Any]],
    batch: Callable[..., tuple[Sequence[Any], Sequence[int]]],
) -> Primitive:
    """Return a primitive of several results with what JAX asks of one, but for its JVP."""
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(run)
    primitive.def_abstract_eval(results_of)
    ad.primitive_transposes[primitive] = transpose
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    return primitive


_LINEAR = _define(
    "linear_of_tensorflow",
    _run_linear,
    lambda *_, linear, **__: linear.results,
    _transpose_linear,
    _batch_linear,
)
ad.primitive_jvps[_LINEAR] = _jvp_linear
_TRANSPOSABLE = _define(
    "call_of_tensorflow",
    lambda *operands, function, **_: function(*operands),
    lambda *_, results, **__: results,
    _transpose_transposable,
    _batch_transposable,
)
