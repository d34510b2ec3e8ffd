"""Arguments as they arrive -> the leaves that a loaded function takes, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax import export, tree_util

from bridge.core.backend import platform_of
from bridge.core.explaining import arguments_of
from bridge.core.keys import KEY_DTYPES
from bridge.core.narrowing import check_narrowing, narrow_dtype
from bridge.core.tree_matching import Match, match_trees
from bridge.loading.binding import BoundExported
from xla_call_module.analyses.constraints import SizeConstraint, constraints_in
from xla_call_module.call import bind_symbols
from xla_call_module.checks import SHAPE_ASSERTIONS, DisabledCheck
from xla_call_module.dtypes import WIDE
from xla_call_module.errors import DtypeError, PlatformError, StructureError, quote
from xla_call_module.exported import argument_specs, result_specs

_KINDS = "biufc"
# The number of kinds of arguments that are remembered as checked.
_MAX_REMEMBERED = 1024
_MAX_SHOWN = 200  # characters

# The shape of each flat argument.
Sizes = tuple[tuple[int | None, ...], ...]


class Arguments:
    """The arguments that a loaded function takes besides its parameters.

    Attributes:
        tree: the structure of (args, kwargs), as the function takes them.
    """

    def __init__(
        self,
        key: str,
        bound: BoundExported,
        disabled_checks: tuple[DisabledCheck, ...],
        device: Any = None,
        buckets: Sequence[int] = (),
    ) -> None:
        """Prepare for calls; `buckets` are the sizes that TensorFlow, not JAX, pads batches to."""
        sizes = ", ".join(map(str, buckets))
        self._padded = f" TensorFlow pads batches to {sizes}." if sizes else ""
        self._device = device
        exported = bound.exported
        self._key = key
        self._exported = exported
        self._checks = disabled_checks
        names = {index: name for name, index in bound.inputs.items()}
        self._specs = tuple(
            dataclasses.replace(spec, path=names.get(index, spec.path))
            for index, spec in enumerate(argument_specs(exported))
        )
        self._first = len(bound.variables)
        self.tree = _without_params(exported, has_params=bound.params is not None)
        self._names = bound.inputs
        self._taken = bound.taken
        self._wide = [
            spec
            for spec in (*self._specs, *result_specs(exported))
            if spec.dtype.name in WIDE and spec.element != "float0"
        ]
        self._accepted: set[tuple[Any, ...]] = set()
        # The structure of the arguments of the last call, and what was found of it.
        self._last: tuple[Any, Match | None] = self.tree, Match()

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Match]:
        """Return the leaves of the arguments, and how their structure matches the function's."""
        leaves, tree = self._flatten(args, kwargs)
        match = self._match(tree)
        leaves = self._by_name(args, kwargs) if match is None else match.leaves(leaves)
        leaves = [
            self._from_python(leaf, index)
            if isinstance(leaf, (bool, int, float, complex))
            else leaf
            for index, leaf in enumerate(leaves, self._first)
        ]
        kinds = tuple(self._kind_of(leaf, index) for index, leaf in enumerate(leaves, self._first))
        self._check_width()
        if kinds not in self._accepted:
            self._check(kinds)
            if len(self._accepted) >= _MAX_REMEMBERED:
                self._accepted.clear()
            self._accepted.add(kinds)
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            self._check_platform()
        return leaves, match or Match()

    def plain_types(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> frozenset[type] | None:
        """Return the types of arguments that were accepted, if JAX checks such ones as well.

        They are arrays of JAX, in the structure of the function, none of them of 64 bits.
        """
        leaves, tree = self._flatten(args, kwargs)
        is_plain = all(isinstance(leaf, jax.Array) for leaf in leaves) and not any(
            isinstance(leaf, jax.core.Tracer) for leaf in leaves
        )
        if not is_plain or tree != self.tree or self._wide or SHAPE_ASSERTIONS in self._checks:
            return None
        return frozenset(map(type, leaves))

    def _match(self, tree: Any) -> Match | None:
        """Return how arguments match the structure that the function takes; None if they do not."""
        known, match = self._last
        if known != tree:
            match = match_trees(tree, self.tree)
            self._last = tree, match
        return match

    def _flatten(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], tree_util.PyTreeDef]:
        try:
            return tree_util.tree_flatten((args, dict(kwargs)))
        except (ValueError, TypeError) as error:
            raise StructureError(
                f"The arguments of {self._key} are not a pytree: {quote(error)}. To do: pass what "
                "jax.tree.flatten takes."
            ) from error

    def _kind_of(self, leaf: Any, index: int) -> tuple[tuple[Any, ...], Any]:
        """Return the shape and the dtype that JAX takes a value for."""
        if isinstance(leaf, jax.Array):
            return leaf.shape, leaf.dtype
        if isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, np.ma.MaskedArray):
            if leaf.dtype.itemsize > 4:
                where = f"{self._specs[index].path} of {self._key}"
                check_narrowing(np.asarray(leaf), where)
            return leaf.shape, narrow_dtype(leaf.dtype)
        if isinstance(leaf, (bool, int, float, complex)):
            return (), narrow_dtype(np.result_type(type(leaf)))
        raise DtypeError(
            f"{self._specs[index].path} of {self._key} is a {type(leaf).__name__}; expected a JAX "
            f"or numpy array, {self._specs[index]}."
        )

    def other_shapes(self, leaves: list[Any]) -> Sizes | None:
        """Return the shapes of all arguments if the function was not exported for them, else None.

        That is possible where shape assertions are disabled, as it is in TensorFlow.
        """
        if SHAPE_ASSERTIONS not in self._checks:
            return None
        sizes = self._sizes([np.shape(leaf) for leaf in leaves])
        try:
            values = bind_symbols(self._key, self._specs, sizes)
        except StructureError:
            return tuple(sizes)
        return None if self._broken(values) is None else tuple(sizes)

    def _by_name(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        named = {index: kwargs.get(name) for name, index in self._names.items()}
        named |= self._nameless()
        expected = range(self._first, self._first + self.tree.num_leaves)
        if args or kwargs.keys() != self._names.keys() or named.keys() != set(expected):
            raise StructureError(self._explain_structure(args, kwargs))
        return [named[index] for index in expected]

    def _explain_structure(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the message about arguments that have another structure than the function's."""
        shown = [_Shown(str(spec)) for spec in self._specs[self._first :]]
        positional, by_name = tree_util.tree_unflatten(self.tree, shown)
        expected = [*map(repr, positional), *(f"{key}={by_name[key]!r}" for key in by_name)]
        inputs = ", ".join(self._names) or "none"
        if any(map(_is_nested_numbers, (*args, *kwargs.values()))):
            cure = "make arrays of lists, as in model(numpy.asarray(x, 'float32'))"
        else:
            cure = "pass arrays in this structure, or all inputs by name"
        return (
            f"{self._key} takes ({', '.join(expected)}), or its inputs by name: {inputs}; it was "
            f"called with {arguments_of(args, kwargs)}{_structures(args)}. To do: {cure}."
        )

    def _nameless(self) -> dict[int, Any]:
        """Zeros for arguments that no module takes, and of which the file has no name.

        TensorFlow does not say of an input that it has saved again which argument it was.
        """
        avals = self._exported.in_avals
        indices = range(self._first, self._first + self.tree.num_leaves)
        return {
            index: np.zeros(avals[index].shape, avals[index].dtype)
            for index in {*indices} - {*self._names.values()}
            if index not in self._taken
            and not jax.dtypes.issubdtype(avals[index].dtype, jax.dtypes.extended)
            and not any(map(export.is_symbolic_dim, avals[index].shape))
        }

    def _from_python(self, number: complex, index: int) -> Any:
        """Return a Python number in the dtype of the argument, if JAX would promote it to that."""
        dtype = self._exported.in_avals[index].dtype
        if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
            return number
        kinds = [np.result_type(type(number)).kind, np.dtype(dtype).kind.replace("V", "f")]
        if _KINDS.find(kinds[0]) > _KINDS.find(kinds[1]):
            return number
        where = f"{self._specs[index].path} of {self._key}"
        try:
            with np.errstate(over="ignore"):
                array = np.asarray(number, dtype)
        except OverflowError as error:
            raise DtypeError(
                f"{where} is {number}, which is no {dtype}. To do: pass one that is."
            ) from error
        if np.isfinite(number) and not np.isfinite(array.astype(np.complex128)):
            raise DtypeError(
                f"{where} is {number}, which is infinite as {dtype}. To do: pass a smaller one."
            )
        return array

    def _check(self, kinds: tuple[Any, ...]) -> None:
        for index, (_, dtype) in enumerate(kinds, self._first):
            expected = self._exported.in_avals[index].dtype
            if dtype != expected:
                name = KEY_DTYPES.get(str(expected))
                cure = name and f"pass jax.random.key or wrap_key_data with impl={name!r}"
                raise DtypeError(
                    f"{self._specs[index].path} of {self._key} has dtype {dtype}; expected "
                    f"{expected}. To do: {cure or 'cast it'}."
                )
        sizes = self._sizes([shape for shape, _ in kinds])
        values = bind_symbols(self._key, self._specs, sizes, disabled_checks=self._checks)
        if (constraint := self._broken(values)) is not None:
            raise self._breaks(constraint, values)

    def _broken(self, values: Mapping[str, int]) -> SizeConstraint | None:
        """Return a constraint that the dimension variables break, or None."""
        broken = (c for c in self._constraints if c.holds(values) is False) if values else ()
        return next(iter(broken), None)

    @cached_property
    def _constraints(self) -> tuple[SizeConstraint, ...]:
        """The constraints of the dimension variables; JAX does not say which one is broken."""
        return constraints_in(self._exported.mlir_module_serialized)

    def _breaks(self, constraint: SizeConstraint, values: Mapping[str, int]) -> StructureError:
        sizes = ", ".join(f"{name} = {values[name]}" for name in sorted(values))
        taken = ", ".join(f"{s.path} {s}" for s in self._specs[self._first :] if s.shape)
        return StructureError(
            f"The arguments of {self._key} have {sizes}; it was exported with the constraint "
            f"{constraint}, and takes {taken}. To do: pass sizes that meet it, or export without "
            f"it.{self._padded}"
        )

    def _sizes(self, shapes: Sequence[Sequence[Any]]) -> list[tuple[int | None, ...]]:
        """Return the shapes of all arguments; `shapes` are those of what is no parameter."""
        sizes = [spec.static_shape or () for spec in self._specs]
        for index, shape in enumerate(shapes, self._first):
            # The key data of a typed PRNG key has dimensions that the key has not.
            inner = sizes[index][len(self._exported.in_avals[index].shape) :]
            known = (size if isinstance(size, int) else None for size in shape)
            sizes[index] = (*known, *inner)
        return sizes

    def _check_width(self) -> None:
        if self._wide and not jax.config.read("jax_enable_x64"):
            raise DtypeError(
                f"{self._wide[0].path} of {self._key} is {self._wide[0]}, and JAX has no 64-bit "
                "dtypes while x64 is off. To do: jax.config.update('jax_enable_x64', True)."
            )

    def _check_platform(self) -> None:
        platform = platform_of(self._device or jax.devices()[0])
        disabled = export.DisabledSafetyCheck.platform() in self._exported.disabled_safety_checks
        if not disabled and platform not in self._exported.platforms:
            raise PlatformError(
                f"{self._key} was exported for {', '.join(self._exported.platforms)}, and JAX runs "
                f"on {platform} here. To do: export it with platforms= of both, or run JAX on what "
                "it was exported for."
            )


class _Shown(str):
    """A text that is shown without quotes inside of a pytree."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _is_nested_numbers(value: Any) -> bool:
    leaves = tree_util.tree_leaves(value) if isinstance(value, (list, tuple)) else []
    return bool(leaves) and all(isinstance(leaf, (bool, int, float)) for leaf in leaves)


def _structures(args: tuple[Any, ...]) -> str:
    """Return the structures of arguments, unless all are single arrays."""
    trees: list[Any] = [tree_util.tree_structure(value) for value in args]
    if all(tree == tree_util.tree_structure(0) for tree in trees):
        return ""
    leaf = _Shown("*")
    shown = [repr(tree_util.tree_unflatten(tree, [leaf] * tree.num_leaves)) for tree in trees]
    text = ", ".join(shown)
    return f" of the structure ({text if len(text) <= _MAX_SHOWN else f'{text[:_MAX_SHOWN]}…'})"


def _without_params(exported: export.Exported, *, has_params: bool) -> tree_util.PyTreeDef:
    """Return the structure of (args, kwargs), without the parameters, the first of args."""
    in_tree: Any = exported.in_tree  # the stub of its class lacks `children`
    args, kwargs = in_tree.children()
    rest = tree_util.treedef_tuple(args.children()[int(has_params) :])
    return tree_util.treedef_tuple((rest, kwargs))
