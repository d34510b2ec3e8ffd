"""Functions to differentiate, one for each thing that a gradient can stumble over.

Shapes are tiny, because compiling is what the tests of them spend their time with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import enable_x64, export, lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True, slots=True)
class Case:
    """One function, and how it is compared.

    Attributes:
        name: of the test.
        function: in JAX.
        args: the positional arguments.
        kwargs: the keyword arguments.
        shapes: for each of `args` its shape specification in the language of `jax.export`, or None
            for static shapes.
        constraints: between the dimensions.
        platforms: what is lowered for.
        variables: whether the first argument is held in variables.
        x64: whether JAX's 64-bit dtypes are on.
        options: further ones of `assert_gradients_match`.
        refused: modes in which TensorFlow does not get it right: the highest order that it does,
            and what is said of the next one.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    shapes: Sequence[str | None] | None = None
    constraints: Sequence[str] = ()
    platforms: tuple[str, ...] | None = None
    variables: bool = False
    x64: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """JAX's configuration while the case is exported or run."""
        return enable_x64(self.x64)

    def exported(self) -> Callable[..., Any] | export.Exported:
        """The function, exported where it takes more than a call to say how."""
        if self.shapes is None and self.platforms is None:
            return self.function
        specs = self.args
        if self.shapes is not None:
            shapes = [shape or "..." for shape in self.shapes]
            specs = export.symbolic_args_specs(
                self.args, tuple(shapes), constraints=self.constraints
            )
        return export.export(jax.jit(self.function), platforms=self.platforms)(
            *specs, **self.kwargs
        )


class Pair(NamedTuple):
    """A named tuple, whose fields are not in alphabetic order."""

    y: Any
    x: Any


export.register_namedtuple_serialization(Pair, serialized_name="tests.gradient_functions.Pair")


def _floats(*shape: int, low: float = -1.7, high: float = 1.9, dtype: Any = np.float64) -> Any:
    """Evenly spread values in an irregular order, no two equal and none of them zero."""
    size = int(np.prod(shape))
    order = (np.arange(size) * 7919 + 3) % max(size, 1)
    return (low + (high - low) * (order + 0.43) / max(size, 1)).astype(dtype).reshape(shape)


def _complex(*shape: int) -> Any:
    return _floats(*shape) + 1j * _floats(*shape, low=-0.9, high=2.3)


_X = _floats(2, 3)
_POSITIVE = _floats(2, 3, low=0.3, high=2.0)
_Z = _complex(2, 3)
_KEY = np.array([3, 5], np.uint32)


# Mathematics


def _elementwise(x: Any, y: Any) -> Any:
    return jnp.sin(x) * jnp.exp(y) + jnp.log1p(y * y) / (2 + jnp.cos(x)), jnp.arctan2(y, x)


def _softmax(x: Any) -> Any:
    return jax.nn.softmax(x) * x, jax.nn.logsumexp(x, axis=0)


def _einsum(a: Any, b: Any, c: Any) -> Any:
    return jnp.einsum("bij,bjk,k->bi", a, b, c), jnp.einsum("bii->b", a[:, :, :2] ** 2)


def _sort(x: Any) -> Any:
    values, indices = lax.top_k(x**2, 2)
    return jnp.sort(x**3, axis=1), values, indices


# Control flow, and what tells JAX how to differentiate


def _scan(start: Any, rows: Any) -> Any:
    return lax.scan(lambda carry, row: (jnp.tanh(carry * row), carry + row**2), start, rows)


def _fori_loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda i, x: jnp.sin(x) * (i + 1), x)


@jax.checkpoint
def _checkpoint(w: Any, x: Any) -> Any:
    return jnp.sin(jnp.tanh(x @ w) ** 2)


@jax.custom_vjp
def _clipped(x: Any) -> Any:
    return x**2


# Not the derivative: whoever differentiates the function itself is found out.
_clipped.defvjp(lambda x: (x**2, x), lambda x, cotangent: (3 * cotangent * jnp.sin(x),))


@jax.custom_jvp
def _bent(x: Any, y: Any) -> Any:
    return x * y


@_bent.defjvp
def _bent_jvp(primals: Any, tangents: Any) -> Any:
    (x, y), (dx, dy) = primals, tangents
    return _bent(x, y), 2 * y**2 * dx + jnp.cos(x) * dy


def _stop_gradient(x: Any, y: Any) -> Any:
    return x * lax.stop_gradient(y**2), lax.stop_gradient(x), y + lax.stop_gradient(x * y)


