"""The primitives of a call whose derivatives are known: `exported_call` and `exported_jvp`.

A call of an `Exported` runs its module as it is. What JAX makes of it comes from elsewhere:

- under `jax.vmap` it becomes one batched program, of the lifted function;
- in forward mode the tangents are one `exported_jvp`, which is linear in the tangents and runs as
  the derivative of the lifted function;
- in reverse mode JAX transposes that: to the VJP that was saved, if there is one, else to the
  transpose of the lifted function. Both are functions of JAX, so that all this nests.

Where the module cannot be lifted, a batch is mapped one element after another, and the VJPs are
those that were saved.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from bridge.core._jax import vary_together
from xla_call_module.errors import InteropError

# The leaves of the arguments -> the leaves of the result.
Flat = Callable[..., tuple[Any, ...]]
# The arguments, the cotangents of the results with a tangent, and which arguments have a tangent ->
# the cotangents of these.
PullBack = Callable[[Sequence[Any], Sequence[Any], tuple[int, ...]], tuple[Any, ...]]

# Shape and dtype of each tangent.
_Shapes = tuple[tuple[tuple[Any, ...], Any], ...]

# What JAX raises where an operation has no rule, besides the errors of this package.
NO_RULE = (InteropError, NotImplementedError, TypeError, ValueError)


@dataclass(frozen=True, eq=False)
class DifferentiableCall:
    """A function of arrays that runs in one way, and is differentiated and batched in another.

    Attributes:
        count: the number of arguments.
        lifted: the same function, which JAX traces operation by operation; tracing it raises an
            `InteropError` where it cannot be lifted.
        pull_back: the VJP.
    """

    name: str
    count: int
    run: Flat
    lifted: Flat
    pull_back: PullBack
    _batched: dict[tuple[bool, ...], DifferentiableCall] = field(default_factory=dict)
    _linear: dict[tuple[int, ...], _LinearCall] = field(default_factory=dict)

    def __call__(self, *arguments: Any) -> tuple[Any, ...]:
        """Return the results; none is marked as without values."""
        return tuple(_CALL.bind(*vary_together(arguments), function=self))

    @cached_property
    def program(self) -> Any:
        """The function as it runs, under `jax.jit`."""

        def program(*arguments: Any) -> tuple[Any, ...]:
            return tuple(vary_together(self.run(*arguments), arguments))

        program.__name__ = program.__qualname__ = self.name
        return jax.jit(program)

    def batched(self, mapped: tuple[bool, ...]) -> DifferentiableCall:
        """Return the function of batches of some arguments, along their first axis."""
        if mapped not in self._batched:
            self._batched[mapped] = _batch(self, mapped)
        return self._batched[mapped]

    def linear(self, places: tuple[int, ...]) -> _LinearCall:
        """Return the derivative with respect to some arguments."""
        if places not in self._linear:
            self._linear[places] = _linearize(self, places)
        return self._linear[places]


@dataclass(frozen=True, eq=False)
class _LinearCall:
    """The derivative of a function: a function of its arguments that is linear in tangents.

    Attributes:
        run: the arguments and the tangents -> those of the results.
        pull_back: the arguments and the cotangents of the results -> those of the tangents.
    """

    name: str
    count: int
    run: Flat
    pull_back: Flat
    _batched: dict[tuple[bool, ...], _LinearCall] = field(default_factory=dict)

    @cached_property
    def program(self) -> Any:
        """The function as it runs, under `jax.jit`."""
        run: Callable[..., Any] = lambda *arguments: self.run(*arguments)  # noqa: E731
        run.__name__ = run.__qualname__ = f"jvp_{self.name}"
        return jax.jit(run)

    def batched(self, mapped: tuple[bool, ...]) -> _LinearCall:
        """Return the function of batches of all tangents, and of some arguments."""
        if mapped not in self._batched:
            run, pull_back = (_over_batch(flat, mapped) for flat in (self.run, self.pull_back))
            self._batched[mapped] = _LinearCall(self.name, self.count, run, pull_back)
        return self._batched[mapped]


def pull_back_lifted(
    lifted: Flat, arguments: Sequence[Any], cotangents: Sequence[Any], places: tuple[int, ...]
) -> tuple[Any, ...]:
    """Return the cotangents of some arguments, by the derivative of the lifted function."""

    def real(*chosen: Any) -> list[Any]:
        return _with_tangents(lifted(*replace_at(arguments, places, chosen)))

    _, pull_back = jax.vjp(real, *(arguments[index] for index in places))
    pulled: tuple[Any, ...] = pull_back(list(cotangents))
    return pulled


def is_float0(aval: Any) -> bool:
    """Return whether it is the aval of a tangent of what has none."""
    return bool(aval.dtype == jax.dtypes.float0)


def _batch(function: DifferentiableCall, mapped: tuple[bool, ...]) -> DifferentiableCall:
    axes = _axes(mapped)
    lifted: Flat = jax.jit(jax.vmap(function.lifted, axes))

    def run(*arguments: Any) -> tuple[Any, ...]:
        try:
            return lifted(*arguments)
        except NO_RULE:
            return _one_after_another(function, mapped, arguments)

    def pull_back(
        arguments: Sequence[Any], cotangents: Sequence[Any], places: tuple[int, ...]
    ) -> tuple[Any, ...]:
        def one(arguments: Sequence[Any], cotangents: Sequence[Any]) -> tuple[Any, ...]:
            return function.pull_back(arguments, cotangents, places)

        pulled = jax.vmap(one, (list(axes), 0))(list(arguments), list(cotangents))
        return tuple(
            value if mapped[index] else jnp.sum(value, axis=0)
            for index, value in zip(places, pulled, strict=True)
        )

    return DifferentiableCall(function.name, function.count, run, lifted, pull_back)


def _over_batch(flat: Flat, mapped: tuple[bool, ...]) -> Flat:
    """Return a function of arguments and what is linear, which has a batch of the latter."""

    def run(*values: Any) -> tuple[Any, ...]:
        axes = (*_axes(mapped), *(0,) * (len(values) - len(mapped)))
        results: tuple[Any, ...] = jax.vmap(flat, axes)(*values)
        return results

    return run


def _one_after_another(
    function: DifferentiableCall, mapped: Sequence[bool], arguments: Sequence[Any]
) -> tuple[Any, ...]:
    places = tuple(index for index, is_mapped in enumerate(mapped) if is_mapped)
    one = lambda elements: function(*replace_at(arguments, places, elements))  # noqa: E731
    results: tuple[Any, ...] = lax.map(one, [arguments[index] for index in places])
    return results


def _linearize(function: DifferentiableCall, places: tuple[int, ...]) -> _LinearCall:
    count = function.count

    def run(*values: Any) -> tuple[Any, ...]:
        arguments, tangents = values[:count], tuple(values[count:])

        def real(*chosen: Any) -> list[Any]:
            return _with_tangents(function.lifted(*replace_at(arguments, places, chosen)))

        primals = tuple(arguments[index] for index in places)
        try:
            return tuple(jax.jvp(real, primals, tangents)[1])
        except InteropError as error:
            raise type(error)(
                f"{function.name} has no derivative in forward mode, which is made of its "
                f"operations: {cause_of(error)} To do: differentiate it in reverse mode, by "
                "jax.grad, jax.vjp or jax.jacrev, as often as its gradients were saved."
            ) from error

    def pull_back(*values: Any) -> tuple[Any, ...]:
        return function.pull_back(values[:count], values[count:], places)

    return _LinearCall(function.name, count, run, pull_back)


def cause_of(error: Exception) -> str:
    """Return what an error found, as a sentence, without what it says to do."""
    return str(error).partition(" To do:")[0]


def _axes(mapped: Sequence[bool]) -> tuple[int | None, ...]:
    return tuple(0 if is_mapped else None for is_mapped in mapped)


def replace_at(arguments: Sequence[Any], places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """Return the arguments with other values at some places."""
    replaced = list(arguments)
    for place, value in zip(places, values, strict=True):
        replaced[place] = value
    return replaced


def _with_tangents(results: Sequence[Any]) -> list[Any]:
    return [result for result in results if has_tangent(result)]


def has_tangent(value: Any) -> bool:
    """Return whether an array has a tangent, as an integer has none."""
    return not is_float0(jax.typeof(value).to_tangent_aval())


def _places(tangents: Sequence[Any]) -> tuple[int, ...]:
    """Return which tangents are not known to be zeros."""
    return tuple(
        index
        for index, tangent in enumerate(tangents)
        if not isinstance(tangent, ad.Zero) and not is_float0(jax.typeof(tangent))
    )


def _call_avals(*avals: Any, function: DifferentiableCall) -> tuple[Sequence[Any], Any]:
    jaxpr = jax.make_jaxpr(function.program)(*avals)
    return jaxpr.out_avals, jaxpr.effects


def _call_jvp(
    arguments: Sequence[Any], tangents: Sequence[Any], *, function: DifferentiableCall
) -> tuple[Sequence[Any], Sequence[Any]]:
    results = _CALL.bind(*arguments, function=function)
    places = _places(tangents)
    avals = [jax.typeof(result) for result in results]
    shapes = tuple((a.shape, a.dtype) for a in avals if not is_float0(a.to_tangent_aval()))
    changes: Any = ()
    if places and shapes:
        given = (tangents[index] for index in places)
        changes = _JVP.bind(*arguments, *given, function=function.linear(places), shapes=shapes)
    rest = iter(changes)
    zeros = [ad.Zero(aval.to_tangent_aval()) for aval in avals]
    return results, [zero if is_float0(zero.aval) or not changes else next(rest) for zero in zeros]


def _call_batch(
    values: Sequence[Any], dims: Sequence[int | None], *, function: DifferentiableCall
) -> tuple[Sequence[Any], Sequence[int]]:
    batched = function.batched(tuple(dim is not None for dim in dims))
    results = _CALL.bind(*map(_to_front, values, dims), function=batched)
    return results, (0,) * len(results)


def _to_front(value: Any, dim: int | None) -> Any:
    return value if dim is None else jnp.moveaxis(value, dim, 0)


def _call_transpose(
    cotangents: Sequence[Any], *values: Any, function: DifferentiableCall
) -> Sequence[Any]:
    linear = [index for index, value in enumerate(values) if ad.is_undefined_primal(value)]
    specs = (jax.ShapeDtypeStruct(values[i].aval.shape, values[i].aval.dtype) for i in linear)

    def run(*chosen: Any) -> list[Any]:
        return _with_tangents(function.lifted(*replace_at(values, linear, chosen)))

    given = [c for c in cotangents if not (isinstance(c, ad.Zero) and is_float0(c.aval))]
    pulled: Any = jax.linear_transpose(run, *specs)([*map(ad.instantiate_zeros, given)])
    return replace_at([None] * len(values), linear, pulled)


def _jvp_avals(*avals: Any, function: _LinearCall, shapes: _Shapes) -> Sequence[Any]:
    del function
    made = [ShapedArray(shape, dtype) for shape, dtype in shapes]
    vary = lambda *values: vary_together(values[: len(made)], values[len(made) :])  # noqa: E731
    varying: Sequence[Any] = jax.make_jaxpr(vary)(*made, *avals).out_avals
    return varying


def _jvp_jvp(
    values: Sequence[Any], tangents: Sequence[Any], *, function: _LinearCall, shapes: _Shapes
) -> tuple[Sequence[Any], Sequence[Any]]:
    count = function.count
    bind = partial(_JVP.bind, function=function, shapes=shapes)
    parts = []
    if _places(tangents[count:]):
        parts.append(bind(*values[:count], *map(ad.instantiate_zeros, tangents[count:])))
    if places := _places(tangents[:count]):
        others = lambda *chosen: function.program(*replace_at(values, places, chosen))  # noqa: E731
        primals, directions = ([part[index] for index in places] for part in (values, tangents))
        parts.append(jax.jvp(others, primals, directions)[1])
    changes = [functools.reduce(operator.add, terms) for terms in zip(*parts, strict=True)]
    return bind(*values), changes


def _jvp_transpose(
    cotangents: Sequence[Any], *values: Any, function: _LinearCall, shapes: _Shapes
) -> Sequence[Any]:
    del shapes
    count = function.count
    given = map(ad.instantiate_zeros, cotangents)
    pulled = function.pull_back(*values[:count], *given)
    linear = zip(values[count:], pulled, strict=True)
    return [None] * count + [
        cotangent if ad.is_undefined_primal(value) else None for value, cotangent in linear
    ]


def _jvp_batch(
    values: Sequence[Any], dims: Sequence[int | None], *, function: _LinearCall, shapes: _Shapes
) -> tuple[Sequence[Any], Sequence[int]]:
    count = function.count
    size = next(v.shape[dim] for v, dim in zip(values, dims, strict=True) if dim is not None)
    moved = list(map(_to_front, values, dims))
    for index in range(count, len(values)):
        if dims[index] is None:
            moved[index] = jnp.broadcast_to(values[index], (size, *values[index].shape))
    batched = function.batched(tuple(dim is not None for dim in dims[:count]))
    larger = tuple(((size, *shape), dtype) for shape, dtype in shapes)
    results = _JVP.bind(*moved, function=batched, shapes=larger)
    return results, (0,) * len(results)


def _define_call() -> Primitive:
    """Return the primitive of a call, which is differentiated and batched by its parameter."""
    primitive = Primitive("exported_call")
    primitive.multiple_results = True
    run = lambda *arguments, function: function.program(*arguments)  # noqa: E731
    primitive.def_impl(run)
    primitive.def_effectful_abstract_eval(_call_avals)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    ad.primitive_jvps[primitive] = _call_jvp
    ad.primitive_transposes[primitive] = _call_transpose
    batching.primitive_batchers[primitive] = _call_batch
    return primitive


def _define_jvp() -> Primitive:
    """Return the primitive of a derivative in forward mode, which is linear in the tangents."""
    primitive = Primitive("exported_jvp")
    primitive.multiple_results = True
    run = lambda *values, function, **_: function.program(*values)  # noqa: E731
    primitive.def_impl(run)
    primitive.def_abstract_eval(_jvp_avals)
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=True))
    ad.primitive_jvps[primitive] = _jvp_jvp
    ad.primitive_transposes[primitive] = _jvp_transpose
    batching.primitive_batchers[primitive] = _jvp_batch
    return primitive


_CALL = _define_call()
_JVP = _define_jvp()
