"""The ways through the bridge that a program is sent on; each gives numbers to compare."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import numpy as np
import onnxruntime
import tensorflow as tf
from jax import tree_util

import bridge
import savedmodel
from bridge.checking_gradients.modes import fill_structure, read_structure
from bridge.checking_gradients.pullbacks import tf_pullbacks
from bridge.core.trees import to_structure
from tests.fuzzing.programs.accuracy import QUICKLY
from tests.fuzzing.programs.case import Case, Orders, Sizes, pullbacks

Flat = Callable[[Sequence[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class Found:
    """The outcome of one way.

    Attributes:
        label: of the way.
        sizes: of the dimension variables.
        orders: the results, then the gradients of each order; None where TensorFlow has none.
    """

    label: str
    sizes: Sizes
    orders: Orders


def _save(case: Case, path: str, **more: Any) -> None:
    program = case.program
    options: dict[str, Any] = {"gradient_order": case.order, **more}
    for name in ("residuals", "hoist_constants", "tensorflow", "batch_buckets"):
        if any(name == option for option, _ in program.options):
            options[name] = program.option(name)
    if program.option("unchecked"):
        options["disabled_checks"] = program.option("unchecked")
    params = _params(case)
    if params is not None:
        options["params"] = params
    if program.option("function") and _by_position(case) and not _has_none(case):
        specs = case.specs[0] if params is None else case.specs[0][1:]
        if specs:
            options |= {"args": tuple(specs), "platforms": program.option("platforms")}
            bridge.save(case.function, path, **options)
            return
    bridge.save(case.exported, path, **options)


def _params(case: Case) -> Any:
    return case.arguments(case.batches[0])[0][0] if case.program.option("params") else None


def _by_position(case: Case) -> bool:
    return not case.specs[1]


def _has_none(case: Case) -> bool:
    return any(parameter.node is None for parameter in case.program.parameters)


def _through_tensorflow(
    case: Case,
    label: str,
    flat: Flat,
    variables: Sequence[tf.Variable] = (),
    modes: Sequence[str] = ("eager", "graph", "jit", "signature"),
) -> Iterator[Found]:
    """Values for all sizes and gradients for the first, of a flat function in TensorFlow."""
    mode = case.program.option("mode", "eager")
    mode = mode if mode in modes else modes[-1]
    for number, sizes in enumerate(case.batches):
        order = 0 if number else case.order
        cotangents = case.cotangents(sizes, order)
        leaves = [_to_tensor(leaf) for leaf in case.leaves(sizes)]

        def run(free: list[Any], cotangents: Any) -> Any:
            every = [*variables, *free]

            def function(inputs: list[Any]) -> tuple[list[Any], list[Any]]:
                replaced = dict(zip(case.inputs, inputs, strict=True))
                found = flat([replaced.get(i, leaf) for i, leaf in enumerate(every)])
                return [found[i] for i in case.results], found

            return tf_pullbacks(function, [every[i] for i in case.inputs], cotangents)

        entered: Any = run
        if mode in ("graph", "jit"):
            entered = tf.function(run, jit_compile=mode == "jit", autograph=False)
        tensors = tree_util.tree_map(_to_tensor, cotangents)
        found = entered(leaves[len(variables) :], tensors)
        yield Found(f"{label} {mode}", sizes, tf.nest.map_structure(_to_numpy, found))


def _to_tensor(leaf: Any) -> tf.Tensor:
    return tf.constant(np.asarray(leaf))


def _to_numpy(tensor: Any) -> Any:
    # TensorFlow's `__array__` gives no array of a scalar in bfloat16.
    return None if tensor is None else np.asarray(tensor.numpy(), tensor.dtype.as_numpy_dtype)


def _loaded(case: Case, label: str, path: str) -> Iterator[Found]:
    loaded = tf.saved_model.load(path)
    if case.program.option("mode") == "signature":
        yield from _signature(case, label, path, loaded)
        return
    in_structure = to_structure(case.exported.in_tree)
    out_structure = to_structure(case.exported.out_tree)
    has_params = bool(case.program.option("params"))

    def flat(leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = fill_structure(in_structure, leaves)
        found = loaded(*(args[1:] if has_params else args), **kwargs)
        by_index = dict(read_structure(out_structure, found))
        return [by_index[index] for index in range(len(by_index))]

    yield from _through_tensorflow(case, label, flat, loaded.variables if has_params else ())


def _signature(case: Case, label: str, path: str, loaded: Any) -> Iterator[Found]:
    signature = savedmodel.read(path).signatures[0]
    function = loaded.signatures["serving_default"]
    for sizes in case.batches:
        leaves = case.leaves(sizes)
        feed = {name: _to_tensor(leaves[index]) for name, index in signature.inputs.items()}
        # Of a file that TensorFlow has saved again nothing says which argument an input is that no
        # module takes; TensorFlow asks for it all the same.
        specs = function.structured_input_signature[1]
        unused = {name: tf.zeros([n or 1 for n in spec.shape], spec.dtype)
                  for name, spec in specs.items() if name not in feed}  # fmt: skip
        found = function(**feed, **unused)
        by_index = {index: found[name] for name, index in signature.outputs.items()}
        values = [_to_numpy(by_index[index]) for index in range(len(by_index))]
        yield Found(f"{label} signature", sizes, [values])


def check_save(case: Case) -> Iterator[Found]:
    """Saved, and run by TensorFlow."""
    path = str(case.folder / "saved")
    _save(case, path)
    yield from _loaded(case, "save", path)


def check_resave(case: Case) -> Iterator[Found]:
    """Saved, loaded and saved again by TensorFlow, or retargeted as a file."""
    path, other = str(case.folder / "first"), str(case.folder / "second")
    _save(case, path)
    if case.program.option("tensorflow"):
        bridge.retarget(path, case.program.option("tensorflow"), to=other)
    else:
        loaded = tf.saved_model.load(path)
        tf.saved_model.save(loaded, other, signatures=loaded.signatures)
    yield from _loaded(case, "resave", other)


def check_load(case: Case) -> Iterator[Found]:
    """Saved, and loaded in JAX."""
    path = str(case.folder / "loaded")
    _save(case, path)
    model = bridge.load(path)
    if not case.order:
        yield from _called(case, "load", lambda *args, **kwargs: model(*args, **kwargs), bound=True)
    else:
        yield from _called(case, "load", model.default.exported.call)


def check_retarget(case: Case) -> Iterator[Found]:
    """An `Exported` for an older TensorFlow, called in JAX."""
    exported = bridge.retarget(case.exported, case.program.option("tensorflow", "2.16"))
    yield from _called(case, "retarget", exported.call)


def _called(
    case: Case, label: str, function: Callable[..., Any], *, bound: bool = False
) -> Iterator[Found]:
    """Return what a function gives in JAX: values for all sizes, and gradients for the first.

    Args:
        case: the case.
        label: of the way.
        function: takes what the program takes.
        bound: whether it has the parameters.
    """
    first = int(bound and case.program.option("params", default=False))

    def flat(leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = tree_util.tree_unflatten(case.in_tree, leaves)
        return tree_util.tree_leaves(function(*args[first:], **kwargs))

    @functools.partial(jax.jit, compiler_options=QUICKLY)
    def run(leaves: list[Any], cotangents: Orders) -> Orders:
        return pullbacks(flat, case.inputs, case.results, leaves, cotangents)

    for number, sizes in enumerate(case.batches):
        order = 0 if number else case.order
        found = run(case.leaves(sizes), case.cotangents(sizes, order))
        yield Found(label, sizes, tree_util.tree_map(np.asarray, found))


def check_convert(case: Case) -> Iterator[Found]:
    """Converted: the function, or its `Exported`."""
    program = case.program
    options: dict[str, Any] = {}
    for name in ("residuals", "hoist_constants"):
        if any(name == option for option, _ in program.options):
            options[name] = program.option(name)
    weak = any(a.weak for a in program.arguments)
    if program.option("function") and not weak:
        converted = bridge.convert(case.function, platforms=program.option("platforms"), **options)
    else:
        if program.option("unchecked"):
            options["disabled_checks"] = program.option("unchecked")
        converted = bridge.convert(case.exported, **options)

    def flat(leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = tree_util.tree_unflatten(case.in_tree, leaves)
        return tree_util.tree_leaves(converted(*args, **kwargs))

    yield from _through_tensorflow(case, "convert", flat)


def check_plain(case: Case) -> Iterator[Found]:
    """Converted to TensorFlow's own operations; never compiled, which is what they are for."""
    converted = bridge.convert(case.exported, operations="tensorflow")

    def flat(leaves: Sequence[Any]) -> list[Any]:
        args, kwargs = tree_util.tree_unflatten(case.in_tree, leaves)
        return tree_util.tree_leaves(converted(*args, **kwargs))

    for found in _through_tensorflow(case, "plain", flat, modes=("eager", "graph")):
        yield dataclasses.replace(found, orders=_as_simplified(case, found))


