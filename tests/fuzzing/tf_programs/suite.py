"""The suite of TensorFlow functions: each is called from JAX in several ways, and compared."""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import tensorflow as tf
from jax import lax, tree_util

import bridge
from bridge.checking_gradients.pullbacks import jax_jvp
from tests.fuzzing.programs.accuracy import QUICKLY
from tests.fuzzing.programs.case import Orders, pullbacks
from tests.fuzzing.programs.checks import Found
from tests.fuzzing.programs.outcomes import Outcome, of_exception
from tests.fuzzing.programs.program import Program
from tests.fuzzing.programs.suite import compare
from tests.fuzzing.tf_programs.case import TensorFlowCase
from tests.fuzzing.tf_programs.generating import generate

__all__ = ["CHECKS", "clear", "generate", "run", "simpler"]

Flat = Callable[[Sequence[Any]], list[Any]]
quickly = functools.partial(jax.jit, compiler_options=QUICKLY)


def clear() -> None:
    """Forget what was compiled."""
    jax.clear_caches()
    tf.keras.backend.clear_session()


def simpler(program: Program) -> Iterator[Program]:
    """No more than what the reducer knows by itself."""
    del program
    yield from ()


def run(program: Program) -> list[Outcome]:
    """Return what comes of each check of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [_check(program, name) for name in program.checks]


def _check(program: Program, name: str) -> Outcome:
    case = TensorFlowCase(program, jvp=name == "jvp")
    compared = skipped = 0
    reason = _prepare(case)
    if reason:
        return Outcome(name, "inapplicable", reason)
    try:
        for found in CHECKS[name](case):
            difference = compare(case, found)  # type: ignore[arg-type]
            compared += difference.size
            skipped += difference.skipped
            if difference.text:
                return Outcome(name, "wrong", difference.text, compared, skipped)
    except Exception as error:  # noqa: BLE001 - sorted into refusals and crashes
        return of_exception(name, error, compared=compared, skipped=skipped)
    return Outcome(name, "right", "", compared, skipped)


def _prepare(case: TensorFlowCase) -> str:
    """Return why TensorFlow has nothing to compare with; a lower order without a gradient."""
    while True:
        try:
            if not case.inputs or not case.results:
                case.order = 0
                if case.jvp:
                    return "nothing is differentiated"
            for sizes in case.batches:
                case.reference(sizes, case.order)
        except Exception as error:  # noqa: BLE001 - whatever TensorFlow raises
            if not case.order or case.jvp:
                return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            case.order -= 1
        else:
            return ""


def _call(case: TensorFlowCase, **options: Any) -> Flat:
    """The function of flat JAX arrays."""
    called = bridge.call_tf(case.function, **options)
    is_argument = options.get("variables") == "argument"

    def flat(leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = case.unflatten(leaves)
        first = (called.variables(*args, **kwargs),) if is_argument else ()
        return tree_util.tree_leaves(called(*first, *args, **kwargs))

    return flat


def _variables(case: TensorFlowCase) -> Mapping[str, str]:
    return {"variables": case.program.option("variables", "live")}


def _pulled(case: TensorFlowCase, flat: Flat) -> Callable[[list[Any], Orders], Orders]:
    def run(leaves: list[Any], cotangents: Orders) -> Orders:
        return pullbacks(flat, case.inputs, case.results, leaves, cotangents)

    return run


def _to_numpy(orders: Any) -> Any:
    return tree_util.tree_map(np.asarray, orders)


def check_eager(case: TensorFlowCase) -> Iterator[Found]:
    """Called on arrays."""
    run = _pulled(case, _call(case, **_variables(case)))
    for sizes in case.batches:
        found = run(case.leaves(sizes), case.cotangents(sizes, case.order))
        yield Found("eager", sizes, _to_numpy(found))


def check_jit(case: TensorFlowCase) -> Iterator[Found]:
    """In a compiled program."""
    run = quickly(_pulled(case, _call(case, **_variables(case))))
    for sizes in case.batches:
        found = run(case.leaves(sizes), case.cotangents(sizes, case.order))
        yield Found("jit", sizes, _to_numpy(found))


def check_export(case: TensorFlowCase) -> Iterator[Found]:
    """In what is exported, once for each size."""
    flat = _call(case, variables="constant")
    for number, sizes in enumerate(case.batches):
        order = 0 if number else case.order
        exported = jax.export.export(jax.jit(lambda *leaves: flat(leaves)))(*case.specs_at(sizes))
        exported = jax.export.deserialize(exported.serialize(vjp_order=order))
        call = exported.call
        run = quickly(_pulled(case, lambda leaves, call=call: list(call(*leaves))))
        yield Found(
            "export", sizes, _to_numpy(run(case.leaves(sizes), case.cotangents(sizes, order)))
        )


def check_graph(case: TensorFlowCase) -> Iterator[Found]:
    """Kept as TensorFlow's in what is exported and saved, for every size where that is declared."""
    declares = bool(case.program.symbols) and case.shapes is not None
    shapes = {"shapes": case.shapes} if declares else {}
    flat = _call(case, graph=True, variables="constant", **shapes)
    for batches in [case.batches] if declares else [(sizes,) for sizes in case.batches]:
        specs = case.specs if declares else case.specs_at(batches[0])
        exported = jax.export.export(jax.jit(lambda *leaves: flat(leaves)))(*specs)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model")
            bridge.save(exported, path, gradient_order=0)
            loaded = tf.saved_model.load(path)
            for sizes in batches:
                found = loaded(*map(tf.constant, case.leaves(sizes)))
                arrays = [np.asarray(x.numpy(), x.dtype.as_numpy_dtype) for x in found]
                yield Found("graph", sizes, [arrays])


