"""Functions, parameters and arguments, one named case for each thing that a file must carry.

The same list is written by a process without TensorFlow and run by every loader, so a case says
all that both need: what is exported, how, and how closely TensorFlow must agree with JAX.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64, export, lax

import bridge
from savedmodel.model import DEFAULT_SIGNATURE
from xla_call_module.dtypes import DTYPES, DType

# What two XLA versions, or one with different flags, may differ by.
ROUNDING = "sums and products are fused and vectorized differently by the two XLA versions"
APPROXIMATION = "the two XLA versions have different polynomials for it; a few units in the last"


@jax.custom_jvp
def exponential(x: Any) -> Any:
    """An exponential that is a composite, as its derivatives are, which TensorFlow 2.18 runs."""
    return lax.composite(jnp.exp, name="tests.exponential")(x)


exponential.defjvps(lambda tangent, result, x: tangent * result)


@dataclass(frozen=True, slots=True)
class Case:
    """The content of one file, and the calls that are run in it.

    Attributes:
        name: of the test and of the folder.
        functions: for each signature key a function; its first argument is `params`, if there are
            any.
        args: the positional arguments after `params`.
        kwargs: the keyword arguments.
        params: a callable without arguments, or None for no parameters.
        polymorphic: for each of `args` its shape specification, in the language of `jax.export`.
        platforms: what is lowered for.
        tolerance: by which part of the largest result TensorFlow may differ from JAX; 0 for
            equal bits.
        reason: why it may differ at all.
        differentiable: whether reverse mode is possible.
        x64: whether 64-bit dtypes are on.
        batch_buckets: what batches are padded to.
    """

    name: str
    functions: Mapping[str, Callable[..., Any]]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    params: Callable[[], Any] | None = None
    polymorphic: Sequence[Any] | None = None
    platforms: tuple[str, ...] = ("cpu",)
    tolerance: float = 0.0
    reason: str = ""
    differentiable: bool = True
    x64: bool = False
    batch_buckets: tuple[int, ...] | None = None

    @property
    def default(self) -> str:
        """The key of the function that the root object calls."""
        return next(iter(self.functions))

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """JAX's configuration while the case is exported or run."""
        return enable_x64(self.x64)

    def leading(self) -> tuple[Any, ...]:
        """The parameters, as the first arguments."""
        return () if self.params is None else (self.params(),)

    def export(self) -> dict[str, export.Exported]:
        """An `Exported` for each signature."""
        with self.context():
            specs = self.args
            if self.polymorphic is not None:
                specs = export.symbolic_args_specs(self.args, tuple(self.polymorphic))
            return {
                key: export.export(jax.jit(function), platforms=self.platforms)(
                    *self.leading(), *specs, **self.kwargs
                )
                for key, function in self.functions.items()
            }

    def save(self, folder: Path) -> None:
        """The case as a SavedModel."""
        with warnings.catch_warnings(), self.context():
            if not self.differentiable:
                warnings.filterwarnings("ignore", ".* is saved without a gradient", UserWarning)
            params = {} if self.params is None else {"params": self.params()}
            bridge.save(self.export(), folder, batch_buckets=self.batch_buckets, **params)

    def results(self, key: str = DEFAULT_SIGNATURE) -> Any:
        """Return what JAX computes."""
        with self.context():
            return jax.jit(self.functions[key])(*self.leading(), *self.args, **self.kwargs)


class Point(NamedTuple):
    """A named tuple, whose fields are not in alphabetic order."""

    y: Any
    x: Any


@jax.tree_util.register_pytree_with_keys_class
@dataclass
class Layer:
    """A class that JAX knows as a pytree node."""

    weight: Any
    bias: Any

    def tree_flatten_with_keys(self) -> tuple[Any, None]:
        """Children with their attributes' names."""
        key = jax.tree_util.GetAttrKey
        return ((key("weight"), self.weight), (key("bias"), self.bias)), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> Layer:
        """The inverse."""
        return cls(*children)


export.register_namedtuple_serialization(Point, serialized_name="tests.Point")
export.register_pytree_node_serialization(
    Layer,
    serialized_name="tests.Layer",
    serialize_auxdata=lambda _: b"",
    deserialize_auxdata=lambda _: None,
)


def _range(*shape: int, dtype: Any = np.float32, scale: float = 1.0) -> Any:
    return ((np.arange(np.prod(shape, dtype=int)) - 2) * scale).astype(dtype).reshape(shape)


