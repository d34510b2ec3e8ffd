"""`LoadedModel`: a SavedModel as JAX functions, without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any

from jax.sharding import Mesh

from bridge.loading.loaded import LoadedSignature, VariableValues
from bridge.loading.stateful import StatefulModel
from savedmodel.model import DEFAULT_SIGNATURE, SavedModel
from xla_call_module._autograph import exempt_from_autograph
from xla_call_module.errors import ShardingError, StructureError, shown_as_base
from xla_call_module.tracebacks import api_boundary, leave_out_frames


class LoadedModel:
    """A SavedModel as JAX functions. Calling it calls its default signature.

    That is `serving_default`, or the first where none has this key: the one that the loaded object
    calls in TensorFlow, where `bridge.save` has written the file.

    Attributes:
        signatures: the function of each key. Those of a file that compute something besides calls
            of JAX functions, such as `bridge.serving.compose` makes, are not among them.
        others: those signatures, and what they compute.
    """

    signatures: Mapping[str, LoadedSignature]
    others: Mapping[str, str]

    def __init__(self, model: SavedModel, mesh: Mesh | None = None) -> None:
        """Take over the value of a file; nothing of it is parsed further."""
        _check_mesh(mesh)
        values = VariableValues(model.variables)
        signatures = {s.key: LoadedSignature(s, model, values, mesh) for s in model.signatures}
        self.others = MappingProxyType(dict(model.others))
        self.signatures = _Signatures(signatures, self.others)
        self._default_key = DEFAULT_SIGNATURE
        if DEFAULT_SIGNATURE not in model.others:
            self._default_key = model.default.key

    @cached_property
    @api_boundary
    def default(self) -> LoadedSignature:
        """The signature that is called when the model is.

        Raises:
            StructureError: it computes something besides calls of JAX functions.
        """
        return self.signatures[self._default_key]

    @property
    def params(self) -> Any:
        """The parameters of the default signature."""
        return self.default.params

    @exempt_from_autograph
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the default signature."""
        try:
            found = self.default.call_plain(args, kwargs)
            return self.default.call_checked(args, kwargs) if found is NotImplemented else found
        except Exception as error:
            leave_out_frames(error)
            raise

    @api_boundary
    def stateful(self) -> StatefulModel:
        """Return the model with parameters of its own, which signatures that assign advance.

        Such a signature returns `(new_params, outputs)` here, and assigns in TensorFlow, as
        `bridge.save(updates=)` has said. There it returns the outputs, and keeps the parameters.

        Example:
            >>> import bridge, jax.numpy as jnp
            >>> def count(state, x):
            ...     return {"n": state["n"] + 1}, state["n"] * x
            >>> params = {"n": jnp.float32(1)}
            >>> saved = bridge.save(count, "my_model", params=params, args="f32[2]", updates=0)
            >>> live = bridge.load("my_model").stateful()
            >>> live(jnp.ones(2)), live(jnp.ones(2))
            (Array([1., 1.], dtype=float32), Array([2., 2.], dtype=float32))
            >>> live.params
            {'n': Array(3., dtype=float32)}
        """
        return StatefulModel(self.signatures, self._default_key)

    def __repr__(self) -> str:
        """The signatures with their inputs."""
        return f"LoadedModel({', '.join(map(repr, self.signatures.values()))})"


def _check_mesh(mesh: Any) -> None:
    if mesh is not None and not (isinstance(mesh, Mesh) and mesh.axis_names):
        raise ShardingError(
            f"mesh is {mesh!r}; expected a jax.sharding.Mesh of devices, with names for its axes. "
            "To do: make one with jax.make_mesh or bridge.meshes.mesh_of."
        )


@shown_as_base
class NoSignatureError(StructureError, KeyError):
    """A file has no signature of a key; mappings say so by a `KeyError`."""

    __str__ = Exception.__str__


class _Signatures(Mapping[str, LoadedSignature]):
    """The signatures that are JAX functions; asked for another one, it says why that is none."""

    def __init__(
        self, signatures: Mapping[str, LoadedSignature], others: Mapping[str, str]
    ) -> None:
        self._signatures, self._others = signatures, others

    @api_boundary
    def __getitem__(self, key: str) -> LoadedSignature:
        if key in self._others:
            keys = ", ".join(map(repr, self._signatures))
            raise StructureError(
                f"{self._others[key]} Those that are JAX functions are {keys}. To do: name one "
                "of these."
            )
        if key not in self._signatures:
            raise NoSignatureError(
                f"There is no signature {key!r}; the file has "
                f"{', '.join(map(repr, [*self._signatures, *self._others]))}. To do: name one of "
                "these."
            )
        return self._signatures[key]

    def __contains__(self, key: object) -> bool:
        return key in self._signatures

    def __iter__(self) -> Iterator[str]:
        return iter(self._signatures)

    def __len__(self) -> int:
        return len(self._signatures)

    def __repr__(self) -> str:
        return repr(self._signatures)
