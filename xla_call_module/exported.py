"""A `jax.export.Exported` becomes a `CallModule`, and one that came from it an `Exported` again.

Everything about it is checked here, once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
from jax import export, tree_util

from xla_call_module.analyses.custom_calls import check_custom_calls, refuse_other_programs
from xla_call_module.analyses.module_shardings import read_module_shardings
from xla_call_module.analyses.operations import check_operations
from xla_call_module.analyses.readable import is_plain
from xla_call_module.analyses.tensorflow_functions import take_functions
from xla_call_module.call import CallModule, TensorSpec
from xla_call_module.checks import PLATFORM, DisabledCheck, parse_checks
from xla_call_module.descriptions.description_json import description_to_json, read_description
from xla_call_module.descriptions.exported_description import SerializedExported
from xla_call_module.descriptions.serialized_exported import (
    NEWEST_SERIALIZATION,
    read_serialized,
    serialization_version,
)
from xla_call_module.dimensions import Shape
from xla_call_module.dtypes import DType, dtype_from_name
from xla_call_module.errors import (
    FormatError,
    InteropError,
    PlatformError,
    StructureError,
    UnsupportedError,
    VersionError,
    quote,
    refusing_damage,
    remedy_for,
)
from xla_call_module.exported_fields import describe_fields, restore_fields, restore_trees
from xla_call_module.platforms import parse_platforms
from xla_call_module.pytrees.tree_description import (
    describe_registered,
    describe_trees,
    is_plain_tree,
    leaf_paths,
)
from xla_call_module.pytrees.tree_nodes import TreeNode
from xla_call_module.pytrees.tree_restoring import missing_classes
from xla_call_module.shardings.mesh_placement import Mesh
from xla_call_module.shardings.sharding_jax import exported_shardings
from xla_call_module.stablehlo.attributes import read_changes
from xla_call_module.stablehlo.bytecode import mentions
from xla_call_module.stablehlo.modules import (
    Main,
    TensorType,
    custom_call_targets,
    is_readable,
    open_module,
    read_main,
    uses_shardy,
    walk,
)
from xla_call_module.symbolic_shapes import limited_reading
from xla_call_module.tracebacks import warn

# How a user may name a safety check.
Check = export.DisabledSafetyCheck | DisabledCheck | str


def from_exported(
    exported: export.Exported,
    *,
    allow_flat_trees: bool = False,
    disabled_checks: Sequence[Check] = (),
    carried: bool = True,
    names: Sequence[str] | None = None,
    module: Any = None,
    narrow: bool = False,
) -> CallModule:
    """Return the call that an `Exported` describes.

    Args:
        exported: the result of `jax.export.export(...)(...)`, of `jax.export.deserialize`, or of
            their `vjp()`.
        allow_flat_trees: where a pytree has static data that no file can hold, carry the `Exported`
            with flat arguments and results instead of refusing it.
        disabled_checks: safety checks that the call leaves out besides those of the `Exported`.
            `shape_assertions`, which TensorFlow has and JAX not any more, can only be named here.
        carried: whether the call carries the `Exported`, which takes a while to serialize and is
            of use in graphs and files only.
        names: what the function calls its flat arguments, for an `Exported` that JAX has just made
            in this process, so that its module is what it says. That is then read only where it may
            have something to refuse; which results are zeros is not looked for.
        module: its parsed module where there is one already, which is then always read, and is the
            module of the call afterwards.
        narrow: whether the call stays in JAX, so that it may have dtypes of `NARROW_DTYPES`.

    Raises:
        StructureError: arity, shapes or kept arguments contradict the module; the function has
            ordered effects or calls back to Python; a pytree has static data that is no JSON.
        DtypeError: a dtype that TensorFlow cannot carry, with the argument's pytree path.
        PlatformError: it was lowered for a platform that TensorFlow does not know, or has an
            operation that does not run on one of them.
        InteropError: it calls a target that TensorFlow does not have on one of its platforms.
        ShardingError: a sharding is of a form that is not known.
        VersionError: a calling convention that is too old, or newer than this package.
        FormatError: the module is no StableHLO portable artifact.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> exported = jax.export.export(jax.jit(jnp.sin))(jax.ShapeDtypeStruct((3,), "float32"))
        >>> from_exported(exported).platforms
        ('cpu',)
    """
    if not isinstance(exported, export.Exported):
        raise StructureError(
            f"Expected a jax.export.Exported, got {type(exported).__name__}. "
            f"{remedy_for(exported, otherwise='call jax.export.export(jax.jit(f))(*specs) first')}"
        )
    _check_effects(exported)
    checks = parse_checks([*exported.disabled_safety_checks, *disabled_checks])
    artifact = exported.mlir_module_serialized
    is_read = names is None or exported.nr_devices > 1 or not is_plain(artifact)
    opened = open_module(artifact) if is_read and module is None else contextlib.nullcontext(module)
    with opened as parsed:
        call = _to_call(exported, parsed, checks, names or (), narrow=narrow)
    if not carried:
        return call
    carried_text = strip_exported(exported, allow_flat_trees=allow_flat_trees)
    return dataclasses.replace(call, exported=carried_text)


def _to_call(
    exported: export.Exported,
    module: Any,
    checks: tuple[DisabledCheck, ...],
    names: Sequence[str],
    *,
    narrow: bool,
) -> CallModule:
    """Return the call, with what the parsed module says; None for a module that is not read."""
    where = exported.fun_name
    in_paths, out_paths = argument_paths(exported.in_tree), result_paths(exported.out_tree)
    _check_count(where, "arguments", len(exported.in_avals), len(in_paths), "its pytree has")
    _check_count(where, "results", len(exported.out_avals), len(out_paths), "its pytree has")
    platforms = _platforms(exported)
    main = None if module is None else _read_module(exported, module, platforms, checks)
    kept = tuple(exported.module_kept_var_idx)
    known = dict(zip(kept, main.names, strict=False) if main else enumerate(names))
    known = {index: known.get(index, "") for index in kept}
    args = _specs(exported.in_avals, in_paths, known, narrow=narrow)
    results = _specs(exported.out_avals, out_paths, {}, narrow=narrow)
    if main is not None:
        results = tuple(
            dataclasses.replace(spec, is_zero=is_zero)
            for spec, is_zero in zip(results, main.zeros, strict=True)
        )
    args, results = _with_shardings(exported, args, results)
    call = CallModule(
        name=exported.fun_name,
        module=bytes(exported.mlir_module_serialized),
        version=exported.calling_convention_version,
        platforms=platforms,
        args=args,
        results=results,
        kept=kept,
        disabled_checks=checks,
        # On one device every sharding is replication, whichever partitioner wrote it.
        uses_shardy=exported.nr_devices > 1 and uses_shardy(module),
        changes=() if module is None else read_changes(module),
        nr_devices=exported.nr_devices,
    )
    if main is None:
        return call
    _check_main(call, main)
    return take_functions(call, module)


def _read_module(
    exported: export.Exported,
    module: Any,
    platforms: tuple[str, ...],
    checks: tuple[DisabledCheck, ...],
) -> Main:
    """Return the signature of a module that has nothing to be refused."""
    where = exported.fun_name
    main = read_main(module)
    if mentions(exported.mlir_module_serialized, [b"custom_call"]):
        check_custom_calls(where, module, platforms, checks)
    if exported.nr_devices == 1:
        check_operations(where, module, platforms)
    _check_count(where, "results", len(exported.out_avals), len(main.results), "its module returns")
    return main


def _with_shardings(
    exported: export.Exported, args: tuple[TensorSpec, ...], results: tuple[TensorSpec, ...]
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Return the specs with their shardings; on one device there is nothing to say."""
    if exported.nr_devices == 1:
        return args, results
    ranks = ([len(spec.shape or ()) for spec in specs] for specs in (args, results))
    shardings = exported_shardings(exported, *ranks)
    of_args, of_results = (
        tuple(dataclasses.replace(spec, sharding=one) for spec, one in zip(*pair, strict=True))
        for pair in zip((args, results), shardings, strict=True)
    )
    return of_args, of_results