def check_session(case: Case) -> Iterator[Found]:
    """Saved as TensorFlow's own operations, and run by a session with its default options.

    Gradients, where they are compared, are those of the loaded file.
    """
    path = str(case.folder / "plain")
    bridge.save(case.exported, path, operations="tensorflow", gradient_order=case.order)
    signature = savedmodel.read(path).signatures[0]
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.load(session, ["serve"], path)
        definition = meta.signature_def["serving_default"]
        fetches = {
            index: definition.outputs[name].name for name, index in signature.outputs.items()
        }
        for sizes in case.batches:
            leaves = case.leaves(sizes)
            feed = {
                definition.inputs[name].name: np.asarray(leaves[index])
                for name, index in signature.inputs.items()
            }
            found = session.run(fetches, feed)
            values = [np.asarray(found[index]) for index in range(len(found))]
            made = Found("session", sizes, [values])
            yield dataclasses.replace(made, orders=_as_simplified(case, made))
    if case.order:
        for made in _loaded(case, "plain file", path):
            yield dataclasses.replace(made, orders=_as_simplified(case, made))


def _as_simplified(case: Case, found: Found) -> Orders:
    """What was found, with the reference for a NaN that JAX has, too, operation by operation.

    Compiled, 0 times infinity is simplified to either, as in the gradient of a norm at 0.
    """
    if not any(_nans(leaf).any() for leaf in tree_util.tree_leaves(found.orders)):
        return found.orders
    order = len(found.orders) - 1
    with jax.disable_jit():
        each = case.pullbacks(case.leaves(found.sizes), case.cotangents(found.sizes, order))
    return [
        [
            one if one is None else np.where(_nans(one) & _nans(np.asarray(eager)), other, one)
            for one, eager, other in zip(*lists, strict=True)
        ]
        for lists in zip(found.orders, each, case.reference(found.sizes, order), strict=True)
    ]