def several(params: Any, x: Any, y: Any, z: Any) -> Any:
    """Three inputs, three results."""
    return x @ params["w"] + params["b"], y * 3, jnp.where(z, x, -x)


def containers(params: Any, tree: Any, pair: Any, *, point: Any) -> Any:
    """Every container that JAX knows, as parameters, arguments and results."""
    layers, (scale, nothing) = params["layers"], params["pair"]
    assert nothing is None
    total = sum(layer.weight + layer.bias for layer in layers) * scale
    return {
        "list": [tree["a"][0] + 1, (tree["a"][1][0] * total, None)],
        "point": Point(x=point.x - point.y, y=[point.y * params["point"].y]),
        "layer": Layer(weight=tree["layer"].bias, bias=tree["layer"].weight * 2),
        "ordered": OrderedDict(z=tree["ordered"]["z"] - 1, a=tree["ordered"]["a"] - 2),
        "numbers": {10: tree["numbers"][10] * 10, 9: tree["numbers"][9] * 9},
        "pair": (pair[1], pair[0] + params["numbers"][2] + params["ordered"]["z"]),
        "empty": ((), {}, [None]),
    }


def containers_params() -> Any:
    """Parameters in every container."""
    return {
        "layers": [Layer(_range(2), _range(2) + 3), Layer(_range(2) * 2, _range(2) - 1)],
        "pair": (np.float32(0.5), None),
        "point": Point(y=np.float32(3), x=np.float32(4)),
        "ordered": OrderedDict(z=np.float32(1), a=np.float32(2)),
        "numbers": {2: np.float32(2), 10: np.float32(10)},
        "a/b.c": np.float32(7),
    }


def unused(params: Any, x: Any, y: Any, *, flag: Any) -> Any:
    """Neither every parameter nor every argument matters."""
    return {"used": x + params["used"]}


def constant(params: Any) -> Any:
    """No arguments."""
    return params["w"] * 2


def scalars(params: Any, x: Any, n: Any) -> Any:
    """Nothing has a dimension."""
    return x * params + n, n + 1


def empty(params: Any, x: Any) -> Any:
    """Arrays without elements."""
    return jnp.concatenate([x, params]), x.sum(), x[:, :1]


def half(params: Any, x: Any) -> Any:
    """Sums that are whole numbers, so that no order of them rounds."""
    return x @ params["w"], x * 2, x.astype(jnp.float32)


def integers(params: Any, x: Any, y: Any) -> Any:
    """Everything that has no gradient."""
    return x // params["n"], y ^ y[::-1], x > 0, x.sum()


def octets(params: Any, x: Any) -> Any:
    """Unsigned arithmetic, which wraps."""
    return x // params["n"], x * 100, lax.population_count(x)


def symbolic(params: Any, x: Any, y: Any) -> Any:
    """Results whose shapes follow from two symbols."""
    b, t, _ = x.shape
    doubled = y.reshape((b, 2)) * params["scale"]
    return {
        "flat": x.reshape((b * t, 3)),
        "sum": x.sum(axis=2) + doubled.sum(axis=1)[:, None],
        "size": jnp.full((t,), b, jnp.int32),
        "y": y + 1,
    }


def loop(params: Any, x: Any) -> Any:
    """As many steps as the data ask for: no reverse mode."""

    def step(state: Any) -> Any:
        count, value = state
        return count + 1, value * params["factor"]

    return lax.while_loop(lambda state: state[1].sum() < 1000, step, (jnp.int32(0), x))


def scan(params: Any, x: Any) -> Any:
    """A recurrence, with reverse mode."""
    return lax.scan(lambda carry, row: (carry * params + row, carry), jnp.zeros(3), x)


def many(params: Any, x: Any) -> Any:
    """Every parameter matters in its own way."""
    scale = jnp.stack([layer["scale"] for layer in params])
    shift = jnp.stack([layer["shift"] for layer in params])
    place = jnp.arange(1.0, len(params) + 1)
    return ((scale * x[:, None] + shift) * place).sum(axis=1)


def predict(params: Any, x: Any) -> Any:
    """A small network."""
    return jnp.tanh(x @ params["w"] + params["b"])


def loss(params: Any, x: Any) -> Any:
    """Another function of the same parameters."""
    return {"loss": jnp.square(x @ params["w"]).sum()}


