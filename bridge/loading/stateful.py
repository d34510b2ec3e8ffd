"""`StatefulModel`: a loaded model whose signatures assign its parameters, as in TensorFlow."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from bridge.core.updates import without_updates
from bridge.loading.loaded import LoadedSignature
from xla_call_module.errors import StructureError
from xla_call_module.tracebacks import api_boundary


class StatefulModel:
    """A SavedModel with parameters of its own, which its signatures advance.

    Each signature is an attribute, and a function of its inputs: it returns what TensorFlow's
    function returns, and keeps the new parameters. Calls come one after another, whatever threads
    they are from. Calling the model calls its default signature.

    Attributes:
        signatures: the functions, by their keys.
    """

    signatures: Mapping[str, StatefulSignature]

    def __init__(self, signatures: Mapping[str, LoadedSignature], default_key: str) -> None:
        """Start from the parameters in the file of some signatures."""
        self._state: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._loaded = signatures
        self._default_key = default_key
        self.signatures = _Signatures(signatures, self._state, self._lock)

    @property
    @api_boundary
    def params(self) -> Any:
        """The pytree of the parameters of the default signature as they are now, or None."""
        return self._loaded[self._default_key].params_from(self._state)

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the default signature."""
        return self.signatures[self._default_key](*args, **kwargs)

    def __getattr__(self, key: str) -> StatefulSignature:
        """Return the function of a signature."""
        if key.startswith("__") or key not in self._loaded:
            raise AttributeError(
                f"The model has no signature {key!r}; it has {', '.join(self._loaded)}."
            )
        return self.signatures[key]

    def __repr__(self) -> str:
        """The signatures with their inputs."""
        return f"StatefulModel({', '.join(map(repr, self._loaded.values()))})"


class StatefulSignature:
    """A signature as a function that advances the parameters of its model."""

    def __init__(
        self, signature: LoadedSignature, state: dict[int, Any], lock: threading.Lock
    ) -> None:
        """Take over a signature, and the new values of variables by their indices."""
        self._signature, self._state, self._lock = signature, state, lock

    @api_boundary
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, keep the new parameters, and return the rest of its results."""
        assigned = self._signature.binding.assigned
        with self._lock:
            leaves, tree = self._signature.call_on(self._state, args, kwargs)
            if any(isinstance(leaves[index], jax.core.Tracer) for index in assigned):
                raise StructureError(
                    f"{self._signature.key} updates the parameters of the model, which it cannot "
                    "do inside of jax.jit or another transformation. To do: call "
                    "signature.exported.call(params, ...), which returns them."
                )
            self._state |= {variable: leaves[index] for index, variable in assigned.items()}
        return without_updates(tree, leaves, assigned)

    def __repr__(self) -> str:
        """The key and the inputs."""
        return repr(self._signature)


class _Signatures(Mapping[str, StatefulSignature]):
    """The signatures; asked for one that is no JAX function, it says why."""

    def __init__(
        self,
        signatures: Mapping[str, LoadedSignature],
        state: dict[int, Any],
        lock: threading.Lock,
    ) -> None:
        self._signatures, self._state, self._lock = signatures, state, lock

    @api_boundary
    def __getitem__(self, key: str) -> StatefulSignature:
        return StatefulSignature(self._signatures[key], self._state, self._lock)

    def __iter__(self) -> Iterator[str]:
        return iter(self._signatures)

    def __len__(self) -> int:
        return len(self._signatures)