def to_jax_checks(checks: Sequence[DisabledCheck]) -> tuple[export.DisabledSafetyCheck, ...]:
    """Return those of the checks that `jax.export` has, which is all but `shape_assertions`.

    JAX took that one out, and TensorFlow still makes it: the call carries it in JAX's place.
    """
    known = []
    for check in checks:
        if (target := check.custom_call) is not None:
            known.append(export.DisabledSafetyCheck.custom_call(target))
        elif check == PLATFORM:
            known.append(export.DisabledSafetyCheck.platform())
    return tuple(known)


def strip_exported(exported: export.Exported, *, allow_flat_trees: bool) -> bytes:
    """Return the `Exported` without its module and VJP, as the description that a node carries."""
    in_tree, out_tree = _describe_trees(exported, allow_flat_trees=allow_flat_trees)
    return description_to_json(describe_fields(exported, in_tree, out_tree))


def _describe_trees(
    exported: export.Exported, *, allow_flat_trees: bool
) -> tuple[TreeNode, TreeNode]:
    """Return both structures, by names that are registered with JAX where there are no others."""
    if is_plain_tree(exported.in_tree, exported.out_tree):
        return describe_registered(exported.in_tree), describe_registered(exported.out_tree)
    try:
        trees = describe_trees(exported)
    except UnsupportedError as error:
        try:
            return describe_registered(exported.in_tree), describe_registered(exported.out_tree)
        except UnsupportedError:  # not all of its classes are registered
            if not allow_flat_trees:
                raise error from None
        flat = with_flat_trees(exported)
        return describe_registered(flat.in_tree), describe_registered(flat.out_tree)
    return trees.arguments, trees.results