def _gradient_inside(x: Any) -> Any:
    return jax.grad(lambda x: (jnp.sin(x) * x**2).sum())(x)


# Arguments and results


def _network(params: Any, x: Any) -> Any:
    (layer, again), last = params["layers"], params["last"]
    x = (x * layer["w"] + layer["b"]) ** 2 * again["w"]
    return {"y": x.sum(1), "hidden": (Pair(y=x * last.x, x=last.y), None, []), "size": x.size}


def _network_params() -> Any:
    return {
        "layers": [{"w": _floats(3), "b": _floats(3)}, {"w": _floats(3, low=-1)}],
        "last": Pair(y=np.float64(0.3), x=_floats(3)),
        "step": np.int32(3),
        "none": None,
    }


def _unused(x: Any, unused: Any, count: Any, *, scale: Any) -> Any:
    return x**3 * scale["used"]


def _passed_on(x: Any, n: Any, y: Any) -> Any:
    return x, n, x * y, y


def _twice(x: Any) -> Any:
    y = jnp.sin(x)
    return {"first": y, "second": y, "third": [x, x]}


def _empty(x: Any, nothing: Any) -> Any:
    return x[:0] ** 2, nothing * 2, jnp.sin(x), jnp.zeros((0,), np.int32)


def _constant(x: Any) -> Any:
    return jnp.sin(x), np.float64(2.5), jnp.arange(3), x * 0


def _linear(x: Any, y: Any) -> Any:
    return 3 * x - y.sum(0), x.T


def _integers(x: Any, n: Any, mask: Any) -> Any:
    return {
        "masked": jnp.where(mask, x**2, x) * n,
        "argmax": jnp.argmax(x, axis=1),
        "above": x > 0.5,
        "n": n + 1,
    }


def _weak(x: Any, scale: Any, count: Any) -> Any:
    return x**2 * scale, jnp.sin(scale) * count


def _keys(key: Any, x: Any) -> Any:
    kept = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.where(kept, x**3, 0) + jax.random.uniform(key), jax.random.split(key)


# Dtypes


def _dtypes(**arrays: Any) -> Any:
    return {name: jnp.sin(array) * array for name, array in arrays.items()}


def _mixed(w: Any, x: Any) -> Any:
    hidden = jnp.sin(x.astype(w.dtype) * w)
    return hidden, hidden.astype(np.float32) ** 2 * x


def _float8(x: Any, scale: Any) -> Any:
    return x.astype(np.float32) * scale**2


def _float8_result(x: Any, scale: Any) -> Any:
    return jnp.sin(scale), scale.astype(x.dtype), x


def _to_float8(x: Any) -> Any:
    return x.astype(ml_dtypes.float8_e4m3fn).astype(x.dtype) * x


def _products(z: Any, w: Any) -> Any:
    return z * jnp.conj(w) * z, (z @ w.T) ** 2, z / (w + 3)


def _to_complex(x: Any, y: Any) -> Any:
    return lax.complex(x**2, x * y), jnp.exp(1j * x) * y


def _fft(z: Any, x: Any) -> Any:
    return jnp.fft.fft(z) ** 2, jnp.fft.irfft(jnp.fft.rfft(x) ** 2)


# Shapes, platforms, devices


def _grows(x: Any, y: Any) -> Any:
    return {
        "joined": jnp.concatenate([x**2, y * x], axis=0),
        "shorter": jnp.diff(x, axis=0) * x[1:] ** 2,
        "mean": (x * y).mean(0),
        "rows": jnp.arange(x.shape[0]),
    }


def _shrinks(joined: Any) -> Any:
    half = joined.shape[0] // 2
    return joined[:half] * joined[half:] ** 2, joined.reshape(-1) ** 2


def _attention(params: Any, x: Any) -> Any:
    scores = (x * params["q"]) @ (x * params["k"]).T
    return jnp.sin(scores) @ x, jnp.argmax(scores, axis=1)


def _on_platform(x: Any) -> Any:
    return lax.platform_dependent(x, cpu=lambda x: x**3, default=lambda x: jnp.sin(x))


def _sharded() -> Any:
    mesh = Mesh(np.array(jax.devices()[:1]), ("batch",))
    rows = NamedSharding(mesh, PartitionSpec("batch"))
    inner = lambda x, w: lax.with_sharding_constraint(jnp.tanh(x @ w), rows) ** 2  # noqa: E731
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.jit(inner, in_shardings=(rows, whole), out_shardings=rows)