def check_callback(case: TensorFlowCase) -> Iterator[Found]:
    """Run in TensorFlow."""
    args, kwargs = case.unflatten(case.leaves(case.batches[0]))
    shapes = jax.eval_shape(bridge.call_tf(case.function), *args, **kwargs)
    run = quickly(_pulled(case, _call(case, compiled=False, shapes=shapes)))
    for sizes in case.batches[:1]:
        found = run(case.leaves(sizes), case.cotangents(sizes, case.order))
        yield Found("callback", sizes, _to_numpy(found))


def check_vmap(case: TensorFlowCase) -> Iterator[Found]:
    """Mapped over two sets of arguments."""
    yield from _over_two(case, "vmap", jax.vmap)


def check_scan(case: TensorFlowCase) -> Iterator[Found]:
    """In a loop over two sets of arguments."""

    def over(run: Any) -> Any:
        return lambda *stacked: lax.scan(lambda c, x: (c + 1, run(*x)), 0, stacked)[1]

    yield from _over_two(case, "scan", over)


def _over_two(case: TensorFlowCase, label: str, over: Any) -> Iterator[Found]:
    sizes = case.batches[0]
    run = quickly(over(_pulled(case, _call(case, **_variables(case)))))
    given = case.leaves(sizes), case.cotangents(sizes, case.order)
    others = case.leaves(sizes, other=True), given[1]
    for place, pair in enumerate([(given, others), (others, given)]):
        found = run(*tree_util.tree_map(lambda *leaves: np.stack(leaves), *pair))
        yield Found(label, sizes, tree_util.tree_map(lambda x, i=place: np.asarray(x[i]), found))


def check_jvp(case: TensorFlowCase) -> Iterator[Found]:
    """Forward mode."""
    flat, sizes = _call(case, **_variables(case)), case.batches[0]
    leaves = case.leaves(sizes)

    def function(inputs: list[Any]) -> tuple[list[Any], list[Any]]:
        replaced = dict(zip(case.inputs, inputs, strict=True))
        found = flat([replaced.get(i, leaf) for i, leaf in enumerate(leaves)])
        return [found[i] for i in case.results], found

    found = jax_jvp(function, [leaves[i] for i in case.inputs], case.tangents(sizes))
    yield Found("jvp", sizes, [_to_numpy(found)])


CHECKS: Mapping[str, Callable[[TensorFlowCase], Iterator[Found]]] = {
    "eager": check_eager,
    "jit": check_jit,
    "export": check_export,
    "graph": check_graph,
    "callback": check_callback,
    "vmap": check_vmap,
    "scan": check_scan,
    "jvp": check_jvp,
}