def with_flat_trees(exported: export.Exported) -> export.Exported:
    """Return the same `Exported` as a function of flat arguments that returns a tuple."""
    return dataclasses.replace(
        exported,
        in_tree=tree_util.tree_structure((tuple(exported.in_avals), {})),
        out_tree=tree_util.tree_structure(tuple(exported.out_avals)),
    )


def to_exported(call: CallModule) -> export.Exported:
    """Return the `Exported` that a call carries, with the call's module; without a VJP."""
    meshes = _check_module(call)
    description = read_description(call.exported, where=call.name)
    checks = to_jax_checks(call.disabled_checks)
    description = dataclasses.replace(
        description,
        kept=call.kept,
        disabled_checks=_in_order(description.disabled_checks, map(str, checks)),
    )
    exported = restore_fields(
        description,
        size=len(call.exported),
        trees=None
        if call.trees is None
        else restore_trees(call.trees.arguments, call.trees.results),
        module=call.module,
        meshes=lambda: meshes,
    )
    both: Any = (exported.in_tree, exported.out_tree)  # the stub lacks `num_leaves`
    counts = [tree.num_leaves for tree in both]
    if counts != [len(exported.in_avals), len(exported.out_avals)]:
        raise FormatError(
            f"{call.name} has pytrees of {counts} leaves, and carries an Exported of "
            f"{len(exported.in_avals)} arguments and {len(exported.out_avals)} results. To do: "
            "write the file again."
        )
    specs = (*_specs_of(exported.in_avals), *_specs_of(exported.out_avals))
    expected = tuple((spec.shape, spec.dtype) for spec in (*call.args, *call.results))
    if specs != expected or exported.platforms != call.platforms:
        raise FormatError(
            f"{call.name} carries an Exported of {len(exported.in_avals)} arguments for "
            f"{exported.platforms}, which its description does not fit. To do: write the file "
            "again."
        )
    return exported