def _nans(array: Any) -> Any:
    return np.isnan(array) if array.dtype.kind in "fc" else np.zeros(array.shape, bool)


# What ONNX Runtime takes no arrays of from Python, and gives none.
_CARRIED = dict.fromkeys(("bfloat16", "float8_e4m3fn", "float8_e5m2"), np.dtype("float32"))


def check_onnx(case: Case) -> Iterator[Found]:
    """In ONNX Runtime; its vjp, where gradients are compared."""
    exported = _carried_export(case)
    params = None
    if case.program.option("params") and not any(
        a.dtype in _CARRIED for a in case.program.arguments
    ):
        params = _params(case)
    model = bridge.to_onnx(exported, params=params)
    count = len(tree_util.tree_leaves(params))
    session = _session(model)
    for sizes in case.batches:
        leaves = [_carry(leaf) for leaf in case.leaves(sizes)][count:]
        found = _run_onnx(session, leaves)
        dtypes = [aval.dtype for aval in case.result_avals(sizes)]
        yield Found("onnx", sizes, [_cast(found, dtypes)])
    if case.order and case.inputs:
        yield from _onnx_gradient(case, exported)


def _onnx_gradient(case: Case, exported: jax.export.Exported) -> Iterator[Found]:
    sizes = case.batches[0]
    session = _session(bridge.to_onnx(exported.vjp()))
    leaves = case.leaves(sizes)
    results = case.result_avals(sizes)
    # The model is JAX's VJP; the reference follows TensorFlow, whose gradient of a complex number
    # is the conjugate of that.
    drawn = dict(zip(case.results, map(_conjugate, case.cotangents(sizes, 1)[0]), strict=True))
    # A model has no gradient of what is no number: its cotangent is of bool. What is carried by
    # float32 has one of that.
    cotangents = [
        drawn.get(i, np.zeros(aval.shape, _CARRIED.get(aval.dtype.name, bool)))
        for i, aval in enumerate(results)
    ]
    found = _run_onnx(session, [*map(_carry, leaves), *map(_carry, cotangents)])
    wanted = [found[i] for i in case.inputs]
    dtypes = [leaves[i].dtype for i in case.inputs]
    values = case.reference(sizes, 0)[0]
    yield Found("onnx gradient", sizes, [values, [*map(_conjugate, _cast(wanted, dtypes))]])