def compose(x: Any) -> Any:
    """Compute functions that StableHLO has as composites or CHLO operations only."""
    inside = lax.clamp(-0.9, x, 0.9)
    return {
        "erf": lax.erf(x),
        "gelu": jax.nn.gelu(x, approximate=False),
        "sinh": jnp.sinh(x),
        "cosh": jnp.cosh(x),
        "asin": jnp.arcsin(inside),
        "acos": jnp.arccos(inside),
        "asinh": jnp.arcsinh(x),
        "acosh": jnp.arccosh(jnp.abs(x) + 1.5),
        "atanh": jnp.arctanh(inside),
        "ndtr": jax.scipy.special.ndtr(x),
        "log_ndtr": jax.scipy.special.log_ndtr(x),
    }


def top(x: Any) -> Any:
    """Values and where they are."""
    values, indices = lax.top_k(x, 2)
    return values, indices


def random(params: Any, key: Any) -> Any:
    """Typed keys in and out, in parameters too; the normal numbers come from the key."""
    first, second = jax.random.split(key)
    return {
        "key": first,
        "stored": params["key"],
        "bits": jax.random.bits(second, (3,)),
        "truncated": jax.random.truncated_normal(second, -1.0, 1.0, (4,)),
    }


def complexes(params: Any, z: Any) -> Any:
    """Complex numbers, real and imaginary parts."""
    return z * params["c"], z.real, jnp.conj(z)


def places(x: Any) -> Any:
    """A module that knows on which platform it is."""
    return lax.platform_dependent(x, cpu=lambda x: x + 1, cuda=lambda x: x + 2)


def same(params: Any, x: Any) -> Any:
    """Bits in, the same bits out, as they are and in another order."""
    return {
        "args": x,
        "params": params,
        "reversed": {name: value[::-1] for name, value in x.items()},
        "chosen": {name: jnp.where(x["bool"][0], x[name], params[name]) for name in x},
    }


def passed(params: Any, x: Any) -> Any:
    """Bits in, the same bits out."""
    return {"args": x, "params": params}


def rows(params: Any, x: Any, i: Any, scale: Any) -> Any:
    """Results with and without the batch."""
    y = x @ params["w"] + params["b"]
    return {"y": y * scale, "i": i + 1, "norm": scale * jnp.sum(params["b"])}


def same_rows(x: Any) -> Any:
    """Return the arguments."""
    return x


def bit_patterns(dtype: DType) -> Any:
    """512 values of a dtype: special ones, subnormals, NaNs with payloads, and random bits.

    Every value of a dtype with one byte is among them, and both of bool.
    """
    if dtype.name == "bool":
        return np.arange(512) % 3 == 0
    if dtype.itemsize == 1:
        return np.tile(np.arange(256, dtype=np.uint8), 2).view(dtype.numpy)
    bits = np.random.default_rng(dtype.enum).integers(0, 256, (512, dtype.itemsize), np.uint8)
    bits[0], bits[1], bits[2] = 0, 255, [0] * (dtype.itemsize - 1) + [128]
    bits[3] = [255] * (dtype.itemsize - 1) + [127]
    bits[4] = [1] + [0] * (dtype.itemsize - 1)
    return bits.reshape(-1).view(dtype.numpy)


def _dtypes(*, float8: bool) -> dict[str, Any]:
    return {
        dtype.name: bit_patterns(dtype)
        for dtype in DTYPES
        if dtype.name.startswith("float8") == float8
    }


def _all_dtypes() -> dict[str, Any]:
    return _dtypes(float8=False) | _dtypes(float8=True)


def _weights() -> dict[str, Any]:
    return {"w": _range(3, 2, scale=0.25), "b": np.array([0.5, -0.5], np.float32)}


