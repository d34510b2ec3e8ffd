"""`python -m tests.bridge.lifting.harnesses`: JAX's own examples of its primitives, lifted.

Each harness of `jax._src.internal_test_util.test_harnesses` is exported and lifted, and judged
against the artifact and against the function that was exported: its results, its derivatives
forwards and backwards, and `vmap` of each argument. Printed is a table of the primitives that are
not right throughout, and what each refusal and each fault says.

    python -m tests.bridge.lifting.harnesses [--x64] [--part 0/8] [--only TEXT] [--seed-sample N]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
if __name__ == "__main__":
    from tests.xla_flags import UNOPTIMIZED, with_xla_flags

    os.environ["XLA_FLAGS"] = with_xla_flags(UNOPTIMIZED)

import jax
import jax.numpy as jnp
import numpy as np
from jax import enable_x64, export

import bridge
from xla_call_module.errors import InteropError

WIDE = frozenset({"int64", "uint64", "float64", "complex128"})
# By how many units in the last place of the largest number derivatives may differ, which sum up
# in another order where XLA fuses otherwise.
_DERIVATIVE_ULPS = 256
_RESULT_ULPS = 3
# The primitives whose derivatives in JAX are not those of what they compute, and why.
_OWN_DERIVATIVES: Mapping[str, str] = {
    "stop_gradient": "which nothing in the module says",
}
# The primitives that promise indices in bounds, of which JAX transposes what is beyond otherwise.
_PROMISING = ("gather", "scatter_add")

_FINE = ("right", "absent", "otherwise")


@dataclass(frozen=True)
class Outcome:
    """The outcome of one aspect of one harness.

    Attributes:
        name: the full name of the harness.
        group: its primitive.
        aspect: `call`, `jvp`, `vjp` or `vmap`.
        verdict: `right`, `refused`, `wrong`, `raised`, `absent` where JAX has none, either, or
            `otherwise` where JAX's own derivative is not that of what is computed.
        reason: what was found.
    """

    name: str
    group: str
    aspect: str
    verdict: str
    reason: str = ""


def harnesses(*, x64: bool) -> list[Any]:
    """Return the harnesses for the CPU; without `x64` those that need no dtype of 64 bits."""
    with enable_x64(True):
        from jax._src.internal_test_util import test_harnesses

        found = [h for h in test_harnesses.all_harnesses if h.filter("cpu")]
        return found if x64 else [h for h in found if not _is_wide(h)]


def sample(number: int, *, x64: bool, seed: int = 0) -> list[Any]:
    """Return some harnesses, at least one of each primitive as far as they go."""
    groups: dict[str, list[Any]] = defaultdict(list)
    random = np.random.default_rng(seed)
    every = harnesses(x64=x64)
    for index in random.permutation(len(every)):
        groups[every[index].group_name].append(every[index])
    names = random.permutation(sorted(groups))
    ordered = [
        groups[name][n]
        for n in range(max(map(len, groups.values())))
        for name in names
        if n < len(groups[name])
    ]
    return ordered[:number]


def _is_wide(harness: Any) -> bool:
    if np.dtype(harness.dtype).name in WIDE:
        return True
    leaves = jax.tree.leaves([repr(d) for d in harness.arg_descriptors])
    values = harness.params.values()
    texts = [*leaves, *map(repr, values), harness.fullname]
    return any(wide in text for text in texts for wide in WIDE)


def judge(harness: Any, *, x64: bool) -> list[Outcome]:
    """Return the outcomes of one harness."""

    def outcome(aspect: str, verdict: str, reason: str = "") -> Outcome:
        return Outcome(harness.fullname, harness.group_name, aspect, verdict, reason)

    with enable_x64(x64):
        args, others = (
            [_array(a) for a in harness.dyn_args_maker(np.random.RandomState(seed))]
            for seed in (0, 1)
        )
        try:
            exported = export.export(jax.jit(harness.dyn_fun))(*args)
            expected = jax.jit(exported.call)(*args)
        except Exception as error:  # noqa: BLE001 - whatever JAX says
            return [outcome("call", "absent", f"{type(error).__name__}: {error}"[:200])]
        verdict, reason = _attempt(
            lambda: jax.jit(bridge.to_jax(exported))(*args), expected, _RESULT_ULPS
        )
        outcomes = [outcome("call", verdict, reason)]
        if verdict in ("refused", "raised"):
            return outcomes
        lifted = bridge.to_jax(exported)
        for aspect, transform, tolerance in _transforms(args, others, expected):
            found = _compare_transformed(harness, lifted, transform, args, tolerance)
            if found[0] in ("wrong", "raised") and (why := _otherwise(harness, aspect, args)):
                found = "otherwise", why
            outcomes.append(outcome(aspect, *found))
        return outcomes


def _otherwise(harness: Any, aspect: str, args: Sequence[Any]) -> str:
    """Return why JAX has another derivative than that of what is computed; empty if it has not."""
    if aspect not in ("jvp", "vjp"):
        return ""
    if harness.group_name in _PROMISING:
        is_promised = "PROMISE_IN_BOUNDS" in str(jax.make_jaxpr(harness.dyn_fun)(*args))
        return "indices that are promised in bounds are not" if is_promised else ""
    return _OWN_DERIVATIVES.get(harness.group_name, "")


def _compare_transformed(
    harness: Any, lifted: Any, transform: Any, args: Sequence[Any], tolerance: int
) -> tuple[str, str]:
    try:
        wanted = jax.jit(transform(harness.dyn_fun))(*args)
    except Exception as error:  # noqa: BLE001 - whatever JAX says
        return "absent", f"{type(error).__name__}: {error}"[:200]
    return _attempt(lambda: jax.jit(transform(lifted))(*args), wanted, tolerance)


def _array(value: Any) -> Any:
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def _attempt(run: Callable[[], Any], expected: Any, ulps: int) -> tuple[str, str]:
    try:
        return _verdict(run(), expected, ulps)
    except InteropError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 - which is what is looked for
        return "raised", f"{type(error).__name__}: {error}"[:600]


def _transforms(
    args: Sequence[Any], others: Sequence[Any], results: Any
) -> Iterator[tuple[str, Callable[[Any], Any], int]]:
    """Yield aspects with what makes of a function the one that is judged."""
    moved = [n for n, a in enumerate(args) if jnp.issubdtype(a.dtype, jnp.inexact)]
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(results)]
    if moved and any(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves):
        yield "jvp", lambda f: _pushed(f, moved), _DERIVATIVE_ULPS
        yield "vjp", lambda f: _pulled(f, moved), _DERIVATIVE_ULPS
    for n, arg in enumerate(args):
        both = jnp.stack([arg, others[n]]) if arg.shape == others[n].shape else jnp.stack([arg] * 2)
        axes = tuple(0 if n == other else None for other in range(len(args)))
        yield (
            "vmap",
            lambda f, n=n, both=both, axes=axes: (
                lambda *a: jax.vmap(f, axes)(*a[:n], both, *a[n + 1 :])
            ),
            _DERIVATIVE_ULPS,
        )


def _directions(value: Any, seed: int) -> Any:
    dtype = jnp.asarray(value).dtype
    if not jnp.issubdtype(dtype, jnp.inexact):
        return np.zeros(np.shape(value), jax.dtypes.float0)
    random = np.random.RandomState(seed)
    numbers = random.normal(size=np.shape(value))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        numbers = numbers + 1j * random.normal(size=np.shape(value))
    return jnp.asarray(np.asarray(numbers).astype(dtype))


def _of_moved(function: Any, moved: Sequence[int], args: Sequence[Any]) -> Any:
    def of_moved(*given: Any) -> Any:
        full = list(args)
        for n, value in zip(moved, given, strict=True):
            full[n] = value
        return function(*full)

    return of_moved


def _pushed(function: Any, moved: Sequence[int]) -> Any:
    def pushed(*args: Any) -> Any:
        primals = [args[n] for n in moved]
        tangents = [_directions(value, n) for n, value in enumerate(primals)]
        _, out = jax.jvp(_of_moved(function, moved, args), primals, tangents)
        return [leaf for leaf in jax.tree.leaves(out) if leaf.dtype != jax.dtypes.float0]

    return pushed


def _pulled(function: Any, moved: Sequence[int]) -> Any:
    def pulled(*args: Any) -> Any:
        results, pull = jax.vjp(_of_moved(function, moved, args), *(args[n] for n in moved))
        return pull(jax.tree.map(lambda leaf: _directions(leaf, 7), results))

    return pulled


def _verdict(found: Any, expected: Any, ulps: int) -> tuple[str, str]:
    ours, theirs = jax.tree.leaves(found), jax.tree.leaves(expected)
    if len(ours) != len(theirs):
        return "wrong", f"{len(ours)} results, expected {len(theirs)}"
    for one, other in zip(ours, theirs, strict=True):
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            return "wrong", f"{one.dtype}{one.shape}, expected {other.dtype}{other.shape}"
        if jnp.issubdtype(one.dtype, jax.dtypes.extended):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        mine, wanted = np.asarray(one), np.asarray(other)
        if _differs(mine, wanted, ulps):
            return "wrong", _worst(mine, wanted)
    return "right", ""


def _worst(one: Any, other: Any) -> str:
    """Return some elements that differ, those that differ most first."""
    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    left, right = one.ravel().astype(kind), other.ravel().astype(kind)
    with np.errstate(all="ignore"):
        apart = np.where(np.isnan(left) & np.isnan(right), 0, np.abs(left - right))
    apart = np.where(np.isnan(apart), np.inf, apart)
    order = np.argsort(-apart)[:5]
    return f"{one.dtype}: {left[order]}, expected {right[order]}, of {np.count_nonzero(apart)}"


def _differs(one: Any, other: Any, ulps: int) -> bool:
    if one.tobytes() == other.tobytes():
        return False
    if not jnp.issubdtype(one.dtype, jnp.inexact):
        return True
    if one.dtype.kind == "c" and ulps != _RESULT_ULPS:
        return _differs(*(np.stack([v.real, v.imag]) for v in (one, other)), ulps)
    if one.dtype.kind == "c":
        return _differs(one.real, other.real, ulps) or _differs(one.imag, other.imag, ulps)
    unit = float(jnp.finfo(one.dtype).eps)
    left, right = one.astype(np.float64), other.astype(np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return True
    left, right = left[finite], right[finite]
    scale = np.abs(right) if ulps == _RESULT_ULPS else np.max(np.abs(right), initial=0.0)
    tiny = float(jnp.finfo(one.dtype).tiny)
    return bool((np.abs(left - right) > ulps * unit * scale + tiny).any())


def table(outcomes: Sequence[Outcome]) -> str:
    """Return what became of each aspect, and of each primitive that is not right throughout."""
    lines = []
    for aspect in ("call", "jvp", "vjp", "vmap"):
        counts = Counter(o.verdict for o in outcomes if o.aspect == aspect)
        lines.append(f"{aspect:5} " + ", ".join(f"{n} {v}" for v, n in sorted(counts.items())))
    by_group: dict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.verdict not in _FINE:
            by_group[outcome.group, outcome.aspect, outcome.verdict].append(outcome)
    for (group, aspect, verdict), found in sorted(by_group.items()):
        lines.append(f"{group} {aspect}: {len(found)} {verdict}, such as {found[0].name}")
        lines.append(f"    {found[0].reason}")
    return "\n".join(lines)


def _options() -> Mapping[str, Any]:
    parser = argparse.ArgumentParser(description="JAX's harnesses, lifted.")
    parser.add_argument("--x64", action="store_true")
    parser.add_argument("--part", default="0/1", help="which of how many parts, such as 0/8")
    parser.add_argument("--only", default="", help="a part of the names of harnesses")
    parser.add_argument("--sample", type=int, default=0, help="how many, chosen at random")
    return vars(parser.parse_args())


def main() -> int:
    """Judge the harnesses that the command names; return 1 if one is wrong or raises."""
    options = _options()
    x64 = options["x64"]
    chosen = sample(options["sample"], x64=x64) if options["sample"] else harnesses(x64=x64)
    part, parts = map(int, options["part"].split("/"))
    chosen = [h for h in chosen if options["only"] in h.fullname][part::parts]
    outcomes: list[Outcome] = []
    for number, harness in enumerate(chosen):
        for outcome in judge(harness, x64=x64):
            outcomes.append(outcome)
            if outcome.verdict not in _FINE:
                print(
                    outcome.aspect, outcome.verdict, outcome.name, outcome.reason[:500], flush=True
                )
        if number % 200 == 199:
            print(f"-- {number + 1} of {len(chosen)}", flush=True)
            jax.clear_caches()
    print(table(outcomes))
    return int(any(outcome.verdict in ("wrong", "raised") for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
