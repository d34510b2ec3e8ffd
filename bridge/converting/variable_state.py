"""Functions whose first argument is a pytree of TensorFlow's variables, which calls may assign."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import Any

import tensorflow as tf
from jax import tree_util

from bridge.core.containers import without_containers
from bridge.core.explaining import flatten
from bridge.core.trees import key_names
from bridge.core.updates import UpdatePositions, find_assigned, without_updates
from savedmodel.model import Variable
from xla_call_module.call import TensorSpec
from xla_call_module.dtypes import dtype_from_name
from xla_call_module.errors import ArgumentError, StructureError
from xla_call_module.runtime.op import static_shape

# The attribute of a variable that has its lock: every function on it finds the same one, and the
# lock lives as long as the variable.
_LOCK = "_jax_tf_bridge_lock"


class VariableState:
    """A function of variables and its other arguments, which assigns the new values it returns.

    Calls that run eagerly come one after another, also those of other such functions on the same
    variables, and one that only reads sees no half of a step. In a graph TensorFlow orders reads
    and assignments as those of any function; compiled with `jit_compile=True` a call is atomic.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        name: str,
        variables: Any,
        positions: UpdatePositions,
    ) -> None:
        """Take over the variables."""
        self._call, self._name, self._positions = call, name, positions
        self._leaves, self._tree = flatten(without_containers(variables), where="variables")
        names = ["/".join(path) or "variables" for path in key_names(self._tree)]
        for path, leaf in zip(names, self._leaves, strict=True):
            if not isinstance(leaf, tf.Variable):
                raise ArgumentError(
                    f"variables has a {type(leaf).__name__} at {path}; expected tf.Variable. To "
                    "do: make it one, or pass it as an argument of the call."
                )
        self._specs = [
            Variable(path, dtype_from_name(leaf.dtype.name, where=path), tuple(leaf.shape))
            for path, leaf in zip(names, self._leaves, strict=True)
        ]
        self._locks = _locks_of(self._leaves)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function, assign the new values, and return the rest of its results."""
        if not self._positions:
            with self._locked():
                values = self._read()
            return self._call(values, *args, **kwargs)
        with self._locked():
            return self._run(args, kwargs)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other eager calls on the variables out; those that it compiles TensorFlow does."""
        with ExitStack() as stack:
            if tf.executing_eagerly():
                for lock in self._locks:
                    stack.enter_context(lock)
            yield

    def _read(self) -> Any:
        values = [variable.read_value() for variable in self._leaves]
        return tree_util.tree_unflatten(self._tree, values)

    def _run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        results = self._call(self._read(), *args, **kwargs)
        leaves, tree = tree_util.tree_flatten(results)
        specs = [
            TensorSpec(
                tuple("_" if size is None else size for size in static_shape(leaf) or ()),
                dtype_from_name(leaf.dtype.name, where="a result"),
                "",
            )
            for leaf in leaves
        ]
        assigned = find_assigned(self._name, specs, tree, self._tree, self._positions, self._specs)
        self._check_once(assigned.values())
        new = [(self._leaves[place], leaves[index]) for index, place in assigned.items()]
        with tf.control_dependencies([leaf for leaf in leaves if tf.is_tensor(leaf)]):
            done = [variable.assign(value, read_value=False) for variable, value in new]
        if tf.executing_eagerly():
            return without_updates(tree, leaves, assigned)
        with tf.control_dependencies(done):
            returned = [*map(tf.identity, leaves)]
        return without_updates(tree, returned, assigned)

    def _check_once(self, places: Iterable[int]) -> None:
        """Refuse two new values for one variable, of which the last would be that of both."""
        seen: dict[int, str] = {}
        for place in places:
            path = self._specs[place].name
            if (other := seen.setdefault(id(self._leaves[place]), path)) != path:
                raise StructureError(
                    f"{self._name} has new values for {other} and for {path}, which are the same "
                    "tf.Variable. To do: pass it once, or name one of them in updates=."
                )


def _locks_of(variables: Sequence[Any]) -> tuple[Any, ...]:
    """Return the lock of each variable, in an order in which no two calls wait for one another."""
    # Of several threads that make one `setdefault` keeps the first.
    locks = {id(lock): lock for v in variables for lock in [vars(v).setdefault(_LOCK, RLock())]}
    return tuple(locks[key] for key in sorted(locks))
