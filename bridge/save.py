"""`save`: exported functions and their parameters become a SavedModel, without TensorFlow."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any, TypedDict

import jax
import numpy as np
from jax import export, tree_util

from bridge.batching.batch_sizes import Buckets
from bridge.chains.orders import ChainOptions
from bridge.chains.vjp_chain import build_chain
from bridge.core.explaining import refusing_unsortable_keys
from bridge.core.names import Names, input_names, names_of_signature, output_names, parameter_names
from bridge.core.operations_option import XLA, OperationsOption, resolve_order
from bridge.core.progress import progress_bar
from bridge.core.trees import to_structure
from bridge.core.updates import (
    UpdatePositions,
    Updates,
    find_assigned,
    parse_updates,
    structure_without,
)
from bridge.exporting.environment import describe_environment, source_file
from bridge.exporting.export_model import export_model
from bridge.exporting.plain_parameters import with_counters
from bridge.inspecting.written_file import WrittenFile, signatures_of
from bridge.saving.parameters import check_parameters, check_params_tree, to_constants, to_variables
from bridge.saving.processes import JaxProcesses, is_multi_process
from bridge.saving.signature_defaults import with_defaults
from savedmodel.files.folder import bytes_of, staged_folder
from savedmodel.files.remote import parse_path
from savedmodel.manifest import write_manifest
from savedmodel.model import (
    DEFAULT_SIGNATURE,
    Constant,
    Function,
    Input,
    Output,
    Parameter,
    SavedModel,
    Signature,
    Value,
    Variable,
)
from savedmodel.protos.structures import NONE, Branch, Structure, as_tuple, leaves
from savedmodel.tensorflow_graph import TensorFlowGraph
from savedmodel.write import MAX_PROTO_BYTES, write, write_together
from xla_call_module.errors import ShardingError, StructureError, naming
from xla_call_module.exported import Check
from xla_call_module.linalg.linalg_option import LinalgOption
from xla_call_module.passes.asserting import with_names
from xla_call_module.passes.constants import HOISTED_FROM, largest_constants
from xla_call_module.passes.pipeline import Prepared
from xla_call_module.tracebacks import api_boundary
from xla_call_module.versions import OLDEST

_FORMAT = 2
# The output of a signature that returns nothing but assigns: TensorFlow wants one.
_UPDATED = "updated"
_MAX_CONSTANTS_SHOWN = 3
# What `build_chain` makes: the orders of a function, and their graphs of plain operations.
_Chain = tuple[Prepared, tuple[TensorFlowGraph, ...]]


class SaveOptions(TypedDict, total=False):
    """The options of `save`, whose parameters these are, for callers that hand them on by name."""

    params: Any
    args: Any
    platforms: Sequence[str] | None
    trainable: Any
    inputs: Names | Mapping[str, Names] | None
    outputs: Names | Mapping[str, Names] | None
    gradient_order: int | None
    residuals: bool
    hoist_constants: int | None
    tensorflow: str | None
    disabled_checks: Sequence[Check]
    linalg: LinalgOption
    num_shards: int | None
    manifest: bool
    batch_buckets: Buckets | None
    updates: Updates | None
    operations: OperationsOption
    for_converters: bool
    exact: bool


@api_boundary
def save(
    model: export.Exported | Mapping[str, Any] | Any,
    path: str | os.PathLike[str],
    *,
    params: Any = None,
    args: Any = None,
    updates: Updates | None = None,
    inputs: Names | Mapping[str, Names] | None = None,
    outputs: Names | Mapping[str, Names] | None = None,
    defaults: Mapping[str, Any] | None = None,
    trainable: Any = True,
    gradient_order: int | None = None,
    residuals: bool = False,
    hoist_constants: int | None = HOISTED_FROM,
    tensorflow: str | None = None,
    platforms: Sequence[str] | None = None,
    operations: OperationsOption = XLA,
    for_converters: bool = False,
    exact: bool = True,
    batch_buckets: Buckets | None = None,
    linalg: LinalgOption = "portable",
    disabled_checks: Sequence[Check] = (),
    overwrite: bool = False,
    num_shards: int | None = None,
    manifest: bool = False,
) -> WrittenFile:
    """Write a SavedModel that every TensorFlow loader reads. TensorFlow need not be installed.

    In TensorFlow the loaded object has a function for each signature under its key, and is itself
    callable as the default one, `serving_default` or else the first, both with the pytrees of the
    exported function. The parameters are `tf.Variable`s under `.params`, also listed in
    `.variables` and `.trainable_variables`. Classes that TensorFlow does not have are dicts there,
    and dict keys that are no strings their text.

    A function that was exported for several devices keeps its shardings. TensorFlow on one CPU or
    GPU ignores them and computes the same; `bridge.load` has them again.

    The options, in their order:

    - what is saved: `model`, `path`, `params`, `args`, `updates`;
    - names, and what is trainable: `inputs`, `outputs`, `defaults`, `trainable`;
    - gradients: `gradient_order`, `residuals`, `hoist_constants`;
    - for whom: `tensorflow`, `platforms`, `operations`, `for_converters`, `exact`,
      `batch_buckets`, `linalg`, `disabled_checks`;
    - how it is written: `overwrite`, `num_shards`, `manifest`.

    Args:
        model: an `Exported`, or the path of a file that its `serialize` wrote, in any version of
            JAX, also one that JAX refuses as expired; or what is exported here: a function, or a
            module of Flax (linen or nnx), Haiku, Equinox or, on its JAX backend, Keras, in
            inference mode. Variables that these do not train, such as batch statistics, are not
            trainable. Or a mapping from signature keys to these, which share their parameters; the
            key of a single one is `serving_default`.
        path: the folder to make, or an address such as `gs://bucket/model` where etils is
            installed. It appears whole or not at all.
        params: the pytree that is the first positional argument of every `Exported`, or of the
            function; for linen modules and Haiku's functions what `init` returned. Keras, nnx and
            Equinox hold their parameters themselves. Its leaves become variables, named by their
            pytree path, shared by all signatures, and streamed without a copy. Sharded arrays are
            written shard by shard, never gathered: in slices, or whole where TensorFlow reads no
            slices of the dtype (float16, float8 and unsigned integers but uint8). If one is on
            devices of several processes of `jax.distributed`, all of them call `save` with the same
            arguments and a `path` on a shared file system. Each writes its shards, replicas once,
            and process 0 all else, numpy arrays among the parameters too.
        args: the arguments after the parameters of a function or a module: a text such as
            `"f32[b,28,28], mask=bool[b]"`, where `?` or `None` is a dimension without a name,
            unlike all others, and `key<fry>[]` a typed PRNG key; or a tuple with a pytree for each,
            of such texts, `jax.ShapeDtypeStruct`s or arrays; or a mapping for keyword arguments. A
            functional or sequential Keras model has its own. For several functions they are those
            of all, or a mapping from signature keys to them.
        updates: where the new parameters stand in what the function returns, so that each call
            assigns them to the variables and returns the rest: a position in the tuple of results,
            such as 0 for `(new_state, metrics)`, for all of the parameters or a part of them; or
            positions by the keys of parts, as `{"cache": 1}`; with several signatures a mapping
            from the keys of those that assign to these. A function that returns nothing else has
            them at 0, and its signature has one output, `updated`, which is true. A call is atomic:
            XLA compiles it as a whole, and TensorFlow locks the variables meanwhile, so that
            concurrent requests see no half state and lose no step. Numbers among the parameters
            become arrays.
        inputs: names for the signature's inputs: a sequence, one for each leaf of the arguments, or
            a mapping from default names to new ones; with several signatures also a mapping from
            signature keys to these. By default the arguments' names, with the path into them.
        outputs: the same for the results; by default their pytree paths, `output_0` for a single
            one without.
        defaults: values for inputs that a request may leave out, by the inputs' names in the
            signature; with several signatures a mapping from signature keys to these. TensorFlow
            Serving from 2.16 on, a session of any release, and `bridge.load` fill them in;
            TensorFlow's own Python signatures and an older Serving want all inputs.
        trainable: a bool, or a prefix of `params` with bools. Integers are never trainable.
        gradient_order: how many times TensorFlow can differentiate the loaded function, with
            respect to inputs and variables; by default once, with `for_converters` not at all.
            Forward mode needs one order more, and so do calls with parameters under a persistent
            tape, whose gradient TensorFlow prepares to be differentiated.
        residuals: whether each function stores what its first gradient needs, for less time and
            more memory than computing the forward pass again. The results are the same.
        hoist_constants: the size in bytes from which an array that the function closes over is
            stored once, as a variable under `.constants`, instead of in the module of the function
            and of each of its gradients; None for never.
        tensorflow: the oldest TensorFlow that must read the file, such as `"2.18"`; by default as
            old as the computation allows unchanged.
        platforms: what it is exported for; by default cpu, cuda and tpu.
        operations: what the file runs: `"xla"`, the module, which XLA compiles; or `"tensorflow"`,
            TensorFlow's own operations, for servers and converters without XLA, and for batches of
            every size at once. JAX reads the same from both, and the gradients are JAX's in both.
            With `"tensorflow"` a mutex of the process makes the calls of `updates` atomic, the
            option `tensorflow` changes nothing, and code for several platforms is that of the CPU.
        for_converters: with `operations="tensorflow"`, whether the file is for converters that read
            the graph without running it, such as those of TFLite and TF.js: operations in the open,
            sizes of 32 bits, and nothing that compares shapes, refuses gradients or locks
            variables. Optimizers of such a graph may change numbers.
        exact: with `operations="tensorflow"`, whether NaN, the sign of zero and integers divided by
            0 are as in JAX where TensorFlow's operations have them otherwise, which takes more
            nodes.
        batch_buckets: sizes of batches, such as `(1, 8, 32, 128)`, that the batches of a request
            are padded to inside the signature, so that TensorFlow compiles programs for these sizes
            alone; or a mapping from signature keys to sizes. The batch is the dimension variable
            that leads the shapes of inputs and results; the last row is repeated, and the results
            are cut. A batch larger than all sizes runs as it is. The function is run in JAX here,
            with random inputs, to see that its results stay the same.
        linalg: `portable` replaces calls of LAPACK, cuSOLVER and the like by operations that run
            everywhere, in gradients too; `lapack` leaves them for a TensorFlow that has them.
        disabled_checks: safety checks that TensorFlow leaves out, in gradients too, besides those
            of each `Exported`: `platform`, `shape_assertions`, `custom_call:TARGET`.
        overwrite: whether a SavedModel at `path` is replaced.
        num_shards: how many files each process writes its parameters into at the same time; by
            default one for each GiB, and 8 at most. The numbers are the same in any.
        manifest: whether `assets.extra/` gets a list of all files with their hashes, of the
            versions of Python and the packages, and of the git revision of the function's source.

    On a terminal, a bar shows the progress after two seconds.

    Returns:
        What was written: the path, so that it stands for one; the signatures with their inputs,
        outputs and platforms; the size in bytes, and the oldest TensorFlow that reads it. Printed
        it is a few lines, in a notebook a table.

    Raises:
        StructureError: `params` does not fit, a name is wrong, `path` exists, a pytree type is not
            registered for serialization, the modules are larger than a SavedModel can be, a result
            would change with rows that are added to the batch, or the processes do not agree on the
            arguments.
        InteropError: another process has failed; no file has appeared.
        DtypeError: a dtype that TensorFlow cannot carry, with its pytree path; or that it does not
            read in slices, where several processes hold the array.
        VersionError: an operation that the wanted TensorFlow does not have, with its source line.
        UnsupportedError: what TensorFlow's own operations do not compute, with its source line,
            where `operations` asks for them.
        OSError: a file cannot be written; an older folder is untouched.

    Warns:
        UserWarning: the function runs on each of several devices alone (`jax.shard_map`), and
            TensorFlow cannot run it on one; there are fewer gradients than were asked for; or
            `batch_buckets` could not be tried here.

    Example:
        >>> import bridge, jax, jax.numpy as jnp
        >>> params = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
        >>> def predict(params, x):
        ...     return x @ params["w"] + params["b"]
        >>> x = jax.ShapeDtypeStruct(jax.export.symbolic_shape("batch, 3"), "float32")
        >>> exported = jax.export.export(jax.jit(predict))(params, x)
        >>> saved = bridge.save(exported, "my_model", params=params)
        >>> saved.tensorflow, saved.parameter_bytes
        ('2.14', 32)
        >>> saved = bridge.save(predict, "the_same", params=params, args="f32[batch,3]")
        >>> print(saved)
        the_same: ... bytes, readable from TensorFlow 2.14 on
        serving_default(x: float32[batch,3]) -> output_0: float32[batch,2], for cpu, cuda, tpu
    """
    parse_path(path)
    options = ChainOptions.parse(
        disabled_checks=disabled_checks,
        linalg=linalg,
        residuals=residuals,
        hoist_constants=hoist_constants,
        operations=operations,
        for_converters=for_converters,
        exact=exact,
    )
    gradient_order = resolve_order(gradient_order, for_converters=for_converters)
    if options.plain_operations and batch_buckets is not None:
        raise StructureError(
            "batch_buckets are the sizes that XLA compiles programs for, and TensorFlow's own "
            'operations run every size. To do: leave out batch_buckets, or pass operations="xla".'
        )
    is_named = isinstance(model, Mapping)
    source = source_file(model) if manifest else None
    positions = parse_updates(updates, model)
    with refusing_unsortable_keys("params, args or what the function takes"):
        params = with_counters(params) if positions else params
        traced = export_model(
            model, params=params, trainable=trainable, inputs=inputs, args=args,
            platforms=platforms, disabled_checks=options.disabled_checks, updates=positions,
        )  # fmt: skip
        tree_util.tree_structure(traced.params)
    params, trainable, inputs = traced.params, traced.trainable, traced.inputs
    given = _by_signature(traced.exported)
    exporteds = _to_export(given, traced.function, batch_buckets)
    constants: dict[str, np.ndarray[Any, Any]] = {}
    chains: dict[str, _Chain] = {}
    for key, exported in exporteds.items():
        with _about(key, is_named=is_named):
            chains[key] = build_chain(
                exported, options, gradient_order=gradient_order, tensorflow=tensorflow,
                known=constants.keys(),
            )  # fmt: skip
        constants |= chains[key][0].constants
    tree: Any = None if params is None else tree_util.tree_structure(params)
    variables = _variables_of(params, trainable, exporteds, chains, is_named=is_named)
    made = []
    for key, exported in exporteds.items():
        with _about(key, is_named=is_named):
            signature = _to_signature(
                key, *chains[key], exported, variables,
                constants=tuple(constants), params=tree, updates=positions.get(key, {}),
                inputs=names_of_signature(key, inputs, exporteds),
                outputs=names_of_signature(key, outputs, exporteds), gradient_order=gradient_order,
            )  # fmt: skip
        made.append(signature)
    signatures = with_defaults(made, defaults)
    if batch_buckets is not None:
        from bridge.batching.buckets import with_batch_buckets

        signatures = with_batch_buckets(signatures, given, exporteds, batch_buckets, params)
    saved = SavedModel(
        signatures=signatures,
        variables=(*variables, *to_constants(constants)),
        params=NONE if tree is None else to_structure(tree),
        metadata=_describe(
            signatures, [chain for chain, _ in chains.values()], has_params=tree is not None
        ),
    )
    together = is_multi_process(params)
    if not manifest:
        size = _write(saved, path, together=together, overwrite=overwrite, num_shards=num_shards)
        return _written(saved, path, size)
    if together:
        raise ShardingError(
            "Several processes write this model, and none of them has all files to hash. To do: "
            "leave out manifest=True."
        )
    with staged_folder(path, overwrite=overwrite) as folder:
        _write(saved, folder, together=False, overwrite=False, num_shards=num_shards)
        write_manifest(folder, **describe_environment(source), request={})
        return _written(saved, path, bytes_of(folder))


def _variables_of(
    params: Any,
    trainable: Any,
    exporteds: Mapping[str, export.Exported],
    chains: Mapping[str, _Chain],
    *,
    is_named: bool,
) -> tuple[Variable, ...]:
    """Return the variables of parameters, which every signature takes first."""
    if params is None:
        return ()
    tree: Any = tree_util.tree_structure(params)
    for exported in exporteds.values():
        check_params_tree(exported, tree)
    calls = {key: chain.calls[0] for key, (chain, _) in chains.items()}
    leading = next(iter(calls.values())).args[: tree.num_leaves]
    variables = to_variables(params, trainable, leading)
    for key, call in calls.items():
        with _about(key, is_named=is_named):
            check_parameters(call.name, call.args[: len(variables)], variables)
    return variables


def _written(saved: SavedModel, path: str | os.PathLike[str], size: int) -> WrittenFile:
    """Return what was written."""
    return WrittenFile(
        path=os.fspath(path),
        signatures=signatures_of(saved),
        bytes=size,
        parameter_bytes=sum(variable.size for variable in saved.variables),
        tensorflow=saved.metadata["tensorflow"],
    )


def _write(
    saved: SavedModel,
    path: str | os.PathLike[str],
    *,
    together: bool,
    overwrite: bool,
    num_shards: int | None,
) -> int:
    """Write the file, and return its size."""
    if saved.module_bytes >= MAX_PROTO_BYTES:
        raise _too_large(saved)
    with progress_bar("Saving") as progress:
        options: Any = {"overwrite": overwrite, "num_shards": num_shards, "progress": progress}
        if together:
            return write_together(saved, path, group=JaxProcesses(), **options)
        return write(saved, path, **options)


def _about(key: str, *, is_named: bool) -> contextlib.AbstractContextManager[None]:
    """Return a context whose errors name the key, where the user passed one."""
    return naming(f"Signature {key!r}") if is_named else contextlib.nullcontext()


def _by_signature(
    model: export.Exported | Mapping[str, export.Exported],
) -> dict[str, export.Exported]:
    exporteds = dict(model) if isinstance(model, Mapping) else {DEFAULT_SIGNATURE: model}
    if not exporteds:
        raise StructureError("model is an empty mapping; expected at least one signature.")
    return exporteds


def _to_export(
    given: Mapping[str, export.Exported], functions: Any, batch_buckets: Buckets | None
) -> Mapping[str, export.Exported]:
    """Return the functions that are written: those of rows where batches are padded."""
    if batch_buckets is None:
        return given
    from bridge.batching.buckets import export_each_of_rows

    by_key = functions if isinstance(functions, Mapping) else dict.fromkeys(given, functions)
    return export_each_of_rows(given, by_key, batch_buckets)


def _too_large(saved: SavedModel) -> StructureError:
    largest = max(
        (signature.function.call for signature in saved.signatures),
        key=lambda call: len(call.module),
    )
    constants = "; ".join(map(str, largest_constants(largest.module, _MAX_CONSTANTS_SHOWN)))
    return StructureError(
        f"The modules of the signatures and their gradients have {saved.module_bytes:,} bytes, and "
        f"saved_model.pb can hold {MAX_PROTO_BYTES:,}. The largest constants of {largest.name} "
        f"are {constants}. To do: pass these arrays as params instead of closing over them, so "
        "that they become variables."
    )


def _to_signature(
    key: str,
    chain: Prepared,
    operations: tuple[TensorFlowGraph, ...],
    exported: export.Exported,
    variables: Sequence[Variable],
    *,
    constants: Sequence[str],
    params: tree_util.PyTreeDef | None,
    updates: UpdatePositions,
    inputs: Names | None,
    outputs: Names | None,
    gradient_order: int,
) -> Signature:
    call = chain.calls[0]
    has_params = params is not None
    if not call.own_results:
        raise StructureError(
            f"{call.name} returns no array, and a signature has at least one output. To do: "
            "return something."
        )
    arguments = to_structure(exported.in_tree)
    passed: dict[int, Value] = {}
    if has_params:
        arguments = _without_first(arguments)
        passed = {index: Parameter(index) for index in range(len(variables))}
    free = sorted(leaves(arguments))
    names = dict(zip(free, input_names(key, call, free, inputs), strict=True))
    places = {key: len(variables) + position for position, key in enumerate(constants)}
    passed |= {index: Input(name) for index, name in names.items()}
    passed |= {index: Parameter(places[key]) for index, key in call.constants.items()}
    assigned = find_assigned(
        call.name, call.own_results, exported.out_tree, params, updates, variables
    )
    results = structure_without(exported.out_tree, assigned)
    returned = sorted(leaves(results))
    named = output_names(key, call, outputs, returned) if returned else [_UPDATED]
    is_open = any(graph.for_converters for graph in operations)
    function = Function(
        name=key,
        chain=chain.calls,
        passed=passed,
        arguments=arguments,
        parameters=parameter_names(call, arguments, first=int(has_params)),
        results=results,
        assigned=assigned,
        no_gradient=_no_gradient(call.name, len(chain.calls) - 1, gradient_order),
        constants=places,
        check=None if is_open else chain.shape_check and with_names(chain.shape_check, call, names),
        operations=operations,
    )
    return Signature(
        key=key,
        function=function,
        input_specs={name: call.args[index] for index, name in names.items()},
        output_values={name: Output(0, index) for name, index in zip(named, returned, strict=True)}
        if returned
        else {_UPDATED: Constant(np.asarray(True))},
    )


def _no_gradient(name: str, order: int, asked: int) -> str:
    """Return the message of TensorFlow about the first order that is missing."""
    if order < asked:
        return (
            f"{name} was saved with gradients up to order {order}, not {asked}: JAX has no "
            "gradient of the next order, as a warning said when it was saved. To do: give each "
            "loop a fixed number of steps, or export it again with its gradients."
        )
    return (
        f"{name} was saved with gradients up to order {order}. To do: save it with "
        f"gradient_order={order + 1} or more (forward mode and tapes that are persistent need one "
        "more than reverse mode), or export it again if it was serialized with fewer."
    )


def _without_first(arguments: Structure) -> Structure:
    """The arguments but for the first positional one."""
    assert isinstance(arguments, Branch)
    args, kwargs = (child for _, child in arguments.children)
    assert isinstance(args, Branch)
    return as_tuple([as_tuple([child for _, child in args.children[1:]]), kwargs])


def _describe(
    signatures: Sequence[Signature], chains: Iterable[Prepared], *, has_params: bool
) -> dict[str, Any]:
    """Return the metadata that `inspect` shows beside the nodes' own descriptions."""
    releases = [OLDEST]
    if not any(signature.function.operations for signature in signatures):
        releases += (one for chain in chains for one in chain.releases if one is not None)
    return {
        "format": _FORMAT,
        "writer": f"jax-tf-bridge {metadata.version('jax-tf-bridge')}",
        "jax": jax.__version__,
        "params": has_params,
        "tensorflow": max(releases, key=lambda release: release.tensorflow).name,
        "signatures": {
            signature.key: {
                "inputs": {
                    name: signature.function.call.args[index].path
                    for name, index in signature.inputs.items()
                },
                "outputs": {
                    name: signature.function.call.results[index].path
                    for name, index in signature.outputs.items()
                },
            }
            for signature in signatures
        },
    }
