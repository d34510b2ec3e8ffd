"""The ways in which TensorFlow can run an `Exported`: live, and from files."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import tensorflow as tf
from jax import export, tree_util

from bridge.convert import convert
from bridge.core._jax import replace_vjp
from bridge.core.trees import to_structure
from bridge.save import save
from savedmodel.protos.structures import Leaf, Structure
from xla_call_module.call import TensorSpec
from xla_call_module.errors import VersionError

Flat = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class PreparedFunction:
    """A function as one of the modes runs it.

    Attributes:
        call: a function from the flat arguments, one for each leaf, to the flat results.
        variables: the variables for the first arguments, which the call reads by itself.
        enter: a function from a function, such as a gradient of `call`, and the specs of its
            arguments to a function that runs it in the mode.
    """

    call: Flat
    variables: Sequence[tf.Variable]
    enter: Callable[[Callable[..., Any], Any], Callable[..., Any]]


class TensorFlowModes:
    """The modes of one `Exported`; they share its VJPs, its conversion and its files."""

    def __init__(
        self,
        exported: export.Exported,
        specs: Sequence[TensorSpec],
        *,
        variables: Sequence[Any],
        params: Any,
        order: int,
        folder: Path,
    ) -> None:
        """Store the arguments; the work is done when a mode needs it."""
        self._exported = _share_vjps(exported)
        self._specs = specs
        self._variables = variables
        self._params = params
        self._order = order
        self._folder = folder

    def prepare(self, mode: str) -> PreparedFunction:
        """Return the function as a mode runs it."""
        match mode:
            case "eager":
                return self._live(_as_it_is)
            case "graph" | "jit":
                return self._live(_in_function(compiled=mode == "jit"))
            case "saved":
                return self._from_file(self._saved)
            case "resaved":
                return self._from_file(self._resaved)
            case "tf_saved":
                return self._from_tensorflow()
        raise AssertionError(mode)

    def _live(self, enter: Callable[..., Any]) -> PreparedFunction:
        call = partial(self._flatly, self._converted)
        return PreparedFunction(call, self._new_variables(), enter)

    @cached_property
    def _converted(self) -> Callable[..., Any]:
        return convert(self._exported)

    def _flatly(self, converted: Callable[..., Any], leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = tree_util.tree_unflatten(self._exported.in_tree, leaves)
        return tree_util.tree_leaves(converted(*args, **kwargs))

    def _new_variables(self) -> list[tf.Variable]:
        return [tf.Variable(value) for value in self._variables]

    @cached_property
    def _saved(self) -> str:
        path = str(self._folder / "saved")
        save(self._exported, path, params=self._params, gradient_order=self._order)
        return path

    @cached_property
    def _resaved(self) -> str:
        path = str(self._folder / "resaved")
        loaded = tf.saved_model.load(self._saved)
        tf.saved_model.save(loaded, path, signatures=loaded.signatures)
        return path

    def _from_file(self, path: str) -> PreparedFunction:
        loaded = tf.saved_model.load(path)
        in_structure = to_structure(self._exported.in_tree)
        out_structure = to_structure(self._exported.out_tree)

        def call(leaves: Sequence[Any]) -> list[Any]:
            args, kwargs = fill_structure(in_structure, leaves)
            returned = loaded(*(args if self._params is None else args[1:]), **kwargs)
            by_index = dict(read_structure(out_structure, returned))
            return [by_index[index] for index in range(len(by_index))]

        return PreparedFunction(call, [] if self._params is None else loaded.variables, _as_it_is)

    def _from_tensorflow(self) -> PreparedFunction:
        """Return the function of a `tf.Module` that TensorFlow has saved and loaded."""
        module, path = tf.Module(), str(self._folder / "tf_saved")
        module.bound = self._new_variables()
        converted = convert(self._exported, gradient_order=max(self._order, 1))
        module.run = tf.function(
            lambda *free: self._flatly(converted, [*module.bound, *free]),
            input_signature=[to_tensor_spec(spec) for spec in self._specs[len(module.bound) :]],
            autograph=False,
        )
        tf.saved_model.save(module, path)
        loaded = tf.saved_model.load(path)
        bound = list(loaded.bound)
        return PreparedFunction(lambda leaves: loaded.run(*leaves[len(bound) :]), bound, _as_it_is)


def _share_vjps(exported: export.Exported) -> export.Exported:
    """Return the same `Exported` with VJPs that are traced once for all modes."""
    if not exported.has_vjp():
        return exported
    try:
        return replace_vjp(exported, cache(lambda: _share_vjps(exported.vjp())))
    except VersionError:  # the gate
        return exported


def to_tensor_spec(spec: TensorSpec) -> tf.TensorSpec:
    """Return TensorFlow's spec, with None for each symbolic dimension."""
    return tf.TensorSpec(spec.static_shape, spec.dtype.name)


def _as_it_is(function: Callable[..., Any], _: Any) -> Callable[..., Any]:
    return function


def _in_function(*, compiled: bool) -> Callable[..., Any]:
    # TensorFlow warns of retracing where a new function is made of the same code again and again,
    # but not of one that was traced on purpose.
    return lambda function, signature: tf.function(
        function, input_signature=signature, jit_compile=compiled, autograph=False
    ).get_concrete_function()


def fill_structure(structure: Structure, leaves: Sequence[Any]) -> Any:
    """Return the leaves in the containers that a loaded function takes."""
    if isinstance(structure, Leaf):
        return leaves[structure.index]
    children = {key: fill_structure(child, leaves) for key, child in structure.children}
    match structure.kind:
        case "none":
            return None
        case "dict":
            return children
        case "list":
            return list(children.values())
        case "tuple":
            return tuple(children.values())
        case "namedtuple":
            return namedtuple(structure.name, children)(**children)


def read_structure(structure: Structure, value: Any) -> Iterator[tuple[int, Any]]:
    """Yield the leaves of the result of a loaded function, with their indices."""
    if isinstance(structure, Leaf):
        yield structure.index, value
        return
    for position, (key, child) in enumerate(structure.children):
        yield from read_structure(child, value[key if structure.kind == "dict" else position])