def _conjugate(array: Any) -> Any:
    return np.conj(array) if np.iscomplexobj(array) else array


def _carried_export(case: Case) -> jax.export.Exported:
    """Of the function with float32 in the place of what Python cannot hand to ONNX Runtime."""
    avals = case.result_avals(case.batches[0])
    every = [*case.leaves(case.batches[0]), *avals]
    if not any(x.dtype.name in _CARRIED for x in every):
        return case.exported
    dtypes = [leaf.dtype for leaf in case.leaves(case.batches[0])]

    def carried(*leaves: Any) -> list[Any]:
        given = [x.astype(dtype) for x, dtype in zip(leaves, dtypes, strict=True)]
        return [x.astype(_CARRIED.get(x.dtype.name, x.dtype)) for x in case.flat(given)]

    specs = [
        jax.ShapeDtypeStruct(s.shape, _CARRIED.get(s.dtype.name, s.dtype))
        for s in tree_util.tree_leaves(case.specs)
    ]
    return jax.export.export(jax.jit(carried))(*specs)


def _session(model: Any) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _run_onnx(session: onnxruntime.InferenceSession, leaves: Sequence[Any]) -> list[Any]:
    feed = {i.name: x for i, x in zip(session.get_inputs(), leaves, strict=True)}
    return list(session.run(None, feed))


def _carry(leaf: Any) -> Any:
    """Return an array as ONNX takes it: of complex numbers pairs along a last dimension."""
    array = np.asarray(leaf)
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], -1)
    return array.astype(_CARRIED.get(array.dtype.name, array.dtype))


def _cast(found: Sequence[Any], dtypes: Sequence[Any]) -> list[Any]:
    """Carried numbers in the dtypes that they stand for; others as they are."""
    return [
        _cast_one(np.asarray(x), np.dtype(dtype)) for x, dtype in zip(found, dtypes, strict=True)
    ]


def _cast_one(array: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "c" and array.dtype.kind != "c":
        parts = np.ascontiguousarray(array)
        return parts.view(np.dtype(f"c{2 * parts.dtype.itemsize}"))[..., 0]
    return array.astype(dtype) if dtype.name in _CARRIED else array


RUNNERS: Mapping[str, Callable[[Case], Iterator[Found]]] = {
    "save": check_save,
    "session": check_session,
    "resave": check_resave,
    "load": check_load,
    "convert": check_convert,
    "retarget": check_retarget,
    "onnx": check_onnx,
    "plain": check_plain,
}