# An eager tape fills in what is missing of the cotangents with zeros, and TensorFlow can make none
# of float8, because it casts them from int64.
_NO_FLOAT8_ZEROS = "returned a result with an exception set"

CASES = (
    Case("elementwise", _elementwise, (_X, _floats(2, 3, low=-1))),
    Case("softmax", _softmax, (_X,)),
    Case("einsum", _einsum, (_floats(2, 2, 3), _floats(2, 3, 2), _floats(2))),
    Case("sort", _sort, (_X,)),
    Case("scan", _scan, (_floats(3), _floats(2, 3))),
    Case("fori_loop", _fori_loop, (_X,)),
    Case("checkpoint", _checkpoint, (_floats(3, 2), _X)),
    Case("custom_vjp", lambda x: _clipped(x) * x, (_X,)),
    Case("custom_jvp", _bent, (_X, _floats(2, 3, low=-1))),
    Case("stop_gradient", _stop_gradient, (_X, _floats(2, 3, low=-1))),
    Case("gradient inside", _gradient_inside, (_X,)),
    Case("pytrees", _network, (_network_params(), _X)),
    Case("variables", _network, (_network_params(), _X), variables=True),
    Case(
        "unused",
        _unused,
        (_X, _X, np.int32(2)),
        {"scale": {"used": _floats(3), "not": _X}},
    ),
    Case("results that are inputs", _passed_on, (_X, np.int64(4), _floats(3))),
    Case("results that appear twice", _twice, (_X,)),
    Case("empty", _empty, (_X, np.zeros((0, 2)))),
    Case("constant results", _constant, (_X,)),
    Case("linear", _linear, (_floats(3), _X)),
    Case("integers and booleans", _integers, (_X, np.int32(3), _X > 0)),
    Case("Python numbers", _weak, (_X, 1.5, 2)),
    Case("keys", _keys, (jax.random.wrap_key_data(_KEY), _X)),
    Case("float32", _dtypes, (), {"x": _floats(2, 3, dtype=np.float32)}, x64=False),
    Case(
        "half precision",
        _dtypes,
        (),
        {"bf16": _floats(3, dtype=ml_dtypes.bfloat16), "f16": _floats(3, dtype=np.float16)},
        x64=False,
    ),
    Case(
        "mixed precision",
        _mixed,
        (_floats(3, dtype=ml_dtypes.bfloat16), _floats(2, 3, dtype=np.float32)),
        x64=False,
    ),
    Case(
        "float8",
        _float8,
        (_floats(3, dtype=ml_dtypes.float8_e4m3fn), _floats(3, dtype=np.float32)),
        x64=False,
        # The gradient of order 1 has a result for the float8 argument.
        refused=dict.fromkeys(("saved", "resaved", "tf_saved"), (1, _NO_FLOAT8_ZEROS)),
    ),
    Case(
        "float8 results",
        _float8_result,
        (_floats(3, dtype=ml_dtypes.float8_e5m2), _floats(3, dtype=np.float32)),
        x64=False,
        # In a file it is the graph that has the result of order 0.
        refused={
            "saved": (1, _NO_FLOAT8_ZEROS),
            "resaved": (1, _NO_FLOAT8_ZEROS),
            "tf_saved": (1, _NO_FLOAT8_ZEROS),
        },
    ),
    Case("through float8", _to_float8, (_floats(3, dtype=np.float32),), x64=False),
    Case("complex products", _products, (_Z, _complex(2, 3)[::-1])),
    Case("real to complex", _to_complex, (_X, _floats(3))),
    Case("fft", _fft, (_complex(2, 4), _floats(4))),
    Case("complex64", jnp.tanh, (_Z.astype(np.complex64),), x64=False),
    Case(
        "dimensions 2*b and b-1",
        _grows,
        (_floats(3, 2), _floats(3, 2)),
        shapes=("b, 2", "b, 2"),
        constraints=("b >= 2",),
    ),
    Case("argument of 2*b", _shrinks, (_floats(4, 2),), shapes=("2*b, 2",)),
    Case(
        "integer results of a dynamic batch",
        _attention,
        ({"q": _floats(3), "k": _floats(3, low=-1)}, _X),
        shapes=(None, "b, 3"),
        variables=True,
    ),
    Case("several platforms", _on_platform, (_X,), platforms=("cpu", "cuda", "tpu")),
    Case("shardings", _sharded(), (_X, _floats(3, 2))),
)