def _single(function: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {DEFAULT_SIGNATURE: function}


CASES = (
    Case(
        "several",
        _single(several),
        (_range(2, 3), _range(4, dtype=np.int32), np.array([[True], [False]])),
        params=_weights,
        tolerance=1e-6,
        reason=ROUNDING,
    ),
    Case(
        "containers",
        _single(containers),
        (
            {
                "a": [_range(2), (_range(2) + 1, None)],
                "layer": Layer(weight=_range(1) + 5, bias=_range(2) + 6),
                "ordered": OrderedDict(z=_range(2) + 7, a=_range(3) + 8),
                "numbers": {10: _range(2) + 9, 9: _range(1) + 10},
            },
            (_range(2) + 11, _range(2) + 12),
        ),
        kwargs={"point": Point(x=_range(2) + 13, y=_range(2) + 14)},
        params=containers_params,
    ),
    Case("no_parameters", _single(lambda x, y: (x + y, x * y)), (_range(3), _range(3) + 1)),
    Case(
        "unused",
        _single(unused),
        (_range(3), _range(2, dtype=np.int32)),
        kwargs={"flag": np.array(True)},
        params=lambda: {"used": _range(3) * 2, "unused": _range(5), "last": np.int32(3)},
    ),
    Case("no_arguments", _single(constant), params=lambda: {"w": _range(2, 2)}),
    Case(
        "scalars", _single(scalars), (np.float32(1.5), np.int32(7)), params=lambda: np.float32(2.5)
    ),
    Case(
        "empty", _single(empty), (np.zeros((0, 3), np.float32),), params=lambda: _range(0, 3)
    ),
    Case(
        "bfloat16",
        _single(half),
        (_range(2, 3, dtype=jnp.bfloat16),),
        params=lambda: {"w": _range(3, 2, dtype=jnp.bfloat16)},
    ),
    Case(
        "integers",
        _single(integers),
        (_range(2, 3, dtype=np.int32), _range(4, dtype=np.int32)),
        params=lambda: {"n": np.int32(2)},
        polymorphic=("b, 3", "4"),
    ),
    Case(
        "bytes",
        _single(octets),
        (np.arange(256, dtype=np.uint8),),
        params=lambda: {"n": np.uint8(3)},
    ),
    Case(
        "symbols",
        _single(symbolic),
        (_range(2, 4, 3), _range(4)),
        params=lambda: {"scale": np.float32(0.5)},
        polymorphic=("b, t, 3", "2*b"),
    ),
    Case(
        "while_loop",
        _single(loop),
        (_range(3) + 3,),
        params=lambda: {"factor": np.float32(2)},
        polymorphic=("n",),
        differentiable=False,
    ),
    Case("scan", _single(scan), (_range(4, 3),), params=lambda: np.float32(0.5)),
    Case(
        "many_variables",
        _single(many),
        (_range(2),),
        params=lambda: [
            {"scale": np.float32(1 - 2 * (i % 2)), "shift": np.float32(i)} for i in range(100)
        ],
    ),
    Case(
        "two_signatures",
        {"predict": predict, "loss": loss},
        (_range(4, 3),),
        params=_weights,
        polymorphic=("b, 3",),
        tolerance=1e-6,
        reason=f"{ROUNDING}; tanh: {APPROXIMATION}",
    ),
    Case(
        "composites",
        _single(compose),
        (_range(8, scale=0.3),),
        tolerance=2e-6,
        reason=APPROXIMATION,
    ),
    Case("top_k", _single(top), (_range(2, 5) % 3,)),
    Case(
        "keys",
        _single(random),
        (jax.random.key(1),),
        params=lambda: {"key": jax.random.key(2, impl="rbg")},
        tolerance=1e-6,
        reason=f"erf_inv in truncated_normal: {APPROXIMATION}",
    ),
    Case(
        "complex",
        _single(complexes),
        (np.array([1 + 2j, -3 + 0.5j], np.complex64),),
        params=lambda: {"c": np.complex64(2 - 1j)},
    ),
    Case("two_platforms", _single(places), (_range(3),), platforms=("cpu", "cuda")),
    Case("all_dtypes", _single(same), (_all_dtypes(),), params=_all_dtypes, x64=True),
    Case(
        "passed_on",
        _single(passed),
        (_dtypes(float8=False),),
        params=lambda: _dtypes(float8=False),
        x64=True,
    ),
    Case(
        "float8", _single(passed), (_dtypes(float8=True),), params=lambda: _dtypes(float8=True)
    ),
    Case(
        "batch_buckets",
        _single(rows),
        (_range(5, 3), np.arange(5, dtype=np.int32), np.float32(2)),
        params=_weights,
        polymorphic=("b, 3", "b", ""),
        tolerance=1e-6,
        reason=ROUNDING,
        batch_buckets=(1, 8),
    ),
    Case(
        "buckets_of_all_dtypes",
        _single(same_rows),
        (_dtypes(float8=False),),
        polymorphic=("b",),
        x64=True,
        batch_buckets=(8, 600),
    ),
)  # fmt: skip
BY_NAME = {case.name: case for case in CASES}


def write_all(folder: str) -> None:
    """Every case as a SavedModel below a folder."""
    for case in CASES:
        case.save(Path(folder, case.name))