def _in_order(names: Sequence[str], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the wanted names: first those of the description, in its order."""
    wanted = tuple(wanted)
    return tuple(dict.fromkeys([*(name for name in names if name in wanted), *wanted]))


def _check_module(call: CallModule) -> tuple[Mesh, ...]:
    """Return the meshes of a module; refuse one that JAX could not call, in words of our own."""
    try:
        with open_module(call.module) as module:
            refuse_other_programs(call.name, module)
            _check_main(call, read_main(module))
            return read_module_shardings(module).meshes if call.nr_devices > 1 else ()
    except FormatError as error:
        raise FormatError(f"{call.name} has a damaged module: {error}") from error


def carried_for(call: CallModule, platforms: tuple[str, ...]) -> bytes:
    """Return the `Exported` that a call carries, for other platforms."""
    description = read_description(call.exported, where=call.name)
    return description_to_json(description.with_platforms(platforms))


def deserialize_exported(data: bytes, *, stand_ins: bool = False) -> export.Exported:
    """Return the `Exported` that `Exported.serialize` wrote, also one that JAX refuses as expired.

    Where the installed JAX writes a newer form than is known here, it reads it itself.
    """
    with refusing_damage("A serialized Exported"):
        if (version := serialization_version(data)) > NEWEST_SERIALIZATION:
            return _deserialize_newer(data, version)
        return _from_serialized(read_serialized(data), len(data), stand_ins=stand_ins)


def _deserialize_newer(data: bytes, version: int) -> export.Exported:
    """Return what JAX makes of a serialization of which nothing is known here."""
    try:
        with limited_reading(len(data)):
            return export.deserialize(bytearray(data))
    except FormatError:
        raise
    except Exception as error:  # whatever JAX raises of what is damaged or too new
        raise VersionError(
            f"An Exported is serialized in version {version}, which JAX {jax.__version__} does not "
            f"read ({type(error).__name__}: {error!s:.120}). To do: take the JAX that wrote it, or "
            "write it again."
        ) from error


def _from_serialized(
    serialized: SerializedExported, size: int, *, stand_ins: bool
) -> export.Exported:
    vjp = serialized.vjp
    if not is_readable(serialized.module):  # JAX would tell so in a word of XLA's, when it calls it
        _meshes_of(serialized.module)
    return restore_fields(
        serialized.description,
        size=size,
        module=serialized.module,
        meshes=lambda: _meshes_of(serialized.module),
        vjp=None if vjp is None else lambda: _from_serialized(vjp, size, stand_ins=stand_ins),
        stand_ins=stand_ins,
    )


def _meshes_of(artifact: bytes) -> tuple[Mesh, ...]:
    with open_module(artifact) as module:
        return read_module_shardings(module).meshes


def _specs_of(avals: Sequence[Any]) -> list[tuple[Shape | None, DType]]:
    return [_physical(aval, f"aval {index}")[:2] for index, aval in enumerate(avals)]


def argument_specs(exported: export.Exported) -> tuple[TensorSpec, ...]:
    """Return every flat argument of an `Exported`."""
    return _specs(exported.in_avals, argument_paths(exported.in_tree), {})


def result_specs(exported: export.Exported) -> tuple[TensorSpec, ...]:
    """Return every flat result of an `Exported`."""
    return _specs(exported.out_avals, result_paths(exported.out_tree), {})


def argument_paths(in_tree: tree_util.PyTreeDef) -> tuple[str, ...]:
    """Paths of the leaves of `(args, kwargs)`, as JAX's own messages write them: `args[0]['w']`."""
    both: Any = in_tree  # the stub of its class lacks `children`
    args, kwargs = map(leaf_paths, both.children())
    return (*(f"args{path}" for path in args), *(f"kwargs{path}" for path in kwargs))


def result_paths(out_tree: tree_util.PyTreeDef) -> tuple[str, ...]:
    """Paths of the leaves of a function's result: `result['y'][0]`."""
    return tuple(f"result{path}" for path in leaf_paths(out_tree))


def _specs(
    avals: Sequence[Any], paths: Sequence[str], names: dict[int, str], *, narrow: bool = False
) -> tuple[TensorSpec, ...]:
    specs = []
    for index, (aval, path) in enumerate(zip(avals, paths, strict=True)):
        shape, dtype, element = _physical(aval, path, narrow=narrow)
        specs.append(TensorSpec(shape, dtype, path, names.get(index, ""), element))
    return tuple(specs)


def _physical(aval: Any, path: str, *, narrow: bool = False) -> tuple[Shape, DType, str]:
    """Return shape and dtype in the module, and JAX's logical dtype where it is another."""
    element = ""
    dtype = aval.dtype
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        element = str(dtype)
        aval = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, dtype))
        dtype = aval.dtype
    elif dtype == jax.dtypes.float0:
        element, dtype = "float0", "bool"
    shape = tuple(str(dim) if export.is_symbolic_dim(dim) else int(dim) for dim in aval.shape)
    return shape, dtype_from_name(str(dtype), where=path, narrow=narrow), element


def _platforms(exported: export.Exported) -> tuple[str, ...]:
    try:
        return parse_platforms(exported.platforms)
    except PlatformError as error:
        raise PlatformError(
            f"{exported.fun_name} was exported for {exported.platforms}: {quote(error)}. "
            "To do: export again with platforms= of these."
        ) from error


def _check_effects(exported: export.Exported) -> None:
    if exported.ordered_effects:
        effects = ", ".join(map(str, exported.ordered_effects))
        raise StructureError(
            f"{exported.fun_name} has ordered effects ({effects}): its module takes and returns "
            "tokens, which the XlaCallModule op does not carry. To do: leave the ordered "
            "io_callback or print out of what is exported."
        )


def _check_count(where: str, what: str, count: int, expected: int, source: str) -> None:
    if count != expected:
        raise StructureError(
            f"{where} has {count} {what}, but {source} {expected}. To do: export it again."
        )


def _check_main(call: CallModule, main: Main) -> None:
    """Refuse a module whose own signature is another one, since the op trusts the node blindly."""
    _check_count(call.name, "kept arguments", len(call.kept), len(main.args), "its module takes")
    if main.has_platform_index != call.has_platform_index:
        raise StructureError(
            f"{call.name} was exported for {len(call.platforms)} platform(s), but its module "
            f"{'takes' if main.has_platform_index else 'does not take'} a platform index. To do: "
            "export it again."
        )
    pairs = [
        *zip(call.operands, main.args, strict=True),
        *zip(call.results, main.results, strict=True),
    ]
    for spec, type_ in pairs:
        if not _agrees(spec, type_):
            raise StructureError(
                f"{spec.path} of {call.name} is {spec}, but the module has {type_} there. To do: "
                "export it again."
            )


def _agrees(spec: TensorSpec, type_: TensorType) -> bool:
    if spec.shape is None or len(spec.shape) != len(type_.shape):
        return False
    return type_.element == spec.dtype.mlir and all(
        size is None or dim == size for dim, size in zip(spec.shape, type_.shape, strict=True)
    )


def parse_exported(content: bytes, where: str, *, stand_ins: bool = False) -> export.Exported:
    """Return the `Exported` that is in a file."""
    try:
        made = deserialize_exported(content, stand_ins=stand_ins)
    except StructureError as error:
        raise type(error)(f"{where}: {error} On the command line, --import does that.") from error
    except Exception as error:
        if isinstance(error, InteropError) and not isinstance(error, FormatError):
            raise
        # Where JAX reads it itself, flatbuffers has no error of its own for what is no message.
        said = str(error).partition(" To do:")[0] if isinstance(error, InteropError) else ""
        reason = said.removesuffix(".")
        raise FormatError(
            f"{where} is not a serialized Exported, or is "
            f"damaged{f' ({reason})' if reason else ''}. To do: write it with "
            "Exported.serialize(), or name a function as module:function where one is exported."
        ) from error
    both: Any = (made.in_tree, made.out_tree)
    if missing := {name for tree in both for name in missing_classes(tree)}:
        warn(
            f"{where} has pytree classes that this process has not registered: "
            f"{', '.join(sorted(missing))}. Stand-ins have their children by number. To do: import "
            "the modules that register them, on the command line by --import."
        )
    return made


def call_of_exported(exported: export.Exported, *, carried: bool = False) -> CallModule:
    """Return the call of an `Exported`, whatever it calls that TensorFlow does not have."""
    with open_module(exported.mlir_module_serialized) as module:
        targets = sorted(set(custom_call_targets(walk(module))))
        checks = [DisabledCheck(f"custom_call:{target}") for target in targets]
        call = from_exported(
            exported, allow_flat_trees=True, carried=carried, disabled_checks=checks, module=module
        )
    own = parse_checks(exported.disabled_safety_checks)
    return dataclasses.replace(call, disabled_checks=own)
